"""Histories of chosen lengths for models, and models whose weights are far from their start."""

import torch


def histories_of(lengths, padding, width, items, seed=1):
    """Random items, padded with 0: int64 (rows, width), row i with `lengths[i]` items from 1 to `items`."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.zeros(len(lengths), width, dtype=torch.int64)
    for row, length in zip(rows, lengths, strict=True):
        chosen = torch.randint(1, items + 1, (length,), generator=generator)
        row[slice(width - length, width) if padding == "left" else slice(0, length)] = chosen
    return rows


def scrambled(model, seed=0):
    """The model with weights far from their start, so that no part of it is almost nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model
