"""The recommender: ids in and out, filters equal to filtering the whole ranking, for every kind of model."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.evaluation import copy_artefact
from support.gaps import GAP
from support.scripts import benchmark
from support.small_shop import sign

from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.pipeline.config.sequential import SequentialConfig
from minionerec.pipeline.config.training import CatalogueTrainConfig
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.recommend.rankers.baselines import make_baselines
from minionerec.recommend.rankers.language import LanguageRanker, Search
from minionerec.recommend.rankers.load import load_ranker
from minionerec.recommend.rankers.protocol import Queries
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Request, RequestError

KINDS = ("language", "language exactly", "catalogue", "sequential", "baseline")


@pytest.fixture(scope="module")
def trained(made, tmp_path_factory):
    """A folder with a catalogue model and SASRec on the same six items."""
    folder = tmp_path_factory.mktemp("models")
    inputs = {"corpus": str(made / "corpus"), "sids": str(made / "sids")}
    shape = {
        "hidden_size": 16,
        "layers": 1,
        "heads": 2,
        "inner_size": 16,
        "vectors": "",
        "epochs": 0.5,
        "eval_examples": 5,
    }
    run_catalogue(CatalogueTrainConfig(**inputs, **shape, eval_beams=10, output=str(folder / "catalogue")))
    tiny = {"hidden_size": 16, "inner_size": 16, "num_layers": 1}
    asked = {"protocol": "rows", "hyper": tiny, "max_len": 3, "epochs": 1, "list_length": 5, "resamples": 10}
    run_sequential(SequentialConfig(model="sasrec", **inputs, **asked, output=str(folder / "sasrec")))
    return folder


@pytest.fixture(scope="module")
def recommenders(made, trained):
    """One recommender of each kind."""
    corpus = Corpus.load(made / "corpus")
    return {
        "language": Recommender.load(made / "checkpoint", corpus=made / "corpus"),
        "language exactly": Recommender.load(made / "checkpoint", search=Search("exact"), corpus=made / "corpus"),
        "catalogue": Recommender.load(trained / "catalogue", corpus=made / "corpus"),
        "sequential": Recommender.load(trained / "sasrec" / "model", corpus=made / "corpus"),
        "baseline": Recommender.of(make_baselines(corpus)[1]["transition counts"], corpus),
    }


def test_answers_are_the_rankers_lists_in_the_users_words(made, recommenders):
    recommender = recommenders["language"]
    corpus = Corpus.load(made / "corpus")
    ranker = load_ranker(made / "checkpoint", corpus)
    ranking = ranker.rank(Queries([np.array([1, 4])]), 5)
    answer = recommender.recommend(["v", "y"], 5)
    assert [item.item_id for item in answer.items] == ["uvwxyz"[item] for item in ranking.items[0][:5]]
    for item, index, score in zip(answer.items, ranking.items[0], ranking.scores[0], strict=False):
        assert (item.title, item.sid) == (f"thing {index}", ranker.table.sids[index])
        assert item.score == pytest.approx(score, rel=1e-5, abs=1e-5)
        assert item.probability == pytest.approx(np.exp(score), rel=1e-4)
    assert recommender.name == "language model" and len(recommender.version) == 12
    assert recommenders["catalogue"].name == "catalogue model"
    one = recommenders["sequential"].recommend(["v"], 2).items[0]
    assert one.sid is None and one.probability is None


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_filters_equal_filtering_the_whole_ranking(recommenders, kind, data):
    recommender = recommenders[kind]
    ids = st.lists(st.sampled_from("uvwxyz"), max_size=4)
    requests = data.draw(
        st.lists(
            st.builds(
                Request,
                history=ids,
                k=st.integers(1, 7),
                exclude_seen=st.booleans(),
                only=st.none() | ids,
                without=ids,
                where=st.sampled_from([{}, {"shelf": "1a"}, {"price": {"at_least": 2, "at_most": 4}}]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    prices = dict(zip("uvwxy", range(1, 6), strict=True))
    for request, answer in zip(requests, recommender.answer(requests), strict=True):
        everything = recommender.recommend(request.history, 6).items
        assert len(everything) == 6
        allowed = {
            item
            for item in "uvwxyz"
            if (request.only is None or item in request.only)
            and item not in request.without
            and not (request.exclude_seen and item in request.history)
            and (not request.where or item in prices)
            and ("shelf" not in request.where or item in "uvy")
            and ("price" not in request.where or 2 <= prices[item] <= 4)
        }
        wanted = [item for item in everything if item.item_id in allowed][: request.k]
        assert [item.item_id for item in answer.items] == [item.item_id for item in wanted]
        if kind != "baseline":  # whose scores are ranks
            assert [item.score for item in answer.items] == pytest.approx(
                [item.score for item in wanted], rel=1e-4, abs=1e-4
            )


SHELVES = {"u": "1a", "v": "1a", "w": "2b", "x": "2b", "y": "1a"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "most"), [(2, 1), (3, 1), (4, 2), (6, 1), (6, 6)])
def test_a_list_has_so_many_items_of_one_value_and_is_full(recommenders, kind, k, most):
    recommender = recommenders[kind]
    everything = [item.item_id for item in recommender.recommend(["v"], 6).items]
    counts, fits = {}, []
    for item in everything:
        shelf = SHELVES.get(item)
        counts[shelf] = counts.get(shelf, 0) + 1
        fits.append(shelf is None or counts[shelf] <= most)
    wanted = [item for item, fit in zip(everything, fits, strict=True) if fit]
    wanted += [item for item, fit in zip(everything, fits, strict=True) if not fit]
    found = recommender.recommend(["v"], k, at_most={"shelf": most}).items
    assert [item.item_id for item in found] == wanted[:k]


@pytest.mark.parametrize("kind", KINDS[:3])
def test_boosted_items_are_ordered_by_boosted_probability(recommenders, kind):
    recommender = recommenders[kind]
    plain = {item.item_id: item for item in recommender.recommend(["v"], 6).items}
    found = recommender.recommend(["v"], 6, boost={"shelf": {"2b": 50, "none": 3}}, columns=["shelf", "price"]).items
    wanted = {item: one.score + np.log(50 if SHELVES.get(item) == "2b" else 1) for item, one in plain.items()}
    assert [item.item_id for item in found] == sorted(wanted, key=lambda item: -wanted[item])
    assert [item.item_id for item in found][:2] != list(plain)[:2]
    for item in found:
        assert item.score == pytest.approx(wanted[item.item_id], rel=1e-5)
        assert item.probability == pytest.approx(plain[item.item_id].probability, rel=1e-5)
        assert item.columns["shelf"] == SHELVES.get(item.item_id) and set(item.columns) == {"shelf", "price"}
    assert all(item.columns == {} for item in plain.values())


@pytest.mark.parametrize("kind", ["language", "catalogue", "sequential"])
@pytest.mark.parametrize("diversity", [0.3, 0.9, 1.0])
def test_diverse_lists_are_those_of_maximal_marginal_relevance(recommenders, kind, diversity):
    recommender = recommenders[kind]
    plain = recommender.recommend(["v"], 6).items
    index = [recommender.items.index(item.item_id) for item in plain]
    vectors = recommender.ranker.item_vectors[index].astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = np.array([item.score for item in plain])
    relevance, order = (scores - scores.min()) / (scores.max() - scores.min()), []
    while len(order) < 6:
        left = [number for number in range(6) if number not in order]
        nearest = [max((vectors[number] @ vectors[before] for before in order), default=0.0) for number in left]
        values = [
            (1 - diversity) * relevance[number] - diversity * near for number, near in zip(left, nearest, strict=True)
        ]
        order.append(left[int(np.argmax(values))])
    found = recommender.recommend(["v"], 6, diversity=diversity).items
    assert found == tuple(plain[number] for number in order)
    assert recommender.recommend(["v"], 3, diversity=diversity).items == found[:3]
    assert recommender.recommend(["v"], 6, diversity=0).items == plain


def test_a_model_without_vectors_of_items_makes_no_diverse_lists(recommenders):
    with pytest.raises(RequestError, match="diversity: compares vectors of items, which this model does not have"):
        recommenders["baseline"].recommend(["u"], diversity=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_user_and_a_long_history_get_lists(recommenders, kind):
    new, long = recommenders[kind].recommend_many([[], list("uvwxyz") * 5], 3)
    assert len(new.items) == len(long.items) == 3
    newest = recommenders[kind].recommend(list("uvwxyz") * 5, 3)
    assert [item.item_id for item in long.items] == [item.item_id for item in newest.items]
    assert recommenders[kind].answer([]) == []


def test_unknown_ids_are_named_or_refused(recommenders):
    recommender = recommenders["catalogue"]
    answer = recommender.recommend(["v", "?", "y"], 2, only=["u", "!", "w"], without=["?", "#"])
    assert answer.unknown == ("?", "!", "#") and {item.item_id for item in answer.items} == {"u", "w"}
    assert answer.items == recommender.recommend(["v", "y"], 2, only=["u", "w"]).items
    with pytest.raises(RequestError, match=r"history\[1\]: '\?' is not an item of the catalogue"):
        recommender.recommend(["v", "?"], unknown="refuse")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"k": 0}, "k: is 0; expected a whole number from 1"),
        ({"k": True}, "k: is True; expected a whole number"),
        ({"history": ["u", 3.5]}, r"history\[1\]: is 3.5; expected an item id: a text"),
        ({"exclude_seen": 1}, "exclude_seen: is 1; expected true or false"),
        ({"where": {"size": 1}}, "where.size: is not a column of the items; columns: shelf, price"),
        ({"columns": ["size"]}, r"columns\[0\]: is not a column of the items; columns: shelf, price"),
        ({"at_most": {"size": 1}}, "at_most.size: is not a column of the items"),
        ({"at_most": {"shelf": 0}}, "at_most.shelf: is 0; expected a whole number from 1"),
        ({"diversity": 1.5}, "diversity: is 1.5; expected a number from 0 to 1"),
        ({"boost": {"price": {"1": 2.0}}}, "boost.price: is a column of number values; only texts can be boosted"),
        ({"boost": {"shelf": {"1a": 0.0}}}, "boost.shelf.1a: is 0.0; expected a number above 0"),
        ({"histroy": ["u"]}, "histroy: is unknown; expected history, k, exclude_seen, only, without, where, unknown"),
    ],
)
def test_bad_requests_name_their_field(recommenders, asked, message):
    with pytest.raises(RequestError, match=message):
        recommenders["catalogue"].answer([Request(["u"]), Request(**asked)])
    with pytest.raises(RequestError, match=message):
        recommenders["catalogue"].recommend(**{"history": ["u"], **asked})


def test_a_model_without_probabilities_boosts_nothing(recommenders):
    with pytest.raises(RequestError, match="boost: multiplies probabilities, which this model does not have"):
        recommenders["sequential"].recommend(["u"], boost={"shelf": {"1a": 2.0}})


@pytest.mark.parametrize(
    "given",
    [
        *(("7", "8"), np.array(["7", "8"]), pd.Series(["7", "8"]), dict.fromkeys("78").keys()),
        *([7, np.int64(8)], pd.Series([7, 8]), np.array([7, 8])),
    ],
)
def test_ids_may_come_in_any_collection_and_as_whole_numbers(given):
    assert Request(given, only=given, without=given) == Request(["7", "8"], only=["7", "8"], without=["7", "8"])


def scores_of(answer):
    return {item.item_id: item.score for item in answer.items}


def asked_of(telling, history, context):
    """Log-probability of every item by the model itself: of each SID after a history, told a context."""
    numbers = telling.ranker.table.sid_numbers
    rows = torch.tensor([[int(numbers[int(item[1:])]) + 1 for item in history]])
    with torch.no_grad():
        found = telling.ranker.bundle.model.eval().leaf_log_probs(rows, torch.tensor([[context]]))[0]
    return {f"i{item}": float(found[number]) for item, number in enumerate(numbers)}


@pytest.mark.parametrize("context", GAP.names)
def test_a_context_reaches_the_model(telling, context):
    history = ["i3", "i9", "i7"]
    answer = telling.recommend(history, 24, context={"gap": context})
    wanted = asked_of(telling, history, GAP.names.index(context))
    assert scores_of(answer) == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert telling.recommend_many([history], 24, context={"gap": context}) == [answer]
    others = [asked_of(telling, history, other) for other in {0, 1, 2} - {GAP.names.index(context)}]
    assert all(abs(wanted[item] - other[item]) > 0.01 for other in others for item in ("i0", "i5"))
    assert telling.recommend(history, 24) == telling.recommend(history, 24, context={"gap": "unknown"})


@settings(max_examples=15)
@given(data=st.data())
def test_each_request_of_a_batch_has_its_own_context(telling, data):
    ids = [f"i{item}" for item in range(24)]
    histories = st.sampled_from([[], ["i3"], ["i3", "i9", "i7"], ["i1", "i2"]])
    request = st.builds(
        Request, history=histories, k=st.integers(1, 24), without=st.lists(st.sampled_from(ids), max_size=3),
        context=st.fixed_dictionaries({"gap": st.sampled_from(GAP.names)}),
    )  # fmt: skip
    requests = data.draw(st.lists(request, min_size=1, max_size=8))
    for asked, answer in zip(requests, telling.answer(requests), strict=True):
        assert scores_of(answer) == pytest.approx(scores_of(telling.answer([asked])[0]), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", [LanguageRanker, benchmark("stock").StockRanker])
def test_every_search_gets_the_context(telling, kind):
    corpus = telling.ranker.builder.corpus
    found = Recommender.of(kind(telling.ranker.bundle, corpus, Search(beams=24)), corpus)
    requests = [Request(["i3", "i9"], 24, context={"gap": context}) for context in GAP.names]
    for request, answer, exact in zip(requests, found.answer(requests), telling.answer(requests), strict=True):
        assert scores_of(answer) == pytest.approx(scores_of(exact), rel=1e-4, abs=1e-4), request


def test_after_an_empty_history_nothing_is_conditioned(telling):
    requests = [Request(history, 24, context={"gap": context}) for history in ([], ["nobody"]) for context in GAP.names]
    answers = telling.answer(requests)
    assert all(answer.items == answers[0].items for answer in answers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_request_features_ignores_them(recommenders, kind):
    recommender, plain = recommenders[kind], recommenders[kind].recommend(["v"], 3)
    assert recommender.recommend(["v"], 3, context={"gap": "same", "hour": 99}) == plain and plain.context == {}
    with pytest.raises(RequestError, match=r"^context\.moon: is unknown; expected gap, hour, weekday\.") as raised:
        recommender.answer([Request(["v"]), Request(["v"], context={"moon": "full"})])
    assert raised.value.field == "context.moon"


def test_an_impossible_value_is_one_error(telling):
    for value in ("noon", -1):
        with pytest.raises(RequestError, match=r"^context\.gap: is .*; expected a number of seconds from 0, or one of"):
            telling.recommend(["i3"], 3, context={"gap": value})
    assert telling.recommend(["i3"], 3, context={"gap": 5}) == telling.recommend(["i3"], 3, context={"gap": "later"})


def test_the_corpus_is_found_through_the_manifest_and_held_against_it(made, trained, tmp_path):
    model = trained / "catalogue"
    found = Recommender.load(model)
    assert found.recommend(["u"], 2) == Recommender.load(model, corpus=made / "corpus").recommend(["u"], 2)
    with pytest.raises(ArtefactError, match="its manifest names no corpus"):
        Recommender.load(made / "checkpoint")
    with pytest.raises(ArtefactError, match=r"its manifest names no corpus, and its kind is 'corpus'\. Give a"):
        Recommender.load(made / "corpus")
    broken = copy_artefact(model, tmp_path / "broken")
    (broken / "config.json").write_text("{}")
    with pytest.raises(ArtefactError, match=r"config.json: differs from manifest.json"):
        Recommender.load(broken, corpus=made / "corpus")
    copy = shutil.copytree(made / "corpus", tmp_path / "corpus")
    assert Recommender.load(model, corpus=copy).version == found.version
    items = pd.read_parquet(copy / "items.parquet")
    items.assign(price="7").to_parquet(copy / "items.parquet", index=False)
    sign(copy)
    assert Recommender.load(model, corpus=copy).version != found.version


@pytest.mark.parametrize("kind", ["language", "catalogue", "sequential"])
def test_files_may_be_overwritten_while_a_model_is_in_use(made, trained, tmp_path, kind):
    folders = {"language": made / "checkpoint", "catalogue": trained / "catalogue"}
    shutil.copytree(folders.get(kind, trained / "sasrec" / "model"), tmp_path / "model")
    found = Recommender.load(tmp_path / "model", corpus=made / "corpus")
    before = found.recommend(["u"], 5)
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))
    assert found.recommend(["u"], 5) == before


def test_a_path_is_the_folder_of_a_stage_or_its_result(made):
    with pytest.raises(ConfigError, match=r"path is .*; expected the folder that a stage wrote, or its result"):
        Recommender.load(pd.DataFrame())
