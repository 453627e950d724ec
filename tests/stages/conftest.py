"""Fixtures that the tests of several stages share."""

from support.conditioned import conditioned
from support.evaluation import made
from support.pages import drawn, undrawn
from support.training import limits

__all__ = ["conditioned", "drawn", "limits", "made", "undrawn"]
