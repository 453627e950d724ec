"""Other ways to write the same file: what a reader makes of it must stay the same."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

FURTHER = "more"
"""Name of the further column that tables may get."""


def other_table(separator: str) -> Callable[[Random, bytes], bytes]:
    """The same table in another way: other line ends, a BOM, blank lines, more quotes, a further column, its end."""

    def change(rng: Random, content: bytes) -> bytes:
        rows = list(csv.reader(io.StringIO(content.decode(), newline=""), delimiter=separator))
        if rng.random() < 0.3:
            rows = [[*row, FURTHER if position == 0 else "1"] for position, row in enumerate(rows)]
        buffer = io.StringIO(newline="")
        quoting = rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
        csv.writer(buffer, delimiter=separator, lineterminator="\n", quoting=quoting).writerows(rows)
        return other_lines(rng, buffer.getvalue().encode())

    return change


def other_lines(rng: Random, content: bytes) -> bytes:
    """The same lines with other ends, a BOM, blank lines, or no end."""
    content = content.rstrip(b"\n") + b"\n" * rng.randint(0, 3)
    if rng.random() < 0.4:
        content = content.replace(b"\n", b"\r\n")
    return b"\xef\xbb\xbf" + content if rng.random() < 0.4 else content


def other_json_lines(rng: Random, content: bytes) -> bytes:
    """The same objects with further keys, in another order of keys, with blank lines, perhaps packed."""
    lines = []
    for line in content.splitlines():
        record = json.loads(line)
        names = [*record, "zz"]
        rng.shuffle(names)
        lines.append(json.dumps({name: {**record, "zz": {"a": [1, "x"]}}[name] for name in names}))
    text = "\n".join(lines) + "\n" * rng.randint(0, 3)
    return gzip.compress(text.encode(), mtime=0) if rng.random() < 0.3 else text.encode()


def other_parquet(rng: Random, content: bytes) -> bytes:
    """The same rows in other row groups, another packing, another order of columns, perhaps large strings."""
    table = pq.read_table(io.BytesIO(content))
    names = list(table.column_names)
    rng.shuffle(names)
    table = table.select(names)
    if rng.random() < 0.5:
        large = [f.with_type(pa.large_string()) if pa.types.is_string(f.type) else f for f in table.schema]
        table = table.cast(pa.schema(large))
    buffer = io.BytesIO()
    pq.write_table(
        table, buffer, row_group_size=rng.choice((7, 1000)), compression=rng.choice(("none", "snappy", "gzip"))
    )
    return buffer.getvalue()
