"""Tiny language models and tries."""

from copy import deepcopy

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig, LogitsProcessor, LogitsProcessorList

from minionerec.models.decoding.branches import evaluating
from minionerec.models.decoding.decoder import length_batches
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.trie import Trie

VOCABULARY = 64
FAMILIES = ("qwen2", "qwen3", "llama")


def tiny_model(family="qwen2", tied=False, attention="sdpa", seed=0, **settings):
    torch.manual_seed(seed)
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "initializer_range": 0.4}
    config = CONFIG_MAPPING[family](**{**shape, **settings}, tie_word_embeddings=tied)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def token_ids(levels, size):
    return np.arange(levels * size).reshape(levels, size) + 5


def random_trie(rng, levels=3, size=8, n=None):
    codes = rng.integers(0, size, (n or int(rng.integers(1, 150)), levels))
    return Trie.build(codes, token_ids(levels, size)), np.unique(codes, axis=0)


def lists(result):
    """Of a beam result, one list of (SID number, score) for each prompt, without the empty entries."""
    return [
        [(sid, score) for sid, score in zip(sids, scores, strict=True) if sid >= 0]
        for sids, scores in zip(result.sids.tolist(), result.scores.tolist(), strict=True)
    ]


def sid_scores(model, prompt, trie):
    """Log-probability of every SID behind a prompt, float64 (S,), each a whole sequence of one pass in that type."""
    paths = trie.paths[:, 1:]
    tokens = trie.token[paths.clamp(min=0)].clamp(min=0)
    with torch.no_grad():
        logits = deepcopy(model).double()(torch.cat([torch.tensor([prompt]).expand(len(paths), -1), tokens], 1)).logits
    steps = logits[:, len(prompt) - 1 : -1].log_softmax(-1).gather(2, tokens.unsqueeze(2)).squeeze(2)
    return steps.masked_fill(paths < 0, 0).sum(1)


def stock_generate(model, prompts, beams, steps, processor=None, **settings):
    """The output of the library's own `generate` with beams; shorter prompts have 0 before them."""
    width = max(map(len, prompts))
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    plain = {"do_sample": False, "length_penalty": 0.0, "pad_token_id": 0, "eos_token_id": None}
    plain |= {"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": steps}
    plain |= {"return_dict_in_generate": True, "output_scores": True}
    return model.generate(
        torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]),
        attention_mask=torch.tensor(mask),
        generation_config=GenerationConfig(**{**plain, **settings}),
        logits_processor=LogitsProcessorList([] if processor is None else [processor]),
    )


class AllowedTokens(LogitsProcessor):
    """The plainest constraint: a dictionary from what was said to what may follow."""

    def __init__(self, sequences, start):
        self.start, self.allowed = start, {}
        for tokens in sequences:
            for depth, token in enumerate(tokens):
                self.allowed.setdefault(tuple(tokens[:depth]), set()).add(token)

    def __call__(self, input_ids, scores):
        masked = torch.full_like(scores, -torch.inf)
        for row, ids in enumerate(input_ids.tolist()):
            allowed = list(self.allowed.get(tuple(ids[self.start :]), ()))
            masked[row, allowed] = scores[row, allowed]
        return masked


def exact_prompts(model, prompts, trie, k, *, batch_size=8, normaliser="full", at_once=32):
    """`exact_search` for many prompts: SID numbers (R, K), scores (R, K), and prefixes opened (R,), in prompt order."""
    sids = np.full((len(prompts), k), -1, dtype=np.int64)
    scores = np.full((len(prompts), k), -np.inf, dtype=np.float32)
    opened = np.zeros(len(prompts), dtype=np.int64)
    batches = length_batches(prompts, batch_size)
    with evaluating(model):
        for batch in batches:
            result = exact_search(model, [prompts[position] for position in batch], trie, k, normaliser, at_once)
            sids[batch], scores[batch] = result.sids.cpu().numpy(), result.scores.float().cpu().numpy()
            opened[batch] = result.opened.cpu().numpy()
    return sids, scores, opened
