"""The log as JSON: every number unrounded."""

from collections.abc import Mapping
from typing import Any

from minionerec.metrics.ranking import Estimate
from minionerec.reports.experiment_log import said
from minionerec.reports.experiment_log.entry import Beside, Entry
from minionerec.reports.experiment_log.lineage import RL, SFT, Training, changes
from minionerec.reports.experiment_log.parts import setup
from minionerec.reports.experiment_log.trainings import outcome, parameters


def entry_json(entry: Entry) -> dict[str, Any]:
    """One data set."""
    reference = entry.material.reference
    kinds = {"sft": [SFT], "rl": [RL]}
    known = {kind for listed in kinds.values() for kind in listed}
    kinds["other_trainings"] = sorted({training.stage for training in entry.trainings} - known)
    return {
        "setup": dict(setup(entry)),
        **{
            key: {each.name: training_json(each) for each in entry.trainings if each.stage in wanted}
            for key, wanted in kinds.items()
        },
        "changes": _changes(entry),
        "stages": {label: _stage_json(entry, label) for label in entry.lineages},
        "baselines": {name: _metrics_json(entry.estimates(name)) for name in entry.material.baselines},
        "baseline_constants": entry.material.chosen.to_json(),
        "differences": [
            {
                "after": step.after,
                "before": step.before,
                "metrics": {name: list(found) for name, found in step.differences.items()},
            }
            for step in entry.steps
        ],
        "paper": {} if reference is None else {_key(row.name, row.group): dict(row.metrics) for row in reference.rows},
        "doubtful": [] if reference is None else [[row.name, metric] for row, metric in reference.doubtful],
        "compared": entry.compared,
        "reading": entry.reading,
        "discrepancy": [gap.to_json() for gap in entry.gaps],
        "settings": _settings_json(entry.beside[0]) if entry.beside else [],
        "counterparts": [
            {
                "stage": beside.stage,
                "row": beside.theirs,
                "discrepancy": [gap.to_json() for gap in beside.gaps],
                "settings": _settings_json(beside),
            }
            for beside in entry.beside[1:]
        ],
        "levels": {label: analysis.to_json() for label, analysis in entry.levels.items()},
        "observations": [each.to_json() for each in said.of_entry(entry)],
    }


def _settings_json(beside: Beside) -> list[dict[str, Any]]:
    return [
        {"name": line.name, "paper": line.theirs, "ours": line.ours, "differs": line.differs} for line in beside.lines
    ]


def _key(name: str, group: str) -> str:
    return name if group == "paper" else f"{name} ({group})"


def training_json(training: Training) -> dict[str, Any]:
    """One training: in words and as its manifest and record say it."""
    return {
        "stage": training.stage,
        "parameters": dict(parameters(training)),
        "outcome": dict(outcome(training)),
        "settings": dict(training.settings),
        "counts": dict(training.counts),
        "seed": training.seed,
        "progress": None if training.progress is None else list(training.progress),
        "record": training.record,
    }


def _changes(entry: Entry) -> list[dict[str, Any]]:
    """Trainings of one kind, each with what changed from the one before."""
    found = []
    for place, training in enumerate(entry.trainings):
        same = [other for other in entry.trainings[:place] if other.stage == training.stage]
        changed = changes(training, same[-1]) if same else None
        if changed is not None:
            pairs = {name: list(values) for name, values in changed.items()}
            found.append({"training": training.name, "from": same[-1].name, "changed": pairs})
    return found


def _stage_json(entry: Entry, label: str) -> dict[str, Any] | None:
    """The metrics of a stage in the main reading, their intervals, and the item-level ones; None while pending."""
    if label not in entry.finished:
        return None
    given = entry.material.recommended[label].system.given
    found = {"reading": entry.level, "rows": entry.material.evaluations[label].rows, "given": list(given)}
    found |= _metrics_json(entry.estimates(label))
    if entry.level == "sid":
        found["item"] = _metrics_json(entry.estimates(label, "item"))
    return found


def _metrics_json(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    found: dict[str, Any] = {name: each.mean for name, each in estimates.items()}
    found["intervals"] = {name: [each.low, each.high] for name, each in estimates.items()}
    if any(each.sd is not None for each in estimates.values()):
        found["sd"] = {name: each.sd for name, each in estimates.items()}
    return found
