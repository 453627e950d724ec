"""Histories of chosen lengths, and sequential models of the registry whose weights are far from their start."""

import torch

from minionerec.models.sequential.model import ModelData
from minionerec.models.sequential.registry import build_model, model_class


def histories_of(lengths, padding, width, items, seed=1):
    """Random items, padded with 0: int64 (rows, width), row i with `lengths[i]` items from 1 to `items`."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.zeros(len(lengths), width, dtype=torch.int64)
    for row, length in zip(rows, lengths, strict=True):
        chosen = torch.randint(1, items + 1, (length,), generator=generator)
        row[slice(width - length, width) if padding == "left" else slice(0, length)] = chosen
    return rows


def of_all_lengths(rows, width, items, padding="right", shortest=1, seed=0):
    """Random histories of all lengths from `shortest` to `width`, padded with 0: int64 (rows, width)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = shortest + torch.arange(rows) * (width + 1 - shortest) // rows
    lengths[-1] = width
    slots = torch.arange(width)
    real = slots < lengths[:, None] if padding == "right" else slots >= width - lengths[:, None]
    return torch.randint(1, items + 1, (rows, width), generator=generator) * real


def scrambled(model, seed=0):
    """The model with weights far from their start, so that no part of it is almost nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model


def sequential_model(name, items, max_len, padding="right", users=6, **hyper):
    """A model of the registry with what the data determine; digits, where it reads them, are drawn at random."""
    kind = model_class(name)
    digits = torch.randint(0, 7, (items, 5), dtype=torch.int32) if kind.reads_digits else None
    if kind.reads_digits:
        hyper = {"hidden_size": 16, "num_heads": 2, "inner_size": 16, **hyper}
    determined = kind.data_hyper(ModelData(padding=padding, num_users=users, digits=digits))
    model = build_model(name, num_items=items, max_len=max_len, **{**determined, **hyper})
    if digits is not None:
        model.set_digits(digits)
    return model


def newest_slots(batch, padding="right"):
    """Slot of the newest item of each row: int64 (rows,)."""
    return (batch > 0).sum(1) - 1 if padding == "right" else torch.full((len(batch),), batch.shape[1] - 1)


def assert_same_gradients(values, others, used, tolerance=1e-8):
    """Two results have the same gradients with respect to some tensors; none counts as zero."""
    direction = torch.randn(values.shape, dtype=values.dtype, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((values * direction).sum(), used, allow_unused=True)
    wanted = torch.autograd.grad((others * direction).sum(), used, allow_unused=True)
    for gradient, other, tensor in zip(found, wanted, used, strict=True):
        zero = torch.zeros_like(tensor)
        gradient, other = (zero if one is None else one for one in (gradient, other))
        torch.testing.assert_close(gradient, other, rtol=tolerance, atol=tolerance)
