"""What was computed on two devices, side by side: equal but for rounding."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from minionerec.contrib.generative_baselines.tiger import sid_tokenizer
from minionerec.models.backbone.catalogue import CatalogueConfig, build_catalogue
from minionerec.models.backbone.vocabulary import code_token_ids
from minionerec.sid.table import SidTable

CPU = torch.device("cpu")
TIGER = {"d_model": 16, "d_kv": 8, "num_heads": 2, "num_layers": 2, "d_ff": 24}


ROUNDING = 1e-4
"""Largest difference of scores that are taken for equal."""


def same_lists(one: tuple[Any, Any], two: tuple[Any, Any]) -> bool:
    """Whether two searches gave the same lists; only neighbours whose scores differ by rounding may change ranks.

    Args:
        one: SID numbers (R, K) and their scores.
        two: The other search's.
    """
    first, second = (tuple(np.asarray(part) for part in found[:2]) for found in (one, two))
    if first[0].shape != second[0].shape or not np.allclose(first[1], second[1], atol=ROUNDING, rtol=ROUNDING):
        return False
    for mine, scores, theirs, others in zip(*first, *second, strict=True):
        known = dict(zip(theirs.tolist(), others.tolist(), strict=True))
        least = others[np.isfinite(others)].min(initial=np.inf) if len(others) else 0.0
        for number, score in zip(mine.tolist(), scores.tolist(), strict=True):
            if np.isfinite(score) and abs(known.get(number, least) - score) > ROUNDING * (1 + abs(score)):
                return False
    return True


def gradients(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """A loss and the gradient of all weights, those without one as zeros, in one vector on the CPU."""
    model.zero_grad()
    value = loss()
    value.backward()
    parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]
    return value.item(), torch.cat([part.to_dense().float().cpu().flatten() for part in parts])


def near(one: tuple[float, torch.Tensor], two: tuple[float, torch.Tensor], tolerance: float = 1e-4) -> bool:
    """Whether two losses, and their gradients as vectors, differ by no more than a share of their size."""
    (loss, gradient), (other, its) = one, two
    size = its.norm().item()
    difference = (gradient - its).norm().item()
    return size > 0 and abs(loss - other) <= tolerance * abs(other) and difference <= tolerance * size


def moved(values: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """A batch on a device."""
    return {name: value.to(device) for name, value in values.items()}


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether every number is one."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def shop_of():
    """SIDs of 40 items, a tokenizer that speaks them, and prompts of whole SIDs."""
    rng = np.random.default_rng(6)
    codes = np.unique(rng.integers(0, 5, (40, 3)), axis=0)
    table = SidTable(codes, [f"i{position}" for position in range(len(codes))])
    tokenizer = sid_tokenizer(table)
    ids = code_token_ids(tokenizer, table)
    prompts = [
        np.concatenate([ids[np.arange(3), codes[item]] for item in rng.integers(0, len(codes), count)]).tolist()
        for count in (1, 2, 3, 5, 8, 3)
    ]
    return table, tokenizer, ids, prompts


def catalogue(shop, towers=2):
    """A catalogue model of everything that there is: text, codes, counts, a pointer, several towers."""
    table, tokenizer, ids, _ = shop
    size = table.n_unique
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 6, size)
    followers = np.concatenate([np.sort(rng.permutation(size)[:length]) for length in lengths]).astype(np.int32)
    counts = rng.random(len(followers)).astype(np.float32)
    counted = csr_array((counts, followers, np.append(0, np.cumsum(lengths))), shape=(size, size))
    torch.manual_seed(8)
    config = CatalogueConfig(
        vocab_size=len(tokenizer), max_history=6, hidden_size=16, intermediate_size=24, num_attention_heads=2
    )
    config.towers = towers
    text = rng.normal(size=(size, 7)).astype(np.float32)
    model = build_catalogue(config, table.codes, ids, text, counted).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape))
    return model
