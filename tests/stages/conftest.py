"""Fixtures that the tests of several stages share."""

from support.evaluation import made
from support.pages import drawn, undrawn

__all__ = ["drawn", "made", "undrawn"]
