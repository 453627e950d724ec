"""Linear layers whose products run in oneDNN on a CPU, where torch's own take another library."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn
from torch.autograd.function import once_differentiable

Model = TypeVar("Model", bound=nn.Module)

_ROWS = 128
_LEAST_WORK = 2**21


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by `linear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map float (..., in_features) to (..., out_features)."""
        return linear(input, self.weight, self.bias)


def replace_linear(model: Model) -> Model:
    """Put `Linear` in place of every `torch.nn.Linear` of a model, with the same weights, and return the model.

    Subclasses of `torch.nn.Linear` stay. Names, parameters and what is saved remain as they were.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                with torch.device("meta"):
                    own = Linear(child.in_features, child.out_features, child.bias is not None)
                own.weight = child.weight
                if child.bias is not None:
                    own.bias = child.bias
                setattr(parent, name, own.train(child.training))
    return model


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As `torch.nn.functional.linear`, x weightᵀ + bias, and faster on some CPUs; differentiable once.

    Torch multiplies float32 matrices on x86 with MKL, which leaves AVX-512 unused on processors that are not Intel's.
    The operator that torch's compiler emits for linear layers calls oneDNN, which asks the processor alone. It computes
    in float32 too; sums may be ordered otherwise, so that results agree to rounding.

    oneDNN prepares itself for every new shape, which takes longer than many a product. Rows are therefore filled up or
    split to multiples of 128, and small products are left to torch. Which library multiplies depends on nothing but
    machine, shapes and types, so that a repeated computation is bit-equal.

    Args:
        x: float (..., K).
        weight: float (N, K), any strides.
        bias: float (N,), or None.

    Returns:
        float (..., N).
    """
    rows = x.numel() // max(x.shape[-1], 1)
    if not _favourable(x, weight) or rows < _ROWS or rows * weight.numel() < _LEAST_WORK:
        return nn.functional.linear(x, weight, bias)
    return _differentiable_product(x.reshape(rows, -1), weight, bias).view(*x.shape[:-1], -1)


def _favourable(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether oneDNN is worth its while: the types are its, it is switched on, and nothing casts."""
    return bool(
        x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and _capable()
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
    )


@cache
def _capable() -> bool:
    """Whether the processor has AVX-512, and this torch oneDNN with the operator."""
    return (
        torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """X weightᵀ + bias by oneDNN: float (M, K), (N, K) and (N,) to (M, N). `x` is copied if it is transposed."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    """The product and both of its gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """From float (M, K), (N, K) and (N,) to (M, N)."""
        ctx.save_for_backward(x, weight)
        missing = -len(x) % _ROWS
        if not missing:
            return _product(x, weight, bias)
        filled = _product(nn.functional.pad(x, (0, 0, 0, missing)), weight, bias)
        # Cut without a view, which might not be changed in place.
        return filled.resize_(len(x), filled.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the three, those that are wanted."""
        x, weight = ctx.saved_tensors
        x_wanted, weight_wanted, bias_wanted = ctx.needs_input_grad
        gradient = gradient.contiguous()
        whole = len(x) - len(x) % _ROWS
        of_x = of_weight = of_bias = None
        if x_wanted:
            of_x = _product(gradient[:whole], weight.t())
            if whole < len(x):
                of_x = torch.cat((of_x, gradient[whole:] @ weight))
        if weight_wanted:
            # The first factor is copied; turned round, the other is, and the result is turned by who adds it up.
            if x.numel() + weight.numel() < gradient.numel():
                of_weight = _product(x[:whole].t(), gradient[:whole].t()).t()
            else:
                of_weight = _product(gradient[:whole].t(), x[:whole].t())
            if whole < len(x):
                of_weight = of_weight.addmm_(gradient[whole:].t(), x[whole:])
        if bias_wanted:
            of_bias = gradient.sum(0)
        return of_x, of_weight, of_bias


_differentiable_product: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor] = _Linear.apply
