"""Reports of several seeds and kinds of recommenders: metrics, differences, cost, published figures, and mistakes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.measuring import paired_bootstrap
from support.pages import page_text
from support.runs import lists_of, recommenders_of, write_run
from support.trained_shop import RECORD, SFT, make_predictions, write_trained

from minionerec.core.artefacts import read_manifest, verify_files, write_artefact
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.records import record_path
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import FILE, Predictions
from minionerec.metrics.ranking import ranking_metrics, sid_ranks
from minionerec.metrics.statistics import bootstrap_interval
from minionerec.pipeline.config.reports import ReportConfig
from minionerec.pipeline.report import run_report
from minionerec.pipeline.settings import parse_settings
from minionerec.reports.results import MANY
from minionerec.reports.sections import NOT_COMPARABLE
from minionerec.sid.table import SidTable

FILES = ("report.html", "metrics.json", "summary.txt")


def grouped(predictions, names):
    """The same lists with other groups of items: what each item's group is called."""
    return replace(
        predictions,
        target_sids=[names[target] for target in predictions.targets],
        sids=[[names[item] for item in row] for row in predictions.items],
    )


def save(predictions, folder, inputs=None, settings=None, files=None, counts=None):
    """A predictions artefact as an evaluation leaves it, with further files."""
    counted = {
        "split": "test",
        "beams": 20,
        "rows": len(predictions),
        "given": list(predictions.given),
        **(counts or {}),
    }
    settings = {"search": "beam", **(settings or {})}
    with write_artefact(folder, "predictions", config={}, settings=settings, inputs=inputs, counts=counted) as fresh:
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
    }


def config(rows, **changes):
    settings = {"corpus": "corpus", "sids": "sids", "reference": "industrial", "ks": [1, 5, 10], "resamples": 100}
    named = {"predictions": rows, "output": "board", "baseline": "SFT"}
    return ReportConfig(**{**named, **settings, **changes})


def read(folder="board"):
    return json.loads(Path(folder, "metrics.json").read_text(encoding="utf-8"))


def test_output_is_an_artefact_whose_bytes_repeat(shop):
    result = run_report(config(shop))
    verify_files("board")
    manifest = read_manifest("board", "report")
    assert sorted(manifest["files"]) == sorted(FILES)
    assert (manifest["counts"]["rows"], manifest["counts"]["recommenders"]) == (120, 7)
    assert {"predictions SFT 1", "predictions SFT 2", "predictions SASRec 2"} <= set(manifest["inputs"])
    before = {name: Path("board", name).read_bytes() for name in FILES}
    again = run_report(config(shop))
    assert again.up_to_date and (again.lines, again.metrics) == (result.lines, result.metrics)
    run_report(config(shop, output="again"))
    assert {name: Path("again", name).read_bytes() for name in FILES} == before
    assert not config({**shop, "RL": {**shop["RL"], "note": "another"}}).up_to_date()
    save(Predictions.load("eval_grpo"), "eval_sft-44")
    shop["SFT"]["predictions"].append("eval_sft-44")
    assert not config(shop).up_to_date()
    with Path("mixed", FILE).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ArtefactError, match=r"mixed/predictions\.parquet: differs from"):
        run_report(config(shop))


def test_metrics_and_differences_are_those_of_the_lists(shop):
    run_report(config(shop))
    page = read()
    recommenders = page["recommenders"]
    positions = {"SFT": ["eval_sft-43", "eval_sft"], "RL": ["eval_grpo"], "titles": ["titles"]}
    values = {
        name: np.stack([ranking_metrics(sid_ranks(Predictions.load(folder)), [10])["NDCG@10"] for folder in folders])
        for name, folders in positions.items()
    }
    ours = recommenders["SFT"]["metrics"]["sid"]["NDCG@10"]
    assert ours["mean"] == pytest.approx(values["SFT"].mean())
    assert ours["sd"] == pytest.approx(values["SFT"].mean(1).std(ddof=1))
    assert recommenders["SFT"]["by_seed"]["sid"]["NDCG@10"] == pytest.approx(values["SFT"].mean(1).tolist())
    assert recommenders["RL"]["metrics"]["sid"]["NDCG@10"]["sd"] is None
    gaps = {of["of"]: of for of in page["differences"]}
    gap = paired_bootstrap(values["RL"].mean(0), values["SFT"].mean(0), resamples=100)
    assert gaps["RL"]["minus"] == "SFT" and gaps["RL"]["levels"]["sid"]["NDCG@10"] == pytest.approx(list(gap))


def test_users_are_resampled_by_default_and_examples_on_demand(shop):
    corpus = Corpus.load("corpus")
    users = [f"u{row // 4}" for row in range(len(corpus.test))]
    ranks = np.random.default_rng(0).integers(1, 20, (2, len(users)))
    grouped = SplitExamples.of(users, list(corpus.test.histories), corpus.test.targets)
    replace(corpus, test=grouped).save("grouped", config={}, inputs={})
    for number, name in enumerate(("one", "two")):
        lists = [lists_of(ranks[number], corpus.test.targets, 20, 40)]
        write_run(Path(name), ranks[number][None], corpus.test.targets, users=users, lists=lists)
    first, second = (ranking_metrics(row, [10])["NDCG@10"] for row in ranks)
    rows = {"one": "one", "two": "two"}
    settings = {"corpus": "grouped", "sids": "", "reference": None, "baseline": ""}
    page = page_text(run_report(config(rows, **settings)).output / "report.html")
    assert (
        "Intervals and paired tests: 100 bootstrap samples of 30 users, each with all of its examples (120 examples"
        in page
    )
    gap = paired_bootstrap(second, first, 0, 100, clusters=users)
    assert read()["differences"][0]["levels"]["item"]["NDCG@10"] == pytest.approx(list(gap))
    interval = recommenders_of("board")["two"]["metrics"]["item"]["NDCG@10"]["interval"]
    assert interval == pytest.approx(bootstrap_interval(second, 0, 100, clusters=users))


def test_who_is_given_the_gap_is_reported_and_stands_apart_from_published_figures(shop):
    save(replace(Predictions.load("eval_grpo"), given=("gap",)), "conditioned", {"checkpoint": "grpo"})
    shop["catalogue model"] = {"predictions": "conditioned", "published": "S-DPO"}
    del shop["RL"]  # the same lists
    name = "catalogue model (given gap)"
    result, page = run_report(config(shop)), read()
    text = page_text(result.output / "report.html")
    ours, published = text.split("## Comparison with published results")
    discrepancy = published.split("\n## ")[0].split("Discrepancy")[1]
    assert ours.count("catalogue model") == ours.count(name) >= 3
    ours = ours.split("## Ranking metrics")[1]
    lines = [line.split(" | ")[0].removeprefix("| ") for line in ours.splitlines()]
    assert lines.index("baseline: popularity") < lines.index(NOT_COMPARABLE) == lines.index(name) - 1
    assert "| SFT | SFT (replication) |" in discrepancy and name not in discrepancy
    assert f"\n{name} " in result.text
    reported = page["recommenders"][name]
    assert (reported["given"], reported["beside_published"]) == (["gap"], [])
    assert not any(name in line for line in page["summary"] if "the published" in line)
    assert f"| {name} minus SFT |" in text.split("## Differences from")[1]
    run_report(config({"SFT": "eval_sft", "c": "conditioned"}, baseline="c", output="base", reference=None))
    base = page_text(Path("base/report.html"))
    assert "## Differences from c (given gap)" in base and "SFT minus c (given gap)" in base
    assert '"c (given gap)" has the highest NDCG@10' in base and NOT_COMPARABLE not in base
    with pytest.raises(ConfigError, match="have the same name with their inputs"):
        run_report(config({name: "eval_sft", "catalogue model": "conditioned"}, baseline="", output="other"))


def test_hits_are_counted_by_the_sids_of_the_page_own_sids_or_titles(shop):
    run_report(config(shop))
    recommenders = read()["recommenders"]
    counted = {name: of["counted_by"] for name, of in recommenders.items() if not of["baseline"]}
    assert counted == {
        **dict.fromkeys(("SFT", "RL", "mixture", "SASRec", "transition counts"), "SID"),
        **{"titles": "title", "own SIDs": "own SIDs"},
    }
    text = page_text(Path("board/report.html"))
    assert "Counted by their own SIDs: own SIDs." in text and "Counted by title: titles." in text
    titles, own = (recommenders[name]["metrics"] for name in ("titles", "own SIDs"))
    assert titles["sid"]["HR@5"]["mean"] > titles["item"]["HR@5"]["mean"]
    assert own["sid"] == own["item"]  # no two items share an SID
    run_report(config(shop, sids="", output="items"))
    items = read("items")["recommenders"]
    assert list(items["SASRec"]["metrics"]) == ["item"]
    assert items["SASRec"]["effort"]["search"] == "whole catalogue"


def test_cost_is_reported_as_far_as_it_was_recorded(shop):
    run_report(config(shop))
    effort = {name: of["effort"] for name, of in read()["recommenders"].items()}
    assert effort["SFT"]["seeds"] == [43, 42] and effort["SFT"]["examples_and_epochs"] == [100, 2.5]
    assert effort["mixture"]["parameters"] == 1_500_000_000 + 1234
    assert effort["mixture"]["search"] == "beam, 20 beams; share 0.8; combine steps"
    assert effort["SASRec"]["seeds"] == [9, 10] and effort["transition counts"]["seeds"] == []
    assert effort["SFT"]["settings_that_differ"] == {} and effort["popularity"] is None
    text = page_text(Path("board/report.html"))
    assert "| 2 (43, 42) | 1,500,000,000 | 100 x 2.5 | 33 min 20 s | 25 min 05 s |" in text
    assert "| epochs on validation |" in text and "| one seed |" in text
    with write_artefact("sft-44", "checkpoint", config={**SFT, "epochs": 12.0, "seed": 44}, counts={}, seed=44):
        pass
    save(Predictions.load("eval_grpo"), "eval_sft-44", {"checkpoint": "sft-44"})
    shop["SFT"]["predictions"].append("eval_sft-44")
    text = page_text(run_report(config(shop, output="three")).output / "report.html")
    assert read("three")["recommenders"]["SFT"]["effort"]["settings_that_differ"] == {"epochs": [10.0, 10.0, 12.0]}
    words = "The runs of SFT were trained with different settings, so its mean and its standard deviation are not over "
    assert f"{words}seeds alone: epochs 10, 10, 12." in text
    Path("sft-43", "manifest.json").unlink()
    text = page_text(run_report(config(shop, output="without")).output / "report.html")
    assert read("without")["recommenders"]["SFT"]["effort"]["missing"] == ["sft-43"]
    assert "SFT: missing or changed since, so the training cost is unknown: sft-43." in text


def test_missing_predictions_are_an_error_or_left_out_on_demand(shop, caplog):
    shop["later"] = {"predictions": "nowhere", "published": "TIGER"}
    with pytest.raises(ArtefactError, match="nowhere: no such directory"):
        run_report(config(shop))
    assert not Path("board").exists()
    run_report(config(shop, allow_missing=True))
    assert "later: has no predictions in nowhere; it is left out" in caplog.text
    assert "later" not in read()["recommenders"]
    save(Predictions.load("titles"), "nowhere")
    assert not config(shop, allow_missing=True).up_to_date()
    with pytest.raises(ArtefactError, match="elsewhere: no such directory"):
        run_report(config({"A": "elsewhere"}, baseline="", allow_missing=True))


def test_many_recommenders_have_the_best_first(shop):
    for number in range(MANY):
        made = Predictions.load("eval_sft")
        share = number / MANY
        hits = [
            [target, *row[1:]] if n < share * len(made) else row
            for n, (target, row) in enumerate(zip(made.targets.tolist(), made.items, strict=True))
        ]
        table = SidTable.load_index("sids", [f"i{n}" for n in range(40)])
        items = [list(dict.fromkeys(row)) for row in hits]
        replace(
            made,
            items=items,
            sids=[[table.sids[item] for item in row] for row in items],
            scores=[[-float(n) for n in range(len(row))] for row in items],
        ).save(f"many{number}", config={}, inputs={})
    rows = {f"m{number}": f"many{number}" for number in range(MANY)}
    run_report(config({"SFT": "eval_sft-43", **rows}))
    page = read()
    names = [name for name, of in page["recommenders"].items() if not of["baseline"]]
    assert names == [name for name in page["ranked"] if name in names] != ["SFT", *rows]
    few = dict(list(rows.items())[:3])
    run_report(config(few, baseline="", output="few"))
    assert list(read("few")["recommenders"])[:3] == list(few)  # as given


@pytest.mark.parametrize(
    ("reference", "marked"),
    [("industrial", {"HSTU": "NDCG@3", "D3": "NDCG@3"}), ("office", {"S-DPO": "NDCG@10", "TIGER": "NDCG@5"})],
)
def test_published_cells_that_cannot_be_right_are_marked_and_not_compared_by(shop, reference, marked):
    folders = dict(zip(marked, ("eval_grpo", "mixed"), strict=True))
    rows = {name: {"predictions": position, "published": name} for name, position in folders.items()}
    text = page_text(run_report(config(rows, baseline="", reference=reference, ks=[3, 5, 10])).output / "report.html")
    page = read()
    assert dict(page["doubtful"]) == marked
    for name, metric in marked.items():
        gaps = page["recommenders"][name]["beside_published"][0]["gaps"]
        cell = next(gap for gap in gaps if gap["metric"] == metric)
        assert cell["doubtful"]
        lines = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
        assert sum(f"{cell['paper']:.4f} ✗" in line for line in lines) >= 2
    assert ("S-DPO (HR@10 0.7917, published 0.1587" in " ".join(page["summary"])) == (reference == "office")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predictions": {"A": []}}, r"A: predictions is \[\]; expected a directory, or a list of them"),
        ({"predictions": {"A": [1]}}, r"A: predictions is \[1\]; expected a directory"),
        ({"predictions": {"A": None}}, "A: predictions is None; expected a directory"),
        ({"predictions": {"A": {}}}, "A: predictions is missing; expected a mapping with predictions, published"),
        ({"predictions": {"A": {"note": "x"}}}, "A: predictions is missing"),
        (
            {"predictions": {"A": {"predictions": "a", "publishd": "x"}}},
            "A: unknown key 'publishd'; expected a mapping with predictions",
        ),
        ({"predictions": {"A": {"predictions": "a", "tuned": 3}}}, "A: tuned is 3; expected a text"),
        ({"predictions": {"A": ["a", "./a"]}}, "predictions: A: a is given twice"),
        (
            {"predictions": {"A": {"predictions": "a", "published": "Tiger"}}},
            "A: published is 'Tiger', which is not in industrial; known: SFT, RL",
        ),
        (
            {"predictions": {"A": {"predictions": "a", "published": "TIGER"}}, "reference": ""},
            "A: published is 'TIGER', but reference is empty",
        ),
        ({"baseline": "C"}, "baseline is 'C', which is none of the predictions: A"),
        ({"corpus": ""}, "corpus"),
        ({"metrics": ["Hit@10"]}, "unknown metric 'Hit@10'"),
    ],
)
def test_mistakes_in_settings_are_named(changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        config(**{"rows": {"A": "a"}, "baseline": "", **changes})
    assert "\n" not in str(error.value)


def test_mistakes_in_predictions_are_named(shop):
    def refusal(**changes):
        with pytest.raises((ArtefactError, ConfigError)) as error:
            run_report(config(**{"rows": {"A": "eval_grpo"}, "baseline": "", **changes}))
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "sft: holds a 'checkpoint', expected a 'predictions'" in refusal(rows={"A": "sft"})
    save(Predictions.load("eval_grpo"), "copy")
    save(Predictions.load("eval_grpo"), "twin")
    assert "A: twin has the same files as copy" in refusal(rows={"A": ["copy", "twin"]})
    assert "HR@50 needs lists of 50, but those of A hold 20" in refusal(ks=None, metrics=["HR@50"])
    targets = Corpus.load("corpus").test.targets
    write_run(Path("other"), np.ones((1, len(targets)), int), targets[::-1])
    Path("sasrec/seed-10").rename("other/seed-10")
    assert "its test examples are not those of" in refusal(rows={"A": "other"})


def test_settings_come_from_a_file_and_the_command_line(shop):
    rows = "predictions:\n  A: [a, b]\n  B: {predictions: c, tuned: by hand}\n"
    Path("board.yaml").write_text(f"corpus: c\n{rows}output: o\n")
    settings = parse_settings(ReportConfig, ["--config", "board.yaml"])
    assert [run.paths for run in settings.runs()] == [(Path("a"), Path("b")), (Path("c"),)]
    assert settings.named_paths() == [Path("c"), Path("a"), Path("b"), Path("c")]
    words = parse_settings(ReportConfig, ["--corpus", "c", "--predictions", "A=a", "B=[b, c]", "--output", "o"])
    assert [run.paths for run in words.runs()] == [(Path("a"),), (Path("b"), Path("c"))]
