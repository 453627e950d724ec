"""Trackers that a training reports to (TensorBoard, Weights & Biases, MLflow, …), by the trainer's own `report_to`."""

import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from minionerec.core.errors import ConfigError
from minionerec.training.config import RunConfig

PROJECT = "minionerec"
# Module and package of each tracker, where they are not called like it.
_MODULES = {"azure_ml": "azureml", "flyte": "flytekit"}
_PACKAGES = {"azure_ml": "azureml-core", "flyte": "flytekit", "tensorboard": "'minionerec[tensorboard]'"}
_BY_ENVIRONMENT = "TENSORBOARD_LOGGING_DIR"


def check_trackers(names: Iterable[str]) -> None:
    """Check that the packages of trackers are installed.

    Raises:
        ConfigError: Naming the first that is not, and the command that installs it.
    """
    for name in names:
        if find_spec(_MODULES.get(name, name)) is None:
            package = _PACKAGES.get(name, name.replace("_", "-"))
            raise ConfigError(
                f"report_to names {name}, whose package is not installed: pip install {package}. Or leave it out."
            )


def tracker_arguments(config: RunConfig) -> dict[str, Any]:
    """What the trainer is told about trackers: nothing is sent anywhere unless the settings name one."""
    return {"report_to": list(config.report_to), "run_name": config.output, "project": PROJECT}


def place_logs(callbacks: Iterable[Any], config: RunConfig) -> None:
    """Let TensorBoard write into `OUTPUT.tensorboard`, which outlives the run, unless its own variable names a folder.

    Args:
        callbacks: The trainer's.
        config: The stage's settings.
    """
    if "tensorboard" not in config.report_to or os.environ.get(_BY_ENVIRONMENT):
        return
    from transformers.integrations.integration_utils import TensorBoardCallback

    for callback in callbacks:
        if isinstance(callback, TensorBoardCallback):
            callback.logging_dir = f"{config.output}.tensorboard"
