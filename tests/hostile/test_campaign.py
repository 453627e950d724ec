"""A sample of the campaign, that it finds what is broken, and that a broken case can be run again."""

import json
import os
import re
import time
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from hostile import campaign, launch_groups, mutate
from hostile.artefact_groups import GROUPS
from hostile.groups import Broken, Group
from support.paths import ROOT

READERS = ("csv", "tsv", "parquet", "amazon", "recbole", "movielens", "user items")
QUICK = (*READERS, "published", "settings", "vectors", "histories", "requests", "items table", "frames", "comparisons")
QUICK += ("times", "recipe", "run record", "units", "paths", "names of recipes", "architectures")


def test_a_sample_of_every_quick_group_breaks_nothing():
    counts, broken = campaign.attack(campaign.plan(250, seed=7, groups=QUICK), children=1)
    assert broken == []
    assert sum(counts.values()) == 250
    for name in QUICK:
        assert counts[name, "used"] + counts[name, "refused"] > 0
    for name in READERS:  # what is refused for another reason than its mutation attacks nothing
        assert counts[name, "used"] > 0, name


ONCE_BROKEN = [("movielens", 7, 278), ("user items", 7, 65), ("tsv", 7, 624), ("csv", 0, 5862)]


@pytest.mark.parametrize("case", ONCE_BROKEN)
def test_cases_that_once_lost_lines_lose_none(case):
    counts, broken = campaign.attack([campaign.Case(*case)], children=1)
    assert (sum(counts.values()), broken) == (1, [])


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/how-to/serving.md", "tests/hostile/README.md"])
def test_the_tests_that_a_page_names_are_there(page):
    named = set(re.findall(r"`(test_\w+)`", (ROOT / page).read_text(encoding="utf-8")))
    files = (ROOT / "tests").rglob("test_*.py")
    found = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}
    assert named <= found, named - found
    assert len(named) > 15


def test_the_groups_that_the_page_names_are_those_of_the_campaign():
    page = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    rows = re.search(r"^\| group \|.*?\n\n", page, re.MULTILINE | re.DOTALL)[0].split("\n")[2:-2]
    named = [name.strip() for row in rows for name in row.split("|")[1].split(",")]
    assert sorted(named) == sorted(GROUPS)


def test_the_same_seed_makes_the_same_case(tmp_path):
    for name, spoil in (("csv", mutate.spoil_text(",")), ("amazon", mutate.spoil_json)):
        (tmp_path / name).mkdir()
        GROUPS[name].make(tmp_path / name)
        content = next((tmp_path / name).glob("interactions.*")).read_bytes()
        made = {seed: spoil(campaign.Random(seed), content) for seed in range(30)}
        assert all(spoil(campaign.Random(seed), content) == made[seed] for seed in made)
        assert len(set(made.values())) > 15


def _strike(rng, clean, folder):
    refused = campaign.MinioneRecError("refused as it should be"), FileNotFoundError(2, "No such file", "a.csv")
    kind = rng.randrange(6)
    if kind < 4:
        raise (Broken("rows vanish"), KeyError("a defect"), *refused)[kind]
    if kind == 4:
        os._exit(3)
    time.sleep(60)


def test_crashes_hangs_and_defects_are_found_and_run_again(monkeypatch):
    monkeypatch.setattr(campaign, "START", "fork")  # a started process does not know the group
    monkeypatch.setattr(campaign, "SECONDS", 0.5)
    monkeypatch.setitem(GROUPS, "fake", Group("fake", lambda folder: None, _strike))
    counts, broken = campaign.attack(campaign.plan(30, seed=1, groups=["fake"]), children=2)
    reported = Counter(line["message"].split(":")[0].split(" at ")[0] for line in broken)
    assert sum(counts.values()) == 30
    assert set(reported) == {"rows vanish", "KeyError", "the process ended with status 3", "no answer within 0 s"}
    assert counts["fake", "refused"] > 0
    again = campaign.attack([campaign.Case(line["group"], line["seed"], line["number"]) for line in broken])[1]
    assert sorted(map(json.dumps, again)) == sorted(map(json.dumps, broken))


def test_pairs_of_launches_are_of_every_kind():
    pairs = [launch_groups.random_pair(campaign.Random(seed)) for seed in range(300)]
    assert {(pair.first.processes, pair.then.processes) for pair in pairs} == set(product((1, 2, 3), repeat=2))
    assert {(pair.first.zero, pair.then.zero) for pair in pairs} == set(product((False, True), repeat=2))
    for name in ("alike", "another_run", "other_device", "step", "dropout"):
        assert {bool(getattr(pair, name)) for pair in pairs} == {False, True}, name
    assert any(pair.alike and pair.first != pair.then for pair in pairs)
    assert {pair.first.plain for pair in pairs} == {pair.then.divides for pair in pairs} == {False, True}
    assert 1 <= Counter(case.group for case in campaign.plan(50_000, seed=0))["launches"] <= 6


def test_a_launch_is_refused_in_one_line_of_each_process():
    line = "error: it does not divide.\n"
    assert launch_groups.judged([0, 0], ["a note\n", ""], "") == (True, "")
    assert launch_groups.judged([2, 2], [f"a note\n{line}", line], "") == (False, "it does not divide.")
    for statuses, reported in (
        ([2, 0], [line, ""]),
        ([2, 2], [line, line + line]),
        ([2, 1], [line, "Traceback (most recent call last):\n" + line]),
        ([2, -9], [line, line]),
    ):
        with pytest.raises(Broken):
            launch_groups.judged(statuses, reported, "")


@pytest.mark.slow
def test_a_larger_sample_of_every_group():
    counts, broken = campaign.attack(campaign.plan(3000, seed=11))
    assert broken == []
    assert {name for name, _ in counts} == set(GROUPS)
