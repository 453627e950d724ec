"""TIGER's model and branches, held against T5 of transformers: shapes, scores, searches, stock generation."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from support.decoding import AllowedTokens, lists, random_trie, stock_generate, token_ids
from support.devices import same_lists
from support.rounding import assert_best, assert_near
from support.scripts import benchmark
from transformers import PrefixConstrainedLogitsProcessor, T5Config, T5ForConditionalGeneration

from minionerec.contrib.generative_baselines.tiger import TigerConfig, TigerModel, sid_tokenizer
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.decoder import decode_prompts, fitting_batch_size
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.layers import Dropout, replace_dropout
from minionerec.sid.table import SidTable

stock_search = benchmark("stock").stock_search

SHAPE = {"vocab_size": 64, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}
PROMPTS = [[5, 6, 7, 1], [9, 1], [*range(8, 40), 1], [5, 6, 7, 1]]


def tiny(seed=0, **changes):
    torch.manual_seed(seed)
    return TigerModel(TigerConfig(**{**SHAPE, "initializer_factor": 2.0, **changes})).eval()


def trie_of(levels, n=60, seed=0):
    """A random trie of 3 or 4 levels, or "mixed": some SIDs are shorter, none begins another."""
    if levels != "mixed":
        return random_trie(np.random.default_rng(seed), levels=levels, size=6, n=n)[0]
    codes = np.unique(np.random.default_rng(seed).integers(0, 6, (n, 4)), axis=0)
    codes[codes[:, 0] < 3, 3] = -1
    return Trie.build(codes, token_ids(4, 6))


def tokens_of(trie):
    rows, tokens = trie.codes().tolist(), trie.code_tokens.tolist()
    return [[tokens[level][code] for level, code in enumerate(row) if code >= 0] for row in rows]


def brute_force(model, prompt, trie):
    """Each SID's log-probability by the whole model of transformers in float64, as often as there are SIDs: (S,)."""
    sids = tokens_of(trie)
    reported = torch.tensor([[0, *tokens[:-1]] + [0] * (trie.levels - len(tokens)) for tokens in sids])
    with torch.no_grad():
        exact = deepcopy(model).double()
        logits = exact(input_ids=torch.tensor([prompt] * len(sids)), decoder_input_ids=reported).logits
    scores = zip(logits.log_softmax(-1), sids, strict=True)
    return np.array([float(row[torch.arange(len(tokens)), tokens].sum()) for row, tokens in scores])


def test_the_published_shape_is_the_default():
    config = TigerConfig()
    shape = (config.d_model, config.d_kv, config.d_ff, config.num_layers, config.num_decoder_layers, config.num_heads)
    assert shape == (128, 64, 1024, 4, 4, 6)
    assert (config.feed_forward_proj, config.dropout_rate, config.decoder_start_token_id) == ("relu", 0.1, 0)


@pytest.mark.parametrize(
    ("vocabulary", "width", "parameters"),
    [
        (562, 128, 4_531_584),
        (1_025, 128, 4_590_848),
        (1_027, 128, 4_591_104),
        (3_026, 128, 4_846_976),
        (3_026, 384, 14_540_160),
        (1_025, 384, 13_771_776),
        (33_093, 128, 8_695_552),
    ],
)
def test_numbers_of_parameters(vocabulary, width, parameters):
    with torch.device("meta"):
        model = TigerModel(TigerConfig(vocab_size=vocabulary, d_model=width))
    assert model.num_parameters() == parameters
    if width == 128:
        for stack, size in ((model.encoder, 1_836_352), (model.decoder, 2_623_296)):
            assert sum(p.numel() for name, p in stack.named_parameters() if "embed" not in name) == size


def test_the_vocabulary_is_pad_end_and_the_codes():
    tokenizer = sid_tokenizer(SidTable(np.array([[0, 1, 0], [2, 1, 5], [2, 0, 5]]), list("xyz")))
    assert len(tokenizer) == 2 + 2 + 2 + 2
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token) == (0, 1, None)
    assert tokenizer("<a_2><b_0><c_5><|eos|>")["input_ids"] == [3, 4, 7, 1]


@pytest.mark.parametrize("scaled", [True, False])
def test_scores_along_a_path_are_those_of_t5(scaled):
    model = tiny(tie_word_embeddings=scaled, initializer_factor=1.0)
    assert model.config.scale_decoder_outputs == scaled
    plain = T5ForConditionalGeneration(T5Config(**SHAPE, decoder_start_token_id=0, tie_word_embeddings=scaled)).eval()
    plain.load_state_dict(model.state_dict())
    plain.double()
    trie = trie_of(4)
    path = torch.tensor([[5, 12, 20, 27]] * len(PROMPTS))
    with torch.no_grad():
        branches = model.branches(PROMPTS, trie)
        states = [branches.hidden.unsqueeze(1)]
        for depth in range(3):
            # A second branch beside it, which ends where it began, moves the slots apart.
            tokens = torch.stack([torch.full((len(PROMPTS),), 33), path[:, depth]], 1)
            parents = torch.full_like(tokens, -1) if depth == 0 else tokens.new_tensor([[-1, 2 * depth - 1]] * 4)
            states.append(branches.run(tokens, parents, torch.tensor([[0, depth]] * len(PROMPTS)))[:, 1:])
        everything = torch.arange(64).expand(len(PROMPTS), 1, 64)
        allowed = torch.ones_like(everything).bool()
        ours = torch.cat([branches.scores(state, everything, allowed) for state in states], 1)
        for row, prompt in enumerate(PROMPTS):
            asked = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([[0, *path[row, :3]]])}
            wanted = plain(**asked).logits[0].log_softmax(-1)
            assert_near(ours[row], wanted)


@pytest.mark.parametrize("levels", [3, 4, "mixed"])
def test_searches_find_what_enumeration_finds(levels):
    model, trie = tiny(seed=1), trie_of(levels)
    beam = beam_search(model, PROMPTS, trie, trie.n_sids)
    exact = exact_search(model, PROMPTS, trie, 9, at_once=3)
    shares = beam_search(model, PROMPTS, trie, trie.n_sids, "renormalised").scores.double().exp().sum(1)
    assert shares.tolist() == pytest.approx([1.0] * len(PROMPTS), abs=1e-5)
    for prompt, whole, best in zip(PROMPTS, lists(beam), lists(exact), strict=True):
        wanted = brute_force(model, prompt, trie)
        assert_best(whole, wanted)
        assert_best(best, wanted, 9)


@pytest.mark.parametrize("levels", [3, 4, "mixed"])
@pytest.mark.parametrize("beams", [4, 25])
def test_beams_are_those_of_stock_generate(levels, beams):
    model, trie, end = tiny(seed=beams), trie_of(levels), 60
    ended = [[*tokens, end] for tokens in tokens_of(trie)]
    allowed = AllowedTokens(ended, 1).allowed

    def may_follow(_, ids):
        reported = tuple(ids[1:].tolist())  # 0 may where stock search fills up its beams
        return sorted(allowed.get(reported, {end} if end in reported else {0}))

    ours = beam_search(model, PROMPTS, trie.with_tail([end]), beams)
    stock = stock_search(model, PROMPTS, trie, beams, [end])
    processor = PrefixConstrainedLogitsProcessor(may_follow, beams)
    output = stock_generate(model, PROMPTS, beams, 5, processor, early_stopping="never", eos_token_id=end)
    for row in range(len(PROMPTS)):
        rows = slice(row * beams, (row + 1) * beams)
        lists = zip(output.sequences[rows].tolist(), output.sequences_scores[rows].tolist(), strict=True)
        found = [
            (ended.index(tokens), score)
            for sequence, score in lists
            if (tokens := sequence[1 : sequence.index(end) + 1] if end in sequence else []) in ended
        ]
        assert ours.sids[row].tolist() == stock.sids[row].tolist() == [number for number, _ in found]
        scores = [score for _, score in found]
        assert_near(ours.scores[row], scores)
        assert_near(stock.scores[row], scores)


def test_the_encoder_reads_each_distinct_prompt_once():
    model, trie = tiny(), trie_of(3)
    read = []
    hook = lambda module, args, kwargs, out: read.append(len(kwargs["input_ids"]))  # noqa: E731
    model.encoder.register_forward_hook(hook, with_kwargs=True)
    plain = beam_search(model, PROMPTS, trie, 10)
    allowed = torch.ones(len(PROMPTS), trie.n_sids, dtype=torch.bool)
    allowed[3, plain.sids[3, 0]] = False
    guided = beam_search(model, PROMPTS, trie, 10, guide=Guide.of(trie, allowed))
    assert read == [3, 3]
    assert guided.sids[0].tolist() == plain.sids[0].tolist()
    assert guided.sids[3, :8].tolist() == plain.sids[3, 1:9].tolist()


def test_batches_and_paddings_change_nothing():
    model, trie = tiny(), trie_of(4)
    together = decode_prompts(model, PROMPTS, trie, 12, batch_size=4)
    alone = decode_prompts(model, PROMPTS, trie, 12, batch_size=1)
    assert same_lists(together, alone)


def test_how_many_prompts_fit():
    model, trie = tiny(), trie_of(3)
    span, tokens, fan = 30 + 20 * 2, 30, max(trie.widths)
    values = 2 * 2 * 4 * 8 * span + 4 * 4 * 8 * span + tokens * (6 * 24 + 4 * 40) + 4 * tokens * span + 12 * 20 * fan
    assert fitting_batch_size(model, trie, [[1] * 30] * 33, 20, 2 * 4 * values * 8) == 8
    assert fitting_batch_size(model, trie, [[1] * 30] * 33, 20, 2 * 4 * values * 8 - 1) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pad_token_id": 64}, "pad_token_id is 64, but there are 64 tokens"),
        ({"pad_token_id": None}, "pad_token_id is None"),
        ({"relative_attention_max_distance": 16}, "relative_attention_num_buckets is 32, expected from 4 to less"),
    ],
)
def test_shapes_that_cannot_work_are_reported(changes, words):
    with pytest.raises(ValueError, match=words):
        TigerConfig(**{**SHAPE, **changes})


def test_dropout_replaces_torchs():
    model = replace_dropout(tiny(dropout_rate=0.25).train())
    found = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    assert {type(module) for module in found} == {Dropout} and {module.p for module in found} == {0.25}
    assert all(module.training for module in found) and not any(m.training for m in model.eval().modules())
