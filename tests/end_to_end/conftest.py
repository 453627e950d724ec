"""Fixtures that the tests of whole runs share."""

from support.pages import undrawn

__all__ = ["undrawn"]
