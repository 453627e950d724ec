"""Mutated files and settings: a reader uses or counts every row, or refuses a file in one line.

`make hostile` runs these tests on thousands of examples each.
"""

import hashlib
import json
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hostile import harmless, mutate
from hostile.mutate import attacked, copied_files, filled_lines, mutated_copy, randoms, read_or_refused
from hypothesis import given
from support.builder import build, in_memory, read_tables
from support.small_corpus import write_published
from support.small_shop import make_shop, sign
from support.tables import write_table

from minionerec.core.artefacts import open_artefact, write_artefact
from minionerec.data.corpus import Corpus
from minionerec.data.published import published_files, read_published_files
from minionerec.data.source import BadRows
from minionerec.metrics.predictions import GIVEN, Predictions
from minionerec.metrics.ranked import Ranked, write_ranks
from minionerec.pipeline.cli.plan import Plan
from minionerec.pipeline.cli.recipes import read_recipe
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import READERS
from minionerec.pipeline.recommend import read_histories
from minionerec.pipeline.settings import description, parse_settings
from minionerec.pipeline.stages import STAGES
from minionerec.sid.embed.stored import load_vector_table, load_vectors
from minionerec.sid.table import SidTable

N_USERS, N_ITEMS, N_INTERACTIONS = 8, 6, 48
START = 1_500_000_000
MANY = 10**6

# Readers of raw data


def interactions() -> list[tuple[str, str, int]]:
    return [(f"u{n * 5 % N_USERS}", f"i{n * 7 % N_ITEMS}", START + n * 9_000) for n in range(N_INTERACTIONS)]


def make_tables(folder: Path, suffix: str) -> None:
    items = [(f"i{n}", f"Tea {n}", 'Nice, and "warm"') for n in range(N_ITEMS)]
    for name, rows, columns in (
        ("interactions", interactions(), ["user_id", "item_id", "timestamp"]),
        ("items", items, ["item_id", "title", "description"]),
    ):
        write_table(pd.DataFrame(rows, columns=columns), folder / f"{name}{suffix}")


def make_amazon(folder: Path) -> None:
    reviews = [{"reviewerID": user, "asin": item, "unixReviewTime": time} for user, item, time in interactions()]
    items = [{"asin": f"i{n}", "title": f"Tea {n}", "description": ["Nice"], "brand": "B"} for n in range(N_ITEMS)]
    for name, records in (("interactions", reviews), ("items", items)):
        (folder / f"{name}.json").write_text("\n".join(map(json.dumps, records)) + "\n")


def make_recbole(folder: Path) -> None:
    rows = "".join(f"{user}\t{item}\t{time}\n" for user, item, time in interactions())
    (folder / "interactions.inter").write_text(f"user_id:token\titem_id:token\ttimestamp:float\n{rows}")
    items = "".join(f"i{item}\tTea {item}\n" for item in range(N_ITEMS))
    (folder / "items.item").write_text(f"item_id:token\ttitle:token_seq\n{items}")


def make_movielens(folder: Path) -> None:
    rows = "".join(f"{user[1:]}::{item[1:]}::5::{time}\n" for user, item, time in interactions())
    (folder / "interactions.dat").write_text(rows)
    (folder / "items.dat").write_text("".join(f"{item}::Film {item}::Drama|War\n" for item in range(N_ITEMS)))


def make_user_items(folder: Path) -> None:
    chosen: dict[str, list[str]] = {}
    for user, item, _ in interactions():
        chosen.setdefault(user, []).append(item)
    (folder / "interactions.txt").write_text("".join(f"{user} {' '.join(items)}\n" for user, items in chosen.items()))
    (folder / "items.json").write_text(json.dumps({f"i{item}": f"Tea {item}" for item in range(N_ITEMS)}))


def spoil_user_items(rng, content: bytes) -> bytes:
    return (mutate.spoil_json if content.startswith(b"{") else mutate.spoil_text(" "))(rng, content)


class Format(typing.NamedTuple):
    """Files of a reader: how they are made, spoilt and written in another way, and whether they have a header."""

    make: Callable[[Path], None]
    source: str
    spoil: Callable[..., bytes]
    rewrite: Callable[..., bytes]
    header: bool = False


COMMAS, TABS, COLONS = map(mutate.spoil_text, (",", "\t", "::"))
FORMATS = {
    "csv": Format(lambda to: make_tables(to, ".csv"), "tables", COMMAS, harmless.other_table(","), True),
    "tsv": Format(lambda to: make_tables(to, ".tsv"), "tables", TABS, harmless.other_table("\t"), True),
    "parquet": Format(lambda to: make_tables(to, ".parquet"), "tables", mutate.spoil_parquet, harmless.other_parquet),
    "amazon": Format(make_amazon, "amazon2018", mutate.spoil_json, harmless.other_json_lines),
    "recbole": Format(make_recbole, "recbole", TABS, harmless.other_lines, True),
    "movielens": Format(make_movielens, "movielens", COLONS, harmless.other_lines),
    "user items": Format(make_user_items, "user_items", spoil_user_items, harmless.other_lines),
}


@pytest.fixture(scope="module", params=FORMATS)
def raw(request, tmp_path_factory) -> tuple[Format, Path]:
    """A format, and a folder with its files."""
    form, folder = FORMATS[request.param], tmp_path_factory.mktemp("raw")
    form.make(folder)
    return form, folder


@dataclass(frozen=True)
class Read:
    """What a reader makes of two files."""

    used: int
    users: int
    kept_items: int
    kinds: dict[str, int]
    counts: dict[str, int]
    digest: str


def prepare(source: str, folder: Path, allowed: int) -> Read:
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
    assert built.counts["rows"] == sum(built.counts[f"{name}_rows"] for name in ("train", "valid", "test"))
    assert found.item_index.max(initial=-1) < len(found.items)
    sizes = len(found.users), len(found.user_ids), len(found.items)
    return Read(*sizes, dict(bad.kinds), found.counts, hashed.hexdigest())


def check_every_row(read: Read, name: str, path: Path, header: bool) -> None:
    """Every row of the changed file is used or counted, and every interaction of the other file."""
    filled, every = filled_lines(path)
    of_interactions = read.kinds.get("unknown_item", 0) + read.counts.get("reviews_without_item", 0)
    others = sum(read.kinds.values()) - read.kinds.get("unknown_item", 0)
    if name == "interactions":
        inside = read.counts.get("lines_inside_interaction_cells", 0)
        counted = (read.users if path.suffix == ".txt" else read.used) + of_interactions + others + inside + header
        assert filled <= counted <= every
        return
    lost = of_interactions and path.name == "items.json" and not read.counts  # a line of a user counts as one
    assert lost or read.used + of_interactions == N_INTERACTIONS
    if path.suffix != ".json":
        counted = read.kept_items + others + read.counts.get("lines_inside_item_cells", 0) + header
        assert filled <= counted <= every


def test_every_row_of_a_mutated_table_is_used_or_counted(raw):
    form, clean = raw
    read = []

    @attacked
    @given(randoms)
    def attack(rng):
        with copied_files(clean) as folder:
            name = rng.choice(("interactions", "interactions", "items"))
            path = next(folder.glob(f"{name}.*"))
            mutate.change_file(rng, path, form.spoil)
            found = read_or_refused(lambda: prepare(form.source, folder, rng.choice((0, 0, MANY))))
            if found is not None:
                check_every_row(found, name, path, form.header)
                read.append(found)

    attack()
    assert read  # files that are refused for another reason than their mutation would test nothing


def test_the_same_rows_in_other_files_are_read_alike(raw):
    form, clean = raw
    before = prepare(form.source, clean, 0)

    @attacked
    @given(randoms)
    def attack(rng):
        with copied_files(clean) as folder:
            path = next(folder.glob(f"{rng.choice(('interactions', 'items'))}.*"))
            if path.name != "items.json" or form.source != "user_items":  # one JSON object, not a table of lines
                mutate.change_file(rng, path, form.rewrite)
            assert prepare(form.source, folder, 0).digest == before.digest

    attack()


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    make_tables(folder, ".csv")
    source = read_tables(folder / "interactions.csv", folder / "items.csv")
    write_published(folder / "Amazon", "Toys", build(source).corpus())
    return folder


@attacked
@given(randoms)
def test_every_line_of_a_mutated_published_table_is_a_row(published, rng):
    spoilers = {".csv": COMMAS, ".txt": TABS, ".json": mutate.spoil_json}
    with copied_files(published) as folder:
        files = published_files(folder / "Amazon", "Toys")
        name = rng.choice(sorted(files))
        mutate.change_file(rng, files[name], spoilers[files[name].suffix])
        corpus = read_or_refused(lambda: read_published_files(files))
        if corpus is not None and name in ("train", "valid", "test"):
            filled, every = filled_lines(files[name])
            used = len(corpus.splits()[name]) + 1
            assert used == filled or (b'"' in files[name].read_bytes() and used <= every)


# Settings and recipes


@attacked
@given(randoms)
def test_settings_that_are_accepted_have_their_types(tmp_path_factory, rng):
    config = STAGES[rng.choice(sorted(STAGES))].config_class()
    given_values: dict[str, Any] = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(config)
    }
    needed = {field.name for field in fields(config) if description(field).required and not given_values[field.name]}
    chosen = {*needed, *rng.sample(sorted(given_values), rng.randint(1, min(4, len(given_values))))}
    values = {name: given_values[name] or "x" if name in needed else given_values[name] for name in sorted(chosen)}
    values |= {name: {"x": "y"} for name in needed if isinstance(given_values[name], dict)}
    if rng.random() < 0.6:
        text = "\n".join(f"{name}: {json.dumps(value, default=str)}" for name, value in values.items()).encode()
        path = tmp_path_factory.getbasetemp() / "settings.yaml"
        path.write_bytes(mutate.spoil_yaml(rng, text) if rng.random() < 0.9 else text)
        words = ["--config", str(path)]
    else:
        struck, words = rng.choice(sorted(values)), []
        for name, value in values.items():
            cells = [f"{key}={entry}" for key, entry in value.items()] if isinstance(value, dict) else value
            cells = [str(entry) for entry in (cells if isinstance(cells, list) else [cells])]
            words += [f"--{name}", *([rng.choice(mutate.TEXTS)] if name == struck else cells)]
    read = read_or_refused(lambda: parse_settings(config, words))
    hints = typing.get_type_hints(config)
    for field in fields(config) if read is not None else ():
        kind = typing.get_origin(hints[field.name]) or hints[field.name]
        if isinstance(kind, type) and kind in (int, float, str, bool, list, dict):
            assert type(getattr(read, field.name)) is kind, field.name


RECIPE = """output: runs/mine
seeds: [1, 2]
jobs: 2
variables: {width: 64, rates: {low: 1e-4}}
steps:
  corpus: {stage: prepare-data, source: tables, items: items.csv, interactions: visits.csv}
  sids: {stage: build-sids, corpus: "{corpus}"}
  sft: {corpus: "{corpus}", sids: "{sids}", hidden_size: "{width}"}
  wide: {config: "#sft", hidden_size: 128, once: true}
  test: {stage: eval-beam, corpus: "{corpus}", checkpoint: "{sft}"}
  valid: {config: "#test", split: valid}
  report: {corpus: "{corpus}", sids: "{sids}", predictions: {SFT: "{test}", other: ["{valid}"]}}
"""


@attacked
@given(randoms)
def test_jobs_of_a_mutated_recipe_write_paths_of_their_own(tmp_path_factory, rng):
    path = tmp_path_factory.getbasetemp() / "recipe.yaml"
    if rng.random() < 0.4:
        path.write_bytes(mutate.spoil_yaml(rng, RECIPE.encode()))
    else:  # JSON is YAML, too
        path.write_bytes(mutate.spoil_json(rng, json.dumps(yaml.safe_load(RECIPE)).encode()))

    def plan():
        recipe = read_recipe(path)
        return recipe, Plan(recipe, seeds=rng.choice(((), (3,), (4, 5)))).all()

    planned = read_or_refused(plan)
    if planned is not None:
        recipe, jobs = planned
        assert {key.step for key in jobs} == set(recipe.steps)
        outputs = [job.output.resolve() for job in jobs.values() if job.output is not None]
        assert len(set(outputs)) == len(outputs)
        assert all(need in jobs for job in jobs.values() for need in job.needs)


# Vectors, histories, artefacts


@pytest.fixture(scope="module")
def vectors(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    rows = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
    np.save(folder / "vectors.npy", rows)
    ids = [f"i{n}" for n in range(12)]
    pd.DataFrame({"item_id": ids, "vector": list(rows)}).to_parquet(folder / "vectors.parquet")
    return folder


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
@attacked
@given(rng=randoms)
def test_vectors_of_a_mutated_file_are_finite_and_can_be_squared(vectors, suffix, rng):
    spoil = mutate.spoil_npy if suffix == ".npy" else mutate.spoil_parquet
    with mutated_copy(vectors, f"vectors{suffix}", rng, spoil) as path:
        read = partial(load_vectors, path, 12)
        if suffix == ".parquet":
            read = partial(load_vector_table, path, [f"i{n}" for n in range(12)])
        rows = read_or_refused(read)
        if rows is not None:
            assert rows.dtype == np.float32 and len(rows) == 12 and np.isfinite(rows).all()
            with np.errstate(over="ignore"):
                assert np.isfinite((rows * rows).sum(dtype=np.float32))


@pytest.fixture(scope="module")
def histories(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("histories")
    times = {"times": ["2018-11-05", "2018-11-05T09:30:00"], "now": "2018-11-06"}
    rows = [{"history": [f"i{n}", "i2"], "user": f"u{n}", "events": ["view", None], **times} for n in range(5)]
    (folder / "histories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame(rows).to_parquet(folder / "histories.parquet")
    return folder


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@attacked
@given(rng=randoms)
def test_every_line_of_mutated_histories_is_a_row_of_texts(histories, suffix, rng):
    spoil = mutate.spoil_json if suffix == ".jsonl" else mutate.spoil_parquet
    with mutated_copy(histories, f"histories{suffix}", rng, spoil) as path:
        rows = read_or_refused(lambda: [row for _, part in read_histories(path) for row in part])
        for row in rows or ():
            assert all(isinstance(text, str) for text in [*row["history"], row["user"]])
        if rows is not None and suffix == ".jsonl":
            lines = path.read_bytes().split(b"\n")
            assert len(rows) in (len(lines), len(lines) - 1)


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory) -> Path:
    """A folder with a corpus, its SIDs, and predictions for its test examples with their ranks."""
    folder = make_shop(tmp_path_factory.mktemp("artefacts"), ("prepare-data", "build-sids"))
    examples = Corpus.load(folder / "corpus").rows("test")
    lists = [[(row + step) % 12 for step in range(row % 4)] for row in range(len(examples))]
    scores = [[-float(step) for step, _ in enumerate(items)] for items in lists]
    predictions = Predictions.of(examples, lists, scores, SidTable.load_index(folder / "sids").sids)
    ranks = {"test": Ranked.from_predictions(predictions)}
    with write_artefact(folder / "predictions", "predictions", config={}, counts={"split": "test", GIVEN: []}) as made:
        predictions.to_frame().to_parquet(made / "predictions.parquet", index=False)
        write_ranks(made, ranks)
    return folder


@attacked
@given(randoms)
def test_codes_of_a_mutated_index_are_those_that_are_written(artefacts, rng):
    with copied_files(artefacts / "sids") as folder:
        path = folder / "index.json"
        content = json.loads(path.read_text())
        ids = list(content)
        if rng.random() < 0.5:
            tokens = ("<a_01>", "<a_٣>", "<a_2147483648>", "<a_2147483647>", "<z_1>", "<a_-1>", "<a_1", "<A_1>", "")
            content[rng.choice(ids)] = [rng.choice((*tokens, "<a_1><b_2>", 7)) for _ in range(rng.randint(0, 3))]
            path.write_text(json.dumps(content))
        else:
            mutate.change_file(rng, path, mutate.spoil_json)
        table = read_or_refused(lambda: SidTable.load_index(path, ids if rng.random() < 0.5 else None))
        if table is not None:
            assert table.codes.dtype == np.int32 and (table.codes[:, 0] >= 0).all()
            written = json.loads(path.read_text(encoding="utf-8"))
            assert ["".join(written[item]).strip() for item in table.item_ids] == list(table.sids)


@attacked
@given(randoms)
def test_a_manifest_that_was_edited_does_not_pass(artefacts, rng):
    kind = rng.choice(("corpus", "sids"))
    before = (artefacts / kind / "manifest.json").read_bytes()
    with mutated_copy(artefacts / kind, "manifest.json", rng, mutate.spoil_json) as path:
        manifest = read_or_refused(lambda: open_artefact(path.parent, kind))
        assert manifest is None or json.loads(before) == json.loads(path.read_bytes()) == manifest


def check_corpus(folder: Path) -> None:
    corpus = Corpus.load(folder)
    for rows in corpus.splits().values():
        items = np.concatenate([*rows.histories, rows.targets, np.zeros(0, np.int32)])
        assert items.dtype == np.int32 and ((items >= 0) & (items < corpus.n_items)).all()
        assert len(rows.users) == len(rows.targets) == len(rows.histories)
        assert (rows.lengths <= corpus.max_history).all()
        assert all(isinstance(user, str) for user in rows.users)


def check_predictions(folder: Path) -> None:
    predictions = Predictions.load(folder)
    columns = predictions.targets, predictions.target_sids, predictions.items, predictions.sids, predictions.scores
    assert {len(column) for column in columns} == {len(predictions)}
    for items, sids, scores in zip(*columns[2:], strict=True):
        assert len(items) == len(sids) == len(scores) and min(items, default=0) >= -1
        assert all(isinstance(sid, str) for sid in sids)
    assert len(Ranked.from_predictions(predictions)) == len(predictions)


def check_ranks(folder: Path) -> None:
    ranked = Ranked.load(folder, "test")
    assert ranked.list_length is None or ranked.list_length > 0
    assert len(ranked.targets) == len(ranked) and all(isinstance(user, str) for user in ranked.users)
    for ranks in ranked.ranks.values():
        assert ranks.dtype == np.int64 and len(ranks) == len(ranked) and (ranks >= 0).all()


FORGED = {
    "corpus/items.parquet": check_corpus,
    "corpus/sequences/00000.parquet": check_corpus,
    "predictions/predictions.parquet": check_predictions,
    "predictions/ranks.parquet": check_ranks,
}


@pytest.mark.parametrize("file", FORGED)
@attacked
@given(rng=randoms)
def test_a_forged_parquet_file_does_not_pass_its_hash_or_keeps_its_bounds(artefacts, file, rng):
    artefact, _, name = file.partition("/")
    with copied_files(artefacts / artefact) as folder:
        path, agreeing = folder / name, rng.random() < 0.6
        before = path.read_bytes()
        mutate.change_file(rng, path, mutate.spoil_parquet)
        if agreeing:
            sign(folder)
        is_read = read_or_refused(lambda: FORGED[file](folder) or True)
        assert agreeing or not is_read or path.read_bytes() == before
