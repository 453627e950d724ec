"""Foundations: errors, configuration, artefacts, logging and progress; torch in `device` and `processes` alone."""
