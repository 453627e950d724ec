"""Large text files, plain or gzip, in blocks of whole lines; JSON lines as arrow tables, bad lines named one by one."""

import os
import re
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from minionerec.core.errors import DataError, cut
from minionerec.core.log import progress
from minionerec.data.files import check_file, open_bytes, parse_json, repeated_keys
from minionerec.data.source import BadRows

T = TypeVar("T")
READ_SIZE = 1 << 20
BLOCK_SIZE = 1 << 22
"""Bytes of a block, about: enough to parse at full speed, few enough to hold several."""
_GZIP_MAGIC = b"\x1f\x8b"
_OBJECT = re.compile(rb"\s*\{")


def read_blocks(path: str | os.PathLike[str], block_size: int = BLOCK_SIZE) -> Iterator[bytes]:
    """The text of a file in blocks that end at the end of a line; gzip is told by its first bytes and read once.

    Args:
        path: The file.
        block_size: Bytes of a block, about; a longer line makes a longer block.

    Yields:
        Whole lines; the last one of the file gets an end if it has none.

    Raises:
        DataError: If the file is missing, or its gzip data are damaged or cut off.
    """
    rest: list[bytes] = []
    held = 0
    for chunk in _decompressed(Path(path)):
        rest.append(chunk)
        held += len(chunk)
        if held < block_size or b"\n" not in chunk:
            continue
        text = b"".join(rest)
        end = text.rfind(b"\n") + 1
        yield text[:end]
        rest, held = [text[end:]], len(text) - end
    if last := b"".join(rest):
        yield last if last.endswith(b"\n") else last + b"\n"


def _decompressed(path: Path) -> Iterator[bytes]:
    check_file(path, "Give the path of the downloaded file.")
    with open_bytes(path) as file:
        size = os.fstat(file.fileno()).st_size
        chunks = iter(lambda: file.read(READ_SIZE), b"")
        shown = progress(chunks, f"reading {path.name}", total=-(-size // READ_SIZE), unit="MiB")
        gzip = file.peek(2)[:2] == _GZIP_MAGIC
        if not gzip:
            yield from shown
            return
        stream = zlib.decompressobj(wbits=31)
        ended = True
        try:
            for data in shown:
                while data:
                    if stream.eof:  # gzip files may follow one another in one file
                        stream = zlib.decompressobj(wbits=31)
                    text = stream.decompress(data)
                    data, ended = stream.unused_data, stream.eof
                    if text:
                        yield text
        except zlib.error as error:
            raise DataError(f"{path}: damaged gzip data ({error}). Download the file again.") from None
        if not ended:
            raise DataError(
                f"{path}: the gzip data end too soon, so the file is cut off at byte {size}. Download it again."
            )


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Iterate while a thread makes the next item; what makes it fail is raised here."""
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
        DataError: If the file is missing or cut off, or has more bad lines than `bad` allows.
    """
    first = 1
    for block in ahead(read_blocks(path, block_size)):
        n_lines = block.count(b"\n")
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
        place = f"{path}, line {number}"
        try:
            record = parse_json(line)
            if not isinstance(record, dict):
                raise ValueError(f"a JSON {type(record).__name__}, expected an object")
            if twice := repeated_keys(record) & set(schema.names):
                raise ValueError(f"the key {min(twice)!r} is there twice")
            records.append(parse(record))
            numbers.append(number)
        except ValueError as error:  # of JSON and of text coding too
            start = line[:60].decode(errors="replace")
            bad.add("malformed", f"{place}: {cut(str(error), 200)}, in {start!r}. Mend or drop the line.")
    return pa.Table.from_pylist(records, schema=schema), np.array(numbers, dtype=np.int64)
