"""The lists of every search on a GPU are those of the CPU."""

import numpy as np
import pytest
import torch
from support.decoding import exact_prompts, random_trie, tiny_model
from support.devices import CPU, TIGER, catalogue, same_lists, shop_of
from support.scripts import benchmark

from minionerec.contrib.generative_baselines.tiger import build_tiger
from minionerec.models.backbone.catalogue import blocks
from minionerec.models.decoding.beam import beam_search, sample_search
from minionerec.models.decoding.decoder import decode_prompts
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.leaves import LeafModel, Mixture, rerank
from minionerec.models.decoding.trie import Trie

stock_search = benchmark("stock").stock_search
K = 12


def some_prompts(rng, count=9, most=20, size=64):
    return [rng.integers(5, size, rng.integers(1, most)).tolist() for _ in range(count)]


@pytest.fixture
def both(device):
    """A language model on the CPU, the same on the device, prompts, and a trie."""
    rng = np.random.default_rng(1)
    trie, _ = random_trie(rng, n=120)
    return tiny_model(), tiny_model().to(device), some_prompts(rng), trie


@pytest.mark.parametrize("normaliser", ["full", "renormalised"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_beam_search(device, family, normaliser):
    rng = np.random.default_rng(2)
    trie, _ = random_trie(rng, n=120)
    prompts = some_prompts(rng)
    found = [
        decode_prompts(tiny_model(family, attention=kind).to(folder), prompts, trie, K, normaliser=normaliser)
        for kind in ("sdpa", "eager")
        for folder in (CPU, device)
    ]
    assert all(same_lists(one, found[0]) for one in found[1:])


def lists_of(result):
    return result.sids.cpu(), result.scores.cpu()


def test_exact_search(both):
    *models, prompts, trie = both
    assert same_lists(*(exact_prompts(model, prompts, trie, K, at_once=4) for model in models))


def test_stock_search(both):
    *models, prompts, trie = both
    assert same_lists(*(lists_of(stock_search(model, prompts, trie, K)) for model in models))


@pytest.mark.parametrize("search", [beam_search, exact_search])
def test_filters_and_a_bonus(both, search):
    *models, prompts, trie = both
    rng = np.random.default_rng(3)
    allowed = torch.from_numpy(rng.random((len(prompts), trie.n_sids)) < 0.3)
    bonus = torch.from_numpy(rng.normal(size=trie.n_sids).astype(np.float32))
    guides = [Guide.of(trie.to(model.device), allowed, bonus) for model in models]
    found = [search(model, prompts, trie, K, guide=guide) for model, guide in zip(models, guides, strict=True)]
    assert same_lists(*map(lists_of, found))


def test_sampling_draws_the_same(both):
    *models, prompts, trie = both
    seeded = [(model, torch.Generator().manual_seed(4)) for model in models]
    found = [sample_search(model, prompts, trie, K, generator=generator) for model, generator in seeded]
    assert torch.equal(*(result.sids.cpu() for result in found))


def test_a_mixture(both):
    model, moved, prompts, trie = both
    scores = torch.randn(len(prompts), trie.n_sids, generator=torch.Generator().manual_seed(5)).log_softmax(-1)
    found = []
    for one in (model, moved):
        other = scores.to(one.device)
        mixture = Mixture(one, LeafModel(other, one.config.vocab_size), 0.6)
        mixed = [beam_search(mixture, prompts, trie, K), exact_search(mixture, prompts, trie, K)]
        mixed.append(rerank(beam_search(one, prompts, trie, K), other, 0.6))
        found.append([lists_of(each) for each in mixed])
    assert all(same_lists(mine, theirs) for mine, theirs in zip(*found, strict=True))


@pytest.fixture(scope="module")
def shop():
    return shop_of()


@pytest.mark.parametrize("at_once", [65_536, 7], ids=["whole", "by blocks"])
def test_the_catalogue_model(shop, device, monkeypatch, at_once):
    monkeypatch.setattr(blocks, "SIDS_AT_ONCE", at_once)
    table, _, ids, prompts = shop
    trie = Trie.build(table.codes, ids)
    models = [catalogue(shop), catalogue(shop).to(device)]
    for search in (decode_prompts, exact_prompts):
        found = [search(model, prompts, trie, K) for model in models]
        assert same_lists(*found)
        for model in models:
            model.freeze()
        assert all(same_lists(search(model, prompts, trie, K), found[0]) for model in models)
    # Whole distributions, and what stock `generate` reads.
    tokens = [torch.tensor(prompts[3]).unsqueeze(0).to(model.device) for model in models]
    logits = [model(input_ids=ids).logits.detach().cpu() for model, ids in zip(models, tokens, strict=True)]
    assert torch.allclose(*logits, atol=1e-3)


def test_tiger(shop, device):
    table, tokenizer, ids, prompts = shop
    trie = Trie.build(table.codes, ids)
    models = [build_tiger(tokenizer, 9, **TIGER).eval().to(folder) for folder in (CPU, device)]
    for search in (decode_prompts, exact_prompts):
        assert same_lists(*(search(model, prompts, trie, K) for model in models))


def test_half_precision_generates_too(both, device):
    """Weights in bfloat16, and float32 ones under autocast: whole lists of the catalogue, and numbers."""
    _, moved, prompts, trie = both
    with torch.autocast(device.type, torch.bfloat16):
        mixed = decode_prompts(moved, prompts, trie, K)
    half = decode_prompts(moved.to(torch.bfloat16), prompts, trie, K)
    for sids, scores in (mixed, half):
        assert (sids >= 0).all() and np.isfinite(scores).all() and (np.diff(scores) <= 0).all()
        assert all(len(set(row)) == K for row in sids.tolist())
