"""Runs of one seed or several as metrics, intervals and paired differences."""

import numpy as np
import pytest
from support.runs import lists_of, write_run

from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranked import Ranked
from minionerec.metrics.ranking import evaluate_predictions, sid_ranks
from minionerec.metrics.statistics import bootstrap_interval, paired_bootstrap
from minionerec.reports.systems import (
    Bootstrap,
    System,
    check_same_rows,
    differences,
    estimates,
    load_system,
    metrics_at,
    splits_of,
)

TARGETS = np.arange(30, dtype=np.int32)
RANKS = np.random.default_rng(0).integers(1, 25, (3, 30))


def system(ranks, name="x", width=None):
    users = [f"u{target}" for target in TARGETS]
    return System(name, [Ranked(users, TARGETS, {"item": np.asarray(found)}, width) for found in ranks])


def with_sids(lists):
    """The same lists; items are paired up under SIDs."""
    return Predictions(
        lists.users,
        lists.targets,
        [f"<a_{target // 2}>" for target in lists.targets],
        lists.items,
        [[f"<a_{item // 2}>" for item in row] for row in lists.items],
        lists.scores,
    )


def test_names_of_metrics():
    assert metrics_at([5, 1], False) == ["HR@1", "HR@5", "NDCG@1", "NDCG@5", "MRR@5"]
    assert metrics_at([1, 5], True) == ["HR@1", "HR@5", "NDCG@1", "NDCG@5", "MRR@5", "MRR@1"]


def test_one_seed_is_measured_to_the_bit_as_its_lists_are():
    lists = lists_of(RANKS[0], TARGETS)
    known = evaluate_predictions(lists, [1, 5, 20], resamples=200, seed=3).item
    ranked = System("x", [Ranked.from_predictions(lists)])
    assert estimates(ranked, "item", metrics_at([1, 5, 20], False), Bootstrap.of(3, 200, "users", lists.users)) == known


def test_several_seeds_are_averaged_row_by_row():
    drawn = Bootstrap.of(1, 100, "users", system(RANKS).users)
    found = estimates(system(RANKS), "item", ["HR@5", "MRR@10"], drawn)["MRR@10"]
    values = np.where(RANKS <= 10, 1 / RANKS, 0.0)
    assert found.mean == pytest.approx(values.mean())
    assert found.sd == pytest.approx(values.mean(1).std(ddof=1))
    assert found.low < found.mean < found.high
    other = system(RANKS[:1], "y")
    gap = differences(system(RANKS), other, "item", ["MRR@10"], drawn)["MRR@10"]
    assert gap == pytest.approx(paired_bootstrap(values.mean(0), values[0], 1, 100))


def test_lists_end_where_they_end():
    with pytest.raises(ConfigError, match="HR@50 needs lists of 50, but those of x hold 20"):
        system(RANKS, width=20).values("item", ["HR@20", "HR@50"])
    mixed = System("x", [*system(RANKS[:1]).runs, *system(RANKS[1:2], width=10).runs])
    assert (mixed.width, system(RANKS).width) == (10, None)
    with pytest.raises(ArtefactError, match="x: has no ranks at level sid"):
        system(RANKS).values("sid", ["HR@1"])


def test_full_ranks_are_taken_before_lists_and_seeds_in_their_order(tmp_path):
    write_run(tmp_path / "run", RANKS, TARGETS)
    found = load_system("x", tmp_path / "run", "test")
    assert np.array_equal([run.ranks["item"] for run in found.runs], RANKS)
    assert (found.width, dict(found.about)) == (None, {"parameters": 1234, "recipe": "all positions"})
    assert (load_system("x", tmp_path / "run", "valid").runs[0].ranks["item"] == 1).all()
    assert splits_of(tmp_path / "run") == ["test", "valid"]
    one = load_system("x", tmp_path / "run" / "seed-10" / "predictions", "test")
    assert np.array_equal(one.runs[0].ranks["item"], RANKS[1])


def test_lists_give_ranks_at_both_levels(tmp_path):
    lists = with_sids(lists_of(RANKS[0], TARGETS))
    lists.save(tmp_path / "lists", config={}, inputs={}, counts={"split": "test", "beams": 20})
    found = load_system("x", tmp_path / "lists", "test")
    assert found.runs[0].ranks["sid"].tolist() == sid_ranks(lists).tolist()
    assert found.runs[0].ranks["item"].tolist() == [rank if rank <= 20 else 0 for rank in RANKS[0]]
    assert (found.width, dict(found.about), splits_of(tmp_path / "lists")) == (20, {}, ["test"])
    with pytest.raises(ArtefactError, match="is about the test rows, not the valid rows"):
        load_system("x", tmp_path / "lists", "valid")


def test_rows_are_held_against_one_another():
    check_same_rows(system(RANKS), system(RANKS[:1]), "test")
    other = System("y", [Ranked(["u"], TARGETS[:1], {"item": RANKS[0, :1]}, None)])
    with pytest.raises(ArtefactError, match="y: its 1 test rows are not the 30 of x"):
        check_same_rows(other, system(RANKS), "test")
    users = [*system(RANKS).users[:-1], "v"]
    other = System("y", [Ranked(users, TARGETS, {"item": RANKS[0]}, None)])
    with pytest.raises(ArtefactError, match="y: its test row 29 is of user 'v', that of x of 'u29'"):
        check_same_rows(other, system(RANKS), "test")


def test_users_are_drawn_with_all_of_their_examples_unless_examples_are_asked_for():
    users = np.repeat([f"u{number}" for number in range(10)], 3)
    values = np.where(RANKS <= 10, 1 / RANKS, 0.0).mean(0)
    found = {}
    for resample, clusters in (("users", users), ("examples", None)):
        drawn = Bootstrap.of(1, 100, resample, users.tolist())
        found[resample] = estimates(system(RANKS), "item", ["MRR@10"], drawn)["MRR@10"]
        low, high = bootstrap_interval(values, 1, 100, clusters=clusters)
        assert (found[resample].low, found[resample].high) == pytest.approx((low, high))
        gap = differences(system(RANKS), system(RANKS[:1], "y"), "item", ["MRR@10"], drawn)["MRR@10"]
        other = np.where(RANKS[0] <= 10, 1 / RANKS[0], 0.0)
        assert gap == pytest.approx(paired_bootstrap(values, other, 1, 100, clusters=clusters))
    assert found["users"] != found["examples"]
    assert Bootstrap.of(1, 100, "users", users.tolist()).said() == (
        "Intervals and paired tests: 100 bootstrap samples of 10 users, each with all of its examples "
        "(30 examples in all)."
    )
    assert Bootstrap.of(1, 100, "examples", users.tolist()).said() == (
        "Intervals and paired tests: 100 bootstrap samples of 30 examples, each by itself."
    )
