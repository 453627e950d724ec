"""The catalogue model by parts: scores of some SIDs, the sampled loss, and everything that is done block by block."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.catalogue import OFF, random_catalogue
from support.decoding import token_ids
from support.devices import same_lists
from support.gaps import LATER, SAME

from minionerec.data.names import UNKNOWN
from minionerec.data.transitions import count_transitions
from minionerec.models.backbone.catalogue import blocks
from minionerec.models.backbone.catalogue.blocks import Blocks
from minionerec.models.decoding.beam import beam_search, sample_search
from minionerec.models.decoding.decoder import fitting_batch_size
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.history import ScoredPositions
from minionerec.models.nn.rows import ColumnSubset, take_rows

RNG = np.random.default_rng(0)
CODES = np.unique(RNG.integers(0, (3, 4, 6), size=(22, 3)), axis=0)
N = len(CODES)
TOKENS = token_ids(3, 6)
MARKS = {UNKNOWN: [], SAME: [2], LATER: [3]}
CONDITIONED = {"context_tokens": [[2, 3]]}
SEEN = RNG.integers(1, N + 1, size=(12, 5))
FOLLOWED = np.concatenate([SEEN[:, 1:], RNG.integers(1, N + 1, size=(12, 1))], axis=1)
SEEN[3, 2:], FOLLOWED[3, 2:] = 0, 0
HISTORIES, LABELS = torch.from_numpy(SEEN), torch.from_numpy(np.where(FOLLOWED > 0, FOLLOWED, -100))
CONTEXTS = torch.from_numpy(np.where(FOLLOWED > 0, RNG.integers(0, 3, FOLLOWED.shape), 0))[..., None]


def built(**changes):
    counts = count_transitions([(SEEN, FOLLOWED)], N, 4, 0.6, 0.3)
    return random_catalogue(CODES, TOKENS, counts, **{"towers": 2, "reverse": 0.3, **changes})


@pytest.fixture(scope="module", params=[{}, CONDITIONED], ids=["plain", "conditioned"])
def model(request):
    return built(**request.param)


@pytest.mark.parametrize("changes", [{}, CONDITIONED, *({"off": (name,)} for name in OFF)])
@pytest.mark.parametrize("leave_out", [False, True])
def test_scores_of_some_sids_are_those_columns_of_the_dense_scores(changes, leave_out):
    model = built(**changes)
    row, slot = (LABELS > 0).nonzero(as_tuple=True)
    contexts, counted = CONTEXTS[row, slot], LABELS if leave_out else None
    dense = model.tower_scores(HISTORIES, model.positions(HISTORIES, row, slot, counted, contexts))
    for numbers in ([0, 1, 5, 9, N - 1], list(range(N)), [7], (SEEN[0] - 1).tolist()):
        columns = ColumnSubset(torch.tensor(numbers).unique())
        found = Blocks(model, HISTORIES, ScoredPositions(row, slot, contexts=contexts), counted).scores(columns)
        for whole, scores in zip(dense, found, strict=True):
            assert torch.allclose(scores, whole[:, columns.numbers], atol=1e-5)


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.integers(1, N), min_size=1, max_size=5), min_size=1, max_size=4),
    st.sets(st.integers(0, N - 1), min_size=1),
)
def test_counts_of_any_windows_are_looked_up_among_any_columns(rows, numbers):
    model = built(off=("learned_vectors", "code_vectors"), towers=1)
    width = max(map(len, rows))
    histories = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    row, slot = (histories > 0).nonzero(as_tuple=True)
    columns = ColumnSubset(torch.tensor(sorted(numbers)))
    (found,) = Blocks(model, histories, ScoredPositions(row, slot)).scores(columns)
    (whole,) = model.tower_scores(histories, model.positions(histories, row, slot))
    assert torch.allclose(found, whole[:, columns.numbers], atol=1e-5)


@pytest.mark.parametrize("leave_out", [False, True])
def test_with_every_sid_there_for_certain_the_sampled_loss_is_the_exact_one(model, leave_out):
    asked = {"histories": HISTORIES, "labels": LABELS, "contexts": CONTEXTS, "leave_out": leave_out}
    sample = ColumnSubset(torch.arange(N)), torch.zeros(len(LABELS), N)
    for weights in (None, torch.rand(LABELS.shape)):
        both = []
        for given_sample in (None, sample):
            model.zero_grad()
            loss = model(**asked, weights=weights, sample=given_sample).loss
            loss.backward()
            both.append((loss.detach(), {name: each.grad.to_dense() for name, each in model.named_parameters()}))
        (exact, wanted), (sampled, found) = both
        assert sampled.item() == pytest.approx(exact.item(), rel=1e-5)
        for name in wanted:
            assert torch.allclose(found[name], wanted[name], atol=1e-5), name


def test_a_sampled_step_has_gradients_of_the_rows_that_it_read(model):
    columns = ColumnSubset(torch.unique(torch.cat([LABELS[:2][LABELS[:2] > 0] - 1, torch.tensor([0, N - 1])])))
    model.zero_grad()
    model(histories=HISTORIES[:2], labels=LABELS[:2], sample=(columns, torch.zeros(2, len(columns)))).loss.backward()
    rows = torch.cat([columns.numbers, HISTORIES[:2].flatten() - 1]).unique()
    read = {id(table): of_table.unique() for table, of_table in model.row_tables(rows, columns.numbers)}
    sparse = [each for each in model.parameters() if each.grad.is_sparse]
    assert {id(each) for each in sparse} == set(read)
    assert len(sparse) == 2 * 5  # of each tower: SIDs, biases, and codes of three levels
    for each in sparse:
        assert torch.equal(each.grad.coalesce().indices()[0], read[id(each)])


def test_rows_are_taken_with_the_gradient_of_an_index():
    table = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([4, 0, 4])
    factors = torch.randn(3, 3, dtype=torch.float64)
    (found,) = torch.autograd.grad((take_rows(table, rows) * factors).sum(), table)
    (wanted,) = torch.autograd.grad((table[rows] * factors).sum(), table)
    assert found.is_sparse and torch.equal(found.to_dense(), wanted)


def prompt(history, context):
    """A word, the SIDs, and the mark of the gap, which a plain model reads as one more word."""
    codes = [int(TOKENS[level, code]) for sid in history for level, code in enumerate(CODES[sid - 1])]
    return [1, *codes, *MARKS[context]]


ASKED = [[1, 2, 3], [9], [], [5, 5, 2, 8], [N, 1], [1, 2, 3], [1, 2, 3]]
REPORTED = [SAME, LATER, SAME, UNKNOWN, LATER, LATER, UNKNOWN]
PROMPTS = [prompt(*each) for each in zip(ASKED, REPORTED, strict=True)]


def trie(codes=CODES):
    return Trie.build(codes, TOKENS)


@pytest.fixture(params=[1, 7, N - 1])
def small_blocks(request, monkeypatch):
    monkeypatch.setattr(blocks, "SIDS_AT_ONCE", request.param)


@pytest.fixture(scope="module")
def dense(model):
    """What the searches gave before anything was done by blocks."""
    assert not model.by_blocks
    bonus = torch.linspace(-1, 1, N)
    allowed = torch.rand(len(PROMPTS), N, generator=torch.Generator().manual_seed(0)) < 0.4
    guides = (None, Guide.of(trie(), allowed, bonus))
    found = [search(model, PROMPTS, trie(), k, guide=guide) for search, k, guide in asked(guides)]
    return guides, found


def asked(guides):
    return [(search, k, guide) for search in (beam_search, exact_search) for k in (3, N) for guide in guides]


@pytest.mark.parametrize(("small_blocks", "frozen"), [(1, False), (7, True), (N - 1, False)], indirect=["small_blocks"])
def test_searches_by_blocks_give_the_same_lists(model, dense, small_blocks, frozen):
    guides, wanted = dense
    assert model.by_blocks
    if frozen:
        model.freeze()
    try:
        for (search, k, guide), before in zip(asked(guides), wanted, strict=True):
            found = search(model, PROMPTS, trie(), k, guide=guide)
            assert same_lists((found.sids, found.scores), (before.sids, before.scores))
    finally:
        model.train().eval()


def test_nothing_dense_is_made_by_blocks(model, small_blocks, monkeypatch):
    monkeypatch.setattr(type(model), "leaf_log_probs", None)
    monkeypatch.setattr(type(model), "node_log_probs", None)
    assert model.sid_log_probs(PROMPTS, trie()) is None
    beam_search(model, PROMPTS, trie(), 4)
    exact_search(model, PROMPTS, trie(), 4)


def test_some_of_the_sids_are_searched_by_blocks(model, small_blocks, monkeypatch):
    some = trie(CODES[::3])
    found = exact_search(model, PROMPTS, some, 5), beam_search(model, PROMPTS, some, 5, "renormalised")
    monkeypatch.setattr(blocks, "SIDS_AT_ONCE", N)
    wanted = exact_search(model, PROMPTS, some, 5), beam_search(model, PROMPTS, some, 5, "renormalised")
    for one, other in zip(found, wanted, strict=True):
        assert same_lists((one.sids, one.scores), (other.sids, other.scores))


def test_samples_by_blocks_have_the_models_probabilities(model, small_blocks):
    found = sample_search(model, PROMPTS[:2], trie(), 4, generator=torch.Generator().manual_seed(0))
    log_probs = model.leaf_log_probs(torch.tensor([[1, 2, 3], [9, 0, 0]]), torch.tensor(REPORTED[:2])[:, None])
    assert torch.allclose(found.scores.float(), log_probs.gather(1, found.sids), atol=1e-4)


@pytest.mark.parametrize("contexts", [None, CONTEXTS])
def test_the_loss_of_validation_is_the_same_by_blocks(model, small_blocks, monkeypatch, contexts):
    with torch.no_grad():
        found = model(histories=HISTORIES, labels=LABELS, contexts=contexts).loss
        monkeypatch.setattr(blocks, "SIDS_AT_ONCE", N)
        wanted = model(histories=HISTORIES, labels=LABELS, contexts=contexts).loss
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_prompts_that_fit_are_reckoned_with_the_scores_of_all_sids(model):
    values = model.values_at_once(trie())
    assert values > 3 * N
    assert fitting_batch_size(model, trie(), [[1] * 9] * 33, 5, 2**40) == 256
    assert fitting_batch_size(model, trie(), [[1] * 9] * 33, 5, 2 * 4 * (values + 200)) == 1
    large = blocks.most_values(10**6, 10**6 + 70_000, 2)
    assert 2 * 65_536 < large < 10**6
