"""Tables that are read part by part, and folders of files: the same as one file read whole, with the same refusals."""

import csv
import os
import re
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builder import read_tables
from support.engines import NASTY, ids
from support.tables import write_table

from minionerec.core.errors import ArtefactError, DataError, MinioneRecError
from minionerec.data.source import BadRows
from minionerec.data.sources import text
from minionerec.data.sources.table_files import TableFiles
from minionerec.data.sources.text import INSIDE, read_text_parts, read_text_table

SIZE = 256
"""Bytes of a part: a few lines."""
NAMES = ("part-00002.b", "part-00010", "part-00010x", "part-1 [x]*'\"`{é}")
"""Names in the order in which files are read, which is neither that of numbers nor that in which they are written."""


@pytest.fixture
def folder(tmp_path):
    items = pd.DataFrame({"item_id": [*NASTY, *"bcde8"], "title": "t"}).drop_duplicates("item_id")
    items.to_parquet(tmp_path / "items.parquet")
    return tmp_path


def bought(n=60, **columns):
    chance = np.random.default_rng(3)
    table = {
        "user_id": chance.choice(NASTY[:12], n),
        "item_id": chance.choice([*NASTY, "7"], n),
        "timestamp": 1_500_000_000 + chance.integers(0, 40, n),
    }
    return pd.DataFrame(table | columns)


def parted(folder, table, kind, cuts=(0, 7, 7, 31, 60), names=NAMES):
    """The files of a folder, last first, one of them without rows, beside what Spark leaves there."""
    many = folder / "visits"
    shutil.rmtree(many, ignore_errors=True)
    many.mkdir()
    if kind == "parquet" and isinstance(table, pd.DataFrame):
        table = pa.Table.from_pandas(table, preserve_index=False)
    for name, begin, end in reversed(list(zip(names, cuts, cuts[1:], strict=False))):
        some = table.slice(begin, end - begin) if isinstance(table, pa.Table) else table.iloc[begin:end]
        write_table(some, many / f"{name}.{kind}")
    (many / "_SUCCESS").write_text("")
    (many / ".part-00002.b.crc").write_bytes(b"\0\1")
    (many / "_temporary").mkdir()
    return many


def read(path, items, allowed=0, size=1 << 20, **columns):
    """What can be told of a table: interactions, their kind, counts of it and of bad rows; or what is wrong with it."""
    bad = BadRows(allowed)
    try:
        source = read_tables(path, items, bad, size=size, columns=columns)
    except MinioneRecError as error:
        return str(error)
    users = source.user_ids.take(pa.array(source.users)).to_pylist()
    interactions = list(zip(users, source.item_index.tolist(), source.times.tolist(), strict=True))
    return interactions, (source.ticks, source.times.dtype.kind), source.counts, bad.counts()


@pytest.fixture
def check(folder, monkeypatch):
    """Read a table whole, in parts, and as a folder: the same, but for the names of files in what is said."""

    def run(table, kind, allowed=0, items=None, parts=True, **columns):
        one, items = write_table(table, folder / f"one.{kind}"), items or folder / "items.parquet"
        wanted = read(one, items, allowed, **columns)
        if not parts:
            return wanted
        many = parted(folder, table, kind, np.linspace(0, len(table), 4).astype(int))
        with monkeypatch.context() as patch:
            patch.setattr("minionerec.data.sources.tables.ROWS", size := len(table) // 3 + 1)
            size *= 20  # bytes of a line
            found = read(one, items, allowed, size, **columns), read(many, items, allowed, size, **columns)
        if isinstance(wanted, str):
            assert found[0].split(", column")[0] == wanted.split(", column")[0] and isinstance(found[1], str)
        else:
            assert found == (wanted, wanted)
        return wanted

    return run


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


SAME_TEXT = {"int32", "uint32", "float32", "milliseconds", "text", "digits"}
"""Kinds of times that are written to text as another kind is."""


@pytest.mark.parametrize(
    ("kind", "times"),
    [("tsv", "whole"), *(("csv", t) for t in TIMES if t not in SAME_TEXT), *(("parquet", t) for t in TIMES)],
)
def test_times_of_every_kind(check, kind, times):
    table = bought(20)
    column = TIMES[times](table["timestamp"])
    interactions, (ticks, _), _, bad = check(table.assign(timestamp=column), kind)
    if ticks == 10**9:
        dates = pd.to_datetime(column, utc=True).astype("datetime64[ns, UTC]")
        assert [time for *_, time in interactions] == dates.astype("int64").tolist()
    else:
        assert [time for *_, time in interactions] == pd.to_numeric(column).tolist()
    assert [user for user, *_ in interactions] == table["user_id"].tolist() and not bad["bad_rows"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_that_are_whole_in_one_part_and_not_in_another(check, kind):
    times = [str(1_500_000_000 + position) for position in range(60)]
    times[45] += ".5"
    assert check(bought(timestamp=times), kind)[1] == (1, "f")


def test_a_row_without_a_time_costs_no_digit_of_others(check):
    times = [str(10**18 + position) for position in range(60)]
    times[45] = "1e30"
    interactions, kind, _, bad = check(bought(timestamp=times), "csv", 1)
    assert kind == (10**9, "i") and bad["bad_rows"] == 1 and interactions[45][2] == 10**18 + 46


ROW_ERRORS = {
    "no user": ({"user_id": (4, None)}, "the id is"),
    "user of two lines": ({"user_id": (11, "a\nb")}, "is no id"),
    "no item": ({"item_id": (13, None)}, "the id is"),
    "unknown item": ({"item_id": (17, "?")}, r"item '\?' is not in .*items.parquet"),
    "no time": ({"timestamp": (3, None)}, "is not a number"),
    "user and item": ({"user_id": (20, None), "item_id": (5, None)}, "the id is"),
    "all": ({"user_id": (20, ""), "item_id": (59, "nobody's"), "timestamp": (30, None)}, "the id is"),
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("allowed", [0, 5])
@pytest.mark.parametrize("wrong", ROW_ERRORS)
def test_rows_that_cannot_be_used(check, kind, allowed, wrong):
    table = bought().astype({"timestamp": "Int64"})
    changes, message = ROW_ERRORS[wrong]
    for column, (row, value) in changes.items():
        table.loc[row, column] = value
    reported = check(table, kind, allowed, parts=bool(allowed) or len(changes) == 1)
    if allowed:
        assert reported[-1]["bad_rows"] == len(changes)
    else:
        assert pd.Series([reported]).str.contains(message).all(), reported


@pytest.mark.parametrize("kind", ["int8", "int64", "uint32", "Int64", "float64"])
def test_ids_that_are_whole_numbers(check, folder, kind):
    items = pd.DataFrame({"item_id": [-1, 0, 7, 100], "title": list("abcd")})
    items = write_table(items, folder / "numbers.parquet")
    table = bought()
    table["item_id"] = np.random.default_rng(1).choice([0, 7, 100], len(table)).astype(kind.lower())
    table["user_id"] = np.random.default_rng(2).integers(0, 9, len(table))
    if kind == "Int64":
        table = table.astype({"item_id": kind, "user_id": kind})
        table.loc[3, ["item_id", "user_id"]] = pd.NA
        table.loc[5, "user_id"] = 2**53 + 1  # beside a gap no double holds it
    interactions, *_ = check(table, "parquet", 9, items)
    assert {user for user, *_ in interactions} <= {str(user) for user in range(9)} | {str(2**53 + 1)}
    assert len(interactions) == 60 - (kind == "Int64")
    assert check(table.astype({"timestamp": str}), "parquet", 9, items)[0] == interactions


def test_a_fraction_among_ids_changes_no_other(check):
    users = np.arange(60.0)
    users[50] += 0.5
    interactions, *_ = check(bought(user_id=users), "parquet")
    assert [interactions[row][0] for row in (0, 50, 51)] == ["0", "50.5", "51"]


def test_a_gap_in_one_file_is_one_in_all(check):
    """Whole numbers beside a gap, which is in the last file, stay whole, those too that no double holds."""
    users, times = [2**53 + 1, *range(100, 158), None], [1_500_000_000] * 59 + [None]
    plain = pa.table({"user_id": pa.array(users), "item_id": pa.array([7, 8] * 30), "timestamp": pa.array(times)})
    interactions, *_, bad = check(plain, "parquet", 2)
    assert bad == {"bad_rows": 1, "bad_rows_missing_id": 1} and interactions[0][0] == str(2**53 + 1)


def test_columns_may_have_any_name_and_come_in_another_order_and_form(check, folder):
    names = {"user": "u\"`s'er", "item": "PLACE", "time": "stamp"}
    table = bought().set_axis(names.values(), axis=1).assign(place=1, USER="x", item="y", Stamp_=2)
    items = pd.read_parquet(folder / "items.parquet").rename(columns={"item_id": "PLACE"})
    items = write_table(items, folder / "goods.parquet")
    for kind in ("csv", "parquet"):
        wanted = check(table, kind, items=items, **names)
        other = folder / "visits" / f"{NAMES[2]}.{kind}"
        if kind == "csv":
            mixed = pd.read_csv(other, dtype=str, keep_default_na=False)
            write_table(mixed[list(reversed(mixed.columns))], other)
        else:
            mixed = pq.read_table(other).select(list(reversed(table.columns)))
            at = mixed.column_names.index("PLACE")
            texts = mixed["PLACE"].cast(pa.large_string()).dictionary_encode()
            pq.write_table(mixed.set_column(at, "PLACE", texts), other)
        assert read(folder / "visits", items, **names) == wanted


def test_quoted_cells_over_lines_and_files_of_no_bytes(check, folder):
    table = bought(note=["a\nb" if row in (2, 40) else "" for row in range(60)])
    wanted = check(table, "csv")
    assert wanted[2] == {"lines_inside_interaction_cells": 2}
    (folder / "visits" / "part-0.csv").write_bytes(b"")  # as Spark writes of an empty part
    assert read(folder / "visits", folder / "items.parquet") == wanted


@pytest.mark.parametrize(
    ("kind", "column", "row", "value", "reported"),
    [
        ("csv", "item_id", 33, "?", "part-3.csv, line 4, column 'item_id': item '?' is not in"),
        ("parquet", "item_id", 33, "?", "part-3.parquet, row 3, column 'item_id': item '?' is not in"),
        ("csv", "user_id", 7, "", "part-2.csv, line 2, column 'user_id': the id is empty"),
        ("parquet", "user_id", 59, "", "part-3.parquet, row 29, column 'user_id': the id is empty"),
        ("csv", "timestamp", 32, "x", "part-3.csv, line 3, column 'timestamp': 'x' is not a number"),
        ("parquet", "timestamp", 0, 1_500_000_000_000, "part-0.parquet, row 1) like milliseconds since 1970. Write"),
    ],
)
@pytest.mark.parametrize("size", [SIZE, 1 << 20])
def test_a_row_that_cannot_be_used_is_named_by_file_and_line(
    folder, kind, column, row, value, reported, size, monkeypatch
):
    monkeypatch.setattr("minionerec.data.sources.tables.ROWS", size // 9)
    table = bought().astype(object if kind == "csv" else {"timestamp": "int64"})
    table.loc[row, column] = value
    many = parted(folder, table, kind, (0, 7, 7, 31, 60), ("part-0", "part-1", "part-2", "part-3"))
    assert f"{many}/{reported}" in read(many, folder / "items.parquet", size=size)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_that_are_missing_or_there_twice(check, folder, kind):
    assert "column 'timestamp' is missing; it has user_id, item_id" in check(bought().drop(columns="timestamp"), kind)
    (folder / "twice.csv").write_text("user_id,item_id,timestamp,item_id\nu,a,1,b\n")
    table = pa.table([pa.array(["u"]), pa.array(["a"]), pa.array([1]), pa.array([2])], [*bought(), "item_id"])
    pq.write_table(table, folder / "twice.parquet")
    assert "column 'item_id' occurs twice" in read(folder / f"twice.{kind}", folder / "items.parquet")


SPOILT = {
    "another kind": (
        lambda many, last: (many / "part-2.tsv").write_text("user_id\titem_id\ttimestamp\n"),
        "{many}/part-2.tsv: is of another type than {first} in the same folder",
    ),
    "no table": (
        lambda many, last: (many / "read me.txt").write_text("x"),
        "{many}/read me.txt: is no table (.csv, .tsv, .jsonl, .parquet), but lies in {many}",
    ),
    "a folder": (
        lambda many, last: (many / "country=DE").mkdir(),
        "{many}: holds the folder 'country=DE', but only the files of a folder are read",
    ),
    "nothing": (
        lambda many, last: [path.unlink() for path in many.glob("part*")],
        "{many}: is a folder without files to read",
    ),
    "fewer columns": (
        lambda many, last: write_table(bought(5).drop(columns="timestamp"), last),
        "{last}: has the columns user_id, item_id, but {first} beside it has user_id, item_id, timestamp",
    ),
    "other columns": (
        lambda many, last: write_table(bought(5).rename(columns={"user_id": "visitor"}), last),
        "{last}: has the columns visitor, item_id, timestamp, but {first} beside it has user_id, item_id",
    ),
    "another type": (
        lambda many, last: write_table(bought(5).astype({"timestamp": "float64"}), last),
        "{last}: column 'timestamp' is double, but int64 in {first} beside it",
    ),
    "no parquet": (lambda many, last: (many / "part-2.parquet").write_bytes(b"PAR1"), "part-2.parquet: cannot be read"),
}
"""How a folder becomes one that cannot be read, and what is said then."""


@pytest.mark.parametrize(
    ("kind", "how"), [*(("csv", how) for how in [*SPOILT][:6]), *(("parquet", how) for how in SPOILT)]
)
def test_folders_that_are_no_table(folder, kind, how):
    many, (spoil, reported) = parted(folder, bought(), kind), SPOILT[how]
    *_, last = files = sorted(path for path in many.iterdir() if path.name[0] == "p")
    spoil(many, last)
    assert reported.format(many=many, first=files[0].name, last=last) in read(many, folder / "items.parquet")


def test_folders_in_the_order_of_names_and_folders_of_empty_files(folder):
    names = [path.name for path in TableFiles.at(parted(folder, bought(), "csv")).files]
    assert names == [f"{name}.csv" for name in NAMES]
    one = write_table(bought(), folder / "one.csv")
    assert TableFiles.at(os.fspath(one)).files == (one,)
    (folder / "empty").mkdir()
    (folder / "empty" / "a.csv").write_bytes(b"")
    with pytest.raises(DataError, match="empty: every file in it is empty"):
        TableFiles.at(folder / "empty")
    with pytest.raises(ArtefactError):
        TableFiles.at(folder / "visits" / "_temporary")


@given(rows=st.lists(st.tuples(ids, st.sampled_from(NASTY), st.integers(-9, 2**40)), min_size=1, max_size=25))
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
def test_nasty_ids(check, rows):
    for kind in ("csv", "parquet"):
        check(pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp"]), kind, 99)


# Text tables by themselves


cells = st.sampled_from(["", "a", "b c", 'x"y', '"', "l\nm", "r\r\ns", ",", "é", " "])


@given(
    rows=st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=30),
    ends=st.sampled_from(["\n", "\r\n", "\r"]),
    quotes=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    blanks=st.sampled_from([0, 1, 2]),
    size=st.integers(1, 200),
    mark=st.booleans(),
)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_parts_of_a_text_table_are_the_whole(tmp_path_factory, rows, ends, quotes, blanks, size, mark):
    path = tmp_path_factory.mktemp("text") / "t.csv"
    quotes = csv.QUOTE_ALL if ends == "\r" else quotes  # the writer leaves other ends of lines without quotes
    with open(path, "w", newline="", encoding="utf-8-sig" if mark else "utf-8") as file:
        file.write(ends * blanks)
        csv.writer(file, lineterminator=ends, quoting=quotes).writerows([["one", "two", "three"], *rows])
        file.write(ends * blanks)
    whole = read_text_table(path, ",")
    assert whole.to_numpy().tolist() == rows
    pd.testing.assert_frame_equal(pd.concat(list(read_text_parts(path, ",", size=size))), whole, check_index_type=False)
    spans = [1 + len(re.findall("\r\n|\r|\n", "".join(row))) for row in rows]
    assert whole.index.tolist() == [blanks + 1 + sum(spans[:row]) for row in range(len(rows))]
    assert whole.attrs[INSIDE] == sum(spans) - len(rows)


PLAIN = ["a,b", "007,NA", ",", " , ", "é,1e5", "a", "a,b,c", "", " "]
QUOTED = ['x,y"', '"x,y', '"p,q",r', '"",""', '"a""",""""', 'a,"""b"', 'x, "y"', 'u,"v"w', '"""', '"s,t"']
lines = st.lists(st.sampled_from([*PLAIN, *QUOTED]))


@given(lines=lines, end=st.sampled_from(["\n", "\r\n", "\r", "\r\r\n"]), size=st.integers(1, 40), last=st.booleans())
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
def test_blocks_that_arrow_parses_are_those_of_the_csv_module(tmp_path_factory, lines, end, size, last):
    """Each line is in a row or counted, whoever parsed it."""
    path = tmp_path_factory.mktemp("text") / "t.csv"
    path.write_bytes(end.join(["one,two", *lines, *([""] if last else [])]).encode())
    found, counts = [], []
    for by_arrow in (True, False):
        bad = BadRows(99)
        with pytest.MonkeyPatch.context() as patch:
            if not by_arrow:
                patch.setattr(text, "_rectangle", lambda *arguments: None)
            parts = list(read_text_parts(path, ",", bad, size))
        found.append([(row.Index, row.one, row.two) for part in parts for row in part.itertuples()])
        counts.append((bad.counts(), sum(part.attrs[INSIDE] for part in parts)))
    assert found[0] == found[1] and counts[0] == counts[1]
    filled = sum(bool(line.strip()) for line in lines)
    used = len(found[0]) + counts[0][0]["bad_rows"] + counts[0][1]
    assert filled <= used <= len(re.split("\r\n|\r|\n", end.join([*lines, ""])))


@pytest.mark.parametrize("separator", [",", "\t", "::"])
def test_a_return_alone_ends_a_line(tmp_path, separator):
    path, lines = tmp_path / "t.csv", [("a", "b", "c"), ("1", "x", "y"), ("", "x", "y"), ("2", "x", "y")]
    texts = [separator.join(cells) for cells in lines]
    path.write_bytes(f"{texts[0]}\n{texts[1]}\n\r{texts[2]}\r\n{texts[3]}\n".encode())
    for size in (None, 16):
        parts = read_text_parts(path, separator, size=size, quoted=separator != "::")
        table = pd.concat(list(parts))
        assert [tuple(table.columns), *table.itertuples(index=False, name=None)] == lines
        assert table.index.tolist() == [1, 3, 4]


def test_a_return_in_a_quoted_cell_stays(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,b\r1,"x\ry"\r\r,"z"\r')
    assert read_text_table(path, ",").to_numpy().tolist() == [["1", "x\ry"], ["", "z"]]


def test_parts_with_rows_too_long_or_too_short(tmp_path):
    path, cells = tmp_path / "t.csv", dict.fromkeys(range(30), ",1") | {5: ",x,x", 20: ",x,x", 7: ""}
    path.write_text("a,b\n" + "".join(f"{row}{rest}\n" for row, rest in cells.items()))
    whole = BadRows(9)
    wanted = read_text_table(path, ",", bad=whole)
    assert len(wanted) == 27 and whole.counts() == {"bad_rows": 3, "bad_rows_malformed": 3}
    for size in (1, 7, 30, 1000):
        parts = BadRows(9)
        found = pd.concat(list(read_text_parts(path, ",", parts, size)))
        pd.testing.assert_frame_equal(found, wanted, check_index_type=False)
        assert parts.counts() == whole.counts()
    with pytest.raises(DataError, match=r"t\.csv, line 7: 3 cells, expected 2"):
        list(read_text_parts(path, ",", size=8))
    message = r"t\.csv, line 9: 1 cells, expected 2.* That makes 2 bad rows, and max_bad_rows"
    with pytest.raises(DataError, match=message):
        list(read_text_parts(path, ",", BadRows(1), size=8))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'a,b\n1,2\n3,"4\n5,6\n' + b"7,8\n" * 30, r"line 3 \(to line 34\): a quote .* is opened and never closed"),
        (b"a,b\n" + b"1,2\n" * 30 + b"3,\xff\n", "line 32: byte 0xff is not UTF-8"),
        (b"a,b\n1,2,3\n4,5\n", "line 2: 3 cells, expected 2"),
    ],
)
def test_text_tables_that_are_none(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    for size in (None, 16):
        with pytest.raises(DataError, match=message):
            list(read_text_parts(path, ",", size=size))


def test_a_quote_that_is_never_closed_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("minionerec.data.files.LONGEST_CELL", 1000)
    path, bad = tmp_path / "t.csv", BadRows(10**6)
    path.write_text('a,b\n1,"x\n' + "1,2\n" * 1000)
    assert sum(map(len, read_text_parts(path, ",", bad, 64))) + bad.counts()["bad_rows"] == 1001
    assert bad.counts()["bad_rows"] < 300


_DAYS = pd.date_range("2018-01-31 07:12:44", periods=16, freq="9h")
_SECONDS = np.array([int(day.timestamp()) for day in _DAYS])


def _digits(form, kind=np.int64):
    return _DAYS.strftime(form).astype(kind).to_numpy()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    "times",
    [
        *(np.insert(_SECONDS, 7, number) for number in (0, 9_999_999_999, 1_517_382_764_000)),
        np.where(np.arange(16) % 2, _SECONDS // 86_400, _SECONDS),
        np.append(np.arange(16), _SECONDS[0]),
        90_000_000 + 1_000_000 * np.arange(16),
        *map(_digits, ("%Y%m%d%H", "%Y%m%d%H%M%S", "%y%m%d%H%M")),
        np.append(_digits("%Y%m%d%H%M"), 5),
        *(_digits("%Y%m%d%H%M", np.float64) + more for more in (0, 0.5)),
        np.array([1_801_011_230, 1_801_011_231] * 8),
    ],
    ids=repr,
)
def test_units_and_digits_of_dates_are_reported_of_all_parts_together(check, times, kind):
    table = pd.DataFrame({"user_id": "u", "item_id": "7", "timestamp": times})
    if isinstance(check(table, kind), str):
        check(table, kind, 40)
