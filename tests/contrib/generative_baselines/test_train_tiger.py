"""The stage train-tiger: its rows, its loss, its life, and what recommends with its checkpoint."""

import subprocess
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.checkpoints import save_checkpoint
from support.evaluation import config as eval_config
from support.kill import Point, stage_in_child
from support.preloaded import python
from support.processes import stage_in_processes
from support.rounding import assert_near
from support.training import (
    extend_config,
    grpo_config,
    in_parts,
    log_of,
    logged,
    make_inputs,
    nearly_same_weights,
    same_weights,
    short_of_memory,
    tiger_config,
)

from minionerec.contrib.generative_baselines.tiger import TIGER_WORDING, TigerModel, build_tiger, sid_tokenizer
from minionerec.contrib.generative_baselines.train_tiger import (
    TigerTrainer,
    collate,
    distinct_examples,
    row_losses,
    run_tiger,
)
from minionerec.core.artefacts import read_json
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.records import read_run_record
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.nn.layers import Dropout
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.pipeline.config.recommend import ExportConfig
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.export import run_export
from minionerec.pipeline.extend import run_extend
from minionerec.pipeline.grpo import run_grpo
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Request
from minionerec.serve.explain import explain
from minionerec.sid.table import SidTable

LEARNS = {"dropout": 0.0, "epochs": 24, "evals_per_epoch": 0.25}
SHORT = {"dropout": 0.0, "epochs": 0.75, "evals_per_epoch": 1.4}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    make_inputs(folder)
    return folder, run_tiger(tiger_config(folder, **LEARNS))


@pytest.fixture(scope="module")
def parts(trained):
    """Corpus, tokenizer and builder of the trained checkpoint."""
    folder, _ = trained
    corpus, bundle = Corpus.load(folder / "corpus"), load_bundle(folder / "tiger")
    return corpus, bundle, ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))


def test_equal_rows_are_one_that_weighs_as_much(parts):
    corpus, bundle, builder = parts
    rows, cut = distinct_examples(builder, bundle.tokenizer, "train", 512)
    sids = bundle.table.sids
    examples = zip(corpus.train.histories, corpus.train.targets, strict=True)
    wanted = Counter(("".join(sids[item] for item in past) + "<|eos|>", sids[target]) for past, target in examples)
    text = lambda ids: "".join(bundle.tokenizer.convert_ids_to_tokens(ids))  # noqa: E731
    reported = list(zip(map(text, rows["input_ids"]), map(text, rows["labels"]), strict=True))
    weights = np.array(rows["weights"])
    assert cut == 0 and weights.mean() == pytest.approx(1)
    assert dict(zip(reported, (weights * len(corpus.train) / len(reported)).round().astype(int), strict=True)) == wanted
    assert max(wanted.values()) > 1
    assert distinct_examples(builder, bundle.tokenizer, "train", 4)[1] > 0


def test_the_loss_is_the_mean_over_unpadded_tokens():
    codes = np.array([[0, 0, 0], [0, 1, -1], [1, 1, 0], [2, 0, -1]])
    tokenizer = sid_tokenizer(SidTable(codes, list("wxyz")))
    model = build_tiger(tokenizer, 0, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=2).eval()
    rows = [
        {"input_ids": [2, 5, 1], "labels": [3, 5, 7], "weights": 1.0},
        {"input_ids": [3, 5, 7, 2, 6, 1], "labels": [2, 6], "weights": 1.5},
        {"input_ids": [1], "labels": [4, 6], "weights": 0.5},
    ]
    total, tokens = 0.0, 0
    for row in rows:
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]]))
        total += row["weights"] * float(alone.loss) * len(row["labels"])
        tokens += len(row["labels"])
    batch = collate(rows)
    assert batch["labels"].tolist() == [[3, 5, 7], [2, 6, -100], [4, 6, -100]]
    wider = {**batch, "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, 3))}
    with torch.no_grad():
        for inputs in (batch, wider):
            found = TigerTrainer.compute_loss(None, model, inputs)
            assert float(found) == pytest.approx(total / tokens, rel=1e-5)
        losses = row_losses(model, batch["input_ids"], batch["labels"])
        padded = row_losses(model, wider["input_ids"], batch["labels"])
    assert torch.allclose(losses, padded, atol=1e-5)
    assert batch["weights"] @ losses == pytest.approx(total, rel=1e-5)


def test_it_learns_the_order_of_the_items(trained):
    folder, result = trained
    assert result.counts["best"]["eval_ndcg@10"] > 0.6
    assert result.counts["rows"] == 120 > result.counts["distinct_examples"]
    again = run_tiger(tiger_config(folder, **LEARNS))
    assert again.up_to_date and again.counts["steps"] == result.counts["steps"] == 96
    bundle = load_bundle(folder / "tiger")
    assert isinstance(bundle.model, TigerModel) and bundle.wording == TIGER_WORDING
    assert bundle.model.config.vocab_size == len(bundle.tokenizer) == 2 + 4 + 6 + 1
    assert read_json(folder / "tiger" / "generation_config.json")["decoder_start_token_id"] == 0


def test_its_entry_point_is_enough_to_read_a_checkpoint(trained):
    code = "from minionerec.models.backbone import bundle; bundle.load_bundle('tiger').model.branches"
    subprocess.run([python(), "-u", "-c", code], cwd=trained[0], check=True)


def test_every_search_measures_it_like_any_other(trained, tmp_path):
    folder, _ = trained
    found = {}
    for search in ("beam", "exact"):
        settings = {"checkpoint": str(folder / "tiger"), "output": str(tmp_path / search), "search": search}
        config = eval_config(folder, **settings, beams=10, ks=[1, 5, 10])
        assert run_eval(config).metrics["recommenders"]
        found[search] = Predictions.load(tmp_path / search)
    agree = [one[:3] == other[:3] for one, other in zip(found["beam"].items, found["exact"].items, strict=True)]
    assert np.mean(agree) > 0.9


def test_users_are_recommended_items_with_reasons(trained):
    folder, _ = trained
    recommender = Recommender.load(folder / "tiger")
    answer = recommender.recommend(["i3", "i4"], k=4, without=["i5"], exclude_seen=True)
    listed = [item.item_id for item in answer.items]
    assert len(listed) == 4 and not {"i3", "i4", "i5"} & set(listed)
    tree, explained = explain(recommender, Request(["i3", "i4"], 2))
    assert tree and {reason["item_id"] for reasons in explained.values() for reason in reasons} == {"i3", "i4"}


def test_what_needs_a_language_model_says_so(trained, tmp_path):
    folder, _ = trained
    words = "is an encoder-decoder, but a language model is needed here"
    checkpoint = str(folder / "tiger")
    with pytest.raises(ConfigError, match=words):
        run_grpo(grpo_config(folder, checkpoint=checkpoint, output=str(tmp_path / "grpo")))
    with pytest.raises(ConfigError, match=words):
        run_export(ExportConfig(checkpoint=checkpoint, corpus=str(folder / "corpus"), output=str(tmp_path / "export")))
    with pytest.raises(ConfigError, match=words):
        run_extend(extend_config(folder, checkpoint, tmp_path / "extended"))


def test_weights_of_another_vocabulary_are_noticed(trained, tmp_path):
    folder, _ = trained
    bundle = load_bundle(folder / "tiger")
    bundle.tokenizer.add_tokens(["<a_9>"])
    save_checkpoint(bundle, tmp_path / "other")
    with pytest.raises(ArtefactError, match="the model's codes are not those of"):
        load_bundle(tmp_path / "other")


def test_the_learning_rate_falls_with_the_root_of_the_steps(trained, tmp_path):
    folder, _ = trained
    steps = {"schedule": "inverse_sqrt", "warmup": 4, "evals_per_epoch": 2}
    run_tiger(tiger_config(folder, output=str(tmp_path / "tiger"), **steps))
    log = log_of(tmp_path / "tiger")
    rates = {row["step"]: row["learning_rate"] for row in log if "learning_rate" in row}
    assert len(rates) > 2
    for step, rate in rates.items():  # a step's own rate is that after the steps before it
        assert rate == pytest.approx(1e-2 * min((step - 1) / 4, (4 / max(step - 1, 1)) ** 0.5))


def test_killed_it_ends_as_if_nothing_had_happened(tmp_path):
    make_inputs(tmp_path)
    often = partial(tiger_config, tmp_path, evals_per_epoch=2)
    totals, mine = stage_in_child(run_tiger, tmp_path, often()), tmp_path / "killed"
    run = partial(stage_in_child, run_tiger, mine, often(output=str(mine / "tiger")))
    run(Point("step", totals["step"] - 1))
    assert not (mine / "tiger").exists()
    run()
    assert same_weights(mine / "tiger", tmp_path / "tiger")


def test_micro_batches_and_processes_add_up(trained, tmp_path):
    folder, _ = trained
    config = partial(tiger_config, folder, dropout=0.0, epochs=1, evals_per_epoch=1, batch_size=20)
    whole = run_tiger(config(output=str(tmp_path / "whole"), device_batch_size=20))
    assert whole.counts["distinct_examples"] % 20 == 3  # of the last step the second process has nothing
    run_tiger(config(output=str(tmp_path / "halves"), device_batch_size=10))
    stage_in_processes(run_tiger, config(output=str(tmp_path / "shared"), device_batch_size=10), 2)
    for name in ("loss", "eval_loss", "eval_ndcg@10"):
        assert logged(tmp_path / "shared", name) == pytest.approx(logged(tmp_path / "whole", name), rel=1e-4), name
    for name in ("halves", "shared"):
        assert nearly_same_weights(tmp_path / "whole", tmp_path / name, 1e-2), name


def test_parts_that_fit_the_memory_change_nothing(trained, tmp_path, monkeypatch, limits):
    folder, _ = trained
    whole = tiger_config(folder, output=str(tmp_path / "whole"), **SHORT)
    run_tiger(whole)
    names = ("alike", "small", "lowered")
    alike, small, lowered = (replace(whole, output=str(tmp_path / name), device_batch_size=0) for name in names)
    run_tiger(alike)  # all fits, so nothing is divided
    assert same_weights(tmp_path / "alike", tmp_path / "whole")
    in_parts(run_tiger, small, tokens=40)
    ended = short_of_memory(monkeypatch, TigerTrainer)
    in_parts(run_tiger, lowered, tokens=100)
    assert min(ended) > 1 and read_run_record(lowered.output).batch.tokens < 100
    for config in (small, lowered):
        assert nearly_same_weights(config.output, whole.output, whole.learning_rate)
        assert logged(config.output, "eval_loss") == pytest.approx(logged(whole.output, "eval_loss"), rel=1e-4)


def test_blocks_computed_again_change_nothing(trained):
    model, found, runs = load_bundle(trained[1].output).model.double(), [], []
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    model.encoder.block[0].layer[0].register_forward_hook(lambda *_: runs.append(1))
    ids, labels = torch.randint(2, 8, (4, 9)), torch.randint(2, 8, (4, 3))
    for again in (False, True):
        if again:
            model.activation_checkpointing_enable()
        model.train().zero_grad()
        row_losses(model, ids, labels).sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert len(runs) == 3
    for again, once in zip(*reversed(found), strict=True):
        assert_near(again, once, dtype=torch.float64)


def test_settings_that_cannot_be_are_reported(tmp_path):
    with pytest.raises(ConfigError, match="eval_examples is 0; the best checkpoint is chosen by ranking"):
        tiger_config(tmp_path, eval_examples=0)
