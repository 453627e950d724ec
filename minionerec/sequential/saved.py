"""Trained sequential recommenders on disk: weights, and what to build around them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ArtefactError
from minionerec.sequential.model import SequentialModel
from minionerec.sequential.models import build_model
from minionerec.sequential.seeds import MODEL_KIND

WEIGHTS_FILE, MODEL_FILE = "model.safetensors", "model.json"


def save_sequential(model: SequentialModel, name: str, hyper: Mapping[str, Any], place: Path) -> None:
    """Write a model into the folder of an artefact.

    Args:
        model: The model.
        name: Key of `minionerec.sequential.models.MODELS`.
        hyper: The hyper-parameters that it was built with.
        place: The folder.
    """
    about = {"model": name, "num_items": model.num_items, "max_len": model.max_len, "hyper": dict(hyper)}
    save_file({key: value.cpu().contiguous() for key, value in model.state_dict().items()}, place / WEIGHTS_FILE)
    (place / MODEL_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def load_sequential(path: str | Path) -> SequentialModel:
    """A trained recommender, in evaluation mode.

    Args:
        path: The `model` folder of a seed.

    Raises:
        ArtefactError: If it is none, or its weights do not fit its description.
    """
    read_manifest(path, MODEL_KIND)
    about = read_json(Path(path) / MODEL_FILE)
    model = build_model(about["model"], num_items=about["num_items"], max_len=about["max_len"], **about["hyper"])
    try:
        model.load_state_dict(load_file(Path(path) / WEIGHTS_FILE))
    except RuntimeError as error:
        raise ArtefactError(f"{path}: {WEIGHTS_FILE} does not fit {MODEL_FILE} ({error}). Train it again.") from None
    return model.eval()
