"""What recommenders leave behind, made by hand: predictions, and runs of several seeds."""

import json
from pathlib import Path

import numpy as np

from minionerec.core.artefacts import write_artefact
from minionerec.metrics.predictions import FILE, Predictions
from minionerec.metrics.ranked import KIND, Ranked, write_ranks
from minionerec.metrics.results import Bootstrap, RecommenderResults, Results, list_slices


def lists_of(ranks, targets, list_length=20, n_items=1000):
    """Lists of item indices in which row r has its target at `ranks[r]`, where that is within the list_length.

    The others are the catalogue's last items, from the end.
    """
    targets = np.asarray(targets, dtype=np.int32)
    items = []
    for target, rank in zip(targets.tolist(), ranks, strict=True):
        others = [item for item in range(n_items - 1, n_items - list_length - 2, -1) if item != target][:list_length]
        listed = [*others[: rank - 1], target, *others[rank - 1 :]] if rank <= list_length else others
        items.append(listed[:list_length])
    users, scores = [f"u{row}" for row in range(len(targets))], [-float(position) for position in range(list_length)]
    sids = [[""] * list_length for _ in items]
    return Predictions(users, targets, [""] * len(targets), items, sids, [list(scores) for _ in items])


def write_run(path, ranks, targets, *, sid_ranks=None, valid=True, lists=None, users=None, given=()):
    """What `minionerec train-sequential` leaves: `seed-N/model` and `seed-N/predictions`, the first seed being 9.

    Args:
        path: Its output.
        ranks: int (S, R), full rank of each target, one line a seed.
        targets: int (R,), item indices.
        sid_ranks: Like `ranks`, at SID level; none if None.
        valid: Whether validation rows are there too; each of their targets has rank 1.
        lists: Lists of each seed; those of `lists_of` if None.
        users: The user of each row; one a row if None.
        given: What the recommender was given beyond the histories.

    Returns:
        `path`.
    """
    targets = np.asarray(targets, dtype=np.int32)
    users = [f"u{row}" for row in range(len(targets))] if users is None else users
    for number, found in enumerate(ranks):
        folder = Path(path) / f"seed-{number + 9}"
        counts = {"parameters": 1234, "recipe": "all positions"}
        with write_artefact(folder / "model", "sequential_model", config={}, seed=number + 9, counts=counts) as fresh:
            (fresh / "weights").write_text(f"{number} {path}")
        levels = {"item": np.asarray(found, np.int64)}
        if sid_ranks is not None:
            levels["sid"] = np.asarray(sid_ranks[number], np.int64)
        splits = {"test": Ranked(users, targets, levels, None)}
        if valid:
            first = {level: np.ones(len(targets), np.int64) for level in levels}
            splits = {"valid": Ranked(users, targets, first, None), **splits}
        made = lists_of(found, targets) if lists is None else lists[number]
        inputs = {"model": folder / "model"}
        counts = {"rows": len(targets), "split": "test", "beams": max(len(row) for row in made.items)}
        counts["given"] = list(given)
        with write_artefact(folder / "predictions", KIND, config={}, inputs=inputs, counts=counts) as fresh:
            made.to_frame().to_parquet(fresh / FILE, index=False)
            write_ranks(fresh, splits)
    return Path(path)


def results_of(
    ranks, metrics, kinds=None, *, users=None, resamples=100, seed=0, list_length=None, kind=Results, **more
):
    """Results of recommenders with some ranks (name to int (S, R), a line a seed), by default of one user each."""
    rows = next(iter(ranks.values())).shape[1]
    names = [f"u{row}" for row in range(rows)]
    targets = np.arange(rows, dtype=np.int32)
    made = {
        name: RecommenderResults(name, [Ranked(names, targets, {"item": np.asarray(of)}, list_length) for of in found])
        for name, found in ranks.items()
    }
    drawn = Bootstrap(seed, resamples, names if users is None else users)
    return kind(made, ["item"], metrics, drawn, list_slices(kinds or {}), metrics, **more)


def recommenders_of(folder):
    """What the `metrics.json` of a report says of its recommenders."""
    return json.loads(Path(folder, "metrics.json").read_text())["recommenders"]
