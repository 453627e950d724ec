"""Metrics by kind of row: the same as measuring those rows alone."""

import numpy as np
import pytest

from minionerec.metrics.level_slices import format_level_parts, levels_by_kind
from minionerec.metrics.levels import level_analysis
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.slices import FEWEST, Kind, alike, format_parts, list_kinds, measure_kinds
from minionerec.metrics.statistics import bootstrap_interval, paired_bootstrap

ROWS = 100


@pytest.fixture
def values():
    rng = np.random.default_rng(0)

    def of(seeds, most):
        found = [ranking_metrics(rng.integers(1, most, ROWS), [10]) for _ in range(seeds)]
        return {name: np.stack([each[name] for each in found]) for name in ("HR@10", "NDCG@10")}

    return {"one": of(3, 30), "two": of(1, 12)}


def test_estimates_and_differences_are_those_of_the_rows_alone(values):
    where = np.arange(ROWS) % 3 == 0
    kinds = list_kinds({"g": {"a": where, "b": ~where, "none": np.zeros(ROWS, bool)}})
    assert [(kind.name, kind.rows) for kind in kinds] == [("a", 34), ("b", 66)]
    part = measure_kinds(kinds, values, seed=4, resamples=200)[0]
    rows = {name: of["NDCG@10"].mean(0)[where] for name, of in values.items()}
    low, high = bootstrap_interval(rows["one"], 4, 200)
    found = part.estimates["one"]["NDCG@10"]
    assert (found.mean, found.low, found.high) == pytest.approx((rows["one"].mean(), low, high))
    assert found.sd == pytest.approx(values["one"]["NDCG@10"][:, where].mean(1).std(ddof=1))
    assert part.estimates["two"]["NDCG@10"].sd is None
    gap = paired_bootstrap(rows["two"], rows["one"], 4, 200)
    assert part.against["two"]["NDCG@10"] == pytest.approx(gap)
    assert "one" not in part.against
    said = part.to_json("two")
    assert said["share"] == 0.34
    assert said["against"]["NDCG@10"] == pytest.approx(list(gap))


def test_of_few_rows_nothing_is_said(values):
    where = np.arange(ROWS) < FEWEST - 1
    parts = measure_kinds(list_kinds({"g": {"few": where, "many": ~where}}), values, resamples=50)
    assert parts[0].to_json("one") == {
        "group": "g", "kind": "few", "rows": FEWEST - 1, "share": 0.29, "metrics": {}, "against": {},
    }  # fmt: skip
    text = format_parts(parts, "HR@10", list(values))
    assert text.splitlines()[2].split() == ["g", "few", "29", "29.0", "%", "-", "-"]
    assert text.endswith(f"-: fewer than {FEWEST} rows or users")
    assert f"{values['two']['HR@10'][:, ~where].mean():.4f} [" in text.splitlines()[3]


def test_users_of_a_kind_are_drawn_with_their_examples_and_few_users_say_nothing(values):
    users, where = np.arange(ROWS) // 2, np.arange(ROWS) < 70
    part = measure_kinds(list_kinds({"g": {"a": where, "b": ~where}}), values, 4, 200, users)[0]
    rows = {name: of["NDCG@10"].mean(0)[where] for name, of in values.items()}
    found = part.estimates["one"]["NDCG@10"]
    own = {"clusters": users[where]}
    assert (found.low, found.high) == pytest.approx(bootstrap_interval(rows["one"], 4, 200, **own))
    assert part.against["two"]["NDCG@10"] == pytest.approx(paired_bootstrap(rows["two"], rows["one"], 4, 200, **own))
    of_one_user = measure_kinds(list_kinds({"g": {"a": where, "b": ~where}}), values, 4, 200, np.where(where, 0, users))
    assert of_one_user[0].estimates == {} and of_one_user[0].against == {}


def test_groups_that_tell_nothing_apart_are_told_in_words():
    everyone, half = np.ones(4, bool), np.arange(4) < 2
    kinds = {"user": {"in training": everyone, "new": ~everyone}, "g": {"a": half, "b": ~half}}
    assert [kind.group for kind in list_kinds(kinds)] == ["g", "g"]
    assert alike(kinds) == {"user": "in training"}


def test_levels_by_kind_are_the_levels_of_those_rows():
    rng = np.random.default_rng(0)

    def sid():
        return "".join(f"<{level}_{rng.integers(3)}>" for level in "abc")

    targets = [sid() for _ in range(ROWS - 1)] + ["junk"]
    lists = [[sid() for _ in range(12)] for _ in range(ROWS)]
    predictions = Predictions(
        [str(row) for row in range(ROWS)],
        np.zeros(ROWS, np.int32),
        targets,
        [[0] * 12 for _ in lists],
        lists,
        [[-float(place) for place in range(12)] for _ in lists],
    )
    where = np.arange(ROWS) >= 60
    kinds = [Kind("g", "a", where), Kind("g", "b", np.arange(ROWS) < 5), Kind("g", "junk", np.arange(ROWS) > 98)]
    first, few, junk = levels_by_kind(predictions, kinds, [1, 10], 3, 12, True)
    plain = level_analysis(predictions.on(where), [1, 10], levels=3, keep_duplicates=True)
    assert first.analysis.to_json() == plain.to_json()
    assert first.to_json()["rows"] == 39  # its target that is no SID does not count
    assert few.analysis is junk.analysis is None
    text = format_level_parts([first, few], [1, 10], 3)
    assert f"{plain.cumulative[1, 2]:.4f}" == text.splitlines()[2].split()[-1]
    assert text.splitlines()[3].split()[-6:] == ["-"] * 6
