"""Recipes: what is shipped, what a file may say, which steps another needs, and copies to be edited."""

import subprocess
from pathlib import Path

import pytest
import yaml
from support.paths import ROOT

from minionerec.cli import recipes
from minionerec.cli.recipes import (
    DEMO_RECIPE,
    FILE,
    Step,
    between,
    copy_recipe,
    ensure_before,
    find_recipe,
    read_recipe,
    shipped_recipes,
    steps_before,
)
from minionerec.cli.stages import STAGES
from minionerec.core.errors import ArtefactError, ConfigError

CONFIGS = ROOT / "configs"
RECIPES = sorted(path.parent for path in CONFIGS.rglob(FILE))
NAMES = [str(path.relative_to(CONFIGS)) for path in RECIPES]


@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_a_shipped_recipe_has_a_valid_configuration_beside_it(name):
    steps = read_recipe(name)
    listed = {step.config.name for step in steps}
    assert all(step.config.parent == CONFIGS / name for step in steps)
    assert all(isinstance(step.settings, step.spec.config_class()) for step in steps)
    alone = {spec.demo for spec in STAGES.values()} if name == "demo/language" else set()
    assert {path.name for path in (CONFIGS / name).iterdir()} - listed - alone == {FILE}


def test_every_configuration_lies_in_a_recipe():
    assert {path.parent for path in CONFIGS.rglob("*.yaml")} == {*RECIPES, CONFIGS / "studies"}


@pytest.mark.parametrize("spec", [spec for spec in STAGES.values() if spec.demo], ids=lambda spec: spec.name)
def test_the_demo_configuration_of_every_stage_parses(spec):
    path = ROOT / DEMO_RECIPE / spec.demo
    assert isinstance(recipes.load_settings(spec.config_class(), path), spec.config_class())


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_reads_only_what_it_has_made_before(name):
    steps = read_recipe(name)
    for place, step in enumerate(steps):
        before = steps_before(steps, step.settings)
        assert all(other in steps[:place] for other in before), step.name
        first = step.spec.name in ("make-city", "prepare-data", "train-preference")
        assert before or first or "$MINIONEREC_DATA" in step.settings.corpus, step.name


@pytest.mark.parametrize("name", NAMES)
def test_no_two_steps_write_the_same_place(name):
    outputs = [step.output for step in read_recipe(name) if step.output]
    assert len(outputs) == len(set(outputs))


def test_the_shipped_recipes_are_listed_with_what_they_are_for():
    listed = shipped_recipes()
    assert sorted(listed) == sorted(NAMES)
    assert listed["demo/language"] == (
        "The whole way of the data on the demo shop: a few minutes on two cores, no network"
    )
    assert all(listed.values())


def test_the_demo_recipe_makes_what_its_configurations_name():
    outputs = {step.output for step in read_recipe("demo") if step.output}
    models = ("catalogue", "sft", "grpo")
    names = ("corpus", "sids", *models, *(f"eval_{name}" for name in models), "report")
    assert outputs == {f"runs/demo/{name}" for name in names}


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("demo", "configs/demo/language"),
        ("industrial/catalogue", "configs/industrial/catalogue"),
        ("configs/industrial/catalogue", "configs/industrial/catalogue"),
        ("configs/industrial/catalogue/pipeline.yaml", "configs/industrial/catalogue/pipeline.yaml"),
    ],
)
def test_a_shipped_recipe_is_found_from_anywhere(tmp_path, monkeypatch, name, place):
    monkeypatch.chdir(tmp_path)
    assert find_recipe(name) == ROOT / place


def test_a_folder_of_the_user_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert find_recipe("demo") == ROOT / DEMO_RECIPE  # a folder without a pipeline.yaml is none
    (tmp_path / "demo" / FILE).write_text("stages: []\n")
    assert find_recipe("demo") == Path("demo")


def test_an_unknown_recipe_names_those_there_are():
    with pytest.raises(ConfigError, match=r"^beauty: no recipe there; .* beauty/catalogue, .*demo/language, "):
        find_recipe("beauty")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("stages: []", "expected `stages:` with a list"),
        ("stages: {sft: sft.yaml}", "expected `stages:` with a list"),
        ("stages:\n  - sft: missing.yaml", r"missing\.yaml: no such file"),
        ("stages:\n  - sft:", r"None: no such file"),
        ("stages:\n  - no-such-stage: pipeline.yaml", r"no stage 'no-such-stage'; known: prepare-data, "),
        ("stages:\n  - sft: s.yaml\n  - sft: s.yaml", "'s.yaml' is listed twice"),
        ("stages:\n  - sft: wrong.yaml", r"wrong\.yaml: unknown key 'no_such'"),
        ("steps: []", "unknown key 'steps'. Known keys: stages, launch, threads, jobs"),
        ("1: []", "unknown key '1'"),
        ("threads: 0\nstages:\n  - sft: s.yaml", "threads is 0; expected a whole number"),
        ("threads: true\nstages:\n  - sft: s.yaml", "threads is True; expected a whole number"),
        ("jobs: 0\nstages:\n  - sft: s.yaml", "jobs is 0; expected a whole number of steps at a time"),
        ("launch: nowhere.yaml\nstages:\n  - sft: s.yaml", "launch is 'nowhere.yaml', but there is no such file"),
        ("launch: 4\nstages:\n  - sft: s.yaml", "launch is 4, but there is no such file"),
        ("- sft", "expected a mapping"),
    ],
)
def test_a_malformed_recipe_is_refused(tmp_path, content, message):
    (tmp_path / "s.yaml").write_text("output: there\n")
    (tmp_path / "wrong.yaml").write_text("no_such: 1\n")
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_recipe(tmp_path)


def test_a_recipe_is_copied_to_be_edited(tmp_path):
    copied = copy_recipe("demo", tmp_path / "new" / "folder")
    assert {path.name for path in copied.iterdir()} == {path.name for path in (ROOT / DEMO_RECIPE).iterdir()}
    (copied / "data.yaml").write_text((copied / "data.yaml").read_text() + "core: 2\n")
    assert [step.name for step in read_recipe(copied)] == [step.name for step in read_recipe("demo")]
    assert read_recipe(copied)[0].settings.core == 2
    assert read_recipe("demo")[0].settings.core != 2


def test_a_copy_replaces_nothing(tmp_path):
    (tmp_path / "mine.yaml").write_text("1")
    with pytest.raises(ConfigError, match="is not empty; give a new folder"):
        copy_recipe("demo", tmp_path)
    with pytest.raises(ConfigError, match="is not empty; give a new folder"):
        copy_recipe("demo", tmp_path / "mine.yaml")
    with pytest.raises(ConfigError, match="cannot be written"):
        copy_recipe("demo", tmp_path / "mine.yaml" / "below")


def test_a_part_of_a_recipe_is_named_by_its_steps():
    steps = read_recipe("demo")
    assert [step.name for step in between(steps, None, None, "demo")] == [step.name for step in steps]
    assert [step.name for step in between(steps, "sft", "grpo", "demo")] == ["sft", "eval_sft", "grpo"]
    with pytest.raises(ConfigError, match=r"--from nowhere: demo has no such step. Its steps: data, sids, "):
        between(steps, "nowhere", None, "demo")
    with pytest.raises(ConfigError, match=r"--until nowhere: demo has no such step"):
        between(steps, None, "nowhere", "demo")
    with pytest.raises(ConfigError, match=r"--from grpo comes after --until sft in demo"):
        between(steps, "grpo", "sft", "demo")


def settings(stage, **values):
    return STAGES[stage].config_class()(**values)


def test_steps_before_are_those_that_are_read():
    steps = read_recipe("demo")

    def names(config):
        return [step.name for step in steps_before(steps, config)]

    assert names(settings("eval-beam", checkpoint="runs/demo/grpo", output="x")) == [
        "data",
        "sids",
        "catalogue",
        "sft",
        "grpo",
    ]
    assert names(settings("build-sids", corpus="runs/demo/corpus/", output="x")) == ["data"]
    assert names(settings("build-sids", corpus="elsewhere", output="runs/demo/sft")) == []
    report = settings("report", predictions={"X": "runs/demo/eval_sft"}, corpus="runs/demo/corpus", output="x")
    assert names(report) == ["data", "sids", "catalogue", "sft", "eval_sft"]
    assert names(settings("eval-beam", checkpoint="runs/demo/sft/below/it", output="x")) == [
        "data",
        "sids",
        "catalogue",
        "sft",
    ]


def test_what_cannot_be_told_is_not_current(monkeypatch):
    step = read_recipe("demo")[0]
    for error in (ArtefactError("gone"), OSError("gone"), KeyError("settings")):

        def fail(self, error=error):
            raise error

        monkeypatch.setattr(type(step.settings), "up_to_date", fail)
        assert not step.is_current()
    monkeypatch.setattr(type(step.settings), "up_to_date", lambda self: True)
    assert step.is_current()


class Started(list):
    """Names of stages in the order of their start, and the statuses with which some of them end."""

    def __init__(self):
        self.status = {}


@pytest.fixture
def runs(monkeypatch):
    """The stages that are started, by the names of their configurations; "sids" is up to date, others are not."""
    started = Started()

    def run_words(words, threads, stdout=None):
        started.append(Path(words[words.index("--config") + 1]).stem)
        return subprocess.CompletedProcess(words, started.status.get(started[-1], 0))

    monkeypatch.setattr(recipes, "run_words", run_words)
    monkeypatch.setattr(Step, "is_current", lambda self: self.name == "sids")
    return started


def test_what_a_stage_needs_is_made_first(runs):
    ensure_before(ROOT / DEMO_RECIPE, settings("eval-beam", checkpoint="runs/demo/grpo", output="x"))
    assert runs == ["data", "catalogue", "sft", "grpo"]


def test_a_failing_stage_before_ends_the_command_with_its_status(runs):
    runs.status = {"sft": 3}
    with pytest.raises(SystemExit) as ended:
        ensure_before(ROOT / DEMO_RECIPE, settings("eval-beam", checkpoint="runs/demo/grpo", output="x"))
    assert ended.value.code == 3
    assert runs == ["data", "catalogue", "sft"]


def test_the_other_processes_of_a_launch_make_nothing(runs, monkeypatch):
    waited = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(recipes, "join_for_training", lambda: waited.append("join"))
    monkeypatch.setattr(recipes, "wait_for_everyone", lambda: waited.append("wait"))
    ensure_before(ROOT / DEMO_RECIPE, settings("eval-beam", checkpoint="runs/demo/grpo", output="x"))
    assert runs == []
    assert waited == ["join", "wait"]


def test_a_recipe_takes_structure_as_yaml_structure(tmp_path):
    (tmp_path / FILE).write_text("stages:\n  - sft: sft.yaml\n  - grpo: grpo.yaml\n")
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump({"output": "x", "tasks": {"next_sid": 1, "title_to_sid": 0.5}}))
    (tmp_path / "grpo.yaml").write_text(yaml.safe_dump({"output": "y", "rewards": {"ranking": 1}}))
    sft, grpo = read_recipe(tmp_path)
    assert sft.settings.tasks == {"next_sid": 1.0, "title_to_sid": 0.5}
    assert grpo.settings.rewards == {"ranking": 1.0}
