"""What the hostile tests share: one shop with every stage's output, which no test changes."""

import pytest
from support.pages import draw, drawn, undrawn
from support.small_shop import copied, make_shop
from support.store import shared

from minionerec.reports import plots

__all__ = ["drawn", "shop", "undrawn"]


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """A folder with tables, settings and artefacts; a test that spoils something takes a copy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "svg", draw)  # whatever tests came before in this process
        return shared(tmp_path_factory, make_shop)


@pytest.fixture
def folder(shop, tmp_path):
    """A copy of the shop to be spoilt."""
    return copied(shop, tmp_path / "shop")
