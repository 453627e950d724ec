"""The SID table: its file, its checks, and the order of its rows."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minionerec.core.errors import ArtefactError, DataError
from minionerec.sid.table import LEVELS, SidTable, by_column, code_token, group_sizes, prefix_span, row_keys, split_sid


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@given(st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=5), min_size=1, max_size=8), st.integers(0, 2**31))
def test_round_trip_of_index_json(tmp_path_factory, sids, salt):
    path = tmp_path_factory.mktemp("round") / "index.json"
    content = {
        f"item {salt + position}": [f"<{LEVELS[level]}_{code}>" for level, code in enumerate(codes)]
        for position, codes in enumerate(sids)
    }
    write(path, content)
    table = SidTable.load_index(path)
    assert [[code for code in row if code >= 0] for row in table.codes.tolist()] == sids
    again = path.with_name("again.json")
    table.save_index(again)
    assert again.read_text() == path.read_text()
    assert SidTable.load_index(again).fingerprint == table.fingerprint


def test_variable_length():
    table = SidTable(np.array([[3, 1, 0], [3, 2, -1], [3, 1, 1], [3, 2, -1]]), ["w", "x", "y", "z"])
    assert table.sids == ["<a_3><b_1><c_0>", "<a_3><b_2>", "<a_3><b_1><c_1>", "<a_3><b_2>"]
    assert (table.levels, len(table), table.n_unique) == (3, 4, 3)
    assert table.items_of("<a_3><b_2>") == [1, 3] and table.items_of("<a_3>") == []
    assert table.tokens == ["<a_3>", "<b_1>", "<b_2>", "<c_0>", "<c_1>"]


def test_order_is_the_corpus_order(tmp_path):
    path = write(tmp_path / "index.json", {"x": ["<a_1>"], "y": ["<a_2>"], "other": ["<a_3>"]})
    assert SidTable.load_index(tmp_path, ["y", "x"]).codes.tolist() == [[2], [1]]
    assert SidTable.load_index(path).item_ids == ("x", "y", "other")


@pytest.mark.parametrize(
    "tokens",
    [[], ["<b_1>"], ["<a_1>", "<a_2>"], ["<a_1>", "<c_2>"], ["a_1"], ["<a_-1>"], ["<a_1> <b_2>"], "<a_1>", [1], None],
)
def test_bad_tokens_name_file_and_item(tmp_path, tokens):
    path = write(tmp_path / "index.json", {"x": ["<a_1>", "<b_1>"], "y": tokens})
    with pytest.raises(DataError, match=r"index\.json: item 'y' has .*, expected token strings such as"):
        SidTable.load_index(path)


@pytest.mark.parametrize(
    ("content", "ids", "error", "message"),
    [
        ({"x": ["<a_1>"]}, ["x", "y"], DataError, r"index\.json: item 'y' has no SID\. Build SIDs"),
        ("[]", None, DataError, "expected an object of item id → token strings, got list"),
        ('{"x": ["<a_1', None, ArtefactError, "not valid JSON"),
        (None, None, ArtefactError, "no such file"),
    ],
)
def test_missing_item_and_bad_files(tmp_path, content, ids, error, message):
    with pytest.raises(error, match=message):
        SidTable.load_index(
            tmp_path / "index.json" if content is None else write(tmp_path / "index.json", content), ids
        )


def test_check_items():
    table = SidTable(np.array([[0], [1]]), ["x", "y"])
    table.check_items(["x", "y"], "corpus")
    with pytest.raises(DataError, match="corpus: 1 items, but the SID table has 2"):
        table.check_items(["x"], "corpus")
    with pytest.raises(DataError, match="corpus: item 1 is 'z', in the SID table 'y'"):
        table.check_items(["x", "z"], "corpus")


@pytest.mark.parametrize(
    ("codes", "ids", "message"),
    [
        ([[0, 1]], ["x", "y"], r"codes have shape \(1, 2\); expected \(2,"),
        ([[-1, 1]], ["x"], r"item 'x' has codes \[-1, 1\]: a level is missing"),
        ([[0, -1, 1]], ["x"], "a level is missing"),
        (np.zeros((0, 2)), [], "the SID table is empty"),
        ([[0], [1], [2]], ["x", "y", "x"], "item 'x' occurs twice; give each item one SID"),
        (np.zeros((1, 703)), ["x"], "1 to 702 levels"),
    ],
)
def test_bad_codes(codes, ids, message):
    with pytest.raises(DataError, match=message):
        SidTable(np.array(codes), ids)


def test_fingerprint_tells_tables_apart():
    codes = np.array([[0, 1], [1, 0]])
    table = SidTable(codes, ["x", "y"])
    assert table.fingerprint == SidTable(codes.astype(np.int64), ["x", "y"]).fingerprint
    others = [SidTable(codes[::-1], ["x", "y"]), SidTable(codes, ["y", "x"]), SidTable(codes[:, :1], ["x", "y"])]
    assert table.fingerprint not in {other.fingerprint for other in others}


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=80))
def test_split_sid_inverts_joining(codes):
    tokens = tuple(code_token(level, code) for level, code in enumerate(codes))
    assert split_sid(f" {''.join(tokens)}\n") == tokens
    assert split_sid("".join(tokens) + "x") is None


SHAPES = st.tuples(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3, 2**20 - 1]))


@given(SHAPES)
def test_keys_are_in_the_order_of_the_rows(shape):
    seed, rows, levels, most = shape  # 40 levels of a million codes are more than 64 bits
    codes = np.random.default_rng(seed).integers(-1, most + 1, (rows, levels)).astype(np.int32)
    codes = codes[np.random.default_rng(seed).integers(0, rows, 2 * rows)]
    keys = row_keys(codes)
    assert keys.dtype == np.int64
    distinct, inverse, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    assert (np.unique(keys, return_inverse=True)[1] == inverse.reshape(-1)).all()
    assert (group_sizes(codes) == counts).all()
    columns = by_column(distinct)
    for row in distinct[:5].tolist():
        for length in range(levels + 1):
            first, last = prefix_span(columns, row[:length])
            assert (distinct[first:last, :length] == row[:length]).all()
            assert last - first == (distinct[:, :length] == row[:length]).all(axis=1).sum()
    assert len(set(prefix_span(columns, [most + 5]))) == 1


def test_no_rows():
    assert row_keys(np.empty((0, 3), np.int32)).shape == (0,)
