"""Any Hugging Face encoder as a maker of item vectors: mean, last-token or first-token pooling."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import get_logger

if TYPE_CHECKING:
    import torch

logger = get_logger(__name__)

DTYPES = ("float32", "bfloat16", "float16")
_LARGEST_BATCH = {"cpu": 32, "cuda": 256}  # of texts, by kind of device: more would not be faster


def pool_mean(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    """Mean over the real tokens of each text.

    Args:
        hidden: float (B, T, D), last hidden states.
        mask: int (B, T), 1 for a real token and 0 for padding, on whichever side.

    Returns:
        float (B, D).
    """
    kept = hidden.masked_fill(mask.unsqueeze(-1) == 0, 0)  # not a product: padding may hold NaN
    return kept.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def pool_last(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    """State of the last real token of each text; arguments and result as in `pool_mean`."""
    positions = mask.cumsum(dim=1).argmax(dim=1)  # the first position where the count of real tokens is full
    return hidden[_rows(hidden), positions]


def pool_first(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    """State of the first real token (CLS in BERT-like models); arguments and result as in `pool_mean`."""
    return hidden[_rows(hidden), mask.argmax(dim=1)]


def _rows(hidden: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.arange(len(hidden), device=hidden.device)


POOLINGS: dict[str, Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]] = {
    "mean": pool_mean,
    "last": pool_last,
    "cls": pool_first,
}


TextVectors = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Vectors of N texts, float32 (N, D), zeros for a text without a token; tokens that were read of each, special ones
included, int32 (N,); and whether it was truncated, bool (N,)."""


class HFEncoder:
    """A Hugging Face model that makes vectors of texts; code that comes with a checkpoint is never run.

    Texts are batched by length, as many as memory holds, and padded on the right whatever the tokenizer's own side is:
    only then do models with absolute positions see the positions that they see for a text alone. Of an encoder-decoder
    the encoder is used.

    Args:
        model_name_or_path: Name on the hub, or directory, of a model with its tokenizer.
        pooling: "mean" over real tokens, "last" real token, or "cls", the first real token.
        max_length: Most tokens kept of a text, special tokens included; lowered to the model's limit.
        device: "auto" (CUDA where there is one, else CPU) or a torch device such as "cuda:1".
        prefix: Put before every text, e.g. "passage: " for encoders trained with one.
        dtype: Type of the weights in memory: "float32", "bfloat16" or "float16". Pooling is in float32 always.

    Raises:
        ConfigError: If there is no such device, or the model cannot be loaded.
    """

    def __init__(
        self,
        model_name_or_path: str,
        pooling: str = "mean",
        max_length: int = 512,
        device: str = "auto",
        prefix: str = "",
        dtype: str = "float32",
    ) -> None:
        import torch

        from minionerec.sid.on_device import torch_device

        self.name, self.pooling, self.prefix = model_name_or_path, pooling, prefix
        self.device = torch_device(device)
        self.tokenizer, model = _load(model_name_or_path, getattr(torch, dtype))
        self.model = model.to(self.device).eval()
        self.limit = _token_limit(self.tokenizer, model, max_length)

    def encode(self, texts: Sequence[str]) -> TextVectors:
        """Encode texts.

        Args:
            texts: N texts.

        Raises:
            DataError: If a vector is not finite (weights of 16 bits can overflow).
        """
        token_ids, long = _tokenise(self.tokenizer, [self.prefix + text for text in texts], self.limit)
        lengths = np.array([len(ids) for ids in token_ids], dtype=np.int32)
        padding = next((i for i in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id) if i is not None), 0)
        vectors = pooled_states(self.model, token_ids, self.pooling, padding)
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            raise DataError(
                f"{self.name}: the vector of {texts[bad[0]][:60]!r} is not finite ({len(bad)} of {len(texts)}). "
                "Use dtype float32."
            )
        return vectors, lengths, np.isin(np.arange(len(texts)), long)


def pooled_states(model: Any, token_ids: Sequence[Sequence[int]], pooling: str, padding: int = 0) -> np.ndarray:
    """Vectors of texts from the last hidden states of a model.

    Texts are batched by length and padded on the right: at most 32 on a CPU, else 256, as many as half of the free
    memory is reckoned to hold, and fewer once it has ended. A text of T tokens is reckoned to take

        T (2 n D + 6 D + 4 F) + 4 H T T

    values of the weights' dtype: keys and values of n layers of width D, activations of one that is F wide inside, and
    attention mask and weights of H heads; and its states in float32.

    Args:
        model: A model without a head, in evaluation mode, where it is to run.
        token_ids: Token ids of N texts.
        pooling: Key of `POOLINGS`.
        padding: Token that pads.

    Returns:
        float32 (N, D); zeros for a text without a token.
    """
    import torch

    from minionerec.core.device import fitting_count, fitting_parts

    config, device = model.config.get_text_config(), torch.device(model.device)
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int32)
    vectors = np.zeros((len(token_ids), config.hidden_size), dtype=np.float32)
    order = np.argsort(-lengths, kind="stable").tolist()  # longest first: a batch that does not fit fails at once
    order = order[: np.count_nonzero(lengths)]
    longest, width = int(lengths.max(initial=1)), config.hidden_size
    inner = getattr(config, "intermediate_size", 4 * width)
    values = longest * (2 * width * getattr(config, "num_hidden_layers", 0) + 6 * width + 4 * inner)
    values += 4 * getattr(config, "num_attention_heads", 0) * longest**2
    each = values * model.dtype.itemsize + 4 * longest * width
    size = fitting_count(each, device, _LARGEST_BATCH.get(device.type, _LARGEST_BATCH["cuda"]))
    batches = [order[start : start + size] for start in range(0, len(order), size)]

    def states(batch: Sequence[int]) -> np.ndarray:
        ids = torch.full((len(batch), int(lengths[batch[0]])), padding)  # (B, T)
        mask = torch.zeros_like(ids)  # (B, T)
        for row, text in enumerate(batch):
            ids[row, : lengths[text]] = torch.tensor(token_ids[text])
            mask[row, : lengths[text]] = 1
        mask = mask.to(device)
        hidden = model(input_ids=ids.to(device), attention_mask=mask).last_hidden_state.float()
        found: np.ndarray = POOLINGS[pooling](hidden, mask).cpu().numpy()
        return found

    with torch.inference_mode():
        for batch, found in fitting_parts(states, batches, "texts"):
            vectors[batch] = found
    return vectors


def _load(name: str, dtype: "torch.dtype") -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    if name.startswith(("/", ".", "~")) and not Path(name).is_dir():
        raise ConfigError(f"encoder {name!r}: no such directory. Give a model's directory or its name on the hub.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model, found = AutoModel.from_pretrained(
            name, trust_remote_code=False, use_safetensors=True, output_loading_info=True, dtype=dtype
        )
    except (OSError, ValueError) as error:
        raise _no_model(name, error) from None
    missing = sorted(key for key in found["missing_keys"] if "pooler" not in key)  # which is not read
    if missing:
        raise _no_model(name, ValueError(f"{len(missing)} tensors are missing, {missing[0]} among them"))
    return tokenizer, (model.get_encoder() if model.config.is_encoder_decoder else model)


def hub_commit(name: str) -> str | None:
    """The commit of a model of the hub, where the local copy knows it.

    Raises:
        ConfigError: If there is no such model.
    """
    from transformers import AutoConfig

    try:
        return getattr(AutoConfig.from_pretrained(name, trust_remote_code=False), "_commit_hash", None)
    except (OSError, ValueError) as error:
        raise _no_model(name, error) from None


def _no_model(name: str, error: Exception) -> ConfigError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return ConfigError(
        f"encoder {name!r} is not 'tfidf', 'wordllama', 'interactions', a .npy or .parquet file, a directory of "
        f"vectors or a Hugging Face model that can be loaded ({reason}). Check the spelling, or give the path of a "
        "downloaded model."
    )


def _token_limit(tokenizer: Any, model: Any, max_length: int) -> int:
    readable = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or max_length]
    limit = min(max_length, *readable)
    if limit < max_length:
        logger.info("The encoder reads at most %d tokens; max_length was %d.", limit, max_length)
    return int(limit)


def _tokenise(tokenizer: Any, texts: list[str], limit: int) -> tuple[list[list[int]], list[int]]:
    """Token ids of each text, truncated to `limit`, and the indices of truncated texts."""
    token_ids = tokenizer(texts, truncation=False, verbose=False)["input_ids"]
    long = [position for position, ids in enumerate(token_ids) if len(ids) > limit]
    for position in long:  # tokenised again, so that the special tokens at the end survive truncation
        token_ids[position] = tokenizer(texts[position], truncation=True, max_length=limit)["input_ids"]
    return token_ids, long
