"""`Ranked`: the rank of each example's target in lists or full rankings, the input of ranking metrics."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from minionerec.core.artefacts import is_artefact, open_artefact, read_manifest, require_unseen, seed_folders
from minionerec.core.errors import ArtefactError
from minionerec.core.parquet import read_parquet
from minionerec.metrics.predictions import Predictions, length_of_lists, read_given
from minionerec.metrics.ranking import item_ranks, sid_ranks

FILE = "ranks.parquet"
LEVELS = ("item", "sid")
KIND = "predictions"
_COLUMNS = {"split": "text", "user": "text", "target": "whole"}
_OPTIONAL = {**{f"{level}_rank": "whole" for level in LEVELS}, "width": "whole"}
_MAX_INDEX = 2**31 - 1


@dataclass(frozen=True)
class Ranked:
    """The ranks of one recommender's targets on the examples of one split.

    Attributes:
        users: User of each of R examples.
        targets: int32 (R,), item index of each example's target.
        ranks: Level ("item", and "sid" if the recommender has SIDs) → int64 (R,): rank of the target from 1; 0 if the
            list does not contain it.
        list_length: Requested length of the lists; None if the whole catalogue was ranked.
        given: The recommender's inputs besides the histories, as in `Predictions`.
    """

    users: Sequence[str]
    targets: np.ndarray
    ranks: Mapping[str, np.ndarray]
    list_length: int | None
    given: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of examples, R."""
        return len(self.users)

    @classmethod
    def from_predictions(
        cls, predictions: Predictions, path: str | os.PathLike[str] | None = None, list_length: int | None = None
    ) -> "Ranked":
        """Compute the ranks of targets in ranked lists.

        Args:
            predictions: The lists.
            path: Artefact of the lists, whose manifest has the number of beams; optional.
            list_length: Requested length of the lists; if None, as recorded at `path`, or the length of the longest.

        Raises:
            ArtefactError: If the recommender's inputs are not recorded.
        """
        ranks = {"item": item_ranks(predictions)}
        if any(predictions.target_sids):
            ranks["sid"] = sid_ranks(predictions)
        list_length = length_of_lists(predictions, path) if list_length is None else list_length
        return cls(predictions.users, predictions.targets, ranks, list_length, _known(predictions.given, path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], split: str) -> "Ranked":
        """Load the ranks of a split from a predictions artefact, or compute them from its lists.

        Raises:
            ArtefactError: If it is no such artefact, was changed, is of another split, or does not record its
                recommender's inputs.
        """
        path = Path(path)
        counts = open_artefact(path, KIND)["counts"]
        if (path / FILE).is_file():
            within = {"target": (-1, _MAX_INDEX), **dict.fromkeys(_OPTIONAL, (0, _MAX_INDEX))}
            table = read_parquet(path / FILE, _COLUMNS, optional=_OPTIONAL, within=within)
            ranked = table[table["split"] == split]
            if len(ranked):
                list_length = int(ranked["width"].iloc[0]) if "width" in ranked else 0
                return cls(
                    ranked["user"].tolist(),
                    ranked["target"].to_numpy(np.int32),
                    {
                        level: ranked[f"{level}_rank"].to_numpy(np.int64)
                        for level in LEVELS
                        if f"{level}_rank" in ranked
                    },
                    list_length or None,
                    _known(read_given(path), path),
                )
        recorded_split = str(counts.get("split", split))
        if recorded_split != split:
            raise ArtefactError(
                f"{path}: is about the {recorded_split} examples, not the {split} examples. Predict for {split}."
            )
        return cls.from_predictions(Predictions.load(path), path)


def _known(given: tuple[str, ...] | None, path: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Check that the inputs of a recommender are recorded, as comparisons require."""
    if given is None:
        raise ArtefactError(
            f"{path or 'predictions'}: does not record the inputs of its recommender beyond the histories. Make it "
            "again (Predictions.save writes it)."
        )
    return given


def write_ranks(folder: str | os.PathLike[str], splits: Mapping[str, Ranked]) -> None:
    """Write the ranks of several splits to `ranks.parquet` in the folder of a predictions artefact.

    Columns: split, user, target, item_rank; sid_rank for recommenders with SIDs; and width, the requested length of the
    lists, unless the whole catalogue was ranked.
    """
    tables = [
        pd.DataFrame(
            {
                "split": split,
                "user": np.asarray(ranked.users, dtype=object),
                "target": ranked.targets,
                **{f"{level}_rank": ranks for level, ranks in ranked.ranks.items()},
                **({} if ranked.list_length is None else {"width": np.int32(ranked.list_length)}),
            }
        )
        for split, ranked in splits.items()
    ]
    pd.concat(tables, ignore_index=True).to_parquet(Path(folder) / FILE, index=False)


def _seeds_at(path: Path) -> list[Path]:
    return [folder for folder in seed_folders(path, KIND).values() if is_artefact(folder)]


def has_runs(path: str | os.PathLike[str]) -> bool:
    """Whether `runs_at` finds predictions."""
    path = Path(path)
    return is_artefact(path) or is_artefact(path / KIND) or bool(_seeds_at(path))


def runs_at(path: str | os.PathLike[str]) -> list[Path]:
    """The predictions artefacts of a recommender: one for each seed (`seed-N`), that of a training, or the path itself.

    Raises:
        ArtefactError: If there is none, or the model was trained on the held-out examples.
    """
    path = Path(path)
    folders = _seeds_at(path) or [path / KIND if is_artefact(path / KIND) else path]
    read_manifest(folders[0], KIND)
    for folder in folders:
        require_unseen(folder)
    return folders
