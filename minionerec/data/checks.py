"""Checks that a split does not leak, and the counts that every corpus reports."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from minionerec.core.errors import DataError
from minionerec.data.corpus import Corpus
from minionerec.data.names import SPLITS


def check_histories(corpus: Corpus) -> dict[str, int]:
    """Check by the histories alone that no split contains the targets of a later one.

    A user's examples are windows of one growing list of items, and a history shorter than `max_history` gives its
    example's position in that list. An example whose position an earlier split has already reached leaks: a training
    example of that user holds its target. This cannot happen in a split by time nor in leave last out, so it is an
    error. Full histories do not give their position; there an example counts as a possible leak where some example of
    an earlier split continues it (its history is this example's history and target) and is not itself continued by it.
    A user who buys the same things over and over can bring that about in a right split, so it is only counted.

    Args:
        corpus: Examples of each split in the order in which they happened.

    Returns:
        `continued_rows`: examples whose history is exactly the same user's previous example plus its target;
        `broken_rows`: examples that have a previous example and do not continue it (examples in between are missing);
        `possible_leaks`: examples of valid and test with a full history that an example of an earlier split continues.

    Raises:
        DataError: On the first example that leaks, naming split, example and user.
    """
    limit = corpus.max_history
    newest: dict[str, tuple[int, ...]] = {}  # the user's next history
    reached: dict[str, int] = {}  # position of the user's farthest example in earlier splits, at most `limit`
    full: dict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)  # (user, full history) → targets there
    counts = {"continued_rows": 0, "broken_rows": 0, "possible_leaks": 0}
    for split, table in corpus.splits().items():
        rows = [(user, tuple(history.tolist()), target) for user, history, target in table]
        for number, (user, history, target) in enumerate(rows, start=1):
            after = (*history, target)[-limit:]
            if len(history) < limit and reached.get(user, -1) >= len(history):
                raise DataError(
                    f"the split leaks: {split} example {number} (user {user!r}, {len(history)} items of history) "
                    f"precedes an example of the same user in an earlier split. "
                    f"Split again: {split} examples must come later."
                )
            if len(history) == limit:
                counts["possible_leaks"] += any(
                    (*after, later)[-limit:] != history for later in full.get((user, after), ())
                )
            if user in newest:
                counts["continued_rows" if newest[user] == history else "broken_rows"] += 1
            newest[user] = after
        for user, history, target in rows:
            reached[user] = max(reached.get(user, -1), len(history))
            if len(history) == limit:
                full[user, history].add(target)
    return counts


def check_filled(sizes: Mapping[str, int], where: str) -> None:
    """Check that no split is empty.

    Args:
        sizes: Split → number of examples.
        where: Name of the source in messages.

    Raises:
        DataError: Naming the source and the first empty split.
    """
    for split, size in sizes.items():
        if not size:
            shown = ", ".join(f"{name} {rows}" for name, rows in sizes.items())
            raise DataError(
                f"{where}: split {split!r} holds no example ({shown}). Give more interactions or another split."
            )


def corpus_counts(corpus: Corpus) -> dict[str, Any]:
    """Numbers that every corpus reports.

    Returns:
        `{split}_rows`; `rows`; `users` with at least one example; `items`; `items_without_description`; for valid and
        test `{split}_cold_targets`, examples whose target is that of no training example, and `{split}_new_users`,
        examples whose user has no training example; `full_histories`, examples with `max_history` items.
    """
    splits = corpus.splits()
    users = {split: set(rows.users.tolist()) for split, rows in splits.items()}
    counts: dict[str, Any] = {f"{split}_rows": len(rows) for split, rows in splits.items()}
    counts["rows"] = sum(len(rows) for rows in splits.values())
    counts["users"] = len(set().union(*users.values()))
    counts["items"] = corpus.n_items
    counts["items_without_description"] = int((corpus.items["description"] == "").sum())
    for split in SPLITS[1:]:
        counts[f"{split}_cold_targets"] = int((corpus.popularity()[splits[split].targets] == 0).sum())
        counts[f"{split}_new_users"] = sum(user not in users["train"] for user in splits[split].users)
    counts["full_histories"] = sum(int((rows.lengths >= corpus.max_history).sum()) for rows in splits.values())
    return counts
