"""Mutated tables of comparisons and features: every row is used or counted, or a file is refused in one line."""

import io
import zipfile
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest
from hostile import mutate
from hostile.mutate import attacked, filled_lines, mutated_copy, randoms, read_or_refused
from hypothesis import given
from support.tables import write_table

from minionerec.contrib.preference.data import read_comparisons, read_features

N_ITEMS, N_ROWS = 8, 24
TARGETS = ["smart", "kind"]


@pytest.fixture(scope="module")
def comparisons(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("comparisons")
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
    return folder


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


SPOILERS = {
    ".csv": mutate.spoil_text(","),
    ".jsonl": mutate.spoil_json,
    ".npz": _spoil_arrays,
    ".parquet": mutate.spoil_parquet,
}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@attacked
@given(rng=randoms)
def test_every_row_of_mutated_comparisons_is_used_or_counted(comparisons, suffix, rng):
    with mutated_copy(comparisons, f"rows{suffix}", rng, SPOILERS[suffix]) as path:
        data = read_or_refused(lambda: read_comparisons(path, path.parent / "features.npz", TARGETS, {}))
        if data is None:
            return
        counts, (filled, every) = data.counts, filled_lines(path)
        assert filled <= counts["comparisons"] + counts.get("lines_inside_cells", 0) + (suffix == ".csv") <= every
        unused = sum(counts[name] for name in ("without_user_or_item", "without_features", "self_pairs"))
        assert counts["answers"] == (counts["comparisons"] - unused) * len(TARGETS)
        left = counts["answers"] - counts["blank"] - counts["ties"] - counts["invalid"]
        assert left == len(data) + counts["repeated"]


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@attacked
@given(rng=randoms)
def test_mutated_features_are_a_finite_vector_for_each_item(comparisons, suffix, rng):
    with mutated_copy(comparisons, f"features{suffix}", rng, SPOILERS[suffix]) as path:
        features = read_or_refused(lambda: read_features(path))
        if features is not None:
            items, vectors = features
            assert vectors.dtype == np.float32 and vectors.shape[0] == len(items) == len(set(items))
            assert np.isfinite(vectors).all()
            read_or_refused(lambda: read_comparisons(path.parent / "rows.csv", path, TARGETS, {}))
