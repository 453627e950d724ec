"""Experts: what is counted in training, how it is pooled with the model's probabilities, and how that is fitted."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from support.decoding import token_ids

from minionerec.data.corpus import Corpus
from minionerec.models.backbone.catalogue import CatalogueConfig, CatalogueModel, build_catalogue
from minionerec.models.backbone.catalogue.extend import extended_catalogue
from minionerec.models.nn.experts import (
    DECAYS,
    EXPERTS,
    FEATURES,
    NO_EASE,
    NO_NEIGHBOUR,
    NO_SALE,
    NO_TEXT,
    NO_TRANSITION,
    Experts,
    ItemLikeness,
    mean_of_neighbours,
)
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.pipeline.train_catalogue import fit_catalogue_experts
from minionerec.recommend.rankers.language import LanguageRanker, Search
from minionerec.recommend.rankers.lists import rank_rows, split_queries
from minionerec.recommend.rankers.load import checkpoint_assistant
from minionerec.recommend.rankers.protocol import Queries
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Request
from minionerec.serve.explain import explain
from minionerec.sid.embed.texts import nearest_texts
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.build import new_bundle
from minionerec.training.catalogue.windows import (
    held_out_windows,
    older_sids,
    read_windows,
    window_parts,
    write_windows,
)
from minionerec.training.experts import HALF_LIVES, count_experts, fit_experts, set_weights
from minionerec.training.neighbours import of_same_pairs

CODES = np.array([[index // 3, index % 3] for index in range(6)])
RECENCY = 3.0


def windows_of(rows, weights=None):
    """Windows of histories, with the items behind each position."""
    width = max(len(history) for history, _ in rows)
    histories, labels = (
        np.array([[*row[part], *[fill] * (width - len(row[part]))] for row in rows])
        for part, fill in ((0, 0), (1, -100))
    )
    found = np.ones(labels.shape, dtype=np.float32)
    if weights is not None:
        found *= np.array(weights, dtype=np.float32)[:, None]
    return {"histories": histories, "labels": labels, "weights": found}


ROWS = [([1, 2, 1], [2, 1, 3]), ([2, 2], [2, 4]), ([5], [5]), ([3, 4, 5, 3], [4, 5, 3, 1])]
AGES = [0.75, 0.5, 0.25, 0.0]
# The last SID, which no window holds, is like the first two and the second like the third.
ALIKE = np.zeros((6, 6))
ALIKE[5, :2] = ALIKE[:2, 5] = 0.3, 0.6
ALIKE[1, 2] = ALIKE[2, 1] = 0.5


# The same pairs by text alone, by which two of them have nothing in common.
BY_TEXT = np.where(ALIKE > 0, 0.9 - ALIKE, 0)
BY_TEXT[5, 0] = BY_TEXT[2, 1] = 0
VECTORS = np.array([[1, 0], [0.6, 0.8], [0, 1], [0, 0], [-1, 0], [0.8, -0.6]], dtype=np.float32)
LIKENESS = ItemLikeness(*of_same_pairs(*(csr_array(table.astype(np.float32)) for table in (ALIKE, BY_TEXT))), VECTORS)
NOT_ALIKE = ItemLikeness(*[csr_array((6, 6), dtype=np.float32)] * 2, np.zeros((6, 0), dtype=np.float32))
TRAINED = windows_of(ROWS, np.exp(-RECENCY * np.array(AGES)) * 1.7)


def model_of(seed=0, windows=TRAINED, **changes):
    """A model with experts, which are off."""
    shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "max_history": 4, **changes}
    torch.manual_seed(seed)
    experts = count_experts(partial(window_parts, windows), 6, RECENCY, LIKENESS)
    model = build_catalogue(CatalogueConfig(vocab_size=20, **shape), CODES, token_ids(2, 3), experts=experts)
    torch.nn.Module.eval(model)
    return model


def use(model, seed=0):
    """Give experts some weights, and bounds that some histories pass."""
    rng = np.random.default_rng(seed)
    found = {
        "weights": rng.normal(size=(len(FEATURES), len(EXPERTS))).tolist(),
        "least": [1.0, 0.8, 0.0, *[-1.0] * 8],
        "most": [1.0, 1.5, 0.0, *[1.0] * 8],
    }
    set_weights(model.experts, found)
    return found


def ease_of(experts):
    """Weights of EASE by both items."""
    weights = np.zeros((6, 6))
    np.add.at(weights, (np.arange(6)[:, None], experts.ease_items.numpy()), experts.ease_weights.numpy())
    return weights


def test_counts_by_hand():
    """By the definitions, in other words: every target at its age, every distinct item before it once."""
    tables = count_experts(partial(window_parts, TRAINED), 6, RECENCY, LIKENESS)
    pairs, there, chosen, sold = np.zeros((2, 6, 6)), np.zeros(6), np.zeros(6), np.zeros((3, 6))
    for (history, labels), age, weight in zip(ROWS, AGES, TRAINED["weights"][:, 0], strict=True):
        for slot, label in enumerate(labels):
            for half_life, found in zip((*HALF_LIVES, np.inf), sold, strict=True):
                found[label - 1] += 0.5 ** (age / half_life)
            for back, item in enumerate(reversed(history[: slot + 1])):
                for found, decay in zip(pairs, DECAYS, strict=True):
                    found[item - 1, label - 1] += decay**back * 0.5 ** (age / 0.3)
            for item in set(history[: slot + 1]):
                there[item - 1] += weight
                chosen[item - 1] += weight * (item == label)
    for counts, found in zip(tables.counts, pairs, strict=True):
        counted = csr_array((counts, tables.followers, tables.offsets), shape=(6, 6))
        assert np.allclose(counted.toarray(), found, rtol=1e-4)
    assert np.allclose(tables.popularity[:, :5], sold[:2, :5], rtol=1e-4)
    assert np.allclose(tables.popularity[:, 5], sold[:2, :2] @ [1 / 3, 2 / 3], rtol=1e-4)
    share = (chosen.sum() + 1) / (there.sum() + 6)
    assert np.allclose(tables.repeats, np.log((chosen + 20 * share) / (there + 20) / share), atol=1e-5)
    assert np.allclose(tables.items[:, 0], np.log(sold[2] + 1), atol=1e-5)
    assert tables.items[:, 3].tolist() == (sold[2] == 0).tolist() == [False] * 5 + [True]
    together = np.zeros((6, 6))
    for history, labels in ROWS:
        chosen = sorted({*history, *labels})
        together[np.ix_(np.array(chosen) - 1, np.array(chosen) - 1)] += 1
    inverse = np.linalg.inv(together + 100 * np.eye(6))
    ease = -inverse / np.diag(inverse)  # Steck 2019, equation 8
    np.fill_diagonal(ease, 0)
    assert np.allclose(ease_of(tables), ease.clip(min=0), rtol=1e-5) and (ease > 0).any()


def test_without_ages_all_targets_count_the_same():
    tables = count_experts(partial(window_parts, TRAINED), 6, 0.0, NOT_ALIKE)
    assert np.allclose(tables.popularity, np.bincount([label - 1 for _, row in ROWS for label in row], minlength=6))


def slow_pool(model, found, own, history, older=()):
    """What the pool gives one history, item by item; of older items only that they were seen, and when."""
    past = [*older, *history]
    experts = {name: value.numpy() for name, value in model.experts.state_dict().items()}
    transitions = []
    for decay, counts in zip(DECAYS, experts["counts"], strict=True):
        shares = np.zeros(6)
        for back, item in enumerate(reversed(history)):
            part = slice(experts["offsets"][item - 1], experts["offsets"][item])
            scale = decay**back / np.sqrt(counts[part].sum() + 1)
            np.add.at(shares, experts["followers"][part], scale * counts[part])
        shares /= max(shares.sum(), 1e-12)
        shares[5] = shares[:2] @ [1 / 3, 2 / 3]
        transitions.append(shares)
    ease = ease_of(model.experts)
    by_text = np.log(np.exp(own[:2]) @ [1 / 3, 2 / 3] + NO_NEIGHBOUR)
    of_items = experts["items"][np.array(history) - 1]
    sold = np.bincount([label - 1 for _, labels in ROWS for label in labels], minlength=6)
    described = [1, np.log(len(history) + 1), len(history) >= 10, *of_items[-1], *of_items.mean(0)]
    weights = np.clip(described, found["least"], found["most"]) @ np.array(found["weights"])
    scores = []
    for item in range(6):
        seen = item + 1 in past
        message = [
            own[item],
            by_text - own[item] if item == 5 else 0,
        ]
        several, following = (np.log((0 if seen else shares[item]) + NO_TRANSITION) for shares in transitions)
        message += [several, following - several]
        message += [np.log((0 if seen else popular[item]) + NO_SALE) for popular in experts["popularity"]]
        before = DECAYS[0] ** past[::-1].index(item + 1) if seen else 0
        text = 0 if seen else max(ALIKE[item, other - 1] for other in history)
        message += [experts["repeats"][item] if seen else 0, seen, before, text, text * (item == 5)]
        words = sum(0.6**back * BY_TEXT[other - 1, item] for back, other in enumerate(reversed(history)))
        words = 0 if seen else np.log((words + NO_TEXT) / NO_TEXT)
        rare = 0 if seen or item == 5 else 1 / (1 + sold[item])
        message += [words, words * (item == 5), words * rare, rare]
        message += [item == 5 and not seen, item == 5 and seen]
        decayed = [(other - 1, 0.9**back) for back, other in enumerate(reversed(past))]
        message += [np.log((0 if seen else sum(decay * ease[other, item] for other, decay in decayed)) + NO_EASE)]
        for vector in (VECTORS[history[-1] - 1], sum(decay * VECTORS[other] for other, decay in decayed)):
            message += [0 if seen else vector @ VECTORS[item] / max(np.linalg.norm(vector), 1e-12)]
        scores.append(weights @ np.array(message, dtype=np.float64))
    scores = np.array(scores)
    return scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max()


@pytest.mark.parametrize("towers", [1, 2])
def test_the_pool_by_hand(towers):
    model = model_of(towers=towers, context_tokens=[[1, 2]])
    histories = torch.tensor([[1, 2, 1, 0], [6, 0, 0, 0], [3, 4, 5, 2]])
    contexts = torch.tensor([[0], [1], [2]])
    own = model.leaf_log_probs(histories, contexts)
    found = use(model)
    pooled = model.leaf_log_probs(histories, contexts)
    for row, history in enumerate(([1, 2, 1], [6], [3, 4, 5, 2])):
        expected = slow_pool(model, found, own[row].detach().numpy(), history)
        assert np.allclose(pooled[row].detach().numpy(), expected, atol=1e-4)
    older = [[], [2, 1], [1, 6, 3]]
    padded = torch.tensor([[0, 0, 0], [0, 2, 1], [1, 6, 3]])
    longer = model.leaf_log_probs(histories, contexts, padded)
    assert torch.equal(longer[0], pooled[0])
    for row, history in enumerate(([1, 2, 1], [6], [3, 4, 5, 2])):
        expected = slow_pool(model, found, own[row].detach().numpy(), history, older[row])
        assert np.allclose(longer[row].detach().numpy(), expected, atol=1e-4)
    assert not torch.allclose(longer[1:], pooled[1:], atol=0.1)
    assert not torch.allclose(pooled, own, atol=0.1)
    assert torch.allclose(pooled.exp().sum(1), torch.ones(3), atol=1e-5)
    # What a search steps by are sums of the same, and a position sees nothing of later items.
    masses = model.masses(histories, torch.arange(3), torch.tensor([2, 0, 3]), contexts)
    assert torch.allclose(masses, model.node_log_probs(pooled), atol=1e-5)
    first = [model.masses(torch.tensor([row]), torch.tensor([0]), torch.tensor([0])) for row in ([5, 1], [5, 2])]
    assert torch.allclose(*first)


def test_an_empty_history_is_answered():
    model = model_of()
    use(model)
    assert torch.isfinite(model.leaf_log_probs(torch.zeros(2, 3, dtype=torch.int64))).all()


def test_off_it_changes_nothing_and_on_it_is_no_part_of_the_likelihood():
    model = model_of()
    plain = build_catalogue(CatalogueConfig(**{**model.config.to_dict(), "experts": False}), CODES, token_ids(2, 3))
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "experts" not in name})
    torch.nn.Module.eval(plain)
    asked = torch.tensor([[1, 2, 1], [5, 0, 0]])
    assert torch.equal(model.leaf_log_probs(asked), plain.leaf_log_probs(asked))
    use(model)
    assert not torch.equal(model.leaf_log_probs(asked), plain.leaf_log_probs(asked))
    labels = torch.tensor([[2, 1, 3], [4, -100, -100]])
    assert torch.equal(model(histories=asked, labels=labels).loss, plain(histories=asked, labels=labels).loss)
    model.experts.turn_off()
    assert torch.equal(model.leaf_log_probs(asked), plain.leaf_log_probs(asked))


def test_what_is_saved_gives_the_same(tmp_path):
    model = model_of()
    use(model)
    model.save_pretrained(tmp_path)
    again = CatalogueModel.from_pretrained(tmp_path)
    torch.nn.Module.eval(again)
    asked = torch.tensor([[1, 2, 1], [5, 0, 0]])
    assert torch.equal(again.leaf_log_probs(asked), model.leaf_log_probs(asked))
    assert again.experts.flaw() is None
    again.experts.neighbours[0] = -1
    assert "beyond its 6" in again.experts.flaw()
    again.experts.neighbours[0] = 0
    again.experts.followers[0] = 6
    assert "beyond its 6" in again.experts.flaw()
    again.experts.followers[0] = 0
    again.experts.ease_items[0, 0] = 6
    assert "beyond its 6" in again.experts.flaw()
    again.experts.offsets[-1] += 1
    assert "offsets" in again.experts.flaw()


# Each SID but the last is followed by the next one; the first two of a history are never taken again.
CHAIN_WITHOUT_LAST = windows_of([([index], [index + 1]) for index in range(1, 5)] * 40)
CHAIN = windows_of([([index], [index + 1]) for index in range(1, 6)] * 40)


def test_it_is_fitted_where_held_out_examples_gain():
    """And they are not counted: all but what is fitted stays."""
    model = model_of(windows=CHAIN)
    before = {name: value.clone() for name, value in model.experts.state_dict().items()}
    heldout = windows_of([([position], [position + 1]) for position in (1, 2, 3, 4, 5)] * 30)
    found = fit_catalogue_experts(model, heldout)
    assert found is not None and found.after > found.before
    changed = {name for name, value in model.experts.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"weights", "least", "most"}
    best = model.leaf_log_probs(torch.arange(1, 6)[:, None]).argmax(1)
    assert best.tolist() == [1, 2, 3, 4, 5]
    other = model_of(windows=CHAIN)
    set_weights(other.experts, found.counts())
    asked = torch.tensor([[1], [3]])
    assert torch.equal(other.leaf_log_probs(asked), model.leaf_log_probs(asked))


def test_they_are_fitted_to_all_that_was_seen():
    """Either of two SIDs is the target where the other one was seen before the window."""
    model = model_of(windows=CHAIN)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        next(model.each_tower()).bias[:2] = torch.tensor([5.0, 4.9])
    heldout = windows_of([([4], [1]), ([4], [2])] * 90)
    older = np.empty(180, dtype=object)
    older[:] = [np.array([2 - number % 2], dtype=np.int32) for number in range(180)]
    found = fit_catalogue_experts(model, {**heldout, "older": older})
    assert found is not None and found.before < found.after == 1.0
    best = model.leaf_log_probs(torch.tensor([[4], [4]]), None, torch.tensor([[2], [1]])).argmax(1)
    assert best.tolist() == [0, 1]
    assert fit_catalogue_experts(model, heldout) is None  # the window tells nothing


@pytest.fixture(scope="module")
def long_histories(tmp_path_factory):
    """A corpus of users with 60 of 80 items, of which models read 20, and a model with experts that is not trained."""
    folder, rng = tmp_path_factory.mktemp("long"), np.random.default_rng(0)
    (folder / "items.csv").write_text("item_id,title\n" + "".join(f"i{n},thing {n}\n" for n in range(80)))
    lines = [
        f"u{user},i{item},{1_600_000_000 + 60 * (60 * user + step)}\n"
        for user in range(4)
        for step, item in enumerate(rng.permutation(80)[:60])
    ]
    (folder / "interactions.csv").write_text("user_id,item_id,timestamp\n" + "".join(lines))
    files = {name: str(folder / f"{name}.csv") for name in ("items", "interactions")}
    output = str(folder / "corpus")
    run_prepare(PrepareConfig(source="tables", **files, split="leave_last_out", max_history=20, output=output))
    corpus = Corpus.load(output)
    table = SidTable(np.array([[n // 9, n % 9] for n in range(80)]), corpus.items["item_id"].tolist())
    write_windows(corpus, table, 0.0, folder / "windows")
    shape = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    settings = {"vector_width": 4, "experts": True, "seed": 42}
    bundle = new_bundle(corpus, table, read_windows(folder / "windows"), **settings, **shape)
    torch.nn.Module.eval(bundle.model)
    return bundle, corpus


@pytest.mark.parametrize("method", ["exact", "beam"])
def test_they_know_what_is_older_than_the_window(long_histories, monkeypatch, method):
    """The fit, an evaluation and a service give the same terms, and what was seen long ago is listed last."""
    (bundle, corpus), recorded = long_histories, []
    names, terms = ("repeats", "seen", "seen before"), Experts.terms

    def spied(self, *given):
        values = list(terms(self, *given))
        recorded.append([values[EXPERTS.index(name)] for name in names])
        return iter(values)

    monkeypatch.setattr(Experts, "terms", spied)
    rows = corpus.valid
    heldout = held_out_windows(rows, bundle.table.sid_numbers, 20)
    fit_catalogue_experts(bundle.model, {**heldout, "older": older_sids(rows, bundle.table.sid_numbers, 20)})
    (fitted,) = recorded
    weights = torch.zeros(len(FEATURES), len(EXPERTS))
    weights[0, [0, EXPERTS.index("seen")]] = torch.tensor([1.0, -50.0])
    set_weights(bundle.model.experts, {"weights": weights.tolist(), "least": [1.0] * 11, "most": [1.0] * 11})
    ranker = LanguageRanker(bundle, corpus, Search(method, beams=20))
    recommender = Recommender.of(ranker, corpus)
    queries, ids = split_queries(rows, ranker.features, ranker.context), corpus.items["item_id"]
    lists = rank_rows(ranker, rows, 20, 80, table=bundle.table, queries=queries)
    at_once = ranker.rank(queries, 20)
    probabilities = checkpoint_assistant(ranker, "it").log_probs(queries)
    for row, seen in enumerate(rows.seen):
        assert len(seen) == 58 and len(rows.histories[row]) == 20
        recorded.clear()
        assert ranker.rank(queries.take([row]), 20).items[0] == lists.items[row] == at_once.items[row]
        answer = recommender.recommend(ids[seen].tolist(), 20)
        assert [item.item_id for item in answer.items] == ids[lists.items[row]].tolist()
        assert len(recorded) == 2
        for name, wanted, *others in zip(names, fitted, *recorded, strict=True):
            assert all(torch.equal(other[0], wanted[row]) for other in others), name
        assert fitted[1][row].sum() == 58
        assert not set(lists.items[row]) & set(seen.tolist())
        best = probabilities[row][bundle.table.sid_numbers].argsort(descending=True)
        assert set(best[:20].tolist()) == set(lists.items[row])
        tree, _ = explain(recommender, Request(ids[seen].tolist(), k=5), branches=3)
        assert tree[0]["probability"] > 0
    # Those of the window alone are listed again, and a history as long as the window is scored as ever.
    again = ranker.rank(Queries(rows.histories.tolist()), 20)
    assert all(set(listed) & set(seen.tolist()) for listed, seen in zip(again.items, rows.seen, strict=True))
    model = bundle.model
    assert model.knowing([[0]], [rows.histories[0]]) is model


def test_targets_that_training_never_saw_count_more(monkeypatch):
    """The unsold SID is the target of 4 of 9 examples: counted 1.5 times, it is the more likely one."""
    model = model_of(windows=windows_of([([2], [3]), *(([3], [other]) for other in (2, 4, 5, 6))]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        next(model.each_tower()).bias[2] = 1.0
    heldout = windows_of([([2], [3 if number % 9 < 5 else 1]) for number in range(180)])
    found = fit_catalogue_experts(model, heldout)
    assert found is not None and found.after < found.before
    assert model.leaf_log_probs(torch.tensor([[2]])).argmax() == 0
    monkeypatch.setattr("minionerec.training.experts._UNSOLD", 1.0)
    assert fit_catalogue_experts(model, heldout) is None


def test_held_out_targets_are_as_likely_as_they_are_frequent():
    """Experts that are right half of the time are believed half of the time."""
    model = model_of(windows=CHAIN)
    heldout = windows_of(
        [([position], [position + 1 if number % 2 else 1]) for number in range(40) for position in (2, 3, 4, 5)]
    )
    found = fit_catalogue_experts(model, heldout)
    assert found is not None
    sure = model.leaf_log_probs(torch.tensor([[2], [3], [4], [5]])).amax(1).exp()
    assert float(sure.detach().min()) > 0.25 and float(sure.detach().max()) < 0.75


def test_it_is_left_out_where_they_do_not_gain(caplog):
    caplog.set_level("INFO", "minionerec")
    model = model_of(windows=CHAIN)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        next(model.each_tower()).bias[0] = 5.0
    plain = model.leaf_log_probs(torch.tensor([[4]]))
    for training in (True, False):
        torch.nn.Module.train(model, training)
        assert fit_catalogue_experts(model, windows_of([([4], [1])] * 90)) is None and model.training == training
        assert caplog.messages[-1].startswith("Experts are left out: validation NDCG@10")
    assert torch.equal(model.leaf_log_probs(torch.tensor([[4]])), plain)
    # Of too few nothing is learned, nor by a model without experts.
    assert fit_catalogue_experts(model_of(windows=CHAIN), windows_of([([1], [2])] * 10)) is None
    without = build_catalogue(CatalogueConfig(vocab_size=20, hidden_size=8, max_history=4), CODES, token_ids(2, 3))
    assert fit_catalogue_experts(without, CHAIN) is None


def test_what_training_never_saw_is_found_by_its_text():
    """Those who have the second SID now go on to the last, which is like it and was never a target."""
    model = model_of(windows=CHAIN_WITHOUT_LAST)
    heldout = windows_of([([2], [6]), ([1], [2]), ([3], [4]), ([4], [5])] * 300)
    found = fit_catalogue_experts(model, heldout)
    assert found is not None and model.experts.items[:, 3].tolist() == [1, 0, 0, 0, 0, 1]
    first = model.leaf_log_probs(torch.tensor([[2], [4]])).argsort(1, descending=True)[:, :2].tolist()
    assert first[0][0] == 5 and first[1][0] == 4


def test_without_a_model_counts_alone_are_fitted():
    experts = model_of(windows=CHAIN).experts
    heldout = windows_of([([position], [position + 1]) for position in (1, 2, 3, 4, 5)] * 30)
    fitted = fit_experts(experts, heldout, None)
    assert fitted is not None and fitted.after == pytest.approx(fitted.gains.mean(), abs=1e-4)
    assert fitted.after >= fitted.before
    weights = np.array(fitted.weights)
    assert not weights[:, :2].any() and weights[0].any() and torch.equal(experts.weights, torch.tensor(fitted.weights))
    row, slot = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    pooled = experts(None, torch.arange(1, 5)[:, None], row, slot)
    assert pooled.argmax(1).tolist() == [1, 2, 3, 4]
    assert torch.allclose(pooled.exp().sum(1), torch.ones(4), atol=1e-5)
    # Others share the counts, and have weights of their own.
    off = {"weights": np.zeros(weights.shape).tolist(), "least": fitted.least, "most": fitted.most}
    other = experts.with_weights(off)
    assert other.counts is experts.counts and not other.weights.any() and experts.weights.any()


def test_sids_that_a_model_has_not_scored_are_no_candidates(caplog):
    """Where the target is never scored nothing is fitted; where it competes with one SID it is first or second."""
    caplog.set_level("INFO", "minionerec")
    experts = model_of(windows=CHAIN).experts
    heldout = windows_of([([position], [position + 1]) for position in (1, 2, 3, 4, 5)] * 30)
    wanted = heldout["labels"][:, 0] - 1
    requested = []

    def score(numbers, contexts, targets=True):
        requested.append((len(numbers), contexts.tolist()))
        log_probs, scored = torch.full((len(numbers), 6), -2.0), torch.zeros(len(numbers), 6, dtype=torch.bool)
        scored[:, 0], log_probs[:, 0] = True, -1.0
        if targets:
            scored[torch.arange(len(numbers)), torch.from_numpy(wanted[numbers]).long()] = True
        return log_probs, scored

    fitted = fit_experts(experts, heldout, score)
    assert fitted is not None and fitted.before == pytest.approx(1 / np.log2(3), abs=1e-3) and fitted.after == 1
    assert requested[0] == (150, [[0]] * 150)
    assert fit_experts(experts, heldout, partial(score, targets=False)) is None and experts.are_off
    assert "0 of 150 validation examples have their target among the candidates, and 50 are needed" in caplog.text


def test_texts_are_neighbours_by_the_words_they_share():
    texts = ["red oak table", "oak table", "lamp", "", "red lamp", "red oak table"]
    found = nearest_texts(texts, 2)
    rows = [others.tolist() for others in np.split(found.indices, found.indptr[1:-1])]
    assert rows == [[1, 5], [0, 5], [4], [], [0, 2, 5], [0, 1]] and np.allclose(found.data[1], 1)
    assert nearest_texts(["", "-"]).nnz == 0


def test_vectors_of_another_encoder_count_as_much_as_shared_words():
    texts, vectors = ["red oak table", "oak table", "lamp", ""], np.array([[2.0, 0], [0, 1], [1, 1], [-1, 0]])
    words, both = (sparse_rows(nearest_texts(texts, vectors=each)) for each in (None, vectors))
    assert both[0] == pytest.approx({1: words[0][1] / 2, 2: 0.5**0.5 / 2})
    assert both[2] == pytest.approx({0: 0.5**0.5 / 2, 1: 0.5**0.5 / 2}) and not both[3]
    assert sparse_rows(nearest_texts([""] * 4, vectors=vectors))[2] == both[2]


def sparse_rows(found):
    """Others and similarities of each text."""
    parts = zip(*(np.split(values, found.indptr[1:-1]) for values in (found.indices, found.data)), strict=True)
    return [dict(zip(others.tolist(), alike.tolist(), strict=True)) for others, alike in parts]


def test_new_sids_join_the_experts():
    model = model_of()
    use(model)
    codes = np.concatenate([CODES, [[0, 3]]])
    alike = np.zeros((7, 7))
    number = [int(np.flatnonzero((np.unique(codes, axis=0) == code).all(1))[0]) for code in codes]
    known, new = number[:6], number[6]
    words = np.zeros((7, 7))
    alike[np.ix_(known, known)], words[np.ix_(known, known)] = ALIKE, BY_TEXT
    alike[new, known[3]] = alike[known[3], new] = 0.4
    pairs = of_same_pairs(*(csr_array(table.astype(np.float32)) for table in (alike, words)))
    vectors = np.zeros((7, 2), dtype=np.float32)
    vectors[known], vectors[new] = VECTORS, [0, 1]
    grown = extended_catalogue(model, codes, token_ids(2, 4), 20, None, None, ItemLikeness(*pairs, vectors))
    for name in ("weights", "least", "most"):
        assert torch.equal(getattr(grown.experts, name), getattr(model.experts, name))
    assert torch.equal(grown.experts.popularity[:, known], model.experts.popularity)
    assert torch.equal(grown.experts.items[known], model.experts.items)
    assert grown.experts.items[new, 3] == 1 and grown.experts.repeats[new] == 0
    near = (model.experts.popularity[:, :3] + NO_SALE).log().mean(1).exp() - NO_SALE
    assert torch.allclose(grown.experts.popularity[:, new], near, atol=1e-6)
    own = grown.experts
    asked = mean_of_neighbours(
        torch.arange(7.0)[None], own.items[:, 3] > 0, own.text_offsets, own.neighbours, own.similarities[0]
    )[0]
    assert float(asked[new]) == known[3] and torch.equal(asked[known[:5]], torch.tensor(known[:5]).float())
    # Known SIDs stand to each other as before, for equal log-probabilities of the model.
    histories, at = torch.tensor([[1, 2, 4]]), (torch.tensor([0]), torch.tensor([2]))
    moved = torch.tensor([[number[item - 1] + 1 for item in histories[0].tolist()]])
    own = torch.randn(1, 6)
    wide = torch.zeros(1, 7).index_copy(1, torch.tensor(known), own)
    before = model.experts(own, histories, *at)
    after = grown.experts(wide, moved, *at)[:, known]
    assert torch.allclose(after - after[:, :1], before - before[:, :1], atol=1e-4)


def test_pairs_of_either_similarity_are_those_of_both():
    first, second = np.zeros((2, 5, 5), dtype=np.float32)
    first[0, 1], first[3, 2], second[0, 4], second[3, 2], second[4, 0] = 0.5, 0.4, 0.3, 0.2, 0.1
    made = of_same_pairs(csr_array(first), csr_array(second))
    for found, wanted in zip(made, (first, second), strict=True):
        assert np.array_equal(found.toarray(), wanted) and found.dtype == np.float32
        assert found.indptr.tolist() == [0, 2, 2, 2, 3, 4] and found.indices.tolist() == [1, 4, 2, 0]
    assert [each.nnz for each in of_same_pairs(*[csr_array((3, 3), dtype=np.float32)] * 2)] == [0, 0]
