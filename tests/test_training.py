"""SFT and GRPO: equal losses, equal scores, groups, resume, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from trl.trainer.utils import add_fused_lm_head

from minionerec.backbone.bundle import Bundle, load_bundle
from minionerec.core.artefacts import read_manifest, write_artefact
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.decoding.trie import Trie
from minionerec.prompts.examples import ExampleBuilder, special_texts
from minionerec.prompts.wording import load_wording
from minionerec.sid.table import SidTable
from minionerec.training.common import accumulation_steps, choose_examples
from minionerec.training.config import GrpoConfig, SftConfig, parse_tasks
from minionerec.training.grpo import SidGrpoTrainer, run_grpo
from minionerec.training.regularise import add_dropout
from minionerec.training.sft import check_all_positions, run_sft, tokenise_examples, tokenise_windows
from minionerec.training.shared_prefix import shared_prefix_logps

N_ITEMS = 24
SHAPE = {"hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "inner_size": 48, "text_vocabulary": 300}


TRAINED = {"epochs": 24, "all_positions": False, "batch_size": 16, "device_batch_size": 8, "evals_per_epoch": 0.5}


def make_inputs(folder: Path, users: int = 40) -> tuple[str, str]:
    """A corpus in which item i is followed by item i + 1, and its SIDs."""
    rng = np.random.default_rng(0)
    names = ["cup", "lamp", "chair", "shelf"]
    items = pd.DataFrame(
        {
            "item_id": [f"i{place}" for place in range(N_ITEMS)],
            "title": [f"{names[place // 6]} number {place % 6}" for place in range(N_ITEMS)],
            "description": [f"a {names[place // 6]}" for place in range(N_ITEMS)],
        }
    )
    split: dict[str, list] = {"train": [], "valid": [], "test": []}
    for user in range(users):
        start = int(rng.integers(N_ITEMS))
        chain = [(start + step) % N_ITEMS for step in range(6)]
        for place in range(1, 6):
            name = {4: "valid", 5: "test"}.get(place, "train")
            split[name].append((f"u{user}", np.array(chain[:place], dtype=np.int32), chain[place]))
    tables = {
        name: pd.DataFrame(rows, columns=["user", "history", "target"]).astype({"target": np.int32})
        for name, rows in split.items()
    }
    Corpus(items, **tables, split="leave-last-out", max_history=10).save(folder / "corpus", config={}, inputs={})
    codes = np.array([[place // 6, place % 6, 0] for place in range(N_ITEMS)])
    with write_artefact(folder / "sids", "sids", config={}, inputs={"corpus": folder / "corpus"}) as place:
        SidTable(codes, items["item_id"].tolist()).save_index(place / "index.json")
    return str(folder / "corpus"), str(folder / "sids")


def sft_config(folder: Path, **changes) -> SftConfig:
    settings = {
        "corpus": str(folder / "corpus"), "sids": str(folder / "sids"), "output": str(folder / "sft"), **SHAPE,
        "all_positions": True, "epochs": 2, "batch_size": 8, "device_batch_size": 8, "dropout": 0.1,
        "learning_rate": 3e-3, "eval_rows": 20, "eval_beams": 10, "select_by": "ndcg",
    }  # fmt: skip
    return SftConfig(**{**settings, **changes})


def grpo_config(folder: Path, **changes) -> GrpoConfig:
    settings = {
        "corpus": str(folder / "corpus"), "checkpoint": str(folder / "sft"), "output": str(folder / "grpo"),
        "generations": 4, "prompts_per_step": 8, "prompts_per_device": 4, "learning_rate": 1e-4, "eval_rows": 20,
        "eval_beams": 10, "evals_per_epoch": 3, "sync_steps": 2, "tasks": ["next_sid=0.5", "title_to_sid"],
    }  # fmt: skip
    return GrpoConfig(**{**settings, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    make_inputs(folder, users=100)
    return folder, run_sft(sft_config(folder, **TRAINED))


def builder_of(folder: Path, wording: str = "compact") -> tuple[Bundle, ExampleBuilder, Corpus]:
    corpus = Corpus.load(folder / "corpus")
    bundle = load_bundle(folder / "sft")
    builder = ExampleBuilder(corpus, bundle.table, load_wording(wording), special_texts(bundle.tokenizer))
    return bundle, builder, corpus


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


class Killed(Exception):
    pass


def kill_after(monkeypatch, step):
    """Make training stop dead once a checkpoint at or after a step is on disk."""
    from transformers import Trainer

    save = Trainer._save_checkpoint

    def stop(self, model, trial):
        save(self, model, trial)
        if self.state.global_step >= step:
            raise Killed

    monkeypatch.setattr(Trainer, "_save_checkpoint", stop)


def same_weights(one, two):
    first, second = (load_file(Path(path) / "model.safetensors") for path in (one, two))
    return all(torch.equal(first[name], second[name]) for name in first) and first.keys() == second.keys()


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


# GRPO


def replicated(model, input_ids, attention_mask, width):
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    labels[:, :-width] = -100
    outputs = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, fused_lm_head=True)
    return outputs.log_probs[:, -width:], outputs.entropy[:, -width:]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_shared_prefix_scores_equal_replicated_ones(trained, attention):
    folder, _ = trained
    model = load_bundle(folder / "sft").model
    model.config._attn_implementation = attention
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    prompts, width = 7, 3
    rows, masks = [], []
    for length, group in ((7, 5), (1, 2), (4, 5)):
        prompt = torch.randint(3, 300, (prompts,))
        prompt[: prompts - length] = 0
        seen = (torch.arange(prompts) >= prompts - length).long()
        for place in range(group):
            end = torch.ones(width, dtype=torch.long)
            end[width - place % 2 :] = 0
            rows.append(torch.cat([prompt, torch.randint(3, 300, (width,))]))
            masks.append(torch.cat([seen, end]))
    order = torch.randperm(len(rows))
    ids, mask = torch.stack(rows)[order], torch.stack(masks)[order]
    weights = torch.randn(len(rows), width) * mask[:, -width:]
    gradients = []
    results = []
    for score in (
        lambda: replicated(model, ids, mask, width),
        lambda: shared_prefix_logps(model, model, ids, mask, width),
    ):
        model.zero_grad()
        logps, entropies = score()
        (logps * weights).sum().backward()
        results.append((logps.detach(), entropies.detach()))
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for ours, theirs in zip(results[1], results[0], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm() + 1e-7


@pytest.fixture(scope="module")
def sharpened(trained):
    folder, _ = trained
    return folder, run_grpo(grpo_config(folder))


def test_grpo_is_never_below_its_start(trained, sharpened):
    folder, result = sharpened
    start = json.loads((folder / "grpo" / "training_log.json").read_text())[0]
    assert start["step"] == 0
    assert result.counts["best"]["eval_ndcg@10"] >= start["eval_ndcg@10"]
    assert result.counts["rows"] == {"next_sid": 150, "title_to_sid": 24}
    # 174 prompts fill 22 steps of 8; none is dropped.
    assert result.counts["steps"] == 22


def test_grpo_that_only_hurts_gives_back_the_start(trained, tmp_path):
    folder, _ = trained
    config = grpo_config(folder, output=str(tmp_path / "worse"), learning_rate=0.3, max_grad_norm=100.0)
    result = run_grpo(config)
    assert result.counts["best_step"] == 0
    assert same_weights(tmp_path / "worse", folder / "sft")


def test_grpo_step_equals_the_written_out_formula(trained, tmp_path, monkeypatch):
    """Rollouts, advantages (ddof 1, 1e-4), k3 KL and loss of the first step against plain code."""
    folder, _ = trained
    seen = {}
    compute = SidGrpoTrainer._compute_loss
    prepare = SidGrpoTrainer._generate_and_score_completions

    def spy_prepare(self, inputs):
        output = prepare(self, inputs)
        if "inputs" not in seen:
            seen["inputs"] = inputs
            seen["batch"] = output
            seen["reference"] = [p.detach().clone() for p in self.ref_model.parameters()]
        return output

    def spy_loss(self, model, inputs):
        loss = compute(self, model, inputs)
        if "loss" not in seen:
            seen["loss"], seen["sliced"] = float(loss), inputs
        return loss

    monkeypatch.setattr(SidGrpoTrainer, "_generate_and_score_completions", spy_prepare)
    monkeypatch.setattr(SidGrpoTrainer, "_compute_loss", spy_loss)
    config = grpo_config(
        folder, output=str(tmp_path / "one"), max_steps=1, prompts_per_device=8, beta=0.1, tasks=["next_sid"]
    )
    bundle = load_bundle(folder / "sft")
    run_grpo(config)
    model = bundle.model.eval()
    numbers = bundle.table.sid_numbers
    trie = Trie.build(bundle.table.codes, bundle.code_ids)
    assert trie.n_sids == N_ITEMS
    loss_rows = []
    advantages = []
    for start in range(0, len(seen["inputs"]), 4):
        row = seen["inputs"][start]
        assert all(other["prompt"] == row["prompt"] for other in seen["inputs"][start : start + 4])
        prompt = bundle.tokenizer(row["prompt"])["input_ids"]
        every = []
        for item in range(N_ITEMS):
            codes = bundle.tokenizer.convert_tokens_to_ids(list(bundle.table.token_tuples[item]))
            with torch.no_grad():
                logps = model(torch.tensor([[*prompt, *codes]])).logits[0].log_softmax(-1)
            path = torch.stack([logps[len(prompt) - 1 + step, code] for step, code in enumerate(codes)])
            every.append((item, codes, path))
        mine = seen["batch"]["completion_ids"][start : start + 4].tolist()
        beams = {tuple(codes): path for _, codes, path in every}
        totals = [float(beams[tuple(codes)].sum()) for codes in mine]
        assert totals == sorted(totals, reverse=True)
        assert totals[0] == pytest.approx(max(float(path.sum()) for path in beams.values()), abs=1e-4)
        hits = [codes for item, codes, _ in every if numbers[item] == row["target"]]
        discounts = np.array([1 / np.log2(rank + 2) for rank in range(4)])
        right = np.array([float(codes == hits[0]) for codes in mine])
        rewards = right + (right.any() * (1 - right) * -discounts / discounts.sum())
        advantage = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        advantages += advantage.tolist()
        # On policy and with the reference equal to the policy, ratio is 1 and KL is 0.
        loss_rows += [-float(value) for value in advantage]
    assert seen["batch"]["advantages"].tolist() == pytest.approx(advantages, abs=1e-4)
    assert seen["loss"] == pytest.approx(float(np.mean(loss_rows)), abs=1e-5)
    assert any(advantages)


def test_grpo_killed_and_repeated_equals_uninterrupted(trained, tmp_path, monkeypatch):
    folder, _ = trained
    whole = run_grpo(grpo_config(folder, output=str(tmp_path / "whole")))
    config = grpo_config(folder, output=str(tmp_path / "killed"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 4)
        run_grpo(config)
    run_grpo(config)
    assert same_weights(config.output, whole.output)
    logs = [json.loads((Path(r) / "training_log.json").read_text()) for r in (config.output, whole.output)]
    assert [row.get("kl") for row in logs[0]] == pytest.approx([row.get("kl") for row in logs[1]])


def test_grpo_in_bfloat16_runs_and_warns(trained, tmp_path, caplog):
    folder, _ = trained
    with caplog.at_level("WARNING", "minionerec"):
        run_grpo(grpo_config(folder, output=str(tmp_path / "half"), dtype="bfloat16", max_steps=1))
    assert "torch.bfloat16 without a float32 copy: at learning rate 0.0001 most of a step rounds" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generations": 25}, "generations is 25, but the catalogue has 24 distinct SIDs"),
        ({"generations": 1}, "generations is 1; a group needs at least 2"),
        ({"prompts_per_step": 6}, r"6 is no multiple of 4 x 1 device\(s\) = 4"),
        ({"beta": -0.1}, "beta is -0.1"),
        ({"beta": 0.0}, "there is no reference to sync"),
        ({"reward": "fame"}, "unknown reward 'fame'"),
        ({"tasks": ["sid_to_title"]}, "'sid_to_title' answers with a title"),
        ({"eval_rows": 0}, "eval_rows is 0; GRPO can hurt"),
    ],
)
def test_bad_grpo_settings(trained, tmp_path, changes, message):
    folder, _ = trained
    with pytest.raises(ConfigError, match=message):
        run_grpo(grpo_config(folder, output=str(tmp_path / "bad"), **changes))
    assert not (tmp_path / "bad").exists()
