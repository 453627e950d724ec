"""Recommenders on the same examples: seeds, metrics, intervals, paired differences and slices against numpy."""

import numpy as np
import pytest
from support.measuring import evaluate_predictions, paired_bootstrap
from support.runs import lists_of, results_of, write_run

from minionerec.core.artefacts import write_artefact
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranked import Ranked, write_ranks
from minionerec.metrics.ranking import ranking_metrics, sid_ranks
from minionerec.metrics.results import FEWEST, RecommenderResults, alike, list_slices, metrics_at
from minionerec.metrics.statistics import bootstrap_interval

ROWS = 100
TARGETS = np.arange(ROWS, dtype=np.int32)
RANKS = {"one": np.random.default_rng(0).integers(1, 30, (3, ROWS)), "two": np.full((1, ROWS), 4)}
RANKS["two"][0, ::3] = 2
METRICS = ["HR@10", "NDCG@10", "MRR@10"]
THIRD = np.arange(ROWS) % 3 == 0


def values(name, metric="NDCG@10"):
    k = int(metric.partition("@")[2])
    return np.stack([ranking_metrics(found, [k])[metric] for found in RANKS[name]])


def with_sids(lists):
    """The same lists; items are paired up under SIDs."""
    sids = [[f"<a_{item // 2}>" for item in row] for row in lists.items]
    targets = [f"<a_{target // 2}>" for target in lists.targets]
    return Predictions(lists.users, lists.targets, targets, lists.items, sids, lists.scores)


def test_names_of_metrics():
    assert metrics_at([5, 1], False) == ["HR@1", "HR@5", "NDCG@1", "NDCG@5", "MRR@5"]
    assert metrics_at([1, 5], True) == ["HR@1", "HR@5", "NDCG@1", "NDCG@5", "MRR@5", "MRR@1"]


@pytest.mark.parametrize("users", [None, TARGETS // 2])
def test_estimates_and_differences_are_of_the_means_over_seeds(users):
    results = results_of(RANKS, METRICS, users=users, resamples=200, seed=3)
    found = results.estimates("item")["one"]["NDCG@10"]
    ours, theirs = values("one"), values("two")
    assert (found.mean, found.sd) == pytest.approx((ours.mean(), ours.mean(1).std(ddof=1)))
    assert (found.low, found.high) == pytest.approx(bootstrap_interval(ours.mean(0), 3, 200, clusters=users))
    assert results.estimates("item")["two"]["HR@10"].sd is None
    gap = paired_bootstrap(theirs[0], ours.mean(0), 3, 200, clusters=users)
    assert results.differences("one", "item")["two"]["NDCG@10"] == pytest.approx(gap)
    assert results.difference("one", "two", "item", "NDCG@10") == pytest.approx(gap.opposite())
    assert results.difference("one", "two", "item", "NDCG@10").p == pytest.approx(gap.p)


def test_one_seed_is_measured_to_the_bit_as_its_lists_are():
    lists = with_sids(lists_of(RANKS["one"][0], TARGETS))
    known = evaluate_predictions(lists, [1, 5, 20], resamples=200, seed=3)
    results = results_of({"x": RANKS["one"][:1]}, metrics_at([1, 5, 20], False), resamples=200, seed=3)
    assert results.estimates("item")["x"] == known.item
    assert known.sid["HR@5"].mean == pytest.approx((sid_ranks(lists) <= 5).mean() - (sid_ranks(lists) == 0).mean())


def test_lists_end_where_they_end():
    recommender = results_of(RANKS, METRICS, list_length=20).recommenders["one"]
    with pytest.raises(ConfigError, match="HR@50 needs lists of 50, but those of one hold 20"):
        recommender.values("item", ["HR@20", "HR@50"])
    with pytest.raises(ArtefactError, match="one: has no ranks at level sid"):
        recommender.values("sid", ["HR@1"])


def test_full_ranks_are_taken_before_lists_and_seeds_in_their_order(tmp_path):
    write_run(tmp_path / "run", RANKS["one"], TARGETS)
    positions = [tmp_path / "run" / f"seed-{seed}" / "predictions" for seed in (9, 10, 11)]
    found = RecommenderResults.load("x", positions, "test")
    assert np.array_equal([run.ranks["item"] for run in found.runs], RANKS["one"])
    assert (found.list_length, dict(found.about)) == (None, {"parameters": 1234, "recipe": "all positions"})
    assert (RecommenderResults.load("x", positions, "valid").runs[0].ranks["item"] == 1).all()


def test_lists_give_ranks_at_both_levels_and_written_ranks_are_the_same(tmp_path):
    lists = with_sids(lists_of(RANKS["one"][0], TARGETS))
    lists.save(tmp_path / "lists", config={}, inputs={}, counts={"split": "test", "beams": 20})
    found = RecommenderResults.load("x", [tmp_path / "lists"], "test")
    assert found.runs[0].ranks["sid"].tolist() == sid_ranks(lists).tolist()
    assert found.runs[0].ranks["item"].tolist() == [rank if rank <= 20 else 0 for rank in RANKS["one"][0]]
    assert (found.list_length, dict(found.about)) == (20, {})
    models = {}
    for name, size in (("checkpoint", 700), ("assistant", 50)):  # an evaluation names them, and both are asked
        with write_artefact(tmp_path / name, name, config={}, counts={"parameters": size}):
            models[name] = tmp_path / name
        lists.save(tmp_path / f"with_{name}", config={}, inputs=models, counts={"split": "test", "beams": 20})
    for name, size in (("checkpoint", 700), ("assistant", 750)):
        assert RecommenderResults.load("x", [tmp_path / f"with_{name}"], "test").about == {"parameters": size}
    with pytest.raises(ArtefactError, match="is about the test examples, not the valid examples"):
        RecommenderResults.load("x", [tmp_path / "lists"], "valid")
    with write_artefact(tmp_path / "ranked", "predictions", config={}, counts={"split": "test", "given": []}) as folder:
        write_ranks(folder, {"test": found.runs[0]})
    read = Ranked.load(tmp_path / "ranked", "test")
    first, second = ({level: of.tolist() for level, of in run.ranks.items()} for run in (read, found.runs[0]))
    assert read.list_length == 20 and first == second


def test_examples_are_held_against_one_another():
    one, other = (results_of({name: RANKS["one"]}, METRICS).recommenders[name] for name in ("x", "y"))
    other.check_same_examples(one, "test")
    few = RecommenderResults("y", [Ranked(["u"], TARGETS[:1], {"item": RANKS["one"][0, :1]}, None)])
    with pytest.raises(ArtefactError, match="y: its 1 test examples are not the 100 of x"):
        few.check_same_examples(one, "test")
    users = [*one.users[:-1], "v"]
    other = RecommenderResults("y", [Ranked(users, TARGETS, {"item": RANKS["one"][0]}, None)])
    with pytest.raises(ArtefactError, match="y: its test example 99 is of user 'v', that of x of 'u99'"):
        other.check_same_examples(one, "test")


@pytest.mark.parametrize("users", [None, TARGETS // 2])
def test_figures_of_a_slice_are_those_of_its_examples_alone(users):
    kinds = {"g": {"a": THIRD, "b": ~THIRD, "none": np.zeros(ROWS, bool)}}
    results = results_of(RANKS, METRICS, kinds, users=users, resamples=200, seed=4)
    assert [(each.name, each.size) for each in results.slices] == [("a", 34), ("b", 66)]
    own = {"clusters": None if users is None else users[THIRD]}
    ours, theirs = values("one")[:, THIRD], values("two")[0, THIRD]
    found = results.by_slice[0][1].estimates("item")["one"]["NDCG@10"]
    assert (found.mean, found.sd) == pytest.approx((ours.mean(), ours.mean(1).std(ddof=1)))
    assert (found.low, found.high) == pytest.approx(bootstrap_interval(ours.mean(0), 4, 200, **own))
    gap = paired_bootstrap(theirs, ours.mean(0), 4, 200, **own)
    reported = results.slices_json("two")[0]
    assert reported["share"] == 0.34 and reported["against"]["NDCG@10"] == pytest.approx(list(gap))
    assert results.slices_json("one")[0]["against"] == {}


def test_of_few_examples_or_users_nothing_is_measured():
    few = np.arange(ROWS) < FEWEST - 1
    results = results_of(RANKS, METRICS, {"g": {"few": few, "many": ~few}}, resamples=50)
    assert results.slices_json("one")[0] == {
        "group": "g", "kind": "few", "rows": FEWEST - 1, "share": 0.29, "metrics": {}, "against": {},
    }  # fmt: skip
    many = np.arange(ROWS) < 70
    of_one_user = results_of(RANKS, METRICS, {"g": {"a": many, "b": ~many}}, users=np.where(many, 0, TARGETS))
    assert of_one_user.by_slice[0][1] is None


def test_groups_that_tell_nothing_apart_are_reported_in_words():
    everyone, half = np.ones(4, bool), np.arange(4) < 2
    kinds = {"user": {"in training": everyone, "new": ~everyone}, "g": {"a": half, "b": ~half}}
    assert [each.group for each in list_slices(kinds)] == ["g", "g"]
    assert alike(kinds) == {"user": "in training"}
