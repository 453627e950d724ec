"""The trie as a processor for stock `generate`, against a dictionary of prefixes and against our own beam search."""

import numpy as np
import pytest
import torch
from support.decoding import AllowedTokens, lists
from support.scripts import benchmark
from transformers import GenerationConfig, LogitsProcessorList, Qwen2Config, Qwen2ForCausalLM

from minionerec.core.errors import DataError
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.trie import Trie

TrieLogitsProcessor = benchmark("stock").TrieLogitsProcessor

VOCABULARY, END = 64, 63


def tiny(seed=0):
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
            initializer_range=0.4,
        )
    ).eval()


def ids(levels, size):
    return np.arange(levels * size).reshape(levels, size) + 5


def generate(model, prompts, processor, beams, steps, end=None):
    output = model.generate(
        torch.tensor(prompts),
        attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.long),
        generation_config=GenerationConfig(
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=steps,
            do_sample=False,
            length_penalty=0.0,
            eos_token_id=end,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        ),
        logits_processor=LogitsProcessorList([processor]),
    )
    scores = output.sequences_scores.tolist() if beams > 1 else [0.0] * len(prompts)
    found = zip(output.sequences[:, len(prompts[0]) :].tolist(), scores, strict=True)
    return [(tokens, score) for tokens, score in found if score > -1e8]


@pytest.mark.parametrize("beams", [2, 9, 40])
@pytest.mark.parametrize("n", [1, 3, 50])
def test_stock_search_gives_the_same_with_a_dictionary_and_with_the_trie(beams, n):
    rng = np.random.default_rng(n)
    model = tiny()
    trie = Trie.build(rng.integers(0, 6, (n, 3)), ids(3, 6))
    sequences = [[int(ids(3, 6)[level, code]) for level, code in enumerate(row)] for row in trie.codes()]
    prompts = rng.integers(0, VOCABULARY, (2, 5)).tolist()
    wanted = generate(model, prompts, AllowedTokens(sequences, 5), beams, 3)
    assert generate(model, prompts, TrieLogitsProcessor(trie, 5, num_beams=beams), beams, 3) == wanted


@pytest.mark.parametrize("tail", [[END], [7, END]])
def test_stock_search_to_an_end_token_gives_what_ours_gives_with_a_scored_tail(tail):
    rng = np.random.default_rng(5)
    model = tiny(seed=2)
    codes = rng.integers(0, 5, (60, 4))
    codes[rng.random(60) < 0.5, 3] = -1  # some SIDs begin others
    trie = Trie.build(codes, ids(4, 5))
    prompt = rng.integers(0, VOCABULARY, 6).tolist()
    processor = TrieLogitsProcessor(trie, 6, tail, num_beams=8)
    found = generate(model, [prompt], processor, 8, 4 + len(tail), END)
    ours = lists(beam_search(model, [prompt], trie.with_tail(tail), 8))[0]
    text = {
        number: [int(ids(4, 5)[level, code]) for level, code in enumerate(row) if code >= 0] + tail
        for number, row in enumerate(trie.codes())
    }
    assert [tokens[: tokens.index(END) + 1] for tokens, _ in found] == [text[sid] for sid, _ in ours]
    assert [score for _, score in found] == pytest.approx([score for _, score in ours], abs=1e-4)


def test_greedy_rows_that_end_early_wait_for_the_others():
    model = tiny(seed=3)
    trie = Trie.build(np.array([[0, -1, -1], [1, 2, 3], [2, 2, -1]]), ids(3, 4))
    prompts = np.random.default_rng(0).integers(0, VOCABULARY, (40, 3)).tolist()
    found = generate(model, prompts, TrieLogitsProcessor(trie, 3, [END]), 1, 4, END)
    rows = {tuple(t for t in tokens if t not in (0, END)) for tokens, _ in found}
    assert rows <= {(5,), (6, 11, 16), (7, 11)} and len(rows) > 1


def test_places_are_found_by_position_alone():
    trie = Trie.build(np.array([[0, 1], [0, 2], [3, 0]]), ids(2, 4))
    processor = TrieLogitsProcessor(trie, 2, [END])
    rows = torch.tensor([[5, 10, 5, 10, END], [5, 10, 5, 11, END], [5, 10, 8, 10, END], [5, 10, 5, 10, 5]])
    assert processor.nodes_of(rows[:, :2]).tolist() == [0, 0, 0, 0]
    assert processor.nodes_of(rows[:, :3]).tolist() == [1, 1, 2, 1]
    assert (processor.nodes_of(rows[:, :4]) > 0).tolist() == [True, True, False, True]
    ended = processor.nodes_of(rows)
    assert (processor.trie.sid[ended.clamp(min=0)] >= 0).tolist() == [True, True, False, False]
    scores = torch.zeros(4, VOCABULARY)
    for length in (3, 2, 3):  # neither order nor repetition of the calls matters
        masked = processor(rows[:, :length][:2], scores[:2])
        allowed = [row.isfinite().nonzero().flatten().tolist() for row in masked]
        assert allowed == ([[10, 11], [10, 11]] if length == 3 else [[5, 8], [5, 8]])


def test_an_empty_allowed_set_raises_with_its_row():
    trie = Trie.build(np.array([[0, 1], [0, 2], [3, 0]]), ids(2, 4))
    scores = torch.zeros(2, VOCABULARY)
    alone = TrieLogitsProcessor(trie, 1)
    with pytest.raises(DataError, match=r"row 1 of the batch: no token may follow \[40\] behind a prompt of 1 tokens"):
        alone(torch.tensor([[9, 5], [9, 40]]), scores)
    with pytest.raises(DataError, match=r"row 0 of the batch: no token may follow \[5, 10\]"):
        alone(torch.tensor([[9, 5, 10], [9, 5, 11]]), scores)
    beams = TrieLogitsProcessor(trie, 1, num_beams=2)
    masked = beams(torch.tensor([[9, 5], [9, 40]]), scores)
    assert masked[0].isfinite().nonzero().flatten().tolist() == [10, 11] and not masked[1].isfinite().any()
    with pytest.raises(DataError, match=r"row 0 of the batch: no token may follow \[41\]"):
        beams(torch.tensor([[9, 41], [9, 40]]), scores)
