"""The stage that turns a source into a corpus artefact."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minionerec.core.errors import ConfigError

if TYPE_CHECKING:
    from minionerec.data.source import BadRows, Source

OPTIONAL_ITEMS = ("user_items",)
FROM_FILES = ("tables", *OPTIONAL_ITEMS)
"""Sources that are read from the paths `interactions` and `items`; those of the second line do without `items`."""
SOURCES = ("demo", "published", *FROM_FILES)


@dataclass
class PrepareConfig:
    """Settings of `run_prepare`; paths are relative to the current directory, or begin with $MINIONEREC_DATA."""

    source: str = field(
        default="demo",
        metadata={
            "help": "where rows come from: 'demo' (data/demo), 'published' (the MiniOneRec layout; needs category), "
            "'tables' (any two tables) or 'user_items' (lines of 'user item item ...')"
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
            "help": "tables: csv, tsv or parquet with one row an interaction, in any order; user_items: text file with "
            "one line a user, items oldest first"
        },
    )
    items: str | None = field(
        default=None,
        metadata={
            "help": "tables: csv, tsv or parquet with one row an item; user_items: JSON of item id → title, may be "
            "left out"
        },
    )
    item_column: str = field(default="item_id", metadata={"help": "tables: column of item ids, in both tables"})
    title_column: str = field(default="title", metadata={"help": "tables: column of item titles"})
    description_column: str = field(
        default="description", metadata={"help": "tables: column of item descriptions; 'description' may be absent"}
    )
    user_column: str = field(default="user_id", metadata={"help": "tables: column of user ids"})
    time_column: str = field(
        default="timestamp", metadata={"help": "tables: column of times, all numbers or all ISO dates"}
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

    def __post_init__(self) -> None:
        """Check the settings against one another."""
        from minionerec.data.published import MAX_HISTORY
        from minionerec.data.splits import SPLIT_NAMES

        if self.source not in SOURCES:
            raise ConfigError(f"unknown source {self.source!r}; known sources: {', '.join(SOURCES)}.")
        if self.split not in SPLIT_NAMES:
            raise ConfigError(f"unknown split {self.split!r}; known splits: {', '.join(SPLIT_NAMES)}.")
        if self.max_history < 1:
            raise ConfigError(f"max_history is {self.max_history}; a history holds at least 1 item.")
        for name in ("core", "max_bad_rows"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0.")
        for name, sources, needed in (
            ("category", ("published",), ("published",)),
            ("root", ("published",), ()),
            ("interactions", FROM_FILES, FROM_FILES),
            ("items", FROM_FILES, tuple(source for source in FROM_FILES if source not in OPTIONAL_ITEMS)),
        ):
            value = getattr(self, name)
            if value is not None and self.source not in sources:
                raise ConfigError(
                    f"{name} is {value!r}, but source is {self.source!r}, which does not read it. "
                    f"Set source to {' or '.join(map(repr, sources))}, or leave {name} out."
                )
            if not value and self.source in needed:
                raise ConfigError(f"source is {self.source!r}, but {name} is {value!r}. Give --{name}.")
        if self.source == "published":
            if self.split != "global_time" or self.max_history != MAX_HISTORY:
                raise ConfigError(
                    f"split is {self.split!r} and max_history {self.max_history}, but source 'published' comes split "
                    f"by global time with histories of {MAX_HISTORY}. Leave both out, or take source 'tables'."
                )
            for name in ("core", "max_bad_rows"):
                if getattr(self, name):
                    raise ConfigError(
                        f"{name} is {getattr(self, name)}, but source 'published' comes filtered and split, and is "
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

    log = get_logger(__name__)
    output = Path(config.output)
    inputs = _inputs(config)
    if is_current(output, "corpus", config, inputs):
        log.info("%s is up to date.", output)
        return PrepareResult(output, read_manifest(output, "corpus")["counts"], up_to_date=True)
    require_writable(output)
    if config.source == "published":
        from minionerec.data.published import default_root, read_published

        read_published(config.root or default_root(), str(config.category)).save(output, config=config, inputs=inputs)
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
        from minionerec.data.published import default_root, published_files

        return published_files(config.root or default_root(), str(config.category))
    if config.source == "demo":
        from minionerec.data.demo import demo_directory

        files = {name: demo_directory() / f"{name}.csv" for name in ("items", "interactions")}
    else:
        given = {"items": config.items, "interactions": config.interactions}
        files = {name: _data_path(path) for name, path in given.items() if path}
    for name, path in files.items():
        if not path.is_file():
            raise DataError(
                f"{path}: no such file. Give --{name} its path; data/README.md says where to get the public sets."
            )
    return files


def _data_path(path: str) -> Path:
    """A path whose first part may be `$MINIONEREC_DATA` (the directory `data` where that is not set)."""
    variable = "$MINIONEREC_DATA"
    if Path(path).parts[:1] == (variable,):
        return Path(os.environ.get(variable[1:]) or "data", *Path(path).parts[1:])
    return Path(path)


def _build(config: PrepareConfig, inputs: dict[str, Path], output: Path) -> None:
    from minionerec.data.build import build_corpus
    from minionerec.data.source import BadRows

    bad = BadRows(config.max_bad_rows)
    built = build_corpus(
        _read(config, inputs, bad), split=config.split, max_history=config.max_history, core=config.core
    )
    replace(built, counts={**built.counts, **bad.counts()}).save(output, config=config, inputs=inputs)


def _read(config: PrepareConfig, inputs: dict[str, Path], bad: "BadRows") -> "Source":
    if config.source == "user_items":
        from minionerec.data.sources.user_items import read_user_items

        return read_user_items(inputs["interactions"], inputs.get("items"), bad)
    from minionerec.data.sources.tables import read_tables

    columns = (
        {}
        if config.source == "demo"
        else {
            name: getattr(config, name)
            for name in ("item_column", "title_column", "description_column", "user_column", "time_column")
        }
    )
    return read_tables(inputs["interactions"], inputs["items"], bad, **columns)
