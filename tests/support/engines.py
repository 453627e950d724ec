"""Nasty tables and sources, and corpora that engines make of them."""

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from minionerec.core.artefacts import read_manifest
from minionerec.data.corpus import Corpus
from minionerec.data.source import Source, item_table
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare
from support.paths import ROOT

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
    items = draw(st.lists(ids, min_size=1, max_size=8, unique=True))
    size = draw(st.integers(1, 40)) + 30
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    kind = draw(st.sampled_from(kinds))
    contexts = chance.integers(0, draw(st.sampled_from([3, 12, 1000])), size)
    times, ticks = {
        "whole": (1_500_000_000 + contexts * 3, 1),
        "negative": (contexts - 5, None),
        "fractions": ((contexts - 4) / 4, None),
        "parts": (1_400_000_000 + contexts / 3, 1),
        "milliseconds": (1_500_000_000_000 + contexts * 400, 1000),
        "nanoseconds": (-(10**9) + contexts * 300_000_000, 10**9),
        "none": (None, 1),
    }[kind]
    users = chance.integers(0, len(people), size).astype(np.int32)
    table = item_table(items, title=[draw(st.sampled_from(["", "x"])) for _ in items])
    index = chance.integers(0, len(items), size).astype(np.int32)
    events = {"events": ("view", "cart", "purchase"), "event_numbers": chance.integers(0, 3, size).astype(np.int16)}
    return Source(table, users, index, times, pa.array(people), "made up", ticks, **events)


def prepared(folder, engine="duckdb", **settings):
    """The files and the counts of a corpus, and the seed of its manifest."""
    output = folder / engine
    result = run_prepare(PrepareConfig(**settings, engine=engine, output=str(output)))
    files = {path.relative_to(output).as_posix(): path.read_bytes() for path in output.rglob("*.parquet")}
    assert "sequences/00000.parquet" in files and "items.parquet" in files
    assert Corpus.load(output).counts == result.counts
    assert not list(folder.glob(".minionerec-engine*"))
    return files, result.counts, read_manifest(output)["seed"]


def demo_tables(folder):
    """The demo shop with two rows that cannot be used: settings that read it."""
    text = (ROOT / "data" / "demo" / "interactions.csv").read_text()
    again = "".join(text.splitlines(keepends=True)[1:9:2])
    (folder / "bought.csv").write_text(f"{text}U0001,nothing,1719033260\n,P001,1719033260\n{again}")
    items = str(ROOT / "data" / "demo" / "items.csv")
    return {"source": "tables", "interactions": str(folder / "bought.csv"), "items": items, "max_bad_rows": 2}
