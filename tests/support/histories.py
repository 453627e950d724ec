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
