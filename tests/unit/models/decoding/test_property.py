"""Random models, tries, prompts and beams: ours against stock `generate`, exact search against enumeration."""

from functools import cache, partial

import numpy as np
import pytest
import torch
from support.decoding import FAMILIES, AllowedTokens, lists, sid_scores, stock_generate, tiny_model
from support.rounding import assert_best, assert_near, rounding

from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.trie import Trie

VOCABULARY, TAIL = 320, [3, 1]
tiny = cache(partial(tiny_model, vocab_size=VOCABULARY))


def case(seed):
    """Model, SIDs as tokens (in the order of their numbers), trie, prompts and beam width of one random case."""
    rng = np.random.default_rng(seed)
    family, attention = [*FAMILIES][int(rng.integers(3))], ("sdpa", "eager")[int(rng.integers(2))]
    model = tiny(family, bool(rng.integers(2)), attention, seed % 4)
    levels = int(rng.integers(1, 5))
    size = int(rng.integers(1, 300 // levels))
    n = int(np.exp(rng.uniform(0, np.log(5000))))
    codes = rng.integers(0, size, (n, levels))
    uneven = levels > 1 and rng.random() < 0.3
    if uneven:
        codes[rng.random(n) < 0.4, -1] = -1
    ids = rng.permutation(np.arange(4, VOCABULARY))[: levels * size].reshape(levels, size)
    trie = Trie.build(codes, ids)
    tail = TAIL if uneven else []
    sequences = [[int(ids[level, code]) for level, code in enumerate(row) if code >= 0] + tail for row in trie.codes()]
    prompts = [rng.integers(4, VOCABULARY, int(rng.integers(1, 81))).tolist() for _ in range(int(rng.integers(1, 4)))]
    return model, sequences, trie.with_tail(tail), prompts, int(rng.integers(1, 65))


def stock(model, sequences, prompts, beams):
    width = max(map(len, prompts))
    end = TAIL[-1] if sequences[0][-1] == TAIL[-1] else None
    steps = max(map(len, sequences))
    output = stock_generate(model, prompts, beams, steps, AllowedTokens(sequences, width), eos_token_id=end)
    if beams == 1:
        scores = torch.stack(output.scores, 1).amax(-1) * 0  # greedy search tells no score
        scores = scores.sum(1).tolist()
    else:
        scores = output.sequences_scores.tolist()
    found = [
        (tokens[: tokens.index(TAIL[-1]) + 1] if TAIL[-1] in tokens else tokens, score)  # padding behind the end
        for tokens, score in zip(output.sequences[:, width:].tolist(), scores, strict=True)
    ]
    groups = [found[row * beams : (row + 1) * beams] for row in range(len(prompts))]
    return [[(tokens, score) for tokens, score in group if score > -1e8] for group in groups]


def check_beam(seed):
    """Whether the lists are the same; fails where they differ by more than the order of rounding-equal scores."""
    model, sequences, trie, prompts, beams = case(seed)
    same = True
    for prompt, listed, wanted in zip(
        prompts, lists(beam_search(model, prompts, trie, beams)), stock(model, sequences, prompts, beams), strict=True
    ):
        got = [(sequences[sid], score) for sid, score in listed]
        assert len(got) == len(wanted) == min(beams, len(sequences)), (seed, prompt)
        if beams == 1:
            assert got[0][0] == wanted[0][0], seed
            continue
        best = [score for _, score in wanted]
        assert_near([score for _, score in got], best)
        for (ours, _), (theirs, their_score) in zip(got, wanted, strict=True):
            if ours != theirs:
                same = False
                rivals = [other for tokens, other in wanted if tokens == ours] or [wanted[-1][1]]
                assert abs(rivals[0] - their_score) < rounding(best), seed
    return same


def check_exact(seed):
    model, sequences, trie, prompts, k = case(seed)
    if len(sequences) > 400:
        return
    result = exact_search(model, prompts, trie, k, at_once=1 + seed % 40)
    for prompt, listed in zip(prompts, lists(result), strict=True):
        scores = sid_scores(model, prompt, trie).numpy()
        assert_best(listed, scores, k)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_sixty_random_cases(first):
    same = [check_beam(seed) for seed in range(first, first + 20)]
    assert np.mean(same) >= 0.9
    for seed in range(first, first + 20):
        check_exact(seed)


@pytest.mark.slow
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("first", range(1000, 2100, 100))
def test_eleven_hundred_random_cases(first):
    same = [check_beam(seed) for seed in range(first, first + 100)]
    print(f"cases {first} to {first + 99}: {int(np.sum(same))} of 100 identical at every rank")
    assert np.mean(same) >= 0.95
    for seed in range(first, first + 100):
        check_exact(seed)
