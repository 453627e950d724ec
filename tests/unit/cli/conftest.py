import pytest
from support.paths import ROOT
from support.studies import Played

from minionerec.cli import runner
from minionerec.reports import plots


@pytest.fixture
def played(monkeypatch):
    """Every stage is played, and reports draw no figures; what was started is in `names`."""
    found = Played()
    monkeypatch.setattr(runner, "started_words", found)
    monkeypatch.setattr(plots, "available", lambda: False)
    monkeypatch.chdir(ROOT)
    return found
