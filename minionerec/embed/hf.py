"""Any Hugging Face encoder as a maker of item vectors: mean, last-token or first-token pooling."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import get_logger, progress
from minionerec.embed.tfidf import l2_normalise

if TYPE_CHECKING:
    import torch

logger = get_logger(__name__)

DTYPES = ("float32", "bfloat16", "float16")


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
    places = mask.cumsum(dim=1).argmax(dim=1)  # the first place where the count of real tokens is full
    return hidden[_rows(hidden), places]


def pool_first(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    """State of the first real token (CLS in BERT's kin); arguments and result as in `pool_mean`."""
    return hidden[_rows(hidden), mask.argmax(dim=1)]


def _rows(hidden: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.arange(len(hidden), device=hidden.device)


POOLINGS: dict[str, Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]] = {
    "mean": pool_mean,
    "last": pool_last,
    "cls": pool_first,
}


def encode_hf(
    texts: Sequence[str],
    model_name_or_path: str,
    pooling: str = "mean",
    batch_size: int = 32,
    max_length: int = 512,
    device: str = "auto",
    prefix: str = "",
    *,
    dtype: str = "float32",
    normalise: bool = False,
    counts: dict[str, int] | None = None,
) -> np.ndarray:
    """Encode texts with a Hugging Face model; code that comes with a checkpoint is never run.

    Texts are batched by length and padded on the right whatever the tokenizer's own side is: only then do models with
    absolute positions see the positions that they see for a text alone. Of an encoder-decoder the encoder is used.

    Args:
        texts: N texts.
        model_name_or_path: Name on the hub, or directory, of a model with its tokenizer.
        pooling: "mean" over real tokens, "last" real token, or "cls", the first real token.
        batch_size: Texts per forward pass.
        max_length: Most tokens kept of a text, special tokens included; lowered to what the model can read.
        device: "auto" (CUDA where there is one, else CPU) or a torch device such as "cuda:1".
        prefix: Put before every text, e.g. "passage: " for encoders trained with one.
        dtype: Type of the weights in memory: "float32", "bfloat16" or "float16". Pooling is in float32 always.
        normalise: Scale each vector to length 1.
        counts: If given, gets `truncated` (texts cut at `max_length`), `tokenless` (texts without a token, which get
            the zero vector) and `tokens` (tokens read).

    Returns:
        float32 (N, D), row i of text i.

    Raises:
        ConfigError: If the pooling, dtype or device is unknown, or the model cannot be loaded.
        DataError: If a vector is not finite (weights of 16 bits can overflow).
    """
    import torch

    if pooling not in POOLINGS:
        raise ConfigError(f"unknown pooling {pooling!r}; known: {', '.join(POOLINGS)}.")
    if dtype not in DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}.")
    place = _device(device)
    tokenizer, model = _load(model_name_or_path, getattr(torch, dtype))
    model = model.to(place).eval()
    limit = _token_limit(tokenizer, model, max_length)
    token_ids, truncated = _tokenise(tokenizer, [prefix + text for text in texts], limit)
    lengths = np.array([len(ids) for ids in token_ids])
    if truncated:
        logger.warning(
            "%d of %d texts were cut at %d tokens; raise max_length to keep more.", truncated, len(texts), limit
        )

    padding = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    vectors: np.ndarray | None = None
    order = np.argsort(-lengths, kind="stable")  # longest first: a batch that does not fit fails at once
    order = order[lengths[order] > 0]
    starts = range(0, len(order), batch_size)
    with torch.inference_mode():
        for start in progress(starts, "encoding texts", unit="batch"):
            batch = order[start : start + batch_size]
            width = int(lengths[batch[0]])
            ids = torch.full((len(batch), width), padding)  # (B, T)
            mask = torch.zeros((len(batch), width), dtype=torch.int64)  # (B, T)
            for row, text in enumerate(batch):
                ids[row, : lengths[text]] = torch.tensor(token_ids[text])
                mask[row, : lengths[text]] = 1
            mask = mask.to(place)
            hidden = model(input_ids=ids.to(place), attention_mask=mask).last_hidden_state.float()  # (B, T, D)
            if vectors is None:
                vectors = np.zeros((len(texts), hidden.shape[-1]), dtype=np.float32)
            vectors[batch] = POOLINGS[pooling](hidden, mask).cpu().numpy()
    if vectors is None:
        raise DataError(f"{model_name_or_path}: its tokenizer makes no token of any of the {len(texts)} texts.")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DataError(
            f"{model_name_or_path}: the vector of text {bad[0]} is not finite ({len(bad)} in all). Use dtype float32."
        )
    if counts is not None:
        counts.update(truncated=truncated, tokenless=int((lengths == 0).sum()), tokens=int(lengths.sum()))
    return l2_normalise(vectors) if normalise else vectors


def _device(device: str) -> "torch.device":
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"device {device!r} is not to be had ({str(error).splitlines()[0]}). Use auto or cpu."
        ) from None
    return place


def _load(name: str, dtype: "torch.dtype") -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    if name.startswith(("/", ".", "~")) and not Path(name).is_dir():
        raise ConfigError(f"encoder {name!r}: no such directory. Give a model's directory or its name on the hub.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model = AutoModel.from_pretrained(name, trust_remote_code=False, dtype=dtype)
    except (OSError, ValueError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(
            f"encoder {name!r} is not 'tfidf', a .npy file, a directory of vectors or a Hugging Face model that can be "
            f"loaded ({reason}). Check the spelling, or give the path of a downloaded model."
        ) from None
    return tokenizer, (model.get_encoder() if model.config.is_encoder_decoder else model)


def _token_limit(tokenizer: Any, model: Any, max_length: int) -> int:
    readable = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or max_length]
    limit = min(max_length, *readable)
    if limit < max_length:
        logger.info("The encoder reads at most %d tokens; max_length was %d.", limit, max_length)
    return int(limit)


def _tokenise(tokenizer: Any, texts: list[str], limit: int) -> tuple[list[list[int]], int]:
    """Token ids of each text, cut to `limit`, and how many were cut."""
    token_ids = tokenizer(texts, truncation=False, verbose=False)["input_ids"]
    long = [place for place, ids in enumerate(token_ids) if len(ids) > limit]
    for place in long:  # asked again, so that the special tokens at the end survive the cut
        token_ids[place] = tokenizer(texts[place], truncation=True, max_length=limit)["input_ids"]
    return token_ids, len(long)
