"""Lines of growth, and the slopes that stand beside them."""

import importlib.util
import math
import re
from xml.etree import ElementTree

import pytest
from support.paths import ROOT

from minionerec.reports.plots import available


@pytest.fixture(scope="module")
def scale():
    spec = importlib.util.spec_from_file_location("scale", ROOT / "benchmarks/scale.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not available(), reason="matplotlib is not installed (extra plots)")
def test_a_picture_names_its_lines_and_sizes(scale):
    text = scale.growth_lines({"sort": {1e6: 0.5, 1e8: 70.0}, "read": {1e6: 1.0, 1e7: 9.0}}, "rows", "seconds")
    ElementTree.fromstring(text)
    reported = re.sub(r"<[^>]+>", " ", text)
    for word in ("sort", "read", "rows", "seconds", "1 M", "10 M", "100 M"):
        assert word in reported
    assert "mathdefault" not in text


def line(stage, size, seconds):
    return {"stage": stage, "size": size, "seconds": {"all": seconds}, "peak_memory_bytes": 2**30}


def test_slopes(scale):
    assert scale.slope({10: 3.0, 1000: 300.0, 100: 7.0}) == pytest.approx(1.0)
    assert math.isnan(scale.slope({10: 3.0}))
    table, seconds = scale.page_of([line("a", 10, 1.0), line("a", 1000, 10.0), line("b", 10, 2.0)])
    assert seconds == {"a": {10: 1.0, 1000: 10.0}, "b": {10: 2.0}}
    assert table.splitlines()[2:] == ["| a | 1.0 | 10.0 | 0.50 | 1.00 | 1.00 |", "| b | 2.0 | — | — | 1.00 | — |"]
