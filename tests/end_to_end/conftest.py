"""Fixtures that the tests of whole runs share."""

import logging

import pytest
from support.pages import undrawn

__all__ = ["undrawn"]


@pytest.fixture(autouse=True)
def same_log_level():
    """Stages in the tests' own process leave transformers as loud as it was."""
    before = logging.getLogger("transformers").level
    yield
    logging.getLogger("transformers").setLevel(before)
