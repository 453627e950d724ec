"""Readers of hostile files: a row is used or counted, and what is wrong is said in one line with its index."""

import gzip
import io
import json
import os
import re
import zipfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builder import build, read_movielens, read_recbole, read_tables
from support.small_corpus import write_published

from minionerec.core.errors import MinioneRecError
from minionerec.data.published import published_files, read_published
from minionerec.data.source import BadRows
from minionerec.data.sources.amazon import read_amazon
from minionerec.data.sources.user_items import read_user_items
from minionerec.metrics.published_json import read_published_json
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.recommend import read_histories
from minionerec.sid.embed.stored import load_vectors

HEADER = "user_id,item_id,timestamp\n"
ITEMS = "item_id,title\n" + "".join(f"p{item},Thing {item}\n" for item in range(6))
START = 1_500_000_000
N = 24


def lines(of=lambda position: str(START + position * 1000)):
    return [f"u{position % 4},p{position % 6},{of(position)}" for position in range(N)]


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def tables(folder, interactions, items=ITEMS, allowed=0, **options):
    """Rows used, rows counted as bad, times, of a csv of interactions."""
    bad = BadRows(allowed)
    content = interactions if isinstance(interactions, bytes) else HEADER + "\n".join(interactions) + "\n"
    items = items if isinstance(items, Path) else put(folder, "items.csv", items)
    source = read_tables(put(folder, "visits.csv", content), items, bad)
    built = build(source, **options)
    return len(source.users), bad.counts()["bad_rows"], source.times, built


def reported(folder, *arguments, **options) -> str:
    with pytest.raises(MinioneRecError) as error:
        tables(folder, *arguments, **options)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    return str(error.value)


def changed(position, line):
    found = lines()
    found[position] = line
    return found


# Quotes (item 12)


def test_quotes_at_the_start_of_two_cells_are_a_bad_row_of_as_many_lines(tmp_path):
    interactions = lines()
    interactions[3], interactions[9] = f'"{interactions[3]}', f'"{interactions[9]}'
    assert "visits.csv, line 5 (to line 11): ',' expected after '\"'" in reported(tmp_path, interactions)
    used, bad, _, _ = tables(tmp_path, interactions, allowed=7)
    assert (used, bad) == (N - 7, 7)


def test_a_break_inside_an_id_is_a_bad_row(tmp_path):
    interactions = changed(3, f'"u\n3",p3,{START}')
    assert "line 5, column 'user_id': 'u\\n3' is no id" in reported(tmp_path, interactions)
    used, bad, _, built = tables(tmp_path, interactions, allowed=1)
    assert (used, bad, built.counts["lines_inside_interaction_cells"]) == (N - 1, 1, 1)


def test_lines_inside_quoted_cells_are_counted(tmp_path):
    rows = [f"{line},good" for line in lines()]
    rows[3], rows[5] = f'{lines()[3]},"good, if a\nlittle, late"', rows[4]
    content = ("user_id,item_id,timestamp,review\n" + "\n".join(rows)).encode()
    used, bad, _, built = tables(tmp_path, content)
    assert (used, bad, built.counts["lines_inside_interaction_cells"]) == (N, 0, 1)


def test_honest_quotes_stay_as_they_are(tmp_path):
    titles = ['"Tea, ""green"""', '5" bolt', '"two\nlines"', '""', 'a "b" c', ' "x" y']
    items = "item_id,title\n" + "".join(f"p{item},{title}\n" for item, title in enumerate(titles))
    _, bad, _, built = tables(tmp_path, lines(), items)
    assert built.items["title"].tolist() == ['Tea, "green"', '5" bolt', "two\nlines", "", 'a "b" c', '"x" y']
    assert (bad, built.counts["lines_inside_item_cells"]) == (0, 1)


@pytest.mark.parametrize("name", ["timestamp", "user_id"])
def test_a_quote_in_the_header_swallows_nothing(tmp_path, name):
    interactions = lines()
    interactions[2] += '"'
    content = (HEADER.replace(name, f'"{name}') + "\n".join(interactions)).encode()
    assert "visits.csv, line 1: not a header (" in reported(tmp_path, content, allowed=100)
    items = ITEMS.replace("title", '"title').replace("Thing 1", 'Thing 1"')
    message = "items.csv, line 1: not a header (column names that span lines to 3)"
    assert message in reported(tmp_path, lines(), items, allowed=100)


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_quote_that_is_never_closed_is_a_bad_row_of_all_lines_after_it(tmp_path, end):
    content = (HEADER + "\n".join(changed(20, f'"u0,p1,{START}')) + end).encode()
    message = 'visits.csv, line 22 (to line 25): a quote (") is opened and never closed'
    assert message in reported(tmp_path, content) and message in reported(tmp_path, content, allowed=3)
    assert tables(tmp_path, content, allowed=4)[:2] == (N - 4, 4)


# Cells and headers (items 11, 16)


def test_a_cell_of_any_length_before_a_bad_row(tmp_path):
    long = "x" * 200_000
    items = ITEMS + f"p6,{long}\n"
    message, interactions = "visits.csv, line 12, column 'timestamp': 'soon' is not", changed(10, "u0,p1,soon")
    assert message in reported(tmp_path, interactions, items)
    rows = [f"{line},{long if position == 2 else ''}" for position, line in enumerate(interactions)]
    content = ("user_id,item_id,timestamp,review\n" + "\n".join(rows)).encode()
    assert message in reported(tmp_path, content)
    assert "(200,000 characters)" in reported(tmp_path, changed(10, f"u0,p1,{long}"))


@pytest.mark.parametrize(("line", "cells"), [("u1,p1", 2), (f"u1,p1,{START},7", 4)])
def test_rows_with_too_few_or_too_many_cells_are_bad_rows(tmp_path, line, cells):
    interactions = changed(5, line)
    assert f"line 7: {cells} cells, expected 3. Check its separators" in reported(tmp_path, interactions)
    assert tables(tmp_path, interactions, allowed=1)[:2] == (N - 1, 1)
    interactions[10] = "u0,p1,soon"
    assert tables(tmp_path, interactions, allowed=2)[:2] == (N - 2, 2)
    assert "line 12, column 'timestamp': 'soon' is not" in reported(tmp_path, interactions, allowed=1)


def test_columns_without_a_name_may_be_there_twice(tmp_path):
    content = ("user_id,item_id,timestamp,,\n" + "\n".join(f"{line},," for line in lines())).encode()
    assert tables(tmp_path, content)[0] == N


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("item_id,title\n", "items.csv: holds a header and no item"),
        ("", "items.csv: is empty"),
        ("item_id,title\np\0x,T\n", r"items.csv, line 2, column 'item_id': 'p\x00x' is no id"),
    ],
)
def test_items_that_are_none(tmp_path, items, message):
    assert message in reported(tmp_path, lines(), items)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder.csv", "is a directory, expected a file"),
        ("loop.csv", "cannot be read (Too many levels of symbolic links)"),
        ("none.csv", "no such file"),
    ],
)
def test_paths_that_are_no_files(tmp_path, name, message):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    assert f"{name}: {message}" in reported(tmp_path, lines(), tmp_path / name)


def test_what_is_not_utf8_is_named_by_its_line(tmp_path):
    content = (HEADER + "\n".join(lines())).encode() + b"\nu\xff,p1,15\n"
    assert "visits.csv, line 26: byte 0xff is not UTF-8 text" in reported(tmp_path, content)
    path = put(tmp_path, "lines.txt", b"u0 1 2\nu1 \xe9\n")
    with pytest.raises(MinioneRecError, match=r"lines.txt, line 2: byte 0xe9 is not UTF-8"):
        read_user_items(path)


# Times (items 3, 16)


@pytest.mark.parametrize("date", ["9999-12-31", "1600-01-01", "2262-04-12", "1677-09-20"])
def test_dates_that_would_wrap_are_bad_rows(tmp_path, date):
    interactions = lines(lambda position: f"2018-01-{position + 1:02}")
    interactions[20] = f"u0,p1,{date}"
    message = f"line 22, column 'timestamp': '{date}' is not an ISO date from 1678 to 2261"
    assert message in reported(tmp_path, interactions)
    used, bad, times, _ = tables(tmp_path, interactions, allowed=1)
    assert (used, bad) == (N - 1, 1) and times.min() > 0


@pytest.mark.parametrize("number", ["1" + "0" * 20, "9223372036854775808", "-1e19", "1e300", "inf", "nan", "true", ""])
def test_numbers_that_are_no_times_are_bad_rows_and_cost_no_digit_of_others(tmp_path, number):
    interactions = lines(lambda position: 2**60 + position)
    interactions[20] = f"u0,p1,{number}"
    assert "line 22, column 'timestamp': " in reported(tmp_path, interactions)
    used, bad, times, _ = tables(tmp_path, interactions, allowed=1)
    assert (used, bad, times.dtype) == (N - 1, 1, np.int64)
    assert times.tolist() == [2**60 + position for position in range(N) if position != 20]


def test_a_first_row_without_a_time_does_not_decide_the_kind(tmp_path):
    assert tables(tmp_path, changed(0, "u0,p0,soon"), allowed=1)[:2] == (N - 1, 1)
    interactions = lines(lambda position: f"2018-01-{position + 1:02}")
    interactions[0] = "u0,p0,soon"
    assert tables(tmp_path, interactions, allowed=1)[:2] == (N - 1, 1)


def test_a_window_holds_for_times_of_every_unit_and_needs_one(tmp_path):
    for factor in (1, 1000, 10**6):
        interactions = lines(lambda position, factor=factor: (START + position * 1000) * factor)
        built = tables(tmp_path, interactions, start="2017-07-14T04:00")[3]
        assert built.counts["interactions_outside_window"] == 5
    days = lines(lambda position: START // 86_400 + position)
    assert "their unit is not known. Name it with --time_unit" in reported(tmp_path, days, start="2017-01-01")
    assert tables(tmp_path, days)[:2] == (N, 0)


# Parquet (items 3, 15)


def frame(**columns):
    table = pd.DataFrame([line.split(",") for line in lines()], columns=HEADER.strip().split(","))
    return table.assign(timestamp=table["timestamp"].astype("int64")).assign(**columns)


def parquet(folder, table, allowed=0):
    bad, path = BadRows(allowed), folder / "visits.parquet"
    pq.write_table(pa.Table.from_pandas(table) if isinstance(table, pd.DataFrame) else table, path)
    source = read_tables(path, put(folder, "items.csv", ITEMS), bad)
    return len(source.users), bad.counts()["bad_rows"], source.times


FIRST = np.arange(N) == 0
STAMPS = pd.Series(pd.to_datetime(frame()["timestamp"], unit="s")).astype("datetime64[us]")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("timestamp", np.where(FIRST, np.uint64(2**63 + 5), frame()["timestamp"].astype("uint64"))),
        ("timestamp", STAMPS.where(~FIRST, np.datetime64("9999-12-31"))),
        ("timestamp", STAMPS.where(~FIRST, np.datetime64("0001-01-01")).dt.tz_localize("UTC")),
        ("timestamp", pd.Series(frame()["timestamp"], dtype="Int64").where(~FIRST)),
        ("timestamp", STAMPS.dt.date.where(~FIRST, pd.Timestamp("9999-12-31").date())),
        ("timestamp", np.where(FIRST, np.inf, frame()["timestamp"])),
        ("user_id", np.where(FIRST, np.inf, 1.0)),
        ("user_id", np.where(FIRST, 1e300, 1.0)),
        ("user_id", np.where(FIRST, np.nan, 1.0)),
        ("user_id", [b"\xff" if first else b"u" for first in FIRST]),
        ("user_id", ["u\n1" if first else "u" for first in FIRST]),
        ("user_id", ["" if first else "u" for first in FIRST]),
        ("item_id", pd.Series(["zz" if first else "p1" for first in FIRST], dtype="category")),
    ],
)
def test_parquet_rows_are_used_or_counted(tmp_path, name, values):
    table = frame(**{name: values})
    with pytest.raises(MinioneRecError, match=f"visits.parquet, row 1, column '{name}': "):
        parquet(tmp_path, table)
    used, bad, times = parquet(tmp_path, table, allowed=1)
    assert (used, bad) == (N - 1, 1) and times.min() > 0


def test_parquet_with_an_index_of_texts_names_the_row(tmp_path):
    table = frame(item_id=np.where(np.arange(N) == 5, "zz", frame()["item_id"]))
    table.index = [f"r{position}" for position in range(N)]
    with pytest.raises(MinioneRecError, match=r"visits.parquet, row 6, column 'item_id': item 'zz' is not in"):
        parquet(tmp_path, table)
    assert parquet(tmp_path, table, allowed=1)[:2] == (N - 1, 1)


def test_a_column_that_pandas_made_an_index_is_a_column(tmp_path):
    expected = parquet(tmp_path, frame())
    for index in (["item_id"], ["user_id", "item_id"]):
        found = parquet(tmp_path, frame().set_index(index))
        assert found[:2] == expected[:2]
        assert found[2].tolist() == expected[2].tolist()


@pytest.mark.parametrize("column", [[["u"]] * N, [{"a": 1}] * N, [None] * N], ids=["lists", "structs", "nothing"])
def test_ids_that_are_no_texts(tmp_path, column):
    with pytest.raises(MinioneRecError, match="row 1, column 'user_id'"):
        parquet(tmp_path, pa.table({**{n: frame()[n].tolist() for n in ("item_id", "timestamp")}, "user_id": column}))


def test_decimals_are_numbers(tmp_path):
    used, bad, times = parquet(tmp_path, frame(timestamp=[Decimal(START + position) for position in range(N)]))
    assert (used, bad, times[:2].tolist()) == (N, 0, [START, START + 1])


# Amazon (items 10, 16)


REVIEW = '{"reviewerID": "u1", "asin": "p1", "unixReviewTime": %s}'
REVIEWS = [
    json.dumps({"reviewerID": f"u{index % 4}", "asin": f"p{index % 6}", "unixReviewTime": START + index})
    for index in range(N)
]
META = "\n".join(json.dumps({"asin": f"p{item}", "title": f"Tea {item}"}) for item in range(6))


def amazon(folder, reviews, allowed=0, meta=META):
    bad, reviews = BadRows(allowed), put(folder, "reviews.json", "\n".join(reviews))
    source = read_amazon("amazon2018", reviews, put(folder, "meta.json", meta), bad)
    return len(source.users), bad.counts()["bad_rows"]


@pytest.mark.parametrize(
    "line",
    [
        *(REVIEW % time for time in ("[1]", "{}", "Infinity", "NaN", "1" + "0" * 20, "1" * 5000, "true", "1.5")),
        REVIEW % "1500000000000",
        REVIEW.replace("u1", "u\\ud800") % START,
        REVIEW.replace('"u1"', "[" * 100_000) % START,
        REVIEW.replace('"asin"', '"reviewerID": "u2", "asin"') % START,
        "\x00",
    ],
    ids=lambda line: line[-40:],
)
def test_amazon_lines_are_used_or_counted(tmp_path, line):
    reviews = [*REVIEWS[:3], line, *REVIEWS[3:]]
    with pytest.raises(MinioneRecError, match=r"reviews.json, line 4: ") as error:
        amazon(tmp_path, reviews)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    assert amazon(tmp_path, reviews, allowed=1) == (N, 1)


@pytest.mark.parametrize("line", ["null", " null", "\tnull ", "", "[]", "1", '"a"', "\ufeff"])
def test_amazon_files_that_begin_with_no_object(tmp_path, line):
    used, bad = amazon(tmp_path, [line, *REVIEWS], allowed=2)
    assert used + bad == N + bool(line)
    assert amazon(tmp_path, REVIEWS, allowed=1, meta=f"{line}\n{META}") == (N, bool(line))


def test_amazon_nesting_that_is_never_read_is_no_matter(tmp_path):
    deep = REVIEW.replace("{", '{"x": ' + "[" * 100_000 + "]" * 100_000 + ", ", 1) % START
    assert amazon(tmp_path, [*REVIEWS, deep]) == (N + 1, 0)


def test_amazon_files_without_a_line(tmp_path):
    with pytest.raises(MinioneRecError, match="none of the 0 reviews"):
        amazon(tmp_path, ["", ""])
    with pytest.raises(MinioneRecError, match=f"none of the {N} reviews"):
        amazon(tmp_path, REVIEWS, meta="\n")


def test_amazon_2018_reviews_read_as_2023_offer_a_guess(tmp_path):
    late = [review.replace(str(START)[:4], f"{str(START)[:4]}000") for review in REVIEWS]
    with pytest.raises(MinioneRecError, match=r"line 1: 'unixReviewTime' is \d+, which is no time in seconds.*milli"):
        amazon(tmp_path, late)


@pytest.mark.parametrize("time", [0, -1, 17_562, 20_180_131_071_244])
def test_reviews_whose_time_is_none_of_the_edition_are_bad_lines(tmp_path, time):
    reviews = [*REVIEWS[:3], REVIEW % time, *REVIEWS[4:]]
    with pytest.raises(MinioneRecError, match=rf"line 4: 'unixReviewTime' is {time}, which is no time in seconds"):
        amazon(tmp_path, reviews)
    assert amazon(tmp_path, reviews, allowed=1)[1] == 1


# The other readers (items 15, 16)


def test_recbole_columns_that_meet(tmp_path):
    header = "user_id:token\titem_id:token\ttimestamp:float"
    rows = "\n".join(line.replace(",", "\t") for line in lines())
    path = put(tmp_path, "a.inter", f"{header}\n{rows}")
    assert len(read_recbole(path).users) == N
    message = "columns has title=item_id, the column of item ids, but there is no file"
    with pytest.raises(MinioneRecError, match=message):
        read_recbole(path, columns={"title": "item_id"})
    twice = put(tmp_path, "b.inter", f"{header}\titem_id:float\n" + rows.replace("\n", "\t1\n") + "\t1")
    with pytest.raises(MinioneRecError, match="column 'item_id' occurs twice"):
        read_recbole(twice)


def test_a_colon_inside_an_item_is_part_of_it(tmp_path):
    path = put(tmp_path, "lines.txt", "u0 a:1 b:2\nu1: b:2 a:1\nu2 : a:1 b:2\nu3 :a:1 b:2\nu4:a:1 b:2\n")
    source = read_user_items(path)
    assert source.items["item_id"].tolist() == ["a:1", "b:2"]
    assert source.user_ids.to_pylist() == ["u0", "u1", "u2", "u3", "u4"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"1": "a", "1": "b", "2": ""}', "'1'.*twice"),
        ('{"1": "a\\ud800", "2": ""}', "surrogate"),
        ('{"1": ' + "[" * 100_000, "nested"),
        ('{"1": ' + "1" * 5000 + "}", "digits"),
    ],
    ids=["twice", "surrogate", "deep", "digits"],
)
def test_titles_of_user_items(tmp_path, content, message):
    interactions = put(tmp_path, "lines.txt", "u0 1 2\nu1 2 1\n")
    with pytest.raises(MinioneRecError, match=message) as error:
        read_user_items(interactions, put(tmp_path, "titles.json", content))
    assert "\n" not in str(error.value)


def movielens(folder, films=(), ratings=(), bad=None):
    """Films and ratings, of which some lines, by their positions, are others."""
    movies = {item: f"{item}::Film {item}::Drama" for item in range(6)} | dict(films)
    rated = {p: f"{p % 4}::{p % 6}::5::{START + p}" for p in range(N)} | dict(ratings)
    files = [put(folder, name, "\n".join(of.values())) for name, of in (("ratings.dat", rated), ("movies.dat", movies))]
    return read_movielens(*files, bad)


def test_movielens_titles_keep_their_tabs_and_are_not_cut(tmp_path):
    items = movielens(tmp_path, {2: "2::A\tfilm::Drama"}).items
    assert (items["title"][2], items["description"][2]) == ("A\tfilm", "Drama")
    with pytest.raises(MinioneRecError, match=r"movies.dat, line 3: 4 cells, expected 3"):
        movielens(tmp_path, {2: "2::A::film::Drama"})
    bad = BadRows(5)
    source = movielens(tmp_path, {2: "2::A::film::Drama"}, bad=bad)
    assert (len(source.users), bad.counts()["bad_rows"]) == (N - 4, 5)  # the film and its four ratings


def test_movielens_lines_with_a_carriage_return_inside_are_counted_each(tmp_path):
    bad = BadRows(9)
    source = movielens(tmp_path, (), {3: f"3::3::+5::5::{START}", 7: f"3::1::5::\r::{START}"}, bad)
    assert (len(source.users), bad.kinds) == (N - 2, {"malformed": 2, "bad_time": 1})


def test_a_tab_in_another_line_does_not_hide_the_line_that_is_too_long(tmp_path):
    with pytest.raises(MinioneRecError, match=r"movies.dat, line 5: 4 cells, expected 3\."):
        movielens(tmp_path, {1: "1::A\tfilm::Drama", 4: "4::One::too::many"})


# The published layout


@pytest.fixture
def published(tmp_path):
    """A corpus in the published layout, and the number of its training examples."""
    corpus = tables(tmp_path, lines())[3].corpus()
    write_published(tmp_path / "published", "Toys", corpus)
    return tmp_path / "published", len(corpus.train)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: re.sub(rb"\n(.*)\n(.*)", rb'\n"\1\n"\2', text, count=1), r"\.csv, line \d \(to line \d\): "),
        (lambda text: text.replace(b"user_id", b"item_id", 1), "column 'user_id' is missing"),
        (lambda text: text.replace(b"\n", b",user_id\n", 1), "line 2: 7 cells, expected 8"),
        (lambda text: text.replace(b"\n", b"\n\xff", 2), "line 2: byte 0xff is not UTF-8"),
    ],
)
def test_published_rows_that_swallow_others(published, change, message):
    root, examples = published
    assert len(read_published(root, "Toys").train) == examples
    path = root / "train" / "Toys.csv"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(MinioneRecError, match=message):
        read_published(root, "Toys")


NO_ITEMS = (b"", b"[]", b"{", b"\xff{}", b'{"0": "\\ud800"}', b'{"0": ' + b"[" * 100_000, b'{"0": 7}', b"9" * 5000)


@pytest.mark.parametrize("content", NO_ITEMS, ids=range(len(NO_ITEMS)))
def test_published_items_that_are_none(published, content):
    published_files(published[0], "Toys")["items"].write_bytes(content)
    with pytest.raises(MinioneRecError, match=r"Toys\.item\.json") as error:
        read_published(published[0], "Toys")
    assert "\n" not in str(error.value)


NO_LISTS = (*NO_ITEMS, b"[7]", b'[{"predict": "\\ud800"}]', b"[" * 100_000, b'[{"predict": [1], "output": {}}]')


@pytest.mark.parametrize("content", NO_LISTS, ids=range(len(NO_LISTS)))
def test_published_predictions_that_are_none(tmp_path, content):
    with pytest.raises(MinioneRecError, match=r"lists\.json") as error:
        read_published_json(put(tmp_path, "lists.json", content))
    assert "\n" not in str(error.value)


NPY = {
    "nothing": b"",
    "no dictionary": b"[]",
    "half a dictionary": b"{'descr': '<f4'}",
    "objects": b"{'descr': '|O', 'fortran_order': False, 'shape': (2, 2)}",
    "huge": b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 6)}",
    "negative": b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 2)}",
    "deep": b"{'descr': " + b"(" * 3000,
    "no Python": b"\xff\xfe",
}


@pytest.mark.parametrize("header", NPY.values(), ids=NPY)
def test_vectors_with_an_odd_header(tmp_path, header):
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(16)
    with pytest.raises(MinioneRecError, match=r"v\.npy: ") as error:
        load_vectors(put(tmp_path, "v.npy", content), 2)
    assert "\n" not in str(error.value)


def test_a_history_that_is_given_twice_is_none(tmp_path):
    row = '{"history": ["a"], "history": ["b"]}\n'
    with pytest.raises(MinioneRecError, match=r"h\.jsonl, line 2: not valid JSON .the key 'history' is given twice"):
        list(read_histories(put(tmp_path, "h.jsonl", '{"history": ["a"]}\n' + row)))


# Remedies that help (second attack)


@pytest.mark.parametrize(
    ("separator", "name", "remedy"),
    [
        (";", "visits.csv", "Its cells are separated by ';': save it with commas as .csv, or with tabs as .tsv"),
        ("\t", "visits.csv", "Its cells are separated by tabs: save it with commas"),
        ("|", "visits.csv", "Its cells are separated by '|'"),
        (",", "visits.tsv", "Its cells are separated by ','"),
        (";", "other.csv", "Name the right one with --columns user=NAME"),
    ],
)
def test_a_table_with_another_separator_says_so(tmp_path, separator, name, remedy):
    content = (HEADER + "\n".join(lines())).replace(",", separator)
    if name == "other.csv":
        content = content.replace("user_id", "who")
    with pytest.raises(MinioneRecError, match=re.escape(remedy)):
        read_tables(put(tmp_path, name, content), put(tmp_path, "items.csv", ITEMS))


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("gzip", "is packed by gzip, despite its name, not text. Unpack it."),
        ("zip", "is a zip file or a workbook (.xlsx), despite its name, not text. Unpack it, or save the"),
        ("parquet", "is a parquet file, despite its name, not text. Name it .parquet."),
    ],
)
def test_what_is_no_text_is_reported_by_what_it_is(tmp_path, kind, remedy):
    content = io.BytesIO()
    if kind == "parquet":
        frame().to_parquet(content)
    elif kind == "gzip":
        content.write(gzip.compress((HEADER + "\n".join(lines())).encode()))
    else:
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("xl/sheet.xml", HEADER + "\n".join(lines()))
    for allowed in (0, 10**6):
        assert remedy in reported(tmp_path, content.getvalue(), allowed=allowed)


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "visits.csv")
    files = {"interactions": str(tmp_path / "visits.csv"), "items": str(put(tmp_path, "items.csv", ITEMS))}
    config = PrepareConfig(source="tables", **files, output="x")
    with pytest.raises(MinioneRecError, match=r"visits.csv: is no ordinary file. Give the path of a csv, tsv, jsonl"):
        config.inputs()


@pytest.mark.parametrize("name", ["title", "item_id", "comment"])
def test_a_parquet_table_with_a_column_twice_is_one_line_where_it_is_read(tmp_path, name):
    names = ["item_id", "title", name]
    pq.write_table(pa.table([[f"i{n}"] for n in range(3)], names=names), tmp_path / "items.parquet")
    (tmp_path / "visits.csv").write_text("user_id,item_id,timestamp\nu,i0,1\n")
    if name == "comment":
        table = pa.table([["i0"], ["A"], ["x"], ["y"]], names=["item_id", "title", "comment", "comment"])
        pq.write_table(table, tmp_path / "items.parquet")
        assert read_tables(tmp_path / "visits.csv", tmp_path / "items.parquet").items["title"].tolist() == ["A"]
    else:
        with pytest.raises(MinioneRecError, match=f"items.parquet: column '{name}' occurs twice"):
            read_tables(tmp_path / "visits.csv", tmp_path / "items.parquet")
