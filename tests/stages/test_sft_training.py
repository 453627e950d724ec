"""SFT in its variants: LoRA, gradient checkpointing and schedules."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.kill import Point, stage_in_child
from support.training import WAITS, logged, make_inputs, operators_of_a_step, same_weights, sft_config
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.build import train_tokenizer
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.pipeline.sft import run_sft
from minionerec.training.packing import LOGITS_AT_ONCE
from minionerec.training.rows import tokenise_examples


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A corpus, and two small pretrained models: with the head tied to the embedding and without."""
    folder = tmp_path_factory.mktemp("hub")
    make_inputs(folder)
    run_sft(sft_config(folder, output=str(folder / "run"), epochs=1))
    for name in ("tied", "untied"):
        model = load_bundle(folder / "run").model
        if name == "untied":
            model.config.tie_word_embeddings = False
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.save_pretrained(folder / name)
        train_tokenizer(["cup lamp chair shelf number 0 1 2 3 4 5"], 300).save_pretrained(folder / name)
    return folder


def test_a_training_that_diverges_ends_with_what_to_change_and_writes_nothing(hub, tmp_path):
    config = sft_config(hub, output=str(tmp_path / "sft"), learning_rate=1e30, warmup=4)
    with pytest.raises(ConfigError) as found:
        run_sft(config)
    step = found.value.args[0].split()[4]
    assert str(found.value) == (
        f"training diverged by step {step} its loss is nan. Lower learning_rate (it is 1e+30), raise warmup (it is 4), "
        f"delete {tmp_path / 'sft.partial'}, if it is there, and begin again."
    )
    assert int(step.strip(":")) > 0
    assert not (tmp_path / "sft").exists()
    mended = replace(config, learning_rate=1e-3)
    assert not run_sft(mended).up_to_date


def lora_config(hub, folder, name="tied"):
    return sft_config(
        hub, model=str(hub / name), output=str(folder / "sft"), lora_rank=4, learning_rate=0.01, select_by="loss"
    )


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_lora_trains_updates_and_sid_rows_and_ends_as_an_ordinary_model(hub, tmp_path, name, caplog):
    config = lora_config(hub, tmp_path, name)
    with caplog.at_level("INFO", "minionerec"):
        result = run_sft(config)
    assert "Training adapters of rank 4 beside " in caplog.text
    losses = logged(config.output, "eval_loss")
    assert losses[-1] < losses[0]
    bundle = load_bundle(config.output)
    assert result.counts["best"]["eval_loss"] == pytest.approx(min(losses))
    # The weights it began with: those of a run that does not move.
    still = replace(config, output=str(tmp_path / "still"), lora_rank=0, learning_rate=1e-30, dropout=0.0)
    run_sft(still)
    ours, base = (load_file(Path(folder) / "model.safetensors") for folder in (config.output, still.output))
    assert ours.keys() == base.keys()
    new = torch.zeros(len(ours["model.embed_tokens.weight"]), dtype=torch.bool)
    new[bundle.code_ids[bundle.code_ids >= 0]] = True
    for key in [key for key in ours if key.endswith(("embed_tokens.weight", "lm_head.weight"))]:
        rows = (ours[key] != base[key]).any(1)
        assert torch.equal(rows & new, rows) and rows.sum() >= 10, key  # of SID tokens alone
    moved = {key for key in ours if ours[key].ndim == 2 and not torch.equal(ours[key], base[key])}
    assert {"model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight"} <= moved
    change = ours["model.layers.0.mlp.up_proj.weight"] - base["model.layers.0.mlp.up_proj.weight"]
    assert torch.linalg.matrix_rank(change, rtol=1e-3) <= 4
    assert torch.equal(ours["model.norm.weight"], base["model.norm.weight"])


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_what_lora_saves_is_what_it_measured(hub, tmp_path, monkeypatch, name):
    """The merged checkpoint has the validation loss of the model with its updates beside it, whose head is in tiles."""
    monkeypatch.setitem(LOGITS_AT_ONCE, "cpu", 0)
    config = lora_config(hub, tmp_path, name)
    run_sft(config)
    bundle, corpus = load_bundle(config.output), Corpus.load(config.corpus)
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    rows, _ = tokenise_examples(bundle.tokenizer, builder.build("next_sid", "valid"), 512)
    with torch.no_grad():
        total = sum(
            cross_entropy(bundle.model(torch.tensor([ids])).logits[0, :-1], torch.tensor(labels[1:]), reduction="sum")
            for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True)
        )
    tokens = sum(label >= 0 for labels in rows["labels"] for label in labels)
    assert float(total / tokens) == pytest.approx(min(logged(config.output, "eval_loss")), rel=1e-4)


def test_lora_resumes_where_it_was_killed(hub, tmp_path):
    config = lora_config(hub, tmp_path)
    whole = replace(config, output=str(tmp_path / "whole"))
    run_sft(whole)
    run = partial(stage_in_child, run_sft, tmp_path, config)
    run(Point("step", 8))
    assert run()["step"] == 5
    assert same_weights(config.output, whole.output)


def test_gradient_checkpointing_changes_nothing(hub, tmp_path):
    """Not even the dropout masks: the second forward pass draws those of the first."""
    config = sft_config(hub, output=str(tmp_path / "plain"), dropout=0.3)
    passes = []
    for settings in (config, replace(config, output=str(tmp_path / "saved"), gradient_checkpointing=True)):
        count = []
        hook = torch.nn.modules.module.register_module_forward_hook(
            lambda module, *_, count=count: count.append(1) if type(module).__name__ == "Qwen2MLP" else None
        )
        run_sft(settings)
        hook.remove()
        passes.append(len(count))
    assert same_weights(tmp_path / "plain", tmp_path / "saved")
    assert passes[1] == passes[0] + 10 * 2  # each step computes its two blocks again


def test_a_step_waits_for_no_value_and_has_as_many_operators_whatever_its_size(hub, tmp_path):
    changes = {"dropout": 0.0, "epochs": 4, "evals_per_epoch": 0.1}
    small, large = (
        operators_of_a_step(
            run_sft,
            sft_config(hub, output=str(tmp_path / str(size)), batch_size=size, device_batch_size=size, **changes),
        )
        for size in (8, 32)
    )
    assert min(small["aten::mm"], large["aten::mm"]) > 20
    assert small.keys().isdisjoint(WAITS) and large.keys().isdisjoint(WAITS)
    assert small.total() < 1700 and large.total() < 1.05 * small.total()  # 1,604 and 1,636


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("linear", [0.0, 5e-3, 1e-2, 8.75e-3, 7.5e-3, 6.25e-3, 5e-3, 3.75e-3, 2.5e-3, 1.25e-3]),
        ("cosine", [0.0, 5e-3, 1e-2, 9.6194e-3, 8.5355e-3, 6.9134e-3, 5e-3, 3.0866e-3, 1.4645e-3, 3.806e-4]),
        ("constant", [0.0, 5e-3, *[1e-2] * 8]),
    ],
)
def test_schedules(hub, tmp_path, schedule, rates):
    used = []

    def note(optimizer, *_):
        used.append(optimizer.param_groups[0]["lr"])

    hook = register_optimizer_step_pre_hook(note)
    run_sft(
        sft_config(
            hub,
            output=str(tmp_path / "sft"),
            schedule=schedule,
            warmup=2,
            learning_rate=1e-2,
            eval_examples=0,
            select_by="loss",
        )
    )
    hook.remove()
    assert used == pytest.approx(rates, rel=1e-3)
