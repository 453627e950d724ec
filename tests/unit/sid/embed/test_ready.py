import numpy as np
import pandas as pd
import pytest

from minionerec.core.errors import DataError
from minionerec.sid.embed.stored import load_vector_table, load_vectors


def test_load_vectors_gives_float32(tmp_path):
    table = np.arange(6, dtype=np.float64).reshape(3, 2)
    np.save(tmp_path / "v.npy", table)
    found = load_vectors(tmp_path / "v.npy", 3)
    assert found.dtype == np.float32 and found.tolist() == table.tolist()


def with_value(value):
    table = np.zeros((4, 3), dtype=np.float64)
    table[2, 1] = value
    return table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((5, 3)), r"5 rows for 4 items\. Row i must be the vector of item i"),
        (with_value(np.nan), r"row 2, column 1 is nan"),
        (with_value(-np.inf), r"row 2, column 1 is -inf"),
        (with_value(1e300), r"row 2, column 1 is inf"),
        (np.zeros(4), r"holds float64 of shape \(4,\); expected numbers of shape \(4, dimensions\)"),
        (np.array([["a"]] * 4), r"holds <U1 of shape \(4, 1\); expected numbers"),
        (np.array([[{}]] * 4, dtype=object), r"not a readable \.npy file of numbers"),
    ],
)
def test_bad_vectors(tmp_path, table, message):
    np.save(tmp_path / "v.npy", table, allow_pickle=True)
    with pytest.raises(DataError, match=r"v\.npy: " + message):
        load_vectors(tmp_path / "v.npy", 4)


def test_files_that_are_no_vectors(tmp_path):
    with pytest.raises(DataError, match=r"v\.npy: no such file"):
        load_vectors(tmp_path / "v.npy", 4)
    (tmp_path / "v.npy").write_text("1 2 3")
    with pytest.raises(DataError, match=r"v\.npy: not a readable"):
        load_vectors(tmp_path / "v.npy", 4)
    np.savez(tmp_path / "many.npz", a=np.zeros((4, 2)))
    with pytest.raises(DataError, match="holds several arrays"):
        load_vectors(tmp_path / "many.npz", 4)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item_id": ["a", "a"], "vector": [[1.0], [2.0]]}, "item 'a' has two rows"),
        ({"item_id": ["a", "c"], "vector": [[1.0], [2.0]]}, r"has no row for item 'b' \(1 such of 2\)"),
        ({"item_id": ["a", "b"], "vector": [[1.0], [2.0, 3.0]]}, "must hold lists of numbers, all of one length"),
        ({"item_id": ["a", "b"], "vector": ["x", "y"]}, "must hold lists of numbers"),
        ({"item_id": ["a", "b"], "vector": [[1.0], [np.nan]]}, r"row 1, column 0 is nan"),
        ({"item_id": ["a", "b"], "other": [[1.0], [2.0]]}, "cannot be read .*Write it with columns item_id and vector"),
    ],
)
def test_bad_parquet_files(tmp_path, columns, message):
    pd.DataFrame(columns).to_parquet(tmp_path / "v.parquet")
    with pytest.raises(DataError, match=rf"v\.parquet: .*{message}"):
        load_vector_table(tmp_path / "v.parquet", ["a", "b"])
