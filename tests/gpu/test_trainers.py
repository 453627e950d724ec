"""Every trainer on a GPU: it learns, is stopped and goes on, computes in bfloat16, and its lists are the CPU's."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.decoding import exact_prompts
from support.devices import CPU, all_finite, same_lists
from support.training import (
    Killed,
    catalogue_config,
    dpo_config,
    grpo_config,
    interrupted_in_epoch,
    kill_after,
    make_inputs,
    same_weights,
    sequential_config,
    sft_config,
    tiger_config,
)

from minionerec.contrib.generative_baselines.dpo import run_dpo
from minionerec.contrib.generative_baselines.train_tiger import run_tiger
from minionerec.core.device import VARIABLE
from minionerec.core.records import read_run_record
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.backbone.vocabulary import code_token_ids
from minionerec.models.decoding.decoder import decode_prompts
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, encode_prompt, special_texts
from minionerec.models.sequential.rank import rank_rows, top_items
from minionerec.models.sequential.registry import load_sequential
from minionerec.pipeline.grpo import run_grpo
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.recommend.rankers import load
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Request
from minionerec.serve.explain import explain
from minionerec.training.trainer import RankingEvaluation, compile_blocks

SHORT = {"epochs": 2, "evals_per_epoch": 2}


TRAINERS = {
    "sft": (run_sft, sft_config, SHORT),
    "distilled": (run_sft, sft_config, {**SHORT, "teacher": "catalogue", "all_positions": True}),
    "catalogue": (run_catalogue, catalogue_config, SHORT),
    "sampled": (run_catalogue, catalogue_config, {**SHORT, "loss": "sampled", "negatives": 8, "max_grad_norm": 0.0}),
    "tiger": (run_tiger, tiger_config, SHORT),
    "grpo": (run_grpo, grpo_config, {"max_steps": 4, "evals_per_epoch": 4, "beta": 0.05}),
    "sampled rollouts": (run_grpo, grpo_config, {"max_steps": 4, "evals_per_epoch": 4, "rollouts": "sampling"}),
    "dpo": (run_dpo, dpo_config, SHORT),
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory, device):
    """A corpus with what the trainers below begin with: a catalogue model as teacher, and a language model."""
    folder = tmp_path_factory.mktemp("gpu")
    make_inputs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        run_catalogue(catalogue_config(folder))
        run_sft(sft_config(folder, epochs=4, all_positions=False))
    return folder


def trainer_of(shop: Path, name: str, output: Path, **changes):
    """What runs a trainer, which writes to `output`."""
    run, make, settings = TRAINERS[name]
    settings = {**settings, **changes, "output": str(output)}
    if "teacher" in settings:
        settings["teacher"] = str(shop / settings["teacher"])
    return partial(run, make(shop, **settings))


def trained_weights(shop: Path, name: str, output: Path, **changes) -> dict[str, torch.Tensor]:
    """The weights that a whole run of a trainer leaves."""
    trainer_of(shop, name, output, **changes)()
    return load_file(output / "model.safetensors")


def stopped_and_resumed(run, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        kill_after(patch, 1)
        with pytest.raises(Killed):
            run()
    run()


@pytest.mark.parametrize("name", TRAINERS)
def test_it_learns_there_and_resumes_after_a_stop(shop, device, tmp_path, monkeypatch, name):
    whole = trained_weights(shop, name, tmp_path / "whole")
    stopped_and_resumed(trainer_of(shop, name, tmp_path / "stopped"), monkeypatch)
    stopped = load_file(tmp_path / "stopped" / "model.safetensors")
    assert all_finite(whole.values()) and all_finite(stopped.values())
    assert {key: value.shape for key, value in whole.items()} == {key: value.shape for key, value in stopped.items()}
    record = read_run_record(tmp_path / "stopped")
    assert record.resumed_from is not None
    if device.type == "cuda":
        assert record.peak_gpu_memory_bytes


@pytest.mark.parametrize("name", TRAINERS)
def test_in_a_fixed_order_a_stop_changes_no_bit(shop, fixed_order, tmp_path, monkeypatch, name):
    trainer_of(shop, name, tmp_path / "whole")()
    stopped_and_resumed(trainer_of(shop, name, tmp_path / "stopped"), monkeypatch)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize("name", TRAINERS)
def test_it_computes_in_bfloat16_over_float32_weights(shop, tmp_path, name):
    weights = trained_weights(shop, name, tmp_path / "mixed", mixed_bf16=True).values()
    weights = [value for value in weights if value.is_floating_point()]
    assert all(value.dtype == torch.float32 for value in weights) and all_finite(weights)


def test_a_language_model_of_bfloat16_is_read_as_it_was_saved(shop, device, tmp_path):
    weights, corpus = trained_weights(shop, "sft", tmp_path / "half", dtype="bfloat16"), Corpus.load(shop / "corpus")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    found = load.load_ranker(tmp_path / "half", corpus).bundle.model
    assert found.device == device
    assert found.dtype == (torch.float32 if device.type == "cpu" else torch.bfloat16)
    assert load.load_ranker(shop / "sft", corpus).bundle.model.dtype == torch.float32


@pytest.mark.parametrize("name", ["sft", "distilled", "catalogue", "tiger"])
def test_its_lists_are_those_of_the_cpu(shop, device, tmp_path, name):
    trainer_of(shop, name, tmp_path / "trained")()
    found = []
    for folder in (CPU, device):
        bundle, corpus = load_bundle(tmp_path / "trained"), Corpus.load(shop / "corpus")
        builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
        texts = [example.prompt for example in builder.build("next_sid", "test")]
        prompts = encode_prompt(bundle.tokenizer, texts, 512)[0]
        trie = Trie.build(bundle.table.codes, code_token_ids(bundle.tokenizer, bundle.table))
        model = bundle.model.to(folder)
        found.append([search(model, prompts, trie, 10) for search in (decode_prompts, exact_prompts)])
    assert all(same_lists(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("name", ["sft", "catalogue"])
def test_a_recommender_says_the_same_and_explains_it(shop, device, monkeypatch, name):
    history, found = ["i3", "i4", "i5"], []
    for folder in (CPU, device):
        monkeypatch.setattr(load, "decoding_device", lambda folder=folder: folder)
        recommender = Recommender.load(shop / name)
        assert recommender.ranker.bundle.model.device == folder
        listed = recommender.recommend(history, k=8, exclude_seen=True).items
        tree, reasons = explain(recommender, Request(history=tuple(history), k=4))
        assert tree and any(reasons.values())
        found.append(([int(item.item_id[1:]) for item in listed], [item.score for item in listed]))
    assert same_lists(*(([items], [scores]) for items, scores in found))


def test_a_sequential_model_resumes_after_a_stop_and_ranks_as_on_the_cpu(shop, device, tmp_path, monkeypatch):
    short = {"epochs": 3, "learning_rate": 0.01, "list_length": 5, "resamples": 10, "max_len": 5}
    whole, stopped = (sequential_config(shop / "corpus", tmp_path / name, **short) for name in ("whole", "stopped"))
    run_sequential(whole)
    interrupted_in_epoch(monkeypatch, stopped, 3)
    run_sequential(stopped)
    whole, stopped = (tmp_path / name / "model" for name in ("whole", "stopped"))
    ended = [load_sequential(path) for path in (whole, stopped)]
    assert all_finite(ended[1].state_dict().values())
    for mine, theirs in zip(ended[0].state_dict().values(), ended[1].state_dict().values(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-3)
    rows = Corpus.load(shop / "corpus").test
    lists, ranks = [], []
    for folder in (CPU, device):
        model = load_sequential(whole).to(folder)
        items, scores = top_items(model, rows, "keep", folder, 6)
        lists.append((items, scores))
        ranks.append(rank_rows(model, rows, "keep", folder)["item"])
    assert same_lists(*lists)
    assert np.mean(ranks[0] == ranks[1]) > 0.9


@pytest.mark.parametrize("name", ["sft", "grpo"])
def test_with_compiled_blocks_it_learns_the_same(shop, device, tmp_path, monkeypatch, name):
    """As a run of 200 steps does on a GPU; on a CPU compiled for any device, by a compiler that changes no operator."""
    backend, compiled = "inductor" if device.type == "cuda" else "aot_eager", []

    def compile_all(self, steps):
        for model in (self.model, getattr(self, "ref_model", None)):
            if model is not None:
                compiled.append(compile_blocks(model, backend))
        self.compiled = True

    written = trained_weights(shop, name, tmp_path / "written")
    monkeypatch.setattr(RankingEvaluation, "compile_blocks", compile_all)
    others = trained_weights(shop, name, tmp_path / "compiled")
    assert sum(compiled) >= 1
    assert list(written) == list(others)
    for key, value in written.items():
        assert torch.allclose(value, others[key], rtol=1e-2, atol=1e-3 if device.type == "cuda" else 1e-5), key
