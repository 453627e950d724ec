"""The stage `calc-level`: hit rates by level of the semantic ID; it prints and writes no files."""

import json
from collections.abc import Sequence
from pathlib import Path

from minionerec.core.artefacts import is_artefact, require_unseen, verify_files
from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.metrics.levels import level_analysis
from minionerec.metrics.predictions import Predictions, length_of_lists
from minionerec.metrics.published_json import read_published_json, require_predictions
from minionerec.metrics.ranking import DEFAULT_KS
from minionerec.metrics.tables import format_level_tables
from minionerec.pipeline.config.reports import LevelsConfig
from minionerec.pipeline.stages import StageResult

logger = get_logger(__name__)


def run_levels(config: LevelsConfig) -> StageResult:
    """Analyse a predictions artefact or a published JSON file; excluded examples are logged.

    Raises:
        ConfigError: If a K is larger than the lists.
        DataError: If the input is missing or malformed, or an entry of the JSON file has fewer predictions than the
            largest K.
        ArtefactError: If a file of the predictions was changed since it was written, or the held-out examples were
            used in training.
    """
    config = config.local()
    where = config.predictions
    path, published = Path(where), where.endswith(".json")
    require_unseen(path if path.is_dir() else path.parent)
    predictions = _read_json(where, config.ks) if published else _read_artefact(path, where)
    list_length = length_of_lists(predictions, None if published else path)
    analysis = level_analysis(predictions, config.ks, list_length=list_length, keep_duplicates=published, where=where)
    if analysis.excluded:
        logger.warning(
            "%s: %d of %d examples excluded: their target is not a semantic ID of %d levels.",
            *(where, analysis.excluded, len(predictions), analysis.levels),
        )
    if analysis.unparsable:
        logger.warning(
            "%s: %d of %d predictions are not semantic IDs of %d levels; they count as misses and keep their rank.",
            *(where, analysis.unparsable, analysis.looked_at, analysis.levels),
        )
    tables = json.dumps(analysis.to_json()) if config.json else format_level_tables(analysis)
    return StageResult(Path(), tables.splitlines(), metrics=analysis.to_json())


def _read_json(where: str, ks: Sequence[int] | None) -> Predictions:
    predictions = read_published_json(Path(where))
    longest = max(len(row) for row in predictions.sids)
    largest = max(ks) if ks else max((k for k in DEFAULT_KS if k <= longest), default=1)
    require_predictions(predictions.sids, largest, where)
    return predictions


def _read_artefact(path: Path, where: str) -> Predictions:
    if not path.exists():
        raise DataError(f"{where}: no such file or directory. Run minionerec eval-beam first, or give a FILE.json.")
    if is_artefact(path):
        verify_files(path)
    return Predictions.load(path)
