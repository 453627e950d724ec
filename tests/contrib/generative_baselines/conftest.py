"""Fixtures that the tests of this part share with those of the stages."""

from support.training import limits

__all__ = ["limits"]
