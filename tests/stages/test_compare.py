"""Comparisons: means, sds and paired differences against numpy, published figures, and rows that do not match."""

import json

import numpy as np
import pandas as pd
import pytest

from minionerec.core.artefacts import write_artefact
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import paired_bootstrap
from minionerec.reports.compare import CompareConfig, load_system, run_compare
from minionerec.reports.reference import load_reference

ROWS = 40


def write_run(place, ranks, targets=None, sids=False):
    """What `scripts/train_sequential.py` leaves of its ranks: one folder a seed; (S, R)."""
    targets = np.arange(ROWS) if targets is None else targets
    for seed, found in enumerate(ranks):
        counts = {"parameters": 1234, "recipe": "all positions"}
        folder = place / f"seed-{seed + 9}" / "model"
        with write_artefact(folder, "sequential_model", config={}, seed=seed + 9, counts=counts) as fresh:
            frame = pd.DataFrame(
                {"split": "test", "user": [f"u{t}" for t in targets], "target": targets, "item_rank": found}
            )
            if sids:
                frame["sid_rank"] = np.maximum(1, found - 1)
            pd.concat([frame, frame.assign(split="valid", item_rank=1)]).to_parquet(fresh / "ranks.parquet")
    return place


@pytest.fixture
def runs(tmp_path):
    rng = np.random.default_rng(0)
    first, second = rng.integers(1, 30, (2, ROWS)), rng.integers(1, 15, (3, ROWS))
    # Seed 10 comes after seed 9 also where names are sorted as words.
    return write_run(tmp_path / "one", first), write_run(tmp_path / "two", second), first, second


def test_means_sds_and_paired_differences(runs, tmp_path):
    one, two, first, second = runs
    config = CompareConfig(
        runs=[f"one={one}", f"two={two}"],
        metrics=["HR@5", "NDCG@10", "MRR@3"],
        output=str(tmp_path / "table"),
        resamples=300,
    )
    result = run_compare(config)
    lines = {line.name: line for line in result.lines["test"]}
    for name in ("HR@5", "NDCG@10", "MRR@3"):
        k = int(name.partition("@")[2])
        ours, theirs = (np.array([ranking_metrics(row, [k])[name] for row in ranks]) for ranks in (first, second))
        mean, sd, low, high = lines["one"].metrics[name]
        assert (mean, sd) == (pytest.approx(ours.mean()), pytest.approx(ours.mean(1).std(ddof=1)))
        assert low < mean < high
        gap = paired_bootstrap(theirs.mean(0), ours.mean(0), resamples=300)
        assert lines["two"].against[name] == pytest.approx(gap)
    assert lines["one"].against == {}
    assert (lines["one"].seeds, lines["two"].seeds) == (2, 3)
    assert result.lines["valid"][0].metrics["HR@5"][:2] == (1.0, 0.0)
    assert (tmp_path / "table" / "comparison.md").read_text() == result.markdown
    assert json.loads((tmp_path / "table" / "comparison.json").read_text())["test"][1]["name"] == "two"
    assert "| two | 1,234 | 3 |" in result.markdown


def test_published_figures_stand_beside_ours(runs):
    one, two, *_ = runs
    config = CompareConfig(runs=[f"wearec={one}", f"mine={two}"], metrics=["NDCG@10"], reference="lastfm", resamples=50)
    lines = run_compare(config).lines["test"]
    assert (lines[0].published["NDCG@10"], lines[1].published) == (0.044, {})
    test, valid = run_compare(config).markdown.split("## valid")
    assert "; published 0.0440" in test and "published" not in valid


@pytest.mark.parametrize(("name", "rows"), [("lastfm", 6), ("beauty", 16), ("industrial", 12)])
def test_every_row_of_a_reference_has_its_own_names(name, rows):
    reference = load_reference(name)
    names = [alias for row in reference.rows for alias in {row.name.lower(), *map(str.lower, row.compare)}]
    assert len(reference.rows) == rows
    assert len(set(names)) == len(names)
    assert all(0 < value < 1 for row in reference.rows for value in row.metrics.values())
    assert reference.headline in [row.name for row in reference.rows]


def predictions_of(ranks, width):
    """Lists of which list r holds its target at `ranks[r]`, where it is within the width."""
    items = [[r if rank == place else 100 + place for place in range(1, width + 1)] for r, rank in enumerate(ranks)]
    sids = [[f"<a_{item}>" for item in row] for row in items]
    targets = np.arange(ROWS, dtype=np.int32)
    return Predictions(
        [f"u{r}" for r in range(ROWS)], targets, [f"<a_{t}>" for t in targets], items, sids, [[0.0] * width] * ROWS
    )


def test_a_sequential_and_a_generative_model_stand_in_one_table(runs, tmp_path):
    one, _, first, _ = runs
    predictions_of(first[0], 20).save(tmp_path / "lists", config={}, inputs={}, counts={"split": "test", "beams": 20})
    lines = run_compare(CompareConfig(runs=[f"one={one}", f"lists={tmp_path / 'lists'}"], metrics=["NDCG@10"])).lines
    assert lines["test"][1].metrics["NDCG@10"][0] == pytest.approx(ranking_metrics(first[0], [10])["NDCG@10"].mean())
    assert [line.name for line in lines["valid"]] == ["one"]
    assert load_system("x", str(tmp_path / "lists"), "sid").ranks["test"].tolist() == [
        [r if r <= 20 else 0 for r in first[0]]
    ]
    with pytest.raises(ConfigError, match="HR@50 needs lists of 50, but those of lists hold 20"):
        run_compare(CompareConfig(runs=[f"lists={tmp_path / 'lists'}"], metrics=["HR@50"]))


def test_levels(runs, tmp_path):
    one, _, first, _ = runs
    both = write_run(tmp_path / "both", first, sids=True)
    assert load_system("x", str(both), "sid").ranks["test"].tolist() == np.maximum(1, first - 1).tolist()
    with pytest.raises(ArtefactError, match=r"has no ranks at level sid\. Train with --sids"):
        load_system("x", str(one), "sid")


def test_what_comparing_refuses(runs, tmp_path):
    one, *_ = runs
    other = write_run(tmp_path / "other", np.ones((1, ROWS), int), np.arange(ROWS)[::-1])
    with pytest.raises(ArtefactError, match="other: its 40 test rows are not the 40 of one"):
        run_compare(CompareConfig(runs=[f"one={one}", f"other={other}"]))
    with pytest.raises(ArtefactError, match="no such directory"):
        run_compare(CompareConfig(runs=[f"x={tmp_path / 'none'}"]))
    for changes, message in [
        ({"runs": []}, "give NAME=DIRECTORY"),
        ({"runs": ["a=x", "a=y"]}, "has a name twice: a, a"),
        ({"metrics": ["Hit@10"]}, "unknown metric 'Hit@10'"),
        ({"level": "user"}, "unknown level 'user'; known: item, sid"),
    ]:
        with pytest.raises(ConfigError, match=message):
            CompareConfig(**{"runs": ["a=x"], **changes})
