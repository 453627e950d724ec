"""What the hostile tests share: one shop with every stage's output, which no test changes."""

import pytest
from support.pages import drawn, undrawn
from support.small_shop import make_shop
from support.store import shared

__all__ = ["drawn", "shop", "undrawn"]


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """A folder with tables, settings and artefacts; a test that spoils something takes a copy."""
    return shared(tmp_path_factory, make_shop)
