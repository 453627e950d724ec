"""What the campaign attacks: for each group the files, how they are changed, how they are read, what must hold."""

import hashlib
import json
import re
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from hostile import harmless, mutate
from support.builder import build, in_memory, read_tables
from support.small_corpus import write_published
from support.tables import write_table

from minionerec.data.published import published_files, read_published_files
from minionerec.data.source import BadRows
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import READERS
from minionerec.pipeline.settings import description, parse_settings
from minionerec.pipeline.stages import STAGES

N_USERS, N_ITEMS, N_INTERACTIONS = 8, 6, 48
START = 1_500_000_000
MANY = 10**6


class Broken(Exception):
    """Something that must hold does not."""


@dataclass(frozen=True)
class Group:
    """One kind of attack.

    Attributes:
        name: Its name.
        make: Writes the undisturbed files into a folder; run once.
        strike: Changes a copy of them and reads it: gives words on what came out, raises `Broken` where something does
            not hold, and passes every other exception on.
        share: Its share of a campaign's cases, in relation to others.
        seconds: Within which a case must answer, where it takes longer than others; None for as long as they.
    """

    name: str
    make: Callable[[Path], None]
    strike: Callable[[Random, Path, Path], str]
    share: float = 1.0
    seconds: float | None = None


def holds(condition: bool, what: str) -> None:
    """Raise `Broken` where a condition is not met."""
    if not condition:
        raise Broken(what)


# Readers of raw data


def _interactions() -> list[tuple[str, str, int]]:
    return [
        (f"u{position * 5 % N_USERS}", f"i{position * 7 % N_ITEMS}", START + position * 9_000)
        for position in range(N_INTERACTIONS)
    ]


def _make_tables(suffix: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        items = [(f"i{n}", f"Tea {n}", 'Nice, and "warm"') for n in range(N_ITEMS)]
        for name, rows, columns in (
            ("interactions", _interactions(), ["user_id", "item_id", "timestamp"]),
            ("items", items, ["item_id", "title", "description"]),
        ):
            write_table(pd.DataFrame(rows, columns=columns), folder / f"{name}{suffix}")

    return make


def _make_recbole(folder: Path) -> None:
    rows = "".join(f"{user}\t{item}\t{time}\n" for user, item, time in _interactions())
    (folder / "interactions.inter").write_text(f"user_id:token\titem_id:token\ttimestamp:float\n{rows}")
    items = "".join(f"i{item}\tTea {item}\n" for item in range(N_ITEMS))
    (folder / "items.item").write_text(f"item_id:token\ttitle:token_seq\n{items}")


def _make_movielens(folder: Path) -> None:
    rows = "".join(f"{user[1:]}::{item[1:]}::5::{time}\n" for user, item, time in _interactions())
    (folder / "interactions.dat").write_text(rows)
    (folder / "items.dat").write_text("".join(f"{item}::Film {item}::Drama|War\n" for item in range(N_ITEMS)))


def _make_amazon(folder: Path) -> None:
    reviews = [{"reviewerID": user, "asin": item, "unixReviewTime": time} for user, item, time in _interactions()]
    items = [{"asin": f"i{n}", "title": f"Tea {n}", "description": ["Nice"], "brand": "B"} for n in range(N_ITEMS)]
    for name, records in (("interactions", reviews), ("items", items)):
        (folder / f"{name}.json").write_text("\n".join(map(json.dumps, records)) + "\n")


def _make_user_items(folder: Path) -> None:
    chosen: dict[str, list[str]] = {}
    for user, item, _ in _interactions():
        chosen.setdefault(user, []).append(item)
    (folder / "interactions.txt").write_text("".join(f"{user} {' '.join(items)}\n" for user, items in chosen.items()))
    (folder / "items.json").write_text(json.dumps({f"i{item}": f"Tea {item}" for item in range(N_ITEMS)}))


@dataclass(frozen=True)
class _Read:
    """What a reader made of two files."""

    used: int
    users: int
    kept_items: int
    kinds: dict[str, int]
    counts: dict[str, int]
    result: str


def _prepare(source: str, folder: Path, allowed: int) -> _Read:
    files = {name: str(next(folder.glob(f"{name}.*"))) for name in ("interactions", "items")}
    split = "leave_last_out" if source == "user_items" else "global_time"
    config = PrepareConfig(source=source, max_bad_rows=allowed, split=split, output="corpus", **files)
    bad = BadRows(allowed)
    found = in_memory(READERS[source](config, config.inputs(), bad))
    built = build(found, split=split)
    items = found.items.drop(columns=harmless.FURTHER, errors="ignore")  # which a corpus keeps, as every column
    hashed = hashlib.sha256(items.to_json().encode("utf-8", "surrogatepass"))
    hashed.update(repr(found.user_ids.to_pylist()).encode("utf-8", "surrogatepass"))
    for array in (found.users, found.item_index, [] if found.times is None else found.times / (found.ticks or 1)):
        hashed.update(np.asarray(array, dtype=np.float64).tobytes())
    holds(
        built.counts["rows"] == sum(built.counts[f"{name}_rows"] for name in ("train", "valid", "test")), "rows vanish"
    )
    holds(set(found.items["item_id"]) >= set(found.items["item_id"][np.unique(found.item_index)]), "unknown items")
    return _Read(
        len(found.users), len(found.user_ids), len(found.items), dict(bad.kinds), found.counts, hashed.hexdigest()
    )


_LINE = re.compile(rb"\r\n|\r|\n")


def _lines(path: Path) -> tuple[int, int]:
    """Filled lines and all lines of a text file."""
    lines = _LINE.split(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    return sum(bool(line.strip(b" \t")) for line in lines), len(lines)


def filled_lines(path: Path) -> tuple[int, int]:
    """Filled lines of a text file and how many there may be, as its kind ends lines; of parquet its rows.

    Cells of parquet are not decoded: pandas refuses a column of lists that its metadata name texts, and names that
    occur twice.
    """
    if path.suffix == ".parquet":
        rows = pq.read_metadata(path).num_rows
        return rows, rows
    if path.suffix not in (".json", ".jsonl", ".txt"):
        return _lines(path)
    # A lone \\r ends no line here: it is white space, as others of Unicode are.
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace").split("\n")
    filled = sum(bool(line.strip()) for line in lines)
    return filled, filled


def _account(read: _Read, name: str, path: Path, header: bool) -> None:
    """Every row of the changed file is used or counted."""
    filled, every = filled_lines(path)
    of_interactions = read.kinds.get("unknown_item", 0) + read.counts.get("reviews_without_item", 0)
    others = sum(read.kinds.values()) - read.kinds.get("unknown_item", 0)
    if name == "interactions":
        inside = read.counts.get("lines_inside_interaction_cells", 0)
        found = (read.users if path.suffix == ".txt" else read.used) + of_interactions + others + inside + header
        holds(filled <= found <= every, f"{found} of {filled} to {every} lines are used or counted")
        return
    lost = of_interactions and path.name == "items.json" and not read.counts  # a line of a user counts as one
    holds(
        lost or read.used + of_interactions == N_INTERACTIONS,
        f"{read.used} used and {of_interactions} counted of {N_INTERACTIONS} interactions",
    )
    if path.suffix != ".json":
        found = read.kept_items + others + read.counts.get("lines_inside_item_cells", 0) + header
        holds(filled <= found <= every, f"{found} of {filled} to {every} lines of items are used or counted")


def _reader(
    name: str,
    make: Callable[[Path], None],
    source: str,
    spoil: Callable[[Random, bytes], bytes],
    other: Callable[[Random, bytes], bytes],
    share: float,
    *,
    header: bool = False,
) -> Group:
    def strike(rng: Random, clean: Path, folder: Path) -> str:
        table = rng.choice(("interactions", "interactions", "items"))
        path = next(folder.glob(f"{table}.*"))
        if rng.random() < 0.15:
            before = _prepare(source, clean, 0)
            mutate.change_file(rng, path, other)
            holds(_prepare(source, folder, 0).result == before.result, "another result of the same rows")
            return "the same"
        mutate.change_file(rng, path, spoil)
        _account(_prepare(source, folder, rng.choice((0, 0, MANY))), table, path, header)
        return "read"

    return Group(name, make, strike, share)


def _make_published(folder: Path) -> None:
    _make_tables(".csv")(folder)
    source = read_tables(folder / "interactions.csv", folder / "items.csv")
    write_published(folder / "Amazon", "Toys", build(source).corpus())


def _strike_published(rng: Random, clean: Path, folder: Path) -> str:
    files = published_files(folder / "Amazon", "Toys")
    name = rng.choice(sorted(files))
    spoilers = {".csv": mutate.spoil_text(","), ".txt": mutate.spoil_text("\t"), ".json": mutate.spoil_json}
    mutate.change_file(rng, files[name], spoilers[files[name].suffix])
    corpus = read_published_files(files)
    if name in ("train", "valid", "test"):
        filled, every = _lines(files[name])
        used = len(corpus.splits()[name]) + 1
        spanned = files[name].read_bytes().count(b'"') > 0
        holds(used == filled or (spanned and used <= every), f"{used} of {filled} lines are used")
    return "read"


def _spoil_user_items(rng: Random, content: bytes) -> bytes:
    return (mutate.spoil_json if content.startswith(b"{") else mutate.spoil_text(" "))(rng, content)


# Settings


def _strike_settings(rng: Random, clean: Path, folder: Path) -> str:
    stage = rng.choice(sorted(STAGES))
    config = STAGES[stage].config_class()
    given = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(config)
    }
    needed = {each.name for each in fields(config) if description(each).required and not given[each.name]}
    chosen = {*needed, *rng.sample(sorted(given), rng.randint(1, min(4, len(given))))}
    values = {name: given[name] or "x" if name in needed else given[name] for name in sorted(chosen)}
    values |= {name: {"x": "y"} for name in needed if isinstance(given[name], dict)}
    if rng.random() < 0.6:
        text = "\n".join(f"{name}: {json.dumps(value, default=str)}" for name, value in values.items()).encode()
        path = folder / "settings.yaml"
        path.write_bytes(mutate.spoil_yaml(rng, text) if rng.random() < 0.9 else text)
        words = ["--config", str(path)]
    else:
        struck = rng.choice(sorted(values))
        words = []
        for name, value in values.items():
            each = [f"{key}={entry}" for key, entry in value.items()] if isinstance(value, dict) else value
            each = [str(entry) for entry in (each if isinstance(each, list) else [each])]
            words += [f"--{name}", *([rng.choice(mutate.TEXTS)] if name == struck else each)]
    found = parse_settings(config, words)
    hints = typing.get_type_hints(config)
    for each in fields(config):
        value, hint = getattr(found, each.name), hints[each.name]
        plain = typing.get_origin(hint) or hint
        if isinstance(plain, type) and plain in (int, float, str, bool, list, dict):
            holds(type(value) is plain, f"{stage} {each.name} is a {type(value).__name__}: {value!r:.80}")
    return "read"


_COMMAS, _TABS, _COLONS = map(mutate.spoil_text, (",", "\t", "::"))
RAW = (
    _reader("csv", _make_tables(".csv"), "tables", _COMMAS, harmless.other_table(","), 8, header=True),
    _reader("tsv", _make_tables(".tsv"), "tables", _TABS, harmless.other_table("\t"), 4, header=True),
    _reader("parquet", _make_tables(".parquet"), "tables", mutate.spoil_parquet, harmless.other_parquet, 6),
    _reader("amazon", _make_amazon, "amazon2018", mutate.spoil_json, harmless.other_json_lines, 5),
    _reader("recbole", _make_recbole, "recbole", _TABS, harmless.other_lines, 3, header=True),
    _reader("movielens", _make_movielens, "movielens", _COLONS, harmless.other_lines, 3),
    _reader("user items", _make_user_items, "user_items", _spoil_user_items, harmless.other_lines, 3),
    Group("published", _make_published, _strike_published, 4),
    Group("settings", lambda folder: None, _strike_settings, 8),
)
