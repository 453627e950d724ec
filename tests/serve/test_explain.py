"""Explanations: the tree against stock logits and against sums of leaves, reasons against asking again."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from support.conditioned import save_conditioned
from support.store import shared

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.bundle import load_bundle
from minionerec.recommend.items import CatalogueItems, Column
from minionerec.recommend.rankers.baselines import make_baselines
from minionerec.recommend.rankers.language import LanguageRanker, Search
from minionerec.recommend.rankers.protocol import Queries
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Request, RequestError
from minionerec.serve.explain import SOURCES, explain

HISTORY = ["i3", "i9", "i10", "i3", "i7"]


def recommender_of(ranker, corpus):
    """With a column of prices, the item's number."""
    prices = Column.of(pd.Series(np.arange(corpus.n_items)))
    items = CatalogueItems(corpus.items["item_id"].tolist(), corpus.items["title"].tolist(), {"price": prices})
    return Recommender(ranker, items, "model", "0" * 12, corpus.max_history)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A catalogue model over chains of 24 items, its weights drawn at random so that every part has a say."""
    folder = shared(tmp_path_factory, save_conditioned, False)
    corpus = Corpus.load(folder / "corpus")
    return recommender_of(LanguageRanker(load_bundle(folder / "conditioned"), corpus, Search("exact")), corpus)


@pytest.fixture(scope="module")
def speaker(made):
    """A language model over six items, two of which share their SID."""
    corpus = Corpus.load(made / "corpus")
    return recommender_of(LanguageRanker(load_bundle(made / "checkpoint"), corpus, Search(beams=6)), corpus)


def flat(nodes, above=""):
    """Path → node, of all nodes with a code."""
    found = {}
    for node in nodes:
        if node["code"] is not None:
            found[above + node["code"]] = node
            found |= flat(node["children"], above + node["code"])
    return found


def by_kind(reasons, item_id, kind):
    return {reason["item_id"]: reason for reason in reasons[item_id] if reason["kind"] == kind}


def stock_probability(ranker, history, sid):
    """Of the codes of a text behind a prompt, by the model's own logits of the whole text."""
    prompt = ranker.prompts(Queries([history]))[1][0]
    codes = ranker.bundle.tokenizer.convert_tokens_to_ids([f"{part}>" for part in sid.split(">")[:-1]])
    with torch.no_grad():
        logits = ranker.bundle.model(input_ids=torch.tensor([[*prompt, *codes]])).logits[0].log_softmax(-1)
    first = len(prompt) - 1
    return math.exp(sum(float(logits[first + position, code]) for position, code in enumerate(codes)))


def test_the_tree_of_a_language_model_has_the_probabilities_of_stock_logits(speaker):
    history = np.array([0, 3], np.int32)
    nodes = flat(explain(speaker, Request(["u", "x"], k=6))[0])
    assert len(nodes) == 3 + 5  # every prefix and SID, for every item is listed
    for path, node in nodes.items():
        assert node["probability"] == pytest.approx(stock_probability(speaker.ranker, history, path), rel=1e-4)
    leaf = nodes["<a_0><b_1>"]
    assert leaf["items"] == ["y", "v"]  # the more popular first, as lists have them
    assert leaf["titles"] == ["thing 4", "thing 1"]


def test_leaves_have_the_probabilities_of_the_list_and_prefixes_their_sums(shop):
    request = Request(HISTORY, k=24)
    listed = {item.item_id: item for item in shop.answer([request])[0].items}
    nodes = flat(explain(shop, request)[0])
    for node in nodes.values():
        for item_id in node["items"]:
            assert node["probability"] == pytest.approx(listed[item_id].probability, rel=1e-4)
        if node["children"]:
            below = sum(child["probability"] for child in node["children"])
            assert below == pytest.approx(node["probability"], rel=1e-4)
    assert sum(len(node["items"]) for node in nodes.values()) == 24
    assert sum(node["probability"] for path, node in nodes.items() if path.count("<") == 1) == pytest.approx(
        1, rel=1e-4
    )


@pytest.mark.parametrize("branches", [0, 2, 8])
def test_what_is_not_shown_stands_together(shop, branches):
    whole = flat(explain(shop, Request(HISTORY, k=24), branches=100)[0])
    request = Request(HISTORY, k=3)
    listed = {item.sid for item in shop.answer([request])[0].items}
    tree = explain(shop, request, branches=branches)[0]
    assert {path for path in flat(tree) if path.count("<") == 3} >= listed

    def check(nodes, above):
        children = {
            path: node for path, node in whole.items() if path.startswith(above) and path.count("<") == depth(above)
        }
        named = {above + node["code"]: node for node in nodes if node["code"] is not None}
        on = {path for path in named if any(sid.startswith(path) for sid in listed)}
        others = sorted(set(children) - on, key=lambda path: -children[path]["probability"])
        assert set(named) == on | set(others[:branches])
        rest = [node for node in nodes if node["code"] is None]
        assert [node["branches"] for node in rest] == ([len(others) - branches] if len(others) > branches else [])
        left = sum(children[path]["probability"] for path in others[branches:])
        assert sum(node["probability"] for node in rest) == pytest.approx(left, rel=1e-4)
        shown = [node["probability"] for node in named.values()]
        assert shown == sorted(shown, reverse=True)
        for path, node in named.items():
            assert node["probability"] == pytest.approx(whole[path]["probability"], rel=1e-4)
            assert bool(node["children"]) == (path in on and path.count("<") < 3)
            if node["children"]:
                check(node["children"], path)

    def depth(above):
        return above.count("<") + 1

    check(tree, "")


def test_filters_change_no_probability_and_are_marked(shop):
    where = {"price": {"at_least": 6, "at_most": 8}}
    free = flat(explain(shop, Request(HISTORY, k=24), branches=100)[0])
    tree, reasons = explain(shop, Request(HISTORY, k=5, where=where, exclude_seen=True), branches=100)
    assert list(reasons) and set(reasons) == {"i6", "i8"}  # i7 is in the history
    marked = flat(tree)
    assert {path for path, node in marked.items() if node["allowed"]} == {
        "<a_1>", "<a_1><b_0>", "<a_1><b_2>", "<a_1><b_0><c_0>", "<a_1><b_2><c_0>",
    }  # fmt: skip
    for path, node in marked.items():
        assert node["probability"] == pytest.approx(free[path]["probability"], rel=1e-4)


@pytest.mark.parametrize("name", ["shop", "speaker"])
def test_a_change_is_what_asking_again_without_the_item_gives(name, request):
    recommender = request.getfixturevalue(name)
    history = HISTORY if name == "shop" else ["u", "x", "v", "u"]
    everything = len(recommender.items)
    _, reasons = explain(recommender, Request(history, k=4))
    listed = recommender.recommend(history, everything).items
    assert len(reasons) >= 4
    for item_id in reasons:
        score = next(item.score for item in listed if item.item_id == item_id)
        found = by_kind(reasons, item_id, "history")
        assert list(found) == list(dict.fromkeys(reversed(history)))  # each once, the newest first
        for source, reason in found.items():
            left = recommender.recommend([one for one in history if one != source], everything).items
            without = next(item for item in left if item.item_id == item_id)
            assert reason["change"] == pytest.approx(score - without.score, rel=1e-4, abs=1e-4)
            assert reason["probability"] == pytest.approx(math.exp(score), rel=1e-4)
            assert reason["without"] == pytest.approx(without.probability, rel=1e-3)
            assert reason["title"] == recommender.items.titles[recommender.items.index(source)]
    assert any(abs(reason["change"]) > 0.1 for rows in reasons.values() for reason in rows if "change" in reason)


@pytest.mark.parametrize("history", [HISTORY, ["i3"], []])
@pytest.mark.parametrize("context", ["unknown", "same", "later"])
def test_a_list_of_a_gap_is_explained_by_it(telling, history, context):
    request = Request(history, k=24, context={"gap": context})
    listed = {item.item_id: item for item in telling.answer([request])[0].items}
    tree, reasons = explain(telling, request)
    leaves = [(node, item_id) for node in flat(tree).values() for item_id in node["items"]]
    assert len(leaves) == 24
    for node, item_id in leaves:
        assert node["probability"] == pytest.approx(listed[item_id].probability, rel=1e-4)
    for source in dict.fromkeys(history):
        left = telling.recommend([one for one in history if one != source], 24, context={"gap": context}).items
        for item in left:
            reason = by_kind(reasons, item.item_id, "history")[source]
            assert reason["change"] == pytest.approx(listed[item.item_id].score - item.score, rel=1e-4, abs=1e-4)


def test_counts_are_training_rows_and_similarities_are_cosines(shop):
    _, reasons = explain(shop, Request(HISTORY, k=24))
    corpus, model = shop.ranker.builder.corpus, shop.ranker.bundle.model
    text = model.text.numpy()[shop.ranker.table.sid_numbers]
    counted = 0
    for item_id in reasons:
        item = shop.items.index(item_id)
        counts, alike = by_kind(reasons, item_id, "counts"), by_kind(reasons, item_id, "vectors")
        assert set(counts) == set(alike) == set(HISTORY)
        for source in counts:
            other = shop.items.index(source)
            rows = sum(target == item and other in history.tolist() for _, history, target in corpus.train)
            assert counts[source]["times"] == rows
            cosine = text[item] @ text[other] / np.linalg.norm(text[item]) / np.linalg.norm(text[other])
            assert alike[source]["similarity"] == pytest.approx(cosine, rel=1e-4, abs=1e-5)
            counted += rows
    assert counted


def test_an_item_without_a_vector_is_similar_to_none(shop):
    text = shop.ranker.bundle.model.text[shop.ranker.table.sid_numbers[shop.items.index("i9")]]
    before = text.clone()
    text.zero_()
    reasons = explain(shop, Request(HISTORY, k=24))[1]
    text.copy_(before)
    for item_id, found in reasons.items():
        alike = {reason["item_id"] for reason in found if reason["kind"] == "vectors"}
        assert alike == (set() if item_id == "i9" else set(HISTORY) - {"i9"})


def test_a_language_model_reads_neither_counts_nor_vectors(speaker):
    reasons = explain(speaker, Request(["u", "x"], k=2))[1]
    assert {reason["kind"] for rows in reasons.values() for reason in rows} == {"history"}


def test_a_ranker_without_sids_has_score_changes_and_no_tree(shop):
    corpus = shop.ranker.builder.corpus
    recommender = recommender_of(make_baselines(corpus)[1]["most recent items"], corpus)
    tree, reasons = explain(recommender, Request(["i4", "i5"], k=2))
    assert tree == []
    assert list(reasons) == ["i5", "i4"]
    newest = by_kind(reasons, "i4", "history")["i5"]
    assert newest == {
        "kind": "history",
        "item_id": "i5",
        "title": "cup number 5",
        "change": -1.0,  # without the newest item it would be first among the two
        "probability": None,
        "without": None,
    }


def test_of_long_histories_the_newest_items_are_explained(shop):
    history = [f"i{position}" for position in (*range(SOURCES + 5), SOURCES + 4)]
    shop_of_long = Recommender(shop.ranker, shop.items, "model", "0" * 12, 50)
    _, reasons = explain(shop_of_long, Request(history, k=1))
    found = by_kind(reasons, next(iter(reasons)), "history")
    assert list(found) == [f"i{position}" for position in range(SOURCES + 4, 4, -1)]


def test_without_a_history_or_a_list_there_are_no_reasons(shop):
    assert set(map(tuple, explain(shop, Request([], k=3))[1].values())) == {()}
    tree, reasons = explain(shop, Request(HISTORY, k=3, where={"price": {"at_least": 1000}}))
    assert reasons == {}
    assert not any(node["allowed"] for node in tree)
    assert sum(node["probability"] for node in tree) == pytest.approx(1, rel=1e-4)


def test_an_explanation_is_plain_json(shop):
    tree, reasons = explain(shop, Request(HISTORY, k=3, exclude_seen=True), branches=1)
    assert json.loads(json.dumps(reasons)) == reasons
    assert json.loads(json.dumps(tree)) == tree


def test_bad_requests_are_refused(shop):
    with pytest.raises(RequestError, match=r"^k: is 0"):
        explain(shop, Request(HISTORY, k=0))
    with pytest.raises(RequestError, match=r"^history\[0\]: 'nobody' is not an item"):
        explain(shop, Request(["nobody"], unknown="refuse"))
    with pytest.raises(ConfigError, match="branches is -1; it must be at least 0"):
        explain(shop, Request(HISTORY), branches=-1)
