"""A bank of causal filters that gives every slot a phase and a magnitude in each of four bands."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.function import once_differentiable

KERNELS = (3, 7, 15, 31)
DILATIONS = (1, 2, 4, 8)
NUM_BANDS = len(KERNELS)
_FLOOR = 1e-8
_SILENT = 1e-3
_TINY = 1e-30

Silence = Literal["kept", "zero angle", "no phase"]
"""What becomes of slots whose magnitude is at most 0.001: nothing; angle 0, cos 1, sin 0; or cos 0, sin 0."""


@dataclass(frozen=True)
class Phases:
    """Phase and magnitude of each slot in each band.

    Attributes:
        cos: float (B, S, L), cosine of the phase.
        sin: float (B, S, L), its sine.
        magnitude: float (B, S, L), above 0.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    magnitude: torch.Tensor

    def roughness(self) -> torch.Tensor:
        """Mean over rows, bands and neighbouring slots of how far the phase moves: |e^{iφ(t+1)} - e^{iφ(t)}|²."""
        return (self.cos.diff(dim=-1).square() + self.sin.diff(dim=-1).square()).mean()

    def split(self, sizes: list[int]) -> list["Phases"]:
        """Cut the rows into runs of the given sizes."""
        parts = (value.split(sizes) for value in (self.cos, self.sin, self.magnitude))
        return [Phases(*values) for values in zip(*parts, strict=True)]

    def columns(self, slots: slice) -> "Phases":
        """The given slots alone."""
        return Phases(self.cos[..., slots], self.sin[..., slots], self.magnitude[..., slots])

    def take(self, at: torch.Tensor) -> "Phases":
        """One slot of each row: all of (B, S, 1)."""
        index = at[:, None, None].expand(-1, self.cos.shape[1], 1)
        return Phases(self.cos.gather(2, index), self.sin.gather(2, index), self.magnitude.gather(2, index))


def to_phases(real: torch.Tensor, imaginary: torch.Tensor, silence: Silence) -> Phases:
    """Phase and magnitude of complex numbers.

    The magnitude is √(U² + V² + 1e-8), the angle atan2(V, U + 1e-8), or atan2(V, U) for the silence "no phase". Cosine
    and sine are taken as quotients, which are the same; the gradient is finite everywhere.

    Args:
        real: float (B, S, L), U.
        imaginary: float (B, S, L), V.
        silence: What becomes of slots of a magnitude of at most 0.001.
    """
    magnitude = (real.square() + imaginary.square() + _FLOOR).sqrt()
    if silence != "no phase":
        real = real + _FLOOR
    if silence != "kept":
        loud = magnitude > _SILENT
        real, imaginary = torch.where(loud, real, 1.0), torch.where(loud, imaginary, 0.0)
    inverse = (real.square() + imaginary.square()).clamp_min(_TINY).rsqrt()
    cos, sin = real * inverse, imaginary * inverse
    if silence == "no phase":
        cos = cos * loud
    return Phases(cos, sin, magnitude)


class _SumTaps(torch.autograd.Function):
    """Sum over the taps of each band, tap m moved m · dilation slots onward; what moves beyond the last slot is lost.

    Autograd of shifted slices would fill a whole gradient with zeros for every one of them.
    """

    @staticmethod
    def forward(ctx: Any, taps: torch.Tensor, shifts: list[list[int]]) -> torch.Tensor:
        """From float (Σ m, 2, B, L), the taps of all bands one after the other, to (S, 2, B, L)."""
        ctx.shifts = shifts
        summed = taps.new_zeros(len(shifts), *taps.shape[1:])
        tap = iter(taps)
        for band, moves in zip(summed, shifts, strict=True):
            for shift in moves:
                band[..., shift:] += next(tap)[..., : taps.shape[-1] - shift]
        return summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Move the gradient back."""
        length = gradient.shape[-1]
        taps = gradient.new_empty(sum(map(len, ctx.shifts)), *gradient.shape[1:])
        tap = iter(taps)
        for band, moves in zip(gradient, ctx.shifts, strict=True):
            for shift in moves:
                part = next(tap)
                part[..., : length - shift] = band[..., shift:]
                part[..., length - shift :] = 0
        return taps, None


_sum_taps: Callable[[torch.Tensor, list[list[int]]], torch.Tensor] = _SumTaps.apply


class PhaseBank(nn.Module):
    """Pairs of depth-wise dilated causal convolutions, one pair a band, each averaged over the channels.

    Band s has kernels of k_s = 3, 7, 15, 31 taps at dilations of 1, 2, 4, 8 slots. Its real part is
    U_s(t) = 1/D Σ_c Σ_m w[c, k_s - 1 - m] x[t - m · dilation, c], and V_s likewise with weights of its own; what lies
    before the first slot is 0. The mean over channels is taken first: one product gives all taps at all slots, and
    their sums along time follow. Taps that lie before the first slot for every slot are left out.

    Attributes:
        weights: For each band float (2, D, k_s), real and imaginary, drawn uniformly from ±1/√k_s.
    """

    def __init__(self, hidden_size: int, num_bands: int, silence: Silence):
        super().__init__()
        self.num_bands, self.silence = num_bands, silence
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(2, hidden_size, taps).uniform_(-1 / math.sqrt(taps), 1 / math.sqrt(taps)))
            for taps in KERNELS
        )

    def forward(self, x: torch.Tensor) -> Phases:
        """Phases of the first `num_bands` bands of float (B, L, D)."""
        rows, length, width = x.shape
        used = [
            weight[..., -(1 + (length - 1) // dilation) :].flip(-1)
            for weight, dilation in zip(self.weights[: self.num_bands], DILATIONS, strict=False)
        ]  # (2, D, m), the tap of the slot itself first
        shifts = [
            [tap * dilation for tap in range(weight.shape[-1])]
            for weight, dilation in zip(used, DILATIONS, strict=False)
        ]
        flat = torch.cat([weight.permute(2, 0, 1) for weight in used]).flatten(0, 1)  # (2 Σ m, D)
        taps = ((flat / width) @ x.reshape(-1, width).T).view(-1, 2, rows, length)
        real, imaginary = _sum_taps(taps, shifts).transpose(0, 2).unbind(1)
        return to_phases(real, imaginary, self.silence)
