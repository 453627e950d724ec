"""What the campaign does to the inputs of pages: forged artefacts of a lineage, tables, settings, folders of seeds."""

import contextlib
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import yaml
from hostile import mutate
from hostile.groups import Group, holds
from hostile.table_groups import spoil_nested
from support.small_shop import make_shop, sign, spoil_manifest, stage

from minionerec.core.artefacts import MANIFEST, fingerprint, is_artefact, verify_files
from minionerec.core.errors import MinioneRecError

RUN = ("prepare-data", "build-sids", "sft", "grpo", "train-sequential", "eval-beam")
SETTINGS = {
    "corpus": "corpus",
    "sids": "sids",
    "predictions": {
        "SFT": {"predictions": "predictions", "tuned": "epochs", "published": "SFT"},
        "RL": ["of-grpo"],
        "SASRec": {"predictions": "sequential", "note": "one seed"},
    },
    **{"reference": "industrial", "ks": [1, 5], "ceiling": "ceiling.json", "output": "page", "resamples": 3},
}
"""Settings of the report."""
FORGED = (
    *("predictions", "of-grpo", "sft", "grpo", "sequential/predictions", "sequential/model", "sids", "corpus"),
    *("predictions", "sequential/predictions"),
)
BEHIND = {"grpo": "sft", "predictions": "sft", "of-grpo": "grpo", "sequential/predictions": "sequential/model"}
"""Artefact → the training that its manifest names."""


def _make_pages(folder: Path) -> None:
    make_shop(folder, RUN)
    done = stage(folder, "eval-beam", "--checkpoint", "grpo", "--output", "of-grpo")
    holds(done.status == 0, done.err)
    names = ("NDCG@5", "HR@5", "MRR@5")
    (folder / "ceiling.json").write_text(json.dumps({"ceiling": dict.fromkeys(names, 0.5)}))
    (folder / "report.yaml").write_text(yaml.safe_dump(SETTINGS))


def _spoil_values(rng: Random, content: bytes) -> bytes:
    """JSON of another value somewhere, which is JSON still in nearly all cases."""
    for _ in range(9):
        found = mutate.spoil_json(rng, json.dumps(json.loads(content)).encode())
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(found)
            break
    return found


def _spoil(rng: Random, path: Path) -> None:
    spoilers = {".parquet": mutate.spoil_parquet, ".json": _spoil_values, ".csv": mutate.spoil_text(",")}
    mutate.change_file(rng, path, spoilers[path.suffix])


def _forge(rng: Random, folder: Path) -> None:
    """Change a file of an artefact, and sign it with all that were made from it."""
    name = rng.choice(FORGED)
    files = [file for file in sorted((folder / name).iterdir()) if file.suffix in (".json", ".parquet")]
    path = rng.choice([folder / name / MANIFEST, *(file for file in files if file.stat().st_size < 100_000)])
    _spoil(rng, path)
    try:
        sign(folder / name)
        for user, model in BEHIND.items():
            sha256 = fingerprint(folder / model)
            spoil_manifest(folder / user, lambda content, sha=sha256: _renew(content, sha))
            sign(folder / user)
    except (MinioneRecError, LookupError, ValueError, TypeError, AttributeError):
        pass  # a manifest that is none any more


def _renew(content: dict[str, Any], sha256: str) -> None:
    for record in content["inputs"].values():
        if record["path"] in (*BEHIND.values(), "sequential/model"):
            record["sha256"] = sha256


def _lay_out(rng: Random, folder: Path) -> None:
    """Folders of seeds of any name, links, and predictions of another catalogue."""
    kind = rng.choice(("name", "name", "link", "circle", "empty", "twice", "valid"))
    if kind in ("name", "link"):
        names = ("", "x", "1", "-1", "1 (copy)", "٣", "1e5", "9" * 200)
        name = f"seed-{rng.choice(names)}"
        (folder / "sequential" / name).mkdir()
        if kind == "link":
            (folder / "sequential" / name / "predictions").symlink_to("../predictions")
        else:
            shutil.copytree(folder / "predictions", folder / "sequential" / name / "predictions")
    elif kind == "circle":
        shutil.rmtree(folder / "of-grpo")
        (folder / "of-grpo").symlink_to("of-grpo")
    elif kind == "empty":
        shutil.rmtree(folder / "of-grpo")
        (folder / "of-grpo").mkdir()
    elif kind == "twice":
        shutil.rmtree(folder / "of-grpo")
        shutil.copytree(folder / "predictions", folder / "of-grpo")
    else:
        split = rng.choice(("valid", "x", 7))
        spoil_manifest(folder / "of-grpo", lambda content: content["counts"].update(split=split))
        sign(folder / "of-grpo")


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
    elif isinstance(value, float):
        yield value


def _strike_page(rng: Random, clean: Path, folder: Path) -> str:
    """A report over a forged lineage: what is written has finite numbers and no markup of strangers."""
    kind = rng.random()
    if kind < 0.6:
        _forge(rng, folder)
    elif kind < 0.7:
        _lay_out(rng, folder)
    elif kind < 0.85:
        _spoil(rng, folder / rng.choice(("ceiling.json", "sft.record.json", "predictions.record.json")))
    else:
        mutate.change_file(rng, folder / "report.yaml", spoil_nested)
    done = stage(folder, "report")
    output = folder / "page"
    if done.status:
        holds(not output.exists(), "half a page is left")
        # Wrong settings are named all at once, each on a line of its own.
        errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
        ends = bool(errors) and done.err.endswith("\n".join(errors) + "\n")
        holds(done.status == 2 and ends, done.err)
        raise MinioneRecError(errors[0].removeprefix("error: "))
    if not is_artefact(output):
        return "read"  # another output, or none
    verify_files(output)
    text = (output / "metrics.json").read_text(encoding="utf-8")
    content = json.loads(text)
    holds(all(map(math.isfinite, _numbers(content))), "metrics that are no numbers")
    for name, recommender in content["recommenders"].items():
        for values in recommender["metrics"].values():
            holds(all(0 <= of["mean"] <= 1 for of in values.values()), f"a metric of {name} that is none")
    page = (output / "report.html").read_text(encoding="utf-8")
    holds("<script" not in page, "markup of a stranger")
    return "read"


PAGES = (Group("pages", _make_pages, _strike_page, 0.8),)
