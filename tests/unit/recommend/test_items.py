"""Items as their owner knows them: columns and their kinds, conditions, search."""

import io

import numpy as np
import pandas as pd
import pytest

import minionerec
from minionerec.data.corpus import Corpus
from minionerec.recommend.items import CHOICE, NUMBER, SWITCH, CatalogueItems, Column
from minionerec.recommend.requests import RequestError

TABLE = """item_id,title,department,price,in_stock,code
a,Green tea,Tea,3.5,true,007
b,Ink pot,Ink,,false,8x
c,"Tea pot, green",,,,
d,Pen,Tea,12,TRUE,
"""


def of_frame(frame, folder):
    """The items of a corpus that is prepared from a data frame."""
    interactions = pd.DataFrame({"user_id": ["u"] * 4, "item_id": frame["item_id"]})
    split = {"split": "leave_last_out", "columns": {"time": None}}
    prepared = minionerec.prepare_data(frame, interactions, output=folder / "corpus", **split)
    return CatalogueItems.of(Corpus.load(prepared.output))


@pytest.fixture
def items(tmp_path):
    return of_frame(pd.read_csv(io.StringIO(TABLE), dtype="str"), tmp_path)


def test_columns_are_what_all_their_cells_are(items, tmp_path):
    assert {name: column.kind for name, column in items.columns.items()} == {
        "department": CHOICE, "price": NUMBER, "in_stock": SWITCH, "code": CHOICE,
    }  # fmt: skip
    assert [items.columns["price"].at(item) for item in range(4)] == [3.5, None, None, 12.0]
    assert [items.columns["in_stock"].at(item) for item in range(4)] == [True, False, None, True]
    assert items.columns["department"].choices == ["Ink", "Tea"]
    columns = {"price": [1, 2, None, 4], "on": [True, False, True, None]}
    read = of_frame(pd.DataFrame({"item_id": list("abcd"), "title": list("ABCD"), **columns}), tmp_path / "frame")
    assert read.columns["price"].kind == NUMBER and read.columns["on"].kind == SWITCH
    assert read.mask({"price": {"at_least": 2}, "on": False}).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("where", "met"),
    [
        ({}, "abcd"),
        ({"department": "Tea"}, "ad"),
        ({"department": ["Ink", "Tea"]}, "abd"),
        ({"department": []}, ""),
        ({"price": {"at_most": 3.5}}, "a"),
        ({"price": {"at_least": 3.5, "at_most": 20}}, "ad"),
        ({"price": 12}, "d"),
        ({"in_stock": True}, "ad"),
        ({"in_stock": [False, True]}, "abd"),
        ({"department": "Tea", "price": {"at_least": 4}}, "d"),
        ({"code": "007"}, "a"),
    ],
)
def test_conditions(items, where, met):
    assert [items.ids[item] for item in np.flatnonzero(items.mask(where))] == list(met)


@pytest.mark.parametrize(
    ("where", "field", "message"),
    [
        (
            {"colour": "red"},
            "where.colour",
            "is not a column of the items; columns: department, price, in_stock, code",
        ),
        ({"department": 3}, "where.department", "is 3; expected a text, or a list of them"),
        ({"department": ["Tea", None]}, "where.department[1]", "is None; expected a text"),
        ({"department": {"at_least": 1}}, "where.department", "has bounds, but the column is not numeric"),
        ({"price": "cheap"}, "where.price", "is 'cheap'; expected a number"),
        ({"price": True}, "where.price", "is True; expected a number"),
        ({"price": {"below": 3}}, "where.price.below", "is unknown; expected at_least or at_most"),
        ({"price": {"at_least": float("nan")}}, "where.price.at_least", "is nan; expected a number"),
        ({"price": {"at_most": 10**400}}, "where.price.at_most", "expected a number"),
        ({"price": {}}, "where.price", "is empty; expected at_least, at_most or both"),
        ({"in_stock": "yes"}, "where.in_stock", "is 'yes'; expected true or false"),
    ],
)
def test_conditions_that_do_not_fit_name_their_field(items, where, field, message):
    with pytest.raises(RequestError, match=message) as caught:
        items.mask(where)
    assert caught.value.field == field and str(caught.value) == f"{field}: {caught.value.message}"


def test_search_finds_beginnings_of_words_whole_ones_first(items):
    assert items.search("tea") == [0, 2]
    assert items.search("po te") == [2]
    assert items.search("GREEN, pot") == [2]
    assert items.search("d") == [3]  # an id
    assert items.search("tea", limit=1) == [0] and items.search("d", limit=0) == []
    assert items.search("xyz") == [] and items.search("  ") == []


@pytest.mark.parametrize(
    ("titles", "query", "found"),
    [
        (["红色连衣裙夏季", "夏季连衣裙", "蓝色连衣裙夏季长款", "不锈钢炒锅"], "连衣裙夏季", [0, 2, 1]),
        (["iPhone手机壳", "手机壳 iPhone 15", "充电器"], "手机 iph", [0, 1]),
        (["フライパン 26cm", "鍋 26cm"], "パン", [0]),
        (["น้ำหอม", "น้ำปลา"], "หอม", [0]),
        (["हिन्दी किताब", "हरा दीपक"], "हिन्दी", [0]),
    ],
    ids=["Chinese", "two scripts", "Japanese", "Thai", "Hindi"],
)
def test_search_in_languages_without_spaces_and_with_vowel_signs(titles, query, found):
    assert CatalogueItems([f"i{item}" for item in range(len(titles))], titles, {}).search(query) == found


def test_a_text_that_ends_in_nul_is_found():
    column = Column.of(pd.Series(["a", "a\x00", "\x00", None]))
    assert [column.holds(text, "note").tolist() for text in ("a", "a\x00", ["\x00"])] == [
        [True, False, False, False],
        [False, True, False, False],
        [False, False, True, False],
    ]


LARGE = 2**53


@pytest.mark.parametrize(
    ("cells", "kind", "where", "met"),
    [
        ([LARGE, LARGE + 1, LARGE + 2, None], np.int64, LARGE + 1, [1]),
        ([str(LARGE), str(LARGE + 1), "7", ""], np.int64, LARGE + 1, [1]),
        ([str(LARGE), str(LARGE + 1), "7", ""], np.int64, {"at_least": LARGE + 0.0}, [0, 1]),
        ([LARGE, LARGE + 1, LARGE + 2, None], np.int64, {"at_least": LARGE + 1, "at_most": 2**70}, [1, 2]),
        ([LARGE, LARGE + 1, LARGE + 2, None], np.int64, {"at_most": LARGE + 1}, [0, 1]),
        ([LARGE, LARGE + 1, LARGE + 2, None], np.int64, [7.5, np.int64(LARGE + 2), 2**70], [2]),
        ([-(2**63) + 1, 2**63 - 1, 0, None], np.int64, {"at_least": -(2**63), "at_most": -1}, [0]),
        ([float(LARGE), 2.0**60, 0.5, None], np.float64, LARGE + 1, []),
        ([float(LARGE), 2.0**60, 0.5, None], np.float64, {"at_most": LARGE + 1}, [0, 2]),
        ([float(LARGE), 2.0**60, 0.5, None], np.float64, {"at_least": LARGE + 1}, [1]),
        ([LARGE + 1, 0.5, 1, None], object, str(LARGE + 1), [0]),
        ([2**63, 2**63 + 1, 1, None], object, str(2**63 + 1), [1]),
        (["09", "9", "10", "1e1"], object, "9", [1]),
        (["1.5", "3", "1e-05", ".5"], np.float64, {"at_most": 1}, [2, 3]),
        ([["a", "b"], "c", [], None], object, "a b", [0]),
    ],
)
def test_numbers_are_compared_exactly_and_codes_are_texts(cells, kind, where, met):
    column = Column.of(pd.Series(cells, dtype=object))
    assert column.values.dtype == kind and np.flatnonzero(column.holds(where, "where.seller")).tolist() == met
    shown = [column.at(item) for item in range(4)]
    assert [value is None for value in shown] == [cell in (None, "") or cell == [] for cell in cells]
    if kind is np.int64:
        assert [value for value in shown if value is not None] == [
            int(cell) for cell in cells if cell not in (None, "")
        ]


def test_a_frame_of_large_numbers_is_filtered_exactly(tmp_path):
    seller = pd.array([LARGE, LARGE + 1, None, LARGE + 2], "Int64")
    items = of_frame(pd.DataFrame({"item_id": list("abcd"), "title": list("ABCD"), "seller": seller}), tmp_path)
    assert items.mask({"seller": LARGE + 1}).tolist() == [False, True, False, False]
