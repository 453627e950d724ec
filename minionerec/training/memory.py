"""Memory of a training step, computed from the model's shape before the first step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from minionerec.models.decoding.architectures import inner_width

_GB = 1e9
_FLOAT = 4
# Logits that a supervised loss holds at most, by kind of device. Where a batch has more, TRL's fused head computes them
# in tiles of so many labels and tokens, and once more in the backward pass; on a CPU that takes longer.
LOGITS_AT_ONCE = {"cpu": 2**27, "cuda": 2**25}
_TILE = (4096, 32768)
_TILE_BYTES = 28  # a value, in float32 and as masks; on a GPU one kernel computes them in place
# Bytes of each weight of a process's share that ZeRO-2 took on a GPU beyond what its code holds on a CPU: the same in
# both peaks that were measured (docs/results/gpu.md); why is not known.
_MEASURED_MORE = 5


def in_tiles(logits: int, device: str) -> bool:
    """Whether a supervised loss computes so many logits in tiles on a kind of device."""
    return logits > LOGITS_AT_ONCE.get(device, 0)


def saved_per_token(
    hidden: int,
    heads: int,
    inner: int,
    *,
    weight_bytes: int,
    compute_bytes: int,
    dropout: bool = False,
    rank: int = 0,
    update_bytes: int = 4,
    compiled: bool = False,
) -> int:
    """Bytes that a block of a Qwen2 or Llama keeps of one token for the backward pass.

    Twice a norm (input in float32, output in the weights' dtype, a float32 scalar), the inputs of the linear maps,
    queries, keys and values (spread over all heads, as attention under a mask takes them) and attention's output with a
    float32 scalar a head, and four activations of the feed-forward layer. In mixed precision each linear map converts
    its input for itself. With dropout there are a mask after attention and one after the feed-forward layer. Left out
    is attention's own mask, of a value for each token of the row: about a hundredth.

    Where low-rank updates are trained (LoRA), norms keep their input alone, and linear maps what their updates are
    multiplied by, which are in float32 (under ZeRO-2 in the weights' dtype): each of the seven converts its input for
    itself unless it is of that dtype, and keeps as many values as the rank.

    Args:
        hidden: Width, also of all heads together.
        heads: Attention heads.
        inner: Width of the feed-forward layer.
        weight_bytes: Bytes of a weight.
        compute_bytes: Bytes of what is multiplied: 2 in mixed precision.
        dropout: Whether dropout is at work.
        rank: Rank of the updates; 0: the weights themselves are trained.
        update_bytes: Bytes of a value that updates are multiplied by.
        compiled: Whether the block is compiled (`minionerec.training.trainer.compile_blocks`). It then keeps its
            input once in the weights' dtype, the norms' results, queries, keys, values, attention's output and what it
            is mapped to, and three activations of the feed-forward layer; the rest is computed again in the kernels
            that read it.
    """
    if compiled:
        kept = weight_bytes * hidden + 2 * _FLOAT + compute_bytes * (3 + 4) * hidden + _FLOAT * heads
        return kept + 3 * compute_bytes * inner + (2 * compute_bytes * hidden if dropout else 0)
    norms = 2 * ((_FLOAT + weight_bytes) * hidden + _FLOAT)
    read = 3 + 2 if compute_bytes < weight_bytes else 1 + 1  # by queries, keys, values; by gate and up
    inputs = compute_bytes * read * hidden
    attention = compute_bytes * 4 * hidden + _FLOAT * heads
    feed_forward = compute_bytes * 4 * inner
    masks = 2 * compute_bytes * hidden if dropout else 0
    if rank:
        norms = 2 * (_FLOAT * hidden + _FLOAT)
        read = 2 if update_bytes == compute_bytes == weight_bytes else 6
        inputs = update_bytes * (read * hidden + 7 * rank)
        feed_forward = (3 * compute_bytes + update_bytes) * inner
    return norms + inputs + attention + feed_forward + masks


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that one process needs at the peak of a training step, besides the libraries.

    Measured peaks of small models on a CPU are at most twice that, with libraries that load late and fragments.

    Attributes:
        weights: Weights, and their bfloat16 copies in mixed precision.
        gradients: Gradients that are there at the peak, and what is on its way to other processes.
        optimiser: Adam's two numbers a trained weight; under ZeRO-2 a share of them and of float32 weights.
        activations: Values that the blocks keep for the backward pass.
        working: What is there for that moment: logits with their gradients, gradients within a block, that of the
            embedding, or the optimiser's own copies of gradients.
    """

    weights: int
    gradients: int
    optimiser: int
    activations: int
    working: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimiser + self.activations + self.working

    def __str__(self) -> str:
        """In decimal gigabytes."""
        names = ("weights", "gradients", "optimiser", "activations", "working")
        parts = ", ".join(f"{name} {getattr(self, name) / _GB:.2f}" for name in names)
        return f"{self.total / _GB:.2f} GB ({parts})"


def estimate_memory(
    model: Any,
    *,
    tokens: int,
    labels: int,
    mixed_bf16: bool = False,
    checkpointing: bool = False,
    dropout: bool = False,
    processes: int = 1,
    zero: dict[str, Any] | None = None,
    several: bool = True,
    device: str | None = None,
    compiled: bool = False,
) -> MemoryEstimate:
    """Estimate what a process needs for one step of supervised training with Adam, after the first.

    The peak is at one of these moments: the backward pass of the head; that of the last block, while the gradient of a
    matrix that the embedding shares waits; its end, with all gradients and the embedding's (the head's, its own
    and their sum where it is shared); under ZeRO-2 also its first reduction, and the optimiser's step, in which
    DeepSpeed holds the reduced gradients, flattens them and converts them to float32
    (`deepspeed.runtime.zero.stage_1_and_2`, version 0.19). Gradients and states of an offloaded optimiser are in the
    host's memory.

    Args:
        model: A language model, reckoned as a Qwen2 or Llama of its shape, weights to be trained requiring a gradient;
            it may be on torch's meta device. One in which peft trains low-rank updates and rows of tokens holds these
            in float32, but under ZeRO-2.
        tokens: Positions of a micro-batch, padding included.
        labels: Labelled positions of a micro-batch.
        mixed_bf16: Whether bfloat16 is computed over float32 weights.
        checkpointing: Whether blocks are computed again in the backward pass.
        dropout: Whether dropout is at work.
        processes: Processes that train together.
        zero: DeepSpeed's `zero_optimization` settings of stage 2; None without DeepSpeed.
        several: Whether a step has several micro-batches, so that gradients are there before the last one.
        device: Kind of device; the model's if None.
        compiled: Whether its blocks are compiled.
    """
    config, device = model.config.get_text_config(), device or model.device.type
    inner = inner_width(config)
    size = next(model.parameters()).element_size()
    compute = 2 if mixed_bf16 or size == 2 else _FLOAT
    count = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    matrix = config.vocab_size * config.hidden_size
    tied = bool(config.tie_word_embeddings)
    rank = next((weight.shape[0] for name, weight in model.named_parameters() if ".lora_A." in name), 0)
    own = _FLOAT if rank and zero is None else size  # bytes of a trained weight

    block = saved_per_token(
        config.hidden_size,
        config.num_attention_heads,
        inner,
        weight_bytes=size,
        compute_bytes=compute,
        dropout=dropout,
        rank=rank,
        update_bytes=min(own, compute) if mixed_bf16 else own,
        compiled=compiled,
    )
    kept = tokens * config.num_hidden_layers * (size * config.hidden_size if checkpointing else block)
    within = 2 * compute * inner + size * config.hidden_size  # gradients of up, gate and the sum
    if rank and own != compute:  # an update's of its input in float32, and what it is converted to
        within += (own + (compute if mixed_bf16 else 0)) * inner
    if checkpointing:  # a CPU's allocator keeps what the block before had: a process grew by 2.6 times its tensors
        within += block if device == "cuda" else 2 * block
    within *= tokens
    logits = labels * config.vocab_size
    if in_tiles(logits, device):
        tile = min(labels, _TILE[0]) * _TILE[1] * (compute + (0 if device == "cuda" else _TILE_BYTES))
        head = tile + _FLOAT * matrix + (size if size < _FLOAT else 0) * matrix  # its gradient, and as the weights
        head += size * matrix if rank else 0
    else:  # log-probabilities, their gradients and those of logits
        head = 3 * _FLOAT * logits + (compute if rank else size) * matrix
    waiting = size * matrix if tied else 0
    embedding = ((3 if tied else 1) - (0 if several else 1)) * size * matrix  # without the one among all gradients
    if rank:  # peft multiplies by a copy of the matrix that has the trained rows; of its gradient these rows are kept
        waiting, embedding = 0, size * matrix
    gradients = trained * own
    copies = 2 * (count - (1 if tied else 2) * matrix) if mixed_bf16 else 0  # autocast's, of what blocks multiply by

    last_block, first_block = max(head, waiting + within), max(embedding, waiting + within)
    if zero is None:
        states, before = 2 * trained * own, gradients if several else 0
        buckets = gradients if processes > 1 else 0  # DDP copies them
        peaks = [(before + buckets, kept, last_block), (gradients + buckets, 0, first_block)]
        if copies and checkpointing:  # held until the end of the forward pass, as no block keeps them
            if not rank:  # those of frozen weights are not held
                peaks.append((before + buckets, kept, copies + tokens * 3 * compute * inner))
            copies = 0
    else:
        share = 0 if zero.get("offload_optimizer", {}).get("device", "none") != "none" else trained // processes
        states = share * (2 * _FLOAT + _FLOAT + (_MEASURED_MORE if device == "cuda" else 0))
        before, bucket = share * size if several else 0, int(zero["reduce_bucket_size"])
        buckets = bucket * size * (2 if zero.get("overlap_comm") else 1)
        reduced = before + share * size + buckets + (min(bucket, trained) * size if processes > 1 else 0)
        left = max(0.0, 1 - bucket / max(1, trained - matrix))  # of the blocks, at the first reduction
        peaks = [
            (before + buckets, kept, last_block),
            (reduced, int(left * kept), waiting + within),
            (reduced, 0, first_block),
            (share * size, 0, share * (size + _FLOAT)),
        ]
    found, activations, working = max(peaks, key=sum)
    return MemoryEstimate((count - trained) * size + trained * own + copies, found, states, activations, working)


def estimate_catalogue(model: Any, *, windows: int, width: int, columns: int | None = None) -> MemoryEstimate:
    """Estimate what a step needs of a catalogue model (`minionerec.models.backbone.catalogue`), which is float32.

    Every position of a window has a label. Scores of a tower are held twice until the backward pass, once more with
    their gradient, and once as indices of counts.

    Args:
        model: The model, all weights of which are trained.
        windows: Windows of a micro-batch.
        width: Items of a window at most.
        columns: SIDs that a step of the sampled loss holds at most; None for the exact loss, which scores all.
    """
    config, towers = model.config, model.config.towers
    hidden, tokens, every = config.hidden_size, windows * width, config.num_sids
    trained = sum(parameter.numel() for parameter in model.parameters())
    held = trained + sum(buffer.numel() for buffer in model.buffers())
    tables = int(config.learned_vectors) + (len(config.code_sizes) if config.code_vectors else 0)
    if columns is None:
        read, scored, gradients, optimiser = every, every, trained, 2 * trained
    else:
        scored = min(columns, every)
        read = min(scored + tokens, every)
        in_tables = towers * (every * (1 + hidden * int(config.learned_vectors)))
        in_tables += towers * hidden * sum(config.code_sizes if config.code_vectors else [])
        gradients = trained - in_tables + towers * read * (1 + hidden * tables)
        optimiser = 2 * trained + towers * (every * 2 + sum(config.code_sizes if config.code_vectors else []))
    layer = 10 * hidden + 2 * config.intermediate_size  # norms, queries, keys, values, context, masks; inner twice
    vectors = (tables + 3) * read * hidden  # parts, their sum with padding, and its gradient
    return MemoryEstimate(
        weights=_FLOAT * held,
        gradients=_FLOAT * gradients,
        optimiser=_FLOAT * optimiser,
        activations=_FLOAT * towers * (tokens * ((config.num_hidden_layers + 1) * layer + 2 * hidden) + vectors),
        working=_FLOAT * tokens * scored * (2 * towers + 2),
    )


# How many tokens a device computes at a time. On a CPU more of them are no faster; a GPU is busy long before so many.
# Rather than fewer than the least, activations are computed again.
MOST_TOKENS = {"cpu": 2**12, "cuda": 2**16}
LEAST_TOKENS = {"cpu": 2**8, "cuda": 2**10}
_USED = 0.85  # share of the free memory that a step may be expected to take


@dataclass
class TokenLimit:
    """How many tokens of a step a device computes at a time: a power of two, so that little noise does not change it.

    Attributes:
        tokens: The limit.
        checkpointing: Whether blocks are computed again in the backward pass; None of a model that cannot.
        start: The limit to begin with.
    """

    tokens: int
    checkpointing: bool | None
    start: int = field(init=False)

    def __post_init__(self) -> None:
        """Note the limit to begin with."""
        self.start = self.tokens

    @classmethod
    def of(cls, needed: Callable[[int, bool], int], free: int, device: str, checkpointing: bool | None) -> "TokenLimit":
        """The largest limit for which an estimate leaves head-room; with checkpointing where there is none without.

        Args:
            needed: Bytes that a step takes beyond what is taken already, of tokens at a time and with checkpointing or
                not.
            free: Bytes that it may take.
            device: Kind of device.
            checkpointing: Whether blocks are computed again anyway; None of a model that cannot.
        """
        most, least = (sizes.get(device, sizes["cuda"]) for sizes in (MOST_TOKENS, LEAST_TOKENS))
        sizes = [most >> shift for shift in range(most.bit_length()) if most >> shift >= least]
        ways = [None] if checkpointing is None else sorted({checkpointing, True})
        for again in ways:
            for tokens in sizes:
                if needed(tokens, bool(again)) <= free * _USED:
                    return cls(tokens, again)
        return cls(least, ways[-1])

    def lower(self, indivisible: bool) -> bool:
        """Lower the limit after memory ended: half as many tokens, or checkpointing.

        Args:
            indivisible: Whether every example was computed by itself.

        Returns:
            Whether anything was left to give up.
        """
        if not indivisible:
            self.tokens = max(1, self.tokens // 2)
        elif self.checkpointing is False:
            self.tokens, self.checkpointing = self.start, True
        else:
            return False
        return True


class Share:
    """A device's share of a step: examples that can be computed in parts.

    Args:
        tokens: Tokens of each example, in an order in which neighbours are computed together.
        make: Makes the inputs of the loss of some neighbours.
    """

    def __init__(self, tokens: Sequence[int], make: Callable[[slice], dict[str, Any]]):
        self.borders, self.make = np.cumsum([0, *tokens]), make  # tokens before each example, and of all

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.borders) - 1

    def count(self, tokens: int) -> int:
        """Parts of about so many tokens each at most."""
        return max(1, min(len(self), -(-int(self.borders[-1]) // tokens)))

    def split(self, count: int) -> Iterator[dict[str, Any]]:
        """So many parts of about as many tokens each, made one by one as they are asked for; none is empty.

        Args:
            count: Parts, at most as many as there are examples.

        Example:
            >>> list(Share([5, 1, 1, 1, 2], lambda part: {"of": part}).split(2))
            [{'of': slice(0, 1, None)}, {'of': slice(1, 5, None)}]
        """
        least = np.arange(1, count)
        ideal = self.borders[-1] * least / count
        after = np.searchsorted(self.borders[1:], ideal) + 1
        nearest = after - (self.borders[after] - ideal > ideal - self.borders[after - 1])
        starts = np.clip(np.maximum.accumulate(nearest - least) + least, least, len(self) - count + least)
        return (self.make(slice(start, end)) for start, end in pairwise([0, *starts.tolist(), len(self)]))


def collate_shares(
    rows: list[Any], collate: Callable[[list[Any]], dict[str, torch.Tensor]], tokens: Callable[[Any], int]
) -> dict[str, Any]:
    """Collate rows that are padded to the longest as a device's share of a step.

    Rows of similar length are computed together; if all are computed at a time they keep their order. For the memory of
    a part, each row is counted as long as the longest.

    Args:
        rows: The rows.
        collate: Makes columns of some rows.
        tokens: Counts the tokens of a row.

    Returns:
        The columns of all rows, and `share`, whose parts have columns too, and `rows`, which they are: int64 (B',).
    """
    whole, sizes = collate(rows), [tokens(row) for row in rows]
    order = sorted(range(len(rows)), key=sizes.__getitem__)

    def make(part: slice) -> dict[str, torch.Tensor]:
        if part.stop - part.start == len(rows):
            return {**whole, "rows": torch.arange(len(rows))}
        return {**collate([rows[row] for row in order[part]]), "rows": torch.tensor(order[part])}

    return {**whole, "share": Share([max(sizes)] * len(rows), make)}
