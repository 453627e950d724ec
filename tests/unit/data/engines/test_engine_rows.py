"""What an engine makes of a source against what memory makes of it: rows, items, counts, and refusals."""

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import no_spark, rows_of, sources
from support.paths import ROOT

from minionerec.core.errors import MinioneRecError
from minionerec.data.build import build_corpus
from minionerec.data.engines.build import build_with, median
from minionerec.data.engines.choose import started
from minionerec.data.engines.handing import hand_over_source
from minionerec.data.names import SPLITS
from minionerec.data.source import Source, item_table
from minionerec.data.sources.tables import read_tables

spark_too = [
    "duckdb",
    pytest.param("spark", marks=[pytest.mark.slow, pytest.mark.skipif(bool(no_spark()), reason=str(no_spark()))]),
]


@pytest.fixture(scope="module", params=spark_too)
def engine(request, tmp_path_factory):
    if request.param == "duckdb":
        pytest.importorskip("duckdb")
    with started(request.param, "1GB", tmp_path_factory.mktemp("engine")) as engine:
        yield engine


def rows_in_memory(built):
    """Split → [(user, history, target, times)] of a `BuiltCorpus`."""
    found = {}
    for split, rows in built.corpus().splits().items():
        times = [] if rows.times is None else [rows.times.time.tolist(), rows.times.previous.tolist()]
        histories = [history.tolist() for history in rows.histories]
        found[split] = list(zip(rows.users.tolist(), histories, rows.targets.tolist(), *times, strict=True))
    return found


def files_of(corpus, place):
    """Name → bytes of the files of a corpus."""
    place.mkdir()
    corpus.write(place)
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*.parquet")}


def check_equal(engine, source, shard=20, **choices):
    """Build in both ways; both refuse with the same words, or give the same."""
    try:
        wanted = build_corpus(source, **choices)
    except MinioneRecError as error:
        with pytest.raises(type(error)) as refused:
            build_with(engine, hand_over_source(engine, source), **choices)
        assert str(refused.value) == str(error)
        return False
    found = build_with(engine, hand_over_source(engine, source), **choices)
    assert found.all_counts() == wanted.all_counts()
    assert list(found.all_counts()) == list(wanted.all_counts())
    assert found.audit == wanted.audit
    assert found.items.equals(wanted.items)
    assert rows_of(found) == rows_in_memory(wanted)
    with tempfile.TemporaryDirectory() as place, mock.patch("minionerec.data.shards.SHARD", shard):
        assert files_of(found, Path(place) / "found") == files_of(wanted, Path(place) / "wanted")
    return True


choices = st.fixed_dictionaries(
    {
        "split": st.sampled_from(["global_time", "leave_last_out"]),
        "ties": st.sampled_from(["keep", "shuffle", "together"]),
        "max_history": st.sampled_from([1, 2, 3, 10]),
        "core": st.sampled_from([0, 1, 2, 5, 12]),
        "max_eval_rows": st.sampled_from([0, 0, 1, 2, 3, 7]),
        "seed": st.integers(0, 5),
    }
)


def any_source(examples):
    """A test of so many sources."""

    @given(source=sources(), chosen=choices)
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    def check(engine, source, chosen):
        check_equal(engine, source, **chosen)

    return check


only_duckdb = pytest.mark.parametrize("engine", spark_too[:1], indirect=True)
test_any_source = only_duckdb(any_source(25))
test_any_source_with_spark = pytest.mark.parametrize("engine", spark_too[1:], indirect=True)(any_source(5))


@only_duckdb
@given(
    source=sources(kinds=("whole", "nanoseconds")),
    chosen=choices,
    start=st.sampled_from([None, "1970", "2017-07-14T02:40:05", "1969-12-31T23:59:59.5"]),
    end=st.sampled_from([None, "2017-07-14T02:40:09", "2017-07-14T02:41:00+00:00", "1970-01-01T00:00:02.1"]),
)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_window(engine, source, chosen, start, end):
    start = "1970-01" if start == "1970" else start
    check_equal(engine, source, start=start, end=end, **chosen)


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"split": "leave_last_out", "max_history": 3},
        {"core": 8, "start": "2024-02", "end": "2024-10-01", "ties": "together"},
    ],
)
def test_the_demo_shop(engine, chosen):
    source = read_tables(ROOT / "data" / "demo" / "interactions.csv", ROOT / "data" / "demo" / "items.csv")
    assert check_equal(engine, source, 10**6, **chosen)


@pytest.mark.parametrize("ties", ["keep", "shuffle", "together"])
def test_months_of_the_demo_shop(engine, ties):
    source = read_tables(ROOT / "data" / "demo" / "interactions.csv", ROOT / "data" / "demo" / "items.csv")
    source.times[:] = source.times // 2_592_000 * 2_592_000
    order = np.random.default_rng(1).permutation(len(source.users))
    for column in (source.users, source.item_index, source.times):  # in no order, so that places and times disagree
        column[:] = column[order]
    for split, start in {"global_time": "2024-03", "leave_last_out": None}.items():
        assert check_equal(engine, source, 6000, ties=ties, split=split, start=start, max_history=4, core=3)


def test_a_first_moment_of_more_items_than_a_history_holds(engine):
    """Users 0 to 9 begin with items 0 to 4 at once; only the newest two of them are in any history."""
    visits = [(user, item, 1_500_000_000) for user in range(10) for item in range(5)]
    visits += [(user, 5 + user % 3, 1_500_000_000 + 60 * step) for step in range(1, 9) for user in range(10)]
    visits += [(10 + user, user % 5, 1_500_001_000 + place) for user in range(10) for place in range(2)]
    users, items, times = np.array(visits).T
    source = Source(
        items=item_table(list("abcdefgh")),
        users=users.astype(np.int32),
        item_index=items.astype(np.int32),
        times=times,
        user_ids=pa.array([f"u{user}" for user in range(20)]),
        where="made up",
    )
    assert check_equal(engine, source, ties="together", max_history=2)
    counts = build_with(engine, hand_over_source(engine, source), ties="together", max_history=2).counts
    assert counts["test_cold_targets"] > 0


def test_a_window_that_widens(engine):
    source = read_tables(ROOT / "data" / "demo" / "interactions.csv", ROOT / "data" / "demo" / "items.csv")
    assert check_equal(engine, source, 5000, start="1999-03", quirks=["widen_window"], core=4)


def test_the_order_of_the_published_data_is_refused(engine):
    source = read_tables(ROOT / "data" / "demo" / "interactions.csv", ROOT / "data" / "demo" / "items.csv")
    with pytest.raises(MinioneRecError, match=f"'published_order' is made in memory, not by engine '{engine.name}'"):
        build_with(engine, hand_over_source(engine, source), quirks=["published_order"])


@pytest.mark.parametrize(
    "numbers",
    [
        [5],
        [3, 1],
        [1, 2, 3, 4, 10**15],
        [-(2**62), 2**62, 2**62 + 10**6, 0],
        [0.1, 0.2, 0.2, 1e300, -1e300, 1e-300],
        list(range(-50, 51)) + [10**12] * 99,
    ],
)
def test_the_median_is_that_of_numpy(engine, numbers):
    kind = "DOUBLE" if isinstance(numbers[0], float) else "BIGINT"
    rows = " UNION ALL ".join(f"SELECT CAST('{number!r}' AS {kind}) AS t" for number in numbers)
    engine.table("figures", rows)
    assert median(engine, "figures", "t", len(numbers)) == np.median(np.array(numbers))


def test_splits_are_those_of_memory():
    assert SPLITS == ("train", "valid", "test")  # their places are literals of the statements
