"""The attack of the campaign (`tests/hostile`) on comparisons and features."""

import io
import zipfile
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
from hostile import mutate
from hostile.groups import Group, filled_lines, holds
from hostile.table_groups import N_ITEMS, N_ROWS, SUFFIXES
from support.tables import write_table

from minionerec.contrib.preference.data import read_comparisons, read_features


def make_comparisons(folder: Path) -> None:
    rows = [
        {
            **{"comparison_id": f"c{n}", "user_id": f"u{n % 5}", "item_a": f"i{n % 6}", "item_b": f"i{(n + 1) % 7}"},
            **{"smart": "ab"[n % 2], "kind": ("b", "a", "tie", "")[n % 4], "timestamp": 1_500_000_000 + n},
            "comment": "Nice, and so",
        }
        for n in range(N_ROWS)
    ]
    for suffix in (".csv", ".parquet", ".jsonl"):
        write_table(pd.DataFrame(rows), folder / f"rows{suffix}")
    ids, vectors = [f"i{n}" for n in range(N_ITEMS)], np.random.default_rng(0).normal(size=(N_ITEMS, 3))
    np.savez(folder / "features.npz", item_id=np.array(ids), features=vectors.astype(np.float32))
    pd.DataFrame({"item_id": ids, "vector": list(vectors)}).to_parquet(folder / "features.parquet")


def _spoil_arrays(rng: Random, content: bytes) -> bytes:
    """An npz with one of its arrays changed as `spoil_npy` does, another name, or changed bytes."""
    if rng.random() < 0.3:
        return mutate.spoil_bytes(rng, content)
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    name = rng.choice(sorted(parts))
    if name == "features.npy" and rng.random() < 0.7:
        parts[name] = mutate.spoil_npy(rng, parts[name])
    elif rng.random() < 0.5:
        parts[name] = mutate.spoil_bytes(rng, parts[name])
    else:
        parts[rng.choice(("x.npy", "features", "item_id.npy"))] = parts.pop(name)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as new:
        for key, part in parts.items():
            new.writestr(key, part)
    return buffer.getvalue()


def strike_comparisons(rng: Random, clean: Path, folder: Path) -> str:
    rows, features = rng.choice(("rows.csv", "rows.csv", "rows.jsonl", "rows.parquet")), "features.npz"
    spoilers = {**SUFFIXES, ".jsonl": mutate.spoil_json, ".npz": _spoil_arrays}
    if rng.random() < 0.25:
        features = rng.choice(("features.npz", "features.parquet"))
        mutate.change_file(rng, folder / features, spoilers[Path(features).suffix])
    else:
        mutate.change_file(rng, folder / rows, spoilers[Path(rows).suffix])
    targets = ["smart", "kind"]
    data = read_comparisons(folder / rows, folder / features, targets, {})
    counts, path = data.counts, folder / rows
    filled, every = filled_lines(path)
    read = counts["comparisons"] + counts.get("lines_inside_cells", 0) + (path.suffix == ".csv")
    holds(filled <= read <= every, f"{read} of {filled} to {every} lines are used or counted")
    unused = ("without_user_or_item", "without_features", "self_pairs")
    usable = counts["comparisons"] - sum(counts[name] for name in unused)
    holds(counts["answers"] == usable * len(targets), f"{counts['answers']} answers of {usable} comparisons")
    left = counts["answers"] - counts["blank"] - counts["ties"] - counts["invalid"]
    holds(left == len(data) + counts["repeated"], f"{len(data)} rows and {counts['repeated']} repeats of {left}")
    items, vectors = read_features(folder / features)
    holds(vectors.dtype == np.float32 and vectors.shape[0] == len(items) == len(set(items)), "not a vector an item")
    holds(bool(np.isfinite(vectors).all()), "features that are not finite")
    return "read"


COMPARISONS = Group("comparisons", make_comparisons, strike_comparisons, 4)
