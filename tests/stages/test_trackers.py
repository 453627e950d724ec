"""Trackers of a training: TensorBoard gets its losses and validations, a missing package is one line, none is usual."""

import importlib.util

import pytest
from support.training import catalogue_config, grpo_config, make_inputs, same_weights, sft_config

from minionerec.core.errors import ConfigError
from minionerec.core.settings import parse_settings
from minionerec.training import run
from minionerec.training.catalogue import run_catalogue
from minionerec.training.config import TRACKERS, SftConfig
from minionerec.training.grpo.stage import run_grpo
from minionerec.training.sft import run_sft

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
    watched = sft_config(
        tmp_path, **SMALL, report_to=["tensorboard"], output=str(tmp_path / "watched"), keep_state=False
    )
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


def test_a_missing_package_is_one_line_before_anything_is_done(tmp_path, monkeypatch):
    make_inputs(tmp_path)
    missing = [name for name in ("swanlab", "clearml", "wandb") if importlib.util.find_spec(name) is None]
    assert missing
    message = (
        rf"report_to names {missing[0]}, whose package is not installed: pip install {missing[0]}\. Or leave it out"
    )
    with pytest.raises(ConfigError, match=message):
        run_sft(sft_config(tmp_path, report_to=[missing[0]]))
    assert not (tmp_path / "sft.partial").exists()
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    for name, package in (
        ("tensorboard", r"'minionerec\[tensorboard\]'"),
        ("azure_ml", "azureml-core"),
        ("comet_ml", "comet-ml"),
    ):
        with pytest.raises(ConfigError, match=rf"names {name}, .*: pip install {package}\."):
            run.check_trackers([name])


def test_the_known_trackers_are_those_of_transformers():
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert set(TRACKERS) == set(INTEGRATION_TO_CALLBACK)
    words = ["--output", "x", "--corpus", "c", "--sids", "s", "--report_to"]
    assert parse_settings(SftConfig, [*words, "wandb", "mlflow"]).report_to == ["wandb", "mlflow"]
