"""The stage that turns a source into a corpus artefact."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ConfigError, shown
from minionerec.core.log import get_logger
from minionerec.core.machine import keep_freed_memory
from minionerec.core.plugins import Registry
from minionerec.data.audit import OrderAudit, audit_examples
from minionerec.data.build import build_corpus
from minionerec.data.engines.engine import started
from minionerec.data.names import AMAZON, SPLITS, TEXT_COLUMNS
from minionerec.data.published import (
    item_records,
    layout_files,
    published_numbers,
    read_index,
    read_published_files,
    with_times_by_order,
    write_layout,
)
from minionerec.data.roles import column_roles
from minionerec.data.source import BadRows, InteractionSource
from minionerec.data.sources.amazon import clean_title, published_title, read_amazon
from minionerec.data.sources.movielens import read_movielens
from minionerec.data.sources.recbole import read_recbole
from minionerec.data.sources.table_files import TableFiles
from minionerec.data.sources.tables import read_tables
from minionerec.data.sources.user_items import read_user_items
from minionerec.data.times_file import with_times_of_file
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.stage import Stage, Work
from minionerec.pipeline.stages import StageResult

log = get_logger(__name__)

SEED = 42
"""Seed of ties: shuffle."""


def run_prepare(config: PrepareConfig) -> StageResult:
    """Read, check and split a source, and write it as a corpus.

    Raises:
        DataError: If the source is missing, malformed, or its split leaks.
        ArtefactError: If the output cannot be written.
    """
    keep_freed_memory()
    stage = Stage(config)
    if config.times and "times" not in stage.inputs:
        log.warning("%s: no such file; the corpus has no times.", config.times)
    if _layout_stands(stage) and (manifest := stage.current()) is not None:
        return _result(stage.output, manifest["counts"], up_to_date=True)
    with stage.work() as work:
        audit = (_take_published if config.source == "published" else _build)(stage, work)
    counts = read_manifest(stage.output, "corpus")["counts"]
    _say(stage.output, counts, audit)
    return _result(stage.output, counts, up_to_date=False)


def _result(output: Path, counts: Mapping[str, Any], up_to_date: bool) -> StageResult:
    return StageResult(output, [f"corpus: {output}"], counts, up_to_date=up_to_date)


def _layout_stands(stage: Stage[PrepareConfig]) -> bool:
    """Whether every file of the requested published layout exists."""
    config = stage.config
    if config.layout is None:
        return True
    return all(
        path.is_file() for path in layout_files(config.layout, Path(config.layout).name, "layout_index" in stage.inputs)
    )


def _say(output: Path, counts: Mapping[str, Any], audit: OrderAudit) -> None:
    """Log a corpus's counts and warnings."""
    log.info("%s: %s, histories of at most %d items", output, counts["split"], counts["max_history"])
    for name, value in counts.items():
        if isinstance(value, int) and name != "max_history":
            log.info("  %-26s %s", name.replace("_", " "), f"{value:,}")
    for line in audit.lines():
        log.info("  %s", line)
    if counts.get("ties") == "keep" and (warning := audit.warning()):
        log.warning("%s", warning)
    if counts.get("items_without_title"):
        log.warning(
            "%d of %d items have no title, and %d no description.",
            counts["items_without_title"],
            counts["items"],
            counts["items_without_description"],
        )
    if counts.get("broken_rows"):
        log.warning(
            "%d examples do not continue the same user's previous one: examples are missing, so only some leaks can "
            "be found; %d examples look like leaks.",
            counts["broken_rows"],
            counts["possible_leaks"],
        )


def _take_published(stage: Stage[PrepareConfig], work: Work) -> OrderAudit:
    """Write the published data as they are; gives their audit."""
    config, inputs = stage.config, stage.inputs
    corpus = read_published_files(inputs)
    if config.times_by_order:
        corpus = with_times_by_order(corpus)
    elif "times" in inputs:
        corpus = with_times_of_file(corpus, inputs["times"])
    if config.layout is not None:
        content = read_json(inputs["items"])
        records = [content[item] for item in corpus.items["item_id"]]
        sids = read_index(inputs["layout_index"], corpus.n_items)
        write_layout(config.layout, Path(config.layout).name, corpus, published_numbers(corpus), records, sids)
    times = {split: rows.times for split, rows in corpus.splits().items() if rows.times is not None}
    audit = audit_examples(corpus, SPLITS, times or None)
    counts = {**corpus.all_counts(), "order": audit.counts(), **_of_columns(config, corpus.items)}
    with work.finish(seed=None, counts=counts) as path:
        corpus.write(path)
    return audit


def _build(stage: Stage[PrepareConfig], work: Work) -> OrderAudit:
    """Write the corpus of any other source, and the published layout if requested; gives its audit."""
    config, inputs = stage.config, stage.inputs
    bad = BadRows(config.max_bad_rows)
    folder = Path(config.engine_folder) if config.engine_folder else stage.output.parent
    with started(config.engine, config.engine_memory, folder) as engine:
        built = build_corpus(
            engine,
            read_source(config, inputs, bad),
            split=config.split,
            max_history=config.max_history,
            core=config.core,
            start=config.start,
            end=config.end,
            quirks=config.quirks,
            repeats=config.repeats,
            ties=config.ties,
            max_eval_examples=config.max_eval_examples,
            targets=config.targets,
            contexts=config.context_columns or (),
            seed=SEED,
        )
        seed = SEED if config.ties == "shuffle" else None
        counts = {**built.counts, **bad.counts(), **_of_columns(config, built.items)}
        with work.finish(seed=seed, counts=counts) as path:
            built.write(path)
            if config.layout is not None:
                sids = read_index(inputs["layout_index"], len(built.items)) if "layout_index" in inputs else None
                corpus, records = built.corpus(), item_records(built.items)
                write_layout(config.layout, Path(config.layout).name, corpus, built.user_numbers(), records, sids)
    return built.audit


def _of_columns(config: PrepareConfig, items: pd.DataFrame) -> dict[str, Any]:
    """The columns of an item's text where they are not the usual ones, and the roles of further columns.

    Raises:
        ConfigError: If the items lack a column that the settings name.
    """
    roles = column_roles(items, config.roles)
    for name in config.text_columns:
        if name not in items.columns:
            known = ", ".join(map(str, items.columns))
            raise ConfigError(f"text_columns names {shown(name)}, which the items do not have; their columns: {known}.")
    if roles:
        log.info("Columns of items: %s", ", ".join(f"{name} ({role})" for name, role in roles.items()))
    counts: dict[str, Any] = {"roles": roles} if roles else {}
    return counts if tuple(config.text_columns) == TEXT_COLUMNS else counts | {"text_columns": config.text_columns}


def read_source(config: PrepareConfig, inputs: Mapping[str, Path], bad: BadRows) -> InteractionSource:
    """The source that the settings name; any but the published layout, which is already split.

    Args:
        config: Settings.
        inputs: Its local files by name, as `Settings.inputs` gives them.
        bad: Counts rows that cannot be used.

    Raises:
        DataError: If a file is missing or malformed, as far as `bad` does not allow it.
    """
    return READERS[config.source](config, inputs, bad)


def interaction_files(config: PrepareConfig, inputs: Mapping[str, Path]) -> TableFiles:
    """The files of interactions: one, or those of a folder."""
    if "interactions" in inputs:
        return TableFiles.at(inputs["interactions"])
    files = [path for name, path in inputs.items() if name.startswith("interactions ")]
    return TableFiles.of_parts(str(config.interactions), files)


def _amazon(config: PrepareConfig, inputs: Mapping[str, Path], bad: BadRows) -> InteractionSource:
    return read_amazon(
        config.source,
        inputs["interactions"],
        inputs["items"],
        bad,
        core=config.core,
        max_title_words=config.max_title_words,
        title_of=published_title if "published_titles" in config.quirks else clean_title,
    )


def _columns(config: PrepareConfig) -> dict[str, Any]:
    names = {name: column or "" for name, column in config.columns.items()}
    options = {"time_unit": config.time_unit, "where": config.where, "events": bool(config.targets)}
    return {"columns": names, **options}


Reader = Callable[[PrepareConfig, Mapping[str, Path], BadRows], InteractionSource]
_BUILT_IN: dict[str, Reader] = {
    "demo": lambda config, inputs, bad: read_tables(inputs["interactions"], inputs["items"], bad),
    "tables": lambda config, inputs, bad: read_tables(
        interaction_files(config, inputs),
        inputs["items"],
        bad,
        contexts=config.context_columns,
        users=inputs.get("users"),
        **_columns(config),
    ),
    **dict.fromkeys(AMAZON, _amazon),
    "movielens": lambda config, inputs, bad: read_movielens(inputs["interactions"], inputs["items"], bad),
    "recbole": lambda config, inputs, bad: read_recbole(
        inputs["interactions"], inputs.get("items"), bad, **_columns(config)
    ),
    "user_items": lambda config, inputs, bad: read_user_items(inputs["interactions"], inputs.get("items"), bad),
}
READERS: Registry[Reader] = Registry("minionerec.readers", _BUILT_IN)
"""Source → its reader, of all but the published layout, which is already split."""
