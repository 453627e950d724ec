"""SFT: equal losses, resume, and what is refused."""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from support.examples import tokenised_windows
from support.preloaded import python
from support.training import (
    TRAINED,
    builder_of,
    log_of,
    make_inputs,
    sft_config,
)

from minionerec.core.artefacts import read_manifest, write_artefact
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.models.backbone.build import train_tokenizer
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.decoding.decoder import decode_prompts
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.wording import load_wording
from minionerec.pipeline.sft import run_sft
from minionerec.sid.table import SidTable
from minionerec.training.rows import check_all_positions, tokenise_examples, validation_set
from minionerec.training.sft import add_dropout
from minionerec.training.trainer import rank_validation

QUICKLY = {**TRAINED, "epochs": 10, "learning_rate": 1e-2, "device_batch_size": 16}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    make_inputs(folder, users=100)
    return folder, run_sft(sft_config(folder, **QUICKLY))


def losses(model, rows):
    """Summed loss and gradient of rows, one at a time."""
    model.zero_grad()
    total = 0.0
    for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True):
        logps = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        wanted = torch.tensor(labels[1:])
        loss = -logps[wanted >= 0].gather(1, wanted[wanted >= 0].unsqueeze(1)).sum()
        loss.backward()
        total += float(loss)
    return total, [parameter.grad.clone() for parameter in model.parameters()]


def test_all_positions_equal_the_rows_one_by_one(trained):
    folder, _ = trained
    bundle, builder, _ = builder_of(folder)
    bundle.model.eval()
    rows, _ = tokenise_examples(bundle.tokenizer, builder.build("next_sid", "train"), 512)
    windows = tokenised_windows(bundle, builder, None)
    assert len(windows["labels"]) == 100 < len(rows["labels"]) == 300
    per_row, row_gradients = losses(bundle.model, rows)
    per_window, window_gradients = losses(bundle.model, windows)
    assert per_window == pytest.approx(per_row, rel=1e-5)
    for ours, theirs in zip(window_gradients, row_gradients, strict=True):
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm() + 1e-6


def test_all_positions_refuses_prose(trained):
    folder, _ = trained
    _, builder, _ = builder_of(folder, "prose")
    with pytest.raises(ConfigError, match="in 'prose' the prompt and completion of an item"):
        check_all_positions(builder)


def test_the_loss_is_on_completions_alone(trained):
    folder, _ = trained
    bundle, builder, _ = builder_of(folder)
    example = builder.build("title_to_sid", "train")[3]
    rows, _ = tokenise_examples(bundle.tokenizer, [example], 512)
    (ids,), (labels,) = rows["input_ids"], rows["labels"]
    kept = [token for token, label in zip(ids, labels, strict=True) if label >= 0]
    assert bundle.tokenizer.convert_ids_to_tokens(kept) == ["<a_0>", "<b_3>", "<c_0>", "<|eos|>"]
    assert bundle.tokenizer.decode([t for t, label in zip(ids, labels, strict=True) if label < 0]) == example.prompt


def test_sft_learns_and_writes_a_whole_checkpoint(trained):
    folder, result = trained
    assert not result.up_to_date and result.lines == [f"checkpoint: {folder / 'sft'}"]
    assert result.counts["best"]["eval_ndcg@10"] > 0.8
    assert result.counts["rows"] == {"next_sid": 300}
    files = read_manifest(folder / "sft", "checkpoint")["files"]
    assert {"model.safetensors", "index.json", "wording.yaml", "generation_config.json", "training_log.json"} <= set(
        files
    )
    assert not (folder / "sft.partial").exists()
    log = log_of(folder / "sft")
    assert max(row["eval_ndcg@10"] for row in log if "eval_ndcg@10" in row) == result.counts["best"]["eval_ndcg@10"]


def test_what_decides_nothing_makes_nothing_again(trained, tmp_path):
    """Where inputs lie, whether the state is kept, how it would go on."""
    folder, _ = trained
    for name in ("corpus", "sids"):
        shutil.copytree(folder / name, tmp_path / name)
    config = sft_config(folder, **QUICKLY)
    changes = {"corpus": str(tmp_path / "corpus"), "sids": str(tmp_path / "sids")}
    assert run_sft(replace(config, **changes, report_to=["tensorboard"])).up_to_date


def test_a_wording_of_ones_own_decides_by_its_content(tmp_path):
    make_inputs(tmp_path)
    wording = tmp_path / "wording.yaml"
    load_wording("compact").save(wording)
    config = sft_config(tmp_path, wording=str(wording), epochs=0.2, evals_per_epoch=1)
    assert not run_sft(config).up_to_date
    assert set(read_manifest(tmp_path / "sft")["inputs"]) == {"corpus", "sids", "wording"}
    assert run_sft(config).up_to_date
    wording.write_text(wording.read_text().replace("name: compact", "name: mine"))
    assert not run_sft(config).up_to_date
    assert load_bundle(tmp_path / "sft").wording.name == "mine"


def test_early_stopping(tmp_path):
    make_inputs(tmp_path)
    result = run_sft(sft_config(tmp_path, learning_rate=1e-12, epochs=8, patience=2))
    assert result.counts["steps"] == 3 * 5
    assert result.counts["best_step"] == 5


def test_prose_with_every_task_and_a_pretrained_directory(trained, tmp_path, caplog):
    folder, _ = trained
    bundle = load_bundle(folder / "sft")
    bundle.model.save_pretrained(tmp_path / "hub")
    train_tokenizer(["cup lamp chair shelf number 0 1 2 3 4 5"], 300).save_pretrained(tmp_path / "hub")
    tasks = dict.fromkeys(["next_sid", "title_to_sid", "sid_to_title", "description_to_sid", "next_title"], 1.0)
    tasks["title_history_to_sid"] = 0.25
    config = sft_config(
        folder,
        model=str(tmp_path / "hub"),
        output=str(tmp_path / "prose"),
        wording="prose",
        all_positions=False,
        tasks=tasks,
        epochs=0.5,
        select_by="loss",
        eval_examples=0,
    )
    with caplog.at_level("WARNING", "minionerec"):
        counts = run_sft(config).counts
    assert "dropout is 0.1, and" in caplog.text and "Set dropout to 0 unless" in caplog.text
    assert counts["rows"] == {
        "next_sid": 300,
        "title_to_sid": 24,
        "sid_to_title": 24,
        "description_to_sid": 24,
        "next_title": 300,
        "title_history_to_sid": 75,
    }
    assert set(counts["best"]) == {"eval_loss"}
    assert load_bundle(tmp_path / "prose").wording.name == "prose"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": {"next_sid": 1.0, "sing": 1.0}}, "unknown task 'sing'"),
        ({"tasks": {"title_to_sid": 1.0}}, "all_positions applies to the tasks next_sid and .* the tasks title_to_sid"),
        ({"select_by": "ndcg", "eval_examples": 0}, "select_by is ndcg but eval_examples is 0"),
        ({"eval_beams": 5}, "eval_beams is 5"),
        ({"lora_rank": 4, "model": "scratch"}, "lora_rank is 4, but model is scratch"),
    ],
)
def test_bad_sft_settings(trained, tmp_path, changes, message):
    folder, _ = trained
    with pytest.raises(ConfigError, match=message):
        run_sft(sft_config(folder, output=str(tmp_path / "bad"), **changes))
    assert not (tmp_path / "bad").exists()


def test_sids_of_another_corpus_are_refused(trained, tmp_path):
    folder, _ = trained
    table = SidTable.load_index(folder / "sids")
    with write_artefact(tmp_path / "sids", "sids", config={}) as path:
        SidTable(table.codes[:-1], table.item_ids[:-1]).save_index(path / "index.json")
    with pytest.raises(Exception, match="item 'i23' has no SID"):
        run_sft(sft_config(folder, sids=str(tmp_path / "sids"), output=str(tmp_path / "bad")))
    with pytest.raises(ArtefactError, match="holds a 'corpus', expected a 'sids'"):
        run_sft(sft_config(folder, sids=str(folder / "corpus"), output=str(tmp_path / "bad")))


def test_dropout_works_in_training_alone_and_leaves_the_checkpoint_alone(trained):
    folder, _ = trained
    model = load_bundle(folder / "sft").model.eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    before, names = model(ids).logits, list(model.state_dict())
    assert add_dropout(model, 0.5) == 2 * 2 + 1
    assert torch.equal(model(ids).logits, before)
    assert list(model.state_dict()) == names
    model.train()
    assert not torch.allclose(model(ids).logits, before)


def test_validation_ranks_as_the_evaluator_does(trained):
    """NDCG@10, HR@10 and HR@1 of the checkpoint, reckoned from its lists, are those that its run measured."""
    folder, result = trained
    bundle, builder, corpus = builder_of(folder)
    trie = Trie.build(bundle.table.codes, bundle.code_ids)
    validation = validation_set(bundle, builder, trie, count=20, beams=10, seed=42)
    assert len(validation.prompts) == len(validation.targets) == 20
    found = rank_validation(bundle.model, validation, Accelerator())
    assert {f"eval_{name}": value for name, value in found.items()} == {
        name: value for name, value in result.counts["best"].items() if name != "eval_loss"
    }
    lists, _ = decode_prompts(bundle.model, validation.prompts, trie, 10)
    ranks = [row.tolist().index(target) + 1 for row, target in zip(lists, validation.targets, strict=True)]
    assert found["ndcg@10"] == pytest.approx(np.mean([1 / np.log2(1 + rank) for rank in ranks]))
    assert found["hr@1"] == pytest.approx(np.mean([rank == 1 for rank in ranks]))
    every = validation_set(bundle, builder, trie, count=-1, beams=10, seed=42)
    assert len(every.targets) == len(corpus.rows("valid"))
    assert validation_set(bundle, builder, trie, count=0, beams=10, seed=42) is None


def test_truncated_prompts_are_counted_and_reported(tmp_path, caplog):
    make_inputs(tmp_path)
    config = sft_config(
        tmp_path,
        all_positions=False,
        max_prompt_length=5,
        epochs=0.2,
        evals_per_epoch=1,
        eval_examples=0,
        select_by="loss",
    )
    with caplog.at_level("INFO", "minionerec"):
        counts = run_sft(config).counts
    assert counts["truncated_prompts"] == 80  # the second and the third row of 40 users; the first history has one item
    assert "80 prompts were too long and were truncated to their last tokens." in caplog.text
    assert re.search(r"Best step \d+ of \d+: loss \d\.\d{4}", caplog.text)
    assert read_manifest(tmp_path / "sft")["counts"]["truncated_prompts"] == 80


def test_the_model_card_works_without_the_project(trained, tmp_path):
    """The card's example loads the folder with transformers alone, and generates SIDs that exist."""
    output = trained[1].output
    text = (output / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(import json.*?)```", text, re.DOTALL).group(1)
    script = tmp_path / "alone.py"
    script.write_text("import sys; sys.modules['minionerec'] = None\n" + example)
    done = subprocess.run([python(), str(script)], cwd=output, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split()
    assert len(set(lines)) == 5
    assert set(lines) <= set(SidTable.load_index(output / "index.json").sids)
    assert "minionerec sft" in text and "NDCG@10" in text
