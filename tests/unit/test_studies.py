"""Studies: every stage that a script runs has valid settings, and no two cases write one output."""

import sys
from types import SimpleNamespace

import pytest
from support.paths import ROOT
from support.scripts import study

import minionerec
from minionerec import api
from minionerec.pipeline.settings import typed_values
from minionerec.pipeline.stages import stage_spec

STUDIES = ("demo", "industrial_quality", "language_model", "rewards", "d3", "preference", "pswrec_v13")


@pytest.fixture
def ran(monkeypatch):
    """The stages that are run, each with its settings, checked and not run."""
    runs = []

    def run(stage, settings):
        spec = stage_spec(stage)
        plain = {name: api._plain(name, value) for name, value in settings.items()}
        config = spec.config_class()(**typed_values(spec.config_class(), plain, stage))
        runs.append((stage, config))
        return SimpleNamespace(output=settings["output"], text="", metrics={})

    def evaluate(checkpoint, corpus, *, output, split="test", **settings):
        given = {"checkpoint": checkpoint, "corpus": corpus, "output": output, "split": split}
        return run("eval-beam", {**given, **settings})

    monkeypatch.setattr(api, "_run", run)
    monkeypatch.setattr(minionerec, "evaluate", evaluate, raising=False)
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    monkeypatch.setattr(sys, "argv", ["study.py"])
    return runs


@pytest.mark.parametrize("name", STUDIES)
def test_settings_of_every_stage_are_valid_and_outputs_differ(ran, name, capsys):
    study(name).main()
    outputs = [str(config.output) for stage, config in ran]
    assert ran[-1][0] in ("report", "preference-report") and len(set(outputs)) == len(outputs) > 4
    made = {*outputs}
    trained = [config for stage, config in ran if stage == "eval-beam"]
    assert all(str(config.checkpoint) in made for config in trained)
