"""Cells as texts and numbers, whatever table or frame holds them; data frames as arrow tables."""

import datetime
import decimal
import io
import uuid

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minionerec.core.cells import arrow_table, frame_of, number_of, text_of, texts_of
from minionerec.core.errors import DataError


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("a", "a"), (b"\xc3\xa4", "ä"), (None, ""), (np.nan, ""), (pd.NA, ""), (pd.NaT, ""), (np.datetime64("NaT"), ""),
        (7, "7"), (np.int8(7), "7"), (np.uint64(2**64 - 1), str(2**64 - 1)), (2**70, str(2**70)), (2.0, "2"),
        (2.5, "2.5"), (np.float32(9.99), "9.99"), (-0.0, "0"), (np.float64(2.0), "2"), (True, "True"),
        (np.bool_(False), "False"), (decimal.Decimal("5.00"), "5"), (decimal.Decimal("1E+2"), "100"),
        (decimal.Decimal("1.50"), "1.50"), (datetime.date(2018, 11, 5), "2018-11-05"),
        (pd.Timestamp("2018-11-05 12:30"), "2018-11-05 12:30:00"), (pd.Period("2018-11", "M"), "2018-11"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"), (["A text.", None, "More."], "A text. More."),
        ([], ""), (np.array(["a", "b"], dtype=object), "a b"), ([["a"], ["b", ""]], "a b"), ({"b", "a"}, "a b"),
        ([1, 2.0], "1 2"),
    ],
)  # fmt: skip
def test_a_cell_has_one_text_however_it_is_held(cell, text):
    assert text_of(cell) == text
    texts, wrong = texts_of(pd.Series([cell, "other"], dtype=object))
    assert texts.tolist() == [text, "other"] and not wrong.any()


@pytest.mark.parametrize("cell", ["\ud800", b"\xff", 1j, np.complex64(1), {"a": 1}, object(), ["a", {}]])
def test_what_is_no_text_is_refused(cell):
    with pytest.raises(ValueError):
        text_of(cell)
    texts, wrong = texts_of(pd.Series(["a", cell], dtype=object))
    assert texts.tolist() == ["a", ""] and wrong.tolist() == [False, True]


def test_a_list_that_holds_itself_is_refused():
    loop = ["a"]
    loop.append(loop)
    with pytest.raises(ValueError):
        text_of(loop)


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("9.50", 9.5), (" 12 ", 12), (".5", 0.5), ("-3", -3), ("0", 0), ("0.09", 0.09), ("1e-05", 1e-05),
        ("1.5e+16", 1.5e16), (str(2**53 + 1), 2**53 + 1), (np.int64(2**53 + 1), 2**53 + 1), (np.float32(0.5), 0.5),
        (decimal.Decimal("7"), 7), (decimal.Decimal("7.5"), 7.5),
        *((text, None) for text in ("09", "007", "1e1", "1E5", "+5", "5.", "-", "", ".", "e+05", "1_000", "٣", "nan")),
        *((cell, None) for cell in ("inf", "1e+400", np.inf, True, None, 1j, "0x1", "1,5", "9" * 5_000)),
    ],
)  # fmt: skip
def test_texts_that_are_not_how_a_number_is_written_are_none(cell, number):
    assert number_of(cell) == number and type(number_of(cell)) is type(number)


def read_back(table):
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return frame_of(pq.read_table(buffer))


DAY, MORNING = datetime.date(2018, 1, 31), datetime.datetime(2018, 1, 31, 5)
COLUMNS = {
    "mixed": ([9.99, None, "from 12.99"], ["9.99", "", "from 12.99"]),
    "numbers and truth values": ([0.5, True, None], ["0.5", "True", ""]),
    "numbers and UUIDs": ([7, uuid.UUID(int=5), None], ["7", str(uuid.UUID(int=5)), ""]),
    "times with and without a zone": (
        [MORNING, MORNING.replace(tzinfo=datetime.UTC), None],
        ["2018-01-31 05:00:00", "2018-01-31 05:00:00+00:00", ""],
    ),
    "ids": ([1, "i2", 3.0], ["1", "i2", "3"]),
    "large": ([2**70, 1, None], [str(2**70), "1", ""]),
    "lists": ([["a", "b"], [], None], ["a b", "", ""]),
    "lists and texts": ([["a", "b"], "c", None], ["a b", "c", ""]),
    "nullable": (pd.array([2**53 + 1, None, 3], "Int64"), [str(2**53 + 1), "", "3"]),
    "arrow": (pd.array([2**53 + 1, None, 3], "int64[pyarrow]"), [str(2**53 + 1), "", "3"]),
    "unsigned": (pd.array([2**64 - 1, None, 3], "UInt64"), [str(2**64 - 1), "", "3"]),
    "dates": (pd.array([DAY] * 3, "date32[pyarrow]"), ["2018-01-31"] * 3),
    "texts": (pd.array(["a", None, "c"], "string"), ["a", "", "c"]),
    "large texts": (pd.array(["a", None, "c"], pd.ArrowDtype(pa.large_string())), ["a", "", "c"]),
    "categories": (pd.Categorical(["a", "b", None]), ["a", "b", ""]),
    "mixed categories": (pd.Categorical([1, "b", None], categories=[1, "b"]), ["1", "b", ""]),
    "sparse": (pd.arrays.SparseArray([0, 1, 0]), ["0", "1", "0"]),
    "sparse gaps": (pd.arrays.SparseArray([np.nan, 1.5, np.nan]), ["", "1.5", ""]),
    "periods": (pd.period_range("2018-01", periods=3, freq="M"), ["2018-01", "2018-02", "2018-03"]),
    "truths": (pd.array([True, None, False], "boolean"), ["True", "", "False"]),
    "dates and numbers": ([DAY, 7, None, 2.5], ["2018-01-31", "7", "", "2.5"]),
    "dates and times of day": ([DAY, MORNING, None], ["2018-01-31", "2018-01-31 05:00:00", ""]),
    "times and numbers": ([MORNING, 7, None], ["2018-01-31 05:00:00", "7", ""]),
    "decimals": ([decimal.Decimal("1.50"), None, decimal.Decimal("2.00")], ["1.50", "", "2"]),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("beside", [False, True])
def test_a_column_of_any_kind_survives_as_the_texts_of_its_cells(name, beside):
    cells, texts = COLUMNS[name]
    frame = pd.DataFrame({name: pd.Series(cells) if not isinstance(cells, list) else pd.Series(cells, dtype=object)})
    if beside:
        frame["other"] = pd.Series([1, "a", None], dtype=object)
    found, wrong = texts_of(read_back(arrow_table("items", frame))[name])
    assert found.tolist() == texts and not wrong.any()


def frame(names=("item_id", "n"), **more):
    found = pd.DataFrame([[1, 1], ["b", 2]])
    found.columns = pd.Index(names, dtype=object)
    return found.assign(**{name: pd.Series(cells, dtype=object) for name, cells in more.items()})


@pytest.mark.parametrize(
    ("frame", "column", "message"),
    [
        (frame().assign(z=[1j, 2j]), "z", "items, column 'z', row 1: 1j is no text"),
        (frame(z=["a", "\ud800"]), "z", "items, column 'z', row 2: '.ud800' is no text"),
        (frame(z=[1, {"a": 1j}]), "z", "items, column 'z', row 2: {'a': 1j} is no text"),
        (pd.concat([frame(), frame()["n"]], axis=1), "n", "items: column 'n' occurs twice"),
        (frame(("item_id", "\ud800")), "\ud800", "has a name that is not UTF-8"),
    ],
)
def test_a_column_that_cannot_be_written_matters_where_it_is_read(frame, column, message):
    for wanted in (None, ["item_id", column]):
        with pytest.raises(DataError, match=message):
            arrow_table("items", frame, wanted)
    found = read_back(arrow_table("items", frame, ["item_id"]))
    assert column not in found.columns and found["item_id"].tolist() == ["1", "b"]


def test_a_named_index_is_a_column_and_names_that_are_no_texts_are_made_texts():
    frame = pd.DataFrame({"title": ["A", "B"], 7: [1, 2]}, index=pd.Index(["a", "b"], name="item_id"))
    found = read_back(arrow_table("items", frame)).to_dict("list")
    assert found == {"item_id": ["a", "b"], "title": ["A", "B"], "7": [1, 2]}


class Foreign:
    """A frame of another library: arrow's interface and nothing else."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "made", [lambda table: table, lambda table: duckdb.from_arrow(table), Foreign, lambda table: table.to_reader()]
)
def test_frames_of_other_libraries_are_read_by_arrows_interface(made):
    table = pa.table(
        {
            "item_id": pa.array([2**53 + 1, None]),
            "title": pa.array(["a", None]).dictionary_encode(),
            "view": pa.array(["a", "b"], pa.string_view()),
            "views": pa.DictionaryArray.from_arrays([0, 0], pa.array(["a"], pa.string_view())),
            "day": pa.array([DAY] * 2),
        }
    )
    found = read_back(arrow_table("items", made(table)))
    texts = {name: texts_of(found[name])[0].tolist() for name in found}
    assert texts == {
        "item_id": [str(2**53 + 1), ""], "title": ["a", ""], "view": ["a", "b"], "views": ["a", "a"],
        "day": ["2018-01-31"] * 2,
    }  # fmt: skip


def test_arrow_tables_are_checked_as_frames_are():
    table = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4]), pa.array(["a", "b"])], ["n", "n", "item_id"])
    with pytest.raises(DataError, match="items: column 'n' occurs twice"):
        arrow_table("items", table)
    assert arrow_table("items", table, ["item_id"]).column_names == ["item_id"]
