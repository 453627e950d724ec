"""Folds by row, pair, item, user or time, and the audit that says what a split lets a model look up."""

import hashlib
from functools import cache

import numpy as np

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.preference.data import Comparisons

logger = get_logger(__name__)

TRAIN, VALID, TEST, DISCARDED = 0, 1, 2, -1
LEAK_WARNING = (
    "LEAK: rows are split one by one, so most test rows have the same person's other answers on the same pair in "
    "train. What is measured is not generalisation. Take the split 'pair'."
)


def _tenths(count: int, order: np.ndarray, least: int = 0) -> np.ndarray:
    """Fold of each of `count` units: in this order the first 80 % train, then 10 % valid, then 10 % test."""
    tenth = max(least, count // 10)
    folds = np.empty(count, dtype=np.int8)
    folds[order] = np.repeat([TRAIN, VALID, TEST], [count - 2 * tenth, tenth, tenth])
    return folds


def split_rows(data: Comparisons, unit: str, seed: int) -> np.ndarray:
    """Fold of each row.

    `row` shuffles single answers with NumPy's legacy generator, as the published report does, and leaks (a warning
    says so once a process). `pair` keeps each unordered pair, with all users and targets, in one fold. `item` deals out
    the items and discards pairs across folds. `user` holds out users. `time` cuts comparisons by time, oldest first;
    equal times keep the file's order.

    Returns:
        int8 (R,): 0 train, 1 valid, 2 test, -1 discarded.

    Raises:
        DataError: If there are too few units, or no times for `time`, or a fold is empty.
    """
    rng = np.random.default_rng(seed)
    if unit == "row":
        _warn_of_leak()
        folds = _tenths(len(data), _legacy_order(len(data), seed))
    elif unit == "pair":
        pairs = int(data.pair.max()) + 1
        folds = _tenths(pairs, rng.permutation(pairs), least=1)[data.pair]
    elif unit == "item":
        of_item = _tenths(len(data.items), rng.permutation(len(data.items)))
        folds = np.where(of_item[data.a] == of_item[data.b], of_item[data.a], DISCARDED).astype(np.int8)
    elif unit == "user":
        if len(data.users) < 3:
            raise DataError(f"the split 'user' needs at least 3 users, the data have {len(data.users)}. Take 'pair'.")
        folds = _tenths(len(data.users), rng.permutation(len(data.users)), least=1)[data.user]
    else:
        if data.time is None:
            raise DataError("the split 'time' needs a column timestamp in the comparisons. Add it or take 'pair'.")
        _, first, number = np.unique(data.comparison, return_index=True, return_inverse=True)
        folds = _tenths(len(first), np.argsort(data.time[first], kind="stable"))[number]
    for fold, name in ((TRAIN, "train"), (VALID, "valid"), (TEST, "test")):
        if not (folds == fold).any():
            raise DataError(f"the split {unit!r} leaves no row to {name} ({len(data)} rows). Give more data.")
    return folds


@cache
def _warn_of_leak() -> None:
    logger.warning(LEAK_WARNING)


def _legacy_order(count: int, seed: int) -> np.ndarray:
    order = np.arange(count)
    np.random.RandomState(seed).shuffle(order)
    return order


def fold_hash(folds: np.ndarray) -> str:
    """SHA-256 of the assignment, to tell whether two runs share a split."""
    return hashlib.sha256(np.ascontiguousarray(folds, dtype=np.int8).tobytes()).hexdigest()


def audit_split(data: Comparisons, folds: np.ndarray, unit: str) -> dict[str, float | int]:
    """What train tells about the test rows beyond features and taste.

    Returns:
        Shares of test rows: `same_user_pair` (train holds the same user's answer to another target on this pair),
        `same_pair_other_user` (train holds another user's answer on this pair), `both_items_seen` (both items occur
        in train); and the number of rows `discarded`.

    Raises:
        DataError: If the split `pair` shows either of the first two.
    """
    train, test = folds == TRAIN, folds == TEST
    users = len(data.users)
    own = data.pair * users + data.user
    seen_own = np.isin(own, own[train])
    answers_on_pair = np.bincount(data.pair[train], minlength=int(data.pair.max()) + 1)
    own_answers = np.bincount(own[train], minlength=int(own.max()) + 1)
    others = answers_on_pair[data.pair] > own_answers[own]
    seen = np.zeros(len(data.items), dtype=bool)
    seen[data.a[train]] = seen[data.b[train]] = True
    audit: dict[str, float | int] = {
        "same_user_pair": float(seen_own[test].mean()),
        "same_pair_other_user": float(others[test].mean()),
        "both_items_seen": float((seen[data.a] & seen[data.b])[test].mean()),
        "discarded": int((folds == DISCARDED).sum()),
    }
    if unit == "pair" and (audit["same_user_pair"] or audit["same_pair_other_user"]):
        raise DataError(f"the split 'pair' leaks: {audit}. Fold assignment and pairs do not belong together.")
    return audit
