"""`minionerec doctor`: what stands, what verifies, what a stage would do and why, and nothing of the user's."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support.small_shop import STAGES, command, copied, make_shop

NAMES = ("prepare-data", "build-sids")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = make_shop(tmp_path_factory.mktemp("doctor") / "my secret shop", NAMES)
    steps = {name: {"config": f"{name}.yaml", "output": STAGES[name]["output"]} for name in NAMES}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"steps": steps}, sort_keys=False))
    return folder


@pytest.fixture
def shop(made, tmp_path):
    return copied(made, tmp_path / "my secret shop")


def page(shop: Path) -> str:
    done = command(shop, "doctor", ".", "--recipe", "recipe.yaml")
    assert done.status == 0, done.err
    return done.out


def line(text: str, name: str, part: str) -> str:
    return next(line for line in text.split(part)[1].splitlines() if line.strip().startswith(name)).split(maxsplit=1)[1]


def test_what_is_installed_and_what_stands(shop):
    text = page(shop)
    for word in ("python 3.", "torch ", "minionerec ", "cores ", "memory_bytes "):
        assert word in text
    assert line(text, "corpus", "Artefacts") == "corpus, verified"
    assert line(text, "prepare-data", "Steps") == "up to date"
    assert len(text.splitlines()) < 40


def test_nothing_of_the_users_is_shown(shop, monkeypatch):
    monkeypatch.setenv("HOME", str(shop.parent))
    settings = {**STAGES["prepare-data"], "columns": {"title": "secret"}}
    (shop / "prepare-data.yaml").write_text(yaml.safe_dump(settings))
    text = page(shop)
    for word in ("secret", str(shop.parent), "tea thing", "u1", "i1,"):
        assert word not in text


@pytest.mark.parametrize(
    ("spoil", "artefacts", "steps"),
    [
        ("echo {} > sids/index.json", "index.json was changed", "was changed or removed"),
        ("rm sids/index.json", "index.json is missing", "was changed or removed"),
        ("echo [] > sids/manifest.json", "broken: ", "cannot run yet: |would run"),
        ("rm -r sids", None, "would run: no output yet"),
        ("rm -r corpus", "sids, ", "cannot run yet: corpus: no such directory"),
    ],
)
def test_what_is_wrong_with_artefacts(shop, spoil, artefacts, steps):
    subprocess.run(spoil, shell=True, cwd=shop, check=True)
    text = page(shop)
    if artefacts:
        assert artefacts in line(text, "sids", "Artefacts")
    assert any(word in line(text, "build-sids", "Steps") for word in steps.split("|"))


def test_why_a_stage_would_run(shop):
    settings = {**STAGES["build-sids"], "iterations": 7, "codebook_sizes": [5, 5]}
    (shop / "build-sids.yaml").write_text(yaml.safe_dump(settings))
    reported = line(page(shop), "build-sids", "Steps")
    assert reported == "would run: its output differs in codebook_sizes, iterations"
    (shop / "build-sids.yaml").write_text(yaml.safe_dump(STAGES["build-sids"]))
    with open(shop / "interactions.csv", "a") as file:
        file.write("u0,i1,99999\n")
    assert line(page(shop), "prepare-data", "Steps") == "would run: its output differs in the input interactions"
    assert line(page(shop), "build-sids", "Steps") == "up to date"


def test_unfinished_runs_are_named(shop):
    record = '{"settings": {"iterations": 3}, "inputs": {}}'
    (shop / "sids.partial").mkdir()
    (shop / "sids.partial" / "run.json").write_text(record)
    shutil.rmtree(shop / "sids")
    text = page(shop)
    assert line(text, "sids.partial", "Artefacts") == "the state of a run: the same command continues it"
    assert line(text, "build-sids", "Steps").startswith("would be refused: the unfinished run there differs in ")


def test_folders_and_recipes_that_are_none(shop):
    assert "no such folder" in command(shop, "doctor", "nowhere").reported
    assert "no such recipe" in command(shop, "doctor", ".", "--recipe", "nowhere").reported
    assert "Artefacts below runs\n  none" in command(shop, "doctor").out
