"""Reader of any two tables: items and interactions, each csv, tsv or parquet."""

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import get_logger
from minionerec.data.checks import check_filled, check_global_time, check_histories, check_leave_last_out, corpus_counts
from minionerec.data.corpus import SPLITS, Corpus
from minionerec.data.splits import SPLIT_NAMES, build_rows, global_time_split, leave_last_out_split, row_table

log = get_logger(__name__)
SEPARATORS = {".csv": ",", ".tsv": "\t"}
DESCRIPTION = "description"


def _place(path: Path, row: int) -> str:
    """Where a person finds row `row` (from 0): the line of a text file as an editor counts, else the row from 1."""
    separator = SEPARATORS.get(path.suffix.lower())
    if separator is None:
        return f"{path}, row {row + 1}"
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=separator)
        end, record = 0, -1  # the header is record -1 once read
        for cells in reader:
            line, end = end + 1, reader.line_num
            if not cells:
                continue
            if record == row:
                return f"{path}, line {line}"
            record += 1
    return f"{path}, row {row + 1}"


def _read_table(path: Path) -> pd.DataFrame:
    """One table; every cell of a text file as the text it is."""
    if not path.is_file():
        raise DataError(f"{path}: no such file. Give the path of a csv, tsv or parquet table.")
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            return pd.read_parquet(path)
        if suffix not in SEPARATORS:
            raise DataError(
                f"{path}: unknown kind of table {suffix!r}; known: .csv, .tsv, .parquet. Convert or rename it."
            )
        table = pd.read_csv(path, sep=SEPARATORS[suffix], dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}). Save it as UTF-8.") from None
    except (OSError, ValueError) as error:  # pandas' and pyarrow's parsing errors are ValueErrors
        raise DataError(
            f"{path}: cannot be read ({' '.join(str(error).split())}). Check its commas and quotes."
        ) from None
    if not isinstance(table.index, pd.RangeIndex):
        raise DataError(f"{path}: the rows have more cells than the header. Check the header and the commas.")
    return table


def _column(table: pd.DataFrame, path: Path, name: str, flag: str) -> pd.Series:
    if name not in table.columns:
        columns = ", ".join(str(column) for column in table.columns)
        raise DataError(f"{path}: column {name!r} is missing; it has {columns}. Name the right one with --{flag}.")
    column: pd.Series = table[name]
    return column


def _ids(column: pd.Series, path: Path) -> np.ndarray:
    """Ids as text, (rows,) of str; whole numbers as their digits."""
    missing = column.isna().to_numpy()
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise DataError(f"{_place(path, row)}, column {column.name!r}: the id is missing. Fill it in or drop the row.")
    if pd.api.types.is_float_dtype(column.dtype) and (column == column.round()).all():
        column = column.astype("int64")
    ids = column.astype(str).to_numpy(dtype=object)
    empty = np.flatnonzero(ids == "")
    if len(empty):
        place = _place(path, int(empty[0]))
        raise DataError(f"{place}, column {column.name!r}: the id is empty. Fill it in or drop the row.")
    return ids


def _texts(column: pd.Series) -> pd.Series:
    """Texts with "" for what is missing, without white space around them."""
    return column.astype(object).where(column.notna(), "").astype(str).str.strip()


def parse_times(column: pd.Series, path: Path) -> np.ndarray:
    """Times that can be compared: numbers as they are, dates as nanoseconds since 1970 (UTC).

    The first row decides: a number there asks for numbers everywhere, anything else for ISO dates
    (2018-11-05, 2018-11-05T12:30:00Z); without a zone they are taken as UTC.

    Args:
        column: Numbers, dates, or text of either.
        path: The file, for messages.

    Returns:
        int64 or float64 (rows,), in one unit.

    Raises:
        DataError: Naming the first row that is neither a finite number nor an ISO date.
    """
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        bad, times = column.isna().to_numpy(), column.to_numpy(dtype="datetime64[ns]").astype(np.int64)
        expected = "a date"
    elif pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        if pd.api.types.is_integer_dtype(column.dtype) and not column.hasnans:
            times = column.to_numpy(dtype=np.int64)
        else:
            times = column.to_numpy(dtype=np.float64, na_value=np.nan)
        bad, expected = ~np.isfinite(times), "a finite number"
    else:
        text = _texts(column)
        numbers = pd.to_numeric(text, errors="coerce").to_numpy()
        if len(text) and np.isfinite(numbers[0]):
            times, bad, expected = numbers, ~np.isfinite(numbers), "a number, as in the first row"
        else:
            dates = pd.to_datetime(text.where(text.str.match(r"\d{4}-")), errors="coerce", format="ISO8601", utc=True)
            times, bad = dates.to_numpy(dtype="datetime64[ns]").astype(np.int64), dates.isna().to_numpy()
            expected = "an ISO date such as 2018-11-05 or 2018-11-05T12:30:00"
            if len(text) and bad[0]:
                expected = f"a number or {expected}"
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{_place(path, row)}, column {column.name!r}: {str(column.iloc[row])!r} is not {expected} "
            f"({int(bad.sum())} such rows). Mend or drop them."
        )
    return times


def read_tables(
    items_path: str | os.PathLike[str],
    interactions_path: str | os.PathLike[str],
    *,
    item_column: str = "item_id",
    title_column: str = "title",
    description_column: str = DESCRIPTION,
    user_column: str = "user_id",
    time_column: str = "timestamp",
    split: str = "global_time",
    max_history: int = 10,
) -> Corpus:
    """Read items and interactions and split them.

    Item index i is row i of the items table. Interactions are sorted by time, ties keep the order of the file; every
    interaction but a user's first becomes a row. Repeated interactions are kept.

    Args:
        items_path: One row an item.
        interactions_path: One row an interaction, in any order.
        item_column: Column of item ids, in both tables.
        title_column: Column of titles.
        description_column: Column of descriptions; may be absent if it is called "description".
        user_column: Column of user ids.
        time_column: Column of times: numbers or ISO dates.
        split: "global_time" (the newest tenth of all rows is test, the tenth before valid) or "leave_last_out" (each
            user's last row is test, the one before valid).
        max_history: Most items that a history holds.

    Returns:
        The corpus, rows in time order. Its counts are those of `corpus_counts` and `check_histories`, and
        `interactions`, `users_without_rows` (fewer than two interactions), `items_without_title`,
        `items_without_interactions`, `truncated_histories`.

    Raises:
        ConfigError: If the split is unknown or `max_history` is below 1.
        DataError: If a file or column is missing, an id is empty or (of an item) given twice, a time does not parse,
            an interaction's item is unknown, or a split is empty.
    """
    if split not in SPLIT_NAMES:
        raise ConfigError(f"unknown split {split!r}; known splits: {', '.join(SPLIT_NAMES)}.")
    items_path, interactions_path = Path(items_path), Path(interactions_path)

    table = _read_table(items_path)
    item_ids = _ids(_column(table, items_path, item_column, "item_column"), items_path)
    titles = _texts(_column(table, items_path, title_column, "title_column"))
    if description_column in table.columns or description_column != DESCRIPTION:
        descriptions = _texts(_column(table, items_path, description_column, "description_column"))
    else:
        descriptions = pd.Series([""] * len(table))
    index = pd.Index(item_ids)
    if index.has_duplicates:
        row = int(np.flatnonzero(index.duplicated())[0])
        first = int(np.flatnonzero(item_ids == item_ids[row])[0])
        earlier = _place(items_path, first)
        raise DataError(
            f"{_place(items_path, row)}: item {item_ids[row]!r} is already in {earlier}. Keep one row an item."
        )
    items = pd.DataFrame(
        {
            "item_id": pd.Series(item_ids, dtype="str"),
            "title": pd.Series(titles.to_numpy(), dtype="str"),
            "description": pd.Series(descriptions.to_numpy(), dtype="str"),
        }
    )
    untitled = int((items["title"] == "").sum())
    if untitled:
        log.warning(
            "%s: %d of %d items have no title; they can only be told apart by description.",
            items_path,
            untitled,
            len(items),
        )

    table = _read_table(interactions_path)
    user_ids = _ids(_column(table, interactions_path, user_column, "user_column"), interactions_path)
    bought = _ids(_column(table, interactions_path, item_column, "item_column"), interactions_path)
    times = parse_times(_column(table, interactions_path, time_column, "time_column"), interactions_path)
    item_index = index.get_indexer(pd.Index(bought))
    unknown = np.flatnonzero(item_index < 0)
    if len(unknown):
        row = int(unknown[0])
        raise DataError(
            f"{_place(interactions_path, row)}, column {item_column!r}: item {bought[row]!r} is not in {items_path} "
            f"({len(unknown)} such rows). Add the items or drop the rows."
        )

    order = np.argsort(times, kind="stable")
    users, user_names = pd.factorize(user_ids[order])
    rows = build_rows(users, item_index[order], max_history)
    row_users = users[rows.targets]
    row_times = times[order][rows.targets]
    labels = global_time_split(len(row_users)) if split == "global_time" else leave_last_out_split(row_users)
    targets = item_index[order][rows.targets].astype(np.int32)
    frames = []
    for label in range(len(SPLITS)):
        chosen = np.flatnonzero(labels == label)
        histories = [rows.histories[row] for row in chosen]
        frames.append(row_table(user_names[row_users[chosen]].tolist(), histories, targets[chosen]))
    train, valid, test = frames
    corpus = Corpus(items, train, valid, test, split=SPLIT_NAMES[split], max_history=max_history)
    check_filled(corpus, str(interactions_path))
    if split == "global_time":
        check_global_time({name: row_times[labels == label] for label, name in enumerate(SPLITS)})
    else:
        check_leave_last_out(corpus)
    counts: dict[str, Any] = {
        **corpus_counts(corpus),
        "interactions": len(users),
        "users_without_rows": len(user_names) - len(np.unique(row_users)),
        "items_without_title": untitled,
        "items_without_interactions": int((np.bincount(item_index, minlength=len(items)) == 0).sum()),
        "truncated_histories": rows.truncated,
        **check_histories(corpus),
    }
    return replace(corpus, counts=counts)
