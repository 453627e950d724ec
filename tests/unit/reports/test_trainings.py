"""From predictions back to their trainings, and trainings in words."""

import json
from pathlib import Path

import pytest
from support.trained_shop import RECORD, SFT, checkpoint, write_trained

from minionerec.contrib.generative_baselines.config import DpoConfig, TigerTrainConfig
from minionerec.core.artefacts import read_manifest, write_artefact
from minionerec.core.records import record_path
from minionerec.pipeline.config.training import CatalogueTrainConfig
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import STAGES
from minionerec.reports.trainings import machine, trace

MADE = {"corpus": "c", "output": "made/it"}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_trained(Path("made"))
    return tmp_path


def test_the_walk_goes_through_every_training(shop):
    lineage = trace("RL", Path("made/eval_grpo"), {})
    assert [(each.name, each.stage) for each in lineage.trainings] == [("sft", "sft"), ("RL", "grpo")]
    assert lineage.training is lineage.trainings[-1] and not lineage.missing
    sft, rl = lineage.trainings
    assert sft.record["processes"] == 4 and rl.record is None
    assert (rl.counts["steps"], rl.seed, len(sft.log)) == (1650, 42, 13)


def test_the_walk_finds_its_way_from_another_folder(shop, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    lineage = trace("RL", shop / "made" / "eval_grpo", {})
    assert [each.path for each in lineage.trainings] == [shop / "made" / "sft", shop / "made" / "grpo"]


def test_a_training_that_was_rebuilt_is_not_taken_for_the_old_one(shop):
    checkpoint("made/sft", {**SFT, "epochs": 1.0}, {}, {}, [{"step": 1}])
    lineage = trace("RL", Path("made/eval_grpo"), {})
    assert [each.name for each in lineage.trainings] == ["RL"]
    assert lineage.missing == ["made/sft"]


def test_a_teacher_is_a_training_too(shop):
    shape = {"towers": 1, "layers": 2, "hidden_size": 64, "batch_size": 64}
    checkpoint("made/teacher", shape, {}, {}, [], "train-catalogue")
    checkpoint("made/distilled", SFT, {}, {"teacher": "made/teacher"}, [])
    with write_artefact("made/eval", "predictions", config={}, inputs={"checkpoint": "made/distilled"}):
        pass
    lineage = trace("distilled", Path("made/eval"), {})
    trainings = [(each.name, each.stage) for each in lineage.trainings]
    assert trainings == [("teacher", "train-catalogue"), ("distilled", "sft")]


@pytest.mark.parametrize(
    ("config", "stage", "title"),
    [
        (CatalogueTrainConfig(sids="s", loss="sampled", max_grad_norm=0, **MADE), "train-catalogue", "catalogue model"),
        (TigerTrainConfig(sids="s", **MADE), "train-tiger", "train-tiger"),
        (DpoConfig(checkpoint="x", **MADE), "dpo", "S-DPO"),
    ],
)
def test_a_training_is_called_by_the_stage_in_its_manifest(shop, config, stage, title):
    """A catalogue model that draws negatives has settings of S-DPO; nothing is guessed from the names of settings."""
    running = Stage(config)
    running.inputs.clear()
    with running.work() as work, work.finish():
        assert json.loads((work.folder / "run.json").read_text())["stage"] == stage
    assert read_manifest("made/it")["stage"] == stage
    with write_artefact("made/eval", "predictions", config={}, inputs={"checkpoint": "made/it"}):
        pass
    (training,) = trace("it", Path("made/eval"), {name: spec.title for name, spec in STAGES.items()}).trainings
    assert training.stage == stage and training.title == title


def test_a_record_of_another_artefact_is_not_this_ones(shop):
    folder = record_path(Path("made/sft"))
    folder.write_text(json.dumps({**RECORD, "artefact": "0" * 64}))
    assert trace("SFT", Path("made/eval_sft"), {}).trainings[0].record is None
    folder.write_text(json.dumps({**RECORD, "artefact": read_manifest("made/sft")["sha256"]}))
    assert trace("SFT", Path("made/eval_sft"), {}).trainings[0].record is not None


def test_a_machine_as_text():
    assert machine({**RECORD["machine"], "gpus": []}) == "Some CPU, 32 cores, 8 threads"
