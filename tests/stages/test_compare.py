"""Comparisons: means, sds and paired differences against numpy, published figures, and rows that do not match."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.commands import command
from support.pages import Page
from support.runs import lists_of, write_run

from minionerec.core.artefacts import read_manifest, verify_files
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.settings import parse_settings
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import bootstrap_interval, paired_bootstrap
from minionerec.reports.compare import run_compare
from minionerec.reports.config import CompareConfig
from minionerec.reports.systems import NOT_COMPARABLE

ROWS = 40
TARGETS = np.arange(ROWS)


@pytest.fixture
def runs(tmp_path):
    rng = np.random.default_rng(0)
    first, second = rng.integers(1, 30, (2, ROWS)), rng.integers(1, 15, (3, ROWS))
    # Seed 10 comes after seed 9 also where names are sorted as words.
    return write_run(tmp_path / "one", first, TARGETS), write_run(tmp_path / "two", second, TARGETS), first, second


def config_for(one, two, **changes):
    return CompareConfig(**{"runs": {"one": str(one), "two": str(two)}, "resamples": 300, **changes})


def test_means_sds_and_paired_differences(runs, tmp_path):
    one, two, first, second = runs
    metrics = ["HR@5", "NDCG@10", "MRR@3"]
    result = run_compare(config_for(one, two, metrics=metrics, output=str(tmp_path / "table")))
    lines = {line["name"]: line for line in result.splits["test"]}
    for name in metrics:
        k = int(name.partition("@")[2])
        ours, theirs = (np.array([ranking_metrics(row, [k])[name] for row in ranks]) for ranks in (first, second))
        mean, sd, low, high = lines["one"]["metrics"][name]
        assert (mean, sd) == (pytest.approx(ours.mean()), pytest.approx(ours.mean(1).std(ddof=1)))
        assert low < mean < high
        gap = paired_bootstrap(theirs.mean(0), ours.mean(0), resamples=300)
        assert lines["two"]["against"][name] == pytest.approx(list(gap))
    assert lines["one"]["against"] == {}
    assert (lines["one"]["seeds"], lines["two"]["seeds"]) == (2, 3)
    assert result.splits["valid"][0]["metrics"]["HR@5"][:2] == [1.0, 0.0]
    assert (tmp_path / "table" / "comparison.md").read_text() == result.markdown
    assert json.loads((tmp_path / "table" / "comparison.json").read_text())["test"][1]["name"] == "two"
    assert "| two | 1,234 | 3 |" in result.markdown


def test_users_are_resampled_by_default_and_examples_on_demand(tmp_path):
    ranks = np.random.default_rng(0).integers(1, 20, (2, ROWS))
    users = [f"u{row // 4}" for row in range(ROWS)]
    for number, name in enumerate(("one", "two")):
        write_run(tmp_path / name, ranks[number][None], TARGETS, users=users)
    first, second = (ranking_metrics(row, [10])["NDCG@10"] for row in ranks)
    found = {}
    for resample, clusters in (("users", users), ("examples", None)):
        settings = {"metrics": ["NDCG@10"], "resample": resample, "output": str(tmp_path / "table")}
        config = config_for(tmp_path / "one", tmp_path / "two", **settings)
        assert not config.up_to_date()
        result = run_compare(config)
        line = result.splits["test"][1]
        gap = paired_bootstrap(second, first, 0, 300, clusters=clusters)
        assert line["against"]["NDCG@10"] == pytest.approx(list(gap))
        low, high = bootstrap_interval(second, 0, 300, clusters=clusters)
        assert line["metrics"]["NDCG@10"][2:] == pytest.approx([low, high])
        found[resample] = line["against"]["NDCG@10"], result.markdown
    assert found["users"][0] != found["examples"][0]
    assert "300 bootstrap samples of 10 users, each with all of its examples (40 examples in all)" in found["users"][1]
    assert "300 bootstrap samples of 40 examples, each by itself" in found["examples"][1]


def test_where_every_user_has_one_example_both_ways_are_equal(runs):
    one, two, *_ = runs
    found = {way: run_compare(config_for(one, two, resample=way)) for way in ("users", "examples")}
    assert found["users"].splits == found["examples"].splits
    tables = {way: [line for line in each.markdown.splitlines() if "|" in line] for way, each in found.items()}
    assert tables["users"] == tables["examples"]


def test_the_output_is_an_artefact_with_every_seed_as_an_input(runs, tmp_path):
    one, two, *_ = runs
    config = config_for(one, two, output=str(tmp_path / "table"))
    first = run_compare(config)
    verify_files(tmp_path / "table")
    manifest = read_manifest(tmp_path / "table", "comparison")
    assert sorted(manifest["files"]) == ["comparison.html", "comparison.json", "comparison.md"]
    assert list(manifest["inputs"]) == [
        "runs one seed-10",
        "runs one seed-9",
        "runs two seed-10",
        "runs two seed-11",
        "runs two seed-9",
    ]
    assert not first.up_to_date and config.up_to_date()
    again = run_compare(config)
    assert again.up_to_date and (again.markdown, again.splits) == (first.markdown, first.splits)
    assert again.lines() == [*first.markdown.splitlines(), f"comparison: {tmp_path / 'table'}"]
    html = (tmp_path / "table" / "comparison.html").read_text()
    page = Page(html)
    assert all(link.startswith("#") for link in page.links) and "http" not in html
    assert "script" not in page.tags and "1,234" in page.text
    other = run_compare(config_for(one, two, output=str(tmp_path / "other")))
    for name in manifest["files"]:
        assert (tmp_path / "table" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    assert not other.up_to_date and not run_compare(config_for(one, two, output=config.output, seed=1)).up_to_date


def test_a_seed_more_or_a_file_changed_by_hand_is_noticed(runs, tmp_path):
    one, two, first, _ = runs
    config = config_for(one, two, output=str(tmp_path / "table"))
    run_compare(config)
    write_run(one, np.concatenate([first, first[:1]]), TARGETS)
    assert not config.up_to_date()
    assert run_compare(config).splits["test"][0]["seeds"] == 3
    with (two / "seed-10" / "predictions" / "ranks.parquet").open("ab") as file:
        file.write(b" ")
    with pytest.raises(ArtefactError, match=r"seed-10/predictions/ranks\.parquet: differs from manifest\.json"):
        run_compare(config)
    with pytest.raises(ArtefactError, match=r"seed-10/predictions/ranks\.parquet: differs from manifest\.json"):
        run_compare(config_for(one, two))


def test_without_an_output_nothing_is_written(runs, tmp_path, monkeypatch):
    one, two, *_ = runs
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    result = run_compare(config_for(one, two))
    assert result.lines() == result.markdown.splitlines() and "## test rows, item level" in result.lines()
    assert list(Path().iterdir()) == []


def test_published_figures_stand_beside_ours(runs):
    one, two, *_ = runs
    config = CompareConfig(
        runs={"wearec": str(one), "mine": str(two)}, metrics=["NDCG@10"], reference="lastfm", resamples=50
    )
    result = run_compare(config)
    lines = result.splits["test"]
    assert (lines[0]["published"]["NDCG@10"], lines[1]["published"]) == (0.044, {})
    test, valid = result.markdown.split("## valid")
    assert "; published 0.0440" in test and "published" not in valid


def test_who_is_given_the_session_context_is_said_and_stands_apart_from_published_figures(runs, tmp_path):
    one, _, first, _ = runs
    told = write_run(tmp_path / "told", first, TARGETS, given=["session context"])
    settings = {"runs": {"wearec": str(told), "mine": str(one)}, "metrics": ["NDCG@10"], "reference": "lastfm"}
    settings |= {"resamples": 50, "output": str(tmp_path / "table")}
    result = run_compare(CompareConfig(**settings))
    line = result.splits["test"][0]
    assert (line["name"], line["given"]) == ("wearec (given session context)", ["session context"])
    assert line["published"] == {}
    lines = [each.split(" | ")[0].removeprefix("| ") for each in result.markdown.splitlines() if each.startswith("| ")]
    assert lines[2:5] == ["mine", NOT_COMPARABLE, "wearec (given session context)"]
    assert "minus wearec (given session context)" in result.markdown and "; published" not in result.markdown
    assert result.markdown.count("wearec") == result.markdown.count("wearec (given session context)")
    alone = run_compare(CompareConfig(**{**settings, "reference": "", "output": str(tmp_path / "alone")}))
    assert NOT_COMPARABLE not in alone.markdown and "| wearec (given session context) |" in alone.markdown


def test_a_sequential_and_a_generative_model_stand_in_one_table(runs, tmp_path):
    one, _, first, _ = runs
    place = tmp_path / "lists"
    lists_of(first[0], TARGETS).save(place, config={}, inputs={}, counts={"split": "test", "beams": 20})
    found = run_compare(CompareConfig(runs={"one": str(one), "lists": str(place)}, metrics=["NDCG@10"])).splits
    assert found["test"][1]["metrics"]["NDCG@10"][0] == pytest.approx(ranking_metrics(first[0], [10])["NDCG@10"].mean())
    assert found["test"][1]["metrics"]["NDCG@10"][1] is None  # one seed has no sd
    assert [line["name"] for line in found["valid"]] == ["one"]
    with pytest.raises(ConfigError, match="HR@50 needs lists of 50, but those of lists hold 20"):
        run_compare(CompareConfig(runs={"lists": str(place)}, metrics=["HR@50"]))


def test_levels(runs, tmp_path):
    one, _, first, _ = runs
    by_sid = np.maximum(1, first - 1)
    both = write_run(tmp_path / "both", first, TARGETS, sid_ranks=by_sid)
    line = run_compare(CompareConfig(runs={"x": str(both)}, metrics=["HR@5"], level="sid")).splits["test"][0]
    assert line["metrics"]["HR@5"][0] == pytest.approx((by_sid <= 5).mean())
    with pytest.raises(ArtefactError, match=r"has no ranks at level sid\. Train with --sids"):
        run_compare(CompareConfig(runs={"x": str(one)}, level="sid"))


def test_what_comparing_refuses(runs, tmp_path):
    one, *_ = runs
    other = write_run(tmp_path / "other", np.ones((1, ROWS), int), TARGETS[::-1])
    with pytest.raises(ArtefactError, match="other: its 40 test rows are not the 40 of one"):
        run_compare(CompareConfig(runs={"one": str(one), "other": str(other)}))
    with pytest.raises(ArtefactError, match="no such directory"):
        run_compare(CompareConfig(runs={"x": str(tmp_path / "none")}))
    with pytest.raises(ArtefactError, match="which a 'comparison' must not replace"):
        run_compare(CompareConfig(runs={"one": str(one)}, output=str(one / "seed-9" / "predictions")))
    for words, message in [
        (["--runs", "a"], "--runs has 'a'; expected NAME=VALUE"),
        (["--runs", "a=x", "a=y"], "--runs names 'a' twice"),
        (["--runs", "a=x", "--metrics", "Hit@10"], "unknown metric 'Hit@10'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse_settings(CompareConfig, words)


def test_seeds_of_different_rows_are_refused(runs, tmp_path):
    one, *_ = runs
    mixed = write_run(tmp_path / "mixed", np.ones((1, ROWS), int), TARGETS[::-1])
    (one / "seed-10").rename(mixed / "seed-10")
    with pytest.raises(ArtefactError, match=r"seed-10/predictions: its test rows are not those of .*seed-9"):
        run_compare(CompareConfig(runs={"mixed": str(mixed)}))


def test_command_prints_the_tables(runs, tmp_path):
    one, two, *_ = runs
    words = ["--runs", f"one={one}", f"two={two}", "--resamples", "50", "--output", str(tmp_path / "table")]
    done = command(tmp_path, "compare", *words)
    assert done.status == 0, done.err
    assert "| two | 1,234 | 3 |" in done.out and done.out.endswith(f"comparison: {tmp_path / 'table'}\n")
