"""The leaderboard: a golden page, every part held against the artefacts it stands on, and mistakes in one line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.measuring import paired_bootstrap
from support.pages import Page
from support.paths import ROOT
from support.runs import lists_of, write_run
from support.trained_shop import RECORD, SFT, make_predictions, write_trained

from minionerec.core.artefacts import read_manifest, verify_files, write_artefact
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.records import record_path
from minionerec.core.settings import parse_settings
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import FILE, SESSION_CONTEXT, Predictions
from minionerec.metrics.ranking import ranking_metrics, sid_ranks
from minionerec.reports.config import ReportConfig
from minionerec.reports.report import run_report
from minionerec.reports.sections import NOT_COMPARABLE
from minionerec.sid.table import SidTable

GOLDEN = ROOT / "tests" / "support" / "leaderboard.md"
FILES = ("report.md", "report.html", "metrics.json")


def grouped(predictions, names):
    """The same lists with other groups of items: what each item's group is called."""
    return replace(
        predictions,
        target_sids=[names[target] for target in predictions.targets],
        sids=[[names[item] for item in row] for row in predictions.items],
    )


def save(predictions, folder, inputs=None, settings=None, files=None, counts=None):
    """A predictions artefact as an evaluation leaves it, with further files."""
    findings = {
        "split": "test",
        "beams": 20,
        "rows": len(predictions),
        "given": list(predictions.given),
        **(counts or {}),
    }
    settings = {"search": "beam", **(settings or {})}
    with write_artefact(folder, "predictions", config={}, settings=settings, inputs=inputs, counts=findings) as fresh:
        predictions.to_frame().to_parquet(fresh / FILE, index=False)
        for name, content in (files or {}).items():
            (fresh / name).write_text(json.dumps(content))


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Two seeds of an SFT with records, RL and a mixture without, a sequential run, titles, own SIDs, and counts."""
    monkeypatch.chdir(tmp_path)
    write_trained(Path())
    corpus = Corpus.load("corpus")
    table = SidTable.load_index("sids", corpus.items["item_id"].tolist())
    rng = np.random.default_rng(5)
    made = {
        name: make_predictions(rng, corpus.test, table, 0.4) for name in ("other", "mixed", "titles", "own", "what")
    }
    inputs = {"checkpoint": "sft-43"}
    counts = {"parameters": 1_500_000_000, "rows": {"next_sid": 100}}
    with write_artefact("sft-43", "checkpoint", stage="sft", config=SFT, counts=counts, seed=43) as fresh:
        (fresh / "training_log.json").write_text('[{"epoch": 2.5}]')
    for name, seconds in (("sft-43", 1000.0), ("eval_sft-43", 10.0)):
        record_path(Path(name)).write_text(json.dumps({**RECORD, "seconds": {"all": seconds}}))
    save(made["other"], "eval_sft-43", inputs)
    targets = corpus.test.targets
    ranks = rng.integers(1, 30, (2, len(targets)))
    write_run(Path("sasrec"), ranks, targets, lists=[lists_of(found, targets, 20, 40) for found in ranks])
    mixing = {"assistant": "sasrec/seed-9/model", "checkpoint": "sft"}
    save(made["mixed"], "mixed", mixing, {"share": 0.8, "combine": "steps", "length_penalty": 0.0})
    save(grouped(made["titles"], [f"thing {item // 3}" for item in range(40)]), "titles")
    save(grouped(made["own"], [f"<a_{item}>" for item in range(40)]), "own", settings={"seen": "mask"})
    save(made["what"], "transition_counts", settings={"search": ""})
    return {
        "SFT": {"predictions": ["eval_sft-43", "eval_sft"], "published": "SFT", "tuned": "epochs on validation"},
        "RL": {"predictions": "eval_grpo", "published": "S-DPO", "note": "one seed"},
        "mixture": {"predictions": "mixed", "published": "D3"},
        "SASRec": {"predictions": "sasrec", "published": "SASRec"},
        "titles": "titles",
        "own SIDs": "own",
        "transition counts": "transition_counts",
        "later": {"predictions": "nowhere", "published": "TIGER"},
    }


def config(rows, **changes):
    settings = {"corpus": "corpus", "sids": "sids", "reference": "industrial", "ks": [1, 5, 10], "resamples": 100}
    findings = {"layout": "leaderboard", "slices": False, "predictions": rows, "output": "board", "baseline": "SFT"}
    return ReportConfig(**{**findings, **settings, **changes})


def read(folder="board"):
    return json.loads(Path(folder, "metrics.json").read_text(encoding="utf-8"))["splits"]["test"]


def markdown_of(result):
    return (result.output / "report.md").read_text(encoding="utf-8")


def test_the_page_is_the_golden_one(shop, drawn):
    result = run_report(config(shop))
    markdown = markdown_of(result)
    assert markdown[: markdown.index("## Sources")] == GOLDEN.read_text(encoding="utf-8")
    verify_files("board")
    counts = read_manifest("board", "report")["counts"]
    assert (counts["rows"], counts["recommenders"], counts["pending"]) == (120, 8, 1)
    html = (result.output / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert len(page.ids) == len(set(page.ids)) and "http" not in html and "script" not in page.tags
    assert all(link.startswith("#") for link in page.links)
    assert result.lines[0].startswith("titles has the highest NDCG@10")
    before = {name: Path("board", name).read_bytes() for name in FILES}
    assert run_report(config(shop)).up_to_date
    run_report(config(shop, output="again"))
    assert {name: Path("again", name).read_bytes() for name in FILES} == before
    assert not config({**shop, "RL": {**shop["RL"], "note": "another"}}).up_to_date()
    assert not config(shop, seed=1).up_to_date()


def test_metrics_and_differences_are_those_of_the_lists(shop):
    run_report(config(shop))
    page = read()
    found = page["recommenders"]
    positions = {"SFT": ["eval_sft-43", "eval_sft"], "RL": ["eval_grpo"], "titles": ["titles"]}
    values = {
        name: np.stack([ranking_metrics(sid_ranks(Predictions.load(folder)), [10])["NDCG@10"] for folder in own])
        for name, own in positions.items()
    }
    findings = found["SFT"]["metrics"]["sid"]["NDCG@10"]
    assert findings["mean"] == pytest.approx(values["SFT"].mean())
    assert findings["sd"] == pytest.approx(values["SFT"].mean(1).std(ddof=1))
    assert found["SFT"]["by_seed"]["sid"]["NDCG@10"] == pytest.approx(values["SFT"].mean(1).tolist())
    assert found["RL"]["metrics"]["sid"]["NDCG@10"]["sd"] is None
    gaps = {each["of"]: each for each in page["differences"]}
    gap = paired_bootstrap(values["RL"].mean(0), values["SFT"].mean(0), resamples=100)
    assert gaps["RL"]["minus"] == "SFT" and gaps["RL"]["levels"]["sid"]["NDCG@10"] == pytest.approx(list(gap))
    gap = paired_bootstrap(values["RL"].mean(0), values["titles"].mean(0), resamples=100)
    assert found["RL"]["minus_best"] == pytest.approx(list(gap)) and found["titles"]["minus_best"] is None


def test_who_is_given_the_session_context_is_reported_and_stands_apart_from_published_figures(shop):
    save(replace(Predictions.load("eval_grpo"), given=(SESSION_CONTEXT,)), "conditioned", {"checkpoint": "grpo"})
    shop["catalogue model"] = {"predictions": "conditioned", "published": "S-DPO"}
    del shop["RL"]  # the same lists
    name = "catalogue model (given session context)"
    markdown, page = markdown_of(run_report(config(shop))), read()
    standings = markdown.split("## Summary")[1].split("## Ranking metrics")[0]
    lines = [line.split(" | ")[0].removeprefix("| ") for line in standings.splitlines() if line.startswith("| ")]
    assert lines[-2:] == [NOT_COMPARABLE, name] and lines.index("later") < len(lines) - 2
    assert standings.count("catalogue model") == standings.count(name) > 1
    published = markdown.split("## Comparison with published results")[1].split("\n## ")[0]
    assert name not in published.split("Discrepancy")[1] and published.index(NOT_COMPARABLE) < published.index(name)
    found = page["recommenders"][name]
    assert (found["given"], found["beside_published"]) == (["session context"], [])
    beside = [reported["text"] for reported in page["findings"] if reported["rule"] == "published"]
    assert beside and all(name not in text for text in beside)
    assert f"| {name} minus SFT |" in markdown.split("## Differences from")[1]
    alone = markdown_of(run_report(config({"SFT": "eval_sft", "catalogue model": "conditioned"}, reference="")))
    assert name in alone and NOT_COMPARABLE not in alone
    base = markdown_of(run_report(config({"SFT": "eval_sft", "c": "conditioned"}, baseline="c", output="base")))
    assert "## Differences from c (given session context)" in base and "SFT minus c (given session context)" in base


def test_who_is_counted_by_what(shop):
    run_report(config(shop))
    page = read()
    counted = {name: line.get("counted_by") for name, line in page["recommenders"].items() if not line["baseline"]}
    assert counted == {
        **dict.fromkeys(("SFT", "RL", "mixture", "SASRec", "transition counts"), "SID"),
        **{"titles": "title", "own SIDs": "own SIDs", "later": None},
    }
    titles, own = (page["recommenders"][name]["metrics"] for name in ("titles", "own SIDs"))
    assert titles["sid"]["HR@5"]["mean"] > titles["item"]["HR@5"]["mean"]
    assert own["sid"] == own["item"]  # no two items share an SID
    run_report(config(shop, sids="", level="item", output="items"))
    items = read("items")["recommenders"]
    assert list(items["SASRec"]["metrics"]) == ["item"]
    assert items["SASRec"]["effort"]["search"] == "whole catalogue"
    beside = items["SFT"]["beside_published"][0]  # the replication says that it counts SIDs
    assert beside["reading"] == "sid"
    assert beside["gaps"][0]["ours"] == pytest.approx(page["recommenders"]["SFT"]["metrics"]["sid"]["HR@1"]["mean"])


def test_what_a_recommender_took_is_reported_as_far_as_it_was_recorded(shop):
    run_report(config(shop))
    took = {name: line.get("effort") for name, line in read()["recommenders"].items()}
    assert took["SFT"]["seeds"] == [43, 42] and took["SFT"]["training_seconds"] == (1000 + 3000) / 2
    assert took["SFT"]["evaluation_seconds"] == (10 + 3000) / 2 and took["SFT"]["rows_and_epochs"] == [100, 2.5]
    assert took["mixture"]["parameters"] == 1_500_000_000 + 1234
    assert took["mixture"]["search"] == "beam, 20 beams; share 0.8; combine steps"
    assert took["RL"]["trainings"] == [["SFT", 3000.0], ["RL (GRPO)", None]]
    assert took["RL"]["training_seconds"] is None and took["RL"]["commits"] == ["abc123"]
    assert took["SASRec"]["seeds"] == [9, 10] and took["transition counts"]["seeds"] == []
    assert took["SFT"]["settings"] == SFT and took["SFT"]["unlike_settings"] == {}
    assert (took["titles"]["settings"], took["titles"]["commits"], took["popularity"]) == ({}, [], None)
    with write_artefact("sft-44", "checkpoint", config={**SFT, "epochs": 12.0, "seed": 44}, counts={}, seed=44):
        pass
    save(Predictions.load("eval_grpo"), "eval_sft-44", {"checkpoint": "sft-44"})
    shop["SFT"]["predictions"].append("eval_sft-44")
    markdown = markdown_of(run_report(config(shop, output="three")))
    assert read("three")["recommenders"]["SFT"]["effort"]["unlike_settings"] == {"epochs": [10.0, 10.0, 12.0]}
    words = "The runs of SFT were trained with different settings, so its mean and its standard deviation are not over "
    assert f"{words}seeds alone: epochs 10, 10, 12." in markdown
    Path("sft-43", "manifest.json").unlink()
    markdown = markdown_of(run_report(config(shop, output="without")))
    assert read("without")["recommenders"]["SFT"]["effort"]["training_seconds"] is None
    assert "Missing or changed since, so the training cost is unknown: sft-43." in markdown


def test_a_pending_row_is_a_dash_and_an_error_where_all_is_to_be_there(shop):
    markdown = markdown_of(run_report(config(shop)))
    later = read()["recommenders"]["later"]
    assert later["pending"] and "metrics" not in later
    assert "| later | — | — | — | 0.0908 | — |" in markdown
    with pytest.raises(ArtefactError, match="nowhere: no predictions found for predictions: later, and strict is set"):
        run_report(config(shop, strict=True))
    shop["SFT"]["predictions"].append("eval_sft-44")
    assert not config(shop).up_to_date()
    run_report(config(shop, baseline="later", output="other"))
    assert read("other")["compared_with"] == "SFT"  # the first that is not pending
    with pytest.raises(ArtefactError, match="nowhere: no such directory"):
        run_report(config(shop, layout="report", predictions={"later": "nowhere"}, baseline="", output="report"))


def test_one_recommender_alone(shop):
    result = run_report(config({"RL": shop["RL"]}, baseline=""))
    assert result.text.startswith("RL has the highest NDCG@10, 0.4159") and "Pending" not in result.text
    assert next(iter(read()["recommenders"])) == "RL"


@pytest.mark.parametrize(
    ("reference", "marked"),
    [("industrial", {"HSTU": "NDCG@3", "D3": "NDCG@3"}), ("office", {"S-DPO": "NDCG@10", "TIGER": "NDCG@5"})],
)
def test_published_cells_that_cannot_be_right_are_marked_and_not_gone_by(shop, reference, marked):
    folders = dict(zip(marked, ("eval_grpo", "mixed"), strict=True))
    rows = {name: {"predictions": position, "published": name} for name, position in folders.items()}
    markdown = markdown_of(run_report(config(rows, baseline="", reference=reference, ks=[3, 5, 10])))
    page = read()
    assert dict(page["doubtful"]) == marked
    for name, metric in marked.items():
        gaps = page["recommenders"][name]["beside_published"][0]["gaps"]
        cell = next(each for each in gaps if each["metric"] == metric)
        assert cell["doubtful"]
        lines = [line for line in markdown.splitlines() if line.startswith(f"| {name} |")]
        assert sum(f"{cell['paper']:.4f} ✗" in line for line in lines) >= 2
    reported = " ".join(each["text"] for each in page["findings"])
    assert ("S-DPO (HR@10 0.7917, published 0.1587" in reported) == (reference == "office")


def test_orders(shop):
    def order(**changes):
        run_report(config(shop, output="ordered", **changes))
        return [name for name, line in read("ordered")["recommenders"].items() if not line["baseline"]]

    assert order(order="given") == list(shop)
    by_headline = order()
    assert by_headline[:2] == ["titles", "RL"] and by_headline[-1] == "later"
    assert order(headline="HR@1")[0] == "titles"
    assert order(level="item")[0] == "RL"
    assert order(order="parameters")[:3] == ["SASRec", "SFT", "mixture"]
    assert order(order="seconds")[0] == "SFT"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predictions": {"A": []}}, r"A: predictions is \[\]; expected a directory, or a list of them"),
        ({"predictions": {"A": [1]}}, r"A: predictions is \[1\]; expected a directory"),
        ({"predictions": {"A": None}}, "A: predictions is None; expected a directory"),
        ({"predictions": {"A": {}}}, r"A is \{\}; expected a mapping with predictions, published, tuned, note"),
        ({"predictions": {"A": {"note": "x"}}}, "A: predictions is missing"),
        (
            {"predictions": {"A": {"predictions": "a", "publishd": "x"}}},
            "A: unknown key 'publishd'; known: predictions",
        ),
        ({"predictions": {"A": {"predictions": "a", "tuned": 3}}}, "A: tuned is 3; expected a text"),
        ({"predictions": {"A": ["a", "./a"]}}, "predictions: A: a is given twice, first by A"),
        ({"predictions": {"A": "a", "B": ["b", "x/../a"]}}, "predictions: B: x/../a is given twice, first by A"),
        (
            {"predictions": {"A": {"predictions": "a", "published": "Tiger"}}},
            "A: published is 'Tiger', which is not in industrial; known: SFT, RL",
        ),
        (
            {"predictions": {"A": {"predictions": "a", "published": "TIGER"}}, "reference": ""},
            "A: published is 'TIGER', but reference is empty",
        ),
        ({"baseline": "C"}, "baseline is 'C', which is none of the predictions: A"),
        ({"headline": "NDCG@7"}, r"headline is 'NDCG@7'; expected a metric of the page \(HR@1, "),
        ({"headline": "best"}, "headline is 'best'; expected"),
        ({"corpus": ""}, "corpus is empty; give --corpus"),
    ],
)
def test_mistakes_in_settings_are_named(changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        config(**{"rows": {"A": "a"}, "baseline": "", **changes})
    assert "\n" not in str(error.value)


def test_mistakes_in_what_the_rows_name(shop):
    def findings(**changes):
        with pytest.raises((ArtefactError, ConfigError)) as error:
            run_report(config(**{"rows": {"A": "eval_grpo"}, "baseline": "", **changes}))
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "none of 1 has predictions, e.g. nowhere" in findings(rows={"later": "nowhere"})
    assert "sft: holds a 'checkpoint', expected a 'predictions'" in findings(rows={"A": "sft"})
    save(Predictions.load("eval_grpo"), "copy")
    save(Predictions.load("eval_grpo"), "twin")
    assert "A: twin has the same files as copy" in findings(rows={"A": ["copy", "twin"]})


def test_settings_come_from_a_file_and_the_command_line(shop):
    rows = "predictions:\n  A: [a, b]\n  B: {predictions: c, tuned: by hand}\n"
    Path("board.yaml").write_text(f"layout: leaderboard\ncorpus: c\n{rows}output: o\n")
    found = parse_settings(ReportConfig, ["--config", "board.yaml"])
    assert [run.paths for run in found.runs()] == [(Path("a"), Path("b")), (Path("c"),)]
    assert found.named_paths() == [Path("c"), Path("a"), Path("b"), Path("c")]
    words = parse_settings(ReportConfig, ["--corpus", "c", "--predictions", "A=a", "B=[b, c]", "--output", "o"])
    assert [run.paths for run in words.runs()] == [(Path("a"),), (Path("b"), Path("c"))]
