"""The preference component's data contract and splits: what is read, counted, refused, and what leaks."""

import json

import numpy as np
import pandas as pd
import pytest
from contrib.preference.comparisons import build
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import write_table

from minionerec.contrib.preference.config import PreferenceConfig
from minionerec.contrib.preference.data import (
    DISCARDED,
    TEST,
    TRAIN,
    VALID,
    audit_split,
    fold_of_rows,
    read_comparisons,
    read_features,
)
from minionerec.core.errors import ConfigError, DataError
from minionerec.pipeline.settings import parse_settings


def write_features(path, items=6, **change):
    features = np.random.default_rng(0).normal(size=(items, 4)).astype(np.float32)
    for (row, column), value in change.get("cells", {}).items():
        features[row, column] = value
    np.savez(path, item_id=np.array([f"i{n}" for n in range(items)]), features=features)
    return path


def write_rows(path, rows, targets=("smart",), **columns):
    names = ["comparison_id", "user_id", "item_a", "item_b", *targets]
    table = pd.DataFrame([[f"c{n}", *row] for n, row in enumerate(rows)], columns=names).assign(**columns)
    return write_table(table, path)


def read(tmp_path, rows, label_map=None, suffix=".csv", targets=("smart",), **columns):
    features = write_features(tmp_path / "features.npz")
    path = write_rows(tmp_path / f"rows{suffix}", rows, targets, **columns)
    return read_comparisons(path, features, targets, label_map or {})


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_every_answer_is_kept_or_counted(tmp_path, suffix):
    rows = [
        ("u1", "i0", "i1", "2"),  # means a here
        ("u1", "i2", "i3", "1"),
        ("u1", "i3", "i4", ""),
        ("u1", "i4", "i5", "0"),  # a tie
        ("u2", "i1", "i1", "1"),  # with itself
        ("u2", "i0", "ix", "1"),  # no features
        ("", "i0", "i1", "1"),  # nobody
        ("u1", "i1", "i0", "1"),  # again, swapped: the same choice of i0
        ("u1", "i0", "i1", "1"),  # again, the other way
        ("u3", "i0", "i2", "1"),
        *[("u4", f"i{n}", f"i{n + 1}", "12"[n % 2]) for n in range(5)],
        *[(f"v{n}", "i0", "i5", "2") for n in range(20)],
        ("u5", "i0", "i3", "perhaps"),
    ]
    data = read(tmp_path, rows, {"1": "b", "2": "a", "0": "tie"}, suffix)
    counts = data.counts
    wanted = dict.fromkeys(("without_user_or_item", "without_features", "self_pairs", "blank", "ties", "invalid"), 1)
    wanted |= {"comparisons": 36, "answers": 33, "repeated": 2, "contradictory": 1, "self_consistency": 0.5, "rows": 28}
    assert {name: counts[name] for name in wanted} == wanted
    assert counts["one_class_users"] == 1 + 20  # u3, and each v
    answers = zip(data.user, data.a, data.b, data.y, strict=True)
    first = {(data.users[u], data.items[a], data.items[b]): y for u, a, b, y in answers}
    assert first["u1", "i0", "i1"] == 1 and first["u1", "i2", "i3"] == 0
    assert ("u1", "i3", "i4") not in first and ("u1", "i4", "i5") not in first  # blank and tie are no zeros


def test_blank_numeric_cells_of_parquet_stay_blank(tmp_path):
    rows = [("u", "i0", "i2", 1.0), ("u", "i1", "i3", np.nan)]
    data = read(tmp_path, rows, {"1": "a", "2": "b"}, ".parquet")
    assert len(data) == 1 and data.y.tolist() == [1.0] and data.counts["blank"] == 1


def test_a_table_with_an_index_of_its_own_reads_the_same(tmp_path):
    """Rows are counted by their position, whatever a parquet file calls them."""
    rows = [("u", "i0", "i1", "a"), ("u", "ix", "i1", "a"), ("v", "i2", "i3", "b")]
    table = pd.read_parquet(write_rows(tmp_path / "rows.parquet", rows))
    features = write_features(tmp_path / "f.npz")
    for name, index in (("plain", [0, 1, 2]), ("odd", [7, 9, 5])):
        table.set_axis(index).to_parquet(tmp_path / f"{name}.parquet")
    plain, odd = (read_comparisons(tmp_path / f"{n}.parquet", features, ["smart"], {}) for n in ("plain", "odd"))
    assert plain.comparison.tolist() == odd.comparison.tolist() == [0, 2]
    assert plain.y.tolist() == odd.y.tolist() == [1.0, 0.0]
    assert [odd.users[u] for u in odd.user] == ["u", "v"]


GOOD, NONE_LEFT = ("u1", "i0", "i1", "a"), r"no usable answer is left \(.*\b"
TIMES = [1_500_000_000, 1_500_000_000_000, 1_500_000_001]


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (
            [GOOD, ("u1", "i0", "i2", "2")],
            {},
            r"rows\.csv, row 2: smart is '2', a code without a meaning\. Set label_map",
        ),
        ([GOOD, ("u1", "i0", "i2", "left")], {}, "1 of 2 answers are none of a, b, tie, blank"),
        (
            [("u1", "x", "i1", "a"), ("u1", "i0", "y", "b"), GOOD],
            {},
            "2 of 3 comparisons name items without features .* first 'x' in row 1",
        ),
        ([], {}, f"{NONE_LEFT}0 comparisons"),
        ([("", "i0", "i1", "a")], {}, f"{NONE_LEFT}1 comparisons"),
        ([("u1", "i0", "i1", "tie")], {}, f"{NONE_LEFT}1 ties"),
        ([GOOD], {"timestamp": "soon"}, "row 1, column 'timestamp': 'soon' is not a number"),
        ([GOOD] * 3, {"timestamp": TIMES}, r"row 1, column 'timestamp': .* \(.*row 2\) like milliseconds since 1970"),
    ],
)
def test_refusals(tmp_path, rows, columns, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, rows, **columns)


def test_columns_and_files_that_are_not_there(tmp_path):
    features, rows = write_features(tmp_path / "f.npz"), write_rows(tmp_path / "r.csv", [GOOD])
    message = r"column 'brave' is missing; it has .*smart\. Name the right one with --targets"
    with pytest.raises(DataError, match=message):
        read_comparisons(rows, features, ["brave"], {})
    with pytest.raises(DataError, match=r"nothing\.csv: no such file"):
        read_comparisons(tmp_path / "nothing.csv", features, ["smart"], {})


def test_no_comparison_is_swallowed_or_lost(tmp_path):
    """A quote that swallows rows, a line that is no object, a key twice: errors; honest quotes are read as they are."""
    features = write_features(tmp_path / "f.npz")
    rows = [f"c{n},u{n % 3},i{n % 5},i{n % 5 + 1},{'ab'[n % 2]},ok" for n in range(12)]
    header = "comparison_id,user_id,item_a,item_b,smart,comment\n"

    def reported(lines, name="rows.csv"):
        (tmp_path / name).write_text(header * name.endswith("csv") + "\n".join(lines))
        return read_comparisons(tmp_path / name, features, ["smart"], {})

    honest = [*rows[:3], 'c3,u0,i3,i4,b,"well, if\na little ""late"""', *rows[4:]]
    assert reported(honest).counts == {**reported(rows).counts, "lines_inside_cells": 1}
    torn = [*rows[:3], '"c3,u0,i3,i4,b,ok', rows[4], 'c5,u2,i0,i1,b,"ok', *rows[6:]]
    with pytest.raises(DataError, match=r"rows.csv, line 5 \(to line 7\): ',' expected after"):
        reported(torn)
    good = [json.dumps(dict(zip(header.strip().split(","), row.split(","), strict=True))) for row in rows]
    assert reported(good, "rows.jsonl").counts == reported(rows).counts
    for bad, why in (
        ("[1]", "a JSON list, expected an object"),
        (good[2].replace("comment", "smart"), "the key 'smart' is given twice"),
        ("[" * 100_000, "nested too deep"),
        (good[2][:-3], ""),
    ):
        with pytest.raises(DataError, match=rf"rows\.jsonl, line 4: .*{why}"):
            reported([*good[:3], bad, *good[3:]], "rows.jsonl")
    with pytest.raises(DataError, match="a lone surrogate"):
        reported([*good[:3], good[3].replace("u0", "\\ud800")], "rows.jsonl")


def test_features_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"item 'i3' has NaN"):
        read_features(write_features(tmp_path / "nan.npz", cells={(3, 1): np.nan}))
    (tmp_path / "f.pkl").write_bytes(b"")
    with pytest.raises(DataError, match="pickles are not read"):
        read_features(tmp_path / "f.pkl")
    np.savez(tmp_path / "o.npz", item_id=np.array(["a"]), features=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"no objects"):
        read_features(tmp_path / "o.npz")
    pd.DataFrame({"item_id": ["a", "b"], "vector": [[1.0, 2.0], [1.0]]}).to_parquet(tmp_path / "mixed.parquet")
    with pytest.raises(DataError, match=r"item 'b' has 1 numbers, item 'a' has 2"):
        read_features(tmp_path / "mixed.parquet")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "nan.npz").read_bytes()[:-30])
    with pytest.raises(DataError, match=r"torn\.npz: expected item_id and features .*zip"):
        read_features(tmp_path / "torn.npz")
    with pytest.raises(DataError, match=r"large\.npz: row 2 holds 1e\+30, but values are at most 1e\+12"):
        read_features(write_features(tmp_path / "large.npz", cells={(2, 0): 1e30}))
    np.savez(tmp_path / "half.npz", item_id=np.array(["a", "\ud800"]), features=np.ones((2, 3)))
    with pytest.raises(DataError, match=r"half\.npz: the item id .* holds a lone surrogate"):
        read_features(tmp_path / "half.npz")
    ids = np.array([[97, 98], [99, 0x690000]], dtype=np.uint32).view("<U2")[:, 0]
    np.savez(tmp_path / "none.npz", item_id=ids, features=np.ones((2, 3)))
    with pytest.raises(DataError, match=r"none\.npz: .*item_id holds invalid code points"):
        read_features(tmp_path / "none.npz")
    np.savez(tmp_path / "twice.npz", item_id=np.array(["a", "a"]), features=np.ones((2, 3)))
    with pytest.raises(DataError, match=r"2 vectors for 1 distinct items"):
        read_features(tmp_path / "twice.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"comparisons": "a.csv"}, r"comparisons is 'a.csv' and features ''"),
        ({"split": "time"}, r"synthetic data have no time"),
        ({"label_map": {"1": "left"}}, r"label_map has '1=left'; expected CODE=a, CODE=b or CODE=tie"),
        ({"label_map": {"": "a", "2": "b"}}, r"label_map has '=a'"),
        ({"label_map": {"1": "a", "2": "a"}}, r"a code for 'a' and one for 'b'"),
        ({"models": ["bt_hier", "bt_hier"]}, r"expected none twice"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(ConfigError, match=message):
        PreferenceConfig(**change)


def test_label_map_as_a_user_writes_it(tmp_path):
    """Codes that are numbers in YAML, and words of the command line."""
    file = tmp_path / "train.yaml"
    file.write_text("label_map: {1: a, 2: b, 0: tie}\n")
    config = parse_settings(PreferenceConfig, ["--config", str(file)])
    words = parse_settings(PreferenceConfig, ["--label_map", "1=a", "2=b", "0=tie"])
    assert words.label_map == config.label_map == {"1": "a", "2": "b", "0": "tie"}
    with pytest.raises(ConfigError, match=r"names '1' twice"):
        parse_settings(PreferenceConfig, ["--label_map", "1=a", "1=b"])


def test_row_split_is_the_published_one():
    """48,756 rows: 39,006 / 4,875 / 4,875 by NumPy's global generator, shuffling a list; 78,012 after swapping."""
    data = build(pairs=16252, users=1)
    folds = fold_of_rows(data, "row", 42)
    np.random.seed(42)  # noqa: NPY002
    order = list(range(48756))
    np.random.shuffle(order)  # noqa: NPY002
    assert [int((folds == f).sum()) for f in (TRAIN, VALID, TEST)] == [39006, 4875, 4875]
    assert set(np.flatnonzero(folds == TEST)) == set(order[-4875:])
    assert set(np.flatnonzero(folds == VALID)) == set(order[39006:43881])
    assert 2 * (folds == TRAIN).sum() == 78012


@settings(max_examples=25)
@given(
    pairs=st.integers(20, 60), users=st.integers(3, 6), unit=st.sampled_from(["row", "pair", "item", "user", "time"])
)
def test_splits_keep_their_unit_whole(pairs, users, unit):
    data = build(pairs, users, time=True)
    try:
        folds = fold_of_rows(data, unit, 3)
    except DataError as error:
        assert "leaves no row" in str(error) and unit == "item"
        return
    np.testing.assert_array_equal(folds, fold_of_rows(data, unit, 3))
    audit = audit_split(data, folds, unit)
    # A dumb audit, row by row.
    train = [r for r in range(len(data)) if folds[r] == TRAIN]
    own = {(data.pair[r], data.user[r]) for r in train}
    on_pair: dict = {}
    for r in train:
        on_pair.setdefault(data.pair[r], set()).add(data.user[r])
    items = {item for r in train for item in (data.a[r], data.b[r])}
    test = [r for r in range(len(data)) if folds[r] == TEST]
    assert audit["same_user_pair"] == pytest.approx(np.mean([(data.pair[r], data.user[r]) in own for r in test]))
    others = [bool(on_pair.get(data.pair[r], set()) - {data.user[r]}) for r in test]
    assert audit["same_pair_other_user"] == pytest.approx(np.mean(others))
    assert audit["both_items_seen"] == pytest.approx(np.mean([{data.a[r], data.b[r]} <= items for r in test]))
    if unit == "pair":
        assert audit["same_user_pair"] == audit["same_pair_other_user"] == 0
    if unit == "item":
        assert not items & {item for r in test for item in (data.a[r], data.b[r])}
        assert audit["discarded"] == (folds == DISCARDED).sum() > 0
    if unit == "user":
        assert not {data.user[r] for r in train} & {data.user[r] for r in test}
    if unit == "time":
        assert max(data.time[train]) < min(data.time[test])


def test_a_pair_split_that_leaks_is_refused():
    data = build(30, 3)
    with pytest.raises(DataError, match="the split 'pair' leaks"):
        audit_split(data, fold_of_rows(data, "row", 1), "pair")
