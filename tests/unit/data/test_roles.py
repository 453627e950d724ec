"""Roles of columns, inferred from their texts."""

import pandas as pd
import pytest

from minionerec.data.roles import column_role, column_roles


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
    assert column_roles(table, ("item_id",)) == {"brand": "ignore", "size": "number"}
