"""Roles of columns, inferred from their texts, and the codes that models read."""

import json

import numpy as np
import pandas as pd
import pytest

from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.roles import MOST_VALUES, ColumnCode, column_role, column_roles, encode_columns, fit_columns


@pytest.mark.parametrize(
    ("texts", "role"),
    [
        (["Acme", "Bolt", "Acme", "Bolt"], "category"),
        (["Acme", "Bolt", "Coil", "Dart", None], "text"),
        (["1", "2.5", "1e3", "-4"], "number"),
        (["1", "2", "2", "n/a"], "text"),
        (["2024-01-05", "2024-02-01T10:00:00Z", "2023-12", "2020-07-01"], "time"),
        (["red|blue", "blue|green", "green|red", "red|green"], "tags"),
        (["red; blue", "blue; green", "green; red", "blue; red"], "tags"),
        (["a, b", "c, d", "e, f", "g, h"], "text"),
        (["red|blue", "blue", "red", "red|blue", "red", "green|blue", "green", "blue"], "tags"),
        (["home, garden", "home, garden", "toys", "toys", "toys", "home, garden"], "category"),
        (["one", "one", "one", "one"], "ignore"),
        (["one", "one", "one", None], "category"),
        ([None, "", None, ""], "ignore"),
        ([], "ignore"),
    ],
)
def test_roles(texts, role):
    assert column_role(pd.Series(texts, dtype="str")) == role


def test_known_columns_have_none():
    table = pd.DataFrame({"item_id": ["a", "b"], "brand": ["x", "x"], "size": ["1", "2"]})
    assert column_roles(table) == {"brand": "ignore", "size": "number"}
    assert column_roles(table, {"size": "category"}) == {"brand": "ignore", "size": "category"}
    with pytest.raises(ConfigError, match=r"roles names 'colour', which the items do not have; .*: brand, size"):
        column_roles(table, {"colour": "category"})


def fitted(role, texts, name="c"):
    code = ColumnCode.fit(name, role, pd.Series(texts, dtype="str"))
    assert ColumnCode.read(json.loads(json.dumps(code.stored())), "x") == code
    return code


def encoded(code, texts):
    codes = code.encode(pd.Series(texts, dtype=object))
    assert codes.dtype == np.float32 and codes.shape == (len(texts), code.width) and np.isfinite(codes).all()
    return codes


def test_categories_have_codes_by_frequency_and_rare_and_missing_ones_codes_of_their_own():
    code = fitted("category", ["b", "b", "a", "a", "a", "once", None, ""])
    assert code.values == ("a", "b") and code.other and code.missing
    wanted = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
    assert encoded(code, ["a", "b", "once", "never met", None, ""]).tolist() == wanted
    full = fitted("category", ["a", "a"])
    assert encoded(full, ["a", "never met", None]).tolist() == [[1], [0], [0]]


def test_tags_share_a_length_of_one():
    code = fitted("tags", ["x|y", "y; z", "z , x", "x"])
    assert code.values == ("x", "y", "z")
    codes = encoded(code, ["x", "y|x", "x|y|z", "x|x", "|", None])
    assert codes[:3] == pytest.approx(np.array([[1, 0, 0], [0.5**0.5] * 2 + [0], [3**-0.5] * 3]))
    assert codes[3:].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_numbers_have_buckets_and_a_standardised_value():
    code = fitted("number", [str(number) for number in range(80)])
    codes = encoded(code, ["0", "39.5", "79", "1e300", "-1e300"])
    assert codes[:, 0] == pytest.approx([-39.5 / code.scale, 0, 39.5 / code.scale, 3, -3])
    assert codes[:, 1:].argmax(1).tolist() == [0, 4, 7, 7, 0] and (codes[:, 1:].sum(1) == 1).all()
    assert np.bincount(encoded(code, [str(number) for number in range(80)])[:, 1:].argmax(1)).tolist() == [10] * 8


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "n/a", "", None, "1,5"])
def test_what_is_no_number_is_missing(bad):
    code = fitted("number", ["1", "2", "3", "4", bad])
    assert code.missing and encoded(code, [bad])[0].tolist() == [0] * (code.width - 1) + [1]
    assert not encoded(fitted("number", ["1", "2", "3", "4"]), [bad]).any()


def test_times_are_seconds():
    code = fitted("time", ["2024-01-01", "2024-01-03", "2024-01-05T12:00:00+02:00", "soon"])
    assert code.mean == pytest.approx((1704067200 + 1704240000 + 1704448800) / 3)
    assert encoded(code, ["2024-01-01"])[0, 1] == 1 and encoded(code, ["1704067200"])[0, -1] == 1


@pytest.mark.parametrize("role", ["category", "tags", "number", "time"])
@pytest.mark.parametrize("texts", [[], [None, None], ["", None], ["same", "same"], ["<a_1>", "<a_1>", "<b_2>"]])
def test_columns_that_tell_nothing_break_nothing(role, texts):
    code = fitted(role, texts)
    encoded(code, [*texts, "else", None])


def test_a_million_categories_keep_the_most_frequent():
    texts = pd.Series(np.arange(1_000_000).astype(str))
    texts[:600] = (np.arange(600) % 300).astype(str)  # 300 values twice, and some that are there once more
    code = ColumnCode.fit("c", "category", texts)
    assert len(code.values) == MOST_VALUES and code.other and code.width == MOST_VALUES + 1
    assert encoded(code, ["999999", code.values[0]]).argmax(1).tolist() == [MOST_VALUES, 0]


def test_several_columns_stand_side_by_side_and_one_that_is_gone_is_missing():
    items = pd.DataFrame({"item_id": list("abcd"), "brand": ["x", "x", "y", None], "price": ["1", "2", "3", "4"]})
    trained = np.array([True, True, False, True])
    columns = fit_columns(items, {"brand": "category", "price": "number"}, ["price", "brand"], trained)
    assert columns[1].values == ("x",) and columns[0].mean == pytest.approx(7 / 3)
    codes = encode_columns(items, columns)
    assert codes.shape == (4, columns[0].width + columns[1].width)
    assert codes[:, columns[0].width :].tolist() == [[1, 0], [1, 0], [0, 0], [0, 1]]
    assert encode_columns(items[["item_id", "price"]], columns)[:, -1].tolist() == [1] * 4
    assert encode_columns(items, []).shape == (4, 0)
    untrained = fit_columns(items, {"brand": "category"}, ["brand"], np.zeros(4, dtype=bool))
    assert untrained[0].values == ("x",) and untrained[0].other


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["colour"], "item_columns names 'colour', which the corpus does not have; its further columns: brand, note"),
        (["note"], r"item_columns names 'note', whose role is 'text'; .*--roles note=category"),
    ],
)
def test_columns_without_codes_are_refused(names, message):
    items = pd.DataFrame({"item_id": ["a"], "brand": ["x"], "note": ["y"]})
    with pytest.raises(ConfigError, match=message):
        fit_columns(items, {"brand": "category", "note": "text"}, names, np.ones(1, dtype=bool))


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "text"},
        {"values": [1]},
        {"edges": [float("nan")]},
        {"scale": 0.0},
        {"more": 1},
        {"edges": None},
        {"mean": "x"},
    ],
)
def test_a_damaged_description_is_refused(changes):
    stored = {**ColumnCode("brand", "category", ("x",)).stored(), **changes}
    with pytest.raises(ArtefactError, match=r"config\.json: .* describes no column of items"):
        ColumnCode.read(stored, "config.json")
