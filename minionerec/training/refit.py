"""Training on all rows for service: the settings and the best epoch of a checkpoint that validation chose.

A refit takes from the chosen checkpoint how long to train, as epochs, and everything else from its own settings, which
must be those of the chosen one. The learning rate goes the way of the chosen run, up to where that run's best weights
stood. There is no validation: nothing is measured, nothing is chosen, the last weights are the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_callback import TrainerState

from minionerec.core.artefacts import file_sha256, is_artefact, read_json, read_manifest, to_plain
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.core.refit import is_refit, refitted_behind, require_held_out
from minionerec.training.config import RefittableConfig, RunConfig

logger = get_logger(__name__)

LOG_FILE = "training_log.json"
# How a step is computed, not what it is.
_FREE = ("device_batch_size", "gradient_checkpointing")
_NAMED = 4  # differences that a message lists


@dataclass(frozen=True)
class Refit:
    """How long a refit trains.

    Attributes:
        chosen: The checkpoint that validation chose.
        epochs: After how many epochs its weights stood.
    """

    chosen: Path
    epochs: float

    def steps(self, steps_per_epoch: int) -> int:
        """Optimiser steps of the refit, whose epochs have more rows than those of the chosen run."""
        return max(1, round(self.epochs * steps_per_epoch))


def plan_refit(config: RunConfig, inputs: Mapping[str, Path]) -> Refit | None:
    """What a run is to train on all rows; None for an ordinary run.

    Args:
        config: The stage's settings.
        inputs: Name to path of everything that it reads.

    Raises:
        ArtefactError: If an ordinary run reads what has seen the rows held out, or the chosen checkpoint is no
            result of validation.
        ConfigError: If the chosen checkpoint was trained with other settings.
    """
    if not (isinstance(config, RefittableConfig) and config.refit):
        _check_unseen(config, inputs)
        return None
    chosen = inputs["refit"]
    manifest = read_manifest(chosen)
    if is_refit(manifest):
        raise ArtefactError(
            f"{chosen}: is itself trained on all rows; give refit the checkpoint that validation chose."
        )
    _check_settings(config, inputs, chosen, manifest)
    start = inputs.get("checkpoint")
    if start is not None and refitted_behind(start) is None:
        raise ArtefactError(
            f"{start}: was not trained on all rows, so the run would begin without those of valid and test. Refit it "
            "first, and give checkpoint its refit."
        )
    found = Refit(chosen, best_epoch(chosen, manifest))
    logger.info("Training on all rows, for %.2f epochs as %s, without validation.", found.epochs, chosen)
    return found


def _check_unseen(config: RunConfig, inputs: Mapping[str, Path]) -> None:
    """Check that nothing which an ordinary run reads has seen the rows held out, a pretrained model included."""
    for path in [*inputs.values(), *(Path(value) for value in [getattr(config, "model", "")] if is_artefact(value))]:
        try:
            require_held_out(path)
        except ArtefactError as error:
            raise ArtefactError(f"{error} A run that validates cannot begin with it; only a refit can.") from None


def _check_settings(config: RunConfig, inputs: Mapping[str, Path], chosen: Path, manifest: Mapping[str, Any]) -> None:
    """Check that the settings are those that validation chose.

    Raises:
        ConfigError: Naming the first that differ.
    """
    then, now = manifest.get("settings", {}), to_plain(config.deciding())
    if then.keys() != now.keys():
        raise ConfigError(
            f"{chosen}: was made by another stage, or by an older version; give refit a checkpoint of this stage."
        )
    differences = [
        f"{name} (there {then[name]!r}, here {value!r})"
        for name, value in now.items()
        if name not in _FREE and then[name] != value
    ]
    differences += [f"{name} ({words})" for name, words in _different_inputs(inputs, manifest["inputs"]).items()]
    if differences:
        more = len(differences) - _NAMED
        said = ", ".join(differences[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        raise ConfigError(
            f"{chosen}: was trained with other settings, {said}. A refit takes those that validation chose: give the "
            "--config that it was trained with."
        )


def _different_inputs(inputs: Mapping[str, Path], then: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Inputs that one run has and the other has not, and a wording that is another one.

    Data, SIDs and a teacher may be newer ones.
    """
    found = {name: "given there, not here" for name in then if name not in inputs}
    found |= {name: "given here, not there" for name in inputs if name not in then and name != "refit"}
    if "wording" in inputs and "wording" in then and file_sha256(inputs["wording"]) != then["wording"]["sha256"]:
        found["wording"] = "another text"
    return found


def best_epoch(chosen: Path, manifest: Mapping[str, Any]) -> float:
    """After how many epochs the weights of a checkpoint stood.

    Raises:
        ArtefactError: If validation chose no step of its run.
    """
    step = manifest["counts"].get("best_step")
    log = read_json(chosen / LOG_FILE) if (chosen / LOG_FILE).is_file() else []
    epochs = [row["epoch"] for row in log if row["step"] == step]
    if not step or not epochs:
        raise ArtefactError(
            f"{chosen}: no step of its run was better than its beginning, so there is nothing to train as it was. "
            "Refit what it began with."
        )
    return float(epochs[0])


def without_validation(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a trainer (`minionerec.training.run.trainer_arguments`) that measures and chooses nothing."""
    chooses = ("eval_steps", "load_best_model_at_end", "metric_for_best_model", "greater_is_better")
    kept = {name: value for name, value in arguments.items() if name not in chooses}
    return {**kept, "eval_strategy": "no"}


class StopAt(TrainerCallback):
    """Ends a run after a number of steps, with a checkpoint, whatever its schedule would go on to.

    Args:
        step: The last step.
    """

    def __init__(self, step: int):
        self.step = step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """End the run where it is time."""
        if state.global_step >= self.step:
            control.should_training_stop = control.should_save = control.should_log = True
        return control
