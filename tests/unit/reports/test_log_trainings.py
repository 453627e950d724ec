"""From predictions back to their trainings, and trainings in words."""

import json
from pathlib import Path

import pytest
from support.trained_shop import GRPO, RECORD, SFT, checkpoint, write_trained

from minionerec.core.artefacts import read_manifest, write_artefact
from minionerec.core.records import duration, record_path
from minionerec.core.stage import Stage
from minionerec.reports.lineage import Training, changes, trace, trace_unfinished
from minionerec.reports.trainings import TITLES, our_settings, outcome, parameters, recorded
from minionerec.training.config import CatalogueTrainConfig, DpoConfig, TigerTrainConfig


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_trained(Path("made"))
    return tmp_path


def test_the_walk_goes_through_every_training(shop):
    lineage = trace("RL", Path("made/eval_grpo"))
    assert [(each.name, each.stage) for each in lineage.trainings] == [("sft", "sft"), ("RL", "grpo")]
    assert lineage.own is lineage.trainings[-1] and not lineage.missing
    sft, rl = lineage.trainings
    assert sft.record["processes"] == 4 and rl.record is None
    assert (rl.counts["steps"], rl.seed, len(sft.log)) == (1650, 42, 13)


def test_the_walk_finds_its_way_from_another_folder(shop, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    lineage = trace("RL", shop / "made" / "eval_grpo")
    assert [each.path for each in lineage.trainings] == [shop / "made" / "sft", shop / "made" / "grpo"]


def test_a_training_that_was_rebuilt_is_not_taken_for_the_old_one(shop):
    checkpoint("made/sft", {**SFT, "epochs": 1.0}, {}, {}, [{"step": 1}])
    lineage = trace("RL", Path("made/eval_grpo"))
    assert [each.name for each in lineage.trainings] == ["RL"]
    assert lineage.missing == ["made/sft"]


def test_a_teacher_is_a_training_too(shop):
    checkpoint(
        "made/teacher", {"towers": 1, "layers": 2, "hidden_size": 64, "batch_size": 64}, {}, {}, [], "train-catalogue"
    )
    checkpoint("made/distilled", SFT, {}, {"teacher": "made/teacher"}, [])
    with write_artefact("made/eval", "predictions", config={}, inputs={"checkpoint": "made/distilled"}):
        pass
    lineage = trace("distilled", Path("made/eval"))
    assert [(each.name, each.stage) for each in lineage.trainings] == [
        ("teacher", "train-catalogue"),
        ("distilled", "sft"),
    ]
    assert ("Distillation, share of the loss", "0.7") in parameters(lineage.trainings[1])


@pytest.mark.parametrize(
    ("config", "stage", "title"),
    [
        (
            CatalogueTrainConfig(corpus="c", sids="s", loss="sampled", max_grad_norm=0, output="made/it"),
            "train-catalogue",
            "catalogue model",
        ),
        (TigerTrainConfig(corpus="c", sids="s", output="made/it"), "train-tiger", "train-tiger"),
        (DpoConfig(corpus="c", checkpoint="x", output="made/it"), "dpo", "S-DPO"),
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
    (training,) = trace("it", Path("made/eval")).trainings
    assert training.stage == stage and TITLES.get(training.stage, training.stage) == title


def test_a_checkpoint_of_an_earlier_version_is_of_an_unknown_stage(shop, caplog):
    checkpoint("made/sft", SFT, {}, {}, [], stage=None)
    with write_artefact("made/eval", "predictions", config={}, inputs={"checkpoint": "made/sft"}):
        pass
    (training,) = trace("it", Path("made/eval")).trainings
    assert training.stage == "unknown" and changes(training, training) is None
    assert "made/sft: was written by version 0.1, whose manifests do not record the stage" in caplog.text
    with write_artefact("made/model", "sequential_model", config={}, inputs={}):
        pass
    with write_artefact("made/lists", "predictions", config={}, inputs={"model": "made/model"}):
        pass
    (training,) = trace("it", Path("made/lists")).trainings
    assert training.stage == "train-sequential"  # the only stage that makes such models


def test_pending_stages_are_reported_by_what_lies_there(shop):
    def found(checkpoint=""):
        lineage = trace_unfinished("X", checkpoint)
        assert lineage.predictions is None
        return lineage.trainings

    assert found() == found("made/nothing") == []
    (training,) = found("made/grpo")  # trained, not yet evaluated
    assert training.progress is None and training.stage == "grpo"
    folder = Path("made/next.partial")
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    assert found("made/next") == []
    (folder / "run.json").write_text(json.dumps({"stage": "grpo", "settings": GRPO, "inputs": {}}))
    (training,) = found("made/next")
    assert outcome(training) == [("Status", "in progress, no checkpoint yet"), ("Results", "pending")]
    (folder / "checkpoint-5").mkdir()
    (folder / "checkpoint-5" / "trainer_state.json").write_text("{")
    assert found("made/next")[0].progress == (None, None)
    (folder / "checkpoint-last").mkdir()
    (folder / "checkpoint-last" / "trainer_state.json").write_text("{}")
    (folder / "checkpoint-20").mkdir()
    (folder / "checkpoint-20" / "trainer_state.json").write_text('{"global_step": 20, "max_steps": 40}')
    assert found("made/next")[0].progress == (20, 40)


def test_changes_are_those_of_one_kind_and_of_what_was_begun_from():
    def training(kind, settings, before):
        return Training("x", kind, Path("x"), settings, before=before)

    first = training("grpo", {"epochs": 2, "beta": 0.1}, {"checkpoint": "a" * 64, "corpus": "c" * 64})
    second = training("grpo", {"epochs": 3, "beta": 0.1, "loss": "dapo"}, {"checkpoint": "b" * 64, "corpus": "c" * 64})
    expected = {"epochs": (2, 3), "loss": (None, "dapo"), "input checkpoint": ("a" * 16, "b" * 16)}
    assert changes(second, first) == expected
    assert changes(first, first) == {}
    assert changes(first, training("sft", {}, {})) is None


def test_words_of_rl_and_catalogue():
    findings = dict(parameters(Training("x", "grpo", Path("x"), {**GRPO, "beta": 0.0, "rollouts": "beams"})))
    assert findings["Temperature"].startswith("none") and findings["Reference follows the policy"] == "no reference"
    findings = dict(parameters(Training("x", "grpo", Path("x"), GRPO, record=RECORD)))
    assert findings["Temperature"].startswith("1,")
    assert findings["Reference follows the policy"] == "every 512 steps, 0.6 of the policy"
    assert (findings["Processes"], findings["Gradient accumulation"]) == ("4", "4 (64 / 4 / 4 processes)")
    fitted = dict(parameters(Training("x", "grpo", Path("x"), {**GRPO, "prompts_per_device": 0}, record=RECORD)))
    assert fitted["Per-device batch"] == fitted["Gradient accumulation"] == "as memory allows"
    settings = {"towers": 2, "layers": 2, "hidden_size": 128, "objective": "expected", "generations": 16, "beta": 0.1}
    findings = dict(parameters(Training("x", "train-catalogue", Path("x"), settings, {"parameters": 1000})))
    assert findings["Model"] == "2 towers of 2 layers, hidden size 128, 1,000 parameters"
    assert findings["Gradient accumulation"] == "not recorded"
    assert (findings["Generations"], findings["Beta"]) == ("16", "0.1")
    assert parameters(Training("x", "extend", Path("x"), {"a": True})) == [("a", "yes")]


def test_ours_beside_published_settings():
    sft, rl = Training("s", "sft", Path("s"), SFT), Training("r", "grpo", Path("r"), GRPO)
    found = our_settings([sft, rl])
    assert (found["backbone"], found["batch"], found["epochs"]) == ("Qwen2.5-1.5B-Instruct", 1024, 10.0)
    assert (found["rl_batch"], found["rl_reward"], found["rl_epochs"]) == ("1,024", "ranking", 2.0)
    scratch = {**SFT, "model": "scratch", "layers": 4, "hidden_size": 256}
    found = our_settings([Training("s", "sft", Path("s"), scratch, {"parameters": 3_800_000})])
    assert found["backbone"] == "from scratch: 4 layers, hidden size 256, 3,800,000 parameters"
    found = our_settings([Training("s", "train-sequential", Path("s"), {"model": "sasrec", "batch_size": 128})])
    assert found == {"backbone": "sasrec", "batch": 128, "schedule": "constant"}


def test_how_far_a_training_came():
    def epochs(**settings):
        log = [{"step": 3, "epoch": 0.5, "loss": 1.0}]
        findings = outcome(Training("x", "grpo", Path("x"), {"epochs": 2.0, **settings}, log=log))
        return dict(findings)["Epochs"]

    assert epochs() == epochs(max_steps=-1) == "0.5 of 2 (stopped early)"
    assert epochs(max_steps=3) == "0.5 of 2 (stopped by max_steps = 3)"
    assert epochs(epochs=0.5) == "0.5 of 0.5"


def test_records_in_words():
    findings = dict(recorded({**RECORD, "parts": 2, "peak_gpu_memory_bytes": 3 * 2**30}))
    assert findings["Started"] == "2030-01-31T12:00:00Z, in 2 parts"
    assert (findings["Peak memory"], findings["Peak GPU memory"], findings["Commit"]) == (
        "2.0 GiB",
        "3.0 GiB",
        "abc123",
    )
    machine = {**RECORD["machine"], "gpus": []}
    assert dict(recorded({**RECORD, "machine": machine}))["Machine"] == "Some CPU, 32 cores, 8 threads"
    assert recorded(None) == [("Duration", "not recorded"), ("Machine", "not recorded")]
    assert duration(34200) == "9 h 30 min"


def test_a_record_of_another_artefact_is_not_this_ones(shop):
    folder = record_path(Path("made/sft"))
    folder.write_text(json.dumps({**RECORD, "artefact": "0" * 64}))
    assert trace("SFT", Path("made/eval_sft")).trainings[0].record is None
    folder.write_text(json.dumps({**RECORD, "artefact": read_manifest("made/sft")["sha256"]}))
    assert trace("SFT", Path("made/eval_sft")).trainings[0].record is not None
