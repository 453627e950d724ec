"""Layers that several models share, dropout products that are fast on a CPU, and padding."""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from minionerec.core.errors import ConfigError
from minionerec.data.rows import Side

# Dropout that does not wait for random numbers on a CPU.

Model = TypeVar("Model", bound=nn.Module)

_STEPS = 256


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with a fast random generator on a CPU.

    Torch draws one number per element from a serial generator, which in small models takes longer than the layers
    between. Here each call draws one seed from torch's generator (so that `torch.manual_seed` and saved generator
    states determine the masks), and a fast generator fills the mask.

    The distribution is that of `torch.nn.Dropout`: each element is kept with probability 1 - p, independently, and
    scaled by 1 / (1 - p); p is rounded to a multiple of 1/256 if it is one, else of 1/65536.

    Shape:
        Any, float; the result has the shape of the input. In evaluation, or with p = 0, the input is returned.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Zero elements at random and scale the others."""
        if not self.training or self.p == 0:
            return input
        if input.device.type != "cpu" or self.p == 1:
            return nn.functional.dropout(input, self.p)
        return input * dropout_mask(input.shape, self.p).to(input.dtype)


def replace_dropout(model: Model) -> Model:
    """Replace every `torch.nn.Dropout` of a model (subclasses excepted) by `Dropout`, and return the model."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))
    return model


def dropout_mask(shape: torch.Size, p: float) -> torch.Tensor:
    """Draw a dropout mask, float32 on the CPU: 0 with probability p, in [0, 1), else 1 / (1 - p)."""
    width = 1 if float(p * _STEPS).is_integer() else 2
    steps = _STEPS**width
    dropped = min(round(p * steps), steps - 1)
    count = shape.numel()
    seed = int(torch.randint(2**62, ()))
    words = np.random.SFC64(seed).random_raw(-(-count * width // 8))
    random = torch.from_numpy(words.view(np.uint8 if width == 1 else np.int16)[:count]).view(shape)
    least = dropped if width == 1 else dropped - steps // 2
    # Written directly as float32, which is five times as fast as through bools.
    return torch.ge(random, least, out=torch.empty(shape)).mul_(steps / (steps - dropped))


# Linear layers whose products run in oneDNN on a CPU, rather than in torch's default library.

_ROWS = 128
_MIN_WORK = 2**21


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by `linear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map float (..., in_features) to (..., out_features)."""
        return linear(input, self.weight, self.bias)


def fill_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Assign copies of weights, in the model's dtypes, to a model on the meta device.

    Building a model on the meta device draws no random numbers, so loading does not affect training in another thread.

    Raises:
        RuntimeError: If names or shapes differ from the model's.
    """
    types = {name: value.dtype for name, value in model.state_dict().items()}
    copies = {name: value.to(types.get(name, value.dtype), copy=True) for name, value in weights.items()}
    model.load_state_dict(copies, assign=True)


def replace_linear(model: Model) -> Model:
    """Replace every `torch.nn.Linear` of a model (subclasses excepted) by `Linear`, and return the model.

    Parameters, their names and the state dict do not change.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                with torch.device("meta"):
                    replacement = Linear(child.in_features, child.out_features, child.bias is not None)
                replacement.weight = child.weight
                if child.bias is not None:
                    replacement.bias = child.bias
                setattr(parent, name, replacement.train(child.training))
    return model


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute x weightᵀ + bias like `torch.nn.functional.linear`, faster on some CPUs; differentiable once.

    On x86, torch multiplies float32 matrices with MKL, which uses AVX-512 only on Intel processors. The operator that
    torch's compiler emits for linear layers calls oneDNN, which detects AVX-512. It also computes in float32, but may
    order sums differently, so results agree up to rounding.

    oneDNN compiles a kernel for every new shape, which can take longer than the product. So rows are padded or split to
    multiples of 128, and small products use torch. The choice of library depends only on machine, shapes and dtypes, so
    repeated computations are bit-equal.

    Args:
        x: float (..., K).
        weight: float (N, K), any strides.
        bias: float (N,), or None.

    Returns:
        float (..., N).
    """
    rows = x.numel() // max(x.shape[-1], 1)
    if not _favourable(x, weight) or rows < _ROWS or rows * weight.numel() < _MIN_WORK:
        return nn.functional.linear(x, weight, bias)
    return _differentiable_product(x.reshape(rows, -1), weight, bias).view(*x.shape[:-1], -1)


def _favourable(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether oneDNN can be used and is faster: float32 on a CPU with AVX-512, enabled, and no autocast."""
    return bool(
        x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and _capable()
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
    )


@cache
def _capable() -> bool:
    """Whether the processor has AVX-512, and torch has oneDNN with the operator."""
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
    """Product of `linear` with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """From float (M, K), (N, K) and (N,) to (M, N)."""
        ctx.save_for_backward(x, weight)
        missing = -len(x) % _ROWS
        if not missing:
            return _product(x, weight, bias)
        filled = _product(nn.functional.pad(x, (0, 0, 0, missing)), weight, bias)
        # Resized rather than sliced, since a view might not be modified in place.
        return filled.resize_(len(x), filled.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of x, weight and bias, as far as needed."""
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        gradient = gradient.contiguous()
        whole = len(x) - len(x) % _ROWS
        of_x = of_weight = of_bias = None
        if needs_x:
            of_x = _product(gradient[:whole], weight.t())
            if whole < len(x):
                of_x = torch.cat((of_x, gradient[whole:] @ weight))
        if needs_weight:
            # oneDNN copies its first operand: transpose the product if the second operand is smaller.
            if x.numel() + weight.numel() < gradient.numel():
                of_weight = _product(x[:whole].t(), gradient[:whole].t()).t()
            else:
                of_weight = _product(gradient[:whole].t(), x[:whole].t())
            if whole < len(x):
                of_weight = of_weight.addmm_(gradient[whole:].t(), x[whole:])
        if needs_bias:
            of_bias = gradient.sum(0)
        return of_x, of_weight, of_bias


_differentiable_product: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor] = _Linear.apply


def slot_range(width: int, max_len: int, padding: Side) -> slice:
    """Slots, among `max_len`, of a batch whose padding was trimmed to `width` columns."""
    return slice(max_len - width, max_len) if padding == "left" else slice(0, width)


def full_width(histories: torch.Tensor, max_len: int, padding: Side) -> torch.Tensor:
    """Pad int64 (B, L) to (B, max_len), for models whose result depends on padding."""
    missing = max_len - histories.shape[1]
    return nn.functional.pad(histories, (missing, 0) if padding == "left" else (0, missing))


def readout_slots(histories: torch.Tensor, padding: Side) -> torch.Tensor:
    """Column of each row's newest item, int64 (B,), where the next one is predicted.

    For left padding the last column; for right padding 0 where a row holds no item.

    Args:
        histories: int64 (B, L), 0 is padding.
        padding: Side of the padding.
    """
    rows, width = histories.shape
    if padding == "left":
        return torch.full((rows,), width - 1, device=histories.device)
    return ((histories > 0).sum(1) - 1).clamp_(min=0)


def take_slots(x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """One slot of each row: (B, L, D) at int64 (B,) gives (B, D)."""
    return x[torch.arange(len(x), device=x.device), slots]


def length_groups(histories: torch.Tensor, padding: Side) -> list[tuple[torch.Tensor, slice]]:
    """Split a batch on a CPU into at most three groups of similar length, to reduce padding.

    On a GPU all rows are one group, since at these sizes kernel launches dominate and the lengths would need a sync. A
    row without items counts as one of full length, because if all its keys are masked alike, the result depends on the
    padding.

    Returns:
        For each group the indices of its rows in the batch (B, L), int64 (b,), and the columns without the common
            padding.
    """
    width = histories.shape[1]
    if histories.device.type != "cpu":
        return [(torch.arange(len(histories), device=histories.device), slice(0, width))]
    lengths = (histories > 0).sum(1)
    counted = torch.where(lengths == 0, width, lengths).cpu().numpy()
    groups, low = [], 0
    for high in _group_widths(counted, width):
        positions = np.flatnonzero((counted > low) & (counted <= high))
        if len(positions):
            groups.append((torch.from_numpy(positions).to(histories.device), slot_range(high, width, padding)))
        low = high
    return groups


def _group_widths(lengths: np.ndarray, width: int) -> list[int]:
    """Ascending widths of at most three groups that minimise the number of slots; the last is the longest row's."""
    counts = np.bincount(lengths, minlength=width + 1)
    longest = int(np.flatnonzero(counts)[-1])
    below = np.cumsum(counts)[: longest + 1]  # rows of at most that length
    widths = np.arange(longest + 1)
    middle = (below[None, :] - below[:, None]) * widths[None, :]  # slots between two bounds, at the wider one's width
    slots = (below * widths)[:, None] + middle + ((len(lengths) - below) * longest)[None, :]
    slots[widths[:, None] > widths[None, :]] = len(lengths) * width + 1
    low, high = np.unravel_index(np.argmin(slots), slots.shape)
    return sorted({int(low), int(high), longest} - {0})


MASKED = -10000.0
"""Added to the scores of masked keys; finite, so that a row without a visible key has no NaN."""
INIT_STD = 0.02
NORM_EPS = 1e-12


def init_weights(module: nn.Module) -> None:
    """Initialise a layer as the published models do, for use with `nn.Module.apply`.

    Linear and Embedding weights, including the padding row, are drawn from N(0, 0.02); linear and LayerNorm biases are
    0, LayerNorm weights 1. Convolutions and bare parameters do not change.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
    if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
        nn.init.zeros_(module.bias)


def check_heads(hidden_size: int, num_heads: int) -> None:
    """Check that a width divides into heads; a `ConfigError` if it does not."""
    if num_heads < 1 or hidden_size % num_heads:
        raise ConfigError(f"hidden_size is {hidden_size}, which is no multiple of num_heads {num_heads}.")


def causal_mask(histories: torch.Tensor) -> torch.Tensor:
    """Additive attention mask of histories int64 (B, L): a query sees the items up to itself, and no padding.

    Returns:
        float32 (B, 1, L, L): 0 where key <= query and the key is an item, else -10000.
    """
    width = histories.shape[1]
    past = torch.ones(width, width, dtype=torch.bool, device=histories.device).tril_()
    seen = past & (histories > 0)[:, None, None, :]
    return torch.where(seen, 0.0, MASKED)


def item_mask(histories: torch.Tensor) -> torch.Tensor:
    """Additive attention mask, every query sees all items, and no padding: float32 (B, 1, 1, L)."""
    return torch.where(histories > 0, 0.0, MASKED)[:, None, None, :]


def by_length(
    encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], histories: torch.Tensor, padding: Side
) -> torch.Tensor:
    """Encode a batch in up to three groups of similar length (`length_groups`), each without its common padding.

    The result of the encoder for a row must not depend on padding columns: it masks padding as keys, reads one slot,
    and numbers slots with `slot_range`.

    Args:
        encode: Function from int64 (b, w) and the rows' indices in the batch, int64 (b,), to float (b, D).
        histories: int64 (B, L).
        padding: Side of the padding.

    Returns:
        float (B, D), in the order of the rows.
    """
    groups = length_groups(histories, padding)
    if len(groups) == 1:
        positions, columns = groups[0]
        return encode(histories[:, columns], positions)
    parts = [encode(histories[positions, columns], positions) for positions, columns in groups]
    order = torch.cat([positions for positions, _ in groups])
    return torch.cat(parts).index_select(0, order.argsort())


class ItemEmbedding(nn.Module):
    """Items and slots as vectors: Dropout(LayerNorm(E[item] + P[slot])), LayerNorm eps 1e-12.

    Attributes:
        items: Table of V = num_items + 1 rows; row 0 is padding, which look-ups leave without a gradient.
        positions: Table of max_len rows.
    """

    def __init__(self, num_items: int, max_len: int, hidden_size: int, dropout: float, padding: Side):
        super().__init__()
        self.max_len, self.padding = max_len, padding
        self.items = nn.Embedding(num_items + 1, hidden_size, padding_idx=0)
        self.positions = nn.Embedding(max_len, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.dropout = Dropout(dropout)

    def forward(self, histories: torch.Tensor) -> torch.Tensor:
        """Embed int64 (B, w), w at most max_len, padding columns possibly dropped: float (B, w, D)."""
        slots = slot_range(histories.shape[1], self.max_len, self.padding)
        embedded: torch.Tensor = self.dropout(self.norm(self.items(histories) + self.positions.weight[slots]))
        return embedded


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout: Dropout | None = None
) -> torch.Tensor:
    """Scaled dot-product attention, softmax(q kᵀ / √d + mask) v, with dropout on the attention weights.

    Args:
        q: float (B, H, M, d).
        k: float (B, H, L, d).
        v: float (B, H, L, d).
        mask: float, broadcast to (B, H, M, L), added to the scores; None for none.
        dropout: Applied to the weights.

    Returns:
        float (B, H, M, d).
    """
    if dropout is None or dropout.p == 0 or not dropout.training:
        return nn.functional.scaled_dot_product_attention(q, k, v, None if mask is None else mask.to(q.dtype))
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.add_(mask)
    context: torch.Tensor = dropout(scores.softmax(-1)) @ v
    return context


class AttentionFrame(nn.Module):
    """Base of attention layers: maps to queries, keys and values, and LN(x + Drop(O(heads))), LayerNorm eps 1e-12.

    The projections Q, K and V, each D x D with bias, are one matrix.
    """

    def __init__(self, hidden_size: int, num_heads: int, hidden_dropout: float, attention_dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(hidden_size, 3 * hidden_size)
        self.out = Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.attention_dropout = Dropout(attention_dropout)
        self.dropout = Dropout(hidden_dropout)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(B, M, D) as (B, H, M, D / H)."""
        heads: torch.Tensor = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return heads

    def project(
        self, x: torch.Tensor, at: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, split into heads.

        Args:
            x: float (B, L, D).
            at: int64 (B,), the one slot of each row that queries; all slots if None.

        Returns:
            float (B, H, M, d), M = 1 with `at`, else L; float (B, H, L, d); the same.
        """
        if at is None:
            q, k, v = self.qkv(x).chunk(3, -1)
        else:
            width = x.shape[-1]
            weight, bias = self.qkv.weight, self.qkv.bias
            q = linear(take_slots(x, at)[:, None], weight[:width], bias[:width])
            k, v = linear(x, weight[width:], bias[width:]).chunk(2, -1)
        return self.split_heads(q), self.split_heads(k), self.split_heads(v)

    def merge(self, context: torch.Tensor, x: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """Output projection, dropout, residual connection and norm: float (B, M, D).

        Args:
            context: float (B, H, M, d).
            x: float (B, L, D), the layer's input.
            at: As in `project`.
        """
        given = x if at is None else take_slots(x, at)[:, None]
        merged: torch.Tensor = self.norm(given + self.dropout(self.out(context.transpose(1, 2).flatten(2))))
        return merged


class SelfAttention(AttentionFrame):
    """Multi-head self-attention with a residual connection."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, at: torch.Tensor | None = None) -> torch.Tensor:
        """Attend: float (B, L, D), or (B, 1, D) with `at`.

        Args:
            x: float (B, L, D).
            mask: float, broadcast to (B, 1, L, L), added to the scores.
            at: int64 (B,), the one slot of each row to compute; all if None.
        """
        q, k, v = self.project(x, at)
        return self.merge(attend(q, k, v, mask_rows(mask, at), self.attention_dropout), x, at)


def mask_rows(mask: torch.Tensor | None, at: torch.Tensor | None) -> torch.Tensor | None:
    """The rows of a mask (B, 1, L or 1, L) for the one query of each batch row: (B, 1, 1, L)."""
    if mask is None or at is None or mask.shape[2] == 1:
        return mask
    return take_slots(mask[:, 0].expand(len(at), -1, -1), at)[:, None, None]


class FeedForward(nn.Module):
    """Position-wise network with a residual connection: LN(x + Drop(W2 gelu(W1 x))), exact GELU, eps 1e-12."""

    def __init__(self, hidden_size: int, inner_size: int, dropout: float):
        super().__init__()
        self.inner = Linear(hidden_size, inner_size)
        self.outer = Linear(inner_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.dropout = Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float (..., D) to the same shape."""
        result: torch.Tensor = self.norm(x + self.dropout(self.outer(nn.functional.gelu(self.inner(x)))))
        return result


class TransformerLayer(nn.Module):
    """Attention, then the position-wise network, each followed by its norm (post-norm)."""

    def __init__(self, attention: nn.Module, feed_forward: FeedForward):
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward

    def forward(self, *inputs: Any) -> torch.Tensor:
        """Apply both parts; inputs and shape of the result are those of the attention."""
        result: torch.Tensor = self.feed_forward(self.attention(*inputs))
        return result


class CausalLayer(nn.Module):
    """One pre-norm layer: x + Drop(attention(LN x)), then x + Drop(W2 gelu(W1 LN x))."""

    def __init__(
        self, hidden_size: int, num_heads: int, inner_size: int, dropout: float, attention_dropout: float, rotary: bool
    ):
        super().__init__()
        self.num_heads, self.rotary = num_heads, rotary
        self.attention_norm, self.norm = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.qkv = Linear(hidden_size, 3 * hidden_size)
        self.out = Linear(hidden_size, hidden_size)
        self.inner, self.outer = Linear(hidden_size, inner_size), Linear(inner_size, hidden_size)
        self.attention_dropout, self.dropout = Dropout(attention_dropout), Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """Map float (B, L, D) to the same shape, or with slots `at`, int64 (B,), to (B, 1, D)."""
        parts = self.qkv(self.attention_norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        if at is not None:
            rows = torch.arange(len(x), device=x.device)
            x, q, mask = take_slots(x, at)[:, None], q[rows, :, at][:, :, None], mask[rows, :, at][:, :, None]
        context = attend(q, k, v, mask, self.attention_dropout)
        x = x + self.dropout(self.out(context.transpose(1, 2).flatten(2)))
        result: torch.Tensor = x + self.dropout(self.outer(nn.functional.gelu(self.inner(self.norm(x)))))
        return result


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding: the two halves of a head's width turn by slot · 10,000^(-2i / d).

    `x` is float (B, H, L, d), slots 0 to L - 1; only differences of slots matter to attention.
    """
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    speed = 10000.0 ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * speed  # (L, d / 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
