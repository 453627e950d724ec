"""Foundations without torch: errors, configuration, artefacts, logging and progress."""
