"""What a recommender took, as far as manifests and run records tell: seeds, parameters, rows, time, search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import fingerprint
from minionerec.reports.experiment_log.gaps import shown_setting
from minionerec.reports.experiment_log.lineage import Lineage, trace_runs
from minionerec.reports.experiment_log.trainings import TITLES, epochs_of, machine
from minionerec.reports.systems import System

_TOLD = {
    "scores": "full",
    "seen": "keep",
    "share": None,
    "combine": None,
    "assistant_temperature": 1.0,
    "length_penalty": 0.0,
    "text_beams": None,
    "encoder": None,
    "weights": None,
}
"""Settings that say how recommendations were searched → the value at which that goes without saying."""


@dataclass(frozen=True)
class Effort:
    """All runs of one recommender.

    Attributes:
        runs: What each seed's predictions come from.
        width: Candidates of their lists; None where the whole catalogue was ranked.
        counted: Parameters as the predictions themselves tell; None where they do not.
    """

    runs: Sequence[Lineage]
    width: int | None
    counted: int | None

    @property
    def seeds(self) -> list[int]:
        """The seeds of the trainings that the predictions are of, as far as they are known."""
        return [run.own.seed for run in self.runs if run.own is not None and run.own.seed is not None]

    @property
    def single(self) -> bool:
        """Whether something was trained for it, with one seed."""
        return len(self.runs) == 1 and bool(self.runs[0].trainings or self.runs[0].missing)

    @property
    def parameters(self) -> int | None:
        """Parameters of all models that are asked for a row; None where that is not told."""
        asked = {record["sha256"] for record in (self.runs[0].predictions or {}).get("inputs", {}).values()}
        models = [training for training in self.runs[0].trainings if fingerprint(training.path) in asked]
        counts = [model.counts.get("parameters") for model in models]
        known = [count for count in counts if isinstance(count, int)]
        return sum(known) if known and len(known) == len(counts) else self.counted

    @property
    def examples(self) -> tuple[int, float] | None:
        """Training rows (or windows) of an epoch and epochs taken, of the first seed; None where that is not told."""
        own = self.runs[0].own
        if own is None:
            return None
        rows, epochs = _rows(own.counts), epochs_of(own)
        epochs = own.settings.get("epochs") if epochs is None else epochs
        return (rows, float(epochs)) if rows and isinstance(epochs, int | float) else None

    @property
    def settings(self) -> dict[str, Any]:
        """What decided the training of the first run, but for the seed; empty where that is not told."""
        return _without_seed(self.runs[0])

    @property
    def unlike(self) -> dict[str, list[Any]]:
        """Settings in which the runs' own trainings differ, beside the seed, with the value of each run."""
        told = [_without_seed(run) for run in self.runs if run.own is not None]
        names = dict.fromkeys(name for settings in told for name in settings)
        values = {name: [settings.get(name) for settings in told] for name in names}
        return {name: each for name, each in values.items() if any(value != each[0] for value in each)}

    @property
    def parts(self) -> list[tuple[str, float | None]]:
        """The trainings behind the first seed by kind, the first first, each with its seconds."""
        return [(TITLES.get(each.stage, each.path.name), _seconds(each.record)) for each in self.runs[0].trainings]

    @property
    def seconds(self) -> float | None:
        """Seconds of all trainings behind a seed, the mean over the seeds; None where one is not recorded."""
        each = [[_seconds(training.record) for training in run.trainings] for run in self.runs]
        return _mean([None if run.missing else _sum(parts) for run, parts in zip(self.runs, each, strict=True)])

    @property
    def evaluation_seconds(self) -> float | None:
        """Seconds of recommending and measuring, the mean over the seeds; None where one is not recorded."""
        return _mean([_seconds(run.record) for run in self.runs])

    @property
    def machines(self) -> list[str]:
        """Where the seconds were counted."""
        records = [each for run in self.runs for each in (run.record, *(training.record for training in run.trainings))]
        return list(dict.fromkeys(machine(record["machine"]) for record in records if record))

    @property
    def commits(self) -> list[str]:
        """The commits of the code that trained, as far as they are recorded."""
        records = [training.record for run in self.runs for training in run.trainings]
        return list(dict.fromkeys(record["commit"] for record in records if record and record.get("commit")))

    @property
    def search(self) -> str:
        """How it was searched, in words."""
        settings = (self.runs[0].predictions or {}).get("settings") or {}
        ranked = "whole catalogue" if self.width is None else f"{self.width} candidates"
        words = [f"{settings['search']}, {self.width} beams" if settings.get("search") else ranked]
        words += [
            f"{name} {shown_setting(settings[name])}"
            for name, usual in _TOLD.items()
            if name in settings and settings[name] != usual
        ]
        return "; ".join(words)


def find_effort(name: str, places: Sequence[Path], system: System) -> Effort:
    """What a recommender's runs took.

    Args:
        name: Its name.
        places: Its predictions, one a seed.
        system: Their ranks.

    Raises:
        ArtefactError: If a place holds no predictions.
    """
    counted = system.about.get("parameters")
    runs = [trace_runs(name, [place]) for place in places]
    return Effort(runs, system.width, counted if isinstance(counted, int) else None)


def _without_seed(run: Lineage) -> dict[str, Any]:
    """The settings of the training that predictions are of, but for its seed and where it was written."""
    settings = {} if run.own is None else run.own.settings
    return {name: value for name, value in settings.items() if name not in ("seed", "output")}


def _rows(counts: Mapping[str, Any]) -> int | None:
    names = ("train",) if counts.get("recipe") == "one position a row" else ("rows", "windows")
    found = next((counts[name] for name in names if name in counts), None)
    if isinstance(found, Mapping):
        found = sum(value for value in found.values() if isinstance(value, int))
    return found if isinstance(found, int) else None


def _seconds(record: Mapping[str, Any] | None) -> float | None:
    return None if record is None else float(record["seconds"]["all"])


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    total = _sum(values)
    return None if total is None else total / len(values)
