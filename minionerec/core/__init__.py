"""Foundations: errors, configuration, artefacts, logging and progress; only `device` and `processes` use torch."""
