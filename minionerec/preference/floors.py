"""What needs no features: majority answers, and copying the user who agrees most."""

import numpy as np

from minionerec.preference.data import Comparisons
from minionerec.preference.measures import agreement
from minionerec.preference.splits import TRAIN

_PRIOR = 2.0


def majority(data: Comparisons, folds: np.ndarray) -> np.ndarray:
    """P(first item) as the share of first places that this user chose for this target in train, shrunk to one half.

    Returns:
        float64 (R,), for every row.
    """
    train = folds == TRAIN
    cell = data.user * len(data.targets) + data.target
    size = len(data.users) * len(data.targets)
    ones, count = np.bincount(cell[train], data.y[train], size), np.bincount(cell[train], minlength=size)
    share = (ones + _PRIOR / 2) / (count + _PRIOR)
    p: np.ndarray = share[cell]
    return p


def agreeing_user(data: Comparisons, folds: np.ndarray) -> np.ndarray:
    """The answer in train of the user who agrees most with this one, as probable as they agree.

    Agreement is counted on train, shrunk to one half. Who answered this pair and target is asked in order of
    agreement's distance from one half (a user who always says the opposite is as good); where nobody did, `majority`.

    Returns:
        float64 (R,), for every row.
    """
    train = folds == TRAIN
    low_first = data.a < data.b
    said = np.where(low_first, data.y, 1 - data.y)  # for the lower-numbered item
    key = data.pair * len(data.targets) + data.target
    share, n = agreement(said[train], key[train], data.user[train], len(data.users))
    trust = (np.nan_to_num(share, nan=0.5) * n + _PRIOR / 2) / (n + _PRIOR)
    np.fill_diagonal(trust, 0.5)
    answers = np.full((len(data.users), int(key.max()) + 1), np.nan)
    answers[data.user[train], key[train]] = said[train]
    p = majority(data, folds)
    best = np.zeros(len(p))
    for other in range(len(data.users)):
        answer = answers[other, key]
        agree = trust[data.user, other]
        with np.errstate(invalid="ignore"):
            better = ~np.isnan(answer) & (np.abs(agree - 0.5) > best) & (data.user != other)
        first = np.where(low_first, answer, 1 - answer)
        p = np.where(better, np.where(first == 1, agree, 1 - agree), p)
        best = np.where(better, np.abs(agree - 0.5), best)
    return p
