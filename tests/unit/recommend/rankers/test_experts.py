"""Experts of a language model: candidates and their scores, the pool, and what a checkpoint keeps of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import save_checkpoint
from support.small_corpus import corpus_of
from support.small_shop import sign

from minionerec.core.errors import ArtefactError
from minionerec.models.backbone.bundle import EXPERTS_FILE, Bundle, load_bundle
from minionerec.models.decoding.beam import BeamResult
from minionerec.models.decoding.exact import exact_search
from minionerec.models.nn.experts import EXPERTS, FEATURES
from minionerec.models.nn.rows import top_scores
from minionerec.models.prompts.wording import load_wording
from minionerec.recommend.rankers import experts as module
from minionerec.recommend.rankers.experts import dense, pooled_log_probs
from minionerec.recommend.rankers.language import LanguageRanker, Search
from minionerec.recommend.rankers.load import checkpoint_assistant, load_ranker
from minionerec.recommend.rankers.protocol import Allowed, Queries
from minionerec.sid.table import SidTable
from minionerec.training.experts import corpus_experts
from minionerec.training.neighbours import corpus_likeness
from minionerec.training.sft import scratch_backbone

N_ITEMS = 40
HISTORIES = [np.array(history, np.int32) for history in ([0, 3, 7], [5], [], [0, 3, 7], [39, 38, 37, 36, 12])]


def random_weights(seed=0):
    """Weights, clamps included, as a fit finds them."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(0, 0.3, (len(FEATURES), len(EXPERTS)))
    weights[:, :2] = 0
    weights[0, :2] = 1
    return {"weights": weights.tolist(), "least": [-1.0] * len(FEATURES), "most": [2.0] * len(FEATURES)}


@pytest.fixture(scope="module")
def shop():
    """A corpus, 36 SIDs of 40 items, a model that is not trained, and experts with random weights."""
    rng, rows = np.random.default_rng(0), {"train": [], "valid": [], "test": []}
    for user in range(30):
        chain = [int(rng.integers(N_ITEMS - 4))]
        chain += [(chain[0] + step) % (N_ITEMS - 4) for step in range(1, 7)]
        for position in range(1, 7):
            rows[{5: "valid", 6: "test"}.get(position, "train")].append((f"u{user}", chain[:position], chain[position]))
    corpus = corpus_of(rows["train"], rows["valid"], rows["test"], n_items=N_ITEMS)
    numbers = np.minimum(np.arange(N_ITEMS), 35)
    table = SidTable(np.stack([numbers // 6, numbers % 6], axis=1), corpus.items["item_id"].tolist())
    wording = load_wording("compact")
    shape = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "inner_size": 24}
    model, tokenizer = scratch_backbone(corpus, table, wording, text_vocabulary=300, seed=1, **shape)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20)  # so that probabilities differ
    experts = corpus_experts(corpus, table.sid_numbers, corpus_likeness(corpus, table.sid_numbers))
    bundle = Bundle(model.eval(), tokenizer, table, wording, 64, experts=experts.with_weights(random_weights()))
    return corpus, bundle


@pytest.fixture
def narrow(monkeypatch):
    """Let a catalogue count as large, with this many SIDs that experts name."""

    def of(named):
        monkeypatch.setattr(module, "ALL_SIDS", 1)
        monkeypatch.setattr(module, "NAMED", named)

    return of


def brute_force(corpus, bundle, queries, bonus=None):
    """The pool over all SIDs by the exact log-probability of each, one query at a time: float (R, S)."""
    ranker = LanguageRanker(replace(bundle, experts=None), corpus)
    rows = []
    for row in range(len(queries)):
        query = queries.take([row])
        found = exact_search(bundle.model, ranker.prompts(query)[1], ranker.trie, 36)
        log_probs = torch.zeros(1, 36).scatter_(1, found.sids, found.scores)
        rows.append(pooled_log_probs(bundle.experts, bundle.table.sid_numbers, query, log_probs)[0])
    pooled = torch.stack(rows).numpy()
    return pooled if bonus is None else pooled + bonus


def sids_of(bundle, lists):
    """Distinct SIDs of lists of items."""
    return [list(dict.fromkeys(bundle.table.sid_numbers[np.asarray(items)].tolist())) for items in lists]


@pytest.mark.parametrize("named", [None, 36, 40])
def test_lists_are_the_best_of_the_pool_over_all_sids(shop, narrow, named):
    """Whether a catalogue is scored as a whole, or all of its SIDs are candidates."""
    corpus, bundle = shop
    if named is not None:
        narrow(named)
    queries = Queries(HISTORIES)
    pooled = brute_force(corpus, bundle, queries)
    ranking = LanguageRanker(bundle, corpus).rank(queries, 8)
    for row, sids in enumerate(sids_of(bundle, ranking.items)):
        assert sids == np.argsort(-pooled[row], kind="stable")[:8].tolist()
        listed = bundle.table.sid_numbers[np.asarray(ranking.items[row])]
        assert ranking.scores[row] == pytest.approx(pooled[row][listed].tolist(), abs=1e-4)
    plain = LanguageRanker(replace(bundle, experts=None), corpus).rank(queries, 8)
    assert plain.items != ranking.items and ranking.items[0] == ranking.items[3]
    assert LanguageRanker(bundle, corpus).rank(Queries([np.array([])]), 8).items == [ranking.items[2]]


def test_candidates_are_beams_and_what_the_experts_name(shop, narrow):
    corpus, bundle = shop
    narrow(4)
    ranker, queries = LanguageRanker(bundle, corpus), Queries(HISTORIES)
    prompts = ranker.prompts(queries)[1]
    found = ranker.experts.candidates(queries, bundle.model, prompts, 5)
    beams = LanguageRanker(replace(bundle, experts=None), corpus).rank(queries, 5).items
    named = top_scores(pooled_log_probs(bundle.experts, bundle.table.sid_numbers, queries), 4)[1]
    exact = exact_search(bundle.model, prompts, ranker.trie, 36)
    for row, sids in enumerate(sids_of(bundle, beams)):
        candidates = [sid for sid in found.sids[row].tolist() if sid >= 0]
        assert set(candidates) == set(sids) | set(named[row].tolist()) and len(candidates) <= 9
        probability = dict(zip(exact.sids[row].tolist(), exact.scores[row].tolist(), strict=True))
        scores = found.scores[row][: len(candidates)].tolist()
        assert scores == pytest.approx([probability[sid] for sid in candidates], abs=1e-4)
    lists = ranker.rank(queries, 5)
    assert all(
        set(listed) <= set(sids.tolist()) for listed, sids in zip(sids_of(bundle, lists.items), found.sids, strict=True)
    )
    probabilities, scored = dense(found, 36)
    pooled = pooled_log_probs(bundle.experts, bundle.table.sid_numbers, queries, probabilities, scored)
    assert torch.allclose(pooled.exp().sum(1), torch.ones(5), atol=1e-5)
    assert (pooled[~scored] == -torch.inf).all()


def test_what_is_not_scored_has_the_lowest_probability_that_is(shop):
    _, bundle = shop
    log_probs, scored = torch.full((1, 36), -9.0), torch.zeros(1, 36, dtype=torch.bool)
    scored[0, [3, 8]], log_probs[0, [3, 8]] = True, torch.tensor([-1.0, -4.0])
    histories, at = torch.tensor([[4, 2]]), (torch.tensor([0]), torch.tensor([1]))
    terms = list(bundle.experts.terms(log_probs, histories, *at, scored=scored))
    assert terms[0][0, 3] == -1 and (terms[0][0, torch.arange(36) != 3] == -4).all()
    alone = list(bundle.experts.terms(None, histories, *at))
    assert not alone[0].any() and not alone[1].any()
    assert all(torch.equal(*pair) for pair in zip(terms[2:], alone[2:], strict=True))


@pytest.mark.parametrize("named", [None, 6])
def test_exclusions_and_filters_act_on_the_pool(shop, narrow, named):
    corpus, bundle = shop
    if named is not None:
        narrow(named)
    ranker, queries = LanguageRanker(bundle, corpus), Queries(HISTORIES)
    only = np.zeros(N_ITEMS, dtype=bool)
    only[[1, 2, 11, 30, 37]] = True
    allowed = Allowed.of_masks([only] * 5, [[2], [], [37], [1, 2, 11, 30, 37], [30]], N_ITEMS)
    ranking = ranker.rank(queries, 10, allowed)
    for row, items in enumerate(ranking.items):
        assert set(items) == set(np.flatnonzero(allowed.row(row)).tolist())
        assert (np.diff(ranking.scores[row]) <= 0).all()
    if named is None:  # scores of the whole catalogue do not depend on what is left out
        pooled = brute_force(corpus, bundle, queries)
        for row, (items, scores) in enumerate(zip(ranking.items, ranking.scores, strict=True)):
            wanted = pooled[row][bundle.table.sid_numbers[np.asarray(items, dtype=np.int64)]]
            assert scores == pytest.approx(wanted.tolist(), abs=1e-4)


@pytest.mark.parametrize("named", [None, 6])
def test_a_list_does_not_depend_on_what_else_is_asked(shop, narrow, named):
    corpus, bundle = shop
    if named is not None:
        narrow(named)
    queries, without = Queries(HISTORIES), [[], [1, 2], [], [5], [4]]
    wanted = LanguageRanker(bundle, corpus, Search(batch_size=3)).rank(
        queries, 6, Allowed.leaving_out(without, N_ITEMS)
    )
    for size in (1, 0):
        ranker = LanguageRanker(bundle, corpus, Search(batch_size=size))
        assert ranker.rank(queries, 6, Allowed.leaving_out(without, N_ITEMS)).items == wanted.items
    for row, gone in enumerate(without):
        alone = ranker.rank(queries.take([row]), 6, Allowed.leaving_out([gone], N_ITEMS))
        assert alone.items[0] == wanted.items[row]


def test_what_was_seen_before_the_history_is_known(shop):
    corpus, bundle = shop
    weights = np.zeros((len(FEATURES), len(EXPERTS)))
    weights[0, [0, EXPERTS.index("seen")]] = 1, -100
    fitted = {"weights": weights.tolist(), "least": [1.0] * len(FEATURES), "most": [1.0] * len(FEATURES)}
    ranker = LanguageRanker(replace(bundle, experts=bundle.experts.with_weights(fitted)), corpus)
    seen = [np.array([20, 21, 22, 1], np.int32), np.array([1], np.int32)]
    ranking = ranker.rank(Queries([np.array([1], np.int32)] * 2, seen=seen), 35)
    assert not {20, 21, 22, 1} & set(ranking.items[0][:30]) and 1 not in ranking.items[1][:30]
    assert {20, 21, 22} <= set(ranking.items[1])


def test_weights_that_select_the_model_give_its_own_lists(shop, tmp_path):
    corpus, bundle = shop
    plain = LanguageRanker(replace(bundle, experts=None), corpus).rank(Queries(HISTORIES), 6)
    off = random_weights()
    off["weights"] = [[float(row == column == 0) for column in range(len(EXPERTS))] for row in range(len(FEATURES))]
    ranker = LanguageRanker(replace(bundle, experts=bundle.experts.with_weights(off)), corpus)
    assert ranker.experts is None and ranker.rank(Queries(HISTORIES), 6) == plain
    save_checkpoint(bundle, tmp_path / "checkpoint")
    assert load_ranker(tmp_path / "checkpoint", corpus, experts=False).rank(Queries(HISTORIES), 6) == plain


def test_a_checkpoint_keeps_them(shop, tmp_path):
    corpus, bundle = shop
    save_checkpoint(bundle, tmp_path / "checkpoint")
    loaded = load_bundle(tmp_path / "checkpoint")
    for name, values in bundle.experts.state_dict().items():
        assert torch.equal(values, loaded.experts.state_dict()[name])
    wanted = LanguageRanker(bundle, corpus).rank(Queries(HISTORIES), 6)
    assert load_ranker(tmp_path / "checkpoint", corpus).rank(Queries(HISTORIES), 6) == wanted
    save_checkpoint(replace(bundle, experts=None), tmp_path / "plain")
    assert load_bundle(tmp_path / "plain").experts is None and not (tmp_path / "plain" / EXPERTS_FILE).exists()
    file = tmp_path / "checkpoint" / EXPERTS_FILE
    state = load_file(file)
    for changed, message in (
        ({**state, "followers": state["followers"] + 99}, r"does not fit the 36 SIDs of index.json: its experts name"),
        ({name: values for name, values in state.items() if name != "counts"}, r"holds no experts"),
    ):
        save_file(changed, file)
        sign(tmp_path / "checkpoint")
        with pytest.raises(ArtefactError, match=message):
            load_bundle(tmp_path / "checkpoint")


def test_an_assistant_with_experts_gives_the_pool(shop):
    corpus, bundle = shop
    queries = Queries(HISTORIES)
    found = checkpoint_assistant(LanguageRanker(bundle, corpus), "it").log_probs(queries)
    assert np.allclose(found.numpy(), brute_force(corpus, bundle, queries), atol=1e-4)


def test_the_lift_of_new_items_is_added_to_the_pool(shop):
    corpus, bundle = shop
    bonus = np.where(np.arange(36) % 5 == 0, 2.0, 0.0)
    ranking = LanguageRanker(bundle, corpus, bonus=bonus).rank(Queries(HISTORIES), 8)
    pooled = brute_force(corpus, bundle, Queries(HISTORIES), bonus)
    for row, sids in enumerate(sids_of(bundle, ranking.items)):
        assert sids == np.argsort(-pooled[row], kind="stable")[:8].tolist()


def test_lists_as_rows_of_all_sids():
    found = BeamResult(torch.tensor([[2, 0], [1, -1]]), torch.tensor([[-1.0, -2.0], [-3.0, -torch.inf]]))
    log_probs, scored = dense(found, 3)
    assert log_probs.tolist() == [[-2, 0, -1], [0, -3, 0]]
    assert scored.tolist() == [[True, False, True], [False, True, False]]
    assert dense(BeamResult(torch.tensor([[2, 0, 1]]), torch.zeros(1, 3)), 3)[1] is None
