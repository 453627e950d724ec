"""Corpora of engines beside those of memory: nasty tables, and the rows that interactions of an engine stand for."""

import importlib.util
import os
import shutil

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from minionerec.data.names import SPLITS
from minionerec.data.source import Source, item_table

NASTY = [
    "a", "A", "á", "a\u0301", "á", "ß", "SS", "ss", "0", "00", "000", "007", "7", "7.0", "1e3", "nan", "NaN", "null",
    "NULL", "None", "NA", "N/A", " ", "  ", "\t", "\u00a0", "\u200b", "\u3000", " a", "a ", "'", '"', "''", '""', "`",
    "a'b", 'a"b', "a,b", "a;b", "\\", "\\n", "\\N", "%", "_", "$1", "${x}", "{}", "--", ";",
    "💥", "👩\u200d👩\u200d👧", "\U0010ffff",
    "\ue000", "\uffff", "Ω", "Ω", "İ", "i", "\u0131", "true", "-1", "+1", "0x1f", "日本",
    "\x1f", "\x7f", "\u2028", "\x85",
]  # fmt: skip
"""Ids that readers, databases and spreadsheets like to take for something else."""

ids = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\r\0"), min_size=1, max_size=5),
)


@st.composite
def sources(draw, *, kinds=("whole", "negative", "fractions", "parts", "milliseconds", "nanoseconds", "none")):
    """A source of few users and items with nasty ids, in no order, with ties, gaps and times of one kind."""
    people = draw(st.lists(ids, min_size=1, max_size=6, unique=True))
    goods = draw(st.lists(ids, min_size=1, max_size=8, unique=True))
    size = draw(st.integers(1, 40)) + 30
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    kind = draw(st.sampled_from(kinds))
    moments = chance.integers(0, draw(st.sampled_from([3, 12, 1000])), size)
    times, ticks = {
        "whole": (1_500_000_000 + moments * 3, 1),
        "negative": (moments - 5, 1),
        "fractions": ((moments - 4) / 4, 1),
        "parts": (1_400_000_000 + moments / 3, 1),
        "milliseconds": (1_500_000_000_000 + moments * 400, 1),
        "nanoseconds": (-(10**9) + moments * 300_000_000, 10**9),
        "none": (None, 1),
    }[kind]
    users = chance.integers(0, len(people), size).astype(np.int32)
    return Source(
        items=item_table(goods, title=[draw(st.sampled_from(["", "x"])) for _ in goods]),
        users=users,
        item_index=chance.integers(0, len(goods), size).astype(np.int32),
        times=times,
        user_ids=pa.array(people),
        where="made up",
        ticks=ticks,
    )


def rows_of(corpus, shards=3):
    """Split → [(user, history, target, time, previous time)] of an `EngineCorpus`, as a corpus on disk says them."""
    columns = {name: [] for name in ("shard", "person", "item", "moment", "number", "cut")}
    for batch in corpus.interactions(shards):
        for name, values in columns.items():
            values += batch[batch.schema.get_field_index(name)].to_pylist()
    keys = list(zip(columns["shard"], [person.encode() for person in columns["person"]], strict=True))
    assert keys == sorted(keys)
    found = {name: {} for name in SPLITS}
    begin = 0
    for place, key in enumerate(keys):
        if place and keys[place - 1] != key:
            begin = place
        if columns["cut"][place] < 0:
            continue
        end = place
        if corpus.counts["ties"] == "together":
            while end > begin and columns["moment"][end - 1] == columns["moment"][place]:
                end -= 1
        history = columns["item"][max(begin, end - corpus.max_history) : end]
        times = (columns["moment"][place], columns["moment"][end - 1]) if corpus.timed else ()
        row = (columns["person"][place], history, columns["item"][place], *times)
        found[SPLITS[columns["cut"][place]]][columns["number"][place]] = row
    for rows in found.values():
        assert sorted(rows) == list(range(len(rows)))
    return {name: [rows[number] for number in range(len(rows))] for name, rows in found.items()}


def no_spark():
    """Why Spark cannot be tested here; None where it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "there is no Java"
    return None
