"""The times that the order of rows tells."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import in_blocks
from support.gaps import GAP, LATER, SAME, gap_codes
from support.small_corpus import write_published

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError, DataError
from minionerec.data.contexts import corpus_codes
from minionerec.data.corpus import Corpus
from minionerec.data.names import SPLITS, UNKNOWN
from minionerec.data.published import read_published, with_times_by_order
from minionerec.data.rows import SplitExamples
from minionerec.data.times import NO_TIME
from minionerec.data.times_file import with_times_of_file
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from("abc"), max_size=12), min_size=3, max_size=3))
def test_times_by_order_say_what_a_plain_search_says(users_of_splits):
    """Runs of examples of one user have one time, across the borders of splits, too, and over an empty split."""
    users, splits, row = [user for part in users_of_splits for user in part], [], 0
    for part in users_of_splits:
        # The targets are the numbers of examples: a history holds those of the user's earlier ones.
        histories = [
            [number for number in range(row + position) if users[number] == user] for position, user in enumerate(part)
        ]
        splits.append(SplitExamples.of(part, histories, range(row, row + len(part))))
        row += len(part)
    items = pd.DataFrame({"item_id": [str(item) for item in range(max(1, row))], "title": "", "description": ""})
    found = with_times_by_order(Corpus(items, *splits, split="", max_history=40)).splits().values()
    contexts = [code for rows in found for code in gap_codes(rows).tolist()]
    for number, (user, context) in enumerate(zip(users, contexts, strict=True)):
        wanted = UNKNOWN if user not in users[:number] else SAME if users[number - 1] == user else LATER
        assert context == wanted
    time = np.concatenate([rows.times.time for rows in found])
    assert (np.diff(time) >= 0).all()
    same, together = ([part[row] == part[row - 1] for row in range(1, len(users))] for part in (time, users))
    assert same == together


INTERACTIONS = [  # user and the items of one visit, in order of time; 20 rows follow
    ("u1", [0, 1, 2]), ("u2", [3]), ("u1", [4]), ("u3", [2, 0]), ("u2", [1, 5]), ("u1", [0, 0]),
    ("u3", [1]), ("u2", [2]), ("u4", [3, 4, 5]), ("u1", [2]), ("u4", [0, 1]), ("u3", [5, 4]), ("u1", [3, 1, 0]),
]  # fmt: skip
CUTS = {"train": slice(0, 14), "valid": slice(14, 16), "test": slice(16, None)}


@pytest.fixture
def layout(tmp_path, monkeypatch):
    """A small published layout, whose splits part visits, and what each row asks for."""
    monkeypatch.setenv("MINIONEREC_DATA", str(tmp_path))
    histories: dict[str, list[int]] = {}
    rows, wanted = [], []
    newest = None
    for user, visit in INTERACTIONS:
        seen = histories.setdefault(user, [])
        for item in visit:
            if seen:
                follows_row = any(row[0] == user for row in rows)
                wanted.append(UNKNOWN if not follows_row else SAME if newest == user else LATER)
                rows.append((user, seen[-10:], item))
                newest = user
            seen.append(item)
    splits = {name: SplitExamples.of(*zip(*rows[cut], strict=True)) for name, cut in CUTS.items()}
    items = pd.DataFrame({"item_id": range(6), "title": list("abcdef"), "description": ""})
    write_published(tmp_path / "Amazon", "Pots", Corpus(items, **splits, split="", max_history=10))
    return tmp_path, {name: wanted[cut] for name, cut in CUTS.items()}


def prepared(folder: Path, output: str, **changes):
    return PrepareConfig(source="published", category="Pots", output=str(folder / output), **changes)


def same_times(one, other):
    return np.array_equal(one.time, other.time) and np.array_equal(one.previous, other.previous)


def test_the_published_layout_gets_times_that_come_back_from_disk(layout, caplog):
    folder, wanted = layout
    with caplog.at_level("INFO", "minionerec"):
        result = run_prepare(prepared(folder, "timed", times_by_order=True))
    corpus, stored = Corpus.load(result.output), in_blocks(result.output)
    expected = with_times_by_order(read_published(folder / "Amazon", "Pots"))
    assert {name: len(rows) for name, rows in wanted.items()} == {"train": 14, "valid": 2, "test": 4}
    for name in SPLITS:
        rows = corpus.rows(name)
        assert gap_codes(rows).tolist() == wanted[name]
        assert same_times(rows.times, expected.rows(name).times)
        assert same_times(rows.times, stored.rows(name).times) and stored.has_times
        assert [row.tolist() for row in rows.histories] == [row.tolist() for row in expected.rows(name).histories]
    assert {context for row in wanted.values() for context in row} == {UNKNOWN, SAME, LATER}
    # The audit tells ties from the other pairs, as it does of any source with times.
    same, later = (sum(row.count(context) for row in wanted.values()) for context in (SAME, LATER))
    order = read_manifest(result.output, "corpus")["counts"]["order"]
    assert (order["pairs"], order["ties"]) == (same + later, same)
    assert f"neighbouring pairs within one second: {same} of {same + later}" in caplog.text


def test_corpora_without_it_stay_as_they_were(layout):
    folder, _ = layout
    result = run_prepare(prepared(folder, "plain"))
    assert not Corpus.load(result.output).has_times
    assert run_prepare(prepared(folder, "plain", times_by_order=False)).up_to_date
    changed = run_prepare(prepared(folder, "plain", times_by_order=True))
    assert not changed.up_to_date and Corpus.load(result.output).has_times
    assert read_manifest(result.output, "corpus")["settings"]["times_by_order"] is True
    assert run_prepare(prepared(folder, "plain", times_by_order=True)).up_to_date


def test_the_published_layout_gets_the_times_of_a_file(layout, caplog):
    folder, _ = layout
    file, missing = folder / "times.csv", folder / "none.csv"
    config = prepared(folder, "timed", times=str(missing))
    with caplog.at_level("INFO", "minionerec"):
        plain = Corpus.load(run_prepare(config).output)
    assert not plain.has_times and config.up_to_date()
    named = [text for text in caplog.messages if "no such file" in text]
    assert named == [f"{missing}: no such file; the corpus has no times."]
    days = {("valid", 0): ("9", "9"), ("valid", 1): ("", ""), ("test", 0): (10, 10), ("test", 1): (12, 9)}
    days |= {("test", row): (12, 12) for row in (2, 3)}
    lines = [f"{split},{row},{time},{before}" for (split, row), (time, before) in days.items()]
    file.write_text("\n".join(["split,row,timestamp,previous_timestamp", *lines]) + "\n")
    caplog.clear()
    with caplog.at_level("INFO", "minionerec"):
        result = run_prepare(prepared(folder, "timed", times=str(file)))
    corpus, stored = Corpus.load(result.output), in_blocks(result.output)
    expected = with_times_of_file(read_published(folder / "Amazon", "Pots"), file)
    assert not result.up_to_date and corpus.has_times and stored.has_times
    for name in SPLITS:
        for found in (corpus, stored):
            assert same_times(found.rows(name).times, expected.rows(name).times)
        for plainly, rows in zip(plain.rows(name).seen, corpus.rows(name).seen, strict=True):
            assert plainly.tolist() == rows.tolist()
    contexts = {name: corpus_codes(corpus, [GAP], name)[:, 0].tolist() for name in SPLITS}
    assert contexts == {"train": [UNKNOWN] * 14, "valid": [SAME, UNKNOWN], "test": [SAME, LATER, SAME, SAME]}
    order = read_manifest(result.output, "corpus")["counts"]["order"]
    assert (order["pairs"], order["ties"]) == (5, 4)
    assert "neighbouring pairs within one second: 4 of 5" in caplog.text
    assert run_prepare(prepared(folder, "timed", times=str(file))).up_to_date
    file.write_text(file.read_text().replace("valid,0,9,9", "valid,0,9,8"))
    assert not prepared(folder, "timed", times=str(file)).up_to_date()


def test_times_are_of_a_file_or_of_the_order(layout):
    folder, _ = layout
    with pytest.raises(ConfigError, match=r"times is 'times\.csv', and times_by_order is true.*Leave one out"):
        prepared(folder, "x", times="times.csv", times_by_order=True)
    with pytest.raises(DataError, match=r"is a directory, expected a file\. Give --times its path"):
        run_prepare(prepared(folder, "x", times=str(folder)))


@pytest.mark.parametrize("source", [{}, {"source": "tables", "items": "i.csv", "interactions": "x.csv"}])
def test_other_sources_have_times_of_their_own(source):
    with pytest.raises(ConfigError, match=r"times is 't.csv', but source is .*Set source to 'published'"):
        PrepareConfig(output="x", **source, times="t.csv")
    with pytest.raises(ConfigError, match=r"times_by_order is True, but source is .*Set source to 'published'"):
        PrepareConfig(output="x", **source, times_by_order=True)


def test_where_rows_are_missing_no_one_knows_when_the_newest_item_came(layout, tmp_path):
    """An empty history has no newest item, and one that the user's row before did not add came at any time."""
    folder, _ = layout
    corpus = read_published(folder / "Amazon", "Pots")
    users, histories = ["u", "u", "u", "u"], [[0], [], [1], [0, 5]]
    rows = SplitExamples.of(users, histories, [1, 1, 2, 3])
    found = with_times_by_order(replace(corpus, train=rows)).train.times
    assert found.time.tolist() == [0, 0, 0, 0]
    assert found.previous.tolist() == [NO_TIME, NO_TIME, 0, NO_TIME]
    broken = replace(with_times_by_order(replace(corpus, train=rows)), max_history=10)
    broken.save(tmp_path / "broken", config={}, inputs={})
    assert same_times(Corpus.load(tmp_path / "broken").train.times, found)


def test_the_real_layout_reads_back(industrial):
    corpus = with_times_by_order(industrial)
    counts = {name: np.bincount(gap_codes(rows)).tolist() for name, rows in corpus.splits().items()}
    assert counts == {"train": [7034, 14251, 14974], "valid": [393, 1701, 2438], "test": [267, 1644, 2622]}
