"""Fixtures that the tests of the server share."""

from support.conditioned import conditioned, telling
from support.evaluation import made

__all__ = ["conditioned", "made", "telling"]
