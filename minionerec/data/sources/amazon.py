"""Reader of the Amazon reviews of UCSD: 2018 (`*_5.json.gz` or full, `meta_*.json.gz`) and 2023 (`*.jsonl.gz`).

Files of 2014 are read as those of 2018, whose names of fields they have; their lines may be Python's dictionaries.
"""

import ast
import html
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from minionerec.core.errors import DataError, shown, truncate
from minionerec.core.log import progress
from minionerec.data.files import check_file, open_bytes, parse_object
from minionerec.data.source import BadRows, Source, item_table
from minionerec.data.units import UNITS, looks_like, unit_numbers

BLOCK_SIZE = 1 << 22
"""Bytes of a block, about: enough to parse at full speed."""
_OBJECT = re.compile(rb"\s*\{")
TEXTS = pa.list_(pa.string())


@dataclass(frozen=True)
class Edition:
    """The fields of one edition of the collection; both sites describe them.

    Attributes:
        user: Field of the reviewer.
        item: Field of the item, in reviews.
        time: Field of the time, in reviews.
        ticks: Ticks of the time in a second.
        item_in_metadata: Field of the item, in the metadata.
        brand: Field of the brand or shop, in the metadata.
        categories: Field of the path of categories, in the metadata.
    """

    user: str
    item: str
    time: str
    ticks: int
    item_in_metadata: str
    brand: str
    categories: str


EDITIONS = {
    "amazon2018": Edition("reviewerID", "asin", "unixReviewTime", 1, "asin", "brand", "category"),
    "amazon2023": Edition("user_id", "parent_asin", "timestamp", 1000, "parent_asin", "store", "categories"),
}
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_SCRIPT = "<span id"  # left by a crawler of 2018 from pages that it could not parse


def read_json_lines(
    path: str | os.PathLike[str], schema: pa.Schema, parse: Callable[[dict[str, Any]], dict[str, Any]], bad: BadRows
) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """Some fields of a file of JSON objects, one a line.

    Blocks go through arrow's parser; one that it refuses, or that has other than one object a line, is parsed line by
    line, so that each bad line is known by its number.

    Args:
        path: The file, plain or gzip.
        schema: Fields to read and their types; all other fields are skipped.
        parse: Makes those fields from one object where arrow refused the block; raises ValueError, saying why, where
            a field cannot be made.
        bad: Counts lines that are no such object.

    Yields:
        A table with the columns of `schema`, and the line number of each of its rows, int64.

    Raises:
        DataError: If the file is missing or truncated, or has more bad lines than `bad` allows.
    """
    check_file(path, "Give the path of the downloaded file.")
    first = 1
    with open_bytes(path, packed=True) as file:
        blocks = iter(lambda: file.readlines(BLOCK_SIZE), [])
        for lines in progress(blocks, f"reading {Path(path).name}", unit="blocks"):
            table, numbers = _parse_block(b"".join(lines), schema), np.arange(first, first + len(lines))
            if table is None or len(table) != len(lines):
                table, numbers = _parse_lines(path, lines, first, schema, parse, bad)
            first += len(lines)
            yield table, numbers


def _parse_block(block: bytes, schema: pa.Schema) -> pa.Table | None:
    """The block as a table; None where arrow refuses it, or would end the process: it begins with a null."""
    if not _OBJECT.match(block):
        return None
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    try:
        table = pa_json.read_json(pa.py_buffer(block), read_options=reading, parse_options=options)
        table.validate(full=True)  # the parser does not look whether text is UTF-8
    except pa.ArrowInvalid:
        return None
    return table


def _parse_lines(
    path: str | os.PathLike[str],
    lines: list[bytes],
    first: int,
    schema: pa.Schema,
    parse: Callable[[dict[str, Any]], dict[str, Any]],
    bad: BadRows,
) -> tuple[pa.Table, np.ndarray]:
    records, numbers = [], []
    for number, line in enumerate(lines, start=first):
        if not line.strip():
            continue
        try:
            is_python = line.lstrip().startswith(b"{'")
            fields = parse(_python_value(line) if is_python else parse_object(line, schema.names))
            json.dumps(fields, ensure_ascii=False).encode()  # fails of half a character
            records.append(fields)
            numbers.append(number)
        except ValueError as error:  # of JSON and of text coding too
            start = line[:60].decode(errors="replace")
            problem = truncate(str(error), 200)
            bad.add("malformed", f"{path}, line {number}: {problem}, in {start!r}. Mend or drop the line.")
    return pa.Table.from_pylist(records, schema=schema), np.array(numbers, dtype=np.int64)


def _python_value(line: bytes) -> dict[str, Any]:
    """A dictionary in Python's notation, such as {'asin': 'B0'}, as files of 2014 have them; nothing of it is run.

    Raises:
        ValueError: If it is none, or nested too deep.
    """
    try:
        with warnings.catch_warnings():  # of escapes that Python does not know
            warnings.simplefilter("ignore")
            return dict(ast.literal_eval(line.decode("utf-8").strip()))
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"neither JSON nor a Python literal ({type(error).__name__})") from None


def clean_text(text: str) -> str:
    """Plain text: entities become characters, HTML tags are removed, every run of white space becomes one space.

    Example:
        >>> clean_text(" 5&quot; <b>bolts</b> &amp;   nuts ")
        '5" bolts & nuts'
    """
    return " ".join(_TAG.sub(" ", html.unescape(text)).split())


def clean_title(title: str, max_words: int = 0) -> str:
    """A title as plain text without quotes around it, or "" where it is no title of an item.

    None are those that hold a crawler's leftover (`<span id`), of fewer than two characters, or of too many words.

    Args:
        title: As in the metadata.
        max_words: Most words between spaces; any number at 0.

    Example:
        >>> clean_title('"Hex bolt &amp; nut" '), clean_title("a"), clean_title("too many words", max_words=2)
        ('Hex bolt & nut', '', '')
    """
    return "" if _SCRIPT in title else _short(clean_text(title).strip('" '), max_words)


def published_title(title: str, max_words: int = 0) -> str:
    """A title as the published MiniOneRec data have it: only `&quot;` and `&amp;` are resolved, no tag is removed."""
    text = title.replace("&quot;", '"').replace("&amp;", "&").strip(" ").strip('"')
    return "" if _SCRIPT in title else _short(text, max_words)


def _short(title: str, max_words: int) -> str:
    too_long = max_words and len(title.split(" ")) > max_words
    return "" if len(title) < 2 or too_long else title


def read_amazon(
    edition: str,
    interactions: str | os.PathLike[str],
    items: str | os.PathLike[str],
    bad: BadRows | None = None,
    *,
    core: int = 0,
    max_title_words: int = 0,
    title_of: Callable[[str, int], str] = clean_title,
) -> Source:
    """Read reviews and the metadata of the items that they are about; reviews of items without a title are left out.

    Of each review only user, item and time are held, about 50 bytes; of the metadata only items that have at least
    `core` reviews, since no other can stay.

    Args:
        edition: "amazon2018" or "amazon2023".
        interactions: The review file, one JSON object a line, plain or gzip.
        items: The metadata file of the same category.
        bad: Counts lines that cannot be used; one is an error if None. An item that occurs again with the same text is
            only counted; one with another text is a bad line.
        core: Fewest reviews of an item whose metadata are worth holding.
        max_title_words: Most words of a title; longer ones, as a rule stuffed with search words, count as none. Any
            number at 0.
        title_of: Makes a clean title of a raw one and `max_title_words`, "" where it is none.

    Returns:
        The source, items in the metadata's order, with `brand` and `categories` as further columns. Its counts:
        `reviews`; `reviews_without_item` (the item's metadata or title is missing, and so the review left out);
        `items_without_metadata` and `items_left_out_without_title`, of those with at least `core` reviews;
        `items_repeated`.

    Raises:
        DataError: If a file is missing, truncated, or has more bad lines than `bad` allows, or nothing is left.
    """
    fields, bad = EDITIONS[edition], bad or BadRows()
    reviews = _read_reviews(interactions, fields, bad)
    (user_codes, user_ids), (item_codes, item_ids) = (_encode(reviews[name]) for name in (fields.user, fields.item))
    wanted = np.bincount(item_codes, minlength=len(item_ids)) >= core
    table, item_of, counts = _read_metadata(
        items, fields, bad, item_ids, wanted, lambda t: title_of(t, max_title_words)
    )
    item_index = item_of[item_codes]
    kept = item_index >= 0
    counts |= {"reviews": len(kept), "reviews_without_item": int(len(kept) - kept.sum())}
    if not kept.any():
        raise DataError(
            f"{interactions}: none of the {len(kept)} reviews is about an item with a title in {items}. "
            "Take both files from the same edition and category."
        )
    return Source(
        items=table,
        users=user_codes[kept],
        item_index=item_index[kept],
        times=reviews[fields.time].to_numpy()[kept],
        user_ids=user_ids,
        where=str(interactions),
        ticks=fields.ticks,
        counts=counts,
    )


def _read_reviews(path: str | os.PathLike[str], fields: Edition, bad: BadRows) -> pa.Table:
    """User, item and time of the reviews that can be used."""
    schema = pa.schema([(fields.user, pa.string()), (fields.item, pa.string()), (fields.time, pa.int64())])
    unit = next(number for number, (_, ticks) in enumerate(UNITS) if ticks == fields.ticks)

    def parse(record: dict[str, Any]) -> dict[str, Any]:
        texts = {name: record.get(name) for name in (fields.user, fields.item)}
        for name, text in texts.items():
            if not isinstance(text, str | None):
                raise ValueError(f"{name!r} is {shown(text)}, expected text")
        time = record.get(fields.time)
        return {**texts, fields.time: None if time is None else _whole(time, fields.time)}

    tables = [schema.empty_table()]
    for table, numbers in read_json_lines(path, schema, parse, bad):
        table, numbers = _with_ids(table, numbers, (fields.user, fields.item), path, bad)
        filled = pc.is_valid(table[fields.time]).to_numpy()
        table, numbers = _kept(table, numbers, fields.time, filled, path, bad, "bad_time", _MISSING)
        times = table[fields.time].to_numpy()
        right = unit_numbers(times) == unit
        guess = looks_like(float(times[right.argmin()])) if len(times) else ""
        problem = (
            f"which is no time in {UNITS[unit][0]} since 1970; it looks like {guess}. Take the source of this edition, "
            "or drop the line"
        )
        tables.append(_kept(table, numbers, fields.time, right, path, bad, "bad_time", problem)[0])
    return pa.concat_tables(tables)


_MISSING = "missing or empty. Mend or drop the line"


def _with_ids(
    table: pa.Table, numbers: np.ndarray, names: tuple[str, ...], path: str | os.PathLike[str], bad: BadRows
) -> tuple[pa.Table, np.ndarray]:
    """The rows that have texts of one line in some fields, and their lines."""
    for name in names:
        filled = pc.fill_null(pc.greater(pc.binary_length(table[name]), 0), False).to_numpy()
        table, numbers = _kept(table, numbers, name, filled, path, bad, "missing_id", _MISSING)
        of_one_line = pc.invert(pc.match_substring_regex(table[name], "[\\r\\n\\x00]")).to_numpy()
        problem = "expected a text of one line. Mend or drop the line"
        table, numbers = _kept(table, numbers, name, of_one_line, path, bad, "malformed_id", problem)
    return table, numbers


def _kept(
    table: pa.Table,
    numbers: np.ndarray,
    name: str,
    usable: np.ndarray,
    path: str | os.PathLike[str],
    bad: BadRows,
    kind: str,
    problem: str,
) -> tuple[pa.Table, np.ndarray]:
    """The rows whose field can be used, and their lines; the others, with a problem of a kind, are counted as bad."""
    others = np.flatnonzero(~usable)
    if not len(others):
        return table, numbers
    value = "" if problem == _MISSING else f"{shown(table[name][others[0]].as_py())}, "
    count = f"in {len(others)} of {len(usable)} lines from there on"
    bad.add(kind, f"{path}, line {numbers[others[0]]}: {name!r} is {value}{problem} ({count}).", len(others))
    return table.filter(pa.array(usable)), numbers[usable]


def _whole(time: Any, name: str) -> int:
    """A time as a whole number: a number or its digits."""
    if isinstance(time, str) and len(time) < 20:
        time = int(time)
    if isinstance(time, float) and time.is_integer():
        time = int(time)
    if isinstance(time, bool) or not isinstance(time, int) or abs(time) >= 2**63:
        raise ValueError(f"{name!r} is {shown(time)}, expected a whole number")
    return time


def _encode(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """int32 number of each string, by first appearance, and the strings."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary


def _read_metadata(
    path: str | os.PathLike[str],
    fields: Edition,
    bad: BadRows,
    item_ids: pa.Array,
    wanted: np.ndarray,
    title_of: Callable[[str], str],
) -> tuple[pd.DataFrame, np.ndarray, dict[str, int]]:
    """The item table, the item index of each of `item_ids` (-1 where it has none), and the counts."""
    names = (fields.item_in_metadata, "title", "description", fields.brand, fields.categories)
    types = (pa.string(), pa.string(), TEXTS, pa.string(), TEXTS)
    schema = pa.schema(list(zip(names, types, strict=True)))

    def parse(record: dict[str, Any]) -> dict[str, Any]:
        paths = record.get("categories")
        if fields.categories not in record and isinstance(paths, list):  # of 2014, a list of paths
            parts = (part for path in paths for part in (path if isinstance(path, list) else [path]))
            record = {**record, fields.categories: list(dict.fromkeys(map(str, parts)))}
        return {name: _as(kind, record.get(name), name) for name, kind in zip(names, types, strict=True)}

    texts_of: dict[int, tuple[str, ...]] = {}  # of each number of `item_ids`
    repeated = 0
    for table, numbers in read_json_lines(path, schema, parse, bad):
        table, numbers = _with_ids(table, numbers, (fields.item_in_metadata,), path, bad)
        codes = pc.index_in(table[fields.item_in_metadata].combine_chunks(), value_set=item_ids)
        codes = codes.fill_null(-1).to_numpy()
        chosen = np.flatnonzero((codes >= 0) & wanted[codes]) if len(wanted) else codes[:0]
        table = table.take(pa.array(chosen))
        columns = (
            map(title_of, table["title"].fill_null("").to_pylist()),
            map(clean_text, _joined(table["description"], " ").to_pylist()),
            map(clean_text, table[fields.brand].fill_null("").to_pylist()),
            map(clean_text, _joined(table[fields.categories], ", ").to_pylist()),
        )
        for code, number, *cells in zip(codes[chosen].tolist(), numbers[chosen].tolist(), *columns, strict=True):
            texts = tuple(cells)
            if texts_of.setdefault(code, texts) == texts:
                repeated += texts_of[code] is not texts
                continue
            bad.add(
                "duplicate_item",
                f"{path}, line {number}: item {item_ids[code].as_py()!r} occurs again with different text. "
                "Keep one line an item.",
            )
    titled = [code for code, texts in texts_of.items() if texts[0]]
    item_of = np.full(len(item_ids), -1, dtype=np.int32)
    item_of[titled] = np.arange(len(titled))
    title, description, brand, categories = ([texts_of[code][position] for code in titled] for position in range(4))
    ids = item_ids.take(pa.array(titled, pa.int64())).to_pylist()
    counts = {
        "items_without_metadata": int(wanted.sum()) - len(texts_of),
        "items_left_out_without_title": len(texts_of) - len(titled),
        "items_repeated": repeated,
    }
    items = item_table(ids, title=title, description=description, brand=brand, categories=categories)
    return items, item_of, counts


def _joined(lists: pa.ChunkedArray, separator: str) -> pa.Array:
    """Each list of texts as one text, what is null as "" (joining itself gives null for a list with a null in it)."""
    whole = lists.combine_chunks()
    texts = pc.binary_join(pa.ListArray.from_arrays(whole.offsets, whole.values.fill_null("")), separator)
    return texts.fill_null("")


def _as(kind: pa.DataType, value: Any, name: str) -> Any:
    """A field of the metadata as text or as a list of texts, whichever of the two it was written as."""
    if value is None:
        return None
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        raise ValueError(f"{name!r} is {shown(value)}, expected text or a list of texts")
    texts = [str(part) for part in parts]
    return texts if kind == TEXTS else " ".join(texts)
