"""Tables of millions of items, with the bound lowered so that a few are many."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minionerec.core.errors import ArtefactError, DataError
from minionerec.data.rows import LazySequence
from minionerec.sid import table
from minionerec.sid.table import ItemIds, SidTable

CODES = np.array([[3, 1, 0], [3, 2, -1], [3, 1, 1], [3, 2, -1], [0, 2, 5], [3, 1, 0]])
IDS = ["w", "ä", "y", '"', "v\\", "last"]


@pytest.fixture
def few(monkeypatch):
    """A table that is small, its fingerprint, and the same table where a few items are many."""
    small = SidTable(CODES, IDS)
    for name in ("token_tuples", "sids"):
        getattr(small, name)
    fingerprint = small.fingerprint
    monkeypatch.setattr(table, "LARGE", 3)
    monkeypatch.setattr(table, "_BLOCK", 2)
    return small, fingerprint, SidTable(CODES, IDS)


def test_large_tables_say_what_small_ones_do(few):
    small, fingerprint, large = few
    assert isinstance(large.item_ids, ItemIds) and isinstance(large.sids, LazySequence) and isinstance(small.sids, list)
    assert large.fingerprint == fingerprint
    assert list(large.sids) == small.sids and list(large.token_tuples) == small.token_tuples
    assert (large.sids[-1], large.sids[1:4], large.sids[::2]) == (small.sids[-1], small.sids[1:4], small.sids[::2])
    assert tuple(large.item_ids) == small.item_ids and large.item_ids.index("y") == 2
    assert large.tokens == small.tokens and large.n_unique == small.n_unique == 4
    for sid in [*small.sids, "<a_3>", "<a_3><b_2><c_0>", " <a_3><b_2>", "<a_9>", "no", "<a_99999999999>", "<a_1>" * 9]:
        assert large.items_of(sid) == small.items_of(sid) == [i for i, own in enumerate(small.sids) if own == sid]
    with pytest.raises(IndexError):
        large.sids[6]


def test_written_and_read(few, tmp_path):
    *_, made = few
    made.save_index(tmp_path / "index.json")
    assert [path.name for path in tmp_path.iterdir()] == ["codes.parquet"]
    frame = pd.read_parquet(tmp_path / "codes.parquet")
    assert list(frame) == ["item_id", "a", "b", "c"] and frame["item_id"].tolist() == IDS
    assert (frame[["a", "b", "c"]].to_numpy() == CODES).all()
    for path in (tmp_path, tmp_path / "codes.parquet", tmp_path / "index.json"):
        for ids in (None, IDS, ItemIds(IDS), pd.Series(IDS)):
            assert SidTable.load_index(path, ids).fingerprint == made.fingerprint
    turned = SidTable.load_index(tmp_path, ["ä", "w"])
    assert turned.item_ids == ("ä", "w") and turned.codes.tolist() == [[3, 2, -1], [3, 1, 0]]
    assert SidTable.load_index(tmp_path, ["ä"]).levels == 2  # as of an index.json
    with pytest.raises(DataError, match=r"codes\.parquet: item 'x' has no SID\. Build SIDs"):
        SidTable.load_index(tmp_path, ["w", "x"])
    with pytest.raises(DataError, match="item 'w' occurs twice"):
        SidTable.load_index(tmp_path, ["w", "y", "w"])


def test_both_forms_have_one_fingerprint(tmp_path, few):
    small, _, large = few
    content = {item: list(tokens) for item, tokens in zip(IDS, small.token_tuples, strict=True)}
    (tmp_path / "index.json").write_text(json.dumps(content))
    assert SidTable.load_index(tmp_path / "index.json").fingerprint == large.fingerprint == small.fingerprint


def test_items_of_large_tables_are_checked(few):
    *_, made = few
    made.check_items(IDS, "corpus")
    with pytest.raises(DataError, match="corpus: item 2 is 'z', in the SID table 'y'"):
        made.check_items(["w", "ä", "z", '"', "v\\", "last"], "corpus")
    with pytest.raises(DataError, match="item 'w' occurs twice"):
        SidTable(CODES, ["w", "ä", "y", '"', "v\\", "w"])
    with pytest.raises(DataError, match=r"item 'y' has codes .* a level is missing"):
        SidTable(np.array([[1], [1], [-1], [1]]), ["w", "x", "y", "z"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item_id": ["x"]}, "it has columns item_id; expected"),
        ({"a": pa.array([1], pa.int32()), "item_id": ["x"]}, "it has columns a, item_id; expected"),
        ({"item_id": ["x"], "b": pa.array([1], pa.int32())}, "it has columns item_id, b; expected"),
        ({"item_id": ["x"], "a": [1]}, "it has columns item_id, a; expected item_id, text"),
        ({"item_id": [1], "a": pa.array([1], pa.int32())}, "it has columns item_id, a; expected item_id, text"),
        ({"item_id": ["x", "y"], "a": pa.array([1, None], pa.int32())}, "column 'a' has missing values"),
        ({"item_id": ["x", None], "a": pa.array([1, 2], pa.int32())}, "items without an id"),
        ({"item_id": ["x"], "a": pa.array([-2], pa.int32())}, "codes below -1"),
    ],
)
def test_bad_files(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "codes.parquet")
    with pytest.raises(ArtefactError, match=rf"codes\.parquet: cannot be read as parquet \(.*{message}"):
        SidTable.load_index(tmp_path)


def test_files_that_are_no_tables(tmp_path):
    (tmp_path / "codes.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ArtefactError, match=r"codes\.parquet: cannot be read as parquet"):
        SidTable.load_index(tmp_path)
    with pytest.raises(ArtefactError, match=r"other\.parquet: .*no such file"):
        SidTable.load_index(tmp_path / "other.parquet")
