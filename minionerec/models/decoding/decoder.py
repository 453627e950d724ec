"""Decoding of many prompts into ranked SIDs, for evaluation, validation during training, and rollouts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from minionerec.core.device import fitting_count, fitting_parts
from minionerec.core.log import progress
from minionerec.core.processes import local_rank
from minionerec.models.decoding.architectures import inner_width
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.branches import OpensBranches, SearchModel, evaluating
from minionerec.models.decoding.trie import Trie

# Ranks SIDs for the prompts at some indices: SID numbers int64 (B, K), -1 after the end, and scores float32 (B, K).
Decode = Callable[[Sequence[int]], tuple[np.ndarray, np.ndarray]]


def length_batches(prompts: Sequence[Sequence[int]], batch_size: int) -> list[list[int]]:
    """Indices of prompts in batches of similar length, the shortest first.

    Example:
        >>> length_batches([[1, 2, 3], [4], [5, 6], [7]], 2)
        [[1, 3], [2, 0]]
    """
    order = sorted(range(len(prompts)), key=lambda position: (len(prompts[position]), position))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def padded_lists(values: np.ndarray, k: int, filler: float) -> np.ndarray:
    """Pad lists (R, K') on the right to (R, k)."""
    filled = np.full((len(values), k), filler, dtype=values.dtype)
    filled[:, : values.shape[1]] = values
    return filled


def decode_batches(
    decode: Decode,
    prompts: Sequence[Sequence[int]],
    k: int,
    batch_size: int,
    description: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Rank SIDs for many prompts, batched by length.

    A batch that runs out of memory is decoded in parts.

    Args:
        decode: Function that ranks SIDs for the prompts at given indices.
        prompts: R token id lists.
        k: Length of the lists, K.
        batch_size: Prompts at a time.
        description: Label of a progress bar; no bar if None.

    Returns:
        SID numbers int64 (R, K), -1 after the end of shorter lists, and scores float32 (R, K), in prompt order.
    """
    all_sids = np.full((len(prompts), k), -1, dtype=np.int64)
    all_scores = np.full((len(prompts), k), -np.inf, dtype=np.float32)
    batches = length_batches(prompts, batch_size)
    shown = progress(batches, description, unit="rows", size=len) if description else batches
    for part, (sids, scores) in fitting_parts(decode, shown):
        all_sids[part, : sids.shape[1]], all_scores[part, : sids.shape[1]] = sids, scores
    return all_sids, all_scores


def decode_prompts(
    model: SearchModel,
    prompts: Sequence[Sequence[int]],
    trie: Trie,
    num_beams: int,
    *,
    batch_size: int = 0,
    normaliser: str = "full",
) -> tuple[np.ndarray, np.ndarray]:
    """Rank SIDs for many prompts, batched by length.

    Args:
        model: Causal language model.
        prompts: R token id lists.
        trie: SIDs of the catalogue.
        num_beams: Number of beams, K.
        batch_size: Prompts decoded at a time; 0: by free memory, see `fitting_batch_size`.
        normaliser: "full" or "renormalised", see `beam_search`.

    Returns:
        SID numbers int64 (R, K), -1 after the end of shorter lists, and scores float32 (R, K), in prompt order.
    """
    decode = search_of(model, prompts, trie, num_beams, normaliser)
    batch_size = batch_size or fitting_batch_size(model, trie, prompts, num_beams)
    with evaluating(model):
        return decode_batches(decode, prompts, num_beams, batch_size)


def search_of(
    model: SearchModel, prompts: Sequence[Sequence[int]], trie: Trie, num_beams: int, normaliser: str = "full"
) -> Decode:
    """Function that decodes the prompts at given indices by beam search, for a model in evaluation mode."""
    trie = trie.to(model.device)

    def decode(positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        result = beam_search(model, [prompts[position] for position in positions], trie, num_beams, normaliser)
        return result.sids.cpu().numpy(), result.scores.float().cpu().numpy()

    return decode


def target_ranks(sids: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Rank, from 1, of each target, int64 (R,), in its list of SID numbers, int64 (R, K); 0 if it is not in it."""
    hit = sids == targets[:, None]
    return np.where(hit.any(1), hit.argmax(1) + 1, 0)


def decoding_device() -> torch.device:
    """GPU of this process (the first, outside of a distributed launch), or the CPU without a GPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank() % torch.cuda.device_count())
    return torch.device("cpu")


_SMALL_BATCH = 32  # up to this many prompts are searched together without querying free memory, which takes time
_LARGEST_BATCH = {"cpu": 64, "cuda": 256}


def fitting_batch_size(
    model: SearchModel, trie: Trie, prompts: Sequence[Sequence[int]], beams: int, memory: int | None = None
) -> int:
    """Number of prompts that fit into half of the memory, as a power of two.

    The estimate for a prompt of P tokens with K beams over L levels is, in values of the weights' dtype,

        2 n h d S                       keys and values of its S = P + K (L - 1) positions in n layers
        + 4 H d S                       keys and values spread over all H heads, and their copies, in one layer
        + max(P, K) (6 D + 4 F)         activations of one layer, D wide and F inside
        + 4 max(P, K) S                 attention mask and weights
        + 12 K W                        candidates: K beams, W children each at most
        + values of a model that scores all SIDs (`OpensBranches.values_at_once`)

    Args:
        model: The model, on its device.
        trie: SIDs of the catalogue.
        prompts: R token id lists, the longest of length P.
        beams: Number of beams, K.
        memory: Available bytes; the free memory of the model's device if None.

    Returns:
        A number from 1 to 256, or to 64 for a language model on a CPU; 32 for at most 32 prompts.
    """
    added = beams * (trie.levels - 1)
    model_values = model.values_at_once(trie) if isinstance(model, OpensBranches) else 0
    return fitting_prompts(model, prompts, beams, added, max(trie.widths), model_values, memory)


def fitting_prompts(
    model: Any,
    prompts: Sequence[Sequence[int]],
    beams: int,
    added: int,
    widest: int,
    model_values: int,
    memory: int | None,
) -> int:
    """Number of prompts that fit into half of the memory, for any search; see `fitting_batch_size`.

    Args:
        model: The model, on its device.
        prompts: R token id lists.
        beams: Number of beams, K.
        added: Positions of keys and values besides those of the prompt, S - P.
        widest: Candidates of a beam, W.
        model_values: Further values of the model per prompt.
        memory: Available bytes; the free memory of the model's device if None.
    """
    if len(prompts) <= _SMALL_BATCH:
        return _SMALL_BATCH
    device, longest, config = torch.device(model.device), max(map(len, prompts)), model.config
    heads: int = config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = vars(config).get("num_key_value_heads") or heads
    span = longest + added
    tokens = max(longest, beams)
    values = (
        2 * config.num_hidden_layers * kv_heads * head_width * span
        + 4 * heads * head_width * span
        + tokens * (6 * config.hidden_size + 4 * inner_width(config))
        + 4 * tokens * span
        + 12 * beams * widest
        + model_values
    )
    largest = _LARGEST_BATCH["cpu" if device.type == "cpu" and not model_values else "cuda"]
    return fitting_count(values * model.dtype.itemsize, device, largest, memory)
