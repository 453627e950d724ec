"""Settings of the stage that turns a source into a corpus."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from minionerec.core.errors import DataError, shown
from minionerec.core.paths import find_path
from minionerec.data.engines.engine import parse_size
from minionerec.data.files import check_file
from minionerec.data.filters import parse_conditions
from minionerec.data.names import (
    AMAZON,
    COLUMNS,
    ENGINES,
    FROM_FILES,
    OPTIONAL_ITEMS,
    PUBLISHED_HISTORY,
    QUIRKS,
    ROLES,
    SOURCES,
    SPLIT_NAMES,
    TEXT_COLUMNS,
    TIES,
    TIME_UNITS,
    WITH_COLUMNS,
)
from minionerec.pipeline.settings import StageConfig, setting

DEMO = {"interactions": "data/demo/interactions.csv", "items": "data/demo/items.csv"}
"""The files of the demo shop."""
FILTERS = ("core", "max_bad_rows", "start", "end", "quirks", "max_eval_examples")


@dataclass
class PrepareConfig(StageConfig):
    """Settings of `run_prepare`; paths are relative to the current directory, or begin with $MINIONEREC_DATA."""

    kind: ClassVar[str] = "corpus"

    source: str = setting(
        "tables",
        "where interactions come from: 'tables' (any two tables), 'demo' (data/demo), 'published' (the MiniOneRec "
        "layout; needs category), 'amazon2018' or 'amazon2023' (raw reviews and metadata), 'movielens', 'recbole' "
        "(.inter and .item) or 'user_items' (lines of 'user item item ...')",
        known=SOURCES,
    )
    category: str | None = setting(
        None, "published: prefix of the file names below $MINIONEREC_DATA/Amazon, e.g. Industrial_and_Scientific"
    )
    times: str | None = setting(
        None,
        "published: csv file of the times of examples: split, row (from 0), timestamp and previous_timestamp (of the "
        "newest item of the history), in seconds since 1970; ignored with a warning if there is no such file",
        input_kind="any",
    )
    times_by_order: bool = setting(
        False,
        "published: take examples as sorted by time, and adjacent examples of one user as of one timestamp; time "
        "differences stay unknown",
    )
    interactions: str | None = setting(
        None,
        "tables: csv, tsv, jsonl or parquet with one row an interaction, in any order, or a folder of such files "
        "with the same columns, read as one in the order of their names (those that begin with . or _ are left out), "
        "text also packed (.csv.gz); amazon: the review file, plain or gzip; movielens: ratings.dat, ratings.csv or "
        "u.data; recbole: .inter; user_items: text file with one line a user, items oldest first",
        input_kind="any",
        parts=True,
    )
    items: str | None = setting(
        None,
        "tables: csv, tsv, jsonl or parquet with one row an item; amazon: the metadata file; movielens: movies.dat, "
        "movies.csv or u.item; recbole: .item; user_items: JSON of item id → title (both may be left out)",
        input_kind="any",
    )
    users: str | None = setting(
        None,
        "tables: csv, tsv, jsonl or parquet with one row a user, whose columns, such as a country, may be request "
        "features as those of the interactions",
        input_kind="any",
    )
    columns: dict[str, str | None] = setting(
        {},
        "tables, recbole: names of columns where they are others than item=item_id (in both), title=title, "
        "description=description (which may be absent), user=user_id, time=timestamp (all numbers or all ISO dates; "
        "none where there is none and rows are in the order of time) and event=event (read where targets are given)",
        known=tuple(COLUMNS),
    )
    text_columns: list[str] = setting(
        list(TEXT_COLUMNS),
        "columns of the items that make an item's text, such as [title, brand, category, description]: semantic IDs "
        "and neighbours by text compare items by it",
    )
    roles: dict[str, str] = setting(
        {},
        "roles of further columns of the items where they are others than their texts show, such as year=category; "
        "models read columns of the role category, tags (categories between commas, semicolons or bars), number or "
        "time (ISO dates)",
    )
    targets: list[str] = setting(
        [],
        "tables, recbole: events that are predicted, such as [purchase]; interactions of other events are in histories "
        "and no targets; by default each interaction is a target, whatever its event",
    )
    context_columns: list[str] | None = setting(
        None,
        "tables: columns of the interactions, or of users, that are known when a list is requested, such as [device], "
        "kept as request features (context of trainings); by default all of 2 to 256 categories that the item does "
        "not determine; empty: none",
    )
    where: str = setting(
        "",
        "tables, recbole: condition on columns of the interactions, such as 'rating >= 4' or 'event != return'; rows "
        "that do not meet it are left out and counted",
    )
    time_unit: str | None = setting(
        None,
        "tables, recbole: unit since 1970 of times that are numbers: s, ms, us or ns; by default the one that the "
        "magnitude of all shows, and an error where it shows none",
        known=tuple(TIME_UNITS),
    )
    max_title_words: int = setting(0, "amazon: items whose title has more words are left out; 0 sets no limit", least=0)
    start: str | None = setting(
        None,
        "start of the time window: ISO month, date or time, in UTC",
    )
    end: str | None = setting(None, "end of the time window, inclusive: a date alone is its midnight")
    core: int = setting(0, "fewest interactions of every user and every item (iterative k-core); 0 keeps all", least=0)
    split: str = setting(
        "global_time",
        "'global_time' (oldest 80 percent of examples train, next 10 percent valid, newest 10 percent test) or "
        "'leave_last_out' (each user's last example test, the one before valid)",
        known=tuple(SPLIT_NAMES),
    )
    repeats: str = setting(
        "keep",
        "interactions with the user, item and timestamp of an earlier one: 'keep' or 'drop' (and count)",
        known=("keep", "drop"),
    )
    ties: str = setting(
        "keep",
        "order of a user's items with one timestamp: 'keep' (as in the file), 'shuffle' (random) "
        "or 'together' (one step: none is in the history of another, and no timestamp is split)",
        known=tuple(TIES),
    )
    max_eval_examples: int = setting(
        0,
        "maximum number of validation and of test examples, evenly spread; others are not used as targets; 0 keeps all",
        least=0,
    )
    max_history: int = setting(
        10, "maximum number of items in a history; older ones are truncated, and such examples counted", least=1
    )
    max_bad_rows: int = setting(
        0, "number of unusable rows that are dropped (and counted) before it is an error", least=0
    )
    quirks: list[str] = setting(
        [],
        "peculiarities of the published data to reproduce (see data/README.md)",
        known=tuple(QUIRKS),
    )
    engine: str = setting(
        "duckdb",
        "engine that builds the corpus: 'duckdb' (this process), or one of an installed package, such as 'spark' "
        "(extra spark: two local threads, or as spark-submit sets); the result is the same",
        known=ENGINES,
        affects_result=False,
    )
    engine_memory: str | None = setting(
        None,
        "memory limit of the engine, such as 4GB, in addition to this process, which holds the items; by default half "
        "of the machine's",
        affects_result=False,
    )
    engine_folder: str | None = setting(
        None,
        "folder for temporary files, some 150 bytes per interaction; on a cluster one that all its machines see; "
        "by default that of the output",
        affects_result=False,
        writes=True,
    )
    layout: str | None = setting(
        None,
        "folder to write the published layout to as well (.inter, item.json); its name is the prefix of the file names",
        writes=True,
    )
    layout_index: str | None = setting(
        None,
        "layout: index.json (item number → SID tokens), which the csv and info files need; source 'published' has its "
        "own",
        input_kind="any",
    )

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        yield from self._of_source()
        if "published_titles" in self.quirks and self.source not in AMAZON:
            yield f"quirk 'published_titles' is for {' and '.join(AMAZON)}; source is {self.source!r}."
        if self.layout_index is not None and self.layout is None:
            yield f"layout_index is {self.layout_index!r}, but layout is not given. Give both or none."
        if self.source == "published":
            yield from self._of_published()
        if self.targets and self.ties == "shuffle":
            yield "ties is 'shuffle', but targets are given. Take ties 'keep' or 'together'."
        if "event" in self.columns and not self.targets:
            yield (
                f"columns names event={self.columns['event']}, but events are read for targets alone. Give both or "
                "none."
            )
        parse_conditions(self.where)
        if not self.text_columns or len(set(self.text_columns)) < len(self.text_columns):
            yield f"text_columns is {self.text_columns}; name each column once, and at least one."
        for name, role in self.roles.items():
            if role not in ROLES:
                yield f"unknown role {shown(role)} of column {name}; known: {', '.join(ROLES)}."
        if self.engine_memory is not None:
            parse_size(self.engine_memory)

    def _of_source(self) -> Iterator[str]:
        """The source's own settings that are not given, and those of another source that are."""
        with_items = tuple(source for source in FROM_FILES if source not in OPTIONAL_ITEMS)
        checks: tuple[tuple[str, Any, tuple[str, ...], tuple[str, ...]], ...] = (
            ("category", self.category, ("published",), ("published",)),
            ("times", self.times, ("published",), ()),
            ("times_by_order", self.times_by_order, ("published",), ()),
            ("interactions", self.interactions, FROM_FILES, FROM_FILES),
            ("items", self.items, FROM_FILES, with_items),
            ("columns", self.columns, WITH_COLUMNS, ()),
            ("time_unit", self.time_unit, WITH_COLUMNS, ()),
            ("targets", self.targets, WITH_COLUMNS, ()),
            ("context_columns", self.context_columns, ("tables",), ()),
            ("users", self.users, ("tables",), ()),
            ("where", self.where, WITH_COLUMNS, ()),
            ("max_title_words", self.max_title_words, AMAZON, ()),
        )
        for name, value, sources, needed in checks:
            if value and self.source not in sources:
                yield (
                    f"{name} is {value!r}, but source is {self.source!r}, which does not read it. "
                    f"Set source to {' or '.join(map(repr, sources))}, or leave {name} out."
                )
            if not value and self.source in needed:
                yield f"source is {self.source!r}, but {name} is {value!r}. Give --{name}."

    def _of_published(self) -> Iterator[str]:
        """Settings that contradict how the published data were made."""
        if self.split != "global_time" or self.max_history != PUBLISHED_HISTORY:
            yield (
                f"split is {self.split!r} and max_history {self.max_history}, but source 'published' is already "
                f"split by global time with histories of {PUBLISHED_HISTORY}. Leave both out, or take source 'tables'."
            )
        if self.repeats != "keep":
            yield (
                f"repeats is {self.repeats!r}, but source 'published' is already filtered and split, and can only be "
                "read whole. Leave repeats out."
            )
        if self.times and self.times_by_order:
            yield (
                f"times is {self.times!r}, and times_by_order is true, which takes them from the order of examples. "
                "Leave one out."
            )
        if self.ties != "keep":
            yield (
                f"ties is {self.ties!r}, but source 'published' is already split, and items of one timestamp may be in "
                "each other's histories. Leave ties out, or prepare the raw reviews (source 'amazon2018')."
            )
        for name in FILTERS:
            if value := getattr(self, name):
                yield (
                    f"{name} is {value!r}, but source 'published' is already filtered and split, and can only be "
                    f"read whole. Leave {name} out."
                )

    def inputs(self) -> dict[str, Path]:
        """Name to path of every file that is read.

        Raises:
            DataError: If one is not there.
        """
        files = super().inputs()
        if "times" in files and not os.path.exists(files["times"]):
            del files["times"]  # the stage logs a warning
        if self.source != "tables" and any(name.startswith("interactions ") for name in files):
            raise DataError(
                f"{self.interactions}: is a folder, and source {self.source!r} reads one file. Name the file; only "
                "source 'tables' reads the files of a folder as one."
            )
        if self.source == "demo":
            files |= {name: find_path(path) for name, path in DEMO.items()}
        elif self.source == "published":
            files = self._published_files() | files
        for name, path in files.items():
            remedy = f"Give --{name} its path; data/README.md says where to get the public sets."
            own = f"Give the path of a csv, tsv, jsonl or parquet table of your {name}."
            check_file(path, own if self.source == "tables" and name in ("items", "interactions") else remedy)
        return files

    def _published_files(self) -> dict[str, Path]:
        from minionerec.data.published import default_root, published_files, published_index_path

        root, category = default_root(), str(self.category)
        files = published_files(root, category)
        if self.layout is not None and self.layout_index is None:
            files["layout_index"] = published_index_path(root, category)
        return files
