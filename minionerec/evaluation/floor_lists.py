"""The floors' lists beside an evaluation's own, so that a report need not make them again: `floors.parquet`.

A line is a row of the split, a column a floor: the items of its list. Users, targets and SIDs are those of the
predictions, and a floor's scores say the place alone.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.parquet import read_parquet
from minionerec.metrics.predictions import Predictions
from minionerec.rankers.candidates import Groups
from minionerec.rankers.floors import FOLLOWED, LAST_ITEM, POPULARITY, by_place
from minionerec.rankers.lists import Rows, as_predictions

FILE = "floors.parquet"
_NAMES = (POPULARITY, LAST_ITEM, FOLLOWED)


def write_floor_lists(place: Path, lists: Mapping[str, Predictions]) -> None:
    """Write the lists of all floors.

    Args:
        place: Folder of the predictions.
        lists: Floor to its lists for the rows of the split.
    """
    columns = {name: pa.array(found.items, pa.list_(pa.int32())) for name, found in lists.items()}
    pq.write_table(pa.table(columns), place / FILE, compression="zstd")


def read_floor_lists(place: Path, rows: Rows, width: int, table: Groups | None) -> dict[str, Predictions]:
    """The floors' lists of an evaluation, cut to their first candidates.

    Args:
        place: Folder of the predictions, which hold at least as many candidates.
        rows: The rows of the split that was evaluated.
        width: Candidates of each list.
        table: SIDs that the evaluation was made with; without them every item is a candidate.

    Returns:
        Floor to its lists: those that it gives when it is asked for `width` candidates.

    Raises:
        ArtefactError: If the file cannot be read, or has columns or items that it should not have.
    """
    kinds = dict.fromkeys(_NAMES, "lists")
    span = dict.fromkeys(_NAMES, (0, rows.n_items - 1))
    frame = read_parquet(place / FILE, kinds, within=span, only=True)
    numbers = np.arange(rows.n_items) if table is None else table.sid_numbers
    return {
        name: as_predictions(by_place([_first(items, numbers, width) for items in frame[name]]), rows, table)
        for name in _NAMES
    }


def _first(items: np.ndarray, numbers: np.ndarray, width: int) -> list[int]:
    """The items of a list before the one that begins another candidate than the first `width`."""
    chosen, known = list[int](), set[int]()
    for item, number in zip(items.tolist(), numbers[items].tolist(), strict=True):
        if number not in known and len(known) == width:
            break
        known.add(number)
        chosen.append(item)
    return chosen
