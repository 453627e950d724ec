"""A seeded mutator: what hostile or careless hands do to files that the project reads.

Each `spoil_...` takes a `random.Random` and the content of a file, and returns other content; the same seed gives the
same content. A property test draws the generator, changes a copy of a file, and reads it:

    @attacked
    @given(randoms)
    def test_...(clean, rng):
        with mutated_copy(clean, "items.csv", rng, mutate.spoil_json) as path:
            items = read_or_refused(lambda: read(path))
"""

import io
import json
import os
import re
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import settings
from hypothesis import strategies as st

from minionerec.core.errors import MinioneRecError, fault

LONGEST = 2_300
"""Characters that a message may have."""
EXAMPLES = os.environ.get("HOSTILE_EXAMPLES")
"""Examples of each property test; a few fixed ones if None (`make hostile`)."""
attacked = settings(max_examples=int(EXAMPLES or 10), derandomize=EXAMPLES is None, deadline=None)
randoms = st.randoms(use_true_random=True)
Read = TypeVar("Read")


@contextmanager
def copied_files(clean: Path) -> Iterator[Path]:
    """A copy of a folder to be spoilt."""
    with tempfile.TemporaryDirectory() as folder:
        yield shutil.copytree(clean, Path(folder) / "copy")


@contextmanager
def mutated_copy(clean: Path, name: str, rng: Random, change: Callable[[Random, bytes], bytes]) -> Iterator[Path]:
    """A file, changed, in a copy of its folder."""
    with copied_files(clean) as folder:
        change_file(rng, folder / name, change)
        yield folder / name


def read_or_refused(read: Callable[[], Read]) -> Read | None:
    """What a reader returns; None where it refuses its files in one line of at most `LONGEST` characters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return read()
        except Exception as error:
            message = str(error) if isinstance(error, MinioneRecError) else fault(error)
            if message is None:
                raise
    message = str(MinioneRecError(message))
    assert message.strip() and "\n" not in message
    assert len(message) <= LONGEST
    return None


def filled_lines(path: Path) -> tuple[int, int]:
    """Filled lines of a text file and how many there may be, as its kind ends lines; of parquet its rows.

    Cells of parquet are not decoded: pandas refuses a column of lists that its metadata name texts, and names that
    occur twice.
    """
    if path.suffix == ".parquet":
        rows = pq.read_metadata(path).num_rows
        return rows, rows
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if path.suffix not in (".json", ".jsonl", ".txt"):
        lines = re.split(rb"\r\n|\r|\n", content)
        return sum(bool(line.strip(b" \t")) for line in lines), len(lines)
    # A lone \\r ends no line here: it is white space, as others of Unicode are.
    filled = sum(bool(line.strip()) for line in content.decode("utf-8", errors="replace").split("\n"))
    return filled, filled


TEXTS = (
    *("", " ", '"', "'", '""', "\0", "\r", "\n", "\t", ",", "::", "|", "\ufeff", "\u2028", "é", "٣", "😀", "\ud800"),
    *(
        "a" * 70_000,
        "x" * 5_000,
        "-",
        "--",
        "=1+1",
        "../../etc/passwd",
        "$(ls)",
        "%s",
        "{history}",
        "<a_1>",
        "<script>",
    ),
    *("nan", "NaN", "inf", "-inf", "null", "None", "true", "1e5", "1e400", "0x10", "1_000", "007", "1.0", "-0", "+5"),
    *("9" * 20, "9" * 5_000, "1" + "0" * 20, "9223372036854775808", "18446744073709551616", "-9223372036854775809"),
    *("9999-12-31", "0001-01-01", "2021-02-30", "2262-04-12", "2020-01-01T25:00", "2020-01-01", "1500000000000"),
)
NUMBERS = (
    *(0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**20),
    *(1e30, 1e300, 0.5, float("nan"), float("inf")),
)
BYTES = (b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b'"', b"\n", b"\r", b"\t", b",")
BYTES += (b"\x80", b"\xed\xa0\x80", b"9" * 30)


def deep(rng: Random) -> str:
    """Lists or objects within one another, up to far too many."""
    depth = rng.choice((3, 60, 2_000, 60_000))
    sign = rng.choice(("[]", "{}"))
    opened = "[" * depth if sign == "[]" else '{"a":' * depth + "1"
    return opened + sign[1] * (depth if rng.random() < 0.7 else 0)


def json_value(rng: Random) -> str:
    """Any JSON value, or something that is nearly one."""
    return rng.choice(
        (
            lambda: json.dumps(rng.choice(TEXTS)),
            lambda: json.dumps(rng.choice(NUMBERS)),
            lambda: rng.choice(
                ("true", "false", "null", "[]", "{}", "[1]", '["a", null]', '{"a": 1}', "", "'a'", "-", "1" * 5_000)
            ),
            lambda: deep(rng),
        )
    )()


def spoil_bytes(rng: Random, content: bytes) -> bytes:
    """A few bytes flipped, put in, taken out, moved, or the end cut off."""
    for _ in range(rng.randint(1, 3)):
        position, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        kind = rng.randrange(7)
        put, rest = b"", position
        if kind == 0 and content:
            position = min(position, len(content) - 1)
            put, rest = bytes([content[position] ^ (1 << rng.randrange(8))]), position + 1
        elif kind == 1:
            put = rng.choice(BYTES)
        elif kind == 2:
            rest = min(end, position + rng.randint(1, 40))
        elif kind == 3:
            rest = len(content)
        elif kind == 4:
            put = content[position : min(end, position + 60)] * rng.randint(1, 3)
        elif kind == 5:
            put = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
        else:
            put = rng.randbytes(rng.randint(1, 16))
        content = content[:position] + put + content[rest:]
    return content


def spoil_table(rng: Random, content: bytes, separator: str) -> bytes:
    """Cells and lines of a text table changed, doubled, dropped, or quoted."""
    rows = [line.split(separator) for line in content.decode().split("\n")]
    for _ in range(rng.randint(1, 4)):
        row = rng.choice(rows)
        cell = rng.randrange(len(row))
        other = rng.randrange(len(rows))
        kind = rng.randrange(10)
        if kind <= 2:
            row[cell] = rng.choice(TEXTS)
        elif kind == 3:
            row[cell] = rng.choice(('"%s', '%s"', '"%s"', '"%s"x', ' "%s"', '"%s\n%s"')).replace("%s", row[cell])
        elif kind == 4:
            row.insert(cell, rng.choice(TEXTS))
        elif kind == 5 and len(row) > 1:
            del row[cell]
        elif kind == 6:
            rows.insert(other, list(row))
        elif kind == 7 and len(rows) > 1:
            del rows[other]
        elif kind == 8:
            rows[other], row[:] = list(row), rows[other]
        else:
            row[cell] = row[cell][: rng.randint(0, len(row[cell]))]
    return "\n".join(separator.join(row) for row in rows).encode("utf-8", "surrogatepass")


def spoil_text(separator: str) -> Callable[[Random, bytes], bytes]:
    """A mutator of text tables with a separator: their cells, or their bytes."""
    return lambda rng, content: (
        spoil_table(rng, content, separator) if rng.random() < 0.75 else spoil_bytes(rng, content)
    )


def spoil_json(rng: Random, content: bytes) -> bytes:
    """A value of a JSON text replaced, a key doubled or dropped, or bytes changed; a file may hold an object a line."""
    if rng.random() < 0.25:
        return spoil_bytes(rng, content)
    lines = content.split(b"\n")
    position = rng.randrange(len(lines))
    try:
        record: Any = json.loads(lines[position])
    except ValueError:
        return spoil_bytes(rng, content)
    marks: dict[str, str] = {}
    for _ in range(rng.randint(1, 2)):
        holder, key = _anywhere(rng, record)
        if holder is None:
            continue
        mark = f"@{len(marks)}@"
        marks[mark] = json_value(rng)
        kind = rng.randrange(4)
        if kind == 0 and isinstance(holder, dict):
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[mark], marks[mark] = holder[key], json.dumps(str(key))
            lines[position] = b""
        else:
            holder[key] = mark
    text = json.dumps(record)
    for mark, value in marks.items():
        text = text.replace(json.dumps(mark), value)
    lines[position] = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        lines.insert(position, json_value(rng).encode("utf-8", "surrogatepass"))
    return b"\n".join(lines)


def _anywhere(rng: Random, record: Any) -> tuple[Any, Any]:
    """Some container within a JSON value, and one of its keys."""
    if not isinstance(record, dict | list) or not record:
        return None, None
    found = [(record, key) for key in (record if isinstance(record, dict) else range(len(record)))]
    for holder, key in list(found):
        if isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.7:
            found.append(_anywhere(rng, holder[key]))
    return rng.choice(found)


def spoil_parquet(rng: Random, content: bytes) -> bytes:
    """Columns of a parquet file of other types or values, doubled, dropped, made an index, or bytes changed."""
    if rng.random() < 0.35:
        return spoil_bytes(rng, content)
    table = pq.read_table(io.BytesIO(content))
    name = rng.choice(table.column_names)
    position, rows = table.column_names.index(name), len(table)
    kind = rng.randrange(6)
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = pa.table([*table.columns, table[name]], names=[*table.column_names, rng.choice(table.column_names)])
    elif kind == 2:
        table = pa.Table.from_pandas(table.to_pandas().set_index(name))
    else:
        table = table.set_column(position, name, _hostile_column(rng, table[name], rows))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _hostile_column(rng: Random, column: pa.ChunkedArray, rows: int) -> pa.Array:
    values = column.to_pylist()
    one = rng.randrange(max(1, rows))
    whole = rng.random() < 0.4
    every = lambda make: [make(position) if whole or position == one else values[position] for position in range(rows)]  # noqa: E731
    makers: tuple[Callable[[], pa.Array], ...] = (
        lambda: pa.array(every(lambda position: None), column.type),
        lambda: pa.array(every(lambda position: rng.choice(TEXTS[:17])), pa.string()),
        lambda: pa.array([float(rng.choice(NUMBERS)) for _ in range(rows)]),
        lambda: pa.array([rng.choice((0, 1, 2**63, 2**64 - 1)) for _ in range(rows)], pa.uint64()),
        lambda: pa.array([rng.choice((0, 15_000, 3_000_000, -800_000)) for _ in range(rows)], pa.date32()),
        lambda: pa.array([rng.choice((0, 2**40, 2**55, -(2**60))) for _ in range(rows)], pa.timestamp("us")),
        lambda: pa.array([rng.choice((0, 10**9)) for _ in range(rows)], pa.timestamp("s", "Asia/Tokyo")),
        lambda: pa.array([b"\xff\xfe"] * rows, pa.binary()),
        lambda: pa.array([[position] for position in range(rows)]),
        lambda: pa.array([{"a": position} for position in range(rows)]),
        lambda: pa.array([position % 2 == 0 for position in range(rows)]),
        lambda: pa.nulls(rows),
        lambda: pa.array([rng.choice((-1, 0, 2**31 - 1)) for _ in range(rows)], pa.int32()),
        lambda: pa.array([str(value) for value in values]).dictionary_encode(),
        lambda: pa.array([[float("nan")] * rng.randint(0, 3) for _ in range(rows)], pa.list_(pa.float64())),
    )
    if pa.types.is_list(column.type) and pa.types.is_integer(column.type.value_type):
        number = lambda: rng.choice((-2, -1, 0, 1, 2, 3, 5, 11, 12, 127, 2**31 - 1, None))  # noqa: E731
        other = lambda held: [number() if rng.random() < 0.3 else value for value in held or ()]  # noqa: E731
        makers += (
            lambda: pa.array(every(lambda position: other(values[position])), column.type),
            lambda: pa.array(every(lambda position: [number() for _ in range(rng.randint(0, 9))]), column.type),
            lambda: pa.array(every(lambda position: rng.choice((values[position], values[one]))), column.type),
        )
    try:
        return rng.choice(makers)()
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.nulls(rows)


def spoil_npy(rng: Random, content: bytes) -> bytes:
    """An .npy file of another type, shape or header, of extreme values, or with changed bytes."""
    array = np.load(io.BytesIO(content))
    kind = rng.randrange(7)
    if kind == 0:
        return spoil_bytes(rng, content)
    kinds = ("float16", "float64", "int8", "uint64", "complex64", "bool", "U3", "S2", ">f4")
    if kind == 1:
        array = array.astype(rng.choice(kinds))
    elif kind == 2:
        array = rng.choice((array[:-1], array[None], array[:, :0], array[:, 0], array.T, np.float32(1), array[:0]))
    elif kind in (3, 4):
        array = array.astype(np.float64)
        value = rng.choice((np.nan, np.inf, 1e30, 1e38, 1e39, 1e300, -1e30, 1e-45, 0.0))
        array[rng.randrange(len(array)) if rng.random() < 0.5 else slice(None)] = value
    elif kind == 5:
        end = content.index(b"\n")
        objects = b"{'descr': '|O', 'fortran_order': False, 'shape': (12, 6)}"
        huge = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 6)}"
        header = rng.choice((b"{}", b"[]", b"{'descr': '<f4'}", objects))
        header = (header if rng.random() < 0.6 else huge).ljust(end - 10)
        return content[:8] + struct.pack("<H", len(header) + 1) + header + content[end:]
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def yaml_value(rng: Random) -> str:
    """What may stand behind a key of YAML."""
    return rng.choice(
        (
            lambda: json.dumps(rng.choice(TEXTS)),
            lambda: rng.choice(TEXTS),
            lambda: str(rng.choice(NUMBERS)),
            lambda: rng.choice(
                (".nan", ".inf", "~", "[]", "{}", "[a, 1]", "{a: 1, a: 2}", "&a [*a]", "*a", "!!binary x", "|")
            ),
            lambda: rng.choice(
                ("2021-02-30", "12:30:00", "0o17", "0x1f", "1_000", "!!python/name:os.system", "!x y", "? a")
            ),
            lambda: deep(rng),
            lambda: str(rng.randint(-3, 12)),
        )
    )()


def spoil_yaml(rng: Random, content: bytes) -> bytes:
    """Keys and values of a flat YAML file replaced, doubled, dropped or misspelt, or bytes changed."""
    if rng.random() < 0.2:
        return spoil_bytes(rng, content)
    lines = content.decode().rstrip("\n").split("\n")
    for _ in range(rng.randint(1, 2)):
        position = rng.randrange(len(lines))
        key = lines[position].partition(":")[0]
        kind = rng.randrange(6)
        if kind <= 3:
            lines[position] = f"{key}: {yaml_value(rng)}"
        elif kind == 4:
            lines.insert(position, f"{key}: {yaml_value(rng)}")
        else:
            lines[position] = f"{rng.choice(TEXTS)}: 1"
    text = "\n".join(lines)
    return text.encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1")), "replace")


def change_file(rng: Random, path: Path, change: Callable[[Random, bytes], bytes]) -> None:
    path.write_bytes(change(rng, path.read_bytes()))
