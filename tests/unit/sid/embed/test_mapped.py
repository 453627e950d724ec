import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minionerec.core.errors import DataError
from minionerec.sid.embed import stored
from minionerec.sid.embed.stored import VectorFile, blocks, is_large, save_vectors


def saved(folder, table, name="v.npy"):
    np.save(folder / name, table)
    return folder / name


@settings(max_examples=60)
@given(
    st.sampled_from(["f2", "f4", "f8", ">f4", "i2", "u1"]),
    st.integers(1, 300),
    st.integers(1, 9),
    st.integers(0, 2**31),
)
def test_rows_are_those_of_the_array(tmp_path_factory, kind, rows, width, seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 200, (rows, width)).astype(kind)
    path = saved(tmp_path_factory.mktemp("v"), table)
    wanted = table.astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "_BLOCK", int(rng.integers(1, 50)))
        patch.setattr(stored, "_READ", int(rng.integers(1, 200)))
        vectors = VectorFile(path)
        assert vectors.shape == (rows, width) and len(vectors) == rows
        assert vectors[:].dtype == np.float32 and (vectors[:] == wanted).all()
        start, stop = sorted(rng.integers(0, rows + 1, 2).tolist())
        assert vectors[start:stop].shape == (stop - start, width) and (vectors[start:stop] == wanted[start:stop]).all()
        some = rng.integers(0, rows, int(rng.integers(0, 2 * rows)))
        assert (vectors[some] == wanted[some]).all() and vectors[some].shape == (len(some), width)
        assert (vectors[int(some[0])] == wanted[some[0]]).all() if len(some) else True
        assert (np.concatenate([block for _, block in blocks(vectors, 7)]) == wanted).all()


def test_what_is_given_away_is_a_copy(tmp_path):
    vectors = VectorFile(saved(tmp_path, np.ones((4, 2), np.float32)))
    block = vectors[0:4]
    block *= 5
    assert (vectors[:] == 1).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bad_values_are_met_when_they_are_read(tmp_path, value):
    table = np.zeros((40, 3), dtype=np.float16)
    table[17, 1] = value
    vectors = VectorFile(saved(tmp_path, table))
    assert (vectors[:17] == 0).all() and (vectors[np.array([39, 18])] == 0).all()
    with pytest.raises(DataError, match=rf"v\.npy: row 17, column 1 is {value}\. Every value must be a finite float32"):
        vectors[10:30]
    with pytest.raises(DataError, match="row 17, column 1"):
        vectors[np.array([3, 17])]


def test_values_that_are_too_large(tmp_path):
    table = np.zeros((5, 2))
    table[3, 0] = -1e13
    with pytest.raises(DataError, match=r"row 3 holds -1e\+13, but values are at most 1e\+12"):
        VectorFile(saved(tmp_path, table))[:]
    table[3, 0] = 1e300
    with pytest.raises(DataError, match="row 3, column 0 is inf"):
        VectorFile(saved(tmp_path, table))[:]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros(4), r"holds float64 of shape \(4,\); expected numbers of shape \(items, dimensions\), row by row"),
        (np.zeros((4, 0)), r"shape \(4, 0\)"),
        (np.array([["a"]]), "holds <U1"),
        (np.asfortranarray(np.zeros((4, 3))), "holds columns one after another"),
    ],
)
def test_tables_of_another_form(tmp_path, table, message):
    path = saved(tmp_path, table)
    with pytest.raises(DataError, match=r"v\.npy: .*" + message):
        VectorFile(path)
    assert not is_large(path)


def test_files_that_are_none_or_too_short(tmp_path):
    with pytest.raises(DataError, match=r"none\.npy: no such file"):
        VectorFile(tmp_path / "none.npy")
    (tmp_path / "text.npy").write_text("1 2 3")
    with pytest.raises(DataError, match=r"text\.npy: not a readable \.npy file"):
        VectorFile(tmp_path / "text.npy")
    path = saved(tmp_path, np.zeros((100, 4), np.float32))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"v\.npy: not a readable \.npy file of numbers \(mmap length is greater"):
        VectorFile(path)
    path = saved(tmp_path, np.zeros((100, 4), np.float32))
    vectors = VectorFile(path)
    with open(path, "r+b") as file:
        file.truncate(600)
    with pytest.raises(DataError, match="ends before row 100; it was longer"):
        vectors[:]


def test_rows_that_are_not_there(tmp_path):
    vectors = VectorFile(saved(tmp_path, np.zeros((4, 2))))
    for rows in (np.array([4]), np.array([-1]), 4):
        with pytest.raises(IndexError):
            vectors[rows]
    with pytest.raises(IndexError, match="no step"):
        vectors[::2]


def test_large_files_stay_files(tmp_path, monkeypatch):
    path = saved(tmp_path, np.zeros((10, 4), np.float16))
    assert not is_large(path)
    monkeypatch.setattr(stored, "STREAMED_FROM", 4 * 10 * 4)
    assert is_large(path)
    monkeypatch.setattr(stored, "STREAMED_FROM", 4 * 10 * 4 + 1)
    assert not is_large(path)


@pytest.mark.parametrize(("kind", "written"), [("f2", "f2"), ("f4", "f4"), ("f8", "f4")])
def test_saving_in_blocks_writes_what_numpy_does(tmp_path, kind, written):
    table = np.random.default_rng(0).normal(size=(30, 5)).astype(kind)
    save_vectors(tmp_path / "out.npy", VectorFile(saved(tmp_path, table)))
    np.save(tmp_path / "numpy.npy", table.astype(written))
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
