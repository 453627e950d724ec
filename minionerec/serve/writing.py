"""Answers as JSON: lists, items and filters."""

import json
import math
from collections.abc import Sequence
from typing import Any

from minionerec.recommend.items import CHOICE, NUMBER, CatalogueItems, Column
from minionerec.recommend.requests import Answer

_MAX_CHOICES = 200


def to_json(value: Any) -> bytes:
    """JSON in ASCII, without NaN or infinity."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def number(value: float | None) -> float | None:
    """A number, or null if not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def answered(answer: Answer) -> dict[str, Any]:
    """The answer to one request."""
    items = [
        {**item._asdict(), "score": number(item.score), "probability": number(item.probability)}
        for item in answer.items
    ]
    return {"items": items, "unknown": list(answer.unknown), "context": dict(answer.context)}


def described(items: CatalogueItems, indices: Sequence[int]) -> list[dict[str, Any]]:
    """Items with their columns."""
    return [
        {
            "item_id": items.ids[index],
            "title": items.titles[index],
            "columns": {name: finite(column.at(index)) for name, column in items.columns.items()},
        }
        for index in indices
    ]


def finite(value: Any) -> Any:
    """A tree of plain values, with null for numbers that are not finite."""
    if isinstance(value, dict):
        return {str(name): finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | bool | int | float) else finite(_plain(value))


def _plain(value: Any) -> Any:
    """A numpy scalar as a Python value; anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def filters(items: CatalogueItems) -> list[dict[str, Any]]:
    """The columns for filters.

    Returns:
        Name and kind of each column: a "switch" (true or false), a "number" with its range, or a "choice" with at most
        200 values in order, and the number of the others as `more`.
    """
    return [{"column": name, "kind": column.kind, **_range(column)} for name, column in items.columns.items()]


def _range(column: Column) -> dict[str, Any]:
    if column.kind == NUMBER:
        known = column.values[column.known]
        return {"least": known.min().item(), "most": known.max().item()} if len(known) else {}
    if column.kind == CHOICE:
        values = column.choices
        return {"values": values[:_MAX_CHOICES], "more": max(len(values) - _MAX_CHOICES, 0)}
    return {}
