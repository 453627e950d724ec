"""The commands: one a stage, from the registry; the card's scripts; what they say when they are asked or misused."""

import re
import resource
import subprocess
import sys
from dataclasses import fields

import pytest
from support.commands import command as in_process
from support.modules import defined
from support.paths import ROOT

from minionerec.core.errors import ConfigError
from minionerec.pipeline.cli import command
from minionerec.pipeline.cli import main as cli
from minionerec.pipeline.cli.command import run_stage
from minionerec.pipeline.cli.recipes import shipped_recipes
from minionerec.pipeline.settings import Settings
from minionerec.pipeline.stages import STAGES, StageSpec, stage_spec

SCRIPTS = [ROOT / "calc_level.py", *sorted((ROOT / "scripts").glob("*.py"))]
COMMANDS = [*STAGES, "init", "run", "recipes", "serve", "doctor"]
EACH_HELP = """
import contextlib, io, runpy, sys
from minionerec.pipeline.cli.main import main
for name in {names} + {scripts}:
    sys.argv = [name, "--help"] if name.endswith(".py") else ["minionerec", name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        runpy.run_path(name, run_name="__main__") if name.endswith(".py") else main()
    assert "usage" in said.getvalue(), name
heavy = {{"torch", "transformers", "trl", "sklearn", "scipy", "faiss", "duckdb", "starlette", "uvicorn"}}
print(sorted(heavy & set(sys.modules)))
"""


def run(*words, cwd=ROOT):
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, cwd=cwd, check=False)


def test_help_of_every_command_and_script_imports_nothing_heavy():
    done = run("-c", EACH_HELP.format(names=COMMANDS, scripts=[str(path) for path in SCRIPTS]))
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_help_answers_within_two_seconds():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run("-m", "minionerec", "sft", "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
    # Processor time, so that other work on the machine is not counted.
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 2


def test_help_says_what_every_setting_does(capsys, monkeypatch):
    for name, spec in STAGES.items():
        monkeypatch.setattr(sys, "argv", ["minionerec", "--help"])
        with pytest.raises(SystemExit):
            run_stage(name)
        printed = capsys.readouterr().out
        assert f"usage: minionerec {name}" in printed
        for each in fields(spec.config_class()):
            assert re.search(rf"^  --{each.name} .*\S", printed, re.MULTILINE), f"{name}: {each.name}"


@pytest.mark.parametrize("spec", STAGES.values(), ids=lambda spec: spec.name)
def test_an_entry_of_the_registry_leads_somewhere(spec):
    assert issubclass(spec.config_class(), Settings)
    module, name = spec.run.split(":")
    assert name in defined(module)  # not imported: that takes long, and the tests of the stages do so
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", spec.name)
    assert spec.summary.endswith(".")
    assert (spec.demo is not None) == (spec.name.replace("-", "_") in {path.stem for path in SCRIPTS})


def test_the_scripts_are_those_of_the_card():
    assert {path.stem for path in SCRIPTS} == {"calc_level", "sft", "grpo", "eval_beam"}
    assert {path.stem.replace("_", "-") for path in SCRIPTS} <= set(STAGES)


def test_an_unknown_stage_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown stage 'serve'; known: prepare-data, embed-items, "):
        stage_spec("serve")


@pytest.mark.parametrize("name", STAGES)
def test_an_unknown_key_is_one_line_and_status_2(name, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("no_such_setting: 1\n")
    done = in_process(tmp_path, name, "--config", str(config))
    assert re.fullmatch(rf"error: {config}: unknown key 'no_such_setting'\. Known keys: .*\n", done.err)


def test_an_unknown_flag_of_a_script_is_one_line_and_status_2():
    done = run("scripts/sft.py", "--no_such_flag", "1", "--config", "demo#sft")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "no_such_flag" in done.stderr
    assert len(done.stderr.splitlines()) == 1


class Result:
    """What a stage gives back in these tests."""

    lines = ("one", "two")


@pytest.fixture
def stage(monkeypatch):
    """What the stages are run with, and what is made before them."""
    seen = {"configs": [], "before": []}

    def function(spec):
        def run_it(config):
            seen["configs"].append(config)
            return Result()

        return run_it

    monkeypatch.setattr(StageSpec, "function", function)
    monkeypatch.setattr(command, "ensure_before", lambda recipe, config: seen["before"].append((recipe, config)))
    return seen


def words(monkeypatch, *given):
    monkeypatch.setattr(sys, "argv", ["minionerec", *given])


def test_without_config_the_demo_is_taken_and_what_it_reads_is_made(stage, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words(monkeypatch, "--beams", "60")
    run_stage("eval-beam")
    (config,) = stage["configs"]
    assert config.beams == 60
    assert config.output == "runs/demo/eval_grpo"
    assert stage["before"] == [("demo/language", config)]
    assert capsys.readouterr().out == "one\ntwo\n"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("sft", ["--config", "demo#sft"]),
        ("sft", ["--config=demo#sft"]),
        ("calc-level", ["--predictions", "lists.json"]),
        ("calc-level", ["--predictions=runs/mine"]),
    ],
)
def test_with_settings_of_ones_own_no_demo_is_made(stage, monkeypatch, name, given):
    monkeypatch.chdir(ROOT)
    words(monkeypatch, *given)
    run_stage(name)
    assert len(stage["configs"]) == 1
    assert stage["before"] == []


def test_a_shipped_configuration_is_found_from_anywhere(stage, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words(monkeypatch, "--config", "industrial#sft", "--epochs", "1")
    run_stage("sft")
    assert stage["configs"][0].hidden_size == 256
    assert stage["configs"][0].epochs == 1


def test_only_the_first_process_prints(stage, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    words(monkeypatch, "--config", "demo#sft")
    run_stage("sft")
    assert capsys.readouterr().out == ""


def test_usage_names_every_command(capsys, monkeypatch):
    words(monkeypatch)
    cli.dispatch()
    printed = capsys.readouterr().out
    for name, spec in STAGES.items():
        assert re.search(rf"^  {name} +{re.escape(spec.summary)}$", printed, re.MULTILINE)
    assert re.search(r"^  run ", printed, re.MULTILINE)
    assert re.search(r"^  recipes ", printed, re.MULTILINE)


def test_recipes_are_listed_and_copied(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words(monkeypatch, "recipes")
    cli.dispatch()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(shipped_recipes())
    words(monkeypatch, "recipes", "copy", "industrial", "./here.yaml")
    cli.dispatch()
    assert capsys.readouterr().out == "15 steps in here.yaml; run them with: minionerec run here.yaml\n"
    assert (tmp_path / "here.yaml").is_file()
    words(monkeypatch, "recipes", "copy", "industrial", "my copy.yaml")
    cli.dispatch()
    assert capsys.readouterr().out.endswith("run them with: minionerec run 'my copy.yaml'\n")
