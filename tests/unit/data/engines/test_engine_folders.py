"""A folder of files of interactions against the one file with the rows of all: in memory, and by each engine."""

import os
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.engines import NASTY, no_spark

from minionerec.core.errors import ArtefactError, DataError
from minionerec.data.engines.choose import started
from minionerec.data.engines.reading import read_tables_with
from minionerec.data.source import BadRows
from minionerec.data.sources.table_files import TableFiles
from minionerec.data.sources.tables import read_tables

engines = [
    "memory",
    "duckdb",
    pytest.param("spark", marks=[pytest.mark.slow, pytest.mark.skipif(bool(no_spark()), reason=str(no_spark()))]),
]
SIZE = 256
"""Bytes of a part of a text table: a few lines."""
CUTS = (0, 7, 7, 31, 60)
"""Where files begin: one of them has no rows."""
NAMES = ("part-00002.b", "part-00010", "part-00010x", "part-1 [x]*'\"`{é}")
"""Names in the order in which files are read, which is neither that of numbers nor that in which they are written."""


@pytest.fixture(scope="module", params=engines)
def engine(request, tmp_path_factory):
    if request.param == "memory":
        yield None
        return
    if request.param == "duckdb":
        pytest.importorskip("duckdb")
    with started(request.param, "1GB", tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.fixture
def folder(tmp_path):
    pd.DataFrame({"item_id": [*NASTY, "7", "8"], "title": "t"}).drop_duplicates("item_id").to_parquet(
        tmp_path / "items.parquet"
    )
    return tmp_path


def bought(n=60, **columns):
    chance = np.random.default_rng(3)
    table = {
        "user_id": chance.choice(NASTY[:12], n),
        "item_id": chance.choice([*NASTY, "7"], n),
        "timestamp": 1_500_000_000 + chance.integers(0, 40, n),
    }
    return pd.DataFrame(table | columns)


def write(folder, table, kind, cuts=CUTS, names=NAMES):
    """The files of a folder, last first, beside what Spark leaves there; and the file of all rows."""
    one = folder / f"one.{kind}"
    shutil.rmtree(folder / "visits", ignore_errors=True)
    (folder / "visits").mkdir()

    def written(some, path):
        if kind == "parquet":
            pq.write_table(some if isinstance(some, pa.Table) else pa.Table.from_pandas(some, schema), path)
        else:
            some.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")

    schema = None
    if kind == "parquet" and isinstance(table, pd.DataFrame):
        schema = pa.Schema.from_pandas(table, preserve_index=False)
    written(table, one)
    parts = list(zip(names, cuts, cuts[1:], strict=False))
    for name, begin, end in reversed(parts):
        some = table.slice(begin, end - begin) if isinstance(table, pa.Table) else table.iloc[begin:end]
        written(some, folder / "visits" / f"{name}.{kind}")
    (folder / "visits" / "_SUCCESS").write_text("")
    (folder / "visits" / ".part-00002.b.crc").write_bytes(b"\0\1")
    (folder / "visits" / "_temporary").mkdir()
    return one, folder / "visits"


def read(engine, path, items, allowed=0, **columns):
    """What can be told of a table: interactions, items, counts of it and of bad rows."""
    bad = BadRows(allowed)
    if engine is None:
        source = read_tables(path, items, bad, **columns)
        people = source.user_ids.take(pa.array(source.users)).to_pylist()
        visits = list(zip(people, source.item_index.tolist(), source.times.tolist(), strict=True))
        kind = source.times.dtype.kind == "f"
        return visits, source.items.to_dict(), (source.ticks, kind), source.counts, bad.counts()
    raw = read_tables_with(engine, path, items, bad, size=SIZE, **columns)
    visits = [tuple(row) for row in engine.rows("SELECT person, item, stamp FROM raw ORDER BY place")]
    return visits, raw.items.to_dict(), (raw.ticks, raw.real), dict(raw.counts), bad.counts()


def check_equal(engine, folder, table, kind, allowed=0, **columns):
    one, many = write(folder, table, kind)
    items = folder / "items.parquet"
    wanted = read(None, one, items, allowed, **columns)
    assert read(engine, one, items, allowed, **columns) == wanted
    assert read(engine, many, items, allowed, **columns) == wanted
    return wanted


TIMES = {
    "whole": lambda t: t,
    "int32": lambda t: t.astype("int32"),
    "fractions": lambda t: t + 0.25,
    "date": lambda t: pd.to_datetime(t, unit="s").astype("datetime64[us]"),
    "zoned": lambda t: pd.to_datetime(t, unit="s").dt.tz_localize("Asia/Kathmandu"),
    "text": lambda t: pd.to_datetime(t, unit="s").astype(str),
    "digits": lambda t: t.astype(str),
}


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("times", TIMES)
def test_a_folder_is_the_file_of_all_its_rows(engine, folder, kind, times):
    table = bought()
    visits, *_ = check_equal(engine, folder, table.assign(timestamp=TIMES[times](table["timestamp"])), kind)
    assert len(visits) == 60


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_bad_rows_of_all_files_are_counted_together(engine, folder, kind):
    table = bought().astype({"timestamp": "Int64"})
    table.loc[[3, 45], "user_id"] = ""
    table.loc[[5, 59], "item_id"] = "nobody's"
    table.loc[30, "timestamp"] = 1_500_000_000_000
    *_, bad = check_equal(engine, folder, table, kind, 9)
    assert bad["bad_rows"] == 5 and bad["bad_rows_unknown_item"] == 2


def test_a_gap_in_one_file_is_one_in_all(engine, folder):
    """Whole numbers with gaps are doubles to pandas: one gap, in the last file, and numbers that no double holds."""
    plain = pa.table(
        {
            "user_id": pa.array([2**53 + 1, *range(100, 158), None]),
            "item_id": pa.array([7, 8] * 30),
            "timestamp": pa.array([1_500_000_000] * 59 + [None]),
        }
    )
    *_, bad = check_equal(engine, folder, plain, "parquet", 2)
    assert bad == {"bad_rows": 2, "bad_rows_malformed_id": 1, "bad_rows_missing_id": 1}
    text = plain.set_column(2, "timestamp", pa.array(["1500000000"] * 60))
    assert check_equal(engine, folder, text, "parquet", 2)[-1] == bad


def test_columns_may_come_in_another_order_and_be_held_in_another_way(engine, folder):
    table = pa.Table.from_pandas(bought().assign(minionerec=1, filename="x", place=2), preserve_index=False)
    one, many = write(folder, table, "parquet")
    names = list(reversed(table.column_names))
    other = many / f"{NAMES[2]}.parquet"
    mixed = pq.read_table(other).select(names)
    mixed = mixed.set_column(
        names.index("user_id"), "user_id", mixed["user_id"].cast(pa.large_string()).dictionary_encode()
    )
    pq.write_table(mixed, other)
    assert read(engine, many, folder / "items.parquet") == read(None, one, folder / "items.parquet")
    one, many = write(folder, bought().assign(more="x"), "csv")
    other = many / f"{NAMES[2]}.csv"
    pd.read_csv(other, dtype=str, keep_default_na=False)[["more", "timestamp", "item_id", "user_id"]].to_csv(
        other, index=False
    )
    assert read(engine, many, folder / "items.parquet") == read(None, one, folder / "items.parquet")


def test_quoted_cells_over_lines_and_files_of_no_bytes(engine, folder):
    table = bought(note=["a\nb" if row in (2, 40) else "" for row in range(60)])
    one, many = write(folder, table, "csv")
    (many / "part-0.csv").write_bytes(b"")  # as Spark writes of an empty part
    wanted = read(None, one, folder / "items.parquet")
    assert wanted[3] == {"lines_inside_interaction_cells": 2}
    assert read(engine, many, folder / "items.parquet") == wanted


@pytest.mark.parametrize(
    ("kind", "column", "row", "value", "said"),
    [
        ("csv", "item_id", 33, "?", "part-3.csv, line 4, column 'item_id': item '?' is not in"),
        ("parquet", "item_id", 33, "?", "part-3.parquet, row 3, column 'item_id': item '?' is not in"),
        ("csv", "user_id", 7, "", "part-2.csv, line 2, column 'user_id': the id is empty"),
        ("parquet", "user_id", 59, "", "part-3.parquet, row 29, column 'user_id': the id is empty"),
        ("csv", "timestamp", 32, "x", "part-3.csv, line 3, column 'timestamp': 'x' is not a number"),
        ("csv", "note", 33, "a\nu,7,1500000000,b", "part-3.csv, line 4: the row holds"),
        (
            "parquet",
            "timestamp",
            0,
            1_500_000_000_000,
            "part-0.parquet, row 1, column 'timestamp': '1500000000000' looks",
        ),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_file_and_line(engine, folder, kind, column, row, value, said):
    table = bought(note="").astype(object if kind == "csv" else {"timestamp": "int64"})
    table.loc[row, column] = value
    _, many = write(folder, table, kind, names=("part-0", "part-1", "part-2", "part-3"))
    with pytest.raises(DataError) as refused:
        read(engine, many, folder / "items.parquet")
    assert f"{many}/{said}" in str(refused.value)


def spoil(folder, many, how):
    """Make a folder one that cannot be read; gives what is said then."""
    first = sorted(path.name for path in many.iterdir() if path.name[0] == "p")[0]
    last = sorted(path.name for path in many.iterdir() if path.name[0] == "p")[-1]
    if how == "another kind":
        (many / "part-2.tsv").write_text("user_id\titem_id\ttimestamp\n")
        return DataError, f"{many}/part-2.tsv: is of another kind than {first} beside it"
    if how == "no table":
        (many / "read me.txt").write_text("x")
        return DataError, f"{many}/read me.txt: is no table (.csv, .tsv, .parquet), but lies in {many}"
    if how == "a folder":
        (many / "country=DE").mkdir()
        return ArtefactError, f"{many}: holds the folder 'country=DE', but only the files of a folder are read"
    if how == "nothing":
        for path in many.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()
        (many / "_SUCCESS").write_text("")
        return ArtefactError, f"{many}: is a folder without files to read"
    table = bought().iloc[:5]
    if how == "fewer columns":
        table = table.drop(columns="timestamp")
        said = f"{many}/{last}: has the columns user_id, item_id, but {first} beside it has user_id, item_id, timestamp"
    elif how == "other columns":
        table = table.rename(columns={"user_id": "visitor"})
        said = f"{many}/{last}: has the columns visitor, item_id, timestamp, but {first} beside it has user_id, item_id"
    else:
        table = table.astype({"timestamp": "float64"})
        said = f"{many}/{last}: column 'timestamp' is double, but int64 in {first} beside it"
    table.to_csv(many / last, index=False) if last.endswith("csv") else table.to_parquet(many / last, index=False)
    return DataError, said


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    "how", ["another kind", "no table", "a folder", "nothing", "fewer columns", "other columns", "another type"]
)
def test_folders_that_are_no_table(engine, folder, kind, how):
    if (kind, how) == ("csv", "another type"):
        pytest.skip("text has no types")
    _, many = write(folder, bought(), kind)
    error, said = spoil(folder, many, how)
    with pytest.raises(error) as refused:
        read(engine, many, folder / "items.parquet")
    assert said in str(refused.value)


def test_a_column_that_no_file_has(engine, folder):
    for kind in ("csv", "parquet"):
        _, many = write(folder, bought().drop(columns="timestamp"), kind)
        with pytest.raises(DataError, match="column 'timestamp' is missing; it has user_id, item_id"):
            read(engine, many, folder / "items.parquet")


def test_a_file_that_is_no_parquet(engine, folder):
    _, many = write(folder, bought(), "parquet")
    (many / "part-2.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"part-2\.parquet: cannot be read"):
        read(engine, many, folder / "items.parquet")


def test_only_empty_files(folder):
    (folder / "visits").mkdir()
    (folder / "visits" / "a.csv").write_bytes(b"")
    with pytest.raises(DataError, match="visits: every file in it is empty"):
        TableFiles.at(folder / "visits")


def test_the_order_of_files_is_that_of_their_names(folder):
    write(folder, bought(), "csv")
    names = [path.name for path in TableFiles.at(folder / "visits").files]
    assert names == [f"{name}.csv" for name in NAMES]
    assert TableFiles.at(os.fspath(folder / "one.csv")).files == (folder / "one.csv",)
