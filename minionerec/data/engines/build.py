"""From a table of cleaned interactions to a corpus, by an engine's statements: what `build_corpus` does in memory."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import get_logger
from minionerec.data.audit import Agreement, OrderAudit, id_ranks
from minionerec.data.build import WIDEN_BELOW, WIDEN_UNTIL, check_quirks, no_moments
from minionerec.data.chains import Chains
from minionerec.data.checks import check_filled
from minionerec.data.corpus import write_items
from minionerec.data.engines import statements
from minionerec.data.engines.engine import Engine
from minionerec.data.engines.statements import Borders, Walk, real
from minionerec.data.filters import parse_moment, year_before
from minionerec.data.names import SPLIT_NAMES, SPLITS, TIES
from minionerec.data.shards import ShardWriter, count_shards
from minionerec.data.times import ticks_by_middle
from minionerec.data.units import SECOND, check_middle

# From an engine's sorted interactions to the files of a corpus, a part at a time.


def write_interactions(place: Path, batches: Iterable[pa.RecordBatch], shards: int, *, timed: bool) -> None:
    """Write the files of sequences of a corpus.

    Args:
        place: The corpus's directory.
        batches: Interactions as `EngineCorpus.interactions` gives them.
        shards: How many files.
        timed: Whether they have times.
    """
    parts, held = _by_shard(batches, timed), None
    for number in range(shards):
        with ShardWriter(place, number, timed=timed) as writer:
            while (held := held or next(parts, None)) is not None and held[0] == number:
                writer.write(held[1])
                held = None


def _by_shard(batches: Iterable[pa.RecordBatch], timed: bool) -> Iterator[tuple[int, Chains]]:
    """Shard and whole sequences of it, again and again."""
    rest: pa.Table | None = None
    for batch in batches:
        table = pa.Table.from_batches([batch]) if rest is None else pa.concat_tables([rest, batch_table(batch, rest)])
        table = table.combine_chunks()
        begins = _begins(table)
        if len(begins) > 1:
            yield from _chains(table.slice(0, begins[-1]), begins[:-1], timed)
        rest = table.slice(begins[-1]) if len(begins) else rest
    if rest is not None and len(rest):
        rest = rest.combine_chunks()
        yield from _chains(rest, _begins(rest), timed)


def batch_table(batch: pa.RecordBatch, like: pa.Table) -> pa.Table:
    """A part as a table with the columns of another."""
    return pa.Table.from_batches([batch]).cast(like.schema)


def _begins(table: pa.Table) -> np.ndarray:
    """Where each user's interactions begin: int64, ascending."""
    if not len(table):
        return np.zeros(0, np.int64)
    person = table["person"].combine_chunks()
    other = pc.not_equal(person[1:], person[:-1]).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(other) + 1])


def _chains(table: pa.Table, begins: np.ndarray, timed: bool) -> Iterator[tuple[int, Chains]]:
    """The sequences of a part, shard by shard."""
    shards = table["shard"].to_numpy()[begins]
    users = table["person"].take(pa.array(begins)).to_numpy()
    offsets = np.append(begins, len(table))
    names = {"item": np.int32, "moment": np.int64, "number": np.int32, "cut": np.int8}
    items, times, rows, splits = (table[name].to_numpy().astype(kind) for name, kind in names.items())
    whole = Chains(users, offsets, items, times if timed else None, rows, splits)
    for number in np.unique(shards):
        yield int(number), whole.take(np.flatnonzero(shards == number))


# The middle one of many numbers, found by counting: no engine has to hold or to sort them.

PARTS = 1024


def median(engine: Engine, table: str, column: str, count: int) -> float:
    """The median of a column without gaps, as `numpy.median` gives it.

    The range that holds the number is cut into `PARTS` and counted, until one value is left in it: a handful of scans.

    Args:
        engine: The engine.
        table: Its table.
        column: The column.
        count: Rows of the table, at least 1.
    """
    low = _at(engine, table, column, (count - 1) // 2)
    high = low if count % 2 else _at(engine, table, column, count // 2)
    return (low + high) / 2


def _at(engine: Engine, table: str, column: str, rank: int) -> float:
    """The number of a rank, from 0, in rising order."""
    number = f"CAST({column} AS DOUBLE)"
    low, high = engine.row(f"SELECT min({number}), max({number}) FROM {table}")
    while low < high and (width := (high / 2 - low / 2) / PARTS):  # halves, for their distance may be no double
        part = f"floor(({number} / 2 - {real(low / 2)}) / {real(width)})"
        inside = f"{number} BETWEEN {real(low)} AND {real(high)}"
        found = engine.rows(
            f"SELECT {part} AS part, count(*), min({number}), max({number}) FROM {table} WHERE {inside} "
            "GROUP BY part ORDER BY part"
        )
        for _, size, low, high in found:  # noqa: B007
            if rank < size:
                break
            rank -= size
    return float(low)


log = get_logger(__name__)


@dataclass(frozen=True)
class Raw:
    """What is known of the engine's table `raw` (`minionerec.data.engines.statements`).

    Attributes:
        items: The item table of `Source`.
        where: What to call the interactions in messages.
        count: Interactions.
        timed: Whether they have times.
        real: Whether the times are doubles.
        ticks: Ticks of the times in a second.
        counts: Numbers for the manifest.
    """

    items: pd.DataFrame
    where: str
    count: int
    timed: bool = True
    real: bool = False
    ticks: int = 1
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineCorpus:
    """A corpus whose interactions still lie in an engine's tables; see `BuiltCorpus` for the rest.

    Attributes:
        engine: The engine.
        borders: Where splits begin.
        spots: Interactions of users with a row.
        timed: Whether rows have times.
    """

    engine: Engine
    items: pd.DataFrame
    borders: Borders
    spots: int
    timed: bool
    split: str
    max_history: int
    counts: Mapping[str, Any]
    audit: OrderAudit

    def all_counts(self) -> dict[str, Any]:
        """The counts as `Corpus.all_counts` gives them."""
        return {**self.counts, "items": len(self.items), "split": self.split, "max_history": self.max_history}

    def interactions(self, shards: int = 1) -> Iterator[pa.RecordBatch]:
        """The interactions of all users with a row, sorted by shard, user (UTF-8) and time, in parts.

        Columns: `shard`, `person`, `item`, `moment` (0 where unknown), `number` (of the row) and `cut` (its split).
        """
        digits = self.engine.hexadecimal(statements.DIGITS)
        return self.engine.stream(self.borders.sequences(shards, digits))

    def write(self, place: Path) -> None:
        """Write the files of a corpus into a directory."""
        shards = count_shards(self.spots)
        write_items(place, self.items)
        write_interactions(place, self.interactions(shards), shards, timed=self.timed)


def build_with(
    engine: Engine,
    raw: Raw,
    *,
    split: str = "global_time",
    max_history: int = 10,
    core: int = 0,
    start: str | None = None,
    end: str | None = None,
    quirks: Collection[str] = (),
    ties: str = "keep",
    max_eval_rows: int = 0,
    seed: int = 42,
) -> EngineCorpus:
    """Filter an engine's table `raw`, order it by time, make rows and split them.

    Args and errors are those of `minionerec.data.build.build_corpus`, but for the quirk "published_order", which is
    refused.
    """
    check_quirks(quirks, start)
    if "published_order" in quirks:
        raise ConfigError(f"quirk 'published_order' is made in memory, not by engine {engine.name!r}. Leave one out.")
    _check_times(engine, raw, split, start, end)
    engine.table("people", statements.PEOPLE)
    counts = _filter(engine, raw, core, start, end, "widen_window" in quirks)
    items, met = _number_items(engine, raw.items, only_met=core > 1)
    interactions, people = engine.row(statements.COUNT)
    walk = _walk(engine, raw, interactions, split, ties)
    engine.table("walked", walk.walked())
    engine.drop("visits")
    audit = _audit(engine, items, walk.moment is not None)
    if walk.shuffled:
        _shuffle(engine, walk, seed)
    borders = _line_up(engine, walk, raw.where, max_eval_rows)
    sizes = {cut: numbers for cut, *numbers in engine.rows(borders.sizes(max_history))}
    rows, full, truncated = (sum(each) for each in zip(*sizes.values(), strict=True))
    if max_eval_rows:
        counts["rows_left_out"] = borders.rows - rows
    engine.table("active", borders.with_rows)
    users, spots = engine.row(statements.ACTIVE)
    counts |= dict(raw.counts) | {f"{name}_rows": sizes[cut][0] for cut, name in enumerate(SPLITS)}
    counts |= {"rows": rows, "users": users, "items": len(items)}
    counts |= {
        "items_without_title": int((items["title"] == "").sum()),
        "items_without_description": int((items["description"] == "").sum()),
        "items_without_interactions": int((met == 0).sum()),
        "interactions": interactions,
        "full_histories": full,
        "truncated_histories": truncated,
    }
    counts |= _novelties(engine, borders, len(items), max_history) | {"users_without_rows": people - users}
    said = {**counts, "ties": ties, "order": audit.counts()}
    timed = raw.timed and walk.moment is not None
    name = SPLIT_NAMES[split] + TIES[ties]
    return EngineCorpus(engine, items, borders, int(spots), timed, name, max_history, said, audit)


def _check_times(engine: Engine, raw: Raw, split: str, start: str | None, end: str | None) -> None:
    for what, needed in {
        "split is 'global_time'": split == "global_time",
        "start or end is given": start or end,
    }.items():
        if needed and not raw.timed:
            raise ConfigError(f"{what}, but {raw.where} holds no times. Set split to 'leave_last_out' and no window.")
    if (start or end) and raw.count:
        check_middle(median(engine, "raw", "stamp", raw.count), raw.ticks, raw.where)


def _filter(engine: Engine, raw: Raw, core: int, start: str | None, end: str | None, widen: bool) -> dict[str, int]:
    """Make `visits`, and count what was left out."""
    first, last = (None if text is None else parse_moment(text) for text in (start, end))
    while True:
        bounds = [None if moment is None else moment * raw.ticks for moment in (first, last)]
        engine.table("visits", statements.visits(*bounds))
        (kept,) = engine.row("SELECT count(*) FROM visits")
        counts = {"interactions_outside_window": raw.count - kept}
        if core > 1:
            inside = _core(engine, kept, core)
            counts["interactions_outside_core"] = kept - inside
            kept = inside
        if not widen or first is None:
            break
        year = datetime.fromtimestamp(first, UTC).year
        (n_items,) = engine.row("SELECT count(DISTINCT item) FROM visits")
        if n_items >= WIDEN_BELOW or year <= WIDEN_UNTIL:
            counts["window_start_year"] = year
            break
        first = year_before(first)
    engine.drop("raw")
    if not kept and raw.count:
        raise DataError(
            f"{raw.where}: no interaction is left of {raw.count} "
            f"({', '.join(f'{name} {value}' for name, value in counts.items())}). Widen start and end, or lower core."
        )
    return counts


def _core(engine: Engine, count: int, k: int) -> int:
    """Take the k-core of `visits`, round by round; gives how many stay."""
    while count:
        engine.table("round", statements.core_round(k))
        (stays,) = engine.row("SELECT count(*) FROM round")
        engine.drop("visits")
        engine.rename("round", "visits")
        if stays == count:
            break
        log.info("core of %d: %s of %s interactions stay", k, f"{stays:,}", f"{count:,}")
        count = stays
    return count


def _number_items(engine: Engine, items: pd.DataFrame, *, only_met: bool) -> tuple[pd.DataFrame, np.ndarray]:
    """Make `goods`; gives the items that stay, and how often each was chosen, int64 (N,)."""
    chosen = np.zeros(len(items), dtype=np.int64)
    for batch in engine.stream(statements.ITEMS):
        chosen[batch["item"].to_numpy()] = batch["chosen"].to_numpy()
    old = np.flatnonzero(chosen) if only_met else np.arange(len(items))
    items = items if len(old) == len(items) else items.iloc[old].reset_index(drop=True)
    ranks = id_ranks(items["item_id"].tolist())
    table = {
        "item": pa.array(old, pa.int32()),
        "number": pa.array(np.arange(len(old)), pa.int32()),
        "word": pa.array(ranks["text"]),
        "digits": pa.array(ranks.get("number", np.zeros(len(old))), pa.int32()),
    }
    goods = pa.table(table)
    engine.load("goods", goods.schema, [goods])
    return items, chosen[old]


def _walk(engine: Engine, raw: Raw, count: int, split: str, ties: str) -> Walk:
    """How sequences are made; refuses what the times do not tell."""
    ticks: int | None = raw.ticks if raw.timed else None
    if ticks == SECOND and count:
        uneven = raw.real and engine.row("SELECT count(*) FROM visits WHERE stamp <> floor(stamp)") != (0,)
        ticks = ticks_by_middle(median(engine, "visits", "stamp", count), uneven)
    moment = None if ticks is None else statements.seconds(engine.divide, ticks, raw.real)
    if ties != "keep" and moment is None:
        raise no_moments(ties, raw.where, timed=raw.timed)
    return Walk(moment, ties == "together", split == "leave_last_out", ties == "shuffle")


def _audit(engine: Engine, items: pd.DataFrame, timed: bool) -> OrderAudit:
    """What the order of `walked` says of ties, as `minionerec.data.audit.audit_visits` does."""
    found = np.array(engine.rows(statements.AUDIT), dtype=np.int64).reshape(-1, 5)
    counts = found[:, 4]
    kinds = {"ties": found[:, 0] == 1, "others": found[:, 0] == 0} if timed else {"all": counts > 0}
    names = ["text", *["number"] * ("number" in id_ranks(items["item_id"].tolist()))]

    def rises(column: int, chosen: np.ndarray) -> Agreement:
        signs = found[:, column]
        return Agreement(int(counts[chosen & (signs != 0)].sum()), int(counts[chosen & (signs > 0)].sum()))

    orders = {
        name: {kind: rises(column, chosen) for kind, chosen in kinds.items()}
        for column, name in enumerate(names, start=1)
    }
    if timed:
        orders["file"] = {"ties": rises(3, kinds["ties"])}
    return OrderAudit(int(counts.sum()), int(counts[kinds["ties"]].sum()) if timed else None, orders)


def _shuffle(engine: Engine, walk: Walk, seed: int) -> None:
    """Give the items of each tie an order of chance, drawn in the order in which `shuffled_ties` draws."""
    chance = np.random.default_rng(seed)
    schema = pa.schema([("place", pa.int64()), ("draw", pa.float64())])
    drawn = (
        pa.RecordBatch.from_arrays([batch["place"], pa.array(chance.random(len(batch)))], schema=schema)
        for batch in engine.stream(statements.TIED)
    )
    engine.load("draws", schema, drawn)
    engine.table("mixed", statements.shuffled(walk.extra))
    engine.drop("walked")
    engine.drop("draws")
    engine.rename("mixed", "walked")


def _line_up(engine: Engine, walk: Walk, where: str, most: int) -> Borders:
    """Make `lined`; gives where splits begin."""
    engine.numbered("lined", *statements.lines(walk.last_out), "line")
    engine.drop("walked")
    parts = dict(engine.rows(statements.PARTS))
    rows = sum(parts.values())
    if walk.last_out:
        starts = [parts.get(0, 0), parts.get(0, 0) + parts.get(1, 0)]
    else:
        starts = [rows * tenths // 10 for tenths in (8, 9)]
        if walk.together and rows:
            starts = [_moment_begins(engine, start, rows) for start in starts]
    sizes = {name: after - before for name, (before, after) in zip(SPLITS, pairwise((0, *starts, rows)), strict=True)}
    check_filled(sizes, where)
    valid, test = starts
    return Borders(valid, test, rows, most, engine.divide)


def _moment_begins(engine: Engine, line: int, rows: int) -> int:
    """The first line of the moment that a line is of."""
    (moment,) = engine.row(f"SELECT moment FROM lined WHERE line = {line}")
    (first,) = engine.row(f"SELECT min(line) FROM lined WHERE moment = {statements.whole(moment)} AND line < {rows}")
    return int(first)


def _novelties(engine: Engine, borders: Borders, n_items: int, max_history: int) -> dict[str, int]:
    """Rows of valid and test whose target or user no training row knows."""
    known = np.zeros(n_items, dtype=bool)
    for batch in engine.stream(borders.known(max_history)):
        known[batch["item"].to_numpy()] = True
    cold = np.zeros(len(SPLITS), dtype=np.int64)
    for batch in engine.stream(borders.asked):
        strange = ~known[batch["item"].to_numpy()]
        np.add.at(cold, batch["cut"].to_numpy()[strange], batch["chosen"].to_numpy()[strange])
    new = dict(engine.rows(borders.new_users))
    counts = {}
    for cut, name in enumerate(SPLITS[1:], start=1):
        counts[f"{name}_cold_targets"] = int(cold[cut])
        counts[f"{name}_new_users"] = int(new.get(cut, 0))
    return counts
