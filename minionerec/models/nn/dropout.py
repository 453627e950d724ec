"""Dropout that does not wait for random numbers on a CPU."""

from typing import TypeVar

import numpy as np
import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)

_STEPS = 256


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, with its mask from random bits in bulk where it works on a CPU.

    Torch draws one number an element from a serial generator, which in small models takes longer than the layers
    between. Here each call takes one seed from torch's generator (so that `torch.manual_seed` and saved generator
    states decide the masks as always), from which a fast generator fills the whole mask.

    The law is that of `torch.nn.Dropout`: each element stays with probability 1 - p, independently, and is scaled so
    that the expectation is kept; p is rounded to a multiple of 1/256 where it is one, else of 1/65536.

    Shape:
        Any, float; the result is like the input. In evaluation, or with p = 0, the input itself is returned.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Zero elements at random and scale the others."""
        if not self.training or self.p == 0:
            return input
        if input.device.type != "cpu" or self.p == 1:
            return nn.functional.dropout(input, self.p)
        return input * dropout_mask(input.shape, self.p).to(input.dtype)


def replace_dropout(model: Model) -> Model:
    """Put `Dropout` in place of every `torch.nn.Dropout` of a model, with the same share, and return the model.

    Subclasses of `torch.nn.Dropout` stay.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))
    return model


def dropout_mask(shape: torch.Size, p: float) -> torch.Tensor:
    """A mask that dropout multiplies by: 0 with probability p, else 1 / (1 - p).

    Args:
        shape: Shape of the mask.
        p: Share of zeros, in [0, 1).

    Returns:
        float32, of the given shape, on the CPU.
    """
    width = 1 if float(p * _STEPS).is_integer() else 2
    steps = _STEPS**width
    dropped = min(round(p * steps), steps - 1)
    count = shape.numel()
    seed = int(torch.randint(2**62, ()))
    words = np.random.SFC64(seed).random_raw(-(-count * width // 8))
    drawn = torch.from_numpy(words.view(np.uint8 if width == 1 else np.int16)[:count]).view(shape)
    least = dropped if width == 1 else dropped - steps // 2
    # Straight into float32: a tensor of bools in between takes five times as long.
    return torch.ge(drawn, least, out=torch.empty(shape)).mul_(steps / (steps - dropped))
