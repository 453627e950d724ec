"""`Ranked`: the rank of each example's target, in lists or in full rankings: the input of every ranking metric."""

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
_MOST = 2**31 - 1


@dataclass(frozen=True)
class Ranked:
    """The ranks of one recommender's targets on the examples of one split.

    Attributes:
        users: The user of each of R examples.
        targets: int32 (R,), item index of each example's target.
        ranks: Level ("item", and "sid" where the recommender has SIDs) to int64 (R,): rank of the target from 1, 0
            where the list does not contain it.
        list_length: Candidates in the lists that the ranks were found in; None where the whole catalogue was ranked.
        given: The recommender's inputs beyond the histories, as of `Predictions`; may be empty.
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
        """The ranks of ranked lists.

        Args:
            predictions: The lists.
            path: The artefact they were read from, if any: its manifest has the number of beams.
            list_length: Requested candidates; if None, as recorded at `path`, or else those of the longest list.

        Raises:
            ArtefactError: If the recommender's inputs are not known.
        """
        ranks = {"item": item_ranks(predictions)}
        if any(predictions.target_sids):
            ranks["sid"] = sid_ranks(predictions)
        list_length = length_of_lists(predictions, path) if list_length is None else list_length
        return cls(predictions.users, predictions.targets, ranks, list_length, _known(predictions.given, path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], split: str) -> "Ranked":
        """The ranks of a split that a predictions artefact holds; where it holds lists alone, those of the lists.

        Raises:
            ArtefactError: If it is no such artefact, was changed since it was written, is about other examples, or
                does not record its recommender's inputs.
        """
        path = Path(path)
        counts = open_artefact(path, KIND)["counts"]
        if (path / FILE).is_file():
            within = {"target": (-1, _MOST), **dict.fromkeys(_OPTIONAL, (0, _MOST))}
            table = read_parquet(path / FILE, _COLUMNS, optional=_OPTIONAL, within=within)
            rows = table[table["split"] == split]
            if len(rows):
                list_length = int(rows["width"].iloc[0]) if "width" in rows else 0
                return cls(
                    rows["user"].tolist(),
                    rows["target"].to_numpy(np.int32),
                    {level: rows[f"{level}_rank"].to_numpy(np.int64) for level in LEVELS if f"{level}_rank" in rows},
                    list_length or None,
                    _known(read_given(path), path),
                )
        own = str(counts.get("split", split))
        if own != split:
            raise ArtefactError(f"{path}: is about the {own} examples, not the {split} examples. Predict for {split}.")
        return cls.from_predictions(Predictions.load(path), path)


def _known(given: tuple[str, ...] | None, path: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """The inputs of a recommender, which must be known for a comparison."""
    if given is None:
        raise ArtefactError(
            f"{path or 'predictions'}: does not record the inputs of its recommender beyond the histories. Make it "
            "again (Predictions.save writes it)."
        )
    return given


def write_ranks(folder: str | os.PathLike[str], splits: Mapping[str, Ranked]) -> None:
    """Write `ranks.parquet` into the folder of a predictions artefact: the ranks of the examples of several splits.

    Columns: split, user, target, item_rank, sid_rank where there are SIDs, and width, the length of the lists, where
    the ranks are those within lists, not within the whole catalogue.
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


def splits_of(path: str | os.PathLike[str]) -> list[str]:
    """The splits of a predictions artefact, or a run of several seeds; that of the lists comes first."""
    folder = runs_at(path)[0]
    found = [str(read_manifest(folder, KIND)["counts"].get("split", "test"))]
    if (folder / FILE).is_file():
        found += read_parquet(folder / FILE, {"split": "text"}, only=True)["split"].unique().tolist()
    return list(dict.fromkeys(found))


def _seeds_at(path: Path) -> list[Path]:
    return [folder for folder in seed_folders(path, KIND).values() if is_artefact(folder)]


def has_runs(path: str | os.PathLike[str]) -> bool:
    """Whether `runs_at` finds predictions."""
    path = Path(path)
    return is_artefact(path) or is_artefact(path / KIND) or bool(_seeds_at(path))


def runs_at(path: str | os.PathLike[str]) -> list[Path]:
    """The predictions artefacts of a recommender: one for each seed (`seed-N`), that of a training, or the path itself.

    Raises:
        ArtefactError: If there is none, or the examples held out were trained on.
    """
    path = Path(path)
    folders = _seeds_at(path) or [path / KIND if is_artefact(path / KIND) else path]
    read_manifest(folders[0], KIND)
    for folder in folders:
        require_unseen(folder)
    return folders
