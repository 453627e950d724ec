"""Lines of "user item item ...": rows, titles and every message; the real sequences where they are at hand."""

import json

import pytest
from support.builder import build
from support.small_corpus import triples_of

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.data.source import BadRows
from minionerec.data.sources.user_items import read_user_items
from minionerec.pipeline.cli.plan import config_values
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.pipeline.settings import parse_settings

LINES = "ann 3 1 2 10\n\nbob: 2 2 3\n"


def read(tmp_path, lines=LINES, titles=None, bad=None):
    (tmp_path / "visits.txt").write_text(lines)
    if titles is not None:
        (tmp_path / "titles.json").write_text(json.dumps(titles))
    return read_user_items(tmp_path / "visits.txt", None if titles is None else tmp_path / "titles.json", bad)


def test_each_line_is_split_by_position(tmp_path):
    corpus = build(read(tmp_path), split="leave_last_out", max_history=2).corpus()
    assert corpus.items["item_id"].tolist() == ["1", "2", "3", "10"]
    assert triples_of(corpus.train) == [("ann", [2], 0)]
    assert triples_of(corpus.valid) == [("ann", [2, 0], 1), ("bob", [1], 1)]
    assert triples_of(corpus.test) == [("ann", [0, 1], 3), ("bob", [1, 1], 2)]
    assert corpus.counts["truncated_histories"] == 1 and corpus.counts["items_without_title"] == 4


def test_titles_order_the_items(tmp_path):
    titles = {"10": {"title": "Ten ", "asin": "B0"}, "2": {"title": "Two", "description": "x"}, "3": "Three", "1": ""}
    source = read(tmp_path, titles={**titles, "9": {"title": None}})
    assert source.items["item_id"].tolist() == ["10", "2", "3", "1", "9"]
    assert source.items["title"].tolist() == ["Ten", "Two", "Three", "", ""]
    assert source.items["description"].tolist() == ["", "x", "", "", ""]
    assert source.item_index.tolist() == [2, 3, 1, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("lines", "titles", "message", "kind"),
    [
        ("ann\n", None, r"line 4: user 'ann' has no item; expected 'user item item \.\.\.'", "malformed"),
        ("zoe\n", None, "line 4: user 'zoe' has no item", "malformed"),
        ("ann 1 2\n", None, "line 4: user 'ann' already has line 1", "repeated_user"),
        ("eve 1 77 2\n", dict.fromkeys(["1", "2", "3", "10"], "x"), "line 4: item '77' is not in ", "unknown_item"),
    ],
)
def test_bad_lines(tmp_path, lines, titles, message, kind):
    with pytest.raises(DataError, match=rf"visits\.txt, {message}"):
        read(tmp_path, LINES + lines, titles)
    bad = BadRows(1)
    assert len(read(tmp_path, LINES + lines, titles, bad).users) == 7
    assert bad.counts() == {"bad_rows": 1, f"bad_rows_{kind}": 1}
    with pytest.raises(DataError, match="That makes 2 bad rows, and max_bad_rows is 1"):
        read(tmp_path, LINES + lines + lines.replace("eve", "pat"), titles, BadRows(1))


def test_files_that_are_not_it(tmp_path):
    with pytest.raises(DataError, match="holds no interaction"):
        read(tmp_path, "\n")
    with pytest.raises(DataError, match="expected an object of item id"):
        read(tmp_path, titles=["a"])
    with pytest.raises(DataError, match=r"item '1' has 7; expected a title or an object with a title"):
        read(tmp_path, titles={"1": 7})
    with pytest.raises(DataError, match=r"no\.txt: no such file"):
        read_user_items(tmp_path / "no.txt")


def test_there_are_no_times_to_split_by(tmp_path):
    with pytest.raises(ConfigError, match=r"visits\.txt holds no times\. Set split to 'leave_last_out'"):
        build(read(tmp_path), split="global_time")


def test_beauty_has_the_known_counts(tmp_path, data_root):
    if not (data_root / "sequential").is_dir():
        pytest.skip("MINIONEREC_DATA has no folder sequential")
    words = ["--config", "beauty/catalogue#data", "--output", str(tmp_path / "corpus")]
    counts = run_prepare(parse_settings(PrepareConfig, words, read=config_values)).counts
    expected = {"users": 22_363, "items": 12_101, "interactions": 198_502, "test_rows": 22_363, "valid_rows": 22_363}
    expected |= {"train_rows": 198_502 - 3 * 22_363, "items_without_title": 0, "split": "leave last out"}
    assert {name: counts[name] for name in expected} == expected
    corpus = Corpus.load(tmp_path / "corpus")
    titles = json.loads((data_root / "sequential" / "Beauty.titles.json").read_text())
    ids = corpus.items["item_id"].to_numpy()
    with open(data_root / "sequential" / "Beauty.txt") as file:
        for line, (user, history, target) in zip(file, corpus.test, strict=True):
            name, *items = line.split()
            assert user == name
            assert ids[[*history, target]].tolist() == items[-51:]
    assert corpus.items["title"].tolist() == [entry["title"].strip() for entry in titles.values()]
