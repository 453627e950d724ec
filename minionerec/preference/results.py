"""What one run found: a typed record, and the files that hold it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import read_json, to_plain

RESULTS, PREDICTIONS, FOLDS, SUMMARY, CONFIG = (
    "results.json",
    "predictions.csv",
    "folds.parquet",
    "summary.txt",
    "config.yaml",
)
_WHERE_PRESENT = ("last", "shots", "truth")


@dataclass(frozen=True)
class SplitRecord:
    """How the rows were dealt out.

    Attributes:
        unit: What stays in one fold.
        sha256: Hash of the assignment, to tell whether two runs share it.
        rows: Rows of train, valid and test.
        audit: What train tells about test, see `minionerec.preference.splits.audit_split`.
        warning: What to say of a split that leaks; None where it does not.
    """

    unit: str
    sha256: str
    rows: Mapping[str, int]
    audit: Mapping[str, float]
    warning: str | None


@dataclass(frozen=True)
class RunResults:
    """The results of one run, with the names of `results.json`.

    Attributes:
        model: Its model.
        seed: Its seed.
        settings: A network's settings; empty for others.
        split: How the rows were dealt out.
        counts: What was read, see `minionerec.preference.data.read_comparisons`.
        users: User ids.
        targets: Names of the questions.
        unseen_user_rows: Test rows of users without a row in train.
        best_epoch: Epoch of the weights that were kept; None without epochs.
        last_epoch: Last epoch trained; None without epochs.
        parameters: Numbers fitted.
        chosen: What was chosen on validation.
        validation: Per target, see `minionerec.preference.measures.by_target`.
        test: The same on test.
        overall: All measures on test, see `minionerec.preference.measures.summary`.
        user_table: Per user on test, see `minionerec.preference.measures.user_table`.
        agreement: How often two users chose alike: user (short ids), n and share, rows and columns as users.
        history: Values per epoch.
        versions: Of the packages that decide results.
        epochs_counted_from: Number of the first epoch.
        last: `overall` after the last epoch, of the published network alone.
        shots: Of the split by user: number of answers first given to accuracy, ce and n.
        truth: Of synthetic data: see `minionerec.preference.truth.score_against_truth`.
    """

    model: str
    seed: int
    settings: Mapping[str, Any]
    split: SplitRecord
    counts: Mapping[str, Any]
    users: Sequence[str]
    targets: Sequence[str]
    unseen_user_rows: int
    best_epoch: int | None
    last_epoch: int | None
    parameters: int
    chosen: Mapping[str, Any]
    validation: Mapping[str, Any]
    test: Mapping[str, Any]
    overall: Mapping[str, Any]
    user_table: Mapping[str, Any]
    agreement: Mapping[str, Any]
    history: Mapping[str, Any]
    versions: Mapping[str, str]
    epochs_counted_from: int = 0
    last: Mapping[str, Any] | None = None
    shots: Mapping[str, Any] | None = None
    truth: Mapping[str, Any] | None = None

    def save(self, place: Path) -> None:
        """Write `results.json` and, for people, `summary.txt`."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in _WHERE_PRESENT:
            if plain[name] is None:
                del plain[name]
        plain["split"] = to_plain(self.split)
        (place / RESULTS).write_text(json.dumps(plain, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        (place / SUMMARY).write_text(self._summary(), encoding="utf-8")

    @classmethod
    def load(cls, place: Path) -> "RunResults":
        """Those of a run's directory.

        Raises:
            ArtefactError: If there are none.
        """
        plain = read_json(place / RESULTS)
        return cls(**{**plain, "split": SplitRecord(**plain["split"])})

    def _summary(self) -> str:
        lines = [
            f"Model: {self.model}",
            f"Task: pairwise comparison, {', '.join(self.targets)}",
            f"Split: {self.split.unit}",
            f"Seed: {self.seed}",
        ]
        if self.split.warning:
            lines.append(self.split.warning)
        if self.best_epoch is not None:
            lines.append(f"Best epoch: {self.best_epoch} of 0 to {self.last_epoch}")
        for name, table in (("Validation", self.validation), ("Test", self.test)):
            accuracy, ce = (np.mean([cell[key] for cell in table.values()]) for key in ("accuracy", "ce_loss"))
            lines.append(f"{name}: mean over targets of accuracy {accuracy:.4f}, CE {ce:.4f} nats")
        return "\n".join(lines) + "\n"
