"""Memory of training and evaluation, computed from a model's shape: the tables of docs/full-size.md.

Nothing is measured here. A test holds the number of parameters against the model itself, and the bytes that a token
leaves for the backward pass against the tensors that autograd really keeps.

    python studies/memory.py
"""

from dataclasses import dataclass

from minionerec.reports.document import Table
from minionerec.reports.markdown import table_markdown
from minionerec.training.memory import saved_per_token

GB = 1e9
ADAM = 8  # two float32 moments
BUCKETS = 3  # DeepSpeed with overlap_comm: two buckets to reduce, one to gather
BUCKET_SIZE = 500_000_000  # values, as in ds_configs/zero2.json
LOGITS_AT_ONCE = 2**26  # minionerec.models.decoding.branches, on a GPU


@dataclass(frozen=True)
class Shape:
    """Shape of a Qwen2 with tied embeddings.

    Attributes:
        hidden: Width.
        layers: Transformer blocks.
        heads: Attention heads.
        kv_heads: Key and value heads.
        inner: Width of the feed-forward layer.
        vocabulary: Rows of the embedding, SID tokens included.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int

    @property
    def kv_width(self) -> int:
        """Width of keys, and of values."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def parameters(self) -> int:
        """Number of weights; the output head is the embedding."""
        attention = 2 * self.hidden**2 + self.hidden + 2 * self.kv_width * (self.hidden + 1)
        layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        return self.layers * layer + self.hidden + self.vocabulary * self.hidden

    @property
    def saved_per_token(self) -> int:
        """Bytes a layer keeps of one token for the backward pass, in bfloat16."""
        return saved_per_token(self.hidden, self.kv_width, self.heads, self.inner, weight_bytes=2, compute_bytes=2)

    def activations(self, tokens: int, checkpointing: bool = False) -> int:
        """Bytes kept for the backward pass; with checkpointing only layer inputs, and one layer at a time in full."""
        if checkpointing:
            return tokens * (2 * self.hidden * self.layers + self.saved_per_token)
        return tokens * self.layers * self.saved_per_token

    @property
    def kv_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers, in bfloat16."""
        return 2 * 2 * self.kv_width * self.layers

    @property
    def head_gradient(self) -> int:
        """Bytes of the output head's gradient, which the chunked loss sums up in float32."""
        return 4 * self.vocabulary * self.hidden


VOCABULARY = 151_665 + 560  # Qwen2.5's own tokens, and the published Industrial codes
QWEN_15B = Shape(1536, 28, 12, 2, 8960, VOCABULARY)
QWEN_05B = Shape(896, 24, 14, 2, 4864, VOCABULARY)


def states(shape: Shape, weights: str, devices: int = 1) -> dict[str, float]:
    """Bytes of weights, gradients and optimiser on each device.

    Args:
        shape: The model.
        weights: "bfloat16" (weights, gradients and moments alike), "float32" (with bfloat16 copies for computing), or
            "zero2" (bfloat16 weights on every device; gradients, float32 weights and moments shared among them).
        devices: Number of devices, for "zero2".
    """
    n = shape.parameters
    if weights == "bfloat16":
        return {"weights": 2 * n, "gradients": 2 * n, "optimiser": 4 * n}
    if weights == "float32":
        return {"weights": (4 + 2) * n, "gradients": 4 * n, "optimiser": ADAM * n}
    return {
        "weights": 2 * n,
        "gradients": 2 * n / devices,
        "optimiser": (4 + ADAM) * n / devices,
        "buckets": BUCKETS * 2 * min(BUCKET_SIZE, n),
    }


def packed_tokens(prompt: int, generations: int, completion: int) -> int:
    """Most positions of one prompt with all its completions, as GRPO scores them; common beginnings are there once."""
    return prompt + generations * (completion - 1)


def search_bytes(shape: Shape, prompts: int, prompt: int, beams: int, levels: int = 3) -> int:
    """Bytes of keys and values of a batch in the shared-prefix beam search; the last level is never run."""
    return prompts * (prompt + (levels - 1) * beams) * shape.kv_per_token


def copied_search_bytes(shape: Shape, prompts: int, prompt: int, beams: int, levels: int = 3) -> int:
    """The same where each beam has its own copy of the prompt."""
    return prompts * beams * (prompt + levels - 1) * shape.kv_per_token


def gigabytes(value: float) -> str:
    """Bytes as decimal gigabytes with one digit."""
    return f"{value / GB:.1f}"


def state_rows(shape: Shape) -> list[list[str]]:
    """Weights, gradients, optimiser and their sum for each way to train."""
    ways = [
        ("one GPU, bfloat16 throughout", "bfloat16", 1),
        ("one GPU, float32 weights, bfloat16 compute", "float32", 1),
        ("one GPU, ZeRO-2", "zero2", 1),
        ("each of four GPUs, ZeRO-2", "zero2", 4),
    ]
    rows = []
    for name, weights, devices in ways:
        held = states(shape, weights, devices)
        columns = [held.get(key, 0.0) for key in ("weights", "gradients", "optimiser", "buckets")]
        rows.append([name, *map(gigabytes, columns), gigabytes(sum(columns))])
    return rows


def batch_rows(shape: Shape) -> list[list[str]]:
    """Activations of the micro-batches of the recipes `industrial/qwen-*`, in full and with gradient checkpointing."""
    batches = [
        ("SFT, 16 rows of 128 tokens", 16 * 128),
        ("SFT, 16 rows of 512 tokens", 16 * 512),
        ("GRPO, 4 prompts of 128 tokens with 16 completions", 4 * packed_tokens(128, 16, 5)),
        ("GRPO, 4 prompts of 512 tokens with 16 completions", 4 * packed_tokens(512, 16, 5)),
    ]
    return [
        [name, f"{tokens:,}", gigabytes(shape.activations(tokens)), gigabytes(shape.activations(tokens, True))]
        for name, tokens in batches
    ]


def search_rows(shape: Shape) -> list[list[str]]:
    """Keys and values of beam search, shared and copied."""
    cases = [
        ("evaluation: 32 prompts of 128 tokens, 50 beams", 32, 128, 50),
        ("rollouts: 64 prompts of 128 tokens, 16 beams", 64, 128, 16),
    ]
    return [
        [name, gigabytes(search_bytes(shape, *case)), gigabytes(copied_search_bytes(shape, *case))]
        for name, *case in cases
    ]


def total_rows(shape: Shape) -> list[list[str]]:
    """Everything together for each stage, with the micro-batches of these recipes and sequences of 128 tokens."""
    sft, grpo = 16 * 128, 4 * packed_tokens(128, 16, 5)
    rollouts = search_bytes(shape, 64, 128, 16)
    reference = 2 * shape.parameters
    totals = [
        ("SFT, each of four GPUs, ZeRO-2", "zero2", 4, sft, False, 0),
        ("SFT, one GPU, bfloat16 throughout", "bfloat16", 1, sft, False, 0),
        ("the same with gradient checkpointing", "bfloat16", 1, sft, True, 0),
        ("GRPO, each of four GPUs, ZeRO-2", "zero2", 4, grpo, False, reference + rollouts),
        ("GRPO, one GPU, float32 weights", "float32", 1, grpo, False, 2 * reference + rollouts),
    ]
    rows = []
    for name, weights, devices, tokens, checkpointing, extra in totals:
        held = sum(states(shape, weights, devices).values())
        working = shape.activations(tokens, checkpointing) + shape.head_gradient + extra
        rows.append([name, gigabytes(held), gigabytes(working), f"{(held + working) / GB:.0f}"])
    working = search_bytes(shape, 32, 128, 50) + 6 * LOGITS_AT_ONCE
    rows.append(["evaluation, one GPU", gigabytes(reference), gigabytes(working), f"{(reference + working) / GB:.0f}"])
    return rows


def tables(shape: Shape) -> list[str]:
    """The four tables."""
    tables = [
        Table(["GB", "weights and optimiser", "working memory", "together"], total_rows(shape)),
        Table(["GB", "weights", "gradients", "optimiser", "buckets", "together"], state_rows(shape)),
        Table(["micro-batch", "tokens", "activations, GB", "with checkpointing, GB"], batch_rows(shape)),
        Table(["keys and values, GB", "prompt shared", "prompt copied for each beam"], search_rows(shape)),
    ]
    return [table_markdown(table) for table in tables]


def main() -> None:
    """Print the tables for both sizes of the recipes `industrial/qwen-*`."""
    for name, shape in (("Qwen2.5-1.5B", QWEN_15B), ("Qwen2.5-0.5B", QWEN_05B)):
        print(f"{name} with the published Industrial codes: {shape.parameters:,} parameters")
        print("\n\n".join(["", *tables(shape), ""]))


if __name__ == "__main__":
    main()
