"""Every supported architecture through the stages, against plain forward passes of the library's model."""

import numpy as np
import pytest
import torch
from support.architectures import plain_log_probs, small_config, small_model
from support.decoding import lists, sid_scores
from support.training import grpo_config, logged, make_inputs, same_weights, sft_config

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.build import train_tokenizer
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.decoding.architectures import ARCHITECTURES
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.pipeline.config.recommend import ExportConfig
from minionerec.pipeline.export import run_export
from minionerec.pipeline.grpo import run_grpo
from minionerec.pipeline.sft import run_sft
from minionerec.recommend.sid_trie import check
from minionerec.training.rows import tokenise_examples

ROUNDING = 1e-4  # of float32, relative, over the sums of a small model


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    make_inputs(folder)
    return folder


def save_base(folder, kind, **settings):
    """A small random base of a kind with a tokenizer, as a foreign one would lie there."""
    tokenizer = train_tokenizer(["cup lamp chair shelf number 0 1 2 3 4 5"], 300)
    config = small_config(kind, vocab_size=len(tokenizer), **settings)
    small_model(config, spread=0.1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def base_config(shop, base, output, **changes):
    settings = {"max_prompt_length": 32, "dropout": 0.0, "select_by": "loss", "schedule": "constant"}
    return sft_config(shop, model=str(base), output=str(output), **{**settings, "eval_examples": 0, **changes})


def forward_loss(checkpoint, shop):
    """Mean loss of a token of the validation examples, each by one plain forward pass."""
    bundle, corpus = load_bundle(checkpoint), Corpus.load(shop / "corpus")
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    rows, _ = tokenise_examples(bundle.tokenizer, builder.build("next_sid", "valid"), 32)
    losses = []
    for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True):
        length = sum(label < 0 for label in labels)
        losses.append(-plain_log_probs(bundle.model, ids[:length], ids[length:]))
    return float(torch.cat(losses).mean())


def trained_as_measured(shop, config):
    """Train; the output has the loss that validation measured and the best of all."""
    result = run_sft(config)
    measured = result.counts["best"]["eval_loss"]
    assert measured == min(logged(config.output, "eval_loss"))
    assert forward_loss(config.output, shop) == pytest.approx(measured, rel=ROUNDING)
    return result


def slow_but(*quick):
    return [kind if kind in quick else pytest.param(kind, marks=pytest.mark.slow) for kind in ARCHITECTURES]


@pytest.mark.parametrize("kind", slow_but("gpt_neox"))
def test_the_best_weights_are_written_and_a_run_goes_on_from_its_own(shop, tmp_path, kind):
    base = save_base(tmp_path / "base", kind)
    # At this rate validation becomes worse at once, so that the best step is not the last.
    trained_as_measured(shop, base_config(shop, base, tmp_path / "best", learning_rate=0.3, evals_per_epoch=2))
    whole = base_config(shop, base, tmp_path / "whole", learning_rate=0.01, epochs=2)
    trained_as_measured(shop, whole)
    for epochs in (1, 2):
        run_sft(base_config(shop, base, tmp_path / "parts", learning_rate=0.01, epochs=epochs))
    assert logged(tmp_path / "parts", "eval_loss") == logged(whole.output, "eval_loss")
    assert same_weights(tmp_path / "parts", whole.output)


@pytest.mark.parametrize("kind", slow_but("phi"))
def test_low_rank_updates_are_trained_as_the_output_is_read(shop, tmp_path, kind):
    base = save_base(tmp_path / "base", kind)
    trained_as_measured(shop, base_config(shop, base, tmp_path / "sft", learning_rate=0.01, lora_rank=4))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_lists_rewards_and_exports_are_those_of_plain_forward_passes(shop, tmp_path, kind):
    base = save_base(tmp_path / "base", kind)
    run_sft(base_config(shop, base, tmp_path / "sft", learning_rate=0.01))
    result = run_grpo(
        grpo_config(shop, checkpoint=str(tmp_path / "sft"), output=str(tmp_path / "grpo"), max_steps=3, beta=0.1)
    )
    assert result.counts["steps"] == 3
    assert all(kl is None or np.isfinite(kl) for kl in logged(tmp_path / "grpo", "kl"))
    bundle = load_bundle(tmp_path / "grpo")
    trie, prompt = Trie.build(bundle.table.codes, bundle.code_ids), bundle.tokenizer("<a_0><b_1>")["input_ids"]
    (found,) = lists(beam_search(bundle.model, [prompt], trie, trie.n_sids))
    wanted = sid_scores(bundle.model, prompt, trie)
    assert [score for _, score in found] == pytest.approx(wanted.sort(descending=True).values.tolist(), rel=ROUNDING)
    settings = {"corpus": str(shop / "corpus"), "checkpoint": str(tmp_path / "grpo")}
    assert check(run_export(ExportConfig(**settings, output=str(tmp_path / "export"))).output).startswith("5 of 5")


@pytest.mark.parametrize("kind", ["mixtral", "gemma2", "qwen3_5_text", "bloom"])
def test_a_base_that_is_not_supported_is_refused_before_anything_is_read(shop, tmp_path, monkeypatch, kind):
    base = save_base(tmp_path / "base", kind)
    (base / "model.safetensors").unlink()
    monkeypatch.setattr(Corpus, "load", None)
    with pytest.raises(ConfigError, match=f"base: is a {kind} model, .* which is not supported"):
        run_sft(base_config(shop, base, tmp_path / "sft"))
    assert not any(path.name.startswith("sft") for path in tmp_path.iterdir() if path.is_dir())


def test_sequences_longer_than_the_positions_are_refused_before_training(shop, tmp_path):
    base = save_base(tmp_path / "base", "gpt2", n_positions=40)
    with pytest.raises(ConfigError, match=r"42 tokens.* gpt2 .* end at 40\. Lower max_prompt_length \(it is 39\) by 2"):
        run_sft(base_config(shop, base, tmp_path / "sft", max_prompt_length=39))
    base = save_base(tmp_path / "short", "gpt2", n_positions=12)
    with pytest.raises(ConfigError, match=r"end at 12\. Make them \d tokens shorter: lower max_prompt_length, or"):
        run_sft(base_config(shop, base, tmp_path / "sft", max_prompt_length=9))
    assert not (tmp_path / "sft").exists()
