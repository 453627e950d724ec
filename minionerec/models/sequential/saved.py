"""Trained sequential recommenders on disk: weights, and what to build around them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from minionerec.core.artefacts import open_artefact, read_json
from minionerec.core.errors import ArtefactError, ConfigError, shown
from minionerec.models.nn.history import PairCounts
from minionerec.models.sequential import MODEL_KIND
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.registry import build_model
from minionerec.models.sequential.rpg import RPG

WEIGHTS_FILE, MODEL_FILE = "model.safetensors", "model.json"
_REMEDY = "Train it again (minionerec train-sequential)."
_SMALL = 1000  # a hyper-parameter that is no size of a tensor, such as a number of negatives, is no larger


def save_sequential(model: SequentialModel, name: str, hyper: Mapping[str, Any], place: Path) -> None:
    """Write a model into the folder of an artefact.

    Args:
        model: The model.
        name: Key of `minionerec.models.sequential.registry.MODELS`.
        hyper: The hyper-parameters that it was built with.
        place: The folder.
    """
    about = {"model": name, "num_items": model.num_items, "max_len": model.max_len, "hyper": dict(hyper)}
    about |= {} if model.moment_states is None else {"moments": True}
    save_file({key: value.cpu().contiguous() for key, value in model.state_dict().items()}, place / WEIGHTS_FILE)
    (place / MODEL_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def load_sequential(path: str | Path) -> SequentialModel:
    """A trained recommender, in evaluation mode.

    Args:
        path: The folder `model` of `minionerec train-sequential`.

    Raises:
        ArtefactError: If it is none, a file of it was changed since it was written, or weights and description are not
            of one model.
    """
    open_artefact(path, MODEL_KIND)
    place = Path(path)
    tensors = _read_weights(place / WEIGHTS_FILE)
    model = _describe(place / MODEL_FILE, tensors)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ArtefactError(f"{path}: {WEIGHTS_FILE} does not fit {MODEL_FILE} ({reason}). {_REMEDY}") from None
    kept = (part for part in model.modules() if isinstance(part, PairCounts | RPG))
    wrong = next((said for part in kept if (said := part.flaw())), None)
    if wrong is not None:
        raise ArtefactError(f"{place / WEIGHTS_FILE}: {wrong}. {_REMEDY}")
    return model.eval()


def _read_weights(file: Path) -> dict[str, torch.Tensor]:
    try:
        tensors = load_file(file)
    except (OSError, ValueError, SafetensorError) as error:
        raise ArtefactError(
            f"{file}: not a safetensors file ({' '.join(str(error).split())[:200]}). {_REMEDY}"
        ) from None
    for name, value in tensors.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise ArtefactError(f"{file}: {name} is not finite. {_REMEDY}")
    return tensors


def _describe(file: Path, tensors: Mapping[str, torch.Tensor]) -> SequentialModel:
    """The model that a description describes, not larger than its weights."""
    about = read_json(file)
    wanted = {"model": str, "num_items": int, "max_len": int, "hyper": dict}
    if not isinstance(about, dict) or not all(type(about.get(name)) is kind for name, kind in wanted.items()):
        raise ArtefactError(f"{file}: expected an object with {', '.join(wanted)}. {_REMEDY}")
    if type(told := about.get("moments", False)) is not bool:
        raise ArtefactError(f"{file}: moments is {shown(told)}, expected true or false. {_REMEDY}")
    most = max((side for value in tensors.values() for side in value.shape), default=0)
    sizes = [about["num_items"], about["max_len"], *(n for n in about["hyper"].values() if isinstance(n, int))]
    if max(sizes) > max(most, _SMALL):
        raise ArtefactError(f"{file}: speaks of {max(sizes)}, but no tensor is longer than {most}. {_REMEDY}")
    try:
        model = build_model(about["model"], num_items=about["num_items"], max_len=about["max_len"], **about["hyper"])
        if told:
            model.tell_moments()
        return model
    except (ConfigError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ArtefactError(f"{file}: describes no model ({reason}). {_REMEDY}") from None
