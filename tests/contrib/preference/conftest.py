"""Fixtures of pages."""

from support.pages import drawn, undrawn

__all__ = ["drawn", "undrawn"]
