"""Request features: buckets, hours and weekdays of examples and requests, and what they are read from."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from support.builder import build, read_tables
from support.examples import in_blocks
from support.gaps import GAP, make_gap_corpus

from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.contexts import (
    GAP_EDGES,
    WEEKDAYS,
    RequestFeature,
    chosen_features,
    context_codes,
    corpus_codes,
    corpus_features,
    value_names,
)
from minionerec.data.rows import SplitExamples
from minionerec.data.times import NO_TIME, RowTimes

START = 1_541_376_000  # 2018-11-05, a Monday, midnight in UTC
DAY = 86_400


def examples(times):
    """Examples of pairs of times: of the target, and of the newest item before it."""
    count = len(times)
    return SplitExamples.of(["u"] * count, [[0]] * count, [1] * count, RowTimes(*np.array(times).T.copy()))


def shop_of(folder, times, **choices):
    """A corpus in which each of eight users has items at some times."""
    rows = [(f"u{user}", f"i{user}", time) for user in range(8) for time in times]
    pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp"]).to_csv(folder / "interactions.csv", index=False)
    pd.DataFrame({"item_id": [f"i{item}" for item in range(8)], "title": "Tea"}).to_csv(
        folder / "items.csv", index=False
    )
    return build(read_tables(folder / "interactions.csv", folder / "items.csv"), **choices).corpus()


def test_gaps_have_buckets_and_what_is_not_known_is_unknown():
    feature = RequestFeature("gap", (*GAP_EDGES.values(), "later"), tuple(GAP_EDGES))
    gaps = [0, 1, 1800, 1801, DAY, DAY + 1, 7 * DAY, 30 * DAY, 30 * DAY + 1, -1]
    rows = examples([*((START + gap, START) for gap in gaps), (NO_TIME, START), (START, NO_TIME)])
    assert feature.of_examples(rows).tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 6, 0, 0, 0]
    assert feature.of_examples(replace(rows, times=None)).tolist() == [0] * 12
    codes = context_codes([feature, GAP], rows)
    assert codes.dtype == np.int16 and codes.shape == (12, 2) and set(codes[:, 1].tolist()) == {0, 1, 2}
    assert context_codes([], rows).shape == (12, 0)
    assert value_names([feature, GAP], [0, 2]) == {"gap": "later"}


def test_hours_and_weekdays_are_those_of_a_calendar():
    hour, weekday = RequestFeature("hour", tuple(map(str, range(24)))), RequestFeature("weekday", WEEKDAYS)
    for time in range(START - 400 * DAY, START + 400 * DAY, 12_345):
        date = datetime.fromtimestamp(time, UTC)
        assert hour.names[hour.of_request(None, time)] == str(date.hour)
        assert weekday.names[weekday.of_request(None, time)] == f"{date:%A}"


@pytest.mark.parametrize("kind", ["gap", "hour", "weekday"])
def test_codes_read_nothing_but_the_history_and_the_time(tmp_path, kind):
    """Another target, or what comes later, changes no code of an example."""
    corpus = shop_of(tmp_path, [START, START + 600, START + 2 * DAY, START + 50 * DAY], split="leave_last_out")
    features = [feature for feature in corpus_features(corpus) if feature.name == kind]
    before = {split: context_codes(features, rows) for split, rows in corpus.splits().items()}
    for split, rows in corpus.splits().items():
        assert before[split].any()
        other = replace(rows, targets=(rows.targets + 1) % 8, items=rows.items)
        assert np.array_equal(context_codes(features, other), before[split])
    moved = shop_of(tmp_path, [START, START + 600, START + 2 * DAY, START + 99 * DAY], split="leave_last_out")
    for split in ("train", "valid"):
        assert np.array_equal(context_codes(features, moved.rows(split)), before[split])


@pytest.mark.parametrize(
    ("times", "names", "edges", "unit", "start"),
    [
        ([START, START + 3 * DAY, START + 9 * DAY], ["gap", "weekday"], (7 * DAY,), DAY, 0),
        (
            [START - 5 * 3600, START + 3 * DAY - 5 * 3600, START + 9 * DAY - 5 * 3600],
            ["gap", "weekday"],
            None,
            DAY,
            68_400,
        ),
        ([START, START + 7_200, START + 7_200, START + DAY], ["gap", "hour", "weekday"], None, 3600, 0),
        ([START + 30, START + 90, START + 150], ["gap", "hour", "weekday"], (), 60, 30),
        ([START + 30, START + 91, START + 92], ["gap", "hour", "weekday"], (), 1, 0),
        ([17_840, 17_840, 17_841, 17_849], ["gap"], (0,), 0, 0),
    ],
)
def test_a_corpus_has_the_features_that_its_times_tell(tmp_path, times, names, edges, unit, start):
    corpus = shop_of(tmp_path, [*times, times[-1], times[-1]], split="leave_last_out")
    features = corpus_features(corpus)
    assert [feature.name for feature in features] == names
    assert {(feature.unit, feature.start) for feature in features} == {(unit, start)}
    used = np.unique(context_codes(features[:1], corpus.train)) if edges is not None else []
    for feature in features:
        assert RequestFeature.read(feature.stored(), "model.json") == feature
    if edges is not None:
        assert set(used) - {0} <= set(range(1, features[0].size)) and set(features[0].edges) <= {0, *edges}
    corpus.save(tmp_path / "corpus", config={}, inputs={})
    assert corpus_features(in_blocks(tmp_path / "corpus")) == features
    for split, rows in corpus.splits().items():
        assert np.array_equal(
            corpus_codes(in_blocks(tmp_path / "corpus"), features, split), context_codes(features, rows)
        )


def test_buckets_without_a_training_example_are_merged(tmp_path):
    corpus = shop_of(tmp_path, [START, START + 600, START + 3 * DAY, START + 3 * DAY + 99], split="leave_last_out")
    (gap,) = chosen_features(corpus, ["gap"])
    assert (gap.values, gap.edges) == (("later",), ())
    corpus = shop_of(tmp_path, [START, START, START + 600, *(START + n * 9 * DAY for n in (1, 2, 3))])
    (gap,) = chosen_features(corpus, ["gap"])
    assert (gap.values, gap.edges) == (("same", "up to 30 minutes", "later"), (0, 1800))
    assert make_gap_corpus(tmp_path / "order").has_times
    assert chosen_features(make_gap_corpus(tmp_path / "order"), ["gap"]) == (GAP,)


def test_what_a_corpus_does_not_have_is_refused(tmp_path):
    corpus = make_gap_corpus(tmp_path / "order")
    assert chosen_features(corpus, []) == ()
    with pytest.raises(ConfigError, match=r"context names 'hour', which the corpus does not have. It has gap\."):
        chosen_features(corpus, ["gap", "hour"])
    with pytest.raises(ConfigError, match=r"It has none, as no training example has a time; prepare it from a source"):
        chosen_features(make_gap_corpus(tmp_path / "timeless", timed=False), ["gap"])


def test_values_of_requests():
    gap = RequestFeature("gap", ("same", "up to 1 day", "later"), (0, DAY), DAY)
    assert [gap.code(value) for value in ("same", "unknown", 0, DAY - 1, DAY, 1e9)] == [1, 0, 1, 1, 2, 3]
    hour = RequestFeature("hour", tuple(map(str, range(24))))
    assert [hour.code(value) for value in (0, 23, "13", 7.0)] == [1, 24, 14, 8]
    assert RequestFeature("weekday", WEEKDAYS).code("Sunday") == RequestFeature("weekday", WEEKDAYS).code(6) == 7
    for feature, value in ((gap, -1), (gap, "noon"), (gap, float("nan")), (gap, True), (hour, 24), (hour, 1.5)):
        with pytest.raises(ValueError, match=r"expected a number .* or one of unknown, "):
            feature.code(value)
    assert GAP.of_request(START, START + 9) == 0  # an order of times says nothing of seconds
    local = replace(gap, start=68_400)
    assert [local.of_request(START - 5 * 3600, START - 5 * 3600 + second) for second in (DAY - 1, DAY)] == [1, 2]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "moon"},
        {"values": ["same"]},
        {"values": ["same", "same"]},
        {"values": [1, 2]},
        {"edges": [0.5]},
        {"edges": None},
        {"unit": -1},
        {"other": 1},
    ],
)
def test_a_damaged_feature_is_one_error(changes):
    with pytest.raises(ArtefactError, match=r"^model.json: context: .* describes no request feature$"):
        RequestFeature.read({**GAP.stored(), **changes}, "model.json: context")
    for wrong in (None, 3, "gap", []):
        with pytest.raises(ArtefactError, match="describes no request feature"):
            RequestFeature.read(wrong, "x")
