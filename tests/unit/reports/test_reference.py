"""Published numbers: each row whole, each with names of its own."""

import math
from itertools import combinations

import pytest

from minionerec.core.errors import ConfigError
from minionerec.reports.reference import SETTINGS, load_reference, reference_path


@pytest.mark.parametrize(
    ("name", "replicated", "paper", "later"),
    [("industrial", (0.1379, 0.0951, 0.1007), 0.1167, 0.1217), ("office", (0.1576, 0.1163, 0.1203), 0.1242, 0.1340)],
)
def test_reference_holds_the_published_numbers(name, replicated, paper, later):
    reference = load_reference(name)
    rows = {(row.group, row.name): row for row in reference.rows}
    sft, rl = rows["replication", "SFT"], rows["replication", "RL (2 epochs)"]
    assert (sft.metrics["HR@10"], sft.metrics["NDCG@10"], rl.metrics["NDCG@10"]) == replicated
    assert rows["paper", "MiniOneRec"].metrics["NDCG@10"] == paper
    assert rows["later", "V-STAR"].metrics["NDCG@10"] == later
    assert len(rows) == 13
    for row in (sft, rl):
        for k in (1, 3, 5, 10, 20, 50):  # the tables of the source agree with one another
            assert row.independent[k][3] == row.cumulative[k][2] == row.metrics[f"HR@{k}"]
            assert row.independent[k][0] == row.cumulative[k][0]
        assert row.dropoff[1] == pytest.approx(row.cumulative[1][1] / row.cumulative[1][0], abs=5e-4)
    assert [row.name for row in reference.counterparts("grpo")] == ["RL (2 epochs)", "MiniOneRec"]
    assert [row.name for row in reference.counterparts("SASRec")] == ["SASRec", "MiniOneRec"]
    with pytest.raises(ConfigError, match=r"unknown reference 'moon'; known references: .*industrial"):
        load_reference("moon")


@pytest.mark.parametrize(("name", "rows"), [("lastfm", 19), ("beauty", 16), ("industrial", 13), ("office", 13)])
def test_every_row_of_a_reference_has_its_own_names(name, rows):
    reference = load_reference(name)
    names = [alias for row in reference.rows for alias in {row.name.lower(), *map(str.lower, row.compare)}]
    assert len(reference.rows) == rows
    assert len(set(names)) == len(names)
    assert all(0 < value < 1 for row in reference.rows for value in row.metrics.values())
    assert reference.headline in [row.name for row in reference.rows]
    assert set(reference.settings) == {row.group for row in reference.rows}
    assert all(set(values) == set(SETTINGS) for values in reference.settings.values())


def impossible_pairs(metrics):
    """Cutoffs (k, K), k below K, between which NDCG grows by more or less than HR allows; k may be 0.

    With one target per example, targets found between cutoffs k and K have ranks k + 1 to K, so each adds to NDCG
    between 1 / log2(K + 1) and 1 / log2(k + 2).
    """
    ks = [int(name[3:]) for name in metrics if name.startswith("HR@") and f"NDCG@{name[3:]}" in metrics]
    points = [(0, 0.0, 0.0), *((k, metrics[f"HR@{k}"], metrics[f"NDCG@{k}"]) for k in sorted(ks))]
    return [
        (k, larger)
        for (k, hit, gain), (larger, more_hits, more_gain) in combinations(points, 2)
        if not (more_hits - hit) / math.log2(larger + 1) - 1.5e-4
        <= more_gain - gain
        <= (more_hits - hit) / math.log2(k + 2) + 1.5e-4  # of figures with four digits
    ]


def test_published_cells_that_cannot_be_right_are_named():
    references = {name: load_reference(name) for name in ("industrial", "office", "beauty", "lastfm")}
    assert {(name, row.name, metric) for name, of in references.items() for row, metric in of.doubtful} == {
        ("industrial", "D3", "NDCG@3"),
        ("industrial", "HSTU", "NDCG@3"),
        ("office", "S-DPO", "NDCG@10"),
        ("office", "TIGER", "NDCG@5"),
    }
    for reference in references.values():
        for row in reference.rows:
            assert bool(impossible_pairs(row.metrics)) == bool(row.doubtful)
            assert not impossible_pairs({name: row.metrics[name] for name in row.metrics if name not in row.doubtful})
    hstu = next(row for row in references["industrial"].rows if row.name == "HSTU")
    assert hstu.shown("NDCG@3").endswith(" ✗") and "✗" not in hstu.shown("HR@3")
    assert references["industrial"].best("HR@7") is None


def test_counterparts_of_a_name():
    beauty = load_reference("beauty")
    assert [row.name for row in beauty.own_counterparts("TRM4REC")] == ["TRM4Rec-Vanilla S4"]
    assert [row.name for row in beauty.counterparts("sasrec")] == ["SASRec", "FEARec"]
    assert [row.name for row in beauty.counterparts("fearec")] == ["FEARec"]
    assert beauty.own_counterparts("ours") == []
    assert reference_path("beauty").name == "beauty.yaml"
