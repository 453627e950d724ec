"""SFT: equal losses, resume, and what is refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from filelock import FileLock
from support.training import (
    TRAINED,
    Killed,
    builder_of,
    kill_after,
    make_inputs,
    same_weights,
    sft_config,
)

from minionerec.backbone.bundle import load_bundle
from minionerec.core.artefacts import read_manifest, write_artefact
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.sid.table import SidTable
from minionerec.training.common import accumulation_steps, choose_examples
from minionerec.training.config import parse_tasks
from minionerec.training.regularise import add_dropout
from minionerec.training.sft import check_all_positions, run_sft, tokenise_examples, tokenise_windows


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    make_inputs(folder, users=100)
    return folder, run_sft(sft_config(folder, **TRAINED))


def losses(model, columns):
    """Summed loss and gradient of rows, one at a time."""
    model.zero_grad()
    total = 0.0
    for ids, labels in zip(columns["input_ids"], columns["labels"], strict=True):
        logps = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        wanted = torch.tensor(labels[1:])
        loss = -logps[wanted >= 0].gather(1, wanted[wanted >= 0].unsqueeze(1)).sum()
        loss.backward()
        total += float(loss)
    return total, [parameter.grad.clone() for parameter in model.parameters()]


def test_all_positions_equal_the_rows_one_by_one(trained):
    folder, _ = trained
    bundle, builder, corpus = builder_of(folder)
    bundle.model.eval()
    rows = tokenise_examples(bundle.tokenizer, builder.build("next_sid", "train"), 512)
    windows = tokenise_windows(bundle.tokenizer, builder, corpus)
    assert len(windows["input_ids"]) == 100 < len(rows["input_ids"]) == 300
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
    columns = tokenise_examples(bundle.tokenizer, [example], 512)
    ids, labels = columns["input_ids"][0], columns["labels"][0]
    kept = [token for token, label in zip(ids, labels, strict=True) if label >= 0]
    assert bundle.tokenizer.convert_ids_to_tokens(kept) == ["<a_0>", "<b_3>", "<c_0>", "<|eos|>"]
    assert bundle.tokenizer.decode([t for t, label in zip(ids, labels, strict=True) if label < 0]) == example.prompt


def test_sft_learns_and_writes_a_whole_checkpoint(trained):
    folder, result = trained
    assert result.fresh
    assert result.counts["best"]["eval_ndcg@10"] > 0.8
    assert result.counts["rows"] == {"next_sid": 300}
    files = read_manifest(folder / "sft", "checkpoint")["files"]
    assert {"model.safetensors", "index.json", "wording.yaml", "generation_config.json", "training_log.json"} <= set(
        files
    )
    assert not (folder / "sft.partial").exists()
    log = json.loads((folder / "sft" / "training_log.json").read_text())
    assert max(row["eval_ndcg@10"] for row in log if "eval_ndcg@10" in row) == result.counts["best"]["eval_ndcg@10"]


def test_sft_done_is_not_done_again(trained):
    folder, _ = trained
    before = read_manifest(folder / "sft")
    again = run_sft(sft_config(folder, **TRAINED))
    assert not again.fresh
    assert read_manifest(folder / "sft") == before


def test_sft_killed_and_repeated_equals_uninterrupted(tmp_path, monkeypatch):
    make_inputs(tmp_path)
    whole = run_sft(sft_config(tmp_path, output=str(tmp_path / "whole")))
    for step in (5, 10):
        config = sft_config(tmp_path, output=str(tmp_path / f"killed{step}"))
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_after(patch, step)
            run_sft(config)
        assert not (tmp_path / f"killed{step}").exists()
        run_sft(config)
        assert same_weights(config.output, whole.output)


def test_an_unfinished_run_with_other_settings_is_not_mixed_in(tmp_path, monkeypatch):
    make_inputs(tmp_path)
    config = sft_config(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 1)
        run_sft(config)
    other = replace(config, learning_rate=1e-4)
    with pytest.raises(ConfigError, match=r"differs in learning_rate \(then 0.003, now 0.0001\).*--restart true"):
        run_sft(other)
    assert (tmp_path / "sft.partial").is_dir()
    assert run_sft(replace(other, restart=True)).fresh


def test_two_runs_do_not_write_one_output(tmp_path):
    make_inputs(tmp_path)
    with FileLock(tmp_path / ".sft.lock"), pytest.raises(ConfigError, match="sft: another run is writing it"):
        run_sft(sft_config(tmp_path))
    assert run_sft(sft_config(tmp_path)).fresh


def test_a_half_written_checkpoint_is_left_out(tmp_path, monkeypatch):
    make_inputs(tmp_path)
    whole = run_sft(sft_config(tmp_path, output=str(tmp_path / "whole")))
    config = sft_config(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 5)
        run_sft(config)
    torn = tmp_path / "sft.partial" / "checkpoint-7"
    shutil.copytree(tmp_path / "sft.partial" / "checkpoint-5", torn)
    (torn / "trainer_state.json").write_text('{"global_step": 7, "log_hi')
    run_sft(config)
    assert same_weights(config.output, whole.output)


def test_early_stopping(tmp_path):
    make_inputs(tmp_path)
    result = run_sft(sft_config(tmp_path, learning_rate=1e-12, epochs=8, patience=2))
    assert result.counts["steps"] == 3 * 5
    assert result.counts["best_step"] == 5


def test_prose_with_every_task_and_a_pretrained_directory(trained, tmp_path):
    folder, _ = trained
    bundle = load_bundle(folder / "sft")
    bundle.model.save_pretrained(tmp_path / "hub")
    bundle.tokenizer.save_pretrained(tmp_path / "hub")
    tasks = [
        "next_sid",
        "title_to_sid",
        "sid_to_title",
        "description_to_sid",
        "next_title",
        "title_history_to_sid=0.25",
    ]
    config = sft_config(
        folder, model=str(tmp_path / "hub"), output=str(tmp_path / "prose"), wording="prose", all_positions=False,
        tasks=tasks, epochs=0.5, select_by="loss", eval_rows=0,
    )  # fmt: skip
    counts = run_sft(config).counts
    assert counts["rows"] == {
        "next_sid": 300, "title_to_sid": 24, "sid_to_title": 24, "description_to_sid": 24, "next_title": 300,
        "title_history_to_sid": 75,
    }  # fmt: skip
    assert set(counts["best"]) == {"eval_loss"}
    assert load_bundle(tmp_path / "prose").wording.name == "prose"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 10}, r"10 is no multiple of 8 x 1 device\(s\) = 8"),
        ({"tasks": ["next_sid", "sing"]}, "unknown task 'sing'"),
        ({"tasks": ["next_sid=0"]}, "tasks: 'next_sid=0'; expected each task once"),
        ({"tasks": []}, "tasks is empty"),
        ({"tasks": ["title_to_sid"]}, "all_positions is about the task next_sid"),
        ({"select_by": "ndcg", "eval_rows": 0}, "select_by is ndcg but eval_rows is 0"),
        ({"eval_beams": 5}, "eval_beams is 5"),
        ({"schedule": "steps"}, "unknown schedule 'steps'; known: cosine, linear, constant"),
        ({"dropout": 1.0}, r"dropout 1.0 is outside \[0, 1\)"),
        ({"heads": 3}, "hidden_size 32 is not a multiple of heads 3"),
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
    with write_artefact(tmp_path / "sids", "sids", config={}) as place:
        SidTable(table.codes[:-1], table.item_ids[:-1]).save_index(place / "index.json")
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


def test_weights_of_tasks():
    assert parse_tasks(["a", "b=2.5"]) == {"a": 1.0, "b": 2.5}
    assert len(choose_examples(10, 0.3, 0)) == 3
    assert np.bincount(choose_examples(10, 2.5, 0)).min() == 2
    assert np.array_equal(choose_examples(50, 0.5, 1), choose_examples(50, 0.5, 1))
    assert accumulation_steps(64, 8, 4, "x") == 2
