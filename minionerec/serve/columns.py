"""What items can be filtered by: the columns of the items' table, and the kind of condition that each takes."""

from typing import Any

import numpy as np

from minionerec.recommend.items import CHOICE, NUMBER, Column, Items

_MOST_CHOICES = 200


def filters(items: Items) -> list[dict[str, Any]]:
    """The columns to filter by.

    Returns:
        For each column its name and kind: a "switch" (true or false), a "number" with the least and the most, or a
        "choice" with its values in order; of more than 200 it shows the first, and says how many `more` there are.
    """
    return [{"column": name, "kind": column.kind, **_range(column)} for name, column in items.columns.items()]


def _range(column: Column) -> dict[str, Any]:
    if column.kind == NUMBER:
        known = column.values[~np.isnan(column.values)]
        return {"least": float(known.min()), "most": float(known.max())} if len(known) else {}
    if column.kind == CHOICE:
        values = column.choices
        return {"values": values[:_MOST_CHOICES], "more": max(len(values) - _MOST_CHOICES, 0)}
    return {}
