"""Models by name: fitted, stored and read back."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.preference.config import COMPAT, PreferenceConfig
from minionerec.preference.data import Comparisons
from minionerec.preference.floors import agreeing_user, majority
from minionerec.preference.jobs import RUN
from minionerec.preference.linear import LinearModel, fit_bradley_terry
from minionerec.preference.model import FeatureModel, Lookup, PreferenceModel

ARRAYS, ABOUT = "model.safetensors", "model.json"
_OF_NETWORKS = (
    "activation",
    "dropout",
    "scale",
    "embedding_std",
    "learning_rate",
    "weight_decay",
    "batch_size",
    "full_batch",
    "monitor",
    "max_epochs",
    "patience",
    "min_delta",
    "position_bias",
)


def is_network(model: str) -> bool:
    """Whether a model of this name is a neural network."""
    return model.startswith("mlp_")


def mlp_settings(config: PreferenceConfig, model: str) -> dict[str, Any]:
    """Arguments of `train_mlp`: those of the configuration, or the published report's for `mlp_concat` under compat."""
    chosen = {name: getattr(config, name) for name in _OF_NETWORKS}
    if config.compat == COMPAT and model == "mlp_concat":
        chosen |= {"scale": "none", "embedding_std": 1.0, "full_batch": True, "monitor": "macro_target"}
    return {**chosen, "siamese": model == "mlp_siamese"}


def fit_model(config: PreferenceConfig, model: str, data: Comparisons, folds: np.ndarray, seed: int) -> PreferenceModel:
    """Fit one model by name; see `minionerec.preference.config.MODELS`."""
    if model == "majority":
        return Lookup(majority(data, folds))
    if model == "agreeing_user":
        return Lookup(agreeing_user(data, folds))
    if not is_network(model):
        return fit_bradley_terry(data, folds, model, config.position_bias)
    from minionerec.preference.mlp import train_mlp

    return train_mlp(data, folds, seed=seed, **mlp_settings(config, model))


def save_model(place: Path, fitted: PreferenceModel, about: Mapping[str, Any]) -> None:
    """Write what a model stores, if it stores anything.

    Args:
        place: Directory of the run.
        fitted: The model.
        about: Its model, settings, users, targets and seed, by these names.
    """
    arrays = fitted.arrays()
    if not arrays:
        return
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, place / ARRAYS)
    content = {**about, "basis_penalty": fitted.about().basis_penalty}
    (place / ABOUT).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_model(path: str | Path) -> tuple[FeatureModel, list[str], list[str]]:
    """A fitted model from its run directory, with its users and targets.

    Returns:
        `LinearModel` or `MlpModel` (in evaluation mode), user ids, target names. A person not among the users is user
        -1 of `predict`, and gets what is common to all.

    Raises:
        ArtefactError: If there is no such run, or the run is one of a floor without a model.
    """
    from safetensors.numpy import load_file

    path = Path(path)
    read_manifest(path, RUN)
    about = read_json(path / ABOUT)
    arrays = load_file(path / ARRAYS)
    make = _network if is_network(about["model"]) else _linear
    return make(arrays, about), about["users"], about["targets"]


def _linear(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> FeatureModel:
    return LinearModel(
        mean=arrays["mean"],
        scale=arrays["scale"],
        weights=arrays["weights"],
        bias=arrays["bias"],
        basis=arrays["basis"],
        basis_penalty=about["basis_penalty"],
    )


def _network(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> FeatureModel:
    import torch

    from minionerec.preference.mlp import MlpModel, PairNetwork

    chosen = about["settings"]
    network = PairNetwork(
        len(arrays["mean"]),
        len(about["users"]),
        len(about["targets"]),
        siamese=chosen["siamese"],
        activation=chosen["activation"],
        position_bias=chosen["position_bias"],
    )
    state = {name[8:]: torch.from_numpy(value) for name, value in arrays.items() if name.startswith("network.")}
    network.load_state_dict(state)
    network.eval()
    return MlpModel(network, arrays["mean"], arrays["spread"], chosen["scale"] == "l2")
