"""Data frames of random columns, given to `prepare_data`: titles and kept columns are the texts of their cells."""

import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
from hostile.mutate import LONGEST, attacked, randoms
from hypothesis import given

import minionerec
from minionerec.core.errors import MinioneRecError
from minionerec.data.corpus import Corpus

N_ITEMS, N_ROWS, N_USERS = 8, 24, 5
START, DAY = 1_500_000_000, 86_400

TEXTS = [
    (1, "1"), (2.5, "2.5"), (3.0, "3"), (2**60 + 1, str(2**60 + 1)), (2**70, str(2**70)), (True, "True"), (None, ""),
    (np.nan, ""), (pd.NA, ""), (pd.NaT, ""), ("a b", "a b"), (" a\t", "a"), ("09", "09"), (Decimal("1.50"), "1.50"),
    (b"x", "x"), ([], ""), (["x", None, "y"], "x y"), ((2, "x"), "2 x"), ({"y", "x"}, "x y"), (np.arange(3), "0 1 2"),
    (date(2018, 1, 31), "2018-01-31"), (pd.Timestamp("2018-01-31"), "2018-01-31 00:00:00"), (time(12, 30), "12:30:00"),
    (np.float32(0.5), "0.5"), (np.int8(7), "7"), (float("inf"), "inf"), (Path("a/b"), "a/b"),
    (UUID(int=7), str(UUID(int=7))),
]  # fmt: skip
"""Cells and their texts."""
NO_TEXTS = [1j, "\ud800", {"a": 1}, object(), b"\xff", [1j]]
PANDAS = {
    "Int64": ([2**53 + 1, None, 3], [str(2**53 + 1), "", "3"]),
    "UInt64": ([2**64 - 1, None, 3], [str(2**64 - 1), "", "3"]),
    "int64[pyarrow]": ([2**53 + 1, None, 3], [str(2**53 + 1), "", "3"]),
    "float64": ([0.5, None, 3], ["0.5", "", "3"]),
    "boolean": ([True, None, False], ["True", "", "False"]),
    "string": (["a", None, "1e1"], ["a", "", "1e1"]),
    "category": (["a", None, 7], ["a", "", "7"]),
    "Sparse[float64]": ([0.5, np.nan, 3], ["0.5", "", "3"]),
    "date32[pyarrow]": ([date(2018, 1, 31), None, date(1969, 12, 31)], ["2018-01-31", "", "1969-12-31"]),
    "period[M]": (["2018-01", None, "2018-02"], ["2018-01", "", "2018-02"]),
    "complex128": ([1j, 2j, 3j], None),
}
"""Types of columns of pandas, with cells and their texts; None where they are no texts."""
ARROW = [
    (pa.string_view(), ["a", None, "09"], ["a", "", "09"]),
    (pa.large_string(), ["a", None, "1e1"], ["a", "", "1e1"]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "b"], ["a", "", "b"]),
    (pa.binary(), [b"x", None, b"y"], ["x", "", "y"]),
    (pa.binary(), [b"\xff", b"\xfe", b"\xfd"], None),
    (pa.uint64(), [2**64 - 1, None, 3], [str(2**64 - 1), "", "3"]),
    (pa.float32(), [0.5, None, 3.0], ["0.5", "", "3"]),
    (pa.bool_(), [True, None, False], ["True", "", "False"]),
    (pa.decimal128(5, 2), [Decimal("1.50"), None, Decimal("3.00")], ["1.50", "", "3"]),
    (pa.date32(), [date(2018, 1, 31), None, date(1969, 12, 31)], ["2018-01-31", "", "1969-12-31"]),
    (pa.time32("s"), [time(12, 30), None, time(0)], ["12:30:00", "", "00:00:00"]),
    (pa.timestamp("s", "UTC"), [datetime(2018, 1, 31, tzinfo=UTC)] * 3, ["2018-01-31 00:00:00+00:00"] * 3),
    (pa.list_(pa.string()), [["x", None, "y"], None, []], ["x y", "", ""]),
    (pa.list_view(pa.int64()), [[1, 2], None, []], ["1 2", "", ""]),
    (pa.null(), [None] * 3, [""] * 3),
    (pa.struct({"a": pa.int64()}), [{"a": 1}] * 3, None),
    (pa.month_day_nano_interval(), [(1, 2, 3)] * 3, ["1 2 3"] * 3),
]
"""Types of columns of arrow, with cells and their texts; None where they are no texts."""


@dataclass(frozen=True)
class Stream:
    """A data frame with no interface but arrow's stream, as of polars and DuckDB."""

    table: pa.Table

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(schema)


def arrow_column(rng: Random) -> tuple[pa.Array, list[str] | None]:
    """A column of a random type of arrow, and the texts of its cells; None where they are no texts."""
    kind, cells, texts = rng.choice(ARROW)
    rows = [rng.randrange(3) for _ in range(N_ITEMS)]
    return pa.array([cells[row] for row in rows], kind), texts and [texts[row] for row in rows]


def pandas_column(rng: Random) -> tuple[pd.Series, list[str] | None]:
    """A column of a random type of pandas or of random cells, and the texts of its cells; None where one is no text."""
    kind = rng.choice(["mixed", "mixed", "wrong", *PANDAS])
    if kind in PANDAS:
        cells, texts = PANDAS[kind]
        rows = [rng.randrange(3) for _ in range(N_ITEMS)]
        column = pd.Series([cells[row] for row in rows], dtype=object).astype(kind)
        return column, texts and [texts[row] for row in rows]
    chosen = rng.sample(TEXTS, rng.randint(1, 4))
    pairs = [rng.choice(chosen) for _ in range(N_ITEMS)]
    cells = [cell for cell, _ in pairs]
    if kind == "wrong":
        cells[rng.randrange(N_ITEMS)] = rng.choice(NO_TEXTS)
    return pd.Series(cells, dtype=object), None if kind == "wrong" else [text for _, text in pairs]


def random_frame(rng: Random, ids: list[Any], names: list[Any]) -> tuple[Any, list[tuple[Any, list[str] | None]]]:
    """A data frame of pandas or arrow whose first column is given, and the names and texts of its other columns."""
    if rng.random() < 0.4:
        names = [name for name in names if isinstance(name, str) and name != "\ud800"]
        columns = [arrow_column(rng) for _ in names]
        first = pa.array(ids if len(set(map(type, ids))) == 1 else list(map(str, ids)))
        table = pa.table([first, *(column for column, _ in columns)], names=["item_id", *names])
        frame = rng.choice((table, Stream(table)))
    else:
        columns = [pandas_column(rng) for _ in names]
        frame = pd.concat([pd.Series(ids, dtype=object), *(column for column, _ in columns)], axis=1)
        frame.columns = pd.Index(["item_id", *names], dtype=object, tupleize_cols=False)
        frame = frame.set_index("item_id") if rng.random() < 0.2 else frame
    return frame, [(name, texts) for name, (_, texts) in zip(names, columns, strict=True)]


def interactions_of(rng: Random, ids: list[Any]) -> pd.DataFrame:
    """Interactions with times of a random type, and perhaps columns that are not read."""
    rows = [(n % N_USERS, ids[n * 3 % N_ITEMS], START + DAY * n) for n in range(N_ROWS)]
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp"])
    kind = rng.choice(["int64[pyarrow]", "date32[pyarrow]", "object", "Int64"])
    if kind in ("date32[pyarrow]", "object"):
        frame["timestamp"] = pd.to_datetime(frame["timestamp"], unit="s").dt.date
    frame["timestamp"] = frame["timestamp"].astype(kind)
    unread = rng.choice(([], [], ["other"], ["other", "other"], [7, "\ud800"]))
    columns = [pd.concat([pandas_column(rng)[0]] * 3, ignore_index=True) for _ in unread]
    names = [*frame.columns, *unread]
    return pd.concat([frame, *columns], axis=1).set_axis(pd.Index(names, dtype=object), axis=1)


@attacked
@given(randoms)
def test_columns_are_the_texts_of_their_cells_or_named_in_one_line(rng):
    ids: list[Any] = [f"i{n}" for n in range(N_ITEMS)] if rng.random() < 0.5 else list(range(N_ITEMS))
    if rng.random() < 0.3:
        ids[0] = "first"
    odd = rng.choice(([], [], ["kept"], ["title"], ["other", "other"], [7, None], ["", "\ud800"], [("a", "b"), "é"]))
    items, columns = random_frame(rng, ids, ["title", rng.choice(("kept", "kept", "description")), *odd])
    counts = Counter(str(name) for name, _ in columns)
    unusable = {str(name) for name, texts in columns if texts is None or counts[str(name)] > 1}
    wrong = unusable & {"title", "description"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            prepared = minionerec.prepare_data(
                items, interactions_of(rng, ids), output=f"{folder}/corpus", split="leave_last_out"
            )
        except MinioneRecError as error:
            message = str(error)
            assert any(repr(name) in message for name in wrong)
            assert "\n" not in message and len(message) <= LONGEST
            return
        corpus = Corpus.load(prepared.output)
    assert not wrong
    assert corpus.items["item_id"].tolist() == list(map(str, ids))
    assert corpus.counts["interactions"] == N_ROWS
    for name, texts in columns:
        if name in ("title", "description") or (name == "kept" and name not in unusable):
            assert corpus.items[name].fillna("").tolist() == texts
        elif name == "kept":
            assert name not in corpus.items
