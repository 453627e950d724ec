"""Memory of training and evaluation, computed from a model's shape: the tables of docs/full-size.md.

python studies/memory.py
python studies/memory.py --count

`--count` counts steps without a GPU, and prints what was foretold and counted. A step is run as training runs it
(forward pass, loss, backward pass, clipping, AdamW; two steps of two micro-batches) over torch's fake tensors, which
have shapes and no values, and the bytes of all that are alive are added up. The head is computed as on a GPU, where one
kernel works within a tile; attention's kernel is the CPU's, which keeps what a GPU's keeps. DeepSpeed's own code is
counted on a CPU with values, a small model and one process. Libraries, workspaces of kernels and fragments are not
counted.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import finalize

import numpy as np
import torch
import trl.kernels.chunked_logprob as tiles
from peft import get_peft_model
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from minionerec.core.commands import run_command
from minionerec.metrics.tables import markdown_table
from minionerec.models.decoding.branches import LOGITS_AT_ONCE
from minionerec.training import packing
from minionerec.training.memory import MemoryEstimate, estimate_memory, in_tiles, saved_per_token
from minionerec.training.packing import TreeCollator, good_row_length, pack_groups, picked_losses, shared_prefix_scores
from minionerec.training.trainer import lora_config, show_bias

GB = 1e9
ZERO = json.loads((Path(__file__).parents[1] / "ds_configs" / "zero2.json").read_text())["zero_optimization"]

# The models: Qwen2.5's own tokens and the published Industrial codes, one matrix for embedding and output head.
VOCABULARY = 151_665 + 560
QWEN_15B = {
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
}
QWEN_05B = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
}
RANK = 32  # of LoRA
SIZES = {"Qwen2.5-1.5B": QWEN_15B, "Qwen2.5-0.5B": QWEN_05B}


def build(shape: dict[str, int], dtype: torch.dtype = torch.bfloat16, vocabulary: int = VOCABULARY) -> Any:
    """A model, on the device and of the kind of tensors that are set."""
    config = Qwen2Config(vocab_size=vocabulary, tie_word_embeddings=True, use_sliding_window=False, **shape)
    return Qwen2ForCausalLM._from_config(config, dtype=dtype).train()


def with_updates(model: Any, rank: int) -> Any:
    """A model in which updates of a rank and the rows of 560 tokens are trained."""
    bundle: Any = SimpleNamespace(model=model, code_ids=np.arange(560))
    model = get_peft_model(model, lora_config(bundle, rank)).get_base_model()
    show_bias(model)
    return model


# The tables of docs/full-size.md.


def estimate(
    shape: dict[str, int], tokens: int, labels: int, dtype: torch.dtype, *, lora: int = 0, **settings: Any
) -> MemoryEstimate:
    """What a stage says of a step on a GPU, where float32 weights are computed with in bfloat16."""
    with torch.device("meta"):
        model = with_updates(build(shape, dtype), lora) if lora else build(shape, dtype)
    mixed = dtype == torch.float32
    return estimate_memory(model, tokens=tokens, labels=labels, mixed_bf16=mixed, device="cuda", **settings)


def packed_tokens(prompt: int, generations: int, completion: int) -> int:
    """Most positions of one prompt with all its completions, as GRPO scores them; common beginnings are there once."""
    return prompt + generations * (completion - 1)


def search_bytes(shape: dict[str, int], prompts: int, prompt: int, beams: int, levels: int = 3) -> int:
    """Bytes of keys and values of a batch in the shared-prefix beam search; the last level is never run."""
    return prompts * (prompt + (levels - 1) * beams) * kv_per_token(shape)


def copied_search_bytes(shape: dict[str, int], prompts: int, prompt: int, beams: int, levels: int = 3) -> int:
    """The same where each beam has its own copy of the prompt."""
    return prompts * beams * (prompt + levels - 1) * kv_per_token(shape)


def kv_per_token(shape: dict[str, int]) -> int:
    """Bytes of keys and values of one token in all layers, in bfloat16."""
    width = shape["hidden_size"] // shape["num_attention_heads"] * shape["num_key_value_heads"]
    return 2 * 2 * width * shape["num_hidden_layers"]


def gigabytes(value: float) -> str:
    """Bytes as decimal gigabytes with one digit."""
    return f"{value / GB:.1f}"


def total_rows(shape: dict[str, int]) -> list[list[str]]:
    """Everything together for each stage, for sequences of 128 tokens; labels are those of titles and of SIDs."""
    half, whole = torch.bfloat16, torch.float32
    ways: list[tuple[str, torch.dtype, dict[str, Any]]] = [
        ("SFT, one GPU, bfloat16 throughout", half, {}),
        ("the same with gradient checkpointing", half, {"checkpointing": True}),
        ("SFT, one GPU, float32 weights, bfloat16 compute", whole, {}),
        ("the same with gradient checkpointing", whole, {"checkpointing": True}),
        (f"SFT with LoRA of rank {RANK}, one GPU, bfloat16", half, {"lora": RANK}),
        ("the same with gradient checkpointing", half, {"lora": RANK, "checkpointing": True}),
        ("SFT, one GPU, ZeRO-2", half, {"zero": ZERO}),
        ("SFT, each of four GPUs, ZeRO-2", half, {"zero": ZERO, "processes": 4}),
        ("GRPO, one GPU, float32 weights, bfloat16 compute", whole, {}),
        ("GRPO, each of four GPUs, ZeRO-2", half, {"zero": ZERO, "processes": 4}),
    ]
    rows = []
    for name, dtype, settings in ways:
        grpo = name.startswith("GRPO")
        tokens, labels = (4 * packed_tokens(128, 16, 5), 4 * 16 * 5) if grpo else (16 * 128, 16 * 32)
        found = estimate(shape, tokens, labels, dtype, **settings)
        reference = count_weights(shape) * dtype.itemsize if grpo else 0
        parts = [found.weights + reference, found.gradients, found.optimiser, found.activations, found.working]
        rows.append([name, *map(gigabytes, parts), f"{sum(parts) / GB:.0f}"])
    weights, working = 2 * count_weights(shape), search_bytes(shape, 32, 128, 50) + 6 * LOGITS_AT_ONCE["cuda"]
    parts = [weights, 0, 0, 0, working]
    rows.append(["evaluation, one GPU", *map(gigabytes, parts), f"{sum(parts) / GB:.0f}"])
    return rows


def count_weights(shape: dict[str, int]) -> int:
    """Number of weights; the output head is the embedding."""
    with torch.device("meta"):
        found: int = build(shape).num_parameters()
    return found


def batch_rows(shape: dict[str, int]) -> list[list[str]]:
    """Activations of micro-batches of the recipes `industrial/qwen-*`, in full and with gradient checkpointing."""
    batches = [
        ("SFT, 16 rows of 128 tokens", 16 * 128),
        ("SFT, 16 rows of 512 tokens", 16 * 512),
        ("GRPO, 4 prompts of 128 tokens with 16 completions", 4 * packed_tokens(128, 16, 5)),
        ("GRPO, 4 prompts of 512 tokens with 16 completions", 4 * packed_tokens(512, 16, 5)),
    ]
    block, layers = block_bytes(shape), shape["num_hidden_layers"]
    again = layers * 2 * shape["hidden_size"] + block  # the inputs of all, and one in full
    return [
        [name, f"{tokens:,}", gigabytes(tokens * layers * block), gigabytes(tokens * again)] for name, tokens in batches
    ]


def block_bytes(shape: dict[str, int]) -> int:
    """Bytes that a block keeps of a token, in bfloat16."""
    widths = (shape[name] for name in ("hidden_size", "num_attention_heads", "intermediate_size"))
    return saved_per_token(*widths, weight_bytes=2, compute_bytes=2)


def search_rows(shape: dict[str, int]) -> list[list[str]]:
    """Keys and values of beam search, shared and copied."""
    cases = [
        ("evaluation: 32 prompts of 128 tokens, 50 beams", 32, 128, 50),
        ("rollouts: 64 prompts of 128 tokens, 16 beams", 64, 128, 16),
    ]
    return [
        [name, gigabytes(search_bytes(shape, *case)), gigabytes(copied_search_bytes(shape, *case))]
        for name, *case in cases
    ]


def tables(shape: dict[str, int]) -> list[str]:
    """The three tables."""
    parts = ["weights", "gradients", "optimiser", "activations", "working", "together"]
    tables = [
        (["GB", *parts], total_rows(shape)),
        (["micro-batch", "tokens", "activations, GB", "with checkpointing, GB"], batch_rows(shape)),
        (["keys and values, GB", "prompt shared", "prompt copied for each beam"], search_rows(shape)),
    ]
    return [markdown_table(*table) for table in tables]


# What a step holds, counted.


class LiveBytes(TorchDispatchMode):
    """Adds up the bytes of tensors while they are alive, in storages that several may share.

    Attributes:
        now: Those of this moment.
        peak: The most so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: set[int] = set()

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor, unless its storage is counted or it has none."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or (tensor.is_meta and not isinstance(tensor, FakeTensor)):
            return
        self._alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, and count the results."""
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return found


@contextmanager
def head_of(device: str) -> Any:
    """Let the head hold what it does on a kind of device: a GPU's kernels, which are left out, need nothing."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(packing, "in_tiles", lambda logits, _: in_tiles(logits, device)))
        if device == "cuda":
            kernels = {
                "_use_triton": lambda _: True,
                "_forward_kernel": _NoKernel(),
                "_backward_kernel": _NoKernel(),
                "_addmm_fp32": lambda total, *_: total,
                "triton": SimpleNamespace(cdiv=lambda one, two: -(-one // two)),
            }
            for name, instead in kernels.items():
                stack.enter_context(patch.object(tiles, name, instead, create=True))
        yield


class _NoKernel:
    """A kernel of Triton that computes nothing."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *_, **__: None


Loss = Callable[[Any], torch.Tensor]
"""Computes the loss of a micro-batch by a model."""


def sft_batch(tokens: int, shape: dict[str, int]) -> dict[str, torch.Tensor]:
    """A micro-batch of about so many tokens, as SFT packs it: examples of 64, a quarter of them labelled."""
    row = good_row_length(SimpleNamespace(config=SimpleNamespace(**shape)))  # type: ignore[arg-type]
    examples = []
    for number in range(tokens // 64):
        ids = [number, *((31 * number + position) % 50 for position in range(64))]
        examples.append({"input_ids": ids, "labels": [*[-100] * 49, *ids[-16:]], "weights": [1.0] * 65})
    return TreeCollator(row)(examples)


def sft_loss(batch: dict[str, torch.Tensor]) -> Loss:
    """The loss of SFT for a micro-batch, of which the shapes are taken."""

    def loss_of(model: Any) -> torch.Tensor:
        held = {name: torch.zeros(values.shape, dtype=values.dtype) for name, values in batch.items()}
        losses, _ = picked_losses(model, model, held)
        return (losses * held["weights"]).sum()

    return loss_of


GROUPS = ([[7] * 128] * 4, [[[index, 60 + index, 90 + index, 120 + index, 2] for index in range(16)]] * 4)
"""Four prompts of 128 tokens, and sixteen completions of five tokens each."""


def grpo_loss(model: Any) -> torch.Tensor:
    """A loss of the log-probabilities and entropies that GRPO's is made of."""
    scores, entropies, _ = shared_prefix_scores(model, model, *GROUPS)
    return scores.sum() if entropies is None else scores.sum() + 0 * entropies.sum()


def materialise(model: Any) -> None:
    """Put tensors of the kind that is set in place of a model's, which are on torch's meta device."""
    made: dict[torch.Tensor, torch.Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, value in held.items():
                if value is not None and value not in made:
                    fresh = torch.empty(value.shape, dtype=value.dtype)
                    is_weight = isinstance(value, torch.nn.Parameter)
                    made[value] = torch.nn.Parameter(fresh, value.requires_grad) if is_weight else fresh
                held[name] = None if value is None else made[value]


def count_peak(
    shape: dict[str, int],
    loss_of: Loss,
    dtype: torch.dtype,
    *,
    vocabulary: int = VOCABULARY,
    device: str = "cuda",
    mixed: bool = False,
    checkpointing: bool = False,
    parts: int = 2,
    present: Sequence[torch.dtype] = (),
    lora: int = 0,
) -> tuple[int, Any]:
    """Most bytes at a time of two training steps, and the model.

    Args:
        shape: Settings of the model.
        loss_of: Computes the loss of a micro-batch.
        dtype: Of the weights.
        vocabulary: Tokens.
        device: Kind of device whose head is counted.
        mixed: Whether bfloat16 is computed over the weights.
        checkpointing: Whether blocks are computed again in the backward pass.
        parts: Micro-batches of a step.
        present: Dtypes of models that are there too, and compute the same without gradients, as GRPO's reference.
        lora: Rank of updates that are trained, with the rows of 560 tokens, in place of the weights; 0: the weights.
    """
    autocast = partial(torch.autocast, "cpu", torch.bfloat16) if mixed else nullcontext
    with torch.device("meta"):
        model, *others = (build(shape, each, vocabulary) for each in (dtype, *present))
        if lora:
            model = with_updates(model, lora)
    with FakeTensorMode(), head_of(device), LiveBytes() as live:
        for each in (model, *others):
            materialise(each)
            add_fused_lm_head(each)
            for weight in [*each.parameters(), *each.buffers()]:
                live.add(weight)
        if checkpointing:
            model.activation_checkpointing_enable()
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(trained, fused=True)
        for _ in range(2):
            for _ in range(parts):
                for other in others:
                    with autocast(), torch.no_grad():
                        loss_of(other)
                with autocast():
                    loss = loss_of(model)
                loss.backward()
                del loss
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            optimiser.zero_grad()
    return live.peak, model


def count_zero(tokens: int, bucket: float) -> tuple[int, int, int]:
    """Most bytes of two steps under ZeRO-2 in this process, what is foretold, and the number of weights.

    Args:
        tokens: Tokens of a micro-batch.
        bucket: Values of a communication bucket, as a share of the weights.
    """
    os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29655")}
    import deepspeed

    shape = {
        **QWEN_05B,
        "hidden_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    }
    model, batch = build(shape, vocabulary=2000), sft_batch(tokens, shape)
    weights = model.num_parameters()
    size = int(weights * bucket) // 2 * 2
    zero = {**ZERO, "reduce_bucket_size": size, "allgather_bucket_size": size}
    settings = {"bf16": {"enabled": True}, "zero_optimization": zero, "zero_allow_untested_optimizer": True}
    settings |= {"gradient_accumulation_steps": 2, "gradient_clipping": 1.0, "train_micro_batch_size_per_gpu": 1}
    with LiveBytes() as live:
        for weight in model.parameters():
            live.add(weight)
        optimiser = torch.optim.AdamW(model.parameters(), fused=True)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimiser, config=settings)
        for _ in range(4):
            losses, logits_of = picked_losses(engine, model, batch)
            loss = losses.sum()
            del losses, logits_of
            engine.backward(loss)
            del loss
            engine.step()
    labels = batch["labels"].numel()
    found = estimate_memory(model, tokens=batch["input_ids"].numel(), labels=labels, zero=zero)
    return live.peak, found.total, weights


def counted_tables() -> str:
    """What was foretold and counted: SFT, GRPO, and DeepSpeed in small."""

    def cells(counted: int, foretold: int, digits: int = 2) -> list[str]:
        return [f"{counted / GB:.{digits}f}", f"{foretold / GB:.{digits}f}", f"{foretold / counted:.3f}"]

    rows = []
    prompts = pack_groups(*GROUPS, packing.ROW_TOKENS["sdpa"])
    for size, shape in SIZES.items():
        for dtype, words in ((torch.bfloat16, "bfloat16"), (torch.float32, "float32, bfloat16 compute")):
            for checkpointing in (False, True):
                how = {"mixed": dtype == torch.float32, "checkpointing": checkpointing}
                steps = (
                    ("SFT", 2048, 0),
                    ("SFT", 8192, 0),
                    (f"SFT with LoRA of rank {RANK}", 8192, RANK),
                    ("GRPO and its reference", 0, 0),
                )
                for stage, tokens, lora in steps:
                    batch = sft_batch(tokens, shape) if tokens else prompts
                    loss_of, present = (sft_loss(batch), []) if tokens else (grpo_loss, [dtype])
                    counted, _ = count_peak(shape, loss_of, dtype, present=present, lora=lora, **how)
                    taken, labels = batch["input_ids"].numel(), batch["labels"].numel()
                    foretold = estimate(shape, taken, labels, dtype, lora=lora, checkpointing=checkpointing).total
                    foretold += len(present) * count_weights(shape) * dtype.itemsize
                    again = "yes" if checkpointing else "no"
                    names = [f"{size}, {stage}", words, again, f"{taken:,}"]
                    rows.append([*names, *cells(counted, foretold)])
    names = ["GB", "weights", "activations again", "tokens", "counted", "foretold", "ratio"]
    counts = markdown_table(names, rows, text_columns=3)
    zero = []
    for tokens, bucket in ((64, 0.33), (1024, 0.33), (2048, 0.05), (64, 3), (1024, 3)):
        counted, foretold, weights = count_zero(tokens, bucket)
        names = [f"{weights:,} weights, {tokens:,} tokens, buckets of {bucket:g} of the weights"]
        zero.append([*names, *cells(counted, foretold, 3)])
    return f"{counts}\n\n{markdown_table(['ZeRO-2, GB', 'counted', 'foretold', 'ratio'], zero)}"


def main() -> None:
    """Print the tables for both sizes of the recipes `industrial/qwen-*`, or count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true", help="count steps, and print what was counted")
    args = parser.parse_args()
    if args.count:
        sys.stdout.write(f"{counted_tables()}\n")
        return
    for name, shape in SIZES.items():
        print(f"{name} with the published Industrial codes: {count_weights(shape):,} parameters")
        print("\n\n".join(["", *tables(shape), ""]))


if __name__ == "__main__":
    run_command(main)
