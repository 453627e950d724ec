"""From a source to a corpus: filter, order, make examples, split, count and write, by the statements of an engine.

The tables of the statements are described in `minionerec.data.engines.statements`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from minionerec.core.errors import ConfigError, DataError, shown
from minionerec.core.log import get_logger, progress
from minionerec.data.audit import OrderAudit, audit_of_signs
from minionerec.data.chains import Chains, concatenated
from minionerec.data.context_columns import ContextColumn, codes_of, is_determined_by_items, report, values_problem
from minionerec.data.contexts import UNKNOWN_NAME
from minionerec.data.corpus import Corpus, check_filled, id_ranks, write_items
from minionerec.data.engines import statements
from minionerec.data.engines.engine import Engine
from minionerec.data.engines.statements import Borders, Sequences
from minionerec.data.filters import parse_time
from minionerec.data.names import SPLIT_NAMES, SPLITS, TIES
from minionerec.data.rows import StoredCodes
from minionerec.data.shards import ShardWriter, count_shards
from minionerec.data.source import InteractionBatch, InteractionSource
from minionerec.data.units import SECOND

log = get_logger(__name__)

BATCHES = pa.schema(
    {
        "source_row": pa.int64(),
        "user_id": pa.string(),
        "item": pa.int32(),
        "whole_time": pa.int64(),
        "real_time": pa.float64(),
        "event": pa.int16(),
    }
)
"""The table that the batches of a source are handed over as; one of the two times is null, and events may be. Columns
that may be request features follow."""


@dataclass(frozen=True)
class BuiltCorpus:
    """A corpus whose interactions are in an engine's tables, so that they may exceed memory.

    Attributes:
        engine: The engine.
        items: Columns `item_id`, `title`, `description`; row i is item index i.
        borders: Where splits begin.
        size: Interactions of users with an example.
        timed: Whether examples have times.
        split: Name of the split for result tables.
        max_history: Most items that a history holds.
        counts: Numbers for the manifest: the source's; `ties` and `order`, the audit of the source's own order
            (`OrderAudit.counts`); `train_rows`, `valid_rows`, `test_rows`, `rows`; `users` with an example; `items`;
            `items_without_title`; `items_without_description`; `items_without_interactions`; `interactions`, and of
            those left out `interactions_outside_window` and `interactions_outside_core`; for valid and test
            `{split}_cold_targets`, examples whose target is that of no training example, and `{split}_new_users`,
            examples whose user has no training example; `context_values`, the names of the values of each request
            feature that is a column of the interactions; `full_histories`, those with `max_history` items;
            `truncated_histories`; `users_without_rows` (fewer than two interactions, or steps); `split`; `max_history`;
            `rows_left_out` where valid and test were thinned.
        audit: Statistics of the source's own order within ties.
        contexts: The columns of interactions that are request features, by name.
    """

    engine: Engine
    items: pd.DataFrame
    borders: Borders
    size: int
    timed: bool
    split: str
    max_history: int
    counts: Mapping[str, Any]
    audit: OrderAudit
    contexts: Mapping[str, ContextColumn] = field(default_factory=dict)

    def sequences(self, shards: int = 1) -> Iterator[tuple[int, Chains]]:
        """Shard and whole sequences of it, part by part: users with an example, by shard and user (UTF-8)."""
        users = statements.listed(shards, self.engine.hexadecimal(statements.SHARD_DIGITS))
        ids = self.engine.stream(f"SELECT shard, user_id FROM ({users}) AS l ORDER BY shard, user_key")
        further = ["event"] * ("targets" in self.counts) + [each.column for each in self.contexts.values()]
        batches = self.engine.stream(self.borders.sequences(users, further))
        return _whole_sequences(batches, ids, self.timed, self.contexts)

    def chains(self) -> Chains:
        """All sequences in memory."""
        return concatenated([chains for _, chains in self.sequences()])

    def corpus(self) -> Corpus:
        """All examples in memory."""
        chains, together = self.chains(), self.counts["ties"] == "together"
        train, valid, test = (chains.split_examples(name, self.max_history, together)[1] for name in SPLITS)
        return Corpus(
            self.items, train, valid, test, split=self.split, max_history=self.max_history, counts=self.counts
        )

    def user_numbers(self) -> dict[str, int]:
        """User → number, from 0 in the order of their first interactions that pass the filters."""
        batches = self.engine.stream(statements.USER_NUMBERS)
        return {user: number for number, user in enumerate(user for batch in batches for user in batch[0].to_pylist())}

    def write(self, folder: Path) -> None:
        """Write the files of a corpus into a directory."""
        write_items(folder, self.items)
        shards = count_shards(self.size)
        parts, held = self.sequences(shards), None
        for number in progress(range(shards), "writing sequences", unit="shards"):
            given = {"timed": self.timed, "events": "targets" in self.counts}
            with ShardWriter(folder, number, **given, contexts=self.contexts) as writer:
                while (held := held or next(parts, None)) is not None and held[0] == number:
                    writer.write(held[1])
                    held = None


def _whole_sequences(
    batches: Iterable[pa.RecordBatch],
    users: Iterator[pa.RecordBatch],
    timed: bool,
    contexts: Mapping[str, ContextColumn],
) -> Iterator[tuple[int, Chains]]:
    """The parts of `BuiltCorpus.sequences`, of batches that may split a sequence, and of their users."""
    rest: pa.Table | None = None
    known = pa.Table.from_batches([next(users)])

    def part(table: pa.Table, begins: np.ndarray) -> Iterator[tuple[int, Chains]]:
        nonlocal known
        while len(known) < len(begins):
            known = pa.concat_tables([known, pa.Table.from_batches([next(users)]).cast(known.schema)])
        own, known = known[: len(begins)], known[len(begins) :]
        return _chains(table, begins, own, timed, contexts)

    for batch in batches:
        table = pa.Table.from_batches([batch])
        table = table if rest is None else pa.concat_tables([rest, table.cast(rest.schema)])
        table = table.combine_chunks()
        begins = _begins(table)
        if len(begins) > 1:
            yield from part(table.slice(0, begins[-1]), begins[:-1])
        rest = table.slice(begins[-1]) if len(begins) else rest
    if rest is not None and len(rest):
        yield from part(rest, _begins(rest))


def _begins(table: pa.Table) -> np.ndarray:
    """Where each user's interactions begin: int64, ascending."""
    return np.flatnonzero(np.diff(table["user_key"].to_numpy(), prepend=-1))


def _chains(
    table: pa.Table, begins: np.ndarray, users: pa.Table, timed: bool, contexts: Mapping[str, ContextColumn]
) -> Iterator[tuple[int, Chains]]:
    """The sequences of a part, shard by shard."""
    shards = users["shard"].to_numpy()
    offsets = np.append(begins, len(table))
    names = {"item_index": np.int32, "time": np.int64, "example": np.int32, "split": np.int8}
    items, times, examples, splits = (table[name].to_numpy().astype(kind) for name, kind in names.items())
    events = table["event"].to_numpy().astype(np.int16) if "event" in table.column_names else None
    codes = {name: StoredCodes(of.codes[table[of.column].to_numpy()], of.values) for name, of in contexts.items()}
    known = times if timed else None
    whole = Chains(users["user_id"].to_numpy(), offsets, items, known, examples, splits, events, codes)
    for number in np.unique(shards):
        yield int(number), whole.take(np.flatnonzero(shards == number))


_STEPS = ("users", "filters", "items", "sequences", "order of ties", "examples", "sizes", "active users", "novelties")
"""The steps of `build_corpus` after interactions are read, as its progress counts them."""


def build_corpus(
    engine: Engine,
    source: InteractionSource,
    *,
    split: str = "global_time",
    max_history: int = 10,
    core: int = 0,
    start: str | None = None,
    end: str | None = None,
    quirks: Collection[str] = (),
    repeats: str = "keep",
    ties: str = "keep",
    max_eval_examples: int = 0,
    targets: Collection[str] = (),
    contexts: Collection[str] = (),
    seed: int = 42,
) -> BuiltCorpus:
    """Filter a source's interactions, order them by time, make examples and split them.

    Interactions are sorted by time; where there are no times, the order of the file is the order. Every interaction but
    a user's first is the target of an example, whose history is the user's earlier items, oldest first. With `targets`
    only interactions of these events are; the others are in histories.

    Args:
        engine: Runs the statements; its tables are the corpus until it is written.
        source: Items and interactions.
        split: "global_time" (the newest tenth of all examples is test, the tenth before valid; borders are rounded
            down, and a user may first appear in test) or "leave_last_out" (each user's last example is test, the one
            before valid).
        max_history: Most items that a history holds.
        core: Fewest interactions of every user and every item (iterative k-core), counted within the window; users and
            items outside are dropped. At 0 all stay.
        start: First time of the window, an ISO month, date or time in UTC; open if None.
        end: Last time, included: a date alone is its midnight.
        quirks: Any of `QUIRKS`.
        repeats: "keep", or "drop": of interactions of one user, item and timestamp the first stays; the others are
            counted as `interactions_repeated`.
        ties: Order of items that a user bought in one second: "keep"; "shuffle", in a random order; "together",
            one step: its items have the same history, the user's earlier steps. The first step gives no example, a
            border of "global_time" moves back to the beginning of its second, and "leave_last_out" takes whole steps.
        max_eval_examples: Examples of valid and of test at most, evenly spread over their order; the others are no
            targets, and counted as `rows_left_out`. At 0 all stay.
        targets: Names of the events that are predicted, of those of the source; all if empty.
        contexts: Columns that the source must give as request features; others that it gives are left out where they
            are none (`minionerec.data.context_columns`).
        seed: Seed of "shuffle".

    Raises:
        ConfigError: If the split, the window, `repeats` or `ties` needs times that the source lacks, or the source has
            no event of a name in `targets`, or a column in `contexts` is no request feature.
        DataError: If the source cannot be read, the filters leave nothing, or a split is empty.
    """
    if repeats != "keep" and not source.timed:
        raise ConfigError(f"repeats is {repeats!r}, but {source.where} holds no times. Leave repeats out.")
    if targets and ties == "shuffle":
        raise ConfigError("ties is 'shuffle', but targets are given. Take ties 'keep' or 'together'.")
    source_rows, reals, candidates = _hand_over(engine, source, bool(targets))
    further = ["event"] * bool(targets) + [*candidates.values()]
    predicted = _event_numbers(source, targets) if targets else None
    repeated = _drop_repeats(engine, source_rows, bool(targets)) if repeats != "keep" else None
    source_rows -= repeated or 0
    _check_times(engine, source, source_rows, split, start, end)
    steps = progress(_STEPS, "making examples", unit="steps")
    next(steps)
    engine.numbered("users", statements.USERS, "user_id", "user_key")
    next(steps)
    by_user = "published_order" in quirks
    counts = _filter(engine, source, source_rows, reals, core, start, end, quirks, further)
    if repeated is not None:
        counts["interactions_repeated"] = repeated
    engine.table("firsts", statements.FIRSTS)
    ticks = SECOND if by_user else source.ticks
    next(steps)
    items, purchases, orders = _number_items(engine, source.items, only_met=core > 1, by_user=by_user)
    next(steps)
    interactions, users = engine.row(statements.COUNT)
    if predicted is not None:
        counts |= _event_counts(engine, source, targets)
    sequences = _sequences(engine, source, ticks, reals, interactions, split, ties, by_user, predicted)
    sequences = replace(sequences, contexts=tuple(candidates.values()))
    engine.table("sequences", sequences.table())
    engine.drop("interactions")
    timed = sequences.time is not None
    next(steps)
    audit = audit_of_signs(engine.rows(statements.AUDIT), timed, [*orders, "file"])
    if sequences.shuffled:
        _shuffle(engine, sequences, seed)
    next(steps)
    borders = _order(engine, sequences, source.where, max_eval_examples)
    kept = _context_columns(engine, borders, source, candidates, contexts)
    if kept:
        counts["context_values"] = {name: list(of.values) for name, of in kept.items()}
    next(steps)
    sizes = {number: found for number, *found in engine.rows(borders.sizes(max_history))}
    examples, full, truncated = (sum(each) for each in zip(*sizes.values(), strict=True))
    if max_eval_examples:
        counts["rows_left_out"] = borders.examples - examples
    next(steps)
    engine.table("active", borders.known("user_key"))
    active, size, *new_users = engine.row(statements.novelties("active"))
    counts |= dict(source.counts) | {f"{name}_rows": sizes[number][0] for number, name in enumerate(SPLITS)}
    counts |= {
        "rows": examples,
        "users": active,
        "items": len(items),
        "items_without_title": int((items["title"] == "").sum()),
        "items_without_description": int((items["description"] == "").sum()),
        "items_without_interactions": int((purchases == 0).sum()),
        "interactions": interactions,
        "full_histories": full,
        "truncated_histories": truncated,
    }
    next(steps)
    _, _, *cold_targets = engine.row(statements.novelties(f"({borders.known('item_index')}) AS items_with_examples"))
    for each, cold, new in zip(SPLITS[1:], cold_targets, new_users, strict=True):
        counts |= {f"{each}_cold_targets": int(cold), f"{each}_new_users": int(new)}
    counts["users_without_rows"] = users - active
    next(steps, None)
    name = SPLIT_NAMES[split] + TIES[ties] + (f", targets {', '.join(targets)}" if targets else "")
    described = {**counts, "ties": ties, "order": audit.counts(), "split": name, "max_history": max_history}
    return BuiltCorpus(engine, items, borders, int(size), timed, name, max_history, described, audit, kept)


def _hand_over(engine: Engine, source: InteractionSource, events: bool) -> tuple[int, bool, dict[str, str]]:
    """Make `raw` of a source's interactions.

    Returns:
        How many there are, whether their times are doubles, and the columns that may be request features with those of
        `raw`.
    """
    count, reals = 0, False
    batches = iter(source.batches())
    first = next(batches, None)
    columns_of = {name: f"context_{number}" for number, name in enumerate(() if first is None else first.contexts)}
    schema = pa.schema([*BATCHES, *((column, pa.int16()) for column in columns_of.values())])

    def handed(batch: InteractionBatch) -> pa.RecordBatch:
        nonlocal count, reals
        size = len(batch.items)
        times = np.zeros(size, np.int64) if batch.times is None else batch.times
        columns = [pa.array(np.arange(count, count + size)), batch.users.cast(pa.string()), batch.items]
        if times.dtype.kind == "f":
            reals = reals or bool(size)
            columns += [pa.nulls(size, pa.int64()), times + 0.0]  # no zero below zero
        else:
            columns += [times, pa.nulls(size, pa.float64())]
        columns.append(pa.nulls(size, pa.int16()) if batch.events is None else batch.events)
        columns += [batch.contexts[name] for name in columns_of]
        count += size
        arrays = [pa.array(each, kind) for each, kind in zip(columns, schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    engine.load("batches", schema, map(handed, chain([] if first is None else [first], batches)))
    candidates = {name: of for name, of in columns_of.items() if not isinstance(source.contexts[name], str)}
    engine.view("raw", statements.raw(reals, ["event"] * events + [*candidates.values()]))
    (kept,) = engine.row("SELECT count(*) FROM raw")
    return kept, reals, candidates


def _context_columns(
    engine: Engine,
    borders: Borders,
    source: InteractionSource,
    candidates: Mapping[str, str],
    named: Collection[str],
) -> dict[str, ContextColumn]:
    """The columns of interactions that are request features, by the targets of training examples.

    Raises:
        ConfigError: If one of `named` is none.
    """
    given = source.contexts
    kept, problems = {}, {name: values for name, values in given.items() if isinstance(values, str)}
    for name, column in candidates.items():
        values = given[name]
        rows = {int(number): int(size) for number, size in engine.rows(borders.value_counts(column))}
        counts = {
            values[number]: size for number, size in rows.items() if number >= 0 and values[number] != UNKNOWN_NAME
        }
        problem = values_problem(counts, sum(rows.values()) - sum(counts.values()))
        if not problem:
            several, agreeing = engine.row(borders.values_by_item(column))
            if not several:
                problem = "no item recurs, which may determine it"
            elif is_determined_by_items(int(several), int(agreeing), max(counts.values()) / sum(counts.values())):
                problem = "the item determines it"
        if problem:
            problems[name] = problem
        else:
            kept[name] = codes_of(column, values, counts)
    report(source.where, kept, problems, named)
    return kept


def _event_numbers(source: InteractionSource, targets: Collection[str]) -> list[int]:
    """The numbers of the events that are predicted.

    Raises:
        ConfigError: If the source has no event of that name.
    """
    names = list(source.events)
    for target in targets:
        if target not in names:
            known = f"its events: {', '.join(names)}" if names else "its interactions have no events"
            raise ConfigError(f"targets names {shown(target)}, which {source.where} does not hold; {known}.")
    return [names.index(target) for target in targets]


def _event_counts(engine: Engine, source: InteractionSource, targets: Collection[str]) -> dict[str, Any]:
    """The interactions of each event by its name, and the events that are predicted, for the manifest."""
    numbers = dict(engine.rows("SELECT event, count(*) FROM interactions GROUP BY event"))
    events = {name: int(numbers.get(number, 0)) for number, name in enumerate(source.events)}
    return {"events": events, "event_names": list(source.events), "targets": list(targets)}


def _drop_repeats(engine: Engine, count: int, events: bool) -> int:
    """Leave one interaction of each user, item, timestamp (and event) in `raw`; gives how many are dropped."""
    engine.table("distinct_raw", statements.distinct("raw", events))
    engine.view("raw", "SELECT * FROM distinct_raw")
    (kept,) = engine.row("SELECT count(*) FROM raw")
    return count - int(kept)


def _check_times(
    engine: Engine, source: InteractionSource, source_rows: int, split: str, start: str | None, end: str | None
) -> None:
    needs_times = {"split is 'global_time'": split == "global_time", "start or end is given": start or end}
    for what, needed in needs_times.items():
        if needed and not source.timed:
            raise ConfigError(
                f"{what}, but {source.where} holds no times. Set split to 'leave_last_out' and no window."
            )
    if split == "global_time" and source_rows > 1:
        first, last = engine.row("SELECT min(timestamp), max(timestamp) FROM raw")
        if first == last:
            log.warning(
                "%s: all %s interactions have one time, so the split by time is by the order of rows. Give real "
                "times, or set split to 'leave_last_out'.",
                source.where,
                f"{source_rows:,}",
            )
    if (start or end) and source.timed and source.ticks is None and source_rows:
        raise ConfigError(
            f"start or end is given, but the times of {source.where} are numbers too small for times since 1973, so "
            "their unit is not known. Name it with --time_unit, write ISO dates, or leave start and end out."
        )


def _filter(
    engine: Engine,
    source: InteractionSource,
    source_rows: int,
    reals: bool,
    core: int,
    start: str | None,
    end: str | None,
    quirks: Collection[str],
    further: Sequence[str],
) -> dict[str, Any]:
    """Make `interactions`, and count those left out."""
    first, last = (None if text is None else parse_time(text) for text in (start, end))
    timestamp, ticks = "r.timestamp", source.ticks or SECOND
    if "published_order" in quirks and source.timed:  # it knows whole seconds alone
        timestamp = statements.seconds(timestamp, engine.divide, ticks, reals)
    low, high = (None if seconds is None else seconds * ticks for seconds in (first, last))
    engine.table("interactions", statements.interactions(low, high, timestamp, further))
    (kept,) = engine.row("SELECT count(*) FROM interactions")
    counts = {"interactions_outside_window": source_rows - kept}
    if core > 1:
        inside = _take_core(engine, kept, core)
        counts["interactions_outside_core"] = kept - inside
        kept = inside
    engine.drop("batches")
    if not kept and source_rows:
        raise DataError(
            f"{source.where}: no interaction is left of {source_rows} "
            f"({', '.join(f'{name} {value}' for name, value in counts.items())}). Widen start and end, or lower core."
        )
    return counts


def _take_core(engine: Engine, count: int, k: int) -> int:
    """Take the k-core of `interactions`, round by round: how many stay.

    Users and items below k are struck out in rounds, both by the counts of the same round, until none is left. The
    result does not depend on the order: a union of sets in which each has k is such a set too.
    """
    while count:
        engine.table("interactions", statements.core_round(k))
        (stays,) = engine.row("SELECT count(*) FROM interactions")
        if stays == count:
            break
        log.info("core of %d: %s of %s interactions stay", k, f"{stays:,}", f"{count:,}")
        count = stays
    return count


def _number_items(
    engine: Engine, items: pd.DataFrame, *, only_met: bool, by_user: bool
) -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    """Make `items`; gives those that stay, the interactions of each, int64 (N,), and the orders of their ids."""
    purchases = np.zeros(len(items), dtype=np.int64)
    for batch in engine.stream(statements.ITEM_COUNTS):
        purchases[batch["item"].to_numpy()] = batch["purchases"].to_numpy()
    if by_user:
        met = [batch["item"].to_numpy() for batch in engine.stream(statements.MET_ITEMS)]
        old = np.concatenate([np.zeros(0, np.int32), *met])
    else:
        old = np.flatnonzero(purchases) if only_met else np.arange(len(items))
    if by_user or len(old) < len(items):
        items = items.iloc[old].reset_index(drop=True)
    ranks = id_ranks(items["item_id"].tolist())
    columns = {
        "item": pa.array(old, pa.int32()),
        "item_index": pa.array(np.arange(len(old)), pa.int32()),
        "text_rank": pa.array(ranks["text"]),
        "number_rank": pa.array(ranks.get("number", np.zeros(len(old))), pa.int32()),
    }
    table = pa.table(columns)
    engine.load("items", table.schema, table.to_batches())
    return items, purchases[old], list(ranks)


def _sequences(
    engine: Engine,
    source: InteractionSource,
    ticks: int | None,
    reals: bool,
    count: int,
    split: str,
    ties: str,
    by_user: bool,
    targets: Sequence[int] | None,
) -> Sequences:
    """How sequences are made.

    Numbers that are a mere order (`ticks` is None) stay as they are if all are whole: then the later is the greater and
    the same time the same number, and only distances mean nothing. With fractions they are no times.

    Raises:
        ConfigError: If ties are to be reordered, and the times have no known unit.
    """
    reals = reals and not by_user
    if source.timed and ticks is None and count:
        uneven = reals and engine.row("SELECT count(*) FROM interactions WHERE timestamp <> floor(timestamp)") != (0,)
        ticks = None if uneven else SECOND
    known = ticks if source.timed else None
    time = None if known is None else statements.seconds("timestamp", engine.divide, known, reals)
    if ties != "keep" and time is None:
        what = "holds times with fractions whose unit is not known" if source.timed else "holds no times"
        raise ConfigError(
            f"ties is {ties!r}, but {source.where} {what}, so simultaneous interactions are not known. Set ties to "
            "'keep', give dates, or name the unit with --time_unit."
        )
    return Sequences(time, ties == "together", split == "leave_last_out", ties == "shuffle", by_user, targets)


def _shuffle(engine: Engine, sequences: Sequences, seed: int) -> None:
    """Give the items of each tie a random order, drawn by user and position, so that it follows from the seed alone."""
    chance = np.random.default_rng(seed)
    schema = pa.schema([("source_row", pa.int64()), ("draw", pa.float64())])
    drawn = (
        pa.RecordBatch.from_arrays([batch["source_row"], pa.array(chance.random(len(batch)))], schema=schema)
        for batch in engine.stream(statements.TIED)
    )
    engine.load("draws", schema, drawn)
    engine.table("sequences", sequences.shuffled_table())
    engine.drop("draws")


def _order(engine: Engine, sequences: Sequences, where: str, most: int) -> Borders:
    """Make `ordered`; gives where splits begin."""
    parts = dict(engine.rows(sequences.parts))
    engine.numbered("ordered", *sequences.ordered(), "example")
    engine.drop("sequences")
    examples = sum(parts.values())
    if sequences.last_out:
        starts = [parts.get(0, 0), parts.get(0, 0) + parts.get(1, 0)]
    else:
        starts = [examples * tenths // 10 for tenths in (8, 9)]
        if sequences.together and examples:
            starts = [_second_begins(engine, start, examples) for start in starts]
    pairs = pairwise((0, *starts, examples))
    check_filled({name: end - begin for name, (begin, end) in zip(SPLITS, pairs, strict=True)}, where)
    valid, test = starts
    return Borders(valid, test, examples, most, engine.divide)


def _second_begins(engine: Engine, example: int, examples: int) -> int:
    """The first example of the second that an example is of."""
    (time,) = engine.row(f"SELECT time FROM ordered WHERE example = {example}")
    (first,) = engine.row(
        f"SELECT min(example) FROM ordered WHERE time = {statements.whole(time)} AND example < {examples}"
    )
    return int(first)
