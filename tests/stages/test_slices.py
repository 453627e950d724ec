"""Metrics by kind of row in reports, comparisons, level analyses and evaluations, as a user asks for them."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.measuring import paired_bootstrap
from support.pages import Page, page_text
from support.runs import lists_of, recommenders_of, write_run
from support.scripts import study
from support.trained_shop import N, make_rows

from minionerec.core.artefacts import write_artefact
from minionerec.core.errors import ArtefactError, DataError
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import PROTOCOLS, read_examples
from minionerec.data.times_file import with_times_of_file
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.published_json import write_published_json
from minionerec.metrics.ranking import ranking_metrics, sid_ranks
from minionerec.pipeline.config.reports import ReportConfig
from minionerec.pipeline.report import run_report
from minionerec.sid.table import SidTable

ROWS = 120
LATE = np.arange(ROWS) % 3 == 0


def lists(rows, table, ranks):
    """Lists of twelve items with the target at the given rank."""
    items = []
    for target, rank in zip(rows.targets, ranks, strict=True):
        others = [item for item in range(N) if item != target][:11]
        items.append([*others[: rank - 1], int(target), *others[rank - 1 :]])
    return Predictions(
        rows.users.tolist(),
        rows.targets,
        [table.sids[target] for target in rows.targets],
        items,
        [[table.sids[item] for item in row] for row in items],
        [[-float(position) for position in range(12)] for _ in items],
    )


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A model that is good where the target is of the same time, and one that is good where it came later."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    items = pd.DataFrame({"item_id": [f"i{n}" for n in range(N)], "title": "thing", "description": ""})
    corpus = Corpus(items, make_rows(rng, 200), make_rows(rng, 40), make_rows(rng, ROWS), "global time 8:1:1", 10)
    lines = [f"test,{row},{1000 + late},1000" for row, late in enumerate(LATE.astype(int))]
    Path("times.csv").write_text("\n".join(["split,row,timestamp,previous_timestamp", *lines]) + "\n")
    with_times_of_file(corpus, Path("times.csv")).save("corpus", config={}, inputs={})
    corpus.save("timeless", config={}, inputs={})
    table = SidTable(np.stack([np.arange(N) // 8, np.arange(N) % 8], axis=1), items["item_id"])
    with write_artefact("sids", "sids", config={}, inputs={"corpus": "corpus"}) as folder:
        table.save_index(folder / "index.json")
    positions = rng.integers(1, 4, ROWS)
    for name, ranks in (
        ("batch", np.where(LATE, positions + 6, positions)),
        ("later", np.where(LATE, positions, positions + 3)),
    ):
        made = lists(corpus.test, table, ranks)
        made.save(name, config={}, inputs={}, counts={"beams": 12, "split": "test"})
        write_published_json(f"{name}.json", made, ["?"] * ROWS)
    return corpus


RUNS = {"batch": "batch", "later one": "later"}


def report(**changes):
    settings = {"corpus": "corpus", "sids": "sids", "predictions": RUNS, "output": "report", "resamples": 100}
    return ReportConfig(**{**settings, **changes})


def values(name, ranks=sid_ranks):
    return ranking_metrics(ranks(Predictions.load(name)), [10])["NDCG@10"]


def part_of(parts, group, kind):
    return next(part for part in parts if (part["group"], part["kind"]) == (group, kind))


def test_a_record_of_a_report_has_its_figures_and_where_they_are_from(shop):
    result = run_report(report())
    record = study("record").record_of(result.output, ["time"])
    low, high = recommenders_of("report")["batch"]["metrics"]["sid"]["NDCG@10"]["interval"]
    assert record["NDCG@10"]["batch"]["all"] == [pytest.approx(values("batch").mean()), low, high]
    assert record["NDCG@10"]["later one"]["time: later"][0] == pytest.approx(values("later")[LATE].mean())
    assert set(record["NDCG@10"]["batch"]) == {"seeds", "all", "time: later", "time: same time"}
    assert record["rows"] == ROWS and {"command", "commit", "machine"} <= record["origin"].keys()
    (result.output.parent / f"{result.output.name}.record.json").unlink()
    with pytest.raises(DataError, match="no run record beside it"):
        study("record").record_of(result.output, ["time"])


def section_of(markdown, title="## Slices"):
    return markdown.partition(title)[2].partition("\n## ")[0]


def test_a_report_shows_slices_and_reports_their_values(shop):
    result = run_report(report())
    kept = recommenders_of("report")
    part = part_of(kept["later one"]["slices"], "time", "later")
    mine, first = values("later"), values("batch")
    assert (part["rows"], part["share"]) == (40, pytest.approx(1 / 3))
    assert part["metrics"]["NDCG@10"][:2] == [pytest.approx(mine[LATE].mean()), None]
    assert set(part["metrics"]) == {"HR@10", "NDCG@10"}
    gap = paired_bootstrap(mine[LATE], first[LATE], 0, 100)
    assert part["against"]["NDCG@10"] == pytest.approx(list(gap))
    assert part_of(kept["popularity"]["slices"], "time", "later")["rows"] == 40  # baselines are measured too
    text = section_of(page_text(result.output / "report.html"))
    shown = f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
    assert f"| {shown}, p = {gap.p:.3f} |" in text
    assert "| time: same time | 80 67 % |" in text and "| time: later | 40 33 % |" in text
    assert "time: same time" in Page((result.output / "report.html").read_text()).text


def test_without_times_the_other_kinds_are_shown(shop):
    result = run_report(report(corpus="timeless"))
    kept = recommenders_of("report")
    groups = list(dict.fromkeys(part["group"] for part in kept["batch"]["slices"]))
    assert groups == ["pair", "reverse", "repeat", "target", "history"]
    text = section_of(page_text(result.output / "report.html"))
    assert "All examples are in one slice of user: in training." in text  # u0 to u119, as the training rows
    few = part_of(kept["batch"]["slices"], "repeat", "target is in the history")
    assert few["rows"] < 30 and few["metrics"] == {}
    assert (
        f"| repeat: target is in the history | {few['rows']} " in text
        and "fewer than 30 examples (or users, where users are drawn)" in text
    )


def test_a_report_of_a_protocols_runs_by_slice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    sequences = [" ".join([f"u{user}", *(f"i{item}" for item in rng.integers(0, 30, 8))]) for user in range(70)]
    Path("data.txt").write_text("\n".join(sequences) + "\n")
    split = read_examples("data.txt", PROTOCOLS["a"])
    ranks = rng.integers(1, 20, (2, 70))
    made = [lists_of(row, split.test.targets, 10, 30) for row in ranks]
    write_run(Path("runs"), ranks, split.test.targets, lists=made, valid=False)
    settings = {"predictions": {"mine": "runs"}, "sids": "", "corpus": "data.txt", "protocol": "a"}
    found = run_report(report(**settings)).metrics["recommenders"]["mine"]
    part = part_of(found["slices"], "pair", "did not")
    histories, targets = split.test.histories, split.test.targets
    pairs = {pair for items in histories for pair in pairwise(items[:-1])}
    where = np.array([(items[-1], target) not in pairs for items, target in zip(histories, targets, strict=True)])
    assert part["rows"] == where.sum()
    values = np.stack([ranking_metrics(row, [10])["NDCG@10"][where] for row in ranks])
    assert part["metrics"]["NDCG@10"][:2] == [pytest.approx(values.mean()), pytest.approx(values.mean(1).std(ddof=1))]
    Path("data.txt").write_text("\n".join(sequences[1:]) + "\n")
    with pytest.raises(ArtefactError, match=r"\(mine\): 70 examples, but the test split of data\.txt has 69"):
        run_report(report(**settings))
