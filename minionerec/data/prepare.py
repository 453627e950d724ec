"""The stage that turns a source into a corpus artefact."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.log import get_logger
from minionerec.core.stage import Stage
from minionerec.data.audit import OrderAudit, audit_rows
from minionerec.data.build import BuiltCorpus, build_corpus
from minionerec.data.config import PrepareConfig
from minionerec.data.corpus import Corpus
from minionerec.data.engines.build import EngineCorpus, build_with
from minionerec.data.engines.choose import started
from minionerec.data.engines.engine import Engine
from minionerec.data.engines.handing import hand_over_source
from minionerec.data.engines.reading import read_tables_with
from minionerec.data.layout import item_records, layout_files, read_index, write_layout
from minionerec.data.names import AMAZON, SPLITS
from minionerec.data.published import published_numbers, read_published_files, with_times_by_order
from minionerec.data.source import BadRows, Source
from minionerec.data.sources.amazon import clean_title, published_title, read_amazon
from minionerec.data.sources.movielens import read_movielens
from minionerec.data.sources.recbole import read_recbole
from minionerec.data.sources.table_files import TableFiles
from minionerec.data.sources.tables import read_tables
from minionerec.data.sources.user_items import read_user_items

log = get_logger(__name__)


@dataclass(frozen=True)
class PrepareResult:
    """What `run_prepare` made.

    Attributes:
        output: Directory of the corpus artefact.
        counts: The corpus's counts, see `read_published` and `build_corpus`.
        up_to_date: Whether the artefact stood already, made from the same settings and files.
    """

    output: Path
    counts: dict[str, Any]
    up_to_date: bool

    def lines(self) -> list[str]:
        """Where the corpus lies."""
        return [f"corpus: {self.output}"]


def run_prepare(config: PrepareConfig) -> PrepareResult:
    """Read, check and split a source, and write it as a corpus.

    Raises:
        DataError: If the source is missing, malformed, or its split leaks.
        ArtefactError: If the output cannot be written.
    """
    stage = Stage(config)
    if _layout_stands(stage, config) and (manifest := stage.current()) is not None:
        return PrepareResult(stage.output, manifest["counts"], up_to_date=True)
    corpus: Corpus | BuiltCorpus | EngineCorpus
    with stage.work() as work, ExitStack() as held:
        if config.source == "published":
            corpus, audit = _take_published(config, stage.inputs)
        elif config.engine != "memory":
            parent = Path(config.engine_folder) if config.engine_folder else stage.output.parent
            engine = held.enter_context(started(config.engine, config.engine_memory, parent))
            corpus, audit = _build_with(engine, config, stage.inputs)
        else:
            corpus, audit = _build(config, stage.inputs)
        with work.finish(seed=config.seed if config.ties == "shuffle" else None, counts=corpus.all_counts()) as place:
            corpus.write(place)
    counts = read_manifest(stage.output, "corpus")["counts"]
    _say(stage.output, counts, audit)
    return PrepareResult(stage.output, counts, up_to_date=False)


def _layout_stands(stage: Stage, config: PrepareConfig) -> bool:
    """Whether every file of the published layout that is asked for is there."""
    if config.layout is None:
        return True
    return all(
        path.is_file() for path in layout_files(config.layout, config.layout_name, "layout_index" in stage.inputs)
    )


def _say(output: Path, counts: Mapping[str, Any], audit: OrderAudit) -> None:
    """Log what a corpus holds, and warn of what may surprise."""
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
            "%d of %d items have no title; they can only be told apart by description.",
            counts["items_without_title"],
            counts["items"],
        )
    if counts.get("broken_rows"):
        log.warning(
            "%d rows do not continue the same user's row before: rows are missing, so leaks can only be found in part; "
            "%d rows look like leaks.",
            counts["broken_rows"],
            counts["possible_leaks"],
        )


def _take_published(config: PrepareConfig, inputs: Mapping[str, Path]) -> tuple[Corpus, OrderAudit]:
    """The published data as they are, and their audit; the layout is written anew where that is asked for."""
    corpus = read_published_files(inputs)
    if config.times_by_order:
        corpus = with_times_by_order(corpus)
    if config.layout is not None:
        content = read_json(inputs["items"])
        records = [content[item] for item in corpus.items["item_id"]]
        sids = read_index(inputs["layout_index"], corpus.n_items)
        write_layout(config.layout, config.layout_name, corpus, published_numbers(corpus), records, sids)
    times = {split: rows.times for split, rows in corpus.splits().items() if rows.times is not None}
    audit = audit_rows(corpus, SPLITS, times or None)
    return replace(corpus, counts={**corpus.counts, "order": audit.counts()}), audit


def _build(config: PrepareConfig, inputs: Mapping[str, Path]) -> tuple[BuiltCorpus, OrderAudit]:
    """Any other source, filtered and split, and its audit; the published layout is written where that is asked for."""
    bad = BadRows(config.max_bad_rows)
    built = build_corpus(read_source(config, inputs, bad), **_choices(config))
    if config.layout is not None:
        numbers = {user: number for number, user in enumerate(built.user_ids.to_pylist())}
        sids = read_index(inputs["layout_index"], len(built.items)) if "layout_index" in inputs else None
        write_layout(config.layout, config.layout_name, built.corpus(), numbers, item_records(built.items), sids)
    return replace(built, counts={**built.counts, **bad.counts()}), built.audit


def read_source(config: PrepareConfig, inputs: Mapping[str, Path], bad: BadRows) -> Source:
    """What the settings name, as its reader finds it; every source but the published layout, which comes split.

    Args:
        config: Settings.
        inputs: Its files by name, as `config.inputs()` gives them.
        bad: Counts rows that cannot be used.

    Raises:
        DataError: If a file is missing or malformed, as far as `bad` does not allow it.
    """
    return READERS[config.source](config, inputs, bad)


def _build_with(engine: Engine, config: PrepareConfig, inputs: Mapping[str, Path]) -> tuple[EngineCorpus, OrderAudit]:
    """The same by an engine; sources of other forms than tables are read into memory and handed over."""
    bad = BadRows(config.max_bad_rows)
    if config.source in ("demo", "tables"):
        columns: dict[str, Any] = _columns(config) if config.source == "tables" else {}
        raw = read_tables_with(engine, _visits(config, inputs), inputs["items"], bad, **columns)
    else:
        raw = hand_over_source(engine, read_source(config, inputs, bad))
    built = build_with(engine, raw, **_choices(config))
    return replace(built, counts={**built.counts, **bad.counts()}), built.audit


def _choices(config: PrepareConfig) -> dict[str, Any]:
    """What is asked of `build_corpus` and of `build_with`."""
    names = ("split", "max_history", "core", "start", "end", "quirks", "ties", "max_eval_rows", "seed")
    return {name: getattr(config, name) for name in names}


def _visits(config: PrepareConfig, inputs: Mapping[str, Path]) -> TableFiles:
    """The files of interactions: one, or those of a folder."""
    if "interactions" in inputs:
        return TableFiles.at(inputs["interactions"])
    files = [path for name, path in inputs.items() if name.startswith("interactions ")]
    return TableFiles.of_parts(str(config.interactions), files)


def _amazon(config: PrepareConfig, inputs: Mapping[str, Path], bad: BadRows) -> Source:
    return read_amazon(
        config.source,
        inputs["interactions"],
        inputs["items"],
        bad,
        core=config.core,
        max_title_words=config.max_title_words,
        title_of=published_title if "published_titles" in config.quirks else clean_title,
    )


def _columns(config: PrepareConfig) -> dict[str, str]:
    return {
        "item_column": config.item_column,
        "title_column": config.title_column,
        "description_column": config.description_column,
        "user_column": config.user_column,
        "time_column": config.time_column,
    }


READERS: dict[str, Callable[[PrepareConfig, Mapping[str, Path], BadRows], Source]] = {
    "demo": lambda config, inputs, bad: read_tables(inputs["interactions"], inputs["items"], bad),
    "tables": lambda config, inputs, bad: read_tables(
        _visits(config, inputs), inputs["items"], bad, **_columns(config)
    ),
    **dict.fromkeys(AMAZON, _amazon),
    "movielens": lambda config, inputs, bad: read_movielens(inputs["interactions"], inputs["items"], bad),
    "recbole": lambda config, inputs, bad: read_recbole(
        inputs["interactions"], inputs.get("items"), bad, **_columns(config)
    ),
    "user_items": lambda config, inputs, bad: read_user_items(inputs["interactions"], inputs.get("items"), bad),
}
"""Source → its reader, of all but the published layout, which comes split."""
