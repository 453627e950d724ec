"""The catalogue model: its distribution, what its counts leave out, and every way to decode it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from support.catalogue import OFF, random_catalogue
from support.decoding import stock_generate, token_ids
from support.devices import same_lists
from support.gaps import LATER, SAME
from transformers import AutoModelForCausalLM

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.names import UNKNOWN
from minionerec.data.transitions import count_transitions
from minionerec.models.backbone.catalogue import CatalogueConfig, build_catalogue
from minionerec.models.decoding.beam import beam_search, sample_search
from minionerec.models.decoding.decoder import decode_prompts
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.trie import Trie

CODES = np.array([[0, 0, 0], [0, 0, 1], [0, 0, 3], [0, 1, 0], [0, 2, 2], [1, 0, 1], [1, 0, 2], [1, 2, 0], [2, 1, 1]])
N = len(CODES)
TOKENS = token_ids(3, 4)  # vocabulary ids from 5 on
VOCABULARY = 20
WORDS = (1, 2, 3, 4)  # tokens that are no codes
REACH, DECAY = 4, 0.6
MARKS = {UNKNOWN: [], SAME: [18], LATER: [19]}
CONDITIONED = {"context_tokens": [[18, 19]]}
SEEN = np.array([[1, 2, 3, 4, 5], [3, 2, 1, 0, 0], [5, 5, 2, 8, 1], [8, 6, 7, 2, 0]])
FOLLOWED = np.array([[2, 3, 4, 5, 6], [2, 1, 8, 0, 0], [5, 2, 8, 1, 3], [6, 7, 2, 5, 0]])


def tiny(transitions=None, codes=CODES, **changes):
    return random_catalogue(codes, TOKENS, transitions, **{"vocab_size": VOCABULARY, **changes})


def counts_of(histories, targets, reverse=0.3, size=N):
    return count_transitions([(np.asarray(histories), np.asarray(targets))], size, REACH, DECAY, reverse)


def counting(**changes):
    return tiny(counts_of(SEEN, FOLLOWED), reverse=0.3, **changes)


@pytest.fixture(scope="module")
def model():
    return counting(towers=2)


@pytest.fixture(scope="module", params=[{}, CONDITIONED], ids=["plain", "conditioned"])
def either(request):
    """That model, and one that is conditioned on the gap; marks are words to the plain one."""
    return counting(towers=2, **request.param)


def histories(*rows, width=None):
    """Histories as one tensor, padded on the right."""
    width = width or max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


def prompt(*sids, words=False):
    """The tokens of SIDs (from 1), other tokens between them if wanted."""
    ids = []
    for position, sid in enumerate(sids):
        ids += [WORDS[position % 4]] * words + [int(TOKENS[level, code]) for level, code in enumerate(CODES[sid - 1])]
    return [*ids, *[WORDS[0]] * (words or not ids)]


def trie():
    return Trie.build(CODES, TOKENS)


windows = st.lists(st.lists(st.integers(1, N), min_size=2, max_size=7), min_size=1, max_size=4)


@pytest.mark.parametrize("reverse", [0.0, 0.3])
@settings(max_examples=25)
@given(window=st.lists(st.integers(1, N), min_size=2, max_size=7), others=windows)
def test_a_position_does_not_see_its_own_answer_in_the_counts(reverse, window, others):
    """In a training window, each position has the scores of counts made without its own and later targets.

    How common an item is stays as stored. The oracle gets the same totals by one SID more, which never sold and takes
    the pairs that are missing; all is compared among the other SIDs.
    """
    codes = np.vstack([CODES, [[2, 2, 3]]])  # sorts last
    rows = [window, *others]
    width = max(map(len, rows)) - 1
    seen, followed = np.zeros((2, len(rows), width), dtype=np.int64)
    for position, row in enumerate(rows):
        seen[position, : len(row) - 1], followed[position, : len(row) - 1] = row[:-1], row[1:]

    def built(targets):
        return counts_of(seen, targets, reverse, N + 1).toarray()

    whole = built(followed)
    labels = np.where(followed[:1] > 0, followed[:1], -100)
    model = tiny(csr_array(whole), codes=codes, reverse=reverse)
    steps = len(window) - 1
    items, wanted = torch.from_numpy(seen[:1]), torch.from_numpy(labels)
    found = model(histories=items, labels=wanted, distribution=True, leave_out=True).logits
    assert found.shape == (steps, N + 1)
    plain = model(histories=items, labels=wanted, distribution=True).logits
    differs = False
    for step in range(steps):
        targets = followed.copy()
        targets[0, step:] = 0
        rest = built(targets)
        rest[:, N] += whole.sum(1) - rest.sum(1)
        oracle = tiny(csr_array(rest), codes=codes, reverse=reverse).leaf_log_probs(items[:, : step + 1])[0, :N]
        assert torch.allclose(found[step, :N].log_softmax(0), oracle.log_softmax(0), atol=1e-4)
        differs |= not torch.allclose(plain[step, :N].log_softmax(0), oracle.log_softmax(0), atol=1e-4)
    assert differs


def test_counts_are_looked_up_as_documented():
    """Gain times log(1 + e^b A), A summed by hand over items and distances."""
    model = counting()
    tower = model.towers[0].history
    dense = counts_of(SEEN, FOLLOWED).toarray().astype(np.float64)
    with torch.no_grad():
        tower.gain.weight.zero_()
        history = [5, 2, 8, 1, 2]  # one item more than the reach
        with_counts = model.leaf_log_probs(histories(history))[0]
        gain = torch.nn.functional.softplus(tower.gain.bias[0]).item()
        boost = tower.gain.bias[1].exp().item()
        distance = torch.nn.functional.softplus(tower.distance).tolist()
        rarity = (dense.sum(1) + 1) ** -tower.commonness.item()
        found = sum(distance[back] * rarity[sid - 1] * dense[sid - 1] for back, sid in enumerate(history[:0:-1]))
        tower.gain.bias[0] = -1e9  # a gain of 0
        without = model.leaf_log_probs(histories(history))[0]
    expected = (without + torch.tensor(gain * np.log1p(boost * found)).float()).log_softmax(0)
    assert torch.allclose(with_counts, expected, atol=1e-5)


def test_the_pointer_scores_the_items_of_the_history_by_their_distance():
    model = tiny()
    pointer = model.towers[0].history.pointer
    history = [4, 2, 2, 7, 1, 3, 9][-6:]
    with torch.no_grad():
        pointer.weight.zero_()
        found = model.leaf_log_probs(histories(history))[0]
        extra = torch.zeros(N)
        for back, sid in enumerate(reversed(history)):
            extra[sid - 1] += pointer.bias[back]
        pointer.bias.zero_()
        plain = model.leaf_log_probs(histories(history))[0]
    assert torch.allclose(found, (plain + extra).log_softmax(0), atol=1e-5)


def test_a_position_sees_nothing_of_later_items(model):
    labels = torch.tensor([[2, 3, 4, 5, 6]])
    for leave_out in (False, True):
        one, other = (
            model(histories=histories(row), labels=labels, distribution=True, leave_out=leave_out).logits
            for row in ([1, 2, 3, 4, 5], [1, 2, 3, 9, 7])
        )
        assert torch.allclose(one[:3], other[:3], atol=1e-6)
        assert not torch.allclose(one[3], other[3], atol=1e-2)


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(1, N), max_size=6), min_size=1, max_size=4), st.integers(0, 3))
def test_leaves_are_a_distribution_that_padding_does_not_change(rows, more):
    model = counting(towers=2)
    alone = torch.cat([model.leaf_log_probs(histories(row, width=max(1, len(row)))) for row in rows])
    together = model.leaf_log_probs(histories(*rows, width=6 + more))
    assert torch.allclose(alone, together, atol=1e-5)
    assert torch.allclose(together.exp().sum(1), torch.ones(len(rows)), atol=1e-5)
    assert together.dtype == torch.float32 and together.isfinite().all()


def test_loss_is_the_negative_log_probability(model):
    seen, labels = histories([1, 2, 3], [4, 5]), torch.tensor([[2, -100, 9], [1, 7, -100]])
    each = model(histories=seen, labels=labels, distribution=True).logits
    assert each.shape == (4, N)
    one = tiny(seed=4)
    log_probs = one(histories=seen, labels=labels, distribution=True).logits
    wanted = torch.tensor([1, 8, 0, 6])
    own = -log_probs[torch.arange(4), wanted]
    assert one(histories=seen, labels=labels).loss.item() == pytest.approx(own.mean().item(), rel=1e-5)
    loss = one(histories=seen, labels=labels, num_items_in_batch=10).loss
    assert loss.item() == pytest.approx(own.sum().item() / 10, rel=1e-5)
    weights = torch.tensor([[0.5, 7.0, 2.0], [0.0, 3.0, 7.0]])
    loss = one(histories=seen, labels=labels, weights=weights).loss
    assert loss.item() == pytest.approx((own @ weights[labels > 0]).item() / 4, rel=1e-5)


def test_towers_are_averaged_by_their_probabilities_and_trained_side_by_side(model):
    seen = histories([1, 2, 3], [9])
    labels = torch.tensor([[2, 3, 4], [1, -100, -100]])
    whole, loss = model.leaf_log_probs(seen), model(histories=seen, labels=labels).loss
    both = list(model.towers)
    try:
        probabilities, losses = [], []
        for tower in both:
            model.towers = torch.nn.ModuleList([tower])
            probabilities.append(model.leaf_log_probs(seen).exp())
            losses.append(model(histories=seen, labels=labels).loss)
    finally:
        model.towers = torch.nn.ModuleList(both)
    assert not torch.allclose(*probabilities, atol=1e-3)
    assert torch.allclose(whole.exp(), sum(probabilities) / 2, atol=1e-6)
    assert loss.item() == pytest.approx(sum(losses).item() / 2, rel=1e-5)


def test_a_prefix_has_the_mass_below_it(model):
    leaves = model.leaf_log_probs(histories([1, 2, 3], [6]))
    nodes = model.node_log_probs(leaves)
    tree = model.trie
    assert nodes.shape == (2, len(tree.code))
    assert torch.allclose(nodes[:, 0], torch.zeros(2), atol=1e-5)
    for node in range(len(tree.code)):
        children, present = tree.children(torch.tensor([node]))
        below = children[0][present[0]]
        if len(below):
            assert torch.allclose(nodes[:, below].logsumexp(1), nodes[:, node], atol=1e-5)
        else:
            assert torch.allclose(nodes[:, node], leaves[:, tree.sid[node]], atol=1e-5)
    for sid, codes in enumerate(CODES):
        below = (CODES[:, :2] == codes[:2]).all(1)
        node = int(model.trie.paths[sid, 2])
        assert torch.allclose(nodes[:, node], leaves[:, torch.from_numpy(below)].logsumexp(1), atol=1e-5)


HISTORIES = [[1, 2, 3], [9], [], [5, 5, 2, 8], [1, 2, 3], [1, 2, 3], [], [9, 1]]
CONTEXTS = [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, SAME, LATER, SAME, LATER]
PROMPTS = [
    [*prompt(*history, words=row in (1, 3)), *MARKS[context]]
    for row, (history, context) in enumerate(zip(HISTORIES, CONTEXTS, strict=True))
]


def ranked(model):
    with torch.no_grad():
        asked = histories(*HISTORIES, width=6), torch.tensor(CONTEXTS)[:, None]
        return model.leaf_log_probs(*asked).sort(1, descending=True)


@pytest.mark.parametrize("normaliser", ["full", "renormalised"])
def test_searches_with_room_for_all_give_the_models_own_ranking(either, normaliser):
    wanted = ranked(either)
    for found in (
        beam_search(either, PROMPTS, trie(), N, normaliser),
        exact_search(either, PROMPTS, trie(), N, normaliser, at_once=2),
        exact_search(either, PROMPTS, trie(), N, normaliser),
    ):
        assert same_lists((found.sids, found.scores), (wanted.indices, wanted.values))
    log_probs = either.sid_log_probs(PROMPTS, trie())
    assert torch.allclose(log_probs.sort(1, descending=True).values, wanted.values, atol=1e-5)
    best = exact_search(either, PROMPTS, trie(), 3, normaliser, at_once=1)
    assert same_lists((best.sids, best.scores), (wanted.indices[:, :3], wanted.values[:, :3]))
    found = decode_prompts(either, PROMPTS, trie(), N, batch_size=2, normaliser=normaliser)
    assert same_lists(found, (wanted.indices, wanted.values))


def test_a_trie_of_some_sids_is_searched_among_them(either):
    some = np.array([0, 2, 5, 8])
    wanted = ranked(either)
    for normaliser in ("full", "renormalised"):
        found = beam_search(either, PROMPTS[:1], Trie.build(CODES[some], TOKENS), 4, normaliser)
        numbers = torch.from_numpy(some)[found.sids[0]]
        own = either.leaf_log_probs(histories([1, 2, 3]))[0]
        if normaliser == "full":
            assert numbers.tolist() == [sid for sid in wanted.indices[0].tolist() if sid in some]
            assert torch.allclose(found.scores[0], own[numbers], atol=1e-5)
        else:
            assert found.scores[0].exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_samples_have_the_models_probabilities(either):
    generator = torch.Generator().manual_seed(0)
    own = either.leaf_log_probs(histories([1, 2, 3]))[0].double()
    found = sample_search(either, PROMPTS[:1], trie(), N, generator=generator)
    assert sorted(found.sids[0].tolist()) == list(range(N))
    assert torch.allclose(found.scores[0], own[found.sids[0]], atol=1e-5)
    first = sample_search(either, [PROMPTS[0]] * 4000, trie(), 1, generator=generator)
    shares = torch.bincount(first.sids[:, 0], minlength=N) / 4000
    assert torch.allclose(shares.double(), own.exp(), atol=4 * 0.5 / 4000**0.5)


@pytest.mark.parametrize(("row", "cache"), [(0, {}), (4, {}), (5, {}), (5, {"use_cache": False})])
def test_stock_generate_says_the_same(either, cache, row):
    output = stock_generate(either, [PROMPTS[row]], N, 3, **cache)
    number = {tuple(prompt(sid)): sid - 1 for sid in range(1, N + 1)}
    found = [number[tuple(ids)] for ids in output.sequences[:, len(PROMPTS[row]) :].tolist()]
    wanted = ranked(either)
    assert same_lists(([found], output.sequences_scores[None]), (wanted.indices[[row]], wanted.values[[row]]))


def test_logits_after_a_prompt_are_the_steps_through_the_trie(either):
    """At every position, for prompts of different lengths in one batch, padded on the left or not.

    Behind the SID, nothing more is told of the gap.
    """
    sid = 7
    generated = [[*ids, *prompt(sid)] for ids in PROMPTS]
    width = max(map(len, generated))
    padded = torch.tensor([[0] * (width - len(ids)) + ids for ids in generated])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in generated])
    together = either(input_ids=padded, attention_mask=mask).logits
    assert together.shape == (len(PROMPTS), width, VOCABULARY)
    nodes = either.node_log_probs(
        either.leaf_log_probs(histories(*HISTORIES, width=6), torch.tensor(CONTEXTS)[:, None])
    )
    behind = either.node_log_probs(either.leaf_log_probs(histories(*([*row, sid] for row in HISTORIES))))
    path = either.trie.paths[sid - 1].tolist()
    for row, ids in enumerate(generated):
        alone = either(input_ids=torch.tensor([ids])).logits[0]
        assert torch.allclose(alone, together[row, width - len(ids) :], atol=1e-5)
        assert torch.allclose(alone.exp().sum(1), torch.ones(len(ids)), atol=1e-5)
        for depth in range(3):
            logits = alone[len(ids) - 4 + depth]
            children, present = either.trie.children(torch.tensor([path[depth]]))
            below = children[0][present[0]]
            tokens = either.trie.tokens(below)
            assert torch.allclose(logits[tokens], nodes[row, below] - nodes[row, path[depth]], atol=1e-5)
            others = torch.ones(VOCABULARY, dtype=torch.bool)
            others[tokens] = False
            assert (logits[others] == torch.finfo(torch.float32).min).all()
        first = torch.arange(1, either.trie.level_start[2])
        assert torch.allclose(alone[-1, either.trie.tokens(first)], behind[row, first], atol=1e-5)


def test_prompts_are_read_as_histories(model):
    first, second = prompt(1), prompt(9)
    unknown = [int(TOKENS[0, 2]), int(TOKENS[1, 0]), int(TOKENS[2, 0])]  # codes that are no SID together
    rows = [
        [*first, *second],
        [WORDS[0], *first, *WORDS, *second, WORDS[1]],
        [*first, *unknown, *second],  # an SID that is unknown is passed over,
        [*first, *second[:2], *second],  # and so is one that is not spoken to its end,
        [*first, second[0], WORDS[0], *second[1:], *second],  # or not in one piece
        prompt(*range(1, 10)),  # more than the six that are read: the newest
        [WORDS[0]],
    ]
    found, _, _ = model.read_prompts(rows)
    assert found.tolist() == [[1, 9, 0, 0, 0, 0]] * 5 + [[4, 5, 6, 7, 8, 9], [0] * 6]
    one, other = (beam_search(model, [ids], trie(), N) for ids in (prompt(*range(1, 10)), prompt(*range(4, 10))))
    assert torch.equal(one.scores, other.scores)
    assert beam_search(model, [[WORDS[0]]], trie(), N).scores.isfinite().all()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_that_ends_inside_an_sid_is_refused(model, depth):
    with pytest.raises(DataError, match=r"prompt 1 of the batch ends inside an SID; give whole SIDs"):
        beam_search(model, [prompt(1), [*prompt(2), *prompt(5)[:depth]]], trie(), 3)


def test_other_trees_are_refused(model):
    with pytest.raises(ConfigError, match="SIDs are longer than the model's"):
        beam_search(model, PROMPTS[:1], trie().with_tail([WORDS[0]]), 3)
    mixed = CODES.copy()
    mixed[4, 2] = -1
    with pytest.raises(ConfigError, match="needs SIDs of one length"):
        tiny(codes=mixed)
    with pytest.raises(ConfigError, match="there are 3 text vectors for 9 SIDs"):
        build_catalogue(CatalogueConfig(), CODES, TOKENS, np.zeros((3, 2), dtype=np.float32))
    with pytest.raises(ConfigError, match="hidden_size is 16, which is no multiple of num_heads 3"):
        tiny(num_attention_heads=3)


def test_items_that_share_an_sid_are_one_leaf():
    twice = CODES[[3, 1, 1, 0, 2, 4, 5, 6, 7, 8, 8]]
    assert tiny(codes=twice, off=["vectors"]).config.num_sids == N
    assert torch.equal(tiny(codes=twice, off=["vectors"]).codes, torch.from_numpy(CODES).int())


LEFT_OUT = [(), *((name,) for name in OFF), ("learned_vectors", "vectors"), OFF[:1] + OFF[3:]]


@pytest.mark.parametrize("changes", [*({"off": off} for off in LEFT_OUT), CONDITIONED])
def test_every_source_can_be_left_out_and_comes_back_from_disk(changes, tmp_path):
    model = counting(towers=2, **changes)
    seen, labels = histories([1, 2, 3], [4, 5]), torch.tensor([[2, -100, 9], [1, 7, -100]])
    asked = {
        "labels": labels,
        "contexts": torch.tensor([[[SAME], [0], [LATER]], [[UNKNOWN], [SAME], [0]]]),
        "leave_out": True,
    }
    loss = model(histories=seen, **asked).loss
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(parameter.grad.any() for name, parameter in model.named_parameters() if "attention_norm" not in name)
    names = " ".join(name for name, _ in model.named_parameters())
    for name, part in zip(OFF, ("items", "codes", "text_map", "pointer", "gain"), strict=True):
        assert (f".{part}." in f"{names}".replace(" ", ".")) == (name not in changes.get("off", ()))
    assert model.num_parameters() == sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is type(model) and not again.training
    assert again.config.context_tokens == changes.get("context_tokens", []) and again.flaw(CODES) is None
    assert set(again.state_dict()) == set(model.state_dict())
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    for contexts in (None, torch.tensor([[SAME], [LATER]])):
        assert torch.equal(again.leaf_log_probs(seen, contexts), model.leaf_log_probs(seen, contexts))
    assert torch.equal(again(histories=seen, **asked).loss, loss)
    of_contexts = [key for key in model.state_dict() if any(part in key for part in ("context", "popul"))]
    if "off" in changes:
        assert not of_contexts
    else:
        assert of_contexts and again.popularity.weights.tolist() == pytest.approx([0.3, 0.8, 1.5])


def test_a_new_model_trusts_its_counts_from_the_start():
    """Before any training, what followed the last item is likelier than what never did."""
    torch.manual_seed(0)
    table = counts_of([[1], [1], [2]], [[4], [4], [5]], reverse=0.0)
    model = build_catalogue(CatalogueConfig(vocab_size=VOCABULARY, hidden_size=16), CODES, TOKENS, None, table)
    assert model.eval().leaf_log_probs(histories([1], [2])).argmax(1).tolist() == [3, 4]


def test_counts_without_any_pair_are_no_counts():
    empty = csr_array((N, N), dtype=np.float32)
    model = build_catalogue(CatalogueConfig(vocab_size=VOCABULARY, hidden_size=16), CODES, TOKENS, None, empty)
    assert model.pairs is None
    assert model.leaf_log_probs(histories([1, 2])).exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_dropout_works_in_training_alone_and_is_not_kept(tmp_path):
    model = counting()
    seen = histories([1, 2, 3])
    before = model.leaf_log_probs(seen)
    model.set_dropout(0.5)
    assert torch.equal(model.leaf_log_probs(seen), before)
    model.train()
    assert not torch.allclose(model.leaf_log_probs(seen), before, atol=1e-3)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).train()
    # Weights mapped from a file begin anywhere in memory, which may change the last bit of a product.
    again.load_state_dict({name: value.clone() for name, value in again.state_dict().items()}, assign=True)
    assert torch.equal(again.leaf_log_probs(seen), before)


def test_it_computes_in_bfloat16():
    model = counting()
    seen = histories([1, 2, 3], [4, 5])
    half = counting().to(torch.bfloat16)
    found = half.leaf_log_probs(seen)
    assert found.dtype == torch.float32
    assert torch.allclose(found, model.leaf_log_probs(seen), atol=0.2)


def test_it_reads_something(model):
    with pytest.raises(ValueError, match=r"give input_ids or histories\."):
        model()
