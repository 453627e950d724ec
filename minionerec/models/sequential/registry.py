"""The sequential recommenders by name: how one is built, saved and loaded.

Optional parts and other packages register theirs by entry points of the group `minionerec.sequential_models`
(`minionerec.core.plugins`).
"""

from collections.abc import Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from minionerec.core.artefacts import open_artefact, read_json, write_json
from minionerec.core.errors import ArtefactError, ConfigError, one_line, shown
from minionerec.core.plugins import Registry
from minionerec.core.values import convert
from minionerec.data.contexts import RequestFeature
from minionerec.models.nn.layers import fill_weights
from minionerec.models.sequential import MODEL_KIND
from minionerec.models.sequential.causal import Causal
from minionerec.models.sequential.classic import BERT4Rec, Caser, GRU4Rec, SASRec
from minionerec.models.sequential.hstu import HSTU
from minionerec.models.sequential.model import ModelData, SequentialModel

MODELS: Registry[type[SequentialModel]] = Registry(
    "minionerec.sequential_models",
    {"bert4rec": BERT4Rec, "caser": Caser, "causal": Causal, "gru4rec": GRU4Rec, "hstu": HSTU, "sasrec": SASRec},
)
"""Name → class."""
_FIXED = ("num_items", "max_len")


def model_class(name: str) -> type[SequentialModel]:
    """The class of a model.

    Raises:
        ConfigError: If the name is unknown.
    """
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}; known models: {', '.join(sorted(MODELS))}.")
    return MODELS[name]


def hyper_parameters(name: str) -> dict[str, Any]:
    """Hyper-parameters of a model, including those of its base classes, with their defaults.

    The default of a required one is `inspect.Parameter.empty`.

    Raises:
        ConfigError: If there is no model of that name.
    """
    makers = (vars(kind)["__init__"] for kind in reversed(model_class(name).__mro__) if "__init__" in vars(kind))
    parameters = (parameter for maker in makers for parameter in signature(maker).parameters.values())
    known = {parameter.name: parameter.default for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY}
    return {key: value for key, value in known.items() if key not in _FIXED}


def check_hyper(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check a user's hyper-parameters and convert them to the types of the defaults.

    Args:
        name: Key of `MODELS`.
        values: Name → value, from YAML or the command line.

    Raises:
        ConfigError: If a name is unknown or determined by the data, or a value has another type.

    Example:
        >>> check_hyper("sasrec", {"hidden_size": 32, "hidden_dropout": "1e-1"})
        {'hidden_size': 32, 'hidden_dropout': 0.1}
    """
    determined = model_class(name).data_hyper(ModelData())
    known = {key: value for key, value in hyper_parameters(name).items() if key not in determined}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"hyper: model {name} has no hyper-parameter {key!r}; known: {', '.join(known)}.")
        try:
            checked[key] = convert(value, type(known[key]), f"hyper: {key}")
        except ConfigError as error:
            raise ConfigError(f"{str(error).removesuffix('.')}, such as {known[key]!r}.") from None
    return checked


def build_model(name: str, *, num_items: int, max_len: int = 50, **hyper: Any) -> SequentialModel:
    """Build a sequential recommender with random weights.

    Args:
        name: Key of `MODELS`.
        num_items: Number of items; they are numbered 1 to `num_items`, 0 is padding.
        max_len: Maximum length of a history.
        **hyper: Hyper-parameters, as documented by the model's class.

    Raises:
        ConfigError: If the name or a hyper-parameter is unknown, a required one is missing, or a value is out of range.

    Example:
        >>> model = build_model("sasrec", num_items=3646, max_len=50, hidden_size=64)
        >>> sum(parameter.numel() for parameter in model.parameters())
        336704
    """
    known = hyper_parameters(name)
    for key in hyper:
        if key not in known:
            raise ConfigError(f"model {name} has no hyper-parameter {key!r}; known: {', '.join(known)}.")
    for key, default in known.items():
        if default is Parameter.empty and key not in hyper:
            raise ConfigError(f"model {name} needs the hyper-parameter {key!r}; give it a value.")
    return MODELS[name](num_items=num_items, max_len=max_len, **hyper)


WEIGHTS_FILE, MODEL_FILE = "model.safetensors", "model.json"
_REMEDY = "Train it again (minionerec train-sequential)."
_SMALL = 1000  # bound on hyper-parameters that are no size of a tensor, such as a number of negatives


def save_sequential(model: SequentialModel, name: str, hyper: Mapping[str, Any], folder: Path) -> None:
    """Write a model into the folder of an artefact.

    Args:
        model: The model.
        name: Key of `minionerec.models.sequential.registry.MODELS`.
        hyper: The hyper-parameters that it was built with.
        folder: The folder.
    """
    about = {"model": name, "num_items": model.num_items, "max_len": model.max_len, "hyper": dict(hyper)}
    about |= {"context": [feature.stored() for feature in model.features]} if model.features else {}
    about |= {"vector_width": model.vector_width} if model.vector_width else {}
    save_file({key: value.cpu().contiguous() for key, value in model.state_dict().items()}, folder / WEIGHTS_FILE)
    write_json(folder / MODEL_FILE, about)


def load_sequential(path: str | Path) -> SequentialModel:
    """Load a trained recommender in evaluation mode.

    Args:
        path: The folder `model` of `minionerec train-sequential`.

    Raises:
        ArtefactError: If the folder holds no such model, a file was changed, or weights and description do not match.
    """
    open_artefact(path, MODEL_KIND)
    folder = Path(path)
    tensors = _read_weights(folder / WEIGHTS_FILE)
    model = _describe(folder / MODEL_FILE, tensors)
    try:
        fill_weights(model, tensors)
    except RuntimeError as error:
        reason = one_line(error, 300)
        raise ArtefactError(f"{path}: {WEIGHTS_FILE} does not fit {MODEL_FILE} ({reason}). {_REMEDY}") from None
    if (flaw := model.flaw()) is not None:
        raise ArtefactError(f"{folder / WEIGHTS_FILE}: {flaw}. {_REMEDY}")
    return model.eval()


def _read_weights(file: Path) -> dict[str, torch.Tensor]:
    try:
        tensors = load(file.read_bytes())  # not mapped, as truncating a mapped file ends the process
    except (OSError, ValueError, SafetensorError) as error:
        raise ArtefactError(f"{file}: not a safetensors file ({one_line(error, 200)}). {_REMEDY}") from None
    for name, value in tensors.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise ArtefactError(f"{file}: {name} is not finite. {_REMEDY}")
    return tensors


def _describe(file: Path, tensors: Mapping[str, torch.Tensor]) -> SequentialModel:
    """Build the described model on the meta device, after checking its sizes against those of the weights."""
    description = read_json(file)
    types = {"model": str, "num_items": int, "max_len": int, "hyper": dict}
    if not isinstance(description, dict) or not all(
        type(description.get(name)) is kind for name, kind in types.items()
    ):
        raise ArtefactError(f"{file}: expected an object with {', '.join(types)}. {_REMEDY}")
    context = description.get("context", [])
    if not isinstance(context, list):
        raise ArtefactError(f"{file}: context is {shown(context)}, expected a list of request features. {_REMEDY}")
    features = [RequestFeature.read(stored, f"{file}: context") for stored in context]
    width = description.get("vector_width", 0)
    if type(width) is not int or width < 0:
        raise ArtefactError(f"{file}: vector_width is {shown(width)}, expected a whole number. {_REMEDY}")
    largest = max((side for value in tensors.values() for side in value.shape), default=0)
    sizes = [
        description["num_items"],
        description["max_len"],
        width,
        *(n for n in description["hyper"].values() if isinstance(n, int)),
    ]
    if max(sizes) > max(largest, _SMALL):
        raise ArtefactError(f"{file}: has a size of {max(sizes)}, but no tensor is longer than {largest}. {_REMEDY}")
    try:
        with torch.device("meta"):
            model = build_model(
                description["model"],
                num_items=description["num_items"],
                max_len=description["max_len"],
                **description["hyper"],
            )
            if width:
                model.read_vectors(width)
            if features:
                model.condition_on(features)
        return model
    except (ConfigError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        reason = one_line(error, 300)
        raise ArtefactError(f"{file}: describes no model ({reason}). {_REMEDY}") from None
