"""The stage that turns a source into a corpus artefact."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minionerec.core.errors import ConfigError

if TYPE_CHECKING:
    from minionerec.data.source import BadRows, Source

OPTIONAL_ITEMS = ("user_items", "recbole")
AMAZON = ("amazon2018", "amazon2023")
WITH_COLUMNS = ("tables", "recbole")
FROM_FILES = ("tables", *AMAZON, "movielens", *OPTIONAL_ITEMS)
"""Sources that are read from the paths `interactions` and `items`; those of `OPTIONAL_ITEMS` do without the latter."""
SOURCES = ("demo", "published", *FROM_FILES)
FILTERS = ("core", "max_bad_rows", "start", "end", "quirks")


@dataclass
class PrepareConfig:
    """Settings of `run_prepare`; paths are relative to the current directory, or begin with $MINIONEREC_DATA."""

    source: str = field(
        default="demo",
        metadata={
            "help": "where rows come from: 'demo' (data/demo), 'published' (the MiniOneRec layout; needs category), "
            "'tables' (any two tables), 'amazon2018' or 'amazon2023' (raw reviews and metadata), 'movielens', "
            "'recbole' (.inter and .item) or 'user_items' (lines of 'user item item ...')"
        },
    )
    output: str = field(default="runs/demo/corpus", metadata={"help": "directory to write the corpus to"})
    category: str | None = field(
        default=None, metadata={"help": "published: how the files' names begin, e.g. Industrial_and_Scientific"}
    )
    root: str | None = field(
        default=None,
        metadata={
            "help": "published: folder with train, valid, test, info and index; by default $MINIONEREC_DATA/Amazon"
        },
    )
    interactions: str | None = field(
        default=None,
        metadata={
            "help": "tables: csv, tsv or parquet with one row an interaction, in any order; amazon: the review file, "
            "plain or gzip; movielens: ratings.dat, ratings.csv or u.data; recbole: .inter; user_items: text file with "
            "one line a user, items oldest first"
        },
    )
    items: str | None = field(
        default=None,
        metadata={
            "help": "tables: csv, tsv or parquet with one row an item; amazon: the metadata file; movielens: "
            "movies.dat, movies.csv or u.item; recbole: .item; user_items: JSON of item id → title (both may be left "
            "out)"
        },
    )
    item_column: str = field(default="item_id", metadata={"help": "tables, recbole: column of item ids, in both"})
    title_column: str = field(default="title", metadata={"help": "tables, recbole: column of item titles"})
    description_column: str = field(
        default="description",
        metadata={"help": "tables, recbole: column of item descriptions; 'description' may be absent"},
    )
    user_column: str = field(default="user_id", metadata={"help": "tables, recbole: column of user ids"})
    time_column: str = field(
        default="timestamp", metadata={"help": "tables, recbole: column of times, all numbers or all ISO dates"}
    )
    max_title_words: int = field(
        default=0, metadata={"help": "amazon: items whose title has more words are left out; any number at 0"}
    )
    start: str | None = field(
        default=None,
        metadata={
            "help": "first moment of the time window: ISO month, date or time, in UTC; times that are numbers count as "
            "seconds since 1970 (amazon2023: milliseconds)"
        },
    )
    end: str | None = field(
        default=None, metadata={"help": "last moment of the window, included: a date alone is its midnight"}
    )
    core: int = field(
        default=0,
        metadata={"help": "fewest interactions of every user and every item (iterative k-core); at 0 all stay"},
    )
    split: str = field(
        default="global_time",
        metadata={
            "help": "'global_time' (oldest 80 percent of rows train, next 10 percent valid, newest 10 percent test) or "
            "'leave_last_out' (each user's last row test, the one before valid)"
        },
    )
    max_history: int = field(
        default=10, metadata={"help": "most items that a history holds; older ones are cut and such rows counted"}
    )
    max_bad_rows: int = field(
        default=0,
        metadata={"help": "rows that cannot be used and may be dropped (and counted) before it is an error"},
    )
    quirks: list[str] = field(
        default_factory=list,
        metadata={
            "help": "ways of the published data that this project takes only if asked: published_order, "
            "published_titles, widen_window (data/README.md says what they do)"
        },
    )
    layout: str | None = field(
        default=None, metadata={"help": "folder to write the published layout to as well (.inter, item.json)"}
    )
    layout_name: str = field(default="corpus", metadata={"help": "layout: how the files' names begin"})
    layout_index: str | None = field(
        default=None,
        metadata={
            "help": "layout: index.json (item number → SID tokens), which the csv and info files need; source "
            "'published' has its own"
        },
    )

    def __post_init__(self) -> None:
        """Check the settings against one another."""
        from minionerec.data.build import check_quirks
        from minionerec.data.published import MAX_HISTORY
        from minionerec.data.splits import SPLIT_NAMES

        if self.source not in SOURCES:
            raise ConfigError(f"unknown source {self.source!r}; known sources: {', '.join(SOURCES)}.")
        if self.split not in SPLIT_NAMES:
            raise ConfigError(f"unknown split {self.split!r}; known splits: {', '.join(SPLIT_NAMES)}.")
        if self.max_history < 1:
            raise ConfigError(f"max_history is {self.max_history}; a history holds at least 1 item.")
        for name in ("core", "max_bad_rows", "max_title_words"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0.")
        for name in ("start", "end"):  # YAML reads a bare date as one
            value = getattr(self, name)
            setattr(self, name, None if value is None else str(value))
        check_quirks(self.quirks, self.start)
        for name, sources, needed in (
            ("category", ("published",), ("published",)),
            ("root", ("published",), ()),
            ("interactions", FROM_FILES, FROM_FILES),
            ("items", FROM_FILES, tuple(source for source in FROM_FILES if source not in OPTIONAL_ITEMS)),
            ("max_title_words", AMAZON, ()),
        ):
            value = getattr(self, name)
            if value and self.source not in sources:
                raise ConfigError(
                    f"{name} is {value!r}, but source is {self.source!r}, which does not read it. "
                    f"Set source to {' or '.join(map(repr, sources))}, or leave {name} out."
                )
            if not value and self.source in needed:
                raise ConfigError(f"source is {self.source!r}, but {name} is {value!r}. Give --{name}.")
        if "published_titles" in self.quirks and self.source not in AMAZON:
            raise ConfigError(f"quirk 'published_titles' is for {' and '.join(AMAZON)}; source is {self.source!r}.")
        if self.layout_index is not None and self.layout is None:
            raise ConfigError(f"layout_index is {self.layout_index!r}, but layout is not given. Give both or none.")
        if self.source == "published":
            if self.split != "global_time" or self.max_history != MAX_HISTORY:
                raise ConfigError(
                    f"split is {self.split!r} and max_history {self.max_history}, but source 'published' comes split "
                    f"by global time with histories of {MAX_HISTORY}. Leave both out, or take source 'tables'."
                )
            for name in FILTERS:
                if getattr(self, name):
                    raise ConfigError(
                        f"{name} is {getattr(self, name)!r}, but source 'published' comes filtered and split, and is "
                        f"read whole or not at all. Leave {name} out."
                    )


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


def run_prepare(config: PrepareConfig) -> PrepareResult:
    """Read, check and split a source, and write it as a corpus.

    Raises:
        DataError: If the source is missing, malformed, or its split leaks.
        ArtefactError: If the output cannot be written.
    """
    from minionerec.core.artefacts import is_current, read_manifest, require_writable
    from minionerec.core.log import get_logger
    from minionerec.data.layout import layout_files

    log = get_logger(__name__)
    output = Path(config.output)
    inputs = _inputs(config)
    wanted = [] if config.layout is None else layout_files(config.layout, config.layout_name, "layout_index" in inputs)
    if is_current(output, "corpus", config, inputs) and all(path.is_file() for path in wanted):
        log.info("%s is up to date.", output)
        return PrepareResult(output, read_manifest(output, "corpus")["counts"], up_to_date=True)
    require_writable(output)
    if config.source == "published":
        _take_published(config, inputs, output)
    else:
        _build(config, inputs, output)
    manifest = read_manifest(output, "corpus")
    counts = manifest["counts"]
    log.info("%s: %s, histories of at most %d items", output, counts["split"], counts["max_history"])
    for name, value in counts.items():
        if name not in ("split", "max_history"):
            log.info("  %-26s %s", name.replace("_", " "), f"{value:,}")
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
    return PrepareResult(output, counts, up_to_date=False)


def _inputs(config: PrepareConfig) -> dict[str, Path]:
    """Every file that is read, all of them there."""
    from minionerec.core.errors import DataError

    if config.source == "published":
        from minionerec.data.published import default_root, published_files, published_index_path

        root, category = config.root or default_root(), str(config.category)
        index = config.layout_index or (published_index_path(root, category) if config.layout else None)
        return published_files(root, category) | ({"layout_index": data_path(index)} if index else {})
    if config.source == "demo":
        from minionerec.data.demo import demo_directory

        files = {name: demo_directory() / f"{name}.csv" for name in ("items", "interactions")}
    else:
        given = {name: getattr(config, name) for name in ("items", "interactions", "layout_index")}
        files = {name: data_path(path) for name, path in given.items() if path}
    for name, path in files.items():
        if not path.is_file():
            raise DataError(
                f"{path}: no such file. Give --{name} its path; data/README.md says where to get the public sets."
            )
    return files


def data_path(path: str | Path) -> Path:
    """A path whose first part may be `$MINIONEREC_DATA` (the directory `data` where that is not set)."""
    variable = "$MINIONEREC_DATA"
    if Path(path).parts[:1] == (variable,):
        return Path(os.environ.get(variable[1:]) or "data", *Path(path).parts[1:])
    return Path(path)


def _take_published(config: PrepareConfig, inputs: dict[str, Path], output: Path) -> None:
    from minionerec.core.artefacts import read_json
    from minionerec.data.layout import read_index, write_layout
    from minionerec.data.published import default_root, published_numbers, read_published

    corpus = read_published(config.root or default_root(), str(config.category))
    if config.layout is not None:
        content = read_json(inputs["items"])
        records = [content[item] for item in corpus.items["item_id"]]
        sids = read_index(inputs["layout_index"], corpus.n_items)
        write_layout(config.layout, config.layout_name, corpus, published_numbers(corpus), records, sids)
    corpus.save(output, config=config, inputs=inputs)


def _build(config: PrepareConfig, inputs: dict[str, Path], output: Path) -> None:
    from minionerec.data.build import build_corpus
    from minionerec.data.source import BadRows

    bad = BadRows(config.max_bad_rows)
    built = build_corpus(
        _read(config, inputs, bad),
        split=config.split,
        max_history=config.max_history,
        core=config.core,
        start=config.start,
        end=config.end,
        quirks=config.quirks,
    )
    if config.layout is not None:
        from minionerec.data.layout import item_records, read_index, write_layout

        numbers = {user: number for number, user in enumerate(built.user_ids.to_pylist())}
        sids = read_index(inputs["layout_index"], len(built.items)) if "layout_index" in inputs else None
        write_layout(config.layout, config.layout_name, built.corpus(), numbers, item_records(built.items), sids)
    replace(built, counts={**built.counts, **bad.counts()}).save(output, config=config, inputs=inputs)


def _read(config: PrepareConfig, inputs: dict[str, Path], bad: "BadRows") -> "Source":
    interactions, items = inputs["interactions"], inputs.get("items")
    if config.source in AMAZON:
        from minionerec.data.sources.amazon import clean_title, published_title, read_amazon

        return read_amazon(
            config.source,
            interactions,
            inputs["items"],
            bad,
            core=config.core,
            max_title_words=config.max_title_words,
            title_of=published_title if "published_titles" in config.quirks else clean_title,
        )
    if config.source == "user_items":
        from minionerec.data.sources.user_items import read_user_items

        return read_user_items(interactions, items, bad)
    if config.source == "movielens":
        from minionerec.data.sources.movielens import read_movielens

        return read_movielens(interactions, inputs["items"], bad)
    from minionerec.data.sources.recbole import read_recbole
    from minionerec.data.sources.tables import read_tables

    names = ("item_column", "title_column", "description_column", "user_column", "time_column")
    columns = {name: getattr(config, name) for name in names if config.source in WITH_COLUMNS}
    if config.source == "recbole":
        return read_recbole(interactions, items, bad, **columns)
    return read_tables(interactions, inputs["items"], bad, **columns)
