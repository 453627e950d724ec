"""The stage that turns a source into a corpus artefact."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minionerec.core.errors import ConfigError

if TYPE_CHECKING:
    from minionerec.data.corpus import Corpus

SOURCES = ("demo", "published", "tables")


@dataclass
class PrepareConfig:
    """Settings of `run_prepare`; paths are relative to the current directory."""

    source: str = field(
        default="demo",
        metadata={
            "help": "where rows come from: 'demo' (data/demo), 'published' (the MiniOneRec layout; needs category) or "
            "'tables' (any two tables; needs items and interactions)"
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
    items: str | None = field(default=None, metadata={"help": "tables: csv, tsv or parquet with one row an item"})
    interactions: str | None = field(
        default=None, metadata={"help": "tables: csv, tsv or parquet with one row an interaction, in any order"}
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
        for name, source in (
            ("category", "published"),
            ("root", "published"),
            ("items", "tables"),
            ("interactions", "tables"),
        ):
            value = getattr(self, name)
            if value is not None and self.source != source:
                raise ConfigError(
                    f"{name} is {value!r}, but source is {self.source!r}, which does not read it. "
                    f"Set source to {source!r} or leave {name} out."
                )
            if not value and self.source == source and name != "root":
                raise ConfigError(f"source is {source!r}, but {name} is {value!r}. Give --{name}.")
        if self.source == "published" and (self.split != "global_time" or self.max_history != MAX_HISTORY):
            raise ConfigError(
                f"split is {self.split!r} and max_history {self.max_history}, but source 'published' comes split by "
                f"global time with histories of {MAX_HISTORY}. Leave both out, or take source 'tables'."
            )


@dataclass(frozen=True)
class PrepareResult:
    """What `run_prepare` made.

    Attributes:
        output: Directory of the corpus artefact.
        counts: The corpus's counts, see `read_published` and `read_tables`.
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
    from minionerec.core.artefacts import is_current, read_manifest
    from minionerec.core.log import get_logger

    log = get_logger(__name__)
    output = Path(config.output)
    inputs = _inputs(config)
    if is_current(output, "corpus", config, inputs):
        log.info("%s is up to date.", output)
        return PrepareResult(output, read_manifest(output, "corpus")["counts"], up_to_date=True)
    corpus = _read(config, inputs)
    corpus.save(output, config=config, inputs=inputs)
    counts = read_manifest(output, "corpus")["counts"]
    log.info("%s: %s, histories of at most %d items", output, corpus.split, corpus.max_history)
    for name, value in counts.items():
        if name not in ("split", "max_history"):
            log.info("  %-26s %s", name.replace("_", " "), f"{value:,}")
    if counts["broken_rows"]:
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

        files = {"items": demo_directory() / "items.csv", "interactions": demo_directory() / "interactions.csv"}
    else:
        files = {"items": Path(str(config.items)), "interactions": Path(str(config.interactions))}
    for name, path in files.items():
        if not path.is_file():
            raise DataError(f"{path}: no such file. Give --{name} the path of a csv, tsv or parquet table.")
    return files


def _read(config: PrepareConfig, inputs: dict[str, Path]) -> "Corpus":
    if config.source == "published":
        from minionerec.data.published import default_root, read_published

        return read_published(config.root or default_root(), str(config.category))
    from minionerec.data.tables import read_tables

    return read_tables(
        inputs["items"],
        inputs["interactions"],
        item_column=config.item_column,
        title_column=config.title_column,
        description_column=config.description_column,
        user_column=config.user_column,
        time_column=config.time_column,
        split=config.split,
        max_history=config.max_history,
    )
