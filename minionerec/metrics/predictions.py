"""`Predictions`: the common output of all recommenders and the only input of metrics and reports."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.artefacts import MANIFEST, is_artefact, open_artefact, read_manifest, write_artefact
from minionerec.core.errors import ArtefactError, DataError, shown
from minionerec.core.parquet import read_parquet
from minionerec.data.rows import SplitExamples

FILE = "predictions.parquet"
COLUMNS = ("row", "user", "target", "target_sid", "rank", "item", "sid", "score")
_KINDS = {name: {"score": "number"}.get(name, "whole") for name in COLUMNS} | dict.fromkeys(
    ("user", "target_sid", "sid"), "text"
)
_MAX_INDEX = 2**31 - 1
GIVEN = "given"
"""Key of a manifest's counts that lists the recommender's inputs besides the histories."""


@dataclass(frozen=True)
class Predictions:
    """Ranked lists for the examples of one split.

    Attributes:
        users: User of each of R examples.
        targets: int32 (R,), item index of the true next item; -1 if unknown (a list read from JSON).
        target_sids: SID of each target; "" if the recommender has no SIDs.
        items: R lists of item indices, best first; -1 for an entry that is no item of the catalogue.
        sids: R lists of SID strings, parallel to `items`. Items that share an SID are adjacent, in descending order of
            their popularity in training, then by id.
        scores: R lists of scores, parallel to `items`, higher is better.
        given: The recommender's inputs besides the histories, such as "gap"; None if not recorded.
    """

    users: Sequence[str]
    targets: np.ndarray
    target_sids: Sequence[str]
    items: Sequence[Sequence[int]]
    sids: Sequence[Sequence[str]]
    scores: Sequence[Sequence[float]]
    given: tuple[str, ...] | None = ()

    @classmethod
    def of(
        cls,
        examples: SplitExamples,
        items: Sequence[Sequence[int]],
        scores: Sequence[Sequence[float]],
        sid_of: Sequence[str] | None,
        given: tuple[str, ...] = (),
    ) -> "Predictions":
        """Create from ranked lists for R examples.

        Args:
            examples: The examples.
            items: R lists of item indices, best first; -1 for an entry that is no item.
            scores: R lists of scores, parallel to `items`.
            sid_of: SID of each item; None for a recommender without SIDs.
            given: Names of further inputs.
        """

        def sids(entries: Sequence[int]) -> list[str]:
            return ["" if sid_of is None or item < 0 else sid_of[item] for item in entries]

        users, targets = examples.users.tolist(), examples.targets
        return cls(users, targets, sids(targets.tolist()), items, list(map(sids, items)), scores, given)

    def __len__(self) -> int:
        """Number of examples, R, including those with an empty list."""
        return len(self.users)

    def to_frame(self) -> pd.DataFrame:
        """Data frame with a row per example and rank, from 1; an empty list is one row of rank 0 and item -1."""
        lengths = np.array([max(1, len(row)) for row in self.items], dtype=np.int64)
        repeat = np.repeat(np.arange(len(self)), lengths)
        empty = [len(row) == 0 for row in self.items]
        ranks = np.concatenate(
            [np.zeros(0, np.int64), *(np.arange(1, n + 1) * (not e) for n, e in zip(lengths, empty, strict=True))]
        )
        return pd.DataFrame(
            {
                "row": repeat.astype(np.int32),
                "user": np.asarray(self.users, dtype=object)[repeat],
                "target": np.asarray(self.targets, dtype=np.int32)[repeat],
                "target_sid": np.asarray(self.target_sids, dtype=object)[repeat],
                "rank": ranks.astype(np.int32),
                "item": np.array([i for row in self.items for i in (row if len(row) else [-1])], dtype=np.int32),
                "sid": np.array([s for row in self.sids for s in (row or [""])], dtype=object),
                "score": np.array(
                    [s for row in self.scores for s in (row if len(row) else [np.nan])], dtype=np.float32
                ),
            }
        )

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, where: str = "predictions") -> "Predictions":
        """The reverse of `to_frame`.

        Raises:
            DataError: If rows are not numbered 0, 1, 2...
        """
        frame = frame.sort_values(["row", "rank"], kind="stable")
        row = frame["row"].to_numpy()
        first = np.flatnonzero(np.diff(row, prepend=-1))
        if not np.array_equal(row[first], np.arange(len(first))):
            raise DataError(f"{where}: rows are not numbered 0 to {len(first) - 1}. Write the file again.")
        listed = frame["rank"].to_numpy() > 0

        def lists(name: str) -> list[list[Any]]:
            values = np.split(frame[name].to_numpy(), first[1:])
            return (
                [v[m].tolist() for v, m in zip(values, np.split(listed, first[1:]), strict=True)] if len(first) else []
            )

        heads = frame.iloc[first]
        return cls(
            users=heads["user"].tolist(),
            targets=heads["target"].to_numpy(np.int32),
            target_sids=heads["target_sid"].tolist(),
            items=lists("item"),
            sids=lists("sid"),
            scores=lists("score"),
        )

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        config: Any,
        inputs: Mapping[str, str | os.PathLike[str]],
        counts: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        """Write an artefact of kind "predictions" holding `predictions.parquet`."""
        all_counts = {**(counts or {}), "rows": len(self)} | ({} if self.given is None else {GIVEN: list(self.given)})
        with write_artefact(path, "predictions", config=config, inputs=inputs, counts=all_counts, seed=seed) as folder:
            self.to_frame().to_parquet(folder / FILE, index=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Predictions":
        """Read `predictions.parquet`, given the file or its directory.

        Raises:
            ArtefactError: If the directory is an artefact that was changed.
            DataError: If there is no such file, or it holds no predictions.
        """
        if is_artefact(path):
            open_artefact(path)
        file = Path(path) / FILE if Path(path).is_dir() else Path(path)
        remedy = "Run the stage that makes it again (minionerec eval-beam or train-sequential)."
        frame = read_parquet(
            file,
            _KINDS,
            within=dict.fromkeys(("row", "target", "rank", "item"), (-1, _MAX_INDEX)),
            error=DataError,
            remedy=remedy,
        )
        return replace(cls.from_frame(frame, str(file)), given=read_given(file.parent))


def length_of_lists(predictions: Predictions, path: str | os.PathLike[str] | None = None) -> int:
    """Number of requested candidates of lists.

    Args:
        predictions: The ranked lists.
        path: Directory of the lists, whose manifest has the number of beams; optional.

    Returns:
        The manifest's `beams`; without it, the length of the longest list; 0 without examples.
    """
    if path is not None and (Path(path) / MANIFEST).is_file():
        manifest = read_manifest(path)
        for values in (manifest["config"], manifest["counts"]):
            beams = values.get("beams") if isinstance(values, dict) else None
            if isinstance(beams, int):
                return beams
    return max((len(row) for row in predictions.items), default=0)


def read_given(folder: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """Inputs of a predictions artefact's recommender besides the histories, from the manifest.

    Returns:
        The inputs, possibly empty; None if the manifest is missing or does not record them.

    Raises:
        ArtefactError: If the manifest's entry is no list of names.
    """
    if not (Path(folder) / MANIFEST).is_file():
        return None
    names = read_manifest(folder)["counts"].get(GIVEN)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ArtefactError(
            f"{Path(folder) / MANIFEST}: {GIVEN} is {shown(names)}, expected a list of names. Make it again."
        )
    return tuple(names)


def labelled(name: str, given: Sequence[str]) -> str:
    """Display name of a recommender with its inputs besides the history.

    Example:
        >>> labelled("SASRec", ()), labelled("SASRec", ("gap", "hour"))
        ('SASRec', 'SASRec (given gap, hour)')
    """
    return f"{name} (given {', '.join(given)})" if given else name


def baselines_lack(given: Sequence[str]) -> str:
    """Sentence on what recommenders were given besides the history, and their baselines were not.

    Example:
        >>> baselines_lack(("gap", "hour"))
        'The baselines are given the histories alone, without gap, hour.'
    """
    return f"The baselines are given the histories alone, without {', '.join(given)}."
