"""Trainings of the models behind predictions, from manifests: learning curves and cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import fingerprint, is_artefact, read_json, read_manifest, to_plain
from minionerec.core.errors import MinioneRecError
from minionerec.core.records import read_run_record
from minionerec.reports.cells import shown_setting

_BESIDE = ("assistant", "sequential")
_BEFORE = ("checkpoint", "model", "teacher", *_BESIDE)
_LOGS = ("training_log.json", "history.json")
_MEASURES: dict[str, dict[str, tuple[str, ...]]] = {
    "loss": {"training": ("loss",), "validation": ("eval_loss",)},
    "reward": {"training": ("reward",)},
    "NDCG@10": {"validation": ("eval_ndcg@10", "NDCG@10")},
}
"""Measure → its series → their keys in the training logs of language models and of sequential models."""


@dataclass(frozen=True)
class Training:
    """One training in the lineage of predictions.

    Attributes:
        name: Name on the page: that of the recommender if the predictions are directly of this training, else that of
            the directory.
        stage: Name of the stage, such as "sft".
        title: Name of the stage's trainings on pages.
        path: Path of the checkpoint.
        settings: Settings that affect the result, by name.
        counts: Counts of the manifest.
        log: Numbers of the entries of the training log, in order.
        seed: The seed.
        record: Run record as plain values; None without a record.
    """

    name: str
    stage: str
    title: str
    path: Path
    settings: Mapping[str, Any]
    counts: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[Mapping[str, float]] = ()
    seed: int | None = None
    record: Mapping[str, Any] | None = None

    @property
    def seconds(self) -> float | None:
        """Wall time in seconds; None if not recorded."""
        return None if self.record is None else float(self.record["seconds"]["all"])

    @property
    def epochs(self) -> float | None:
        """Epochs trained; None if unknown."""
        if isinstance(self.counts.get("epochs"), int | float):
            return float(self.counts["epochs"])
        logged = max((row["epoch"] for row in self.log if "epoch" in row), default=self.settings.get("epochs"))
        return float(logged) if isinstance(logged, int | float) else None

    def curves(self) -> dict[str, dict[str, list[tuple[float, float]]]]:
        """Measure → series → points (epoch, value); series of fewer than two points are left out."""
        panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for measure, series in _MEASURES.items():
            for name, keys in series.items():
                points = [(row["epoch"], row[key]) for row in self.log for key in keys if {key, "epoch"} <= row.keys()]
                if len(points) > 1:
                    panels.setdefault(measure, {})[name] = points
        return panels


@dataclass(frozen=True)
class Lineage:
    """The trainings behind the predictions of one seed.

    Attributes:
        name: The recommender.
        predictions: Manifest of the predictions.
        record: Run record of the predictions as plain values; None without a record.
        trainings: The trainings, in order.
        missing: Paths of inputs that are missing or have changed.
    """

    name: str
    predictions: Mapping[str, Any]
    record: Mapping[str, Any] | None
    trainings: Sequence[Training]
    missing: Sequence[str]

    @property
    def training(self) -> Training | None:
        """The training of the predicting model; None if it is missing."""
        return next((training for training in reversed(self.trainings) if training.name == self.name), None)


def trace(name: str, path: Path, stages: Mapping[str, str]) -> Lineage:
    """Collect all trainings that predictions depend on.

    Args:
        name: The recommender.
        path: Directory of its predictions.
        stages: Title of the trainings of each stage, by the stage's name; other stages go by their name.

    Raises:
        ArtefactError: If there are no predictions.
    """
    trainings: dict[Path, Training] = {}
    missing, queue = list[str](), [(path, 0)]
    while queue:
        artefact, depth = queue.pop(0)
        for key, entry in read_manifest(artefact)["inputs"].items():
            if key not in _BEFORE:
                continue
            source = _locate(artefact, entry)
            if source is None:
                missing.append(entry["path"])
            elif source not in trainings:
                training_name = name if depth == 0 and key not in _BESIDE else source.name
                trainings[source] = _training(source, training_name, stages)
                queue.append((source, depth + 1))
    return Lineage(name, read_manifest(path), _record(path), list(trainings.values())[::-1], missing)


def _locate(artefact: Path, entry: Mapping[str, str]) -> Path | None:
    """The path of an input: as recorded, or relative to a parent folder of the artefact that read it."""
    for root in (Path(), *artefact.absolute().parents):
        path = root / entry["path"]
        if is_artefact(path):
            try:
                if fingerprint(path) == entry["sha256"]:
                    return path
            except MinioneRecError:
                continue
    return None


def _training(path: Path, name: str, stages: Mapping[str, str]) -> Training:
    manifest = read_manifest(path)
    stage = str(manifest.get("stage", manifest["kind"]))
    return Training(
        name,
        stage,
        stages.get(stage) or stage,
        path,
        manifest.get("settings") or manifest["config"],
        manifest["counts"],
        _log(path),
        manifest["seed"],
        _record(path),
    )


def _log(path: Path) -> list[dict[str, float]]:
    """The numbers of the entries of a training log."""
    for name in _LOGS:
        if (path / name).is_file():
            entries = read_json(path / name)
            entries = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
            return [{key: value for key, value in entry.items() if type(value) in (int, float)} for entry in entries]
    return []


def _record(output: Path) -> dict[str, Any] | None:
    record = read_run_record(output)
    return None if record is None else dict(to_plain(record))


def machine(record: Mapping[str, Any]) -> str:
    """Processor, cores and GPUs as text.

    Example:
        >>> machine({"processor": "Some CPU", "cores": 2, "threads": 1, "gpus": []})
        'Some CPU, 2 cores, 1 thread'
    """
    cards = [str(card["name"]) for card in record.get("gpus", ())]
    words = [f"{cards.count(name)} x {name}" for name in dict.fromkeys(cards)]
    computing = ", ".join(_counted(record[f"{noun}s"], noun) for noun in ("core", "thread"))
    return "; ".join([*words, f"{record['processor']}, {computing}"])


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_USUAL = {
    "scores": "full",
    "seen": "keep",
    "share": None,
    "combine": None,
    "length_penalty": 0.0,
    "text_beams": None,
    "encoder": None,
    "weights": None,
    "experts": True,
}
"""Settings of the search → value at which they are not shown."""


@dataclass(frozen=True)
class Effort:
    """The cost of one recommender.

    Attributes:
        runs: The lineage of each seed's predictions.
        list_length: Requested length of the lists; None if the whole catalogue was ranked.
        counted: Parameters recorded with the predictions; None if unknown.
    """

    runs: Sequence[Lineage]
    list_length: int | None
    counted: int | None

    @property
    def seeds(self) -> list[int]:
        """The seeds of the trainings that the predictions are of, where known."""
        return [run.training.seed for run in self.runs if run.training is not None and run.training.seed is not None]

    @property
    def parameters(self) -> int | None:
        """Parameters of all models used in a query; None if unknown."""
        inputs = {entry["sha256"] for entry in self.runs[0].predictions.get("inputs", {}).values()}
        models = [training for training in self.runs[0].trainings if fingerprint(training.path) in inputs]
        counts = [model.counts.get("parameters") for model in models]
        known = [count for count in counts if isinstance(count, int)]
        return sum(known) if known and len(known) == len(counts) else self.counted

    @property
    def examples(self) -> tuple[int, float] | None:
        """Training examples (or windows) per epoch and epochs trained, of the first seed; None if unknown."""
        training = self.runs[0].training
        if training is None:
            return None
        count, epochs = _examples_per_epoch(training.counts), training.epochs
        return (count, epochs) if count and epochs is not None else None

    @property
    def settings_that_differ(self) -> dict[str, list[Any]]:
        """Settings in which the runs' own trainings differ, except seed and output, with the value of each run."""
        known = [
            {name: value for name, value in run.training.settings.items() if name not in ("seed", "output")}
            for run in self.runs
            if run.training is not None
        ]
        names = dict.fromkeys(name for settings in known for name in settings)
        values = {name: [settings.get(name) for settings in known] for name in names}
        return {name: of_runs for name, of_runs in values.items() if any(value != of_runs[0] for value in of_runs)}

    @property
    def parts(self) -> list[tuple[str, float | None]]:
        """The trainings of the first seed by stage, in order, each with its seconds."""
        return [(training.title, training.seconds) for training in self.runs[0].trainings]

    @property
    def seconds(self) -> float | None:
        """Seconds of all trainings of a seed, the mean over seeds; None if one is not recorded."""
        totals = [None if run.missing else _sum([part.seconds for part in run.trainings]) for run in self.runs]
        return _mean(totals)

    @property
    def evaluation_seconds(self) -> float | None:
        """Seconds of recommending and measuring, the mean over seeds; None if one is not recorded."""
        return _mean([None if run.record is None else float(run.record["seconds"]["all"]) for run in self.runs])

    @property
    def machines(self) -> list[str]:
        """The machines on which the seconds were measured."""
        records = [record for run in self.runs for record in (run.record, *(part.record for part in run.trainings))]
        return list(dict.fromkeys(machine(record["machine"]) for record in records if record))

    @property
    def search(self) -> str:
        """The search settings as text."""
        settings = self.runs[0].predictions.get("settings") or {}
        ranked = "whole catalogue" if self.list_length is None else f"{self.list_length} candidates"
        words = [f"{settings['search']}, {self.list_length} beams" if settings.get("search") else ranked]
        words += [
            f"{name} {shown_setting(settings[name])}"
            for name, usual in _USUAL.items()
            if name in settings and settings[name] != usual
        ]
        return "; ".join(words)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object; times are left out, as another run takes more or fewer seconds."""
        return {
            "seeds": self.seeds,
            "parameters": self.parameters,
            "examples_and_epochs": None if self.examples is None else list(self.examples),
            "search": self.search,
            "settings_that_differ": self.settings_that_differ,
            "missing": [path for run in self.runs for path in run.missing],
        }


def _examples_per_epoch(counts: Mapping[str, Any]) -> int | None:
    names = ("train",) if counts.get("recipe") == "one position a row" else ("rows", "windows")
    counted = next((counts[name] for name in names if name in counts), None)
    if isinstance(counted, Mapping):
        counted = sum(value for value in counted.values() if isinstance(value, int))
    return counted if isinstance(counted, int) else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    total = _sum(values)
    return None if total is None else total / len(values)
