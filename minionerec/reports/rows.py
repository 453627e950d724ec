"""The rows that a report is about, whichever protocol made them, and the items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape

import numpy as np
import pandas as pd

from minionerec.core.places import find_path
from minionerec.data.corpus import SPLITS as SPLIT_NAMES
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import PROTOCOLS, ROWS, Protocol, read_split
from minionerec.data.sequences import Split
from minionerec.reports.config import ReportConfig

_TITLE_LENGTH = 110


@dataclass(frozen=True)
class Rows:
    """The rows of one split, and the items.

    Attributes:
        title: The rule of the split, e.g. "global time 8:1:1".
        protocol: How the rows were split and are measured.
        users: The user of each row; "" where a protocol does not name one.
        targets: int32 (R,), item index of each row's target.
        histories: For each row its item indices, oldest first.
        items: Columns `item_id`, `title`.
        sizes: Number of rows of each split.
        max_history: Most items of a history that a model reads.
        data: Where popularity and what followed are counted.
    """

    title: str
    protocol: Protocol
    users: Sequence[str]
    targets: np.ndarray
    histories: Sequence[np.ndarray]
    items: pd.DataFrame
    sizes: Mapping[str, int]
    max_history: int
    data: Corpus | Split

    def __len__(self) -> int:
        """Number of rows, R."""
        return len(self.targets)

    @property
    def n_items(self) -> int:
        """Number of items, N."""
        return len(self.items)

    def titles(self) -> list[str]:
        """Each item's title as pages show it; an item without one goes by its id."""
        ids, titles = self.items["item_id"].astype(str), self.items["title"].fillna("").astype(str)
        return [shorten(title) or f"(no title, {item})" for item, title in zip(ids, titles, strict=True)]


def shorten(title: str) -> str:
    """A title for display: on one line, shop entities such as "&deg;" read as characters, cut where it is long."""
    title = " ".join(unescape(title).split())
    return title if len(title) <= _TITLE_LENGTH else title[: _TITLE_LENGTH - 1].rstrip() + "…"


def read_rows(config: ReportConfig) -> Rows:
    """The rows that a report's settings name.

    Raises:
        ArtefactError: If the corpus is missing.
        DataError: If a file is malformed or too small, or the split holds no row.
    """
    protocol = PROTOCOLS[config.protocol]
    if protocol.name == ROWS:
        return _of_corpus(Corpus.load(find_path(config.corpus)), protocol, config.split)
    return _of_split(read_split(config.corpus, protocol, config.items), protocol, config.split)


def _of_corpus(corpus: Corpus, protocol: Protocol, name: str) -> Rows:
    rows = corpus.rows(name)
    return Rows(
        title=corpus.split,
        protocol=protocol,
        users=rows["user"].tolist(),
        targets=rows["target"].to_numpy(np.int32),
        histories=rows["history"].tolist(),
        items=corpus.items,
        sizes={split: len(getattr(corpus, split)) for split in SPLIT_NAMES},
        max_history=corpus.max_history,
        data=corpus,
    )


def _of_split(split: Split, protocol: Protocol, name: str) -> Rows:
    return Rows(
        title=split.title,
        protocol=protocol,
        users=split.users(name),
        targets=split.targets(name),
        histories=split.histories(name),
        items=split.catalogue,
        sizes={each: len(split.rows(each)) for each in SPLIT_NAMES},
        max_history=protocol.max_len,
        data=split,
    )
