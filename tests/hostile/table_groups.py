"""What the campaign does to further files that users give: item tables, times, recipes, records."""

import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import yaml
from hostile import harmless, mutate
from hostile.groups import START, Group, holds
from support.tables import write_table

import minionerec
from minionerec.core.artefacts import write_artefact
from minionerec.core.errors import DataError
from minionerec.core.records import read_run_record
from minionerec.data.corpus import Corpus
from minionerec.data.names import COLUMNS
from minionerec.data.rows import SplitExamples
from minionerec.data.source import BadRows
from minionerec.data.sources.tables import parse_items, read_table
from minionerec.data.times import NO_TIME
from minionerec.data.times_file import with_times_of_file
from minionerec.pipeline.cli.plan import Plan
from minionerec.pipeline.cli.recipes import read_recipe
from minionerec.recommend.items import CatalogueItems

N_ITEMS, N_ROWS, N_USERS = 8, 24, 5
SUFFIXES = {".csv": mutate.spoil_text(","), ".tsv": mutate.spoil_text("\t"), ".parquet": mutate.spoil_parquet}


def _is(value: Any, text: str) -> bool:
    """Whether a value is what a cell says."""
    if value is None:
        return not text.strip()
    return float(text) == value if isinstance(value, float) else str(value).lower() == text.strip().lower()


def _untouched(path: Path, before: bytes) -> list[str]:
    """The lines of a text table that are as they were; none where its header is not."""
    old, new = (content.decode("utf-8", "replace").split("\n") for content in (before, path.read_bytes()))
    return [line for line in old[1:] if line.strip() and line in new] if old[0] == new[0] else []


# The items table of a recommender


def _make_items(folder: Path) -> None:
    rows = [(f"i{n}", f"Tea {n}", 'Nice, and "warm"', n + 0.5, n % 2 == 0) for n in range(N_ITEMS)]
    table = pd.DataFrame(rows, columns=["item_id", "title", "note", "price", "fresh"])
    for suffix in SUFFIXES:
        write_table(table, folder / f"items{suffix}")


def _read_items(path: Path) -> tuple[CatalogueItems, int]:
    """The items of a table, and the number of its lines inside cells."""
    items, inside = parse_items(read_table(path), path, BadRows(), COLUMNS)
    found = CatalogueItems.of(SimpleNamespace(items=items))  # type: ignore[arg-type]
    for name, column in found.columns.items():
        holds(len(column.values) == len(items), f"{name} has {len(column.values)} values")
        some = next((value for value in map(column.at, range(len(items))) if value is not None), None)
        if some is not None:
            holds(bool(found.mask({name: [some]}).any()), f"no item has {name} {some!r:.60}, which one has")
    return found, inside


def _strike_items(rng: Random, clean: Path, folder: Path) -> str:
    suffix = rng.choice((".csv", ".csv", ".tsv", ".parquet"))
    path = folder / f"items{suffix}"
    before = path.read_bytes()
    same = rng.random() < 0.15
    separator = "\t" if suffix == ".tsv" else ","
    other = harmless.other_parquet if suffix == ".parquet" else harmless.other_table(separator)
    mutate.change_file(rng, path, other if same else SUFFIXES[suffix])
    found, inside = _read_items(path)
    if same:
        for name, column in _read_items(clean / path.name)[0].columns.items():
            holds(found.columns[name].values.tolist() == column.values.tolist(), f"other values of {name}")
    elif suffix != ".parquet":
        lines = _untouched(path, before)
        swallowed = sum(found.index(line.split(separator)[0]) is None for line in lines)
        holds(swallowed <= inside, f"{swallowed} lines are gone, {inside} are said to be inside cells")
        for line in lines:
            item, _, _, price, fresh = line.replace('"Nice, and ""warm"""', "").split(separator)
            number = found.index(item)
            for name, text in (("price", price), ("fresh", fresh)) if number is not None else ():
                holds(_is(found.columns[name].at(number), text), f"{name} of {item} is not {text}")
    return "read"


# Data frames, given to `prepare_data` and to a recommender

TEXTS = [
    (1, "1"), (2.5, "2.5"), (3.0, "3"), (2**60 + 1, str(2**60 + 1)), (2**70, str(2**70)), (True, "True"), (None, ""),
    (np.nan, ""), (pd.NA, ""), ("a b", "a b"), ("09", "09"), (Decimal("1.50"), "1.50"), (b"x", "x"), ([], ""),
    (["x", None, "y"], "x y"), (date(2018, 1, 31), "2018-01-31"), (np.float32(0.5), "0.5"), (np.int8(7), "7"),
]  # fmt: skip
"""Cells and their texts."""
NO_TEXTS = [1j, "\ud800", {"a": 1}, object(), b"\xff", [1j]]
TYPED = {
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
"""Types of columns, with cells and their texts; None where they are no texts."""


def _frame_column(rng: Random) -> tuple[pd.Series, list[str] | None]:
    """A column of a random type or of random cells, and the texts of its cells; None where some are no texts."""
    kind = rng.choice(["mixed", "mixed", "wrong", *TYPED])
    if kind in TYPED:
        cells, texts = TYPED[kind]
        rows = [rng.randrange(3) for _ in range(N_ITEMS)]
        column = pd.Series([cells[row] for row in rows], dtype=object).astype(kind)
        return column, texts and [texts[row] for row in rows]
    some = rng.sample(TEXTS, rng.randint(1, 4))
    pairs = [rng.choice(some) for _ in range(N_ITEMS)]
    cells = [cell for cell, _ in pairs]
    if kind == "wrong":
        cells[rng.randrange(N_ITEMS)] = rng.choice(NO_TEXTS)
    return pd.Series(cells, dtype=object), None if kind == "wrong" else [text for _, text in pairs]


def _make_frames(folder: Path) -> None:
    (folder / "frames").mkdir()


def _strike_frames(rng: Random, clean: Path, folder: Path) -> str:
    read, texts = _frame_column(rng)
    unread, _ = _frame_column(rng)
    ids = [f"i{n}" for n in range(N_ITEMS)] if rng.random() < 0.5 else list(range(N_ITEMS))
    if rng.random() < 0.3:
        ids[0] = "first"
    items = pd.DataFrame({"item_id": pd.Series(ids, dtype=object), "title": read})
    if rng.random() < 0.2:
        items = items.set_index("item_id")
        read, unread = read.set_axis(items.index), unread.set_axis(items.index)
    if rng.random() < 0.5:
        items["other"] = unread
    if rng.random() < 0.2:
        items = pd.concat([items, unread.rename(rng.choice(["twice", "other", 7])), unread.rename("twice")], axis=1)
    if rng.random() < 0.5:
        return _strike_filters(items, texts, [str(each) for each in ids], folder)
    interactions = pd.DataFrame(
        [(n % N_USERS, ids[n * 3 % N_ITEMS], START + 86_400 * n) for n in range(N_ROWS)],
        columns=["user_id", "item_id", "timestamp"],
    )
    form = rng.choice(["int64[pyarrow]", "date32[pyarrow]", "object", "Int64"])
    if form in ("date32[pyarrow]", "object"):
        interactions["timestamp"] = pd.to_datetime(interactions["timestamp"], unit="s").dt.date
    interactions["timestamp"] = interactions["timestamp"].astype(form)
    try:
        prepared = minionerec.prepare_data(items, interactions, output=folder / "corpus", split="leave_last_out")
    except DataError as error:
        holds(texts is None and "'title'" in str(error), f"refused: {error}")
        raise
    titles = pd.read_parquet(prepared.output / "items.parquet")["title"].tolist()
    holds(titles == texts, f"titles {titles}, not {texts}")
    holds(Corpus.load(prepared.output).counts["interactions"] == N_ROWS, "interactions are lost")
    return "used"


def _strike_filters(items: pd.DataFrame, texts: list[str] | None, ids: list[str], folder: Path) -> str:
    rows = items.rename(columns={"title": "read"}).assign(title="Tea")
    interactions = pd.DataFrame({"user_id": ["u"] * N_ROWS, "item_id": [ids[n % N_ITEMS] for n in range(N_ROWS)]})
    prepared = minionerec.prepare_data(
        rows, interactions, columns={"time": None}, split="leave_last_out", output=folder / "corpus"
    )
    columns = CatalogueItems.of(Corpus.load(prepared.output)).columns
    holds((texts is None) == ("read" not in columns), "a column is left out if a cell is no text")
    for row, text in enumerate(texts or []):
        value = columns["read"].at(row)
        if value is None:
            same = text == ""
        elif isinstance(value, bool):
            same = str(value) == text
        else:
            same = Decimal(text) == Decimal(str(value)) if isinstance(value, int | float) else value == text
        holds(same, f"{value!r} is not {text!r}")
        if value is not None:
            met = columns["read"].holds(value, "where.read")
            wanted = [columns["read"].at(other) == value for other in range(N_ITEMS)]
            holds(met.tolist() == wanted, f"the filter {value!r} gives {met.tolist()}")
    return "used"


# Times of rows


def _make_times(folder: Path) -> None:
    rows = [f"{row},{1_500_000_000 + row},{1_400_000_000 + row}" for row in range(9)]
    lines = [
        "split,row,timestamp,previous_timestamp",
        *(f"{split},{row}" for split in ("valid", "test") for row in rows),
    ]
    lines[4] = "valid,3,1500000003,"
    (folder / "times.csv").write_text("\n".join(lines) + "\n")


def _strike_times(rng: Random, clean: Path, folder: Path) -> str:
    path = folder / "times.csv"
    before = path.read_bytes()
    rows = SplitExamples.of(["u"] * 9, [[0]] * 9, [0] * 9)
    items = pd.DataFrame({"item_id": ["i0"], "title": "", "description": ""})
    corpus = Corpus(items, rows, rows, rows, split="by hand", max_history=10)
    same = rng.random() < 0.15
    mutate.change_file(rng, path, harmless.other_table(",") if same else SUFFIXES[".csv"])
    timed = with_times_of_file(corpus, path)
    for split in ("valid", "test"):
        found = timed.rows(split).times
        if (np.array([found.time, found.previous]) == NO_TIME).all():
            holds(not same and split.encode() not in path.read_bytes(), f"times of {split} are lost")
            continue
        holds(found.time.dtype == found.previous.dtype == np.int64, "times of another type")
        holds(len(found.time) == len(found.previous) == 9, "times of another number")
        holds(not bool((found.later & found.same).any()), "both later and at the same time")
        for line in before.decode().split("\n")[1:-1] if same else _untouched(path, before):
            name, row, time, previous = line.split(",")
            if name == split:
                wanted = [int(time), int(previous) if previous else NO_TIME]
                holds([found.time[int(row)], found.previous[int(row)]] == wanted, f"other times than in {line}")
    return "read"


# Recipes, run records


RECIPE = """output: runs/mine
seeds: [1, 2]
jobs: 2
variables: {width: 64, rates: {low: 1e-4}}
steps:
  corpus: {stage: prepare-data, source: tables, items: items.csv, interactions: visits.csv}
  sids: {stage: build-sids, corpus: "{corpus}"}
  sft: {corpus: "{corpus}", sids: "{sids}", hidden_size: "{width}"}
  wide: {config: "#sft", hidden_size: 128}
  test: {stage: eval-beam, corpus: "{corpus}", checkpoint: "{sft}"}
  valid: {config: "#test", split: valid}
  report: {corpus: "{corpus}", sids: "{sids}", predictions: {SFT: "{test}", other: ["{valid}"]}}
"""


def _make_text(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def spoil_nested(rng: Random, content: bytes) -> bytes:
    """YAML of several levels with a line changed, or a value anywhere in it (JSON is YAML, too)."""
    if rng.random() < 0.4:
        return mutate.spoil_yaml(rng, content)
    return mutate.spoil_json(rng, json.dumps(yaml.safe_load(content)).encode())


def _strike_recipe(rng: Random, clean: Path, folder: Path) -> str:
    mutate.change_file(rng, folder / "recipe.yaml", spoil_nested)
    recipe = read_recipe(folder / "recipe.yaml")
    jobs = Plan(recipe, seeds=rng.choice(((), (3,), (4, 5)))).all()
    holds({key.step for key in jobs} == set(recipe.steps), "steps without a job")
    folders = [job.output.resolve() for job in jobs.values() if job.output is not None]
    holds(len(set(folders)) == len(folders), "two jobs write one path")
    holds(all(need in jobs for job in jobs.values() for need in job.needs), "a job needs what nobody makes")
    return "read"


def _make_record(folder: Path) -> None:
    card = {"name": "any", "memory_bytes": 2**34}
    machine = {"processor": "any", "cores": 2, "threads": 2, "memory_bytes": 2**33, "gpus": [card]}
    record = {
        **{"command": ["minionerec", "sft"], "commit": None, "started": "2030-01-31T12:00:00Z"},
        **{"ended": "2030-01-31T12:01:00Z", "seconds": {"all": 60.0, "train": 50.5}, "resumed_from": 3, "parts": 2},
        **{"machine": machine, "processes": 1, "batch": {"per_device": 2, "accumulation": 2, "global": 4}},
        **{"peak_memory_bytes": 2**30, "peak_gpu_memory_bytes": 2**31},
    }
    with write_artefact(folder / "made", "cups", config={}) as path:
        (path / "cup.txt").write_text("cup")
    (folder / "made.record.json").write_text(json.dumps(record))


def _strike_record(rng: Random, clean: Path, folder: Path) -> str:
    mutate.change_file(rng, folder / "made.record.json", mutate.spoil_json)
    found = read_run_record(folder / "made")
    if found is not None:
        seconds = list(found.seconds.values())
        holds(all(isinstance(value, float) and np.isfinite(value) and value >= 0 for value in seconds), f"{seconds}")
        counts = [found.processes, found.parts, found.machine.cores, found.machine.threads]
        holds(all(type(value) is int and value >= 0 for value in counts), f"{counts}")
        holds(all(isinstance(word, str) for word in found.command), f"{found.command}")
    return "read"


TABLES = (
    Group("items table", _make_items, _strike_items, 4),
    Group("frames", _make_frames, _strike_frames, 2),
    Group("times", _make_times, _strike_times, 3),
    Group("recipe", _make_text("recipe.yaml", RECIPE), _strike_recipe, 4),
    Group("run record", _make_record, _strike_record, 2),
)
