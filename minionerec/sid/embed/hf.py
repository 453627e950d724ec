"""Item vectors from any Hugging Face encoder, pooled as its sentence-transformers files define."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minionerec.core.artefacts import read_json
from minionerec.core.errors import ConfigError, DataError, shown
from minionerec.core.log import get_logger

if TYPE_CHECKING:
    import torch

logger = get_logger(__name__)

DTYPES = ("float32", "bfloat16", "float16")
_LARGEST_BATCH = {"cpu": 32, "cuda": 256}  # texts, by type of device; larger batches are not faster


def pool_mean(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    """Mean over the real tokens of each text.

    Args:
        hidden: float (B, T, D), last hidden states.
        mask: int (B, T), 1 for a real token and 0 for padding, on either side.

    Returns:
        float (B, D).
    """
    states = hidden.masked_fill(mask.unsqueeze(-1) == 0, 0)  # not a product: padding may hold NaN
    return states.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def pool_last(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    """State of the last real token of each text; arguments and result as in `pool_mean`."""
    positions = mask.cumsum(dim=1).argmax(dim=1)  # the first position where the count of real tokens is full
    return hidden[_batch_indices(hidden), positions]


def pool_first(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    """State of the first real token (CLS in BERT-like models); arguments and result as in `pool_mean`."""
    return hidden[_batch_indices(hidden), mask.argmax(dim=1)]


def pool_max(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    """Largest value over the real tokens, in each dimension; arguments and result as in `pool_mean`."""
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, -float("inf")).amax(dim=1)


def pool_weighted(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    """Mean over the real tokens, the n-th of weight n; arguments and result as in `pool_mean`."""
    weights = (mask.cumsum(dim=1) * mask).unsqueeze(-1)
    return (hidden.masked_fill(mask.unsqueeze(-1) == 0, 0) * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def _batch_indices(hidden: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.arange(len(hidden), device=hidden.device)


POOLINGS: dict[str, Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]] = {
    "mean": pool_mean,
    "last": pool_last,
    "cls": pool_first,
    "max": pool_max,
    "weighted": pool_weighted,
}
AUTO = "auto"
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
_MODULES = "modules.json"
_EMBEDDING = "sentence_embedding"
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
_PROJECTION = re.compile(r"(linear|\w*proj(ection)?)\.")
_MODES = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last", "weightedmean": "weighted"}
"""Mode of a Pooling module of sentence-transformers → key of `POOLINGS`."""


TextVectors = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Vectors of N texts, float32 (N, D), zeros for a text without a token; number of tokens read from each, including
special tokens, int32 (N,); whether each was truncated, bool (N,)."""


class HFEncoder:
    """Encoder of texts by a Hugging Face model; code that comes with a checkpoint is never run.

    Texts are batched by length and padded on the right whatever the tokenizer's padding side, so that absolute
    positions are those of a text alone. For an encoder-decoder model the encoder is used. The model's
    sentence-transformers files are followed: `modules.json` with Pooling, Dense, Normalize and Dropout,
    `max_seq_length`, `do_lower_case`, and the default prompt.

    Args:
        model_name_or_path: Name on the hub, or directory, of a model with its tokenizer.
        pooling: "auto" for the model's own pooling, or a key of `POOLINGS`: "mean" over real tokens, the "last" real
            token, the first real token ("cls"), "max", or "weighted", a mean in which the n-th token has weight n.
        max_length: Maximum number of tokens of a text, including special tokens; lowered to the model's limit.
        device: "auto" (CUDA if there is one, else CPU) or a torch device such as "cuda:1".
        prefix: Text before every text, e.g. "passage: " for encoders trained with one.
        dtype: Dtype of the weights: "float32", "bfloat16" or "float16". Pooling and later modules are in float32.
        otherwise: Pooling of "auto" for a model that names none.

    Raises:
        ConfigError: If the device does not exist, the model cannot be loaded or has no token states, or a module is
            not supported.
    """

    def __init__(
        self,
        model_name_or_path: str,
        pooling: str = AUTO,
        max_length: int = 512,
        device: str = "auto",
        prefix: str = "",
        dtype: str = "float32",
        otherwise: str = "mean",
    ) -> None:
        import torch

        from minionerec.sid.on_device import torch_device

        self.name = model_name_or_path
        self.device = torch_device(device)
        self.tokenizer, model = _load(model_name_or_path, getattr(torch, dtype))
        self.model = model.to(self.device).eval()
        files = ModelFiles(model_name_or_path)
        self.pooling, self.after = files.pipeline(pooling, otherwise, self.device)
        self.prefix = prefix or files.prompt
        if self.prefix and not files.pools_prompt:
            raise ConfigError(
                f"encoder {self.name!r}: its 1_Pooling does not pool prompts, which is not supported. Leave "
                "prefix out, or give vectors as a .npy file."
            )
        self.lower = files.lower
        self.limit = _token_limit(self.tokenizer, model, max_length, files.max_length)
        # transformers 5 does not read add_eos_token for every kind of tokenizer.
        ends = files.ends and self.tokenizer("a")["input_ids"][-1:] != [self.tokenizer.eos_token_id]
        self.end = [self.tokenizer.eos_token_id] if ends else []
        padding = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        self.padding = next((token for token in padding if token is not None), 0)
        try:
            pooled_states(self.model, [[self.padding]], self.pooling, self.padding, self.after)
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"encoder {self.name!r}: a model of type {model.config.model_type!r} gives no states of tokens of "
                f"texts ({str(error).splitlines()[0]}). Give an encoder of texts, or vectors as a .npy file."
            ) from None

    def encode(self, texts: Sequence[str]) -> TextVectors:
        """Encode texts.

        Args:
            texts: N texts.

        Raises:
            DataError: If a vector is not finite (weights of 16 bits can overflow).
        """
        inputs = [self.prefix + text for text in texts]
        inputs = [text.lower() for text in inputs] if self.lower else inputs
        token_ids, truncated = _tokenise(self.tokenizer, inputs, self.limit, self.end)
        lengths = np.array([len(ids) for ids in token_ids], dtype=np.int32)
        vectors = pooled_states(self.model, token_ids, self.pooling, self.padding, self.after)
        invalid = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(invalid):
            raise DataError(
                f"{self.name}: the vector of {texts[invalid[0]][:60]!r} is not finite ({len(invalid)} of "
                f"{len(texts)}). Use dtype float32."
            )
        return vectors, lengths, np.isin(np.arange(len(texts)), truncated)


def pooled_states(
    model: Any,
    token_ids: Sequence[Sequence[int]],
    pooling: str,
    padding: int = 0,
    after: Sequence[Callable[["torch.Tensor"], "torch.Tensor"]] = (),
) -> np.ndarray:
    """Vectors of texts from the last hidden states of a model.

    Texts are batched by length and padded on the right. A batch has at most 32 texts on a CPU and 256 on a GPU, uses
    about half of the free memory, and shrinks when memory runs out. The estimate for a text of T tokens is

        T (2 n D + 6 D + 4 F) + 4 H T T

    values of the weights' dtype (keys and values of n layers of width D, activations of one layer of inner width F,
    attention mask and weights of H heads), and the final states in float32.

    Args:
        model: A model without a head, in evaluation mode, on the device to use.
        token_ids: Token ids of N texts.
        pooling: Key of `POOLINGS`.
        padding: Padding token id.
        after: Functions applied to the pooled states in this order, each float (B, D) → float (B, D').

    Returns:
        float32 (N, D); zeros for a text without a token.
    """
    import torch

    from minionerec.core.device import fitting_count, fitting_parts

    config, device = model.config.get_text_config(), torch.device(model.device)
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int32)
    order = np.argsort(-lengths, kind="stable").tolist()  # longest first: a batch that does not fit fails at once
    order = order[: np.count_nonzero(lengths)]
    longest, width = int(lengths.max(initial=1)), config.hidden_size
    inner = getattr(config, "intermediate_size", 4 * width)
    values = longest * (2 * width * getattr(config, "num_hidden_layers", 0) + 6 * width + 4 * inner)
    values += 4 * getattr(config, "num_attention_heads", 0) * longest**2
    text_bytes = values * model.dtype.itemsize + 4 * longest * width
    size = fitting_count(text_bytes, device, _LARGEST_BATCH.get(device.type, _LARGEST_BATCH["cuda"]))
    batches = [order[start : start + size] for start in range(0, len(order), size)]

    def pooled(texts: Sequence[Sequence[int]]) -> np.ndarray:
        ids = torch.full((len(texts), len(texts[0])), padding)  # (B, T)
        mask = torch.zeros_like(ids)  # (B, T)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text)
            mask[row, : len(text)] = 1
        mask = mask.to(device)
        vectors = POOLINGS[pooling](
            model(input_ids=ids.to(device), attention_mask=mask).last_hidden_state.float(), mask
        )
        for function in after:
            vectors = function(vectors)
        array: np.ndarray = vectors.cpu().numpy()
        return array

    def states(batch: Sequence[int]) -> np.ndarray:
        return pooled([token_ids[text] for text in batch])

    vectors: np.ndarray | None = None  # allocated when the width of the model's output is known
    with torch.inference_mode():
        for batch, part in fitting_parts(states, batches, "texts"):
            vectors = np.zeros((len(token_ids), part.shape[1]), dtype=np.float32) if vectors is None else vectors
            vectors[batch] = part
        if vectors is None:
            vectors = np.zeros((len(token_ids), pooled([[padding]]).shape[1]), dtype=np.float32)
    return vectors


class ModelFiles:
    """The sentence-transformers files of a model, in its directory or on the hub.

    Args:
        name: Name on the hub, or directory, of a model that was loaded.

    Attributes:
        max_length: Maximum number of tokens; None if no file names one.
        lower: Whether texts are converted to lower case.
        prompt: Default prompt before every text.
        ends: Whether the end token is appended to every text.
        pools_prompt: Whether the tokens of a prompt are pooled.

    Raises:
        ConfigError: If a file cannot be read, or names an unsupported module.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._modules = self._listed()
        about = self._json("sentence_bert_config.json", {}) if self._modules else {}
        self.max_length: int | None = about.get("max_seq_length")
        self.lower = bool(about.get("do_lower_case"))
        self.ends = bool(self._json("tokenizer_config.json", {}).get("add_eos_token"))
        prompts = self._json("config_sentence_transformers.json", {}) if self._modules else {}
        self.prompt: str = (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name") or "", "")
        self._pooling = next((self._about(folder) for kind, folder in self._modules if kind == "Pooling"), None)
        self.pools_prompt = self._pooling is None or self._pooling.get("include_prompt", True)

    def pipeline(
        self, pooling: str, otherwise: str, device: "torch.device"
    ) -> tuple[str, list[Callable[["torch.Tensor"], "torch.Tensor"]]]:
        """The pooling, and the functions of the modules after it.

        Args:
            pooling: Requested pooling; "auto" for the model's own.
            otherwise: Pooling of "auto" if the model names none.
            device: Device of the modules' weights.
        """
        import torch

        model_pooling = None if self._pooling is None else self._model_pooling(self._pooling, required=pooling == AUTO)
        if AUTO != pooling != model_pooling and model_pooling is not None:
            logger.warning(
                "%s: the model's pooling is %s, but pooling is %s; auto uses the model's.",
                self.name,
                model_pooling,
                pooling,
            )
        after: list[Callable[[torch.Tensor], torch.Tensor]] = []
        for kind, folder in self._modules:
            if kind == "Dense":
                after.append(self._dense(folder, device))
            elif kind == "Normalize":
                after.append(lambda vectors: torch.nn.functional.normalize(vectors, dim=1))
        return (model_pooling or otherwise) if pooling == AUTO else pooling, after

    def _listed(self) -> list[tuple[str, str]]:
        """Kind and folder of each module after the transformer."""
        entries = self._json(_MODULES, None)
        if entries is None and Path(self.name).is_dir():
            folders = sorted(folder.name for folder in Path(self.name).glob("[1-9]_*"))
            entries = [{"type": f"sentence_transformers.models.{name[2:]}", "path": name} for name in folders]
        elif entries is None:
            entries = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
            entries = entries if self._file("1_Pooling/config.json") else []
        modules = []
        for module in entries:
            package, _, kind = str(module.get("type")).rpartition(".")
            if not package.startswith("sentence_transformers.") or kind not in _KINDS:
                raise ConfigError(
                    f"encoder {self.name!r}: its module {module.get('type')} is not supported; known: "
                    f"{', '.join(_KINDS)}. Choose another encoder, or give its vectors as a .npy file."
                )
            modules.append((kind, str(module.get("path", ""))))
        return [module for module in modules if module[0] != _KINDS[0]]

    def _model_pooling(self, about: Mapping[str, Any], required: bool) -> str | None:
        """The key of `POOLINGS` that a Pooling module names; None if it is not supported and not required."""
        named = about.get("pooling_mode")
        if named is None:
            named = [
                key.removeprefix("pooling_mode_") for key, on in about.items() if key.startswith("pooling_mode_") and on
            ]
        modes = [re.sub("_tokens?$", "", mode) for mode in ([named] if isinstance(named, str) else named)] or ["mean"]
        if len(modes) == 1 and modes[0] in _MODES:
            return _MODES[modes[0]]
        if not required:
            return None
        raise ConfigError(
            f"encoder {self.name!r}: its pooling, {' with '.join(modes)}, is not supported; known: {', '.join(_MODES)}."
            " Choose another encoder, or name a pooling, such as --pooling mean."
        )

    def _dense(self, folder: str, device: "torch.device") -> Callable[["torch.Tensor"], "torch.Tensor"]:
        """A projection with its activation."""
        import torch
        from safetensors.torch import load_file

        about, file = self._about(folder), self._file(f"{folder}/model.safetensors")
        activation = str(about.get("activation_function", "torch.nn.modules.activation.Tanh"))
        names = {about.get(f"module_{side}_name", _EMBEDDING) for side in ("input", "output")}
        known = activation.startswith("torch.nn.") and activation.rpartition(".")[2] in _ACTIVATIONS
        if file is None or not known or names != {_EMBEDDING}:
            reason = "has no model.safetensors" if file is None else f"is {shown(about)}"
            raise ConfigError(
                f"encoder {self.name!r}: its projection {folder} {reason}, which is not supported. Choose another "
                "encoder, or give its vectors as a .npy file."
            )
        weights = {name: tensor.float().to(device) for name, tensor in load_file(file).items()}
        weight, bias, activate = (
            weights["linear.weight"],
            weights.get("linear.bias"),
            getattr(torch.nn, activation.rpartition(".")[2])(),
        )
        return lambda vectors: activate(torch.nn.functional.linear(vectors, weight, bias))

    def _about(self, folder: str) -> Mapping[str, Any]:
        content: Mapping[str, Any] = self._json(f"{folder}/config.json", {})
        return content

    def _json(self, file: str, otherwise: Any) -> Any:
        path = self._file(file)
        return otherwise if path is None else read_json(path)

    def _file(self, file: str) -> Path | None:
        """The local path of a file of the model; None if the model lacks it."""
        if Path(self.name).is_dir():
            return Path(self.name) / file if (Path(self.name) / file).is_file() else None
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(hf_hub_download(self.name, file))
        except EntryNotFoundError as error:
            if file == _MODULES and isinstance(error, LocalEntryNotFoundError):
                logger.warning(
                    "%s: %s is not in the local cache and cannot be downloaded; it is ignored.", self.name, file
                )
            return None


def _load(name: str, dtype: "torch.dtype") -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    if name.startswith(("/", ".", "~")) and not Path(name).is_dir():
        raise ConfigError(f"encoder {name!r}: no such directory. Give a model's directory or its name on the hub.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model, info = AutoModel.from_pretrained(
            name, trust_remote_code=False, use_safetensors=True, output_loading_info=True, dtype=dtype
        )
    except (OSError, ValueError) as error:
        raise _no_model(name, error) from None
    has_decoder = hasattr(model, "encoder") and hasattr(model, "decoder")
    unused = ("pooler", "decoder") if has_decoder else ("pooler",)
    missing = sorted(key for key in info["missing_keys"] if not any(part in key for part in unused))
    if missing:
        raise _no_model(name, ValueError(f"{len(missing)} tensors are missing, {missing[0]} among them"))
    projection = next((key for key in sorted(info["unexpected_keys"]) if _PROJECTION.match(key)), None)
    if projection is not None:
        raise ConfigError(
            f"encoder {name!r}: its projection {projection} is applied by code of its own, which is not supported. "
            "Choose another encoder, or give its vectors as a .npy file."
        )
    return tokenizer, (model.get_encoder() if has_decoder else model)


def hub_commit(name: str) -> str | None:
    """The commit of a model of the hub; None if the local copy does not record it.

    Raises:
        ConfigError: If the model does not exist.
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


def _token_limit(tokenizer: Any, model: Any, max_length: int, files_limit: int | None) -> int:
    """Maximum number of tokens of a text: the least of the limits of settings, tokenizer, files and model."""
    from torch.nn import Embedding

    limits = [tokenizer.model_max_length, files_limit, getattr(model.config, "max_position_embeddings", None)]
    for name, module in model.named_modules():
        # As in RoBERTa, positions are counted from the one after the padding position.
        if name.endswith("position_embeddings") and isinstance(module, Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    limit = min(max_length, *(length for length in limits if length is not None and length > 0))
    if limit < max_length:
        logger.info("The encoder reads at most %d tokens; max_length was %d.", limit, max_length)
    return int(limit)


def _tokenise(tokenizer: Any, texts: list[str], limit: int, end: list[int]) -> tuple[list[list[int]], list[int]]:
    """Token ids of each text followed by `end`, truncated to `limit`, and the indices of truncated texts."""
    token_ids, limit = tokenizer(texts, truncation=False, verbose=False)["input_ids"], limit - len(end)
    long = [position for position, ids in enumerate(token_ids) if len(ids) > limit]
    for position in long:  # tokenised again, so that the special tokens at the end survive truncation
        token_ids[position] = tokenizer(texts[position], truncation=True, max_length=limit)["input_ids"]
    return [[*ids, *end] if ids else ids for ids in token_ids], long
