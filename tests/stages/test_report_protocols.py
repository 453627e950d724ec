"""Reports of sequences split by protocols a and b, of runs with several seeds, with SIDs and without."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.measuring import paired_bootstrap
from support.pages import page_text
from support.runs import lists_of, recommenders_of, write_run
from support.training import sequential_config

from minionerec.core.artefacts import read_manifest, write_artefact
from minionerec.core.errors import ArtefactError
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import PROTOCOLS, read_examples
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import FILE
from minionerec.metrics.ranked import Ranked, write_ranks
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import bootstrap_interval
from minionerec.pipeline.config.reports import ReportConfig
from minionerec.pipeline.report import run_report
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.recommend.rankers.baselines import NAMES, RECENT
from minionerec.reports.cells import MINUS
from minionerec.reports.results import EvaluationSet, read_results
from minionerec.sid.table import SidTable

ITEMS, USERS = 30, 60


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Sixty users who go round a circle of thirty titled items, and two runs of two seeds for each protocol."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = []
    for user in range(USERS):
        start, count = int(rng.integers(ITEMS)), int(rng.integers(6, 26))
        lines.append(" ".join([f"u{user}", *(f"i{(start + step) % ITEMS:02d}" for step in range(count))]))
    Path("data.txt").write_text("\n".join(lines) + "\n")
    Path("titles.json").write_text(json.dumps({f"i{n:02d}": f"Thing <b>{n}</b>" for n in range(ITEMS)}))
    made = {}
    for protocol in "ab":
        split = read_examples("data.txt", PROTOCOLS[protocol], "titles.json")
        targets = split.test.targets
        for name, most in (("wearec", 12), ("mine", 28)):
            ranks = rng.integers(1, most, (2, len(targets)))
            lists = [lists_of(found, targets, 10, ITEMS) for found in ranks]
            write_run(Path(f"{name}_{protocol}"), ranks, targets, lists=lists)
            made[name, protocol] = ranks
    return made


def config(protocol, **changes):
    settings = {
        "corpus": "data.txt",
        "items": "titles.json",
        "protocol": protocol,
        "predictions": {"WEARec": f"wearec_{protocol}", "mine": f"mine_{protocol}"},
        "output": f"report_{protocol}",
        "resamples": 100,
    }
    return ReportConfig(**{**settings, **changes})


@pytest.mark.parametrize(
    ("protocol", "names"), [("a", ["HR@20", "NDCG@5", "MRR@20"]), ("b", ["HR@1", "MRR@1", "MRR@5"])]
)
def test_numbers_are_those_of_all_seeds(shop, protocol, names):
    run_report(config(protocol))
    found = recommenders_of(f"report_{protocol}")
    for recommender, key in (("WEARec", "wearec"), ("mine", "mine")):
        for name in names:
            k = int(name.partition("@")[2])
            values = np.stack([ranking_metrics(ranks, [k])[name] for ranks in shop[key, protocol]])
            low, high = bootstrap_interval(values.mean(0), 0, 100)
            estimate = found[recommender]["metrics"]["item"][name]
            assert [estimate["mean"], *estimate["interval"]] == pytest.approx([values.mean(), low, high])
            assert estimate["sd"] == pytest.approx(values.mean(1).std(ddof=1))
        assert (
            found[recommender]["seeds"],
            list(found[recommender]["metrics"]),
            found[recommender]["lists"]["width"],
        ) == (2, ["item"], ITEMS)
    assert {int(name.partition("@")[2]) for name in found["mine"]["metrics"]["item"]} == set(PROTOCOLS[protocol].ks)
    assert ("MRR@5" in found["mine"]["metrics"]["item"]) == (protocol == "b")  # at every K there


def test_the_page_has_figures_differences_and_titles(shop):
    result = run_report(config("a", reference="lastfm"))
    text, html = page_text(result.output / "report.html"), (result.output / "report.html").read_text()
    estimate = recommenders_of("report_a")["WEARec"]["metrics"]["item"]["NDCG@10"]
    low, high = estimate["interval"]
    cell = f"{estimate['mean']:.4f} ± {estimate['sd']:.4f} [{low:.4f}, {high:.4f}]"
    assert cell in result.text and "± sd over seeds" in result.text and cell in text
    gap = f"{estimate['mean'] - 0.044:+.4f}".replace("-", MINUS)
    line = next(line for line in text.splitlines() if line.startswith("| WEARec | WEARec") and "by item" in line)
    assert f"{gap} {estimate['mean']:.4f} against 0.0440, " in line
    first, second = (
        np.stack([ranking_metrics(ranks, [10])["HR@10"] for ranks in shop[key, "a"]]).mean(0)
        for key in ("wearec", "mine")
    )
    difference = paired_bootstrap(second, first, 0, 100)
    shown = [f"{value:+.4f}".replace("-", MINUS) for value in difference[:3]]
    assert f"{shown[0]} [{shown[1]}, {shown[2]}], p = {difference.p:.3f}" in text
    assert "Thing &lt;b&gt;" in html and "<b>" not in html and "✓" in text and "the newest 10 of " in text
    assert 'The baseline "transition counts" has the highest NDCG@10, ' in text
    for there in ("A: last two out, seen items masked", "WEARec whole catalogue", "1,234"):
        assert there in text
    for absent in ("SID", "Accuracy by level", "codebook"):
        assert absent not in text


def test_an_item_without_a_title_goes_by_its_id(shop):
    text = page_text(run_report(config("b", items="")).output / "report.html")
    assert "(no title, i" in text


def test_baselines_keep_to_the_protocol(shop):
    masked, kept = (
        read_results(
            config(protocol).finished(),
            EvaluationSet.read("data.txt", "test", protocol, "titles.json"),
            resamples=100,
        )
        for protocol in "ab"
    )
    assert masked.baselines == [name for name in NAMES if name != RECENT]
    assert kept.baselines == list(NAMES)
    histories = [set(history.tolist()) for history in masked.examples.rows.histories]
    for name in masked.baselines:
        for items, history in zip(masked.recommenders[name].lists.items, histories, strict=True):
            assert not set(items) & history
            assert len(items) == min(20, ITEMS - len(history))
    split = read_examples("data.txt", PROTOCOLS["b"])
    best = np.argsort(-split.popularity(), kind="stable").tolist()
    if kept.chosen.popularity_exclude_seen:  # which validation examples decide
        best.sort(key=set(split.test.histories[0].tolist()).__contains__)
    assert kept.recommenders["popularity"].lists.items[0] == best[:10]
    last = kept.recommenders["most recent items"].lists.items
    assert [items[0] for items in last] == [history[-1] for history in split.test.histories]


def test_every_seed_and_file_is_an_input(shop):
    first = config("a")
    run_report(first)
    inputs = read_manifest("report_a", "report")["inputs"]
    assert sorted(inputs) == sorted(
        ["corpus", "items", *(f"predictions {name} {seed}" for name in ("WEARec", "mine") for seed in (1, 2))]
    )
    assert inputs["predictions mine 2"]["path"] == "mine_a/seed-10/predictions"
    assert first.up_to_date()
    Path("titles.json").write_text(json.dumps({f"i{n:02d}": f"Other {n}" for n in range(ITEMS)}))
    assert not first.up_to_date()
    assert "Other" in page_text(run_report(first).output / "report.html")
    with Path("mine_a/seed-10/predictions/ranks.parquet").open("ab") as file:
        file.write(b" ")
    with pytest.raises(ArtefactError, match=r"mine_a/seed-10/predictions/ranks\.parquet: differs from"):
        run_report(first)


def test_data_may_lie_in_the_folder_of_the_data(shop, monkeypatch):
    monkeypatch.setenv("MINIONEREC_DATA", str(Path.cwd()))
    result = run_report(config("b", corpus="$MINIONEREC_DATA/data.txt", items="$MINIONEREC_DATA/titles.json"))
    assert "test split of $MINIONEREC_DATA/data.txt" in page_text(result.output / "report.html")


def test_rows_of_another_protocol_are_refused(shop):
    targets = read_examples("data.txt", PROTOCOLS["a"], "titles.json").test.targets.copy()
    targets[1] = (targets[1] + 1) % ITEMS
    write_run(Path("other"), np.ones((1, len(targets)), int), targets)
    message = r"other/seed-9/predictions \(x\): example 1 has target \d+, in the test split .* items names the file"
    with pytest.raises(ArtefactError, match=message):
        run_report(config("a", predictions={"x": "other"}))


def test_validation_rows_have_ranks_and_no_lists(shop):
    split = read_examples("data.txt", PROTOCOLS["a"], "titles.json")
    targets = split.valid.targets
    ranks = np.arange(len(targets))[None] % 7 + 1
    lists = lists_of(ranks[0], split.test.targets, 10, ITEMS)
    counts = {"split": "test", "beams": 10, "given": []}
    with write_artefact("both", "predictions", config={}, counts=counts) as folder:
        lists.to_frame().to_parquet(folder / FILE, index=False)
        users = split.valid.users
        write_ranks(folder, {"valid": Ranked(users, targets, {"item": ranks[0]}, None)})
    text = page_text(
        run_report(config("a", split="valid", predictions={"x": "both"}, output="valid")).output / "report.html"
    )
    assert recommenders_of("valid")["x"]["metrics"]["item"]["HR@5"]["mean"] == pytest.approx((ranks <= 5).mean())
    assert "## Examples" not in text
    assert "| x | - | - |" in text and "| popularity | 0 of 60 | " in text


@pytest.fixture
def coded(tmp_path, monkeypatch):
    """A corpus of rows with SIDs that pairs of items share."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    items = pd.DataFrame({"item_id": [f"i{n}" for n in range(40)], "title": "thing", "description": ""})
    targets = rng.integers(0, 40, 50).astype(np.int32)
    rows = SplitExamples.of([f"u{n}" for n in range(50)], [rng.integers(0, 40, 3) for _ in range(50)], targets)
    Corpus(items, rows, SplitExamples.none(), rows, "none", 10).save("corpus", config={}, inputs={})
    table = SidTable(np.stack([np.arange(40) // 8, np.arange(40) // 2 % 4], axis=1), items["item_id"])
    with write_artefact("sids", "sids", config={}) as folder:
        table.save_index(folder / "index.json")
    return targets, rng.integers(1, 12, (2, 50))


def test_a_sequential_run_among_sids(coded):
    """Ranks at SID level come from full rankings where a run has them, and else from the lists of every seed."""
    targets, ranks = coded
    lists = [lists_of(found, targets, 12, 40) for found in ranks]
    write_run(Path("bare"), ranks, targets, lists=lists)
    write_run(Path("full"), ranks, targets, sid_ranks=(ranks + 1) // 2, lists=lists)
    settings = {"corpus": "corpus", "sids": "sids", "resamples": 50}
    run_report(ReportConfig(**settings, predictions={"full": "full", "bare": "bare"}, output="report"))
    found = recommenders_of("report")
    assert found["full"]["metrics"]["sid"]["HR@3"]["mean"] == pytest.approx(((ranks + 1) // 2 <= 3).mean())
    assert (found["full"]["lists"]["width"], found["bare"]["lists"]["width"]) == (40, 12)
    assert found["full"]["metrics"]["item"] == found["bare"]["metrics"]["item"] and found["bare"]["seeds"] == 2
    numbers = SidTable.load_index("sids", [f"i{n}" for n in range(40)]).sid_numbers
    hits = [
        [
            numbers[target] in list(dict.fromkeys(numbers[row]))[:3]
            for target, row in zip(targets, made.items, strict=True)
        ]
        for made in lists
    ]
    assert found["bare"]["metrics"]["sid"]["HR@3"]["mean"] == pytest.approx(np.mean(hits))
    assert "HR@10" in found["bare"]["metrics"]["sid"]  # and no K beyond the lists that ranks come from
    assert "HR@20" not in found["full"]["metrics"]["sid"]
    assert found["full"]["levels"]["rows"] == 50
    run_report(ReportConfig(**settings, ks=[5, 20], predictions={"full": "full"}, output="far"))
    far = recommenders_of("far")["full"]
    assert "HR@20" in far["metrics"]["sid"]
    assert list(far["lists"]["coverage"]) == ["5"] and list(far["levels"]["independent"]) == ["5"]


@pytest.mark.parametrize("protocol", ["a", "b"])
def test_a_model_is_trained_and_reported(shop, protocol):
    settings = {"items": "titles.json", "protocol": protocol, "max_len": 6, "list_length": 10}
    hyper = {"hidden_size": 8, "num_layers": 1}
    trained = run_sequential(sequential_config("data.txt", "trained", hyper=hyper, **settings))
    result = run_report(config(protocol, predictions={"SASRec": "trained"}))
    assert result.lines[-1] == f"Report: report_{protocol}/report.html"
    found = recommenders_of(f"report_{protocol}")["SASRec"]
    for name, (mean, *_) in trained.metrics["test"]["item"].items():
        assert found["metrics"]["item"][name]["mean"] == pytest.approx(mean)
    assert found["seeds"] == 1 and found["lists"]["coverage"]["10"] > 0
    assert "± sd" not in result.text and "± 0" not in page_text(result.output / "report.html")


def test_the_published_copy_of_lastfm(data_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = str(data_root / "sequential" / "LastFM.txt")
    short = {"max_len": 10, "all_positions": True, "hyper": {"hidden_size": 16, "num_layers": 1}}
    run_sequential(sequential_config(data, "trained", protocol="a", **short))
    settings = {"corpus": data, "protocol": "a", "reference": "lastfm", "resamples": 50}
    result = run_report(ReportConfig(**settings, predictions={"SASRec": "trained"}, output="report"))
    text = page_text(result.output / "report.html")
    assert "1,090 examples, 3,646 items" in text and "WEARec Official" in text
    assert recommenders_of("report")["popularity"]["metrics"]["item"]["HR@20"]["mean"] > 0
