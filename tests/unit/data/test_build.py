"""The builder against plain loops, by each engine: examples, items, counts, audit, files and refusals."""

from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.baskets import source_of
from support.builder import build as build_one
from support.builder import check, read_tables
from support.engines import sources
from support.paths import ROOT

from minionerec.core.errors import ConfigError
from minionerec.data import build, names
from minionerec.data.build import build_corpus
from minionerec.data.corpus import write_corpus
from minionerec.data.engines.engine import started
from minionerec.data.names import SPLITS
from minionerec.data.published import check_histories
from minionerec.data.source import Source, item_table

ENGINES = ["duckdb", *(pytest.param(name, marks=pytest.mark.slow) for name in names.ENGINES[1:])]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request, tmp_path_factory):
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(started(request.param, "1GB", tmp_path_factory.mktemp("engine")))
        except ConfigError as error:
            if request.param == "duckdb":
                raise
            pytest.skip(str(error))  # what the engine of an optional part needs is not installed
        yield engine


@cache
def shop():
    folder = ROOT / "data" / "demo"
    return read_tables(folder / "interactions.csv", folder / "items.csv")


def demo():
    """The demo shop, read once; columns that a test may change are its own."""
    columns = {name: getattr(shop(), name).copy() for name in ("users", "item_index", "times")}
    return replace(shop(), counts=dict(shop().counts), **columns)


choices = st.fixed_dictionaries(
    {
        "split": st.sampled_from(["global_time", "leave_last_out"]),
        "ties": st.sampled_from(["keep", "shuffle", "together"]),
        "max_history": st.sampled_from([1, 2, 3, 10]),
        "core": st.sampled_from([0, 1, 2, 5, 12]),
        "max_eval_examples": st.sampled_from([0, 0, 1, 2, 3, 7]),
        "quirks": st.sampled_from([(), (), ("published_order",)]),
        "targets": st.sampled_from([(), (), ("purchase",), ("cart", "purchase")]),
        "seed": st.integers(0, 5),
    }
)


def any_source(examples):
    """A test of so many sources."""

    @given(source=sources(), chosen=choices)
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    def run(engine, source, chosen):
        found = check(source, engine, **chosen)
        if found is None:
            return
        counts = check_histories(found.corpus())
        if chosen["ties"] != "together" and not chosen["max_eval_examples"] and not chosen["targets"]:
            assert counts["continued_rows"] == found.counts["rows"] - found.counts["users"]
            assert counts["broken_rows"] == 0

    return run


only_duckdb = pytest.mark.parametrize("engine", ENGINES[:1], indirect=True)
test_any_source = only_duckdb(any_source(40))
test_any_source_with_other_engines = pytest.mark.parametrize("engine", ENGINES[1:], indirect=True)(any_source(5))


@only_duckdb
@given(
    source=sources(kinds=("whole", "nanoseconds")),
    chosen=choices,
    start=st.sampled_from([None, "1970-01", "2017-07-14T02:40:05", "1969-12-31T23:59:59.5"]),
    end=st.sampled_from([None, "2017-07-14T02:40:09", "2017-07-14T02:41:00+00:00", "1970-01-01T00:00:02.1"]),
)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_any_window(engine, source, chosen, start, end):
    check(source, engine, start=start, end=end, **chosen)


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"split": "leave_last_out", "max_history": 3},
        {"core": 8, "start": "2024-02", "end": "2024-10-01", "ties": "together"},
        {"core": 4, "start": "1999-03"},
        {"core": 3, "quirks": ["published_order"], "max_eval_examples": 200},
    ],
)
def test_the_demo_shop(engine, chosen):
    assert check(demo(), engine, **chosen)


def test_progress_goes_through_every_step(engine, monkeypatch):
    shown = []
    monkeypatch.setattr(build, "progress", lambda steps, *of, **how: (shown.append(step) or step for step in steps))
    build_corpus(engine, demo(), ties="shuffle", core=2)
    assert tuple(shown) == build._STEPS


@pytest.mark.parametrize("ties", ["keep", "shuffle", "together"])
def test_months_of_the_demo_shop(engine, ties):
    source = demo()
    order = np.random.default_rng(1).permutation(np.flatnonzero(source.users < 700))  # so that rows and times disagree
    columns = {name: getattr(source, name)[order] for name in ("users", "item_index", "times")}
    source = replace(source, **columns | {"times": columns["times"] // 2_592_000 * 2_592_000})
    for split, start in {"global_time": "2024-03", "leave_last_out": None}.items():
        assert check(source, engine, ties=ties, split=split, start=start, max_history=4, core=3)


@pytest.mark.parametrize("shard", [6000, 10**6])
def test_files_are_those_of_the_same_examples_written_at_once(engine, tmp_path, shard):
    with mock.patch("minionerec.data.shards.SHARD", shard), mock.patch("minionerec.data.shards.GROUP", 300):
        built = build_corpus(engine, demo(), ties="together")
        for name in ("parts", "whole"):
            (tmp_path / name).mkdir()
        built.write(tmp_path / "parts")
        write_corpus(tmp_path / "whole", built.items, built.chains())
    files = sorted(path.relative_to(tmp_path / "parts") for path in (tmp_path / "parts").rglob("*.parquet"))
    assert len(files) == (4 if shard == 6000 else 2)
    assert all((tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in files)


def made_up(users, items, times, ticks=1):
    """A source of users and items by their numbers."""
    table = item_table([f"i{n}" for n in range(int(items.max()) + 1)])
    ids = pa.array([f"u{n}" for n in range(users.max() + 1)])
    return Source(table, users.astype(np.int32), items.astype(np.int32), times, ids, "made up", ticks)


def test_a_first_timestamp_of_more_items_than_a_history_holds(engine):
    """Users 0 to 9 begin with items 0 to 4 at once: these are the target of no training example."""
    interactions = [(user, item, 1_500_000_000) for user in range(10) for item in range(5)]
    interactions += [(user, 5 + user % 3, 1_500_000_000 + 60 * step) for step in range(1, 9) for user in range(10)]
    interactions += [(10 + user, user % 5, 1_500_001_000 + position) for user in range(10) for position in range(2)]
    users, items, times = np.array(interactions).T
    source = made_up(users, items, times)
    assert check(source, engine, ties="together", max_history=2).counts["test_cold_targets"] > 0


@pytest.mark.parametrize("ticks", [1, 10**3, 10**6, 10**9, 0.5])
def test_seconds_of_times_in_every_unit(engine, ticks):
    timestamps = 1_500_000_000 + np.arange(40)
    times = timestamps + 0.75 if ticks == 0.5 else timestamps * ticks
    source = made_up(np.arange(40) % 2, np.zeros(40), times, ticks=1 if ticks == 0.5 else ticks)
    found = check(source, engine)
    assert [row[3] for rows in found.examples.values() for row in rows] == timestamps[2:].tolist()


def test_many_rows_are_numbered_in_their_order(tmp_path):
    with started("duckdb", "1GB", tmp_path) as engine:  # several row groups, which its threads take one by one
        engine.numbered("numbered", "SELECT range * 7919 % 1000003 AS key FROM range(1000003)", "key", "number")
        assert engine.row("SELECT count(*), count(*) FILTER (number <> key) FROM numbered") == (1000003, 0)


def test_an_engine_gives_on_what_is_wrong_with_a_source(engine):
    class Wrong(Exception):
        pass

    def batches():
        yield next(demo().batches())
        raise Wrong("of the source itself")

    source = mock.Mock(wraps=demo(), batches=batches)
    with pytest.raises(Wrong, match="of the source itself"):
        build_corpus(engine, source)


def test_what_duckdb_does_not_begin_with_is_one_line(tmp_path):
    reported = r"a.*: DuckDB cannot start there \(.*\)\. Give another engine_folder"
    with pytest.raises(ConfigError, match=reported), started("duckdb", "99999999TB", tmp_path / "a"):
        pass
    assert not list((tmp_path / "a").glob(".minionerec*"))


def test_duckdb_works_in_a_folder_with_a_backslash(tmp_path):
    with started("duckdb", "1GB", tmp_path / "a\\b") as engine:
        assert check(demo(), engine)


def test_folders_that_killed_engines_left_are_named(tmp_path, caplog):
    (tmp_path / ".minionerec-engine-old").mkdir()
    with started("duckdb", "1GB", tmp_path):
        pass
    (reported,) = {record.message for record in caplog.records}
    assert reported.startswith(f"{tmp_path}/.minionerec-engine-old: left by interrupted runs")


def test_a_split_by_one_single_time_is_reported(caplog):
    pairs = [(user, 7) for user in range(5) for _ in range(6)]
    build_one(source_of(pairs))
    (reported,) = {record.message for record in caplog.records}
    assert reported.startswith("made up: all 30 interactions have one time, so the split by time is by the order of")
    caplog.clear()
    build_one(source_of(pairs), split="leave_last_out")
    build_one(source_of([*pairs, (9, 8)]))
    assert not caplog.records


def test_splits_are_those_of_the_statements():
    assert SPLITS == ("train", "valid", "test")  # their indices are literals there
