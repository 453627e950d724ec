"""The builder on tables in memory, and the oracle that it is held against: its rules as plain loops."""

import atexit
import tempfile
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from minionerec.core.errors import MinioneRecError
from minionerec.data.audit import Agreement, OrderAudit
from minionerec.data.build import build_corpus
from minionerec.data.corpus import Corpus
from minionerec.data.engines.engine import started
from minionerec.data.filters import parse_time
from minionerec.data.names import SPLIT_NAMES, SPLITS, TIES
from minionerec.data.source import Source
from minionerec.data.sources import movielens, recbole, tables


@dataclass(frozen=True)
class Built:
    """What became of a source: the corpus, and what the builder says of it."""

    items: pd.DataFrame
    counts: dict[str, Any]
    audit: OrderAudit
    examples: dict[str, list[tuple]]
    """Split → (user, history, target); with times also (time, time of the newest item), and where events are predicted
    (events of the history, event of the target)."""
    rows: Any = None
    chains: Any = None

    def corpus(self) -> Corpus:
        return self.rows


@cache
def _duck():
    """One session of DuckDB for all tests of a process."""
    held = ExitStack()
    atexit.register(held.close)
    folder = held.enter_context(tempfile.TemporaryDirectory())
    return held.enter_context(started("duckdb", "512MB", Path(folder)))


def build(source, engine=None, **choices) -> Built:
    """Build a source's corpus, by DuckDB where no engine is given."""
    found = build_corpus(engine or _duck(), source, **choices)
    chains, counts = found.chains(), found.counts
    together = counts["ties"] == "together"
    rows = {name: chains.split_examples(name, found.max_history, together)[1] for name in SPLITS}
    corpus = Corpus(found.items, **rows, split=found.split, max_history=found.max_history, counts=found.counts)
    examples = {}
    for name, own in rows.items():
        times = [] if own.times is None else [own.times.time.tolist(), own.times.previous.tolist()]
        histories = [history.tolist() for history in own.histories]
        if own.events is not None:
            names, lengths = counts["event_names"], own.lengths.tolist()
            past = [seen[len(seen) - length :] for seen, length in zip(own.seen_events, lengths, strict=True)]
            times += [[[names[event] for event in events] for events in past]]
            times += [[names[event] for event in own.events.of_targets]]
        examples[name] = list(zip(own.users.tolist(), histories, own.targets.tolist(), *times, strict=True))
    return Built(found.items, counts, found.audit, examples, corpus, chains)


def in_memory(source) -> Source:
    """All interactions of a source that is read part by part, as one that is held in memory."""
    if isinstance(source, Source):
        return source
    parts = list(source.batches())
    users, index, times, events = [np.zeros(0, object)], [np.zeros(0, np.int32)], [], []
    for part in parts:
        some = part.items >= 0
        users.append(part.users.to_numpy(zero_copy_only=False)[some])
        index.append(part.items[some])
        times.append(part.times[some])
        events += [] if part.events is None else [part.events[some]]
    numbers, ids = pd.factorize(np.concatenate(users))
    return Source(
        items=source.items,
        users=numbers.astype(np.int32),
        item_index=np.concatenate(index),
        times=np.concatenate(times) if times else np.zeros(0, np.int64),
        user_ids=pa.array(ids, pa.string()),
        where=source.where,
        ticks=source.ticks,
        counts=dict(source.counts),
        events=source.events,
        event_numbers=np.concatenate(events) if events else None,
    )


def read_tables(*files, **options) -> Source:
    """What the reader of tables reads, in memory, like the two that follow."""
    return in_memory(tables.read_tables(*files, **options))


def read_recbole(*files, **options) -> Source:
    return in_memory(recbole.read_recbole(*files, **options))


def read_movielens(*files, **options) -> Source:
    return in_memory(movielens.read_movielens(*files, **options))


def seconds_of(times, ticks):
    """Whole seconds, as examples keep them; None where numbers tell no context."""
    if ticks is None and not (times != np.floor(times)).any():
        ticks = 1
    return None if ticks is None else np.maximum(np.floor_divide(times, ticks).astype(np.int64), -(2**63) + 1)


def _core(kept, users, items, k):
    while True:
        often = Counter(users[row] for row in kept), Counter(items[row] for row in kept)
        left = [row for row in kept if often[0][users[row]] >= k and often[1][items[row]] >= k]
        if len(left) == len(kept):
            return kept
        kept = left


def oracle(
    source,
    *,
    split="global_time",
    max_history=10,
    core=0,
    start=None,
    end=None,
    quirks=(),
    ties="keep",
    max_eval_examples=0,
    targets=(),
    seed=42,
):
    """What `build` must give; None where it must refuse."""
    users, items, times, ticks = source.users.tolist(), source.item_index.tolist(), source.times, source.ticks
    if times is None and (split == "global_time" or start or end):
        return None
    if times is not None and ticks is None and (start or end):
        return None
    if targets and (ties == "shuffle" or not set(targets) <= set(source.events)):
        return None
    of_event = [source.events[number] for number in source.event_numbers.tolist()] if targets else [None] * len(users)
    predicted = [not targets or event in targets for event in of_event]
    counts: dict[str, Any] = dict(source.counts)
    first, last = (text and parse_time(text) for text in (start, end))
    inside = np.ones(len(users), bool)
    inside &= times >= first * (ticks or 1) if first is not None else True
    inside &= times <= last * (ticks or 1) if last is not None else True
    window = np.flatnonzero(inside).tolist()
    kept = _core(window, users, items, core) if core > 1 else window
    counts["interactions_outside_window"] = len(users) - len(window)
    if core > 1:
        counts["interactions_outside_core"] = len(window) - len(kept)
    if not kept:
        return None
    of_first = {user: row for row in reversed(kept) for user in [users[row]]}  # a user's first interaction
    if "published_order" in quirks and times is not None:
        times, ticks = times // (ticks or 1), 1
    order = [0] * len(users) if times is None else times.tolist()
    walk = sorted(kept, key=lambda row: (of_first[users[row]], order[row], row))
    old = sorted({items[row] for row in kept}) if core > 1 else list(range(len(source.items)))
    old = list(dict.fromkeys(items[row] for row in walk)) if "published_order" in quirks else old
    catalogue = source.items.iloc[old].reset_index(drop=True)
    index = {item: number for number, item in enumerate(old)}
    seconds = None if times is None else seconds_of(times[kept], ticks)
    if ties != "keep" and seconds is None:
        return None
    context = dict(zip(kept, [None] * len(kept) if seconds is None else seconds.tolist(), strict=True))
    sequences = defaultdict(list)  # user → interactions, oldest first, users by their first interaction
    for row in walk:
        sequences[users[row]].append(row)
    ids, user_ids = source.items["item_id"].tolist(), source.user_ids.to_pylist()
    audit = _audit(sequences, items, ids, catalogue["item_id"], context, seconds is not None)
    chosen = {row: index[items[row]] for row in kept}
    if ties == "shuffle":
        groups = defaultdict(list)
        for row in walk:
            groups[users[row], context[row]].append(row)
        groups = [rows for rows in groups.values() if len(rows) > 1]
        draws = iter(np.random.default_rng(seed).random(sum(map(len, groups))))
        drawn = [[(next(draws), chosen[row]) for row in rows] for rows in groups]
        for rows, found in zip(groups, drawn, strict=True):
            chosen |= dict(zip(rows, (item for _, item in sorted(found, key=lambda each: each[0])), strict=True))
    examples = []
    for user, rows in sequences.items():
        steps = [0]
        for position in range(1, len(rows)):
            same = ties == "together" and context[rows[position]] == context[rows[position - 1]]
            steps.append(steps[-1] if same else position)
        numbers = sorted({step for row, step in zip(rows, steps, strict=True) if predicted[row]}, reverse=True)
        for row, step in zip(rows, steps, strict=True):
            if step and predicted[row]:
                left = min(numbers.index(step), 2)
                part = 2 - left if split == "leave_last_out" else 0
                by_user = of_first[user] if "published_order" in quirks else 0
                history = [chosen[each] for each in rows[max(0, step - max_history) : step]]
                reported = () if seconds is None else (context[row], context[rows[step - 1]])
                if targets:
                    reported += ([of_event[each] for each in rows[max(0, step - max_history) : step]], of_event[row])
                example = (user_ids[user], history, chosen[row], *reported)
                examples.append(((part, order[row], by_user, row), step, context[row], example))
    examples.sort(key=lambda each: each[0])
    borders = [len(examples) * tenths // 10 for tenths in (8, 9)]
    if ties == "together" and examples:
        at = [each[2] for each in examples]
        borders = [at.index(at[border]) for border in borders]
    if split == "leave_last_out":
        borders = [sum(each[0][0] < part for each in examples) for part in (1, 2)]
    parts = [examples[: borders[0]], examples[borders[0] : borders[1]], examples[borders[1] :]]
    if not all(parts):
        return None
    if max_eval_examples:
        whole = parts
        parts = parts[:1] + [
            [each for row, each in enumerate(part) if len(part) <= most or row * most % len(part) < most]
            for most, part in ((max_eval_examples, part) for part in parts[1:])
        ]
        counts["rows_left_out"] = sum(map(len, whole)) - sum(map(len, parts))
    every = [each for part in parts for each in part]
    known_users = {each[3][0] for each in parts[0]}
    known_items = {each[3][2] for each in parts[0]}
    active = {each[3][0] for each in every}
    counts |= {f"{name}_rows": len(part) for name, part in zip(SPLITS, parts, strict=True)}
    counts |= {
        "rows": len(every),
        "users": len(active),
        "items": len(catalogue),
        "items_without_title": int((catalogue["title"] == "").sum()),
        "items_without_description": int((catalogue["description"] == "").sum()),
        "items_without_interactions": len(catalogue) - len({items[row] for row in kept}),
        "interactions": len(kept),
        "full_histories": sum(each[1] >= max_history for each in every),
        "truncated_histories": sum(each[1] > max_history for each in every),
        "users_without_rows": len(sequences) - len(active),
        "ties": ties,
        "order": audit.counts(),
        "split": SPLIT_NAMES[split] + TIES[ties] + (f", targets {', '.join(targets)}" if targets else ""),
        "max_history": max_history,
    }
    if targets:
        met = Counter(of_event[row] for row in kept)
        events = {name: met[name] for name in source.events}
        counts |= {"events": events, "event_names": list(source.events), "targets": list(targets)}
    for name, part in zip(SPLITS[1:], parts[1:], strict=True):
        counts[f"{name}_cold_targets"] = sum(each[3][2] not in known_items for each in part)
        counts[f"{name}_new_users"] = sum(each[3][0] not in known_users for each in part)
    found = {name: [each[3] for each in part] for name, part in zip(SPLITS, parts, strict=True)}
    return Built(catalogue, counts, audit, found)


def _audit(sequences, items, ids, kept_ids, context, timed):
    pairs = [pair for rows in sequences.values() for pair in pairwise(rows)]
    kinds = {
        "ties": [pair for pair in pairs if context[pair[0]] == context[pair[1]]],
        "others": [pair for pair in pairs if context[pair[0]] != context[pair[1]]],
    }
    kinds = kinds if timed else {"all": pairs}
    values = {"text": lambda row: ids[items[row]], "number": lambda row: int(ids[items[row]])}
    if not (len(kept_ids) and all(one.isascii() and one.isdigit() for one in kept_ids)):
        del values["number"]

    def rises(value, some):
        found = [(value(before), value(after)) for before, after in some]
        return Agreement(sum(a != b for a, b in found), sum(a < b for a, b in found))

    orders = {name: {kind: rises(value, some) for kind, some in kinds.items()} for name, value in values.items()}
    if timed:
        orders["file"] = {"ties": rises(lambda row: row, kinds["ties"])}
    return OrderAudit(len(pairs), len(kinds["ties"]) if timed else None, orders)


def check(source, engine=None, **choices) -> Built | None:
    """Build a source, and hold what comes out against the oracle; None where both refuse."""
    wanted = oracle(source, **choices)
    try:
        found = build(source, engine, **choices)
    except MinioneRecError:
        assert wanted is None
        return None
    assert wanted is not None
    assert replace(found, rows=None, chains=None, items=None) == replace(wanted, items=None)
    assert found.items.equals(wanted.items)
    return found
