"""Reader of the Amazon reviews of UCSD: 2018 (`*_5.json.gz` or full, `meta_*.json.gz`) and 2023 (`*.jsonl.gz`).

Files of 2014 are read as those of 2018, whose names of fields they have; their lines may be Python's dictionaries.
"""

import ast
import html
import os
import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from minionerec.core.cells import plain_text
from minionerec.core.errors import DataError, shown, truncate
from minionerec.core.log import progress
from minionerec.data.files import check_file, open_bytes, parse_object
from minionerec.data.source import BadRows, Source, item_table
from minionerec.data.units import UNITS, looks_like, unit_numbers

# Large text files, plain or gzip, in blocks of whole lines; JSON lines as arrow tables, bad lines named one by one.

T = TypeVar("T")
READ_SIZE = 1 << 20
BLOCK_SIZE = 1 << 22
"""Bytes of a block, about: enough to parse at full speed, few enough to hold several."""
_OBJECT = re.compile(rb"\s*\{")


def read_blocks(path: str | os.PathLike[str], block_size: int = BLOCK_SIZE) -> Iterator[bytes]:
    """The text of a file in blocks that end at the end of a line; gzip is recognised by its first bytes and read once.

    Args:
        path: The file.
        block_size: Bytes of a block, about; a longer line makes a longer block.

    Yields:
        Whole lines; the last one of the file gets an end if it has none.

    Raises:
        DataError: If the file is missing, or its gzip data are damaged or truncated.
    """
    rest: list[bytes] = []
    held = 0
    for chunk in _decompressed(Path(path)):
        end = chunk.rfind(b"\n") + 1
        held += len(chunk)
        if held < block_size or not end:
            rest.append(chunk)
            continue
        yield b"".join([*rest, memoryview(chunk)[:end]])
        rest, held = [chunk[end:]], len(chunk) - end
    if last := b"".join(rest):
        yield last if last.endswith(b"\n") else last + b"\n"


def _decompressed(path: Path) -> Iterator[bytes]:
    check_file(path, "Give the path of the downloaded file.")
    with open_bytes(path, packed=True) as file:
        chunks = iter(lambda: file.read(READ_SIZE), b"")
        yield from progress(chunks, f"reading {path.name}", total=None, unit="MiB")


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Iterate while a thread makes the next item; its errors are raised here."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def read_json_lines(
    path: str | os.PathLike[str],
    schema: pa.Schema,
    parse: Callable[[dict[str, Any]], dict[str, Any]],
    bad: BadRows,
    required: tuple[str, ...] = (),
    block_size: int = BLOCK_SIZE,
) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """Some fields of a file of JSON objects, one a line.

    Blocks go through arrow's parser; one that it refuses, or that has other than one object a line, is parsed line by
    line, so that each bad line is known by its number.

    Args:
        path: The file, plain or gzip.
        schema: Fields to read and their types; all other fields are skipped.
        parse: Makes those fields from one object where arrow refused the block; raises ValueError, saying why, where
            a field cannot be made.
        bad: Counts lines that are no such object and lines without a required field.
        required: Fields that must be there; text must not be empty.
        block_size: Bytes parsed at a time.

    Yields:
        A table with the columns of `schema`, and the line number of each of its rows, int64.

    Raises:
        DataError: If the file is missing or truncated, or has more bad lines than `bad` allows.
    """
    first = 1
    for block in ahead(read_blocks(path, block_size)):
        n_lines = int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))  # a quarter of the time of count
        numbers = np.arange(first, first + n_lines)
        table = _parse_block(block, schema)
        if table is None or len(table) != n_lines:
            table, numbers = _parse_lines(path, block, first, schema, parse, bad)
        first += n_lines
        for name in required:
            column = table[name]
            present = pc.is_valid(column)
            if pa.types.is_string(column.type):
                present = pc.fill_null(pc.greater(pc.binary_length(column), 0), False)
            if not pc.all(present, min_count=0).as_py():
                there = present.to_numpy()
                lost = np.flatnonzero(~there)
                bad.add(
                    "missing_id" if pa.types.is_string(column.type) else "bad_time",
                    f"{path}, line {numbers[lost[0]]}: {name!r} is missing or empty (in {len(lost)} of {len(there)} "
                    "lines from there on). Mend or drop the line.",
                    len(lost),
                )
                table, numbers = table.filter(present), numbers[there]
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
    block: bytes,
    first: int,
    schema: pa.Schema,
    parse: Callable[[dict[str, Any]], dict[str, Any]],
    bad: BadRows,
) -> tuple[pa.Table, np.ndarray]:
    records, numbers = [], []
    for number, line in enumerate(block.split(b"\n")[:-1], start=first):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            python = line.lstrip().startswith(b"{'")
            record = _python_value(line) if python else parse_object(line, schema.names)
            records.append(parse(record))
            numbers.append(number)
        except ValueError as error:  # of JSON and of text coding too
            start = line[:60].decode(errors="replace")
            bad.add("malformed", f"{where}: {truncate(str(error), 200)}, in {start!r}. Mend or drop the line.")
    return pa.Table.from_pylist(records, schema=schema), np.array(numbers, dtype=np.int64)


def _python_value(line: bytes) -> dict[str, Any]:
    """A dictionary in Python's notation, such as {'asin': 'B0'}, as files of 2014 have them; nothing of it is run.

    Raises:
        ValueError: If it is none, or nested too deep.
    """
    try:
        with warnings.catch_warnings():  # of escapes that Python does not know
            warnings.simplefilter("ignore")
            value = ast.literal_eval(line.decode("utf-8").strip())
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"neither JSON nor a Python literal ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise ValueError(f"a Python {type(value).__name__}, expected a dictionary")
    return value


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
_UNCLEAN = "[^ -%'-;=-~]|  |^ | $"
"""What every text has that `clean_text` changes, and some others: an `&`, a `<`, other than ASCII, or odd spaces."""
_SCRIPT = "<span id"  # left by a crawler of 2018 from pages that it could not parse


def clean_text(text: str) -> str:
    """Plain text: entities become characters, HTML tags are removed, every run of white space becomes one space.

    Example:
        >>> clean_text(" 5&quot; <b>bolts</b> &amp;   nuts ")
        '5" bolts & nuts'
    """
    if "&" in text:
        text = html.unescape(text)
    if "<" in text:
        text = _TAG.sub(" ", text)
    return " ".join(text.split())


def _cleaned(texts: pa.Array | pa.ChunkedArray) -> list[str]:
    """What `clean_text` makes of each text, "" of nulls; most are clean, which one scan of all finds faster."""
    texts = texts.fill_null("")
    unclean = pc.match_substring_regex(texts, _UNCLEAN).to_pylist()
    return [clean_text(text) if dirty else text for text, dirty in zip(texts.to_pylist(), unclean, strict=True)]


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
    block_size: int = BLOCK_SIZE,
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
        block_size: Bytes parsed at a time.

    Returns:
        The source, items in the metadata's order, with `brand` and `categories` as further columns. Its counts:
        `reviews`; `reviews_without_item` (the item's metadata or title is missing, and so the review left out);
        `items_without_metadata` and `items_left_out_without_title`, of those with at least `core` reviews;
        `items_repeated`.

    Raises:
        DataError: If a file is missing, truncated, or has more bad lines than `bad` allows, or nothing is left.
    """
    fields, bad = EDITIONS[edition], bad or BadRows()
    user_codes, user_ids, item_codes, item_ids, times = _read_reviews(interactions, fields, bad, block_size)
    wanted = np.bincount(item_codes, minlength=len(item_ids)) >= core
    table, item_of, counts = _read_metadata(items, fields, bad, item_ids, wanted, max_title_words, title_of, block_size)
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
        times=times[kept],
        user_ids=user_ids,
        where=str(interactions),
        ticks=fields.ticks,
        counts=counts,
    )


def _read_reviews(
    path: str | os.PathLike[str], fields: Edition, bad: BadRows, block_size: int
) -> tuple[np.ndarray, pa.Array, np.ndarray, pa.Array, np.ndarray]:
    schema = pa.schema([(fields.user, pa.string()), (fields.item, pa.string()), (fields.time, pa.int64())])

    def parse(record: dict[str, Any]) -> dict[str, Any]:
        texts = {name: record.get(name) for name in (fields.user, fields.item)}
        for name, text in texts.items():
            if text is not None and not (isinstance(text, str) and plain_text(text)):
                raise ValueError(f"{name!r} is {shown(text)}, expected text")
        time = record.get(fields.time)
        return {**texts, fields.time: None if time is None else _whole(time, fields.time)}

    users, items, times = [], [], []
    required = tuple(schema.names)
    for table, numbers in read_json_lines(path, schema, parse, bad, required, block_size):
        table, numbers = _in_range(table, numbers, path, fields, bad)
        table = _of_one_line(table, numbers, path, (fields.user, fields.item), bad)
        users += table[fields.user].chunks
        items += table[fields.item].chunks
        times += table[fields.time].chunks
    user_codes, user_ids = _encode(users)
    item_codes, item_ids = _encode(items)
    return user_codes, user_ids, item_codes, item_ids, pa.chunked_array(times, pa.int64()).to_numpy()


def _whole(time: Any, name: str) -> int:
    """A time as a whole number: a number or its digits."""
    if isinstance(time, str) and len(time) < 20:
        time = int(time)
    if isinstance(time, float) and time.is_integer():
        time = int(time)
    if isinstance(time, bool) or not isinstance(time, int) or abs(time) >= 2**63:
        raise ValueError(f"{name!r} is {shown(time)}, expected a whole number")
    return time


def _in_range(
    table: pa.Table, numbers: np.ndarray, path: str | os.PathLike[str], fields: Edition, bad: BadRows
) -> tuple[pa.Table, np.ndarray]:
    """The reviews whose time is one of this edition's unit, and their lines."""
    times = table[fields.time].to_numpy()
    wanted = next(unit for unit, (_, ticks) in enumerate(UNITS) if ticks == fields.ticks)
    if not len(times) or (unit_numbers(np.array([times.min(), times.max()])) == wanted).all():  # a unit is a range
        return table, numbers
    right = unit_numbers(times) == wanted
    first = int(np.flatnonzero(~right)[0])
    bad.add(
        "bad_time",
        f"{path}, line {numbers[first]}: {fields.time!r} is {times[first]}, which is no time in {UNITS[wanted][0]} "
        f"since 1970; it looks like {looks_like(float(times[first]))} (in {int((~right).sum())} of {len(times)} lines "
        "from there on). Take the source of this edition, or drop the line.",
        int((~right).sum()),
    )
    return table.filter(pa.array(right)), numbers[right]


def _of_one_line(
    table: pa.Table, numbers: np.ndarray, path: str | os.PathLike[str], names: tuple[str, ...], bad: BadRows
) -> pa.Table:
    """The reviews whose ids are texts of one line."""
    for name in names:
        if all(_least_byte(chunk) > ord("\r") for chunk in table[name].chunks):  # as a rule, and soon known
            continue
        broken = pc.match_substring_regex(table[name], "[\\r\\n\\x00]").to_numpy()
        if broken.any():
            first = int(np.flatnonzero(broken)[0])
            bad.add(
                "malformed_id",
                f"{path}, line {numbers[first]}: {name!r} is {shown(table[name][first].as_py())}, expected a text of "
                "one line. Mend or drop the line.",
                int(broken.sum()),
            )
            table, numbers = table.filter(pa.array(~broken)), numbers[~broken]
    return table


def _least_byte(texts: pa.StringArray) -> int:
    """The least byte of the texts, or one that is less; 255 where there are none."""
    data = texts.buffers()[2]
    return 255 if data is None else int(np.frombuffer(data, np.uint8).min(initial=255))


def _encode(chunks: list[pa.Array]) -> tuple[np.ndarray, pa.Array]:
    """int32 number of each string, by first appearance, and the strings; `chunks` is emptied."""
    chunks[:] = [chunk for chunk in chunks if len(chunk)]
    column = pa.chunked_array(chunks, pa.string()).dictionary_encode()
    chunks.clear()
    if not column.num_chunks:
        return np.empty(0, dtype=np.int32), pa.array([], pa.string())
    # All chunks share one dictionary.
    return np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks]), column.chunk(
        column.num_chunks - 1
    ).dictionary


def _read_metadata(
    path: str | os.PathLike[str],
    fields: Edition,
    bad: BadRows,
    item_ids: pa.Array,
    wanted: np.ndarray,
    max_title_words: int,
    title_of: Callable[[str, int], str],
    block_size: int,
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

    found: dict[int, tuple[str, ...]] = {}
    repeated = 0
    for table, numbers in read_json_lines(path, schema, parse, bad, names[:1], block_size):
        codes = pc.index_in(table[names[0]].combine_chunks(), value_set=item_ids).fill_null(-1).to_numpy()
        chosen = np.flatnonzero((codes >= 0) & wanted[codes]) if len(wanted) else codes[:0]
        some = table.take(pa.array(chosen))
        columns = (
            [title_of(title or "", max_title_words) for title in some["title"].to_pylist()],
            _cleaned(_joined(some["description"], " ")),
            _cleaned(some[fields.brand]),
            _cleaned(_joined(some[fields.categories], ", ")),
        )
        for code, number, *own in zip(codes[chosen].tolist(), numbers[chosen].tolist(), *columns, strict=True):
            texts = tuple(own)
            if found.setdefault(code, texts) == texts:
                repeated += found[code] is not texts
                continue
            bad.add(
                "duplicate_item",
                f"{path}, line {number}: item {item_ids[code].as_py()!r} occurs again with different text. "
                "Keep one line an item.",
            )
    titled = [code for code, texts in found.items() if texts[0]]
    item_of = np.full(len(item_ids), -1, dtype=np.int32)
    item_of[titled] = np.arange(len(titled))
    title, description, brand, categories = ([found[code][position] for code in titled] for position in range(4))
    ids = item_ids.take(pa.array(titled, pa.int64())).to_pylist()
    counts = {
        "items_without_metadata": int(wanted.sum()) - len(found),
        "items_left_out_without_title": len(found) - len(titled),
        "items_repeated": repeated,
    }
    table = item_table(ids, title=title, description=description, brand=brand, categories=categories)
    return table, item_of, counts


def _joined(lists: pa.ChunkedArray, separator: str) -> pa.Array:
    """Each list of texts as one text, what is null as "" (joining itself gives null for a list with a null in it)."""
    whole = lists.combine_chunks()
    return pc.binary_join(pa.ListArray.from_arrays(whole.offsets, whole.values.fill_null("")), separator)


def _as(kind: pa.DataType, value: Any, name: str) -> Any:
    """A field of the metadata as text or as a list of texts, whichever of the two it was written as."""
    if value is None:
        return None
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        raise ValueError(f"{name!r} is {shown(value)}, expected text or a list of texts")
    if not all(plain_text(part) for part in parts if isinstance(part, str)):
        raise ValueError(f"{name!r} is {shown(value)}, which holds half of a character")
    texts = [str(part) for part in parts]
    return texts if kind == TEXTS else " ".join(texts)
