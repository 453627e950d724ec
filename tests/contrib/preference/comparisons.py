"""Comparisons made by hand."""

import numpy as np

from minionerec.contrib.preference.data import Comparisons


def build(pairs, users, targets=3, time=None, seed=0):
    """Every user answers every target on every pair of a ring."""
    rng = np.random.default_rng(seed)
    grids = np.meshgrid(range(targets), range(users), range(pairs), indexing="ij")
    target, user, pair = (grid.ravel() for grid in grids)
    comparison = user * pairs + pair
    return Comparisons(
        features=rng.normal(size=(pairs, 4)).astype(np.float32),
        items=[f"i{n}" for n in range(pairs)],
        users=[f"u{n}" for n in range(users)],
        targets=[f"t{n}" for n in range(targets)],
        ids=[f"c{n}" for n in range(users * pairs)],
        comparison=comparison,
        user=user,
        a=pair,
        b=(pair + 1) % pairs,
        target=target,
        y=rng.integers(0, 2, len(pair)).astype(float),
        pair=pair,
        time=None if time is None else comparison.astype(float),
        counts={},
    )
