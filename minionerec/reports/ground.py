"""What a report stands on, whichever protocol split the data."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape

import pandas as pd

from minionerec.core.paths import find_path
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import PROTOCOLS, ROWS, Protocol, read_split
from minionerec.data.sequences import Split
from minionerec.data.stored import StoredCorpus, read_corpus
from minionerec.recommend.rankers.lists import RankedSplit
from minionerec.reports.config import ReportConfig

_TITLE_LENGTH = 110


@dataclass(frozen=True)
class Ground:
    """What a report stands on: the rows that all were measured on, the items, and what baselines are counted from.

    Attributes:
        rows: The rows of the split.
        title: The rule of the split, e.g. "global time 8:1:1".
        protocol: How the rows were split and are measured.
        items: Columns `item_id`, `title`.
        sizes: Number of rows of each split.
        max_history: Most items of a history that a model reads.
        data: Where popularity and transitions are counted.
    """

    rows: RankedSplit
    title: str
    protocol: Protocol
    items: pd.DataFrame
    sizes: Mapping[str, int]
    max_history: int
    data: Corpus | StoredCorpus | Split

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


def read_ground(config: ReportConfig) -> Ground:
    """The data that a report's settings name.

    Raises:
        ArtefactError: If the corpus is missing.
        DataError: If a file is malformed or too small, or the split holds no row.
    """
    protocol, data = PROTOCOLS[config.protocol], read_data(config.corpus, config.protocol, config.items)
    if isinstance(data, Split):
        title, items, max_history = data.title, data.catalogue, protocol.max_len
    else:
        title, items, max_history = data.split, data.items, data.max_history
    if isinstance(data, StoredCorpus):
        sizes = dict(data.sizes)
    else:
        sizes = {"train": len(data.train), "valid": len(data.valid), "test": len(data.test)}
    return Ground(RankedSplit.of(data, config.split), title, protocol, items, sizes, max_history, data)


def read_data(corpus: str, protocol: str, items: str) -> Corpus | StoredCorpus | Split:
    """A corpus (a large one as it lies on disk), or what a protocol makes of a file of sequences.

    Raises:
        ArtefactError: If the corpus is missing.
        DataError: If a file is malformed or too small.
    """
    if protocol == ROWS:
        return read_corpus(find_path(corpus))
    return read_split(corpus, PROTOCOLS[protocol], items)
