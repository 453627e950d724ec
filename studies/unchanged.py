"""Whether a change of structure changed results: fingerprints of one small artefact of each stage, before and after.

    python studies/unchanged.py --write before.json                    # at the old commit
    python studies/unchanged.py --compare before.json                  # at the new one; exit status 1 if it differs
    python studies/unchanged.py --compare before.json --only report    # runs whose names begin so, and what they need

Each run is made in an empty folder from a shop of twelve items, all in less than a minute of processor time. The
contents of tables (by column), JSON files (by key), weights (by tensor) and the numbers in pages' tables are
compared; manifests, run records, times, hashes and the words of pages are not. What has the same content under
another name is listed as moved. Another commit's package is measured with `PYTHONPATH=FOLDER_OF_THAT_COMMIT`.
"""

import argparse
import csv
import hashlib
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import safe_open

from minionerec.core.commands import run_command
from minionerec.pipeline.cli.main import dispatch
from minionerec.pipeline.stages import STAGES

TRAINED = {"epochs": 1, "batch_size": 16, "device_batch_size": 8, "eval_examples": 8, "eval_beams": 10}
SHAPE = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "inner_size": 24, "text_vocabulary": 300}
SHOP = {"corpus": "corpus", "sids": "sids"}
PROMPTS = {"prompts_per_step": 16, "prompts_per_device": 8, "eval_examples": 8, "eval_beams": 10}
TABLES = {"source": "tables", "items": "items.csv", "interactions": "interactions.csv"}
PEOPLE = {"items": 40, "width": 8, "resamples": 20, "max_epochs": 3}
EVALUATED = {"corpus": "corpus", "ks": [1, 5], "resamples": 20}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "corpus": ("prepare-data", TABLES),
    "corpus_last": ("prepare-data", {**TABLES, "split": "leave_last_out"}),
    "vectors": ("embed-items", {"corpus": "corpus", "dimensions": 6}),
    "sids": ("build-sids", {"corpus": "corpus", "codebook_sizes": [4, 4], "dimensions": 6}),
    "sids_opq": (
        "build-sids",
        {"corpus": "corpus", "method": "opq", "digits": 3, "codebook_sizes": [4], "dimensions": 6},
    ),
    "sids_balanced": (
        "build-sids",
        {"corpus": "corpus", "method": "balanced_kmeans", "codebook_sizes": [4, 4], "dimensions": 6},
    ),
    "sid_report": ("sid-report", {"corpus": "corpus", "tables": {"ours": "sids"}}),
    "sft": ("sft", {**SHOP, **SHAPE, **TRAINED, "all_positions": True}),
    "sft_rows": ("sft", {**SHOP, **SHAPE, **TRAINED, "all_positions": False, "dropout": 0.1}),
    "sft_titles": ("sft", {**SHOP, **SHAPE, **TRAINED, "tasks": {"title_history_to_title": 1.0}}),
    "catalogue": ("train-catalogue", {**SHOP, **TRAINED, **{key: SHAPE[key] for key in list(SHAPE)[:3]}}),
    "grpo": ("grpo", {"corpus": "corpus", "checkpoint": "sft", "generations": 4, "max_steps": 4, **PROMPTS}),
    "dpo": ("dpo", {"corpus": "corpus", "checkpoint": "sft", "negatives": 3, **PROMPTS, "tasks": {"next_sid": 1.0}}),
    "dpo_beam": (
        "dpo",
        {"corpus": "corpus", "checkpoint": "sft", "negatives": 3, **PROMPTS, "negatives_from": "beam"},
    ),
    "tiger": ("train-tiger", {**SHOP, **TRAINED, "hidden_size": 16, "layers": 1, "heads": 2, "head_size": 8}),
    "extended": ("extend", {**SHOP, "checkpoint": "catalogue", "lift": 1.0}),
    "sequential": (
        "train-sequential",
        {
            **{"corpus": "corpus", "model": "sasrec", "epochs": 2, "protocol": "rows", "hyper": {"hidden_size": 8}},
            **{"list_length": 5, "resamples": 20},
        },
    ),
    "protocol_a": (
        "train-sequential",
        {
            **{"corpus": "lines.txt", "model": "gru4rec", "epochs": 2, "protocol": "a"},
            **{"hyper": {"hidden_size": 8}, "list_length": 5, "resamples": 20},
        },
    ),
    "eval_sft": ("eval-beam", {**EVALUATED, "checkpoint": "sft", "beams": 5}),
    "eval_examples": ("eval-beam", {**EVALUATED, "checkpoint": "sft_rows", "beams": 5}),
    "eval_catalogue": ("eval-beam", {**EVALUATED, "checkpoint": "catalogue", "beams": 5}),
    "eval_grpo": ("eval-beam", {**EVALUATED, "checkpoint": "grpo", "beams": 5}),
    "eval_tiger": ("eval-beam", {**EVALUATED, "checkpoint": "tiger", "beams": 5}),
    "grounded": (
        "ground-titles",
        {**EVALUATED, "checkpoint": "sft_titles", "encoder": "tfidf", "text_beams": 2, "candidates": 7},
    ),
    "levels": ("calc-level", {"predictions": "eval_sft", "json": True}),
    "report": ("report", {**SHOP, "predictions": {"SFT": "eval_sft", "catalogue": "eval_catalogue"}, "resamples": 20}),
    "report_own_sids": (
        "report",
        {
            **{**SHOP, "ks": [1, 5], "resamples": 20},
            "predictions": {"SFT": "eval_sft", "TIGER": "eval_tiger", "catalogue": "eval_catalogue"},
        },
    ),
    "lists": ("recommend", {"checkpoint": "sft", "histories": "histories.jsonl", "k": 3}),
    "export": ("export", {"checkpoint": "sft", "corpus": "corpus"}),
    "city": ("make-city", {"items": 60, "users": 80, "mean_interactions": 6, "days": 60}),
    "city_corpus": (
        "prepare-data",
        {"source": "tables", "items": "city/items.parquet", "interactions": "city/interactions.parquet"},
    ),
    "ceiling": ("city-ceiling", {"city": "city", "corpus": "city_corpus", "ks": [1, 5]}),
    "preference": ("train-preference", {**PEOPLE, "models": ["bt_hier", "bt_lowrank", "mlp_concat", "mlp_siamese"]}),
    "preference_page": ("preference-report", {"runs": {"pair": "preference"}}),
}
"""Name (and output) of a run to its stage and settings, in an order in which each finds what it reads."""

VOLATILE = re.compile(
    r"seconds|took|bytes|commit|version|sha256|hash|digest|started|ended|machine|path|command|memory|date|trainings",
    re.I,
)
"""Keys of JSON files and headers of columns that another run of the same thing may fill otherwise."""
MEASURED = re.compile(r"[\d.,]+ (s|ms|min|h|KiB|MiB|GiB|GB)\b")
"""Times and sizes within a text."""
DEPTH = 3
"""Levels of nested keys by which a JSON file is taken apart."""


def write_inputs() -> None:
    """The shop's tables, histories to recommend for, and users' sequences in one line each, in this folder."""
    rng = random.Random(0)
    items = [(f"i{item}", f"{['tea', 'ink'][item // 6]} thing {item % 6}", "A thing") for item in range(12)]
    rows = []
    for user in range(40):
        item, time = rng.randrange(12), rng.randrange(1000)
        for _ in range(rng.randint(4, 6)):
            rows.append((f"u{user}", f"i{item}", time))
            item, time = (item + 1 + (rng.random() < 0.2)) % 12, time + rng.randint(1, 50)
    tables = {"items": [("item_id", "title", "description"), *items]}
    tables["interactions"] = [("user_id", "item_id", "timestamp"), *rows]
    for name, content in tables.items():
        with open(f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(content)
    Path("histories.jsonl").write_text('{"history": ["i1", "i2"]}\n{"history": ["i7"]}\n', encoding="utf-8")
    users = dict.fromkeys(user for user, _, _ in rows)
    lines = (" ".join([user[1:], *(item[1:] for one, item, _ in rows if one == user)]) for user in users)
    Path("lines.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def needed(only: list[str]) -> list[str]:
    """Runs whose names begin so, and those that they read; all where nothing is named."""
    wanted = {name for name in RUNS if not only or any(name.startswith(start) for start in only)}
    for name in reversed(RUNS):
        if name in wanted:
            words = set(re.findall(r"\w+", json.dumps(list(RUNS[name][1].values()))))
            wanted |= {other for other in RUNS if other in words and other != name}
    return [name for name in RUNS if name in wanted]


def run(name: str) -> None:
    """Make one run in this folder, as the command does."""
    stage, settings = RUNS[name]
    known = STAGES[stage].config_class().__dataclass_fields__
    words = {**settings, **({"output": name} if "output" in known else {})}
    Path(f"{name}.yaml").write_text(json.dumps(words), encoding="utf-8")
    out, sys.argv = sys.stdout, ["minionerec", stage, "--config", f"{name}.yaml"]
    try:
        with open(f"{name}.out", "w", encoding="utf-8") as sys.stdout:
            run_command(dispatch)
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{stage} ended with status {end.code}; its message is above") from None
    finally:
        sys.stdout = out


def digest(content: bytes | str) -> str:
    """The first 16 hex digits of a SHA-256."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def plain(value: Any) -> Any:
    """A JSON value without what is volatile, numbers with nine digits."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in sorted(value.items()) if not VOLATILE.search(key)}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, str):
        return MEASURED.sub("", value)
    return float(f"{value:.9g}") if isinstance(value, float) else value


def leaves(value: Any, depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """What a JSON value holds, each with the names of its keys."""
    if not isinstance(value, dict) or not depth:
        yield "", value
        return
    for key, one in value.items():
        yield from ((f"{key} {name}".strip(), leaf) for name, leaf in leaves(one, depth - 1))


def page_numbers(text: str) -> str:
    """The numbers in the tables of a page of Markdown, in order, without columns of times and sizes."""
    found: list[str] = []
    header: list[str] = []
    lines = text.splitlines()
    for line, before in zip(lines, ["", *lines], strict=False):
        if line.startswith("|"):
            cells = MEASURED.sub("", line).split("|")
            header = cells if not before.startswith("|") else header
            kept = [cell for cell, head in zip(cells, header, strict=False) if not VOLATILE.search(head)]
            if not VOLATILE.search(cells[1]):
                found += re.findall(r"-?\d*\.\d+", " ".join(kept))
    return " ".join(found)


def parts(file: Path) -> Iterator[tuple[str, str]]:
    """Name and digest of each part of a file whose content is a result."""
    if file.suffix in (".parquet", ".csv"):
        frame = pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file, dtype=str)
        for name in frame:
            yield str(name), digest(frame[[name]].to_csv(index=False, header=False, float_format="%.9g"))
    elif file.suffix == ".json":
        content = plain(json.loads(file.read_text(encoding="utf-8")))
        yield from (
            (name, digest(json.dumps(value)))
            for name, value in leaves(content, 1 if file.name == "tokenizer.json" else DEPTH)
        )
    elif file.suffix == ".safetensors":
        with safe_open(file, framework="numpy") as tensors:
            for name in sorted(tensors.keys()):
                array = tensors.get_tensor(name)
                yield name, digest(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    elif file.suffix == ".npy":
        yield "", digest(np.load(file).tobytes())
    elif file.suffix == ".md":
        yield "numbers", digest(page_numbers(file.read_text(encoding="utf-8")))
    elif file.suffix == ".jsonl":
        yield "", digest(file.read_bytes())


def fingerprints(name: str) -> dict[str, str]:
    """All parts of a run's output, as "RUN: FILE PART"; of a stage that only prints, the JSON that it printed."""
    files = [file for file in sorted(Path(name).rglob("*")) if file.is_file()]
    kept = (file for file in files if file.name != "manifest.json" and not file.name.endswith("record.json"))
    found = {f"{name}: {file.relative_to(name)} {part}": value for file in kept for part, value in parts(file)}
    return found or {f"{name}: printed": digest(Path(f"{name}.out").read_text(encoding="utf-8"))}


def collect(only: list[str]) -> dict[str, str]:
    """Make the runs in an empty folder; name to fingerprint of everything that must stay."""
    found: dict[str, str] = {}
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_inputs()
            for name in needed(only):
                try:
                    run(name)
                    found |= fingerprints(name)
                except Exception as error:  # the other runs are still worth comparing
                    found[f"{name}: failed"] = str(error)
        finally:
            os.chdir(back)
    return found


def compare(before: dict[str, str], now: dict[str, str]) -> int:
    """Print what differs, moved, is gone or new; 1 if anything differs or is gone, else 0."""
    failed = {key.split(":")[0] for key in now if key.endswith(": failed")}
    before = {key: value for key, value in before.items() if key.split(":")[0] not in failed}
    gone = {key: value for key, value in before.items() if key not in now}
    new = {key: value for key, value in now.items() if key not in before and not key.endswith(": failed")}
    differing = [key for key, value in before.items() if key in now and now[key] != value]
    for key, value in list(gone.items()):
        same = [other for other in new if new[other] == value and other.split(":")[0] == key.split(":")[0]]
        if same:
            print(f"moved    {key} -> {same[0].split(': ')[1]}")
            del gone[key], new[same[0]]
    for title, keys in (("DIFFERS", differing), ("GONE", gone), ("new", new)):
        for key in keys:
            print(f"{title:<8} {key}")
    counts = f"{len(before) - len(gone) - len(differing)} equal, {len(differing)} differ, {len(gone)} are gone"
    print(f"{len(before)} entries before: {counts}; {len(new)} are new; {len(failed)} runs failed.")
    return 1 if differing or gone or failed else 0


def main() -> int:
    """Write the fingerprints, or compare them with those that were written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="file to write")
    parser.add_argument("--compare", type=Path, help="file to compare with")
    parser.add_argument(
        "--only", nargs="*", default=[], help="beginnings of the names of runs; all where none is given"
    )
    given = parser.parse_args()
    before = json.loads(given.compare.read_text(encoding="utf-8")) if given.compare else {}
    found = collect(given.only)
    for key in (key for key in found if key.endswith(": failed")):
        print(f"{key} {found[key]}")
    if given.write:
        given.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{len(found)} entries: {given.write}")
    made = {name.split(":")[0] for name in found}
    return compare({key: value for key, value in before.items() if key.split(":")[0] in made}, found) if before else 0


if __name__ == "__main__":
    sys.exit(main())
