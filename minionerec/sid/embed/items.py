"""The items of a corpus alone, for stages that have no use for its rows."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pandas as pd

from minionerec.core.artefacts import open_artefact
from minionerec.core.errors import ArtefactError
from minionerec.core.parquet import read_parquet
from minionerec.data.corpus import ITEM_COLUMNS


class HasItems(Protocol):
    """Whatever knows the items of a corpus: the corpus, or `ItemTexts`."""

    @property
    def items(self) -> pd.DataFrame:
        """Columns `item_id`, `title`, `description`, row i = item index i."""


@dataclass(frozen=True)
class ItemTexts:
    """The items of a corpus, row i = item index i.

    Attributes:
        items: Column `item_id`; `title` and `description` where texts were asked for.
    """

    items: pd.DataFrame

    @classmethod
    def load(cls, path: str | os.PathLike[str], texts: bool = True) -> "ItemTexts":
        """Read the items of a corpus artefact.

        Args:
            path: The artefact.
            texts: Whether titles and descriptions are read, too.

        Raises:
            ArtefactError: If `path` is not a finished corpus, or a file of it was changed since it was written, or
                its items cannot be read.
        """
        said = open_artefact(path, "corpus")["counts"].get("items")
        columns = dict.fromkeys(ITEM_COLUMNS if texts else ITEM_COLUMNS[:1], "text")
        remedy = "Run the stage that makes the corpus again (minionerec prepare-data)."
        file = Path(path) / "items.parquet"
        items = read_parquet(file, columns, only=not texts, remedy=remedy)
        if len(items) != said:
            raise ArtefactError(f"{file}: has {len(items)} items, but the corpus counts {said}. {remedy}")
        return cls(items)
