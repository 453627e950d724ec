"""Trackers of a training: TensorBoard gets its losses and validations, a missing package is one line, none is usual."""

import importlib.util

import pytest
from support.training import catalogue_config, grpo_config, make_inputs, same_weights, sft_config

from minionerec.core.errors import ConfigError
from minionerec.pipeline.grpo import run_grpo
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue

SMALL = {"epochs": 1, "evals_per_epoch": 1}


def scalars(folder):
    """Tag to the values that a folder of events holds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_gets_what_every_training_logs_and_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    make_inputs(tmp_path)
    run_sft(sft_config(tmp_path, **SMALL))
    assert not list(tmp_path.glob("*.tensorboard"))
    watched = sft_config(tmp_path, **SMALL, report_to=["tensorboard"], output=str(tmp_path / "watched"))
    run_sft(watched)
    found = scalars(tmp_path / "watched.tensorboard")
    assert len(found["eval/loss"]) == 1 and found["eval/ndcg@10"][0] > 0
    assert same_weights(tmp_path / "sft", tmp_path / "watched")
    assert run_sft(sft_config(tmp_path, **SMALL, report_to=["tensorboard"])).up_to_date  # it decides nothing
    run_catalogue(catalogue_config(tmp_path, **SMALL, report_to=["tensorboard"]))
    assert "eval/loss" in scalars(tmp_path / "catalogue.tensorboard")
    run_grpo(grpo_config(tmp_path, report_to=["tensorboard"], max_steps=1, output=str(tmp_path / "grpo")))
    assert "eval/ndcg@10" in scalars(tmp_path / "grpo.tensorboard")


def test_a_folder_of_ones_own_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "mine"))
    make_inputs(tmp_path)
    run_sft(sft_config(tmp_path, **SMALL, report_to=["tensorboard"]))
    assert "eval/loss" in scalars(tmp_path / "mine") and not (tmp_path / "sft.tensorboard").exists()


def test_an_unknown_tracker_and_a_missing_package_are_one_line_before_anything_is_done(tmp_path):
    make_inputs(tmp_path)
    missing = [name for name in ("swanlab", "clearml", "wandb") if importlib.util.find_spec(name) is None]
    for name, words in ((missing[0], f"requires {missing[0]} to be installed"), ("nothing", "only .* are supported")):
        with pytest.raises(ConfigError, match=f"report_to is {name}: .*{words}"):
            run_sft(sft_config(tmp_path, report_to=[name]))
    assert not (tmp_path / "sft.partial").exists()
