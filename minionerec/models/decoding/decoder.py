"""The decoder that evaluation, validation during training and rollouts share: prompts in, ranked SIDs out."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from minionerec.core.log import progress
from minionerec.core.processes import local_rank
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.branches import SearchModel, evaluating
from minionerec.models.decoding.trie import Trie

# Ranks SIDs for the prompts at some places: SID numbers int64 (B, K), -1 behind the end, and scores float32 (B, K).
Decode = Callable[[Sequence[int]], tuple[np.ndarray, np.ndarray]]


def length_batches(prompts: Sequence[Sequence[int]], batch_size: int) -> list[list[int]]:
    """Places of prompts in batches of similar length, the shortest first.

    Example:
        >>> length_batches([[1, 2, 3], [4], [5, 6], [7]], 2)
        [[1, 3], [2, 0]]
    """
    order = sorted(range(len(prompts)), key=lambda place: (len(prompts[place]), place))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def decode_batches(
    decode: Decode,
    prompts: Sequence[Sequence[int]],
    width: int,
    batch_size: int,
    description: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Rank SIDs for many prompts, batching those of similar length so that little is spent on padding.

    Args:
        decode: Ranks SIDs for the prompts at some places.
        prompts: R token id lists.
        width: Length of the lists, K.
        batch_size: Prompts at a time.
        description: Label of a progress bar; none if None.

    Returns:
        SID numbers int64 (R, K), -1 behind the end of shorter lists, and scores float32 (R, K), in prompt order.
    """
    all_sids = np.full((len(prompts), width), -1, dtype=np.int64)
    all_scores = np.full((len(prompts), width), -np.inf, dtype=np.float32)
    batches = length_batches(prompts, batch_size)
    for batch in progress(batches, description, unit="rows", size=len) if description else batches:
        sids, scores = decode(batch)
        all_sids[batch, : sids.shape[1]], all_scores[batch, : sids.shape[1]] = sids, scores
    return all_sids, all_scores


def decode_prompts(
    model: SearchModel,
    prompts: Sequence[Sequence[int]],
    trie: Trie,
    num_beams: int,
    *,
    batch_size: int = 32,
    normaliser: str = "full",
    description: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Rank SIDs for many prompts, batching those of similar length so that little is spent on padding.

    The model is put into evaluation mode for the time of the call.

    Args:
        model: Causal language model.
        prompts: R token id lists.
        trie: SIDs of the catalogue.
        num_beams: Beam width K.
        batch_size: Prompts decoded at a time.
        normaliser: "full" or "renormalised", see `beam_search`.
        description: Label of a progress bar; none if None.

    Returns:
        SID numbers int64 (R, K), -1 behind the end of shorter lists, and scores float32 (R, K), in prompt order.
    """
    trie = trie.to(model.device)

    def decode(places: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        found = beam_search(model, [prompts[place] for place in places], trie, num_beams, normaliser)
        return found.sids.cpu().numpy(), found.scores.float().cpu().numpy()

    with evaluating(model):
        return decode_batches(decode, prompts, num_beams, batch_size, description)


def target_ranks(sids: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Rank, from 1, of each row's target in its list; 0 where it is not in the list.

    Args:
        sids: int64 (R, K), SID numbers, -1 for no result.
        targets: int64 (R,), SID number of each row's target.

    Returns:
        int64 (R,).
    """
    hit = sids == targets[:, None]
    return np.where(hit.any(1), hit.argmax(1) + 1, 0)


def decoding_device() -> torch.device:
    """This process's GPU where there is one (the first, outside of a distributed launch), else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank() % torch.cuda.device_count())
    return torch.device("cpu")
