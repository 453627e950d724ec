"""Settings of the experiment log; light to import, so that `--help` answers at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from minionerec.core.errors import ConfigError, shown
from minionerec.core.paths import find_path
from minionerec.core.settings import StageConfig, setting
from minionerec.reports.config import PROTOCOLS, RESAMPLE, RESAMPLED, SPLITS, USERS, nested

_ENTRY_KEYS = ("corpus", "items", "protocol", "sids", "stages", "reference", "split")
_STAGE_KEYS = ("predictions", "checkpoint")
_ENTRY = (
    "data sets in the order of the log, each NAME: {corpus, sids, stages, reference, protocol, items, split}; corpus, "
    "sids, protocol, items, split and reference as in `minionerec report`; stages are LABEL: DIRECTORY of predictions, "
    "or LABEL: {predictions, checkpoint} for one that is still being trained"
)


@dataclass(frozen=True)
class StageSetting:
    """One stage of an entry.

    Attributes:
        predictions: Directory of its predictions, which need not be there yet.
        checkpoint: Directory of its checkpoint, by which an unfinished run is found; empty where it is not named.
    """

    predictions: Path
    checkpoint: str = ""

    @property
    def finished(self) -> bool:
        """Whether there are predictions, of one seed or several."""
        from minionerec.metrics.ranked import has_runs

        return has_runs(self.predictions)


@dataclass(frozen=True)
class EntrySetting:
    """One data set of the log; the fields are those of `minionerec report`, but for the stages."""

    name: str
    corpus: str
    stages: Mapping[str, StageSetting]
    sids: str = ""
    items: str = ""
    protocol: str = "rows"
    split: str = "test"
    reference: str = ""

    @property
    def finished(self) -> dict[str, StageSetting]:
        """The stages that have predictions, by label."""
        return {label: stage for label, stage in self.stages.items() if stage.finished}

    def to_json(self) -> dict[str, Any]:
        """What decides the entry's part of the log beside the content of its inputs."""
        return {
            "name": self.name,
            "stages": list(self.stages),
            "finished": list(self.finished),
            **{key: getattr(self, key) for key in ("protocol", "split", "reference")},
        }


@dataclass
class ExperimentLogConfig(StageConfig):
    """Settings of `run_experiment_log`."""

    kind: ClassVar[str] = "experiment_log"

    entries: dict[str, Any] = setting({}, _ENTRY, required=True, decides=False, path=True)
    output: str = setting(
        "",
        "directory to write experiment_log.md, experiment_log.html and experiment_log.json into",
        required=True,
        decides=False,
    )
    title: str = setting("Experiment log", "heading of the log")
    ks: list[int] | None = setting(
        None, "cut-offs K, in candidates; those of each protocol within all lists if not given", least=1
    )
    seed: int = setting(0, "seed of the bootstrap", least=0)
    resamples: int = setting(2000, "bootstrap resamples behind every interval", least=1)
    resample: str = setting(USERS, RESAMPLE, known=RESAMPLED)

    def __post_init__(self) -> None:
        """Check what can be checked without files."""
        super().__post_init__()
        self.ks = sorted(set(self.ks)) if self.ks else None
        self.parsed()

    def parsed(self) -> list[EntrySetting]:
        """The entries, read and checked."""
        return [_entry(name, given) for name, given in self.entries.items()]

    def deciding(self) -> dict[str, Any]:
        """What decides the log: its entries without their paths, and how far unfinished stages are, among it."""
        from minionerec.reports.experiment_log.entry import pending

        entries = [{**entry.to_json(), "pending": pending(entry)} for entry in self.parsed()]
        return {**super().deciding(), "entries": entries}

    def named_paths(self) -> list[Path]:
        """Corpora, SIDs and the predictions of all stages, finished or not."""
        entries = self.parsed()
        named = [find_path(place) for entry in entries for place in (entry.corpus, entry.sids, entry.items) if place]
        return named + [stage.predictions for entry in entries for stage in entry.stages.values()]

    def inputs(self) -> dict[str, Path]:
        """Corpora, SIDs, the predictions of all finished stages and seeds, and the files of published numbers."""
        from minionerec.metrics.ranked import runs_at
        from minionerec.reports.reference import reference_path

        found: dict[str, Path] = {}
        for entry in self.parsed():
            for key in ("corpus", "items", "sids"):
                if getattr(entry, key):
                    found[f"{entry.name} {key}"] = find_path(getattr(entry, key))
            for label, stage in entry.finished.items():
                for run in runs_at(stage.predictions):
                    suffix = "" if run == stage.predictions else f" {run.parent.name}"
                    found[f"{entry.name} {label}{suffix}"] = run
            if entry.reference:
                found[f"{entry.name} reference"] = reference_path(entry.reference)
        return found


def _entry(name: str, given: Any) -> EntrySetting:
    """One entry as its mapping says it."""
    where = f"entries: {name}"
    values = nested(given, where, _ENTRY_KEYS, required=("corpus", "stages"))
    stages = nested(values.pop("stages"), f"{where}: stages")
    for key, value in values.items():
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {key} is {shown(value)}; expected a text.")
    for key, known in (("protocol", PROTOCOLS), ("split", SPLITS)):
        if values.get(key, known[0]) not in known:
            raise ConfigError(f"{where}: unknown {key} {shown(values[key])}; known: {', '.join(known)}.")
    made = {label: _stage(stage, f"{where}: stages: {label}") for label, stage in stages.items()}
    return EntrySetting(name, stages=made, **values)


def _stage(given: Any, where: str) -> StageSetting:
    values = {"predictions": given} if isinstance(given, str) else nested(given, where, _STAGE_KEYS, ("predictions",))
    for key, value in values.items():
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{where}: {key} is {shown(value)}; expected a directory.")
    return StageSetting(find_path(values["predictions"]), values.get("checkpoint", ""))
