"""Any two tables: the same rows from every file kind, both splits, and every message."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from support.builder import build, read_tables
from support.small_corpus import triples_of
from support.tables import write_table

from minionerec.core.errors import DataError
from minionerec.data.source import BadRows
from minionerec.data.sources.tables import read_table
from minionerec.data.sources.times import read_times

ITEMS = pd.DataFrame([(f"p{i}", f"Thing {i}", i) for i in range(6)], columns=["item_id", "title", "price"])


def interactions():
    """Shuffled purchases; all times differ."""
    rng = np.random.default_rng(0)
    users = rng.permutation(np.repeat([f"u{i}" for i in range(4)], 6))
    items, times = rng.choice(ITEMS["item_id"].to_numpy(), 24), rng.permutation(24) * 86_400 + 1_500_000_000
    return pd.DataFrame({"user_id": users, "item_id": items, "timestamp": times})


def read(tmp_path, items=ITEMS, bought=None, suffix=".csv", **options):
    bought = interactions() if bought is None else bought
    items, bought = write_table(items, tmp_path / f"items{suffix}"), write_table(bought, tmp_path / f"bought{suffix}")
    return build(read_tables(bought, items, **options)).corpus()


def plain(corpus):
    return [triples_of(rows) for rows in corpus.splits().values()]


@pytest.mark.parametrize("suffix", [".tsv", ".parquet", ".csv.gz", ".tsv.gz", ".jsonl", ".jsonl.gz"])
def test_every_kind_of_file_gives_the_same_corpus(tmp_path, suffix):
    expected, got = read(tmp_path), read(tmp_path, suffix=suffix)
    assert plain(got) == plain(expected)
    pd.testing.assert_frame_equal(got.items, expected.items)


def test_zones_count():
    times = pd.Series(["2020-01-01T12:00:00+02:00", "2020-01-01T11:00:00", "2020-01-01T11:00:00Z"])
    assert np.diff(read_times(times, str, BadRows())[0]).tolist() == [3_600_000_000_000, 0]


@pytest.mark.parametrize("zone", ["Z", " Z", "+00", "+00:00", " +0000", " UTC", "UTC", " GMT"])
def test_zones_are_read_as_warehouses_write_them(zone):
    times = pd.Series([f"2020-01-01 11:00:00{zone}", f"2020-01-01 12:30:00.250000{zone}"])
    read, right, ticks = read_times(times, str, BadRows())
    wanted = [datetime(2020, 1, 1, 11, tzinfo=UTC), datetime(2020, 1, 1, 12, 30, 0, 250_000, tzinfo=UTC)]
    assert right.all() and [each / ticks for each in read.tolist()] == [each.timestamp() for each in wanted]


@pytest.mark.parametrize("kind", ["date32[pyarrow]", "timestamp[us][pyarrow]", "timestamp[ns, UTC][pyarrow]"])
def test_dates_of_arrow_in_a_data_frame_are_dates(tmp_path, kind):
    """pandas' metadata in a parquet file asks for arrow's types, which have no times of their own."""
    bought = interactions()
    days = pd.to_datetime(bought["timestamp"], unit="s").dt.floor("D")
    got = read(tmp_path, bought=bought.assign(timestamp=days.astype(kind)), suffix=".parquet")
    expected = read(tmp_path, bought=bought.assign(timestamp=days.dt.strftime("%Y-%m-%d")))
    assert plain(got) == plain(expected)
    assert got.train.times.time.tolist() == expected.train.times.time.tolist()


def test_a_list_of_texts_is_a_text_and_a_mapping_is_none(tmp_path):
    texts = [["A text.", None, "More &amp; more."] if row % 2 else [] for row in range(len(ITEMS))]
    got = read(tmp_path, items=ITEMS.assign(description=texts), suffix=".parquet")
    assert got.items["description"].tolist()[:2] == ["", "A text. More & more."]
    assert got.counts["items_without_description"] == (len(ITEMS) + 1) // 2
    with pytest.raises(DataError, match=r"items.parquet, row 1, column 'title': \{'a': 1\} is no text"):
        read(tmp_path, items=ITEMS.assign(title=[{"a": 1}] * len(ITEMS)), suffix=".parquet")
    read(tmp_path, items=ITEMS.assign(unread=[{"a": 1}] * len(ITEMS)), suffix=".parquet")


def test_columns_of_other_names(tmp_path):
    names = {"item_id": "sku", "title": "name", "user_id": "who", "timestamp": "when"}
    source = read_tables(
        write_table(interactions().rename(columns=names), tmp_path / "b.csv"),
        write_table(ITEMS.assign(blurb="Nice").rename(columns=names), tmp_path / "i.csv"),
        columns={"item": "sku", "title": "name", "description": "blurb", "user": "who", "time": "when"},
    )
    corpus = build(source).corpus()
    assert plain(corpus) == plain(read(tmp_path))
    assert corpus.items["description"].tolist() == ["Nice"] * 6


def test_numeric_ids_of_both_tables_meet(tmp_path):
    numbers = interactions().assign(item_id=lambda table: table["item_id"].str[1:].astype(int))
    items = ITEMS.assign(item_id=range(6))
    from_csv, from_parquet = read(tmp_path, items, numbers), read(tmp_path, items, numbers, suffix=".parquet")
    assert plain(from_csv) == plain(from_parquet) == plain(read(tmp_path))
    as_floats = read(tmp_path, items, numbers.assign(item_id=numbers["item_id"] * 1.0), suffix=".parquet")
    assert plain(as_floats) == plain(from_csv)


def test_html_entities_of_texts_are_decoded(tmp_path):
    given = ["Might &amp; Magic", " 23&quot; lamp&nbsp;", "Caf&eacute; &#174;&#xAE;", "&amp;lt;"]
    given += ["R&D, AT&T; a &b c;", "plain"]
    found = ["Might & Magic", '23" lamp', "Café ®®", "&lt;", "R&D, AT&T; a &b c;", "plain"]
    items = ITEMS.assign(item_id=[f"p&amp;{i}" for i in range(6)], title=given, description=given[::-1])
    bought = interactions().replace(r"^p(\d)", r"p&amp;\1", regex=True)
    for suffix in (".csv", ".parquet"):
        read_items = read(tmp_path, items, bought, suffix=suffix).items
        assert read_items["title"].tolist() == found and read_items["description"].tolist() == found[::-1]
        assert read_items["item_id"].tolist() == items["item_id"].tolist()


def test_missing_texts_are_counted(tmp_path):
    items = ITEMS.assign(title=["", None, "a", "b", "NA", "null"], description=[None, "x", "", "y", "z", "w"])
    bought = interactions().replace({"item_id": {"p5": "p4"}})
    for suffix in (".csv", ".parquet"):
        corpus = read(tmp_path, items, bought, suffix=suffix)
        assert corpus.items["title"].tolist() == ["", "", "a", "b", "NA", "null"]
        assert corpus.counts["items_without_title"] == 2
        assert corpus.counts["items_without_description"] == 2
        assert corpus.counts["items_without_interactions"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda b: b.drop(columns="timestamp"),
            r"column 'timestamp' is missing; it has user_id, item_id\. .*--columns time=NAME",
        ),
        (
            lambda b: b.rename(columns={"item_id": "sku"}),
            r"column 'item_id' is missing; .* with --columns item=NAME, which holds for items and interactions\.",
        ),
        (
            lambda b: b.assign(item_id=["p9", *b["item_id"][1:]]),
            r"line 2, column 'item_id': item 'p9' is not in .*\(1 such",
        ),
        (lambda b: b.assign(user_id=[*b["user_id"][:-1], ""]), "line 25, column 'user_id': the id is empty"),
        (
            lambda b: b.assign(timestamp=b["timestamp"].astype(str).where(b.index != 3, "soon")),
            r"line 5, column 'timestamp': 'soon' is not a number, as in the first row \(1 such",
        ),
        (
            lambda b: b.assign(timestamp="now"),
            r"line 2.*'now' is not a number or an ISO date .* such as 2018-11-05 .*\(24 such",
        ),
        (
            lambda b: b.assign(timestamp=["2020-01-01", *["2020-13-01"] * 23]),
            r"line 3.*'2020-13-01' is not an ISO date",
        ),
        (lambda b: b[:2], r"split 'train' holds no example"),
        (lambda b: b[:0], r"holds a header and no interaction\. Expected a row an interaction\."),
    ],
)
def test_bad_interactions(tmp_path, change, message):
    with pytest.raises(DataError, match=rf"bought\.csv.*{message}"):
        read(tmp_path, bought=change(interactions()))


def test_parquet_messages_count_rows(tmp_path):
    bought = interactions()
    with pytest.raises(DataError, match=r"bought\.parquet, row 2, column 'timestamp': 'nan' is not a number from"):
        read(tmp_path, bought=bought.assign(timestamp=[1.0, np.nan, *[2.0] * 22]), suffix=".parquet")
    with pytest.raises(DataError, match=r"bought\.parquet, row 1, column 'item_id': the id is missing"):
        read(tmp_path, bought=bought.assign(item_id=[None, *bought["item_id"][1:]]), suffix=".parquet")


def test_lines_are_counted_as_an_editor_does(tmp_path):
    items = tmp_path / "items.csv"
    items.write_text('item_id,title\np0,"two\nlines"\n\np1,x\np0,y\n')
    with pytest.raises(DataError, match=r"items\.csv, line 6: item 'p0' is already in .*items\.csv, line 2\."):
        read_tables(write_table(interactions(), tmp_path / "bought.csv"), items)


def test_bad_item_tables(tmp_path):
    message = (
        r"column 'title' is missing; it has item_id, price\. .*--columns title=NAME; if the items have no titles, add "
        r"an empty column: init then chooses vectors of interactions \(encoder: interactions\)\."
    )
    with pytest.raises(DataError, match=message):
        read(tmp_path, ITEMS.drop(columns="title"))
    with pytest.raises(DataError, match=r"column 'blurb' is missing.*--columns description=NAME"):
        read(tmp_path, columns={"description": "blurb"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("items.csv", b"item_id,title\np0,a\np1,a,b\n", "line 3: 3 cells, expected 2"),
        ("items.parquet", b"no parquet", "cannot be read"),
        ("items.xlsx", b"", r"unknown kind of table '\.xlsx'; known: \.csv, \.tsv, \.jsonl, \.parquet"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_tables(tmp_path / "bought.csv", tmp_path / name)


@pytest.mark.parametrize("cell", [r'"27\" monitor"', r'"27\""', r'"a \"b\", c"', '"x" y', '"a"b"'])
def test_quotes_that_are_not_doubled_are_bad_rows(tmp_path, cell):
    r"""As Spark writes them by default: \" for a quote in a quoted cell."""
    path = tmp_path / "items.csv"
    path.write_text(f"item_id,title\ni0,Tea\ni1,{cell}\ni2,Ink\n")
    with pytest.raises(DataError, match=r"items\.csv, line 3.*write a quote inside a quoted cell twice \(\"\"\)"):
        read_table(path)
    bad = BadRows(2)
    table = read_table(path, bad)
    assert table["item_id"].tolist()[0] == "i0" and len(table) + bad.counts()["bad_rows"] == 3


@pytest.mark.parametrize("suffix", [".csv.gz", ".jsonl", ".jsonl.gz"])
def test_lines_of_packed_tables_and_of_objects_are_counted(tmp_path, suffix):
    bought = interactions()
    bought.loc[20, "item_id"] = "nobody's"
    items, path = write_table(ITEMS, tmp_path / f"items{suffix}"), write_table(bought, tmp_path / f"bought{suffix}")
    line = 21 + (suffix == ".csv.gz")
    for size in (200, 1 << 20):
        with pytest.raises(DataError, match=f"line {line}, column 'item_id': item \"nobody's\" is not in"):
            build(read_tables(path, items, size=size))


def test_packed_tables_that_are_damaged_are_named(tmp_path):
    items = write_table(ITEMS, tmp_path / "items.csv")
    path = write_table(interactions(), tmp_path / "bought.csv.gz")
    whole = path.read_bytes()
    for content in (whole[:-20], whole[:30], whole[:40] + bytes(20) + whole[60:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"bought\.csv\.gz: (damaged gzip data|the gzip data end too soon)"):
            build(read_tables(path, items))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 2: a JSON list, expected an object"),
        ('{"item_id": "a", "item_id": "b"}', "line 2: the key 'item_id' is given twice"),
        (r'{"item_id": "\ud800", "title": "x"}', "line 2: a lone surrogate"),
        ("{", "line 2: Expecting property name"),
    ],
)
def test_lines_that_are_no_objects_are_named(tmp_path, line, message):
    path = write_table(ITEMS, tmp_path / "items.jsonl")
    path.write_text(f'{{"item_id": "first", "title": "x"}}\n{line}\n' + path.read_text())
    with pytest.raises(DataError, match=f"items.jsonl, {message}"):
        read_table(path)
    bad = BadRows(1)
    assert len(read_table(path, bad)) == len(ITEMS) + 1 and bad.counts()["bad_rows"] == 1


def test_an_object_without_keys_is_a_row_without_an_id(tmp_path):
    items, path = write_table(ITEMS, tmp_path / "items.jsonl"), write_table(interactions(), tmp_path / "bought.jsonl")
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(DataError, match=r"bought\.jsonl, line 1"):
        build(read_tables(path, items))
    bad = BadRows(1)
    assert build(read_tables(path, items, bad)).counts["interactions"] == 24 and bad.counts()["bad_rows"] == 1


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_further_columns_of_the_items_are_kept_as_texts(tmp_path, suffix):
    items = ITEMS.assign(price=[0, 1, None, 3, 4, 5], brand=["A", " B ", "", None, "E", "007"], description="x")
    kept = read(tmp_path, items, suffix=suffix).items
    assert list(kept.columns) == ["item_id", "title", "description", "price", "brand"]
    assert kept["brand"].fillna("-").tolist() == ["A", "B", "-", "-", "E", "007"]
    prices = [cell if pd.isna(cell) else float(cell) for cell in kept["price"]]
    assert prices == pytest.approx([0, 1, np.nan, 3, 4, 5], nan_ok=True)


def test_a_further_column_that_cannot_be_kept_is_left_out_with_a_warning(tmp_path, caplog):
    items = ITEMS.assign(parts=[{"a": 1}] * 6, item_id=[f"x{i}" for i in range(6)], code=ITEMS["item_id"])
    bought = interactions().rename(columns={"item_id": "code"})
    kept = read(tmp_path, items, bought, ".jsonl", columns={"item": "code"}).items
    assert list(kept.columns) == ["item_id", "title", "description", "price"]
    assert "column 'parts' is left out of the corpus: {'a': 1}" in caplog.text
    assert "column 'item_id' is left out of the corpus: a column of a corpus cannot have this name" in caplog.text
