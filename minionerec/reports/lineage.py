"""The lineage of predictions: the trainings they come from, by the manifests of each stage, and their cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import fingerprint, is_artefact, read_json, read_manifest, resolve_link, to_plain
from minionerec.core.errors import ArtefactError, ConfigError, MinioneRecError
from minionerec.core.log import get_logger
from minionerec.core.records import read_run_record
from minionerec.core.settings import type_hints
from minionerec.core.stages import STAGES, stage_of
from minionerec.core.values import convert
from minionerec.reports.config import RunSetting

logger = get_logger(__name__)

SFT, DPO, RL, CATALOGUE, SEQUENTIAL = "sft", "dpo", "grpo", "train-catalogue", "train-sequential"
OTHER = "unknown"
"""The stage of a checkpoint of version 0.1, whose manifests did not record it."""
_BESIDE = ("assistant", "sequential")
_BEFORE = ("checkpoint", "model", "teacher", *_BESIDE)
_LOGS = ("training_log.json", "history.json")
_STATE = "trainer_state.json"


@dataclass(frozen=True)
class Training:
    """One training in the lineage of a stage.

    Attributes:
        name: Its name in the log: the stage whose predictions are its own, else the name of its directory.
        stage: The stage that trained it, such as "sft"; "unknown" for a checkpoint of version 0.1.
        path: The path of its checkpoint, existing or not.
        settings: Settings that affect it, by name.
        counts: Counts of its manifest; empty for an unfinished one.
        log: The entries of its training log, in order.
        seed: Its seed.
        record: Its run record as plain values; None where there is none.
        progress: Of an unfinished run, its optimiser steps so far and in all, as far as they are known; None of a
            finished one.
        before: Names of inputs → their fingerprints.
    """

    name: str
    stage: str
    path: Path
    settings: Mapping[str, Any]
    counts: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[Mapping[str, Any]] = ()
    seed: int | None = None
    record: Mapping[str, Any] | None = None
    progress: tuple[int | None, int | None] | None = None
    before: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lineage:
    """The lineage of the predictions of one seed.

    Attributes:
        name: The recommender.
        predictions: Manifest of the predictions; None while they are pending.
        record: Run record of the predictions.
        trainings: The trainings they come from, in order.
        missing: Inputs that are missing or have changed since.
    """

    name: str
    predictions: Mapping[str, Any] | None
    record: Mapping[str, Any] | None
    trainings: Sequence[Training]
    missing: Sequence[str]

    @property
    def own(self) -> Training | None:
        """The training that the predictions are of."""
        return next((training for training in reversed(self.trainings) if training.name == self.name), None)


def trace(name: str, path: Path) -> Lineage:
    """Follow predictions back to all trainings they come from.

    Raises:
        ArtefactError: If there are no predictions.
    """
    trainings, missing = _back(path, name)
    return Lineage(name, read_manifest(path), _record(path), trainings, missing)


def trace_unfinished(name: str, checkpoint: str) -> Lineage:
    """The training in progress for pending predictions, if its checkpoint is named."""
    found = unfinished(name, checkpoint)
    return Lineage(name, None, None, [] if found is None else [found], ())


def unfinished_steps(run: RunSetting) -> list[list[int | None]]:
    """The progress of a pending recommender's training, which decides whether a log is up to date."""
    return [
        list(each.progress or ()) for each in trace_unfinished(run.name, run.details.get("checkpoint", "")).trainings
    ]


def _back(path: Path, label: str) -> tuple[list[Training], list[str]]:
    """The trainings that an artefact comes from, in order, and inputs that are missing or have changed."""
    found: dict[Path, Training] = {}
    missing, queue = list[str](), [(path, 0)]
    while queue:
        artefact, depth = queue.pop(0)
        for name, record in read_manifest(artefact)["inputs"].items():
            if name not in _BEFORE:
                continue
            source = _find(artefact, record)
            if source is None:
                missing.append(record["path"])
            elif source not in found:
                found[source] = _training(source, label if depth == 0 and name not in _BESIDE else source.name)
                queue.append((source, depth + 1))
    return list(found.values())[::-1], missing


def _find(artefact: Path, record: Mapping[str, str]) -> Path | None:
    """The path of an input: as recorded, or relative to a parent folder of the artefact that read it."""
    for root in (Path(), *artefact.absolute().parents):
        path = root / record["path"]
        if is_artefact(path):
            try:
                if fingerprint(path) == record["sha256"]:
                    return path
            except MinioneRecError:
                continue
    return None


def _training(path: Path, name: str) -> Training:
    manifest = read_manifest(path)
    stage = _stage(manifest, path)
    return Training(
        name=name,
        stage=stage,
        path=path,
        settings=_typed(manifest.get("settings") or manifest["config"], stage, path),
        counts=manifest["counts"],
        log=_log(path),
        seed=manifest["seed"],
        record=_record(path),
        before={key: record["sha256"] for key, record in manifest["inputs"].items()},
    )


def _stage(manifest: Mapping[str, Any], path: Path) -> str:
    found = stage_of(manifest)
    if found is None:
        logger.warning(
            "%s: was written by version 0.1, whose manifests do not record the stage of a checkpoint; its settings "
            "are shown unchanged. Train it again to record the stage.",
            path,
        )
    return found or OTHER


def _typed(settings: Mapping[str, Any], stage: str, path: Path) -> dict[str, Any]:
    """Settings as their stage declares them; those that it does not declare as they are, without those of other types.

    Args:
        settings: As in a manifest.
        stage: The stage.
        path: Where they are from, for a warning.
    """
    hints = type_hints(STAGES[stage].config_class()) if stage in STAGES else {}
    found = {}
    for name, value in settings.items():
        try:
            found[name] = convert(value, hints[name], f"{path}: {name}") if name in hints else value
        except ConfigError as error:
            logger.warning("%s It is left out.", error)
    return found


def _log(path: Path) -> list[dict[str, float]]:
    """The numbers of the entries of a training log."""
    for name in _LOGS:
        if (path / name).is_file():
            rows = read_json(path / name)
            rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
            return [{key: value for key, value in row.items() if type(value) in (int, float)} for row in rows]
    return []


def _record(output: Path) -> dict[str, Any] | None:
    found = read_run_record(output)
    return None if found is None else dict(to_plain(found))


def unfinished(label: str, checkpoint: str) -> Training | None:
    """A training in progress: its settings and its last step; None if there is none."""
    output = resolve_link(checkpoint)
    if checkpoint and is_artefact(output):
        return _training(output, label)
    folder = output.with_name(f"{output.name}.partial") if checkpoint else None
    if folder is None or not (folder / "run.json").is_file():
        return None
    try:
        began = read_json(folder / "run.json")
        stage = _stage({"kind": "checkpoint", **began}, output)
        settings, before = _typed(dict(began["settings"]), stage, folder), dict(began["inputs"])
    except (ArtefactError, KeyError, TypeError, ValueError):
        logger.warning("%s: run.json lacks the settings of the unfinished run; it is shown as pending.", folder)
        return None
    return Training(
        label,
        stage,
        output,
        settings,
        progress=_progress(folder),
        before=before,
    )


def _progress(folder: Path) -> tuple[int | None, int | None]:
    """Steps done and steps in all, by the newest checkpoint of an unfinished run."""
    named = {file.parent.name.removeprefix("checkpoint-"): file for file in folder.glob(f"checkpoint-*/{_STATE}")}
    states = [named[step] for step in sorted((step for step in named if step.isdecimal()), key=int)]
    if not states:
        return None, None
    try:
        state = read_json(states[-1])
        return int(state["global_step"]), int(state["max_steps"])
    except (ArtefactError, ValueError, KeyError, TypeError):
        return None, None


def changes(training: Training, earlier: Training) -> dict[str, tuple[Any, Any]] | None:
    """The settings in which a training differs from an earlier one of its stage, as (then, now); None of another stage.

    Its initial checkpoint and other inputs count as settings.
    """
    if training.stage != earlier.stage or training.stage == OTHER:
        return None
    names = [*earlier.settings, *(name for name in training.settings if name not in earlier.settings)]
    found = {
        name: (earlier.settings.get(name), training.settings.get(name))
        for name in names
        if earlier.settings.get(name) != training.settings.get(name)
    }
    inputs = sorted({*earlier.before, *training.before})
    for name in inputs:
        then, now = earlier.before.get(name), training.before.get(name)
        if then != now:
            found[f"input {name}"] = (then and then[:16], now and now[:16])
    return found
