"""Every supported architecture against plain forward passes of the library's model, and what is refused."""

import numpy as np
import pytest
import torch
from support.architectures import VOCABULARY, plain_log_probs, small_config, small_model, supported_model
from support.decoding import lists, sid_scores, token_ids
from trl.trainer.utils import add_fused_lm_head

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.architectures import ARCHITECTURES, check_architecture, longest_sequence
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.trie import Trie
from minionerec.training.packing import TreeCollator, picked_losses, shared_prefix_scores

PROMPTS = [[11, 7, 9, 30, 8, 8, 41, 2, 17, 60, 5], [3, 9, 3], [44, 7, 9, 30, 12]]
COMPLETIONS = [[[20, 10, 30], [20, 10, 31], [20, 11, 30], [21, 10, 30]], [[22, 10, 30]], [[20, 10, 30], [20, 11, 32]]]
EVERY = [(prompt, ids) for prompt, many in zip(PROMPTS, COMPLETIONS, strict=True) for ids in many]


def close(found, wanted):
    """Equal to the rounding of float32 sums over some hundred terms, by the size of what is compared."""
    bound = 1000 * torch.finfo(torch.float32).eps * float(wanted.abs().max())
    return float((found.double() - wanted).abs().max()) <= bound


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_supervised_losses_are_those_of_plain_forward_passes(kind):
    model = supported_model(kind)
    examples = [
        {"input_ids": [*prompt, *ids], "labels": [-100] * len(prompt) + ids, "weights": [1.0] * len([*prompt, *ids])}
        for prompt, ids in sorted(EVERY)
    ]
    with torch.no_grad():
        losses, _ = picked_losses(model, model, TreeCollator(64)(examples))
    wanted = torch.cat([-plain_log_probs(model, prompt, ids) for prompt, ids in sorted(EVERY)])
    assert close(losses.sort().values, wanted.sort().values)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_likelihoods_of_rollouts_are_those_of_plain_forward_passes(kind):
    model = small_model(small_config(kind))
    wanted = torch.cat([plain_log_probs(model, prompt, ids) for prompt, ids in EVERY])
    add_fused_lm_head(model)
    with torch.no_grad():
        found, _, _ = shared_prefix_scores(model, model, PROMPTS, COMPLETIONS, 64)
    assert close(found, wanted)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_beam_search_finds_the_best_of_all_sids(kind):
    model, rng = supported_model(kind), np.random.default_rng(0)
    trie = Trie.build(rng.integers(0, 6, (40, 3)), token_ids(3, 6))
    for prompt, found in zip(PROMPTS, lists(beam_search(model, PROMPTS, trie, trie.n_sids)), strict=True):
        wanted = sid_scores(model, prompt, trie)
        assert sorted(sid for sid, _ in found) == list(range(trie.n_sids))
        order = torch.tensor([sid for sid, _ in found])
        assert close(torch.tensor([score for _, score in found]), wanted[order])
        assert close(wanted[order], wanted.sort(descending=True).values)


REFUSED = {
    "bloom": "is a bloom model, ALiBi positions",
    "mpt": "ALiBi positions",
    "mixtral": "a mixture of experts",
    "qwen3_moe": "a mixture of experts",
    "gpt_oss": "a mixture of experts",
    "gemma2": r"soft-capped logits \(final_logit_softcapping 30.0\)",
    "cohere": r"scaled logits \(logit_scale 0.0625\)",
    "minicpm3": "scaled logits",
    "falcon_h1": "layers of the kind hybrid",
    "mamba": "layers of the kind linear_attention",
    "qwen3_5_text": "layers of the kind linear_attention",
    "qwen3_5": "a composite of several models",
    "gemma3": "a composite of several models",
    "musicgen": "a composite of several models",
    "bert": "an architecture that was never tested",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_be_scored_wrong_is_refused_by_name(kind):
    with pytest.raises(ConfigError, match=f"{REFUSED[kind]}.*, which is not supported. Give .*llama, mistral") as error:
        check_architecture(small_config(kind), "base")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("falcon", {"alibi": True}, "ALiBi"),
        ("gpt2", {"add_cross_attention": True}, "cross-attention"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "attention to later tokens"),
        ("gemma3_text", {"final_logit_softcapping": 5.0}, "soft-capped logits"),
        ("llama", {"logit_scale": 2.0}, "scaled logits"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantised weights"),
    ],
)
def test_settings_that_would_be_scored_wrong_are_refused(kind, settings, words):
    with pytest.raises(ConfigError, match=words):
        check_architecture(small_config(kind, **settings), "base")


@pytest.mark.parametrize(
    ("kind", "settings", "most"),
    [
        ("llama", {}, None),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 8}, None),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 20}, 20),
        ("mistral", {"sliding_window": 20}, 20),
        ("gemma3_text", {"sliding_window": 20}, 20),
        ("gpt2", {"n_positions": 20}, 20),
        ("opt", {"max_position_embeddings": 20}, 20),
        (
            "llama",
            {
                "max_position_embeddings": 20,
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
            },
            20,
        ),
    ],
)
def test_sequences_are_as_long_as_a_model_scores_right(kind, settings, most):
    model = small_model(small_config(kind, **settings))
    assert longest_sequence(model.config) == most
    trie = Trie.build(np.random.default_rng(0).integers(0, 6, (40, 3)), token_ids(3, 6))
    prompt = [3 + position % (VOCABULARY - 3) for position in range((most or 60) - 3)]
    (found,) = lists(beam_search(model, [prompt], trie, trie.n_sids))
    wanted = sid_scores(model, prompt, trie)[torch.tensor([sid for sid, _ in found])]
    assert close(torch.tensor([score for _, score in found]), wanted)
    if most is not None:
        with pytest.raises(ConfigError, match=r"sequences of 21 tokens.* end at 20\. Give prompts 1 tokens shorter"):
            beam_search(model, [[*prompt, 3]], trie, 5)
