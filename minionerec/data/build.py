"""From a source to a corpus: filter, order, make rows, split, check, count, and write in bounded memory."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.audit import OrderAudit, audit_visits
from minionerec.data.chains import NOBODY, Chains
from minionerec.data.checks import check_filled, check_global_time
from minionerec.data.corpus import Corpus, write_corpus
from minionerec.data.filters import in_window, k_core, number_by_appearance, parse_moment, year_before
from minionerec.data.names import QUIRKS, SPLIT_NAMES, SPLITS, TIES
from minionerec.data.rows import SplitRows
from minionerec.data.source import Source
from minionerec.data.splits import (
    SourceExamples,
    build_rows,
    evenly_thinned,
    global_time_split,
    leave_last_out_split,
    shuffled_ties,
    stable_order,
)
from minionerec.data.times import whole_seconds
from minionerec.data.units import check_unit

WIDEN_BELOW, WIDEN_UNTIL = 3_000, 1996


@dataclass(frozen=True)
class BuiltCorpus:
    """A corpus whose rows still lie in a few flat arrays, so that ten million of them fit.

    Attributes:
        items: Columns `item_id`, `title`, `description`; row i is item index i.
        rows: All rows of all splits, in time order; places and items as in `SourceExamples`.
        users: int32 (R,), user number of each row.
        labels: int8 (R,), 0 train, 1 valid, 2 test.
        user_ids: U strings; user number u is `user_ids[u]`. Numbers rise with first appearance in the source.
        split: Name of the split for result tables.
        max_history: Most items that a history holds.
        counts: Numbers for the manifest: the source's; `ties` and `order`, the audit of the source's own order
            (`OrderAudit.counts`); `train_rows`, `valid_rows`, `test_rows`, `rows`; `users` with a row; `items`;
            `items_without_title`; `items_without_description`; `items_without_interactions`; `interactions`, and of
            those left out `interactions_outside_window` and `interactions_outside_core`; for valid and test
            `{split}_cold_targets`, rows whose target is in no training row, as target or in a history, and
            `{split}_new_users`, rows whose user has no training row; `full_histories`, rows with `max_history` items;
            `truncated_histories`; `users_without_rows` (fewer than two interactions, or steps); `window_start_year`
            where "widen_window" is set; `rows_left_out` where valid and test were thinned.
        audit: What the source's own order says of ties.
    """

    items: pd.DataFrame
    rows: SourceExamples
    users: np.ndarray
    labels: np.ndarray
    user_ids: pa.Array
    split: str
    max_history: int
    counts: Mapping[str, Any]
    audit: OrderAudit

    def corpus(self) -> Corpus:
        """The same as every later stage sees it."""
        held, ids = self.rows, self.user_ids.to_numpy(zero_copy_only=False)
        targets = held.by_user[held.places]
        whole = SplitRows(ids, self.users, held.by_user, held.begins, held.ends, targets, held.times)
        rows = {split: whole.take(self.labels == number) for number, split in enumerate(SPLITS)}
        return Corpus(
            self.items,
            rows["train"],
            rows["valid"],
            rows["test"],
            split=self.split,
            max_history=self.max_history,
            counts=self.counts,
        )

    def chains(self) -> Chains:
        """All that each user with a row chose, as one sequence a user, in the order of user numbers."""
        held, users = self.rows, np.flatnonzero(np.bincount(self.users))
        rows, splits = np.full(len(held.by_user), NOBODY, np.int32), np.full(len(held.by_user), NOBODY, np.int8)
        splits[held.places] = self.labels
        for number in range(len(SPLITS)):
            places = held.places[self.labels == number]
            rows[places] = np.arange(len(places))
        ids = self.user_ids.to_numpy(zero_copy_only=False)
        return Chains(ids, held.offsets, held.by_user, held.moments, rows, splits).take(users)

    def all_counts(self) -> dict[str, Any]:
        """The counts as `Corpus.all_counts` gives them."""
        return {**self.counts, "items": len(self.items), "split": self.split, "max_history": self.max_history}

    def write(self, place: Path) -> None:
        """Write the files of a corpus into a directory."""
        write_corpus(place, self.items, self.chains())


@dataclass(frozen=True)
class _Visits:
    """The interactions that stay, in time order: M of them.

    Attributes:
        items: The items that stay, by their new index.
        users: int32 (M,), user number.
        item_index: int32 (M,).
        times: int64 or float64 (M,); None where there are none.
        moments: int64 (M,), the same in whole seconds; None where they tell no moment.
        places: int64 (M,), where the source has each.
        user_ids: The user of each number.
    """

    items: pd.DataFrame
    users: np.ndarray
    item_index: np.ndarray
    times: np.ndarray | None
    moments: np.ndarray | None
    places: np.ndarray
    user_ids: pa.Array

    def audit(self) -> OrderAudit:
        """What their order says of ties."""
        ids = self.items["item_id"].tolist()
        return audit_visits(self.users, self.item_index, ids, self.moments, self.places)


def build_corpus(
    source: Source,
    *,
    split: str = "global_time",
    max_history: int = 10,
    core: int = 0,
    start: str | None = None,
    end: str | None = None,
    quirks: Collection[str] = (),
    ties: str = "keep",
    max_eval_rows: int = 0,
    seed: int = 42,
) -> BuiltCorpus:
    """Filter a source's interactions, order them by time, make rows and split them.

    Interactions are sorted by time; where there are no times, the order of the file is the order. Every interaction but
    a user's first becomes a row. Repeated interactions are kept.

    Args:
        source: Items and interactions.
        split: "global_time" (the newest tenth of all rows is test, the tenth before valid) or "leave_last_out" (each
            user's last row is test, the one before valid).
        max_history: Most items that a history holds.
        core: Fewest interactions of every user and every item (iterative k-core), counted within the window; users and
            items outside go. At 0 all stay.
        start: First moment of the window, an ISO month, date or time in UTC; open if None.
        end: Last moment, included: a date alone is its midnight.
        quirks: Any of `QUIRKS`.
        ties: What becomes of items that a user chose at one moment, a second of the source's times: "keep", "shuffle"
            or "together" (`build_rows`; no moment is then split, see `global_time_split` and `leave_last_out_split`).
        max_eval_rows: Rows of valid and of test at most, evenly spread over their order (`evenly_thinned`); the others
            are nobody's targets, and counted as `rows_left_out`. At 0 all stay.
        seed: Seed of "shuffle".

    Raises:
        ConfigError: If the split, a quirk or `ties` is unknown or needs times that the source lacks, or a number is out
            of range.
        DataError: If the filters leave nothing, a split is empty, or the split leaks.
    """
    _check_names(split, ties)
    check_quirks(quirks, start)
    _check_times(source, split, start, end)
    kept, counts = _filtered(source, core, start, end, "widen_window" in quirks)
    visits = _in_order(source, kept, only_met=core > 1, published_order="published_order" in quirks)
    audit = visits.audit()
    visits = _with_ties(visits, ties, seed, source.where)
    rows = build_rows(visits.users, visits.item_index, max_history, visits.moments, ties == "together")
    row_users = visits.users[rows.targets]
    labels = _split(visits, rows, row_users, split, source.where, ties == "together")
    if max_eval_rows:
        stays = evenly_thinned(labels, max_eval_rows)
        counts["rows_left_out"] = int((~stays).sum())
        rows, row_users, labels = rows.take(stays, row_users), row_users[stays], labels[stays]
    counts |= source.counts | {f"{name}_rows": size for name, size in _sizes(labels).items()}
    counts |= _counts(visits.items, visits.item_index, rows, row_users, labels, max_history)
    counts["users_without_rows"] = len(visits.user_ids) - counts["users"]
    said = {**counts, "ties": ties, "order": audit.counts()}
    name = SPLIT_NAMES[split] + TIES[ties]
    return BuiltCorpus(visits.items, rows, row_users, labels, visits.user_ids, name, max_history, said, audit)


def _with_ties(visits: _Visits, ties: str, seed: int, where: str) -> _Visits:
    """The interactions with each user's ties shuffled where that is asked for; else as they are.

    Raises:
        ConfigError: If something is asked of ties and no moments are known.
    """
    if ties == "keep":
        return visits
    if visits.moments is None:
        raise no_moments(ties, where, timed=visits.times is not None)
    if ties == "together":
        return visits
    taken = shuffled_ties(visits.users, visits.moments, seed)
    return replace(visits, item_index=visits.item_index[taken], places=visits.places[taken])


def no_moments(ties: str, where: str, *, timed: bool) -> ConfigError:
    """What to say where something is asked of ties and no moments are known."""
    what = "holds times with fractions that are no dates" if timed else "holds no times"
    return ConfigError(
        f"ties is {ties!r}, but {where} {what}, so that nobody knows what came at one moment. Set ties to 'keep', "
        "or give dates or seconds since 1970."
    )


def _split(
    visits: _Visits, rows: SourceExamples, row_users: np.ndarray, split: str, where: str, together: bool
) -> np.ndarray:
    """The split of each row, int8 (R,); checked for leaks and for empty splits."""
    whole = visits.moments[rows.targets] if together and visits.moments is not None else None
    if split == "global_time":
        labels = global_time_split(len(row_users), moments=whole)
    else:
        labels = leave_last_out_split(row_users, whole)
    check_filled(_sizes(labels), where)
    if visits.times is not None and split == "global_time":
        row_times = visits.times[rows.targets]
        check_global_time({name: row_times[labels == label] for label, name in enumerate(SPLITS)})
    return labels


def _sizes(labels: np.ndarray) -> dict[str, int]:
    return dict(zip(SPLITS, np.bincount(labels, minlength=len(SPLITS)).tolist(), strict=True))


def _check_names(split: str, ties: str) -> None:
    if split not in SPLIT_NAMES:
        raise ConfigError(f"unknown split {split!r}; known splits: {', '.join(SPLIT_NAMES)}.")
    if ties not in TIES:
        raise ConfigError(f"unknown ties {ties!r}; known: {', '.join(TIES)}.")


def _check_times(source: Source, split: str, start: str | None, end: str | None) -> None:
    needs_times = {"split is 'global_time'": split == "global_time", "start or end is given": start or end}
    if (start or end) and source.times is not None:
        check_unit(source.times, source.ticks, source.where)
    for what, needed in needs_times.items():
        if needed and source.times is None:
            raise ConfigError(
                f"{what}, but {source.where} holds no times. Set split to 'leave_last_out' and no window."
            )


def _in_order(source: Source, kept: np.ndarray, *, only_met: bool, published_order: bool) -> _Visits:
    """The kept interactions in time order, users and items renumbered.

    Args:
        source: Items and interactions.
        kept: Places of the interactions that stay, ascending.
        only_met: Whether items without an interaction go.
        published_order: As the quirk of this name.
    """
    users, user_ids = _renumbered_users(source, kept)
    items, item_index = source.items, source.item_index[kept]
    times = None if source.times is None else source.times[kept]
    order = np.arange(len(users))
    if published_order:
        if times is not None:
            times = times // source.ticks
            order = stable_order(times)
        order = order[stable_order(users[order])]  # a walk from user to user, each from old to new
        _, old = number_by_appearance(item_index[order])
    else:
        old = np.flatnonzero(np.bincount(item_index)) if only_met else np.arange(len(items))
    if len(old) < len(items) or published_order:
        new = np.empty(len(items), dtype=np.int32)
        new[old] = np.arange(len(old))
        items, item_index = items.iloc[old].reset_index(drop=True), new[item_index]
    moments = None
    if times is not None:
        order = order[stable_order(times[order])]
        times = times[order]
        moments = whole_seconds(times, 1 if published_order else source.ticks)
    return _Visits(items, users[order], item_index[order], times, moments, kept[order], user_ids)


def check_quirks(quirks: Collection[str], start: str | None) -> None:
    """Check that quirks are known and can work.

    Raises:
        ConfigError: Naming the first that is not or cannot.
    """
    for quirk in quirks:
        if quirk not in QUIRKS:
            raise ConfigError(f"unknown quirk {quirk!r}; known quirks: {', '.join(QUIRKS)}.")
    if "widen_window" in quirks and start is None:
        raise ConfigError("quirk 'widen_window' moves the window's start, but start is not given. Give both or none.")


def _filtered(
    source: Source, core: int, start: str | None, end: str | None, widen: bool
) -> tuple[np.ndarray, dict[str, int]]:
    """The same as `_kept` of moments as text.

    Raises:
        DataError: If nothing is left.
    """
    first, last = (None if text is None else parse_moment(text) for text in (start, end))
    kept, counts = _kept(source, core, first, last, widen)
    if not len(kept) and len(source.users):
        raise DataError(
            f"{source.where}: no interaction is left of {len(source.users)} "
            f"({', '.join(f'{name} {value}' for name, value in counts.items())}). Widen start and end, or lower core."
        )
    return kept, counts


def _kept(
    source: Source, core: int, start: float | None, end: float | None, widen: bool
) -> tuple[np.ndarray, dict[str, int]]:
    """Places of the interactions that pass window and core, ascending, and how many were left out."""
    while True:
        kept = np.arange(len(source.users))
        if source.times is not None:
            kept = np.flatnonzero(in_window(source.times, source.ticks, start, end))
        counts = {"interactions_outside_window": len(source.users) - len(kept)}
        if core > 1:
            inside = k_core(source.users[kept], source.item_index[kept], core)
            counts["interactions_outside_core"] = len(kept) - len(inside)
            kept = kept[inside]
        if not widen or start is None:
            return kept, counts
        year = datetime.fromtimestamp(start, UTC).year
        n_items = len(np.unique(source.item_index[kept]))
        if n_items >= WIDEN_BELOW or year <= WIDEN_UNTIL:
            return kept, {**counts, "window_start_year": year}
        start = year_before(start)


def _renumbered_users(source: Source, kept: np.ndarray) -> tuple[np.ndarray, pa.Array]:
    """Users of the kept interactions, numbered by first appearance among them, and their ids."""
    users, old = number_by_appearance(source.users[kept])
    user_ids = source.user_ids.take(pa.array(old))
    return users, user_ids.combine_chunks() if isinstance(user_ids, pa.ChunkedArray) else user_ids


def _counts(
    items: pd.DataFrame,
    item_index: np.ndarray,
    rows: SourceExamples,
    users: np.ndarray,
    labels: np.ndarray,
    max_history: int,
) -> dict[str, int]:
    n_users = int(users.max(initial=-1)) + 1
    targets = rows.by_user[rows.places]
    train = labels == 0
    # Places that a training history covers: one more at each begin, one less at each end, summed up.
    covers = np.bincount(rows.begins[train], minlength=len(item_index) + 1)
    covers -= np.bincount(rows.ends[train], minlength=len(item_index) + 1)
    known = np.zeros(len(items), dtype=bool)
    known[rows.by_user[np.cumsum(covers)[:-1] > 0]] = True
    known[targets[train]] = True
    known_user = np.zeros(n_users, dtype=bool)
    known_user[users[train]] = True
    counts = {
        "rows": len(labels),
        "users": int((np.bincount(users) > 0).sum()),
        "items": len(items),
        "items_without_title": int((items["title"] == "").sum()),
        "items_without_description": int((items["description"] == "").sum()),
        "items_without_interactions": int((np.bincount(item_index, minlength=len(items)) == 0).sum()),
        "interactions": len(item_index),
        "full_histories": int((rows.ends - rows.begins >= max_history).sum()),
        "truncated_histories": rows.truncated,
    }
    for label, name in enumerate(SPLITS[1:], start=1):
        chosen = labels == label
        counts[f"{name}_cold_targets"] = int((~known[targets[chosen]]).sum())
        counts[f"{name}_new_users"] = int((~known_user[users[chosen]]).sum())
    return counts
