"""Building language models: a pretrained one by name or path, or a small Qwen2 from scratch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    set_seed,
)

from minionerec.core.artefacts import MANIFEST, open_artefact
from minionerec.core.errors import ConfigError
from minionerec.models.backbone.pretrained import load_configuration, load_model, load_tokenizer
from minionerec.models.decoding.architectures import check_architecture
from minionerec.models.nn.layers import replace_linear
from minionerec.models.prompts.examples import LONGEST_TEXT
from minionerec.sid.table import split_sid

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_dtype(name: str) -> torch.dtype:
    """The torch dtype of trained weights; "auto" is float32 on every machine.

    Without a float32 copy, most of a small step in bfloat16 is lost to rounding. DeepSpeed keeps such a copy, so its
    recipes name bfloat16. An unknown name is a `ConfigError`.
    """
    if name == "auto":
        return torch.float32
    if name not in DTYPES:
        raise ConfigError(f"unknown dtype {name!r}; known: auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


def reading_dtype(name: str) -> torch.dtype | None:
    """The torch dtype of weights for inference; "auto" is None (the stored dtype) on a GPU and float32 elsewhere."""
    return None if name == "auto" and torch.cuda.is_available() else resolve_dtype(name)


def train_tokenizer(texts: Sequence[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, which encodes every text and decodes it back exactly.

    Only the first `LONGEST_TEXT` characters of a text are read, since the time is quadratic in the length of a word.

    Raises:
        ConfigError: If `vocabulary_size` is below 300, which leaves no room for words.
    """
    if vocabulary_size < 300:
        raise ConfigError(f"text_vocabulary {vocabulary_size} is below 300: bytes and special tokens alone take 259.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text[:LONGEST_TEXT] for text in texts), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def scratch_model(
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    *,
    hidden_size: int = 256,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 4,
    inner_size: int = 768,
    max_positions: int = 1024,
    tied: bool = True,
) -> PreTrainedModel:
    """Build a randomly initialised Qwen2 with the vocabulary of a tokenizer, to which SID tokens were added.

    Args:
        tokenizer: The tokenizer.
        seed: Seed of the weights.
        hidden_size: Width D.
        layers: Number of transformer blocks.
        heads: Attention heads; divides `hidden_size`.
        kv_heads: Key and value heads; divides `heads`.
        inner_size: Width of the feed-forward layer.
        max_positions: Longest sequence.
        tied: Whether the output head shares the input embedding.

    Raises:
        ConfigError: If a number of heads is no divisor.
    """
    for whole, a, part, b in (("hidden_size", hidden_size, "heads", heads), ("heads", heads, "kv_heads", kv_heads)):
        if b < 1 or a % b:
            raise ConfigError(f"{whole} {a} is not a multiple of {part} {b}; change one of them.")
    set_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner_size,
        max_position_embeddings=max_positions,
        tie_word_embeddings=tied,
        use_sliding_window=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return replace_linear(Qwen2ForCausalLM(config))


def _check_no_codes(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Check that a pretrained tokenizer has no SID tokens; the `ConfigError` names the first one."""
    code_tokens = [token for token in tokenizer.get_vocab() if token.startswith("<") and split_sid(token) is not None]
    if code_tokens:
        raise ConfigError(
            f"{name}: its tokenizer has the token {min(code_tokens)!r} ({len(code_tokens)} such), which this model "
            "already uses, and which a code needs. Give a model without semantic IDs, or a checkpoint of this project."
        )


_REMEDY = "Give a hub name or a directory of a causal language model in safetensors."


def check_pretrained(name_or_path: str) -> None:
    """Check that a pretrained language model is of a supported architecture, without reading its weights.

    Raises:
        ConfigError: If its architecture is not supported, or there is no such model.
    """
    check_architecture(load_configuration(name_or_path, error=ConfigError, remedy=_REMEDY), name_or_path)


def load_pretrained(name_or_path: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a pretrained causal language model and its tokenizer from the hub or a directory.

    Raises:
        ConfigError: If the model does not exist, its architecture is not supported, or `load_model` refuses it.
    """
    check_pretrained(name_or_path)
    options: dict[str, Any] = {"error": ConfigError, "remedy": _REMEDY}
    is_output = (Path(name_or_path) / MANIFEST).is_file()
    if is_output:
        open_artefact(name_or_path)
        tokenizer = load_tokenizer(PreTrainedTokenizerFast, name_or_path, **options)
    else:
        tokenizer = load_tokenizer(AutoTokenizer, name_or_path, trust_remote_code=False, **options)
    model = load_model(AutoModelForCausalLM, name_or_path, dtype=dtype, **options)
    if not is_output:
        _check_no_codes(tokenizer, name_or_path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return replace_linear(model), tokenizer
