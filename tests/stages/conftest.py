"""Fixtures that the tests of several stages share."""

from support.evaluation import made

__all__ = ["made"]
