"""The baselines' lists of an evaluation, stored so that a report need not recompute them.

`baselines.parquet`: a row per example, a column per baseline with the items of its list. Users, targets and
SIDs are those of the predictions, and a baseline's scores only encode the rank. `baselines.json`: the constants of the
baselines, and the validation metric of each (`minionerec.recommend.rankers.baselines.Chosen`).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.artefacts import read_json, write_json
from minionerec.core.parquet import read_parquet
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import Predictions
from minionerec.recommend.rankers.baselines import Chosen, by_rank
from minionerec.recommend.rankers.candidates import CandidateGroups, first_candidates

FILE = "baselines.parquet"
CONSTANTS_FILE = "baselines.json"


def write_baseline_lists(folder: Path, lists: Mapping[str, Predictions], chosen: Chosen) -> None:
    """Write the lists of all baselines, and their constants.

    Args:
        folder: Folder of the predictions.
        lists: Baseline to its lists for the examples of the split.
        chosen: Their constants.
    """
    columns = {name: pa.array(found.items, pa.list_(pa.int32())) for name, found in lists.items()}
    pq.write_table(pa.table(columns), folder / FILE, compression="zstd")
    write_json(folder / CONSTANTS_FILE, chosen.to_json())


def read_chosen(folder: Path) -> Chosen:
    """The constants of the baselines of an evaluation.

    Raises:
        ArtefactError: If the file is missing or invalid.
    """
    return Chosen.from_json(read_json(folder / CONSTANTS_FILE), str(folder / CONSTANTS_FILE))


def read_baseline_lists(
    folder: Path, rows: SplitExamples, n_items: int, list_length: int, table: CandidateGroups | None
) -> tuple[dict[str, Predictions], Chosen]:
    """The baselines' lists of an evaluation, truncated to the list length, and their constants.

    Args:
        folder: Folder of the predictions, with at least as many candidates.
        rows: The examples of the evaluated split.
        n_items: Number of items, N.
        list_length: List length in candidates.
        table: SIDs of the evaluation; without them every item is a candidate.

    Returns:
        Baseline to its lists, equal to its lists of `list_length` candidates; and the constants.

    Raises:
        ArtefactError: If the file cannot be read, or has invalid columns or items.
    """
    chosen = read_chosen(folder)
    names = chosen.names
    kinds = dict.fromkeys(names, "lists")
    span = dict.fromkeys(names, (0, n_items - 1))
    frame = read_parquet(folder / FILE, kinds, within=span, only=True)
    numbers = np.arange(n_items) if table is None else table.sid_numbers
    lists, sids = dict[str, Predictions](), None if table is None else table.sids
    for name in names:
        ranking = by_rank([first_candidates(items.tolist(), numbers, list_length) for items in frame[name]])
        lists[name] = Predictions.of(rows, ranking.items, ranking.scores, sids)
    return lists, chosen
