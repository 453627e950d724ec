"""The seeds of a configuration as stages of their own: what decides each artefact, and where it lies.

OUTPUT/seed-N/model         kind "sequential_model": weights, description, history of the training
OUTPUT/seed-N/predictions   kind "predictions": ranked lists of the test rows, ranks of validation and test, metrics
OUTPUT/summary              kind "sequential_summary": metrics of all seeds, their mean and sd
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.core.stage import Stage
from minionerec.data.protocols import PROTOCOLS, Protocol
from minionerec.metrics.ranked import KIND as PREDICTIONS_KIND
from minionerec.models.sequential.saved import MODEL_KIND
from minionerec.training.sequential.config import SequentialConfig

_OF_PROTOCOL = ("seed", "max_len", "stop_after", "batch_size", "seen", "monitor")
_OF_LISTS = ("list_length", "resamples")


def resolve_protocol(config: SequentialConfig) -> Protocol:
    """The protocol with what the settings change in it."""
    wanted = {name: getattr(config, name) for name in _OF_PROTOCOL}
    return PROTOCOLS[config.protocol].with_changes(
        **{name: value for name, value in wanted.items() if value is not None}
    )


@dataclass(frozen=True)
class SeedRun:
    """One seed of a configuration.

    Attributes:
        config: The settings.
        protocol: The protocol with the settings' changes.
        seed: The seed.
    """

    config: SequentialConfig
    protocol: Protocol
    seed: int

    @property
    def folder(self) -> Path:
        """Where its artefacts lie."""
        return Path(self.config.output) / f"seed-{self.seed}"

    @property
    def model(self) -> Stage:
        """The training. What only lists and metrics depend on has no say in it."""
        decided = {**_resolved(self.config, self.protocol), "seed": self.seed}
        settings = {name: value for name, value in decided.items() if name not in ("seeds", *_OF_LISTS)}
        inputs = {name: path for name, path in self.config.inputs().items() if name != "sids"}
        return Stage(self.config, kind=MODEL_KIND, output=self.folder / "model", inputs=inputs, settings=settings)

    @property
    def predictions(self) -> Stage:
        """Lists, ranks and metrics of the trained model, which is one of its inputs."""
        settings = {
            "protocol": self.protocol.name,
            "seen": self.protocol.seen,
            "max_len": self.protocol.max_len,
            **{name: getattr(self.config, name) for name in _OF_LISTS},
            **({"eval_rows": self.config.eval_rows} if self.config.stream else {}),
        }
        return Stage(
            self.config,
            kind=PREDICTIONS_KIND,
            output=self.folder / "predictions",
            inputs={**self.config.inputs(), "model": self.model.output},
            settings=settings,
        )


def _resolved(config: SequentialConfig, protocol: Protocol) -> dict[str, Any]:
    """The deciding settings, with the protocol's own values where they leave the choice to it."""
    return {**config.deciding(), **{name: getattr(protocol, name) for name in _OF_PROTOCOL}}


def seed_runs(config: SequentialConfig, protocol: Protocol) -> list[SeedRun]:
    """The seeds of a configuration, in order."""
    return [SeedRun(config, protocol, seed) for seed in range(protocol.seed, protocol.seed + config.seeds)]


def summary_stage(config: SequentialConfig, runs: list[SeedRun]) -> Stage:
    """The summary of finished seeds, whose artefacts are its inputs."""
    inputs = {f"model {run.seed}": run.model.output for run in runs}
    inputs |= {f"predictions {run.seed}": run.predictions.output for run in runs}
    settings = {"seeds": [run.seed for run in runs]}
    return Stage(config, output=Path(config.output) / "summary", inputs=inputs, settings=settings)


def is_up_to_date(config: SequentialConfig) -> bool:
    """Whether all artefacts of a configuration stand, made from its settings and from inputs of the same content."""
    runs = seed_runs(config, resolve_protocol(config))
    stages = [stage for run in runs for stage in (run.model, run.predictions)]
    return all(stage.current(say=False) is not None for stage in [*stages, summary_stage(config, runs)])
