"""Loading model files: only safetensors, no foreign code, every tensor present and of the right shape.

A checkpoint may come from an untrusted source. Code that a checkpoint contains is never run, pickled weights are not
opened, and a model with missing or unexpected tensors is refused instead of being initialised at random.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json
from minionerec.core.errors import ArtefactError, MinioneRecError, one_line, shown
from minionerec.core.plugins import Registry

CHECKPOINT_MODELS: Registry[type[Any]] = Registry("minionerec.checkpoint_models", {})
"""`model_type` → model class of installed packages.

Importing the class registers it, and its configuration, with `AutoConfig` and `AutoModelForCausalLM`.
"""
CONFIG_FILE = "config.json"
_ADAPTER = "adapter_config.json"
_CODE, _KERNELS = "auto_map", ("attn_implementation", "_attn_implementation", "experts_implementation", "kernel_config")
_SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("d_model", "d_ff", "d_kv", "num_heads"),
    *("num_sids", "levels", "max_code", "text_width", "num_transitions", "towers"),
)
_LAYERS = ("num_hidden_layers", "num_layers", "num_decoder_layers")
_MAX_HEADER = 100_000_000


def load_model(
    reader: Any,
    folder: str | os.PathLike[str],
    *,
    error: type[MinioneRecError],
    remedy: str,
    spare: Callable[[str], bool] = lambda name: False,
    absent: Callable[[str], bool] = lambda name: False,
    check: Callable[[Any], None] = lambda config: None,
    **settings: Any,
) -> Any:
    """Load a model from a directory or, by its name, from the hub.

    Args:
        reader: Class with `from_pretrained`, such as `AutoModelForCausalLM`.
        folder: The directory or name.
        error: Class of the error to raise.
        remedy: Last sentence of the message.
        spare: Predicate of names of tensors that may be in the files although the model lacks them.
        absent: Predicate of names of tensors that may be missing in the files.
        check: Function that raises an error for an unsupported configuration, before weights are read.
        settings: Other arguments of `from_pretrained`, such as `dtype`.

    Raises:
        error: If the model does not exist, requires its own code or has pickled weights, or its tensors differ from
            those that its configuration describes.
    """
    check(load_configuration(folder, error=error, remedy=remedy))
    with _loading(folder, error, remedy):
        model, info = reader.from_pretrained(
            folder,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below
            **settings,
        )
    missing = sorted(name for name in info["missing_keys"] if not absent(name))
    unexpected = sorted(name for name in info["unexpected_keys"] if not spare(name))
    for names, what in ((missing, "are missing"), (unexpected, "belong to no part of the model")):
        if names:
            raise error(
                f"{folder}: {len(names)} tensors {what}, {names[0]} among them: weights and {CONFIG_FILE} are of "
                f"different models. {remedy}"
            )
    if info["mismatched_keys"]:
        name, shape, expected = min(info["mismatched_keys"])
        raise error(
            f"{folder}: {name} is {tuple(shape)}, and {tuple(expected)} by {CONFIG_FILE} and this version: weights of "
            f"another model or version. {remedy}"
        )
    return model


def load_configuration(folder: str | os.PathLike[str], *, error: type[MinioneRecError], remedy: str) -> Any:
    """Load the configuration of a model; arguments as of `load_model`.

    Raises:
        error: If the model does not exist, or its directory is no directory of a model.
    """
    from transformers import AutoConfig

    _check_config(folder, error, remedy)
    with _loading(folder, error, remedy):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def load_tokenizer(
    reader: Any, folder: str | os.PathLike[str], *, error: type[MinioneRecError], remedy: str, **settings: Any
) -> Any:
    """Load a tokenizer; arguments as of `load_model`.

    Raises:
        error: If the tokenizer does not exist or requires its own code.
    """
    with _loading(folder, error, remedy):
        tokenizer = reader.from_pretrained(folder, **settings)
    tokenizer.init_kwargs.pop("local_files_only", None)  # would be saved with the tokenizer
    return tokenizer


@contextmanager
def _loading(folder: str | os.PathLike[str], error: type[MinioneRecError], remedy: str) -> Iterator[None]:
    """Convert a library's errors about files into one line, and silence its log messages."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    except MemoryError:
        raise
    except Exception as raised:  # files can make libraries fail in any way
        reason = one_line(raised, 300).rstrip(".") or type(raised).__name__
        if "trust_remote_code" in reason:
            reason = "it needs code of its own, which is never run"
        raise error(f"{folder}: cannot be loaded ({reason}). {remedy}") from None
    finally:
        logging.set_verbosity(verbosity)


def _check_config(path: str | os.PathLike[str], error: type[MinioneRecError], remedy: str) -> None:
    """Check the configuration in a directory before a model is built."""
    folder = Path(path)
    _check_weight_files(folder, error, remedy)
    if not (folder / CONFIG_FILE).is_file():
        return  # a name of the hub, or nothing: the library reports it
    config = _read(folder / CONFIG_FILE, error, remedy)
    from transformers import CONFIG_MAPPING

    kind = config.get("model_type")
    if isinstance(kind, str):
        CHECKPOINT_MODELS.get(kind)
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        code = f", and code of its own ({_CODE}) is never run" if _CODE in config else ""
        raise error(f"{folder / CONFIG_FILE}: model_type is {kind!r}, which transformers does not know{code}. {remedy}")
    kernel = next((key for key in _KERNELS if isinstance(config.get(key), str) and "/" in config[key]), None)
    if kernel is not None:
        raise error(
            f"{folder / CONFIG_FILE}: {kernel} is {config[kernel]!r}, code of the hub, which is never run. {remedy}"
        )
    shapes = [shape for file in sorted(folder.glob("*.safetensors")) for shape in _shapes(file, error, remedy)]
    largest = max((side for shape in shapes for side in shape), default=0)
    bounds = {**dict.fromkeys(_SIZES, largest), **dict.fromkeys(_LAYERS, len(shapes))}
    for key, limit in bounds.items() if shapes else ():
        value = config.get(key)
        if isinstance(value, int) and value > limit:
            raise error(
                f"{folder / CONFIG_FILE}: {key} is {value}, but no tensor of the {len(shapes)} of the model has that "
                f"size. {remedy}"
            )


def _check_weight_files(folder: Path, error: type[MinioneRecError], remedy: str) -> None:
    """Check that no file of a directory refers to weights in another folder, which the manifest does not cover."""
    if (folder / _ADAPTER).is_file():
        raise error(
            f"{folder / _ADAPTER}: names another model, whose weights are in another folder. Merge them. {remedy}"
        )
    for file in sorted(folder.glob("*.index.json")):
        named = _read(file, error, remedy).get("weight_map")
        for name in named.values() if isinstance(named, dict) else [named]:
            if not isinstance(name, str) or name != Path(name).name or not (folder / name).is_file():
                raise error(f"{file}: names the weights {shown(name)}, which are no file of its folder. {remedy}")


def _read(path: Path, error: type[MinioneRecError], remedy: str) -> dict[str, Any]:
    try:
        config = read_json(path)
    except ArtefactError as wrong:
        raise error(f"{wrong} {remedy}") from None
    if not isinstance(config, dict):
        raise error(f"{path}: is a {type(config).__name__}, expected an object. {remedy}")
    return config


def _shapes(file: Path, error: type[MinioneRecError], remedy: str) -> list[list[int]]:
    """Shapes of a safetensors file's tensors, from its header (eight bytes of its length, then JSON)."""
    try:
        with file.open("rb") as content:
            length = int.from_bytes(content.read(8), "little")
            header = json.loads(content.read(min(length, _MAX_HEADER)))
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        if all(isinstance(side, int) for shape in shapes for side in shape):
            return shapes
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        pass
    raise error(f"{file}: not a safetensors file. {remedy}")
