"""Tables as engines read them against what memory reads: the same interactions, the same refusals."""

import csv

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import NASTY, ids, no_spark

from minionerec.core.errors import ConfigError, DataError, MinioneRecError
from minionerec.data.engines.choose import started
from minionerec.data.engines.reading import read_tables_with, read_text_parts
from minionerec.data.source import BadRows
from minionerec.data.sources.tables import read_tables
from minionerec.data.sources.text import read_text_table

spark_too = [
    "duckdb",
    pytest.param("spark", marks=[pytest.mark.slow, pytest.mark.skipif(bool(no_spark()), reason=str(no_spark()))]),
]
SIZE = 64
"""Bytes of a part: a few lines."""


@pytest.fixture(scope="module", params=spark_too)
def engine(request, tmp_path_factory):
    if request.param == "duckdb":
        pytest.importorskip("duckdb")
    with started(request.param, "1GB", tmp_path_factory.mktemp("engine")) as engine:
        yield engine


def visits_in_memory(source):
    """[(user, item, time)] in the source's order."""
    times = [None] * len(source.users) if source.times is None else source.times.tolist()
    people = source.user_ids.take(pa.array(source.users)).to_pylist()
    return list(zip(people, source.item_index.tolist(), times, strict=True))


def check_equal(engine, interactions, items, allowed=0, size=SIZE, **columns):
    """Read in both ways: the same interactions and counts, or the same error."""
    bad, its = BadRows(allowed), BadRows(allowed)
    try:
        wanted = read_tables(interactions, items, bad, **columns)
    except MinioneRecError as error:
        with pytest.raises(type(error)) as refused:
            read_tables_with(engine, interactions, items, its, size=size, **columns)
        assert str(refused.value) == str(error)
        return str(error)
    raw = read_tables_with(engine, interactions, items, its, size=size, **columns)
    found = engine.rows("SELECT person, item, stamp FROM raw ORDER BY place")
    assert [tuple(row) for row in found] == visits_in_memory(wanted)
    assert (raw.count, raw.counts, raw.where) == (len(wanted.users), wanted.counts, wanted.where)
    assert raw.items.equals(wanted.items)
    if raw.count:
        assert (raw.ticks, raw.real) == (wanted.ticks, wanted.times.dtype.kind == "f")
    assert its.counts() == bad.counts()
    return None


@pytest.fixture
def folder(tmp_path):
    table = pd.DataFrame({"item_id": [*"abcde", "7", "007", " "], "title": list("ABCDEFGH")})
    table.to_csv(tmp_path / "items.csv", index=False)
    return tmp_path


def written(folder, table, kind, name="bought", **options):
    path = folder / f"{name}.{kind}"
    if kind == "parquet":
        table.to_parquet(path, index=False, **options)
    else:
        table.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",", **options)
    return path


def bought(n=30, seed=0, **columns):
    chance = np.random.default_rng(seed)
    table = {
        "user_id": [f"u{user}" for user in chance.integers(0, 6, n)],
        "item_id": chance.choice([*"abcde", "7", "007", " "], n),
        "timestamp": 1_500_000_000 + chance.integers(0, 99, n),
    }
    return pd.DataFrame(table | columns)


TIMES = {
    "whole": lambda t: t,
    "negative": lambda t: t - 1_500_000_050,
    "fractions": lambda t: t + 0.25,
    "small": lambda t: (t % 97) / 4 - 3,
    "int32": lambda t: t.astype("int32"),
    "uint32": lambda t: t.astype("uint32"),
    "float32": lambda t: (t % 97).astype("float32"),
    "date": lambda t: pd.to_datetime(t, unit="s"),
    "milliseconds": lambda t: pd.to_datetime(t, unit="s").astype("datetime64[ms]"),
    "microseconds": lambda t: pd.to_datetime(t * 1_000_003, unit="us").astype("datetime64[us]"),
    "nanoseconds": lambda t: (pd.to_datetime(t, unit="s") + pd.Timedelta(7, "ns")).astype("datetime64[ns]"),
    "zoned": lambda t: pd.to_datetime(t, unit="s").dt.tz_localize("Asia/Kathmandu"),
    "text": lambda t: pd.to_datetime(t, unit="s").astype(str),
    "digits": lambda t: t.astype(str),
    "days": lambda t: pd.to_datetime(t, unit="s").dt.date,
}


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("times", TIMES)
def test_times_of_every_kind(engine, folder, kind, times):
    table = bought()
    path = written(folder, table.assign(timestamp=TIMES[times](table["timestamp"])), kind)
    assert check_equal(engine, path, folder / "items.csv") is None


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_that_are_whole_in_one_part_and_not_in_another(engine, folder, kind):
    times = [str(1_500_000_000 + place) for place in range(30)]
    times[25] += ".5"
    assert check_equal(engine, written(folder, bought(timestamp=times), kind), folder / "items.csv") is None


ROW_ERRORS = {
    "no user": ({"user_id": (4, None)}, "the id is"),
    "empty user": ({"user_id": (9, "")}, "the id is"),
    "user of two lines": ({"user_id": (11, "a\nb")}, "swallow|is no id"),
    "no item": ({"item_id": (13, None)}, "the id is"),
    "unknown item": ({"item_id": (17, "B")}, "item 'B' is not in .*items.csv"),
    "no time": ({"timestamp": (3, None)}, "is not a number"),
    "milliseconds": ({"timestamp": (22, 1_500_000_000_000)}, "looks like milliseconds since 1970, but most rows"),
    "user and item": ({"user_id": (20, None), "item_id": (5, None)}, "the id is"),
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("allowed", [0, 5])
@pytest.mark.parametrize("wrong", ROW_ERRORS)
def test_rows_that_cannot_be_used(engine, folder, kind, allowed, wrong):
    table = bought().astype({"timestamp": "Int64"})
    changes, message = ROW_ERRORS[wrong]
    for column, (row, value) in changes.items():
        table.loc[row, column] = value
    path = written(folder, table, kind)
    said = check_equal(engine, path, folder / "items.csv", allowed, size=SIZE if allowed else 1 << 20)
    if allowed:
        assert said is None
    else:
        assert pd.Series([said]).str.contains(message).all(), said


@pytest.mark.parametrize("rows", [[3, 27], [27, 28], [0, 1, 2]])
def test_an_error_of_a_part_names_its_line(engine, folder, rows):
    table = bought()
    table.loc[rows, "item_id"] = "?"
    path = written(folder, table, "csv")
    with pytest.raises(DataError, match=rf"bought.csv, line {rows[0] + 2}, column 'item_id': item '\?' is not in"):
        read_tables_with(engine, path, folder / "items.csv", BadRows(), size=SIZE)


def test_times_that_no_timestamp_fits_are_refused(engine, folder):
    times = bought()["timestamp"].to_numpy() * 10**6
    times[7], times[8] = -(10**16), 10**17
    path = written(folder, bought(timestamp=times.astype("datetime64[us]")), "parquet")
    assert "row 8, column 'timestamp'" in check_equal(engine, path, folder / "items.csv")
    assert check_equal(engine, path, folder / "items.csv", 2) is None


def test_doubles_that_are_no_times_are_refused(engine, folder):
    times = bought()["timestamp"].to_numpy(float)
    times[[2, 3, 4, 5]] = [np.nan, np.inf, -1e19, -0.0]
    path = written(folder, bought(timestamp=times), "parquet")
    assert "row 3, column 'timestamp'" in check_equal(engine, path, folder / "items.csv")
    assert check_equal(engine, path, folder / "items.csv", 4) is None


@pytest.mark.parametrize("kind", ["int8", "int64", "uint32", "Int64"])
def test_ids_that_are_whole_numbers(engine, folder, kind):
    pd.DataFrame({"item_id": [-1, 0, 7, 100], "title": list("abcd")}).to_parquet(folder / "items.parquet")
    table = bought()
    table["item_id"] = np.random.default_rng(1).choice([0, 7, 100], len(table)).astype(kind.lower())
    table["user_id"] = np.random.default_rng(2).integers(0, 9, len(table))
    if kind == "Int64":
        table = table.astype({"item_id": kind, "user_id": kind})
        table.loc[3, ["item_id", "user_id"]] = pd.NA
        table.loc[5, "user_id"] = 2**53 + 1  # beside a gap no double holds it
    path = written(folder, table, "parquet")
    assert check_equal(engine, path, folder / "items.parquet", 9) is None
    assert (
        check_equal(engine, written(folder, table.astype({"timestamp": str}), "parquet"), folder / "items.parquet", 9)
        is None
    )


@pytest.mark.parametrize("column", ["user_id", "item_id"])
def test_ids_that_are_fractions_are_refused_where_a_part_cannot_tell(engine, folder, column):
    path = written(folder, bought(**{column: np.arange(30.0)}), "parquet")
    with pytest.raises(DataError, match=f"column '{column}' is double; engine '{engine.name}' reads ids that are text"):
        read_tables_with(engine, path, folder / "items.csv", BadRows())


def test_columns_whose_names_are_nasty(engine, folder):
    names = {"user_column": "u\"`s'er", "item_column": "PLACE", "time_column": "stamp"}
    table = bought().set_axis(names.values(), axis=1).assign(place=1, USER="x", item="y", Stamp_=2)
    items = pd.DataFrame({"PLACE": [*"abcde", "7", "007", " "], "title": list("ABCDEFGH")})
    for kind in ("csv", "parquet"):
        path = written(folder, table, kind, name="[a]*? {b}")
        assert check_equal(engine, path, written(folder, items, "parquet", name="goods"), **names) is None


def test_columns_that_are_missing_or_there_twice(engine, folder):
    for kind in ("csv", "parquet"):
        path = written(folder, bought().drop(columns="timestamp"), kind)
        assert "column 'timestamp' is missing" in check_equal(engine, path, folder / "items.csv")
    path = folder / "bought.csv"
    path.write_text("user_id,item_id,timestamp,item_id\nu,a,1,b\n")
    assert "column 'item_id' is there twice" in check_equal(engine, path, folder / "items.csv")
    table = pa.table(
        [pa.array(["u"]), pa.array(["a"]), pa.array([1]), pa.array([2])], ["user_id", "item_id", *2 * ["timestamp"]]
    )
    pq.write_table(table, folder / "twice.parquet")
    with pytest.raises(DataError):
        read_tables_with(engine, folder / "twice.parquet", folder / "items.csv", BadRows())


@pytest.mark.parametrize("name", ["none.csv", "none.parquet", "bought.txt"])
def test_files_that_are_none(engine, folder, name):
    (folder / "bought.txt").write_text("x")
    assert check_equal(engine, folder / name, folder / "items.csv")


@pytest.mark.parametrize("engine", spark_too[:1], indirect=True)
@given(rows=st.lists(st.tuples(ids, st.sampled_from(NASTY), st.integers(-9, 2**40)), min_size=1, max_size=25))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_nasty_ids(engine, folder, rows):
    goods = sorted({item for _, item, _ in rows})
    pd.DataFrame({"item_id": goods, "title": "t"}).to_parquet(folder / "goods.parquet")
    table = pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp"])
    for kind in ("csv", "parquet"):
        check_equal(engine, written(folder, table, kind), folder / "goods.parquet", 99, size=1 << 10)


cells = st.sampled_from(["", "a", "b c", 'x"y', '"', "l\nm", "r\r\ns", ",", "é", " "])


@given(
    rows=st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=30),
    ends=st.sampled_from(["\n", "\r\n", "\r"]),
    quotes=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    blanks=st.sampled_from([0, 1, 2]),
    size=st.integers(1, 200),
    mark=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_parts_of_a_text_table_are_the_whole(tmp_path_factory, rows, ends, quotes, blanks, size, mark):
    path = tmp_path_factory.mktemp("text") / "t.csv"
    with open(path, "w", newline="", encoding="utf-8-sig" if mark else "utf-8") as file:
        file.write(ends * blanks)
        csv.writer(file, lineterminator=ends, quoting=quotes).writerows([["one", "two", "three"], *rows])
        file.write(ends * blanks)
    whole = read_text_table(path, ",")
    parts = list(read_text_parts(path, ",", size=size))
    assert pd.concat(parts, ignore_index=True).equals(whole)
    lines = [part.attrs["file"].line(row) for part in parts for row in range(len(part))]
    assert lines == [whole.attrs["file"].line(row) for row in range(len(whole))]


def test_parts_with_rows_too_long(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{row},{row}{',x' * (row in (5, 6, 7, 20))}\n" for row in range(30)))
    whole, parts = BadRows(9), BadRows(9)
    wanted = read_text_table(path, ",", bad=whole)
    for size in (1, 7, 30, 1000):
        parts = BadRows(9)
        found = pd.concat(list(read_text_parts(path, ",", parts, size)), ignore_index=True)
        assert found.equals(wanted) and parts.counts() == whole.counts()
    with pytest.raises(DataError, match=r"t\.csv, line 7: 3 cells, expected 2"):
        list(read_text_parts(path, ",", size=8))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b'a,b\n1,2\n3,"4\n5,6\n' + b"7,8\n" * 30, "line 3: a quote .* is opened and never closed"),
        (b"a,b\n" + b"1,2\n" * 30 + b"3,\xff\n", "line 32: byte 0xff is not UTF-8"),
        (b"a,b\n1,2,3\n4,5\n", "the rows have more cells than the header"),
    ],
)
def test_text_tables_that_are_none(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    for read in (lambda: read_text_table(path, ","), lambda: list(read_text_parts(path, ",", size=16))):
        with pytest.raises(DataError, match=message):
            read()


_DAYS = pd.date_range("2018-01-31 07:12:44", periods=30, freq="9h")
_SECONDS = np.array([int(day.timestamp()) for day in _DAYS])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    "times",
    [
        *(
            np.insert(_SECONDS, 7, number)
            for number in (0, -1, 17_562, 9_999_999_999, 20_180_131_071_244, 1_517_382_764_000)
        ),
        np.where(np.arange(30) % 2, _SECONDS // 86_400, _SECONDS),
        np.append(np.arange(30), _SECONDS[0]),
        90_000_000 + 1_000_000 * np.arange(30),
        *(_DAYS.strftime(form).astype(np.int64).to_numpy() for form in ("%Y%m%d%H", "%Y%m%d%H%M%S", "%y%m%d%H%M")),
        np.append(_DAYS.strftime("%Y%m%d%H%M").astype(np.int64).to_numpy(), 5),
        _DAYS.strftime("%Y%m%d%H%M").astype(np.float64).to_numpy(),
        _DAYS.strftime("%Y%m%d%H%M").astype(np.float64).to_numpy() + 0.5,
        np.array([1_801_011_230, 1_801_011_231] * 15),
    ],
    ids=repr,
)
def test_units_and_digits_of_dates_are_told_as_in_memory(engine, folder, times, kind):
    table = pd.DataFrame({"user_id": "u", "item_id": "a", "timestamp": times})
    path = written(folder, table, kind)
    for allowed in (0, 1, 40):
        check_equal(engine, path, folder / "items.csv", allowed)


@pytest.mark.parametrize(("name", "size"), [("a\\b", "1GB"), ("a", "99999999TB")])
def test_what_duckdb_does_not_begin_with_is_one_line(tmp_path, name, size):
    pytest.importorskip("duckdb")
    said = r"a.*: DuckDB cannot begin there \(.*\). Give an engine_folder without backslashes"
    with pytest.raises(ConfigError, match=said), started("duckdb", size, tmp_path / name):
        pass
    assert not list((tmp_path / name).glob(".minionerec*"))


def test_folders_that_killed_engines_left_are_named(tmp_path, caplog):
    pytest.importorskip("duckdb")
    (tmp_path / ".minionerec-engine-old").mkdir()
    with started("duckdb", "1GB", tmp_path), started("duckdb", "1GB", tmp_path):
        pass
    (said,) = {record.message for record in caplog.records}
    assert said.startswith(f"{tmp_path}/.minionerec-engine-old: left by runs that were killed")
