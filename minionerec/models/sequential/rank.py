"""Ranks of every example's target among all items, in chunks and without sorting; and sorted lists."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import progress
from minionerec.data.rows import SplitExamples, ranges
from minionerec.models.nn.rows import top_scores
from minionerec.models.sequential.model import SequentialModel

_SCORES_AT_ONCE = 2_000_000


def count_ranks(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Rank of one column of each row, by counting larger scores; ties go to the lower column.

    Args:
        scores: float (B, V).
        targets: int64 (B,).

    Returns:
        int64 (B,), from 1.

    Example:
        >>> count_ranks(torch.tensor([[0.5, 0.9, 0.5], [0.5, 0.9, 0.5]]), torch.tensor([0, 2])).tolist()
        [2, 3]
    """
    target_scores = scores.gather(1, targets[:, None])
    ranks = 1 + (scores > target_scores).sum(1)
    equal = scores == target_scores
    tied = (equal.sum(1) > 1).nonzero()[:, 0]
    if len(tied):
        before = torch.arange(scores.shape[1], device=scores.device)[None] < targets[tied, None]
        ranks[tied] += (equal[tied] & before).sum(1)
    return ranks


def check_items(model: SequentialModel, examples: SplitExamples, histories: np.ndarray) -> None:
    """Check that a model's table has all items of examples, with histories from `SplitExamples.padded`.

    Raises:
        DataError: Naming the first row with an item beyond the table.
    """
    targets = examples.targets + 1
    items = np.maximum(targets, histories.max(1, initial=0))
    invalid = np.flatnonzero((items > model.num_items) | (targets < 1))
    if len(invalid):
        raise DataError(
            f"row {invalid[0]} (of {len(items)}) has item {items[invalid[0]]} and target {targets[invalid[0]]}, but "
            f"the model's table has items 1 to {model.num_items}. Use the data that the model was built for."
        )


def masked_scores(
    model: SequentialModel,
    examples: SplitExamples,
    seen: str,
    device: torch.device,
    description: str,
    *,
    users: np.ndarray | None = None,
    contexts: np.ndarray | None = None,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Scores of all items for chunks of examples, with seen items and padding masked as in a protocol.

    Args:
        model: The model, in evaluation mode.
        examples: R examples.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Device of the model.
        description: Label of the progress bar.
        users: int64 (R,), number of each example's user, if the model reads it.
        contexts: int16 (R, F), codes of the model's request features; all unknown if None.

    Yields:
        Slice of the examples, and scores float (b, V), which may be modified.

    Raises:
        ConfigError: If a score is NaN.
        DataError: If an item is not in the model's table.
    """
    histories = examples.padded(model.max_len, model.padding)
    check_items(model, examples, histories)
    size = max(16, min(1024, _SCORES_AT_ONCE // (model.num_items + 1)))
    owners = np.zeros(len(examples), dtype=np.int64) if users is None else users
    for start in progress(range(0, len(examples), size), description, unit="chunk"):
        chunk = slice(start, min(start + size, len(examples)))
        chunk_histories = torch.from_numpy(histories[chunk]).to(device, torch.int64)
        chosen = None if contexts is None else torch.from_numpy(contexts[chunk]).to(device, torch.int64)
        scores = model.scores(chunk_histories, torch.from_numpy(owners[chunk]).to(device), chosen)
        if bool(scores.isnan().any()):
            raise ConfigError("the model's scores are not numbers: training diverged. Lower learning_rate.")
        if seen != "keep":
            begins, ends = examples.firsts[chunk], examples.ends[chunk]
            position = torch.from_numpy(np.repeat(np.arange(len(begins)), ends - begins)).to(device)
            items = torch.from_numpy(examples.items[ranges(begins, ends)].astype(np.int64) + 1).to(device)
            scores[position, items] = 0.0 if seen == "zero" else -torch.inf
        if seen != "zero":
            scores[:, 0] = -torch.inf
        yield chunk, scores


@torch.inference_mode()
def rank_rows(
    model: SequentialModel,
    examples: SplitExamples,
    seen: str,
    device: torch.device,
    sid_numbers: np.ndarray | None = None,
    *,
    users: np.ndarray | None = None,
    contexts: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Rank of every example's target among all items.

    Args:
        model: The model; it is put into evaluation mode.
        examples: R examples.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Device of the model.
        sid_numbers: int64 (N,), number of each item's SID, for additional ranks among distinct SIDs, whose score is
            that of their best item.
        users: See `masked_scores`.
        contexts: See `masked_scores`.

    Returns:
        "item", and with `sid_numbers` "sid": int64 (R,), ranks from 1.
    """
    model.eval()
    targets = torch.from_numpy(examples.targets.astype(np.int64) + 1)
    ranks = {name: np.zeros(len(examples), dtype=np.int64) for name in ("item", "sid")[: 1 + (sid_numbers is not None)]}
    numbers = None if sid_numbers is None else torch.from_numpy(sid_numbers).to(device)
    for chunk, scores in masked_scores(model, examples, seen, device, "ranking", users=users, contexts=contexts):
        chunk_targets = targets[chunk].to(device)
        ranks["item"][chunk] = count_ranks(scores, chunk_targets).cpu().numpy()
        if numbers is not None:
            by_sid = scores.new_full((len(scores), int(numbers.max()) + 1), -torch.inf)
            by_sid.scatter_reduce_(1, numbers.expand(len(scores), -1), scores[:, 1:], "amax")
            ranks["sid"][chunk] = count_ranks(by_sid, numbers[chunk_targets - 1]).cpu().numpy()
    return ranks


@torch.inference_mode()
def top_items(
    model: SequentialModel,
    examples: SplitExamples,
    seen: str,
    device: torch.device,
    k: int,
    allowed: Callable[[slice], np.ndarray] | None = None,
    *,
    users: np.ndarray | None = None,
    contexts: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The best items for every example.

    Args:
        model: The model; it is put into evaluation mode.
        examples: R examples.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Device of the model.
        k: Length of the lists, at most V.
        allowed: Function from a slice of examples to the items, counted from 0, that may be listed: bool (b, N); all if
            None.
        users: See `masked_scores`.
        contexts: See `masked_scores`.

    Returns:
        int64 (R, k) items from 1 (0 is padding, if a protocol ranks it), best first, ties to the lower item; and
        float32 (R, k) scores, -inf for an item that may not be recommended.
    """
    model.eval()
    items = np.zeros((len(examples), k), dtype=np.int64)
    values = np.zeros((len(examples), k), dtype=np.float32)
    for chunk, scores in masked_scores(model, examples, seen, device, "listing", users=users, contexts=contexts):
        if allowed is not None:
            scores[:, 1:].masked_fill_(torch.from_numpy(~allowed(chunk)).to(device), -torch.inf)
        best, best_items = top_scores(scores, k)
        items[chunk], values[chunk] = best_items.cpu().numpy(), best.float().cpu().numpy()
    return items, values
