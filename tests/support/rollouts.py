"""Rollouts by hand."""

import numpy as np

from minionerec.sid.table import SidTable
from minionerec.training.rewards import Rollouts


def rollouts_of(table: SidTable, sids, targets, histories=None) -> Rollouts:
    """Rollouts of SID texts: a group of them and a target for each prompt."""
    numbers = dict(zip(table.sids, table.sid_numbers.tolist(), strict=True))
    found = np.array([[numbers[sid] for sid in group] for group in sids])
    scores = np.broadcast_to(-np.arange(found.shape[1], dtype=np.float32), found.shape)
    return Rollouts(found, np.array([numbers[sid] for sid in targets]), scores, histories or [None] * len(found), table)
