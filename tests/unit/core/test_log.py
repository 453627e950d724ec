"""Progress of long work: lines of the log with the time left, and bars in a notebook."""

import logging
import re
import sys
from types import ModuleType

import pytest

from minionerec.core.log import progress


@pytest.fixture(autouse=True)
def off_a_terminal(monkeypatch, caplog):
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    caplog.set_level(logging.INFO, logger="minionerec")


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def test_lines_have_the_share_done_and_the_time_left(caplog):
    assert list(progress(range(4), "counting", unit="items", every=0)) == [0, 1, 2, 3]
    assert len(lines(caplog)) >= 3
    assert re.fullmatch(r"counting: 0 of 4 items, 00:00 elapsed, \? left", lines(caplog)[0])
    assert re.fullmatch(r"counting: 4 of 4 items, 00:00 elapsed, 00:00 left", lines(caplog)[-1])


def test_items_count_for_their_sizes(caplog):
    assert list(progress([[1, 2], [3]], "reading", unit="rows", size=len, every=0)) == [[1, 2], [3]]
    assert "reading: 2 of 3 rows, " in "\n".join(lines(caplog))


def test_quick_work_and_other_processes_log_nothing(caplog, monkeypatch):
    assert list(progress(range(3), "counting")) == [0, 1, 2]
    monkeypatch.setattr("minionerec.core.log.is_main_process", lambda: False)
    assert list(progress(range(3), "counting", every=0)) == [0, 1, 2]
    assert not lines(caplog)


def test_a_notebook_shows_bars(caplog, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    assert list(progress(range(3), "counting", unit="items", delay=0)) == [0, 1, 2]
    assert "counting: 100%" in capsys.readouterr().err and not lines(caplog)
