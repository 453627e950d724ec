"""Comparisons: means, sds and paired differences against numpy, published figures, and rows that do not match."""

from pathlib import Path

import numpy as np
import pytest
from support.measuring import paired_bootstrap
from support.pages import Page
from support.runs import lists_of, write_run

from minionerec.core.artefacts import read_manifest, verify_files
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import bootstrap_interval
from minionerec.reports.config import ReportConfig
from minionerec.reports.report import run_report
from minionerec.reports.sections import NOT_COMPARABLE

ROWS = 40
TARGETS = np.arange(ROWS)


@pytest.fixture
def runs(tmp_path):
    rng = np.random.default_rng(0)
    first, second = rng.integers(1, 30, (2, ROWS)), rng.integers(1, 15, (3, ROWS))
    # Seed 10 comes after seed 9 also where names are sorted as words.
    return write_run(tmp_path / "one", first, TARGETS), write_run(tmp_path / "two", second, TARGETS), first, second


def config_for(one, two=None, **changes):
    """Settings of a comparison: of two runs, or of any by name."""
    runs = one if two is None else {"one": one, "two": two}
    settings = {"layout": "comparison", "resamples": 300, **changes}
    return ReportConfig(predictions={name: str(run) for name, run in runs.items()}, **settings)


def found_by(config, split="test"):
    return run_report(config).metrics["splits"][split]


def test_means_sds_and_paired_differences(runs, tmp_path):
    one, two, first, second = runs
    metrics = ["HR@5", "NDCG@10", "MRR@3"]
    result = run_report(config_for(one, two, metrics=metrics, output=str(tmp_path / "table")))
    found = result.metrics["splits"]["test"]
    for name in metrics:
        k = int(name.partition("@")[2])
        ours, theirs = (np.array([ranking_metrics(row, [k])[name] for row in ranks]) for ranks in (first, second))
        conditioned = found["recommenders"]["one"]["metrics"]["item"][name]
        assert (conditioned["mean"], conditioned["sd"]) == (
            pytest.approx(ours.mean()),
            pytest.approx(ours.mean(1).std(ddof=1)),
        )
        gap = paired_bootstrap(theirs.mean(0), ours.mean(0), resamples=300)
        assert found["differences"][0]["levels"]["item"][name] == pytest.approx(list(gap))
    assert [(each["of"], each["minus"]) for each in found["differences"]] == [("two", "one")]
    assert [found["recommenders"][name]["seeds"] for name in ("one", "two")] == [2, 3]
    valid = result.metrics["splits"]["valid"]["recommenders"]["one"]["metrics"]["item"]["HR@5"]
    assert (valid["mean"], valid["sd"]) == (1.0, 0.0)
    markdown = (tmp_path / "table" / "report.md").read_text()
    assert result.text.startswith(f"{markdown.rstrip()}\nReport: ") and "| two | 1,234 | 3 |" in markdown


def test_users_are_resampled_by_default_and_examples_on_demand(tmp_path):
    ranks = np.random.default_rng(0).integers(1, 20, (2, ROWS))
    users = [f"u{row // 4}" for row in range(ROWS)]
    for number, name in enumerate(("one", "two")):
        write_run(tmp_path / name, ranks[number][None], TARGETS, users=users)
    first, second = (ranking_metrics(row, [10])["NDCG@10"] for row in ranks)
    for resample, clusters in (("users", users), ("examples", None)):
        settings = {"metrics": ["NDCG@10"], "resample": resample, "output": str(tmp_path / "table")}
        config = config_for(tmp_path / "one", tmp_path / "two", **settings)
        assert not config.up_to_date()
        found = found_by(config)
        gap = paired_bootstrap(second, first, 0, 300, clusters=clusters)
        assert found["differences"][0]["levels"]["item"]["NDCG@10"] == pytest.approx(list(gap))
        interval = found["recommenders"]["two"]["metrics"]["item"]["NDCG@10"]["interval"]
        assert interval == pytest.approx(bootstrap_interval(second, 0, 300, clusters=clusters))


def test_the_output_is_an_artefact_with_every_seed_as_an_input(runs, tmp_path):
    one, two, *_ = runs
    config = config_for(one, two, output=str(tmp_path / "table"))
    first = run_report(config)
    verify_files(tmp_path / "table")
    manifest = read_manifest(tmp_path / "table", "report")
    assert sorted(manifest["files"]) == ["metrics.json", "report.html", "report.md", "table.txt"]
    seeds = [f"predictions {name} {seed}" for name, most in (("one", 2), ("two", 3)) for seed in range(1, most + 1)]
    assert list(manifest["inputs"]) == seeds
    assert not first.up_to_date and config.up_to_date()
    again = run_report(config)
    assert again.up_to_date and (again.text, again.metrics) == (first.text, first.metrics)
    table, output = (tmp_path / "table" / "table.txt").read_text(), tmp_path / "table"
    assert again.lines == [*table.splitlines(), f"Report: {output / 'report.html'} (and {output / 'report.md'})"]
    html = (first.output / "report.html").read_text()
    page = Page(html)
    assert all(link.startswith("#") for link in page.links) and "http" not in html
    assert "script" not in page.tags and "1,234" in page.text
    run_report(config_for(one, two, output=str(tmp_path / "other")))
    for name in manifest["files"]:
        assert (tmp_path / "table" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_a_seed_more_or_a_file_changed_by_hand_is_noticed(runs, tmp_path):
    one, two, first, _ = runs
    config = config_for(one, two, output=str(tmp_path / "table"))
    run_report(config)
    write_run(one, np.concatenate([first, first[:1]]), TARGETS)
    assert not config.up_to_date()
    assert found_by(config)["recommenders"]["one"]["seeds"] == 3
    with (two / "seed-10" / "predictions" / "ranks.parquet").open("ab") as file:
        file.write(b" ")
    for output in (config.output, ""):
        with pytest.raises(ArtefactError, match=r"seed-10/predictions/ranks\.parquet: differs from manifest\.json"):
            run_report(config_for(one, two, output=output))


def test_without_an_output_nothing_is_written(runs, tmp_path, monkeypatch):
    one, two, *_ = runs
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    result = run_report(config_for(one, two))
    assert "## test examples: Ranking metrics" in result.lines and "Report: " not in result.text
    assert list(Path().iterdir()) == []


def test_published_figures_stand_beside_ours(runs):
    one, two, *_ = runs
    config = config_for({"wearec": one, "mine": two}, metrics=["NDCG@10"], reference="lastfm", resamples=50)
    test, valid = run_report(config).text.split("## valid", 1)
    assert test.count("; published 0.0440") == 1 and "; published" not in valid


def test_who_is_given_the_session_context_is_reported_and_stands_apart_from_published_figures(runs, tmp_path):
    one, _, first, _ = runs
    conditioned = write_run(tmp_path / "conditioned", first, TARGETS, given=["session context"])
    name = "wearec (given session context)"
    settings = {"metrics": ["NDCG@10"], "resamples": 50}
    result = run_report(config_for({"wearec": conditioned, "mine": one}, reference="lastfm", **settings))
    found = result.metrics["splits"]["test"]["recommenders"][name]
    assert (found["given"], found["beside_published"]) == (["session context"], [])
    lines = [each.split(" | ")[0].removeprefix("| ") for each in result.text.splitlines() if each.startswith("| ")]
    assert lines[2:5] == ["mine", NOT_COMPARABLE, name]
    assert f"mine minus {name}" in result.text and "; published" not in result.text
    assert result.text.count("wearec") == result.text.count(name)
    alone = run_report(config_for({"wearec": conditioned, "mine": one}, **settings)).text
    assert NOT_COMPARABLE not in alone and f"| {name} |" in alone


def test_a_sequential_and_a_generative_model_stand_in_one_table(runs, tmp_path):
    one, _, first, _ = runs
    folder = tmp_path / "lists"
    lists_of(first[0], TARGETS).save(folder, config={}, inputs={}, counts={"split": "test", "beams": 20})
    found = run_report(config_for({"one": one, "lists": folder}, metrics=["NDCG@10"])).metrics["splits"]
    conditioned = found["test"]["recommenders"]["lists"]["metrics"]["item"]["NDCG@10"]
    assert conditioned["mean"] == pytest.approx(ranking_metrics(first[0], [10])["NDCG@10"].mean())
    assert conditioned["sd"] is None  # of one seed
    assert list(found["valid"]["recommenders"]) == ["one"]
    with pytest.raises(ConfigError, match="HR@50 needs lists of 50, but those of lists hold 20"):
        run_report(config_for({"lists": folder}, metrics=["HR@50"]))


def test_levels(runs, tmp_path):
    one, _, first, _ = runs
    by_sid = np.maximum(1, first - 1)
    both = write_run(tmp_path / "both", first, TARGETS, sid_ranks=by_sid)
    found = found_by(config_for({"x": both}, metrics=["HR@5"], level="sid"))["recommenders"]["x"]["metrics"]
    assert list(found) == ["sid"] and found["sid"]["HR@5"]["mean"] == pytest.approx((by_sid <= 5).mean())
    with pytest.raises(ArtefactError, match=r"has no ranks at level sid\. Train with --sids"):
        run_report(config_for({"x": one}, level="sid"))


def test_what_comparing_refuses(runs, tmp_path):
    one, *_ = runs
    other = write_run(tmp_path / "other", np.ones((1, ROWS), int), TARGETS[::-1])
    with pytest.raises(ArtefactError, match="other: its 40 test examples are not the 40 of one"):
        run_report(config_for({"one": one, "other": other}))
    with pytest.raises(ConfigError, match="unknown metric 'Hit@10'"):
        config_for({"one": one}, metrics=["Hit@10"])
    mixed = write_run(tmp_path / "mixed", np.ones((1, ROWS), int), TARGETS[::-1])
    (one / "seed-10").rename(mixed / "seed-10")
    with pytest.raises(ArtefactError, match=r"seed-10/predictions: its test examples are not those of .*seed-9"):
        run_report(config_for({"mixed": mixed}))
