"""The report: content, self-containment, determinism and refusals."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import command
from support.measuring import evaluate_predictions, paired_bootstrap
from support.pages import Page, page_text
from support.runs import recommenders_of
from support.trained_shop import N, make_predictions, write_trained

from minionerec.core.artefacts import write_artefact
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import ranking_metrics, sid_ranks
from minionerec.pipeline.config.reports import ReportConfig
from minionerec.pipeline.report import run_report
from minionerec.pipeline.settings import parse_settings
from minionerec.recommend.rankers.baselines import MIXTURE, NAMES
from minionerec.reports import plots
from minionerec.reports.cells import MINUS
from minionerec.sid.table import SidTable

NASTY = 'Bolt <script>alert("x")</script> & | nuts'


def make_rows(rng, count):
    histories = [rng.integers(0, N, rng.integers(0, 6)) for _ in range(count)]
    return SplitExamples.of([f"u{n}" for n in range(count)], histories, rng.integers(0, N, count))


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    items = pd.DataFrame(
        {"item_id": [f"i{n}" for n in range(N)], "title": [NASTY] * 20 + ["Plain nut"] * 20, "description": [""] * N}
    )
    corpus = Corpus(items, make_rows(rng, 200), make_rows(rng, 20), make_rows(rng, 120), "global time 8:1:1", 10)
    corpus.save("corpus", config={}, inputs={})
    table = SidTable(np.stack([np.arange(N) // 8, np.arange(N) % 4, np.arange(N) // 2 % 4], axis=1), items["item_id"])
    with write_artefact("sids", "sids", config={"method": "fake"}, inputs={"corpus": "corpus"}) as folder:
        table.save_index(folder / "index.json")
    for name, share in (("sft", 0.4), ("grpo", 0.6)):
        made = make_predictions(rng, corpus.test, table, share)
        made.save(name, config={"beams": 20, "secret_setting": 7}, inputs={"corpus": "corpus", "sids": "sids"}, seed=42)
    ceiling = {"ceiling": {"hr@10": 0.9, "ndcg@10": 0.8}, "split": "global time 8:1:1", "rows": 120}
    Path("ceiling.json").write_text(json.dumps(ceiling))
    return corpus, table


def config(**changes):
    settings = {
        "corpus": "corpus",
        "sids": "sids",
        "predictions": {"SFT": "sft", "GRPO": "grpo"},
        "output": "report",
        "resamples": 100,
    }
    return ReportConfig(**{**settings, **changes})


def test_page_is_whole_loads_nothing_and_escapes_titles(shop, drawn):
    result = run_report(config(reference="industrial", ceiling="ceiling.json"))
    text = (result.output / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.links and all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    assert "http" not in text and "@import" not in text
    assert "svg" not in page.tags
    assert any('<script>alert("x")</script>' in piece for piece in page.text)
    words = " ".join(page.text)
    for expected in (
        "Ranking metrics",
        "popularity",
        "most recent items",
        "transition counts",
        "EASE",
        "0.1586",
        "0.0991 ✗",
        "L1+L2+L3",
        "✓",
    ):
        assert expected in words


def test_numbers_of_the_table_are_those_of_the_metrics(shop):
    _, table = shop
    result = run_report(config())
    evaluation = evaluate_predictions(Predictions.load("sft"), [1, 3, 5, 10, 20], list_length=20, resamples=100)
    line = next(line for line in result.text.splitlines() if line.startswith("SFT "))
    estimate = evaluation.sid["NDCG@10"]
    assert f"{estimate.mean:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]" in line
    markdown = page_text(result.output / "report.html")
    assert f"| {evaluation.item['HR@20'].mean:.4f} [" in markdown
    assert table.fingerprint in markdown
    kept = recommenders_of("report")
    assert kept["SFT"]["metrics"]["sid"]["NDCG@10"]["mean"] == estimate.mean
    assert list(kept) == ["SFT", "GRPO", *(name for name in NAMES if name != MIXTURE)]


def test_value_of_the_lists_beside_the_first_re_ranked(shop, drawn):
    corpus, _ = shop
    prices = np.random.default_rng(1).integers(1, 9, N).astype(float)
    items = corpus.items.assign(price=[f"{price}" for price in prices])
    replace(corpus, items=items).save("priced", config={}, inputs={})
    result = run_report(config(corpus="priced", value_column="price"))
    lists = np.array([list(dict.fromkeys(row))[:10] for row in Predictions.load("grpo").items])
    hits = (lists == corpus.test.targets[:, None]).any(1)
    values = hits * (prices / prices.mean())[corpus.test.targets]
    kept = json.loads((result.output / "metrics.json").read_text())["value"]
    assert kept["recommenders"]["GRPO"]["HR@10"][0] == pytest.approx(hits.mean())
    assert kept["recommenders"]["GRPO"]["value@10"][0] == pytest.approx(values.mean())
    assert set(kept["recommenders"]) == {"SFT", "GRPO", *(name for name in NAMES if name != MIXTURE)}
    shown = f"value@10 {values.mean():.4f} with HR@10 {hits.mean():.4f}"
    assert f"In purchase value: GRPO finds {shown}, SFT re-ranked by price " in result.text
    section = page_text(result.output / "report.html").split("## Value of the lists")[1].split("\n## ")[0]
    assert re.search(rf"\| GRPO \| {hits.mean():.4f} .+ \| {values.mean():.4f} .+ \| 0\.\d{{4}} \| .+p [=<]", section)
    assert Page((result.output / "report.html").read_text(encoding="utf-8")).tags.count("svg") == 1
    with pytest.raises(ConfigError, match="value_column is 'cost', but the corpus has no such column of items"):
        run_report(config(corpus="priced", value_column="cost", output="other"))


def test_examples_have_the_titles_of_history_target_and_lists(shop):
    text = page_text(run_report(config()).output / "report.html").split("## Examples")[1]
    predictions = {name: Predictions.load(name.lower()) for name in ("SFT", "GRPO")}
    first, titles = predictions["SFT"], [" ".join(title.split()) for title in shop[0].items["title"]]
    hits = [target in items[:5] for target, items in zip(first.targets, first.items, strict=True)]
    assert f"({sum(hits)} and {len(hits) - sum(hits)} of all examples)" in text
    parts = re.split(r"^Example (\d+)\. ", text, flags=re.M)[1:]
    assert [hits[int(row)] for row in parts[::2]] == [True] * 3 + [False] * 3
    for row, part in zip(map(int, parts[::2]), parts[1::2], strict=True):
        target, history = first.targets[row], shop[0].test.histories[row]
        lines = part.splitlines()
        assert lines[0].startswith(f"Target: {titles[target]}. History, the newest {len(history)} of {len(history)} ")
        assert [line for line in lines if line.startswith("* ")] == [f"* {titles[item]}" for item in history]
        for rank in range(5):
            items = [of.items[row][rank] for of in predictions.values()]
            shown = [f"{titles[item]} ✓" if item == target else titles[item] for item in items]
            assert " | ".join([f"| {rank + 1}", *shown]) in part


def shortened(markdown):
    """The sentences of the summary."""
    return [line[2:] for line in markdown.split("## Evaluation setup")[0].splitlines() if line.startswith("* ")]


def test_sentences_say_what_the_paired_differences_say(shop):
    result = run_report(config(ceiling="ceiling.json"))
    values = {name: ranking_metrics(sid_ranks(Predictions.load(name)), [10])["NDCG@10"] for name in ("sft", "grpo")}
    gap = paired_bootstrap(values["grpo"], values["sft"], 0, 100)
    assert gap.low > 0
    message = shortened(page_text(result.output / "report.html").replace(MINUS, "-"))
    shown = f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
    assert message[0] == (
        f"GRPO has the highest NDCG@10, {values['grpo'].mean():.4f}, and is ahead of the next, SFT: {shown}."
    )
    assert re.match(
        r"Compared with the strongest baseline on validation, .+: ahead SFT \(.+\), GRPO \(.+\)\.", message[1]
    )
    assert "| GRPO minus SFT | " in page_text(result.output / "report.html") and shown in page_text(
        result.output / "report.html"
    )
    page = " ".join(Page((result.output / "report.html").read_text(encoding="utf-8")).text).replace(MINUS, "-")
    assert all(sentence in page for sentence in message)


def test_without_matplotlib_tables_and_a_note_remain(shop, monkeypatch):
    monkeypatch.setattr(plots, "available", lambda: False)
    text = (run_report(config()).output / "report.html").read_text(encoding="utf-8")
    assert "<svg" not in text and "matplotlib is not installed" in text and "Ranking metrics" in text


def test_ceiling_is_shown_for_its_own_split_alone(shop):
    assert "| ceiling | - | - |" in page_text(run_report(config(ceiling="ceiling.json")).output / "report.html")
    Path("ceiling.json").write_text(json.dumps({"ceiling": {"HR@10": 0.9}, "rows": 7}))
    assert "| ceiling | - | - |" not in page_text(run_report(config(ceiling="ceiling.json")).output / "report.html")
    assert "| ceiling | - | - |" not in page_text(run_report(config(ceiling="nowhere.json")).output / "report.html")


def test_item_recommenders_get_their_sids_from_the_table(shop):
    full = Predictions.load("sft")
    bare = Predictions(
        full.users, full.targets, [""] * len(full), full.items, [[""] * len(row) for row in full.items], full.scores
    )
    bare.save("bare", config={"beams": 20}, inputs={})
    run_report(config(predictions={"A": "sft", "B": "bare"}))
    kept = recommenders_of("report")
    assert {tuple(gap) for part in kept["B"]["slices"] for gap in part.pop("against").values()} == {(0, 0, 0, 1)}
    assert not any(part.pop("against") for part in kept["A"]["slices"])
    assert all(kept["A"][key] == kept["B"][key] for key in ("metrics", "by_seed", "lists", "slices", "levels"))


def test_published_discrepancy_is_ours_minus_theirs(shop):
    markdown = page_text(run_report(config(reference="industrial")).output / "report.html").replace(MINUS, "-")
    kept = recommenders_of("report")["SFT"]
    ours = kept["metrics"]["sid"]["HR@10"]["mean"]
    gap = f"{ours - 0.1379:+.4f} {ours:.4f} against 0.1379, {100 * (ours - 0.1379) / 0.1379:+.1f} %, "
    line = next(line for line in markdown.splitlines() if line.startswith("| SFT | SFT (replication) | by SID |"))
    assert gap in line
    conditioned = kept["beside_published"][0]
    assert (conditioned["row"], conditioned["reading"]) == ("SFT (replication)", "sid")
    assert next(each["gap"] for each in conditioned["gaps"] if each["metric"] == "HR@10") == pytest.approx(
        ours - 0.1379
    )


def test_inputs_that_do_not_belong_together_are_refused(shop):
    corpus, table = shop
    rng = np.random.default_rng(1)
    other_rows = replace(corpus.test, targets=np.roll(corpus.test.targets, 1))
    make_predictions(rng, other_rows, table, 0.5).save("rolled", config={}, inputs={})
    with pytest.raises(
        ArtefactError, match=r"rolled \(X\): example \d+ has target \d+, in the test split of corpus it is \d+"
    ):
        run_report(config(predictions={"X": "rolled"}))
    make_predictions(rng, corpus.valid, table, 0.5).save("valid", config={}, inputs={})
    with pytest.raises(ArtefactError, match=r"valid \(X\): 20 examples, but the test split of corpus has 120"):
        run_report(config(predictions={"X": "valid"}))
    assert (run_report(config(predictions={"X": "valid"}, split="valid")).output / "report.html").is_file()
    with pytest.raises(ArtefactError, match=r"nowhere: no such directory"):
        run_report(config(predictions={"X": "nowhere"}, output="new"))
    assert not Path("new").exists()


def test_trainings_are_reported_with_their_time_cost_and_learning_curves(shop, drawn):
    assert "## Training" not in page_text(run_report(config()).output / "report.html")  # they name no checkpoint
    write_trained(Path("made"))
    about = {"corpus": "made/corpus", "sids": "made/sids", "output": "trained"}
    predictions = {"RL": "made/eval_grpo", "SFT": "made/eval_sft"}
    result = run_report(config(**about, predictions=predictions))
    part = page_text(result.output / "report.html").split("## Training")[1].split("\n## ")[0]
    assert "| Recommender | Search | Seeds | Parameters | Examples x epochs | Training | Evaluation |" in part
    assert "| SFT | beam, 20 beams | 1 (42) | 1,500,000,000 | — | 50 min 00 s | 50 min 00 s |" in part
    assert "| RL | beam, 20 beams | 1 (42) | — | — | not recorded (SFT 50 min 00 s, RL (GRPO) not recorded) |" in part
    assert "Some CPU" in part and "popularity" not in part
    text = Page((result.output / "report.html").read_text(encoding="utf-8")).text
    panels = [piece for piece in text if re.fullmatch(r"\w+: (loss|reward|NDCG@10)", piece.strip())]
    assert panels == ["SFT: loss", "RL: NDCG@10"]
    kept = json.loads((result.output / "metrics.json").read_text())
    sft, rl = kept["learning_curves"]
    assert (sft["training"], len(sft["measures"]["loss"]["validation"])) == ("SFT", 13)
    assert sft["measures"]["loss"]["training"][0] == [0.5, 1.95]
    assert (rl["training"], rl["measures"]) == ("RL", {"NDCG@10": {"validation": [[0, 0.1], [2.0, 0.11]]}})


def test_configuration_errors(shop):
    with pytest.raises(ConfigError, match=r"K = 50 .* hold 20 candidates"):
        run_report(config(ks=[10, 50]))
    run_report(config(predictions={"popularity": "sft"}))  # takes the place of the baseline
    assert list(recommenders_of("report")).count("popularity") == 1
    usual = ["--corpus", "corpus", "--output", "report"]
    for words, message in (
        (["--predictions", "A=x", "--items", "t.json"], r"a corpus has its own titles; leave items out"),
        (["--predictions", "A=x", "--protocol", "a", "--sids", "s"], r"whose items have no SIDs; leave sids out"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_settings(ReportConfig, [*usual, *words])
    given = parse_settings(ReportConfig, [*usual, "--predictions", "A = x", "B=y=z", "--ks", "5", "1", "5"])
    assert (given.predictions, given.ks) == ({"A": "x", "B": "y=z"}, [1, 5])


def test_command_prints_table_and_path(shop):
    words = ["--config", "r.yaml", "--resamples", "50"]
    Path("r.yaml").write_text("corpus: corpus\nsids: sids\npredictions: {SFT: sft, GRPO: grpo}\noutput: report\n")
    done = command(Path.cwd(), "report", *words)
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert lines[:-1] == Path("report/summary.txt").read_text().splitlines() and any(
        "NDCG@10" in line for line in lines
    )
    assert lines[-1] == "Report: report/report.html"
    assert Path("report/report.html").is_file()


def test_whether_plots_can_be_drawn_decides_the_page(shop, monkeypatch):
    run_report(config())
    monkeypatch.setattr(plots, "available", lambda: not plots.find_spec("matplotlib"))
    assert not config().up_to_date()


def test_without_sids_the_report_is_at_item_level(shop):
    with_sids = run_report(config())
    known = recommenders_of("report")
    result = run_report(config(sids="", output="bare"))
    found = recommenders_of("bare")["SFT"]
    assert found["metrics"] == {"item": known["SFT"]["metrics"]["item"]}
    assert found["lists"]["invalid"] is None and found["levels"] is None
    assert "item-level" in result.text and "SID-level" in with_sids.text
    text = page_text(result.output / "report.html")
    for absent in ("by SID", "Accuracy by level", "semantic ID", "Validity"):
        assert absent not in text
    for there in ("counted by item", "## Coverage", "## Examples", "✓"):
        assert there in text
