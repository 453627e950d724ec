import pytest
from support.paths import ROOT
from support.studies import Played

from minionerec.cli import runner


@pytest.fixture
def played(monkeypatch):
    """Every stage is played; what was started is in `names`."""
    found = Played()
    monkeypatch.setattr(runner, "started_words", found)
    monkeypatch.chdir(ROOT)
    return found
