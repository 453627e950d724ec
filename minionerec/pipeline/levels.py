"""The stage `calc-level`: hit rates by level of the semantic ID; it prints and writes no files."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minionerec.core.artefacts import is_artefact, read_manifest, require_unseen, verify_files
from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.data.slices import example_slices
from minionerec.metrics.levels import LevelAnalysis, level_analysis, levels_by_slice
from minionerec.metrics.predictions import Predictions, length_of_lists
from minionerec.metrics.published_json import read_published_json, require_predictions
from minionerec.metrics.ranking import DEFAULT_KS
from minionerec.metrics.results import Slice, list_slices
from minionerec.metrics.tables import format_level_slices, format_level_tables
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
    where = str(config.path if config.path is not None else config.predictions)
    path = Path(where)
    require_unseen(path if path.is_dir() else path.parent)
    predictions = _read_json(where, config.ks) if config.path is not None else _read_artefact(path, where)
    slices = None
    if config.slices:
        counts = read_manifest(path)["counts"] if path.is_dir() and is_artefact(path) else {}
        split = str(counts.get("split", config.split))
        slices = _slices(predictions, where, config.corpus, split)
    list_length = length_of_lists(predictions, None if config.path is not None else path)
    published = config.path is not None
    analysis = level_analysis(
        predictions, config.ks, levels=config.levels, list_length=list_length, keep_duplicates=published, where=where
    )
    parts = None
    if slices is not None:
        parts = levels_by_slice(predictions, slices, analysis, list_length, published)
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
    return StageResult(Path(), _lines(analysis, parts, config.json), metrics=analysis.to_json())


def _lines(
    analysis: LevelAnalysis, parts: Sequence[tuple[Slice, LevelAnalysis | None]] | None, as_json: bool
) -> list[str]:
    """The tables, or one JSON object of unrounded numbers.

    Args:
        analysis: The hit rates by level.
        parts: The same by slice, None for one with too few examples; None if not requested.
        as_json: Whether the result is the JSON object.
    """
    if as_json:
        slices = [each.to_json() | (found.to_json() if found else {}) for each, found in parts or ()]
        return [json.dumps(analysis.to_json() | ({} if parts is None else {"slices": slices}))]
    tables = format_level_tables(analysis)
    if parts is not None:
        ks = analysis.ks
        shown = sorted({ks[0], 10 if 10 in ks else ks[-1]})
        tables += f"\n\n{format_level_slices(parts, shown, analysis.levels)}"
    return tables.splitlines()


def _slices(predictions: Predictions, where: str, corpus_path: str, split: str) -> list[Slice]:
    """The slices of the examples, which must be those of the corpus.

    Raises:
        DataError: If they are not, or there is no such split.
    """
    corpus = Corpus.load(corpus_path)
    rows = corpus.rows(split)
    targets = np.asarray(predictions.targets)
    known = (targets >= 0).all()
    if len(predictions) != len(rows) or (known and not np.array_equal(targets, rows.targets)):
        raise DataError(
            f"{where}: its {len(predictions)} examples are not the {len(rows)} {split} examples of {corpus_path}. "
            "Give the corpus that they were made for, or --split."
        )
    sid_of: dict[int, str] = {}
    for row, (item, sid) in enumerate(zip(rows.targets.tolist(), predictions.target_sids, strict=True)):
        if sid_of.setdefault(item, sid) != sid:
            raise DataError(
                f"{where}: example {row} (from 0) of {split} of {corpus_path} has a target with SID {sid!r}, which "
                f"has {sid_of[item]!r} in an earlier example. The examples are in another order, or of another corpus."
            )
    return list_slices(example_slices(corpus, rows, split))


def _read_json(where: str, ks: Sequence[int] | None) -> Predictions:
    predictions = read_published_json(Path(where))
    longest = max(len(row) for row in predictions.sids)
    largest = max(ks) if ks else max((k for k in DEFAULT_KS if k <= longest), default=1)
    require_predictions(predictions.sids, largest, where)
    return predictions


def _read_artefact(path: Path, where: str) -> Predictions:
    if not path.exists():
        raise DataError(
            f"{where}: no such file or directory. Run scripts/eval_beam.py first, or give --path FILE.json."
        )
    if is_artefact(path):
        verify_files(path)
    return Predictions.load(path)
