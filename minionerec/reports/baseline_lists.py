"""The baselines' lists that an evaluation of the same rows has made already."""

from pathlib import Path

from minionerec.core.artefacts import fingerprint, read_manifest
from minionerec.core.places import find_path
from minionerec.data.protocols import ROWS
from minionerec.evaluation.baseline_lists import CONSTANTS_FILE, FILE, read_baseline_lists
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranked import KIND, runs_at
from minionerec.rankers.baselines import Chosen
from minionerec.reports.config import ReportConfig
from minionerec.reports.ground import Ground
from minionerec.sid.table import SidTable


def find_baseline_lists(
    config: ReportConfig, ground: Ground, table: SidTable | None, width: int
) -> tuple[dict[str, Predictions], Chosen] | None:
    """The baselines' lists and constants, of the first evaluation that has those which a report would make itself.

    These are lists of the same rows of a corpus with the same content, with the same SIDs, of as many candidates at
    least, with nothing left out.

    Args:
        config: The report's settings.
        ground: Its rows.
        table: Its SIDs; None where there are none.
        width: Candidates of each list.

    Returns:
        Baseline to its lists, and the constants; None where no evaluation has them.

    Raises:
        ArtefactError: If the file of an evaluation cannot be read.
    """
    if ground.protocol.name != ROWS or ground.protocol.seen == "mask":
        return None
    corpus = fingerprint(find_path(config.corpus))
    sids = None if table is None else table.fingerprint
    for path in config.predictions.values():
        for place in runs_at(find_path(path)):
            if _has_them(place, corpus, config.split, sids, width):
                return read_baseline_lists(place, ground.rows, width, table)
    return None


def _has_them(place: Path, corpus: str, split: str, sids: str | None, width: int) -> bool:
    """Whether an evaluation has the baselines' lists that are wanted."""
    manifest = read_manifest(place, KIND)
    counts = manifest["counts"]
    made = manifest["inputs"].get("corpus", {})
    return (
        {FILE, CONSTANTS_FILE} <= manifest["files"].keys()
        and made.get("sha256") == corpus
        and counts.get("split") == split
        and counts.get("sid_table") == sids
        and type(counts.get("beams")) is int
        and counts["beams"] >= width
    )
