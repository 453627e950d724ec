"""Lines of growth, and the slopes that stand beside them."""

import importlib.util
import json
import math
import re
import sys
from xml.etree import ElementTree

import pytest
from support.paths import ROOT

from minionerec.core.errors import MinioneRecError
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


def test_a_table_is_written_between_its_marks(scale, tmp_path, monkeypatch, capsys):
    (tmp_path / "out.jsonl").write_text(json.dumps(line("a", 10, 1.0)) + "\n")
    page = tmp_path / "page.md"
    words = ["scale.py", "--out", str(tmp_path / "out.jsonl"), "--page", str(page)]
    monkeypatch.setattr(sys, "argv", words)
    begin, end = "<!-- written by benchmarks/scale.py -->", "<!-- end of benchmarks/scale.py -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    scale.main()
    text = page.read_text()
    assert "old" not in text and "| a | 1.0 | — | 1.00 |" in text
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    scale.main()
    assert page.read_text() == text
    for wrong in ("no marks\n", f"{end}\n{begin}\n", f"{begin}\n{begin}\n{end}\n", f"{begin}\n"):
        page.write_text(wrong)
        with pytest.raises(MinioneRecError, match=r"does not have the lines .* once each"):
            scale.main()
        assert page.read_text() == wrong
    page.unlink()
    scale.main()
    assert page.read_text().startswith(f"{begin}\n\n| stage |") and page.read_text().endswith(f"\n\n{end}\n")
