"""The stage that says level by level where decoding goes wrong; it prints, and writes nothing."""

import json
from dataclasses import dataclass
from pathlib import Path

from minionerec.core.artefacts import is_artefact, verify_files
from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.core.places import find_path
from minionerec.core.refit import require_held_out
from minionerec.metrics.levels import LevelAnalysis, level_analysis
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.published_json import read_published_json, require_predictions
from minionerec.metrics.ranking import DEFAULT_KS, list_width
from minionerec.metrics.tables import format_level_tables
from minionerec.reports.config import LevelsConfig

logger = get_logger(__name__)


@dataclass(frozen=True)
class LevelsResult:
    """What was found.

    Attributes:
        analysis: The hit rates by level.
        as_json: Whether `lines` are one JSON object of unrounded numbers, not tables.
    """

    analysis: LevelAnalysis
    as_json: bool = False

    def lines(self) -> list[str]:
        """The tables, or the JSON object."""
        if self.as_json:
            return [json.dumps(self.analysis.to_json())]
        return format_level_tables(self.analysis).splitlines()


def run_levels(config: LevelsConfig) -> LevelsResult:
    """Analyse a predictions artefact or a published JSON file; what was left out is logged.

    Raises:
        ConfigError: If a K is larger than the lists.
        DataError: If the input is missing or malformed, or an entry of the JSON file has fewer predictions than the
            largest K.
        ArtefactError: If a file of the predictions was changed since it was written, or the rows held out were trained
            on.
    """
    where = str(config.path if config.path is not None else config.predictions)
    place = find_path(where)
    require_held_out(place if place.is_dir() else place.parent)
    predictions = _read_json(place, config) if config.path is not None else _read_artefact(place, where)
    analysis = level_analysis(
        predictions,
        config.ks,
        levels=config.levels,
        width=list_width(predictions, None if config.path is not None else place),
        keep_duplicates=config.path is not None,
        where=where,
    )
    if analysis.excluded:
        logger.warning(
            "%s: %d of %d rows left out: their target is not a semantic ID of %d levels.",
            *(where, analysis.excluded, len(predictions), analysis.levels),
        )
    if analysis.unparsable:
        logger.warning(
            "%s: %d of %d predictions are no semantic ID of %d levels; they count as misses and keep their rank.",
            *(where, analysis.unparsable, analysis.looked_at, analysis.levels),
        )
    return LevelsResult(analysis, config.json)


def _read_json(place: Path, config: LevelsConfig) -> Predictions:
    predictions = read_published_json(place)
    longest = max(len(row) for row in predictions.sids)
    largest = max(config.ks) if config.ks else max((k for k in DEFAULT_KS if k <= longest), default=1)
    require_predictions(predictions.sids, largest, str(config.path))
    return predictions


def _read_artefact(place: Path, where: str) -> Predictions:
    if not place.exists():
        raise DataError(
            f"{where}: no such file or directory. Run scripts/eval_beam.py first, or give --path FILE.json."
        )
    if is_artefact(place):
        verify_files(place)
    return Predictions.load(place)
