"""A checkpoint as a recommender: its searches, what is left out, and what it is asked."""

import numpy as np
import pytest
from support.evaluation import copy_artefact
from support.scripts import benchmark

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.decoding.decoder import decode_prompts
from minionerec.models.prompts.wording import load_wording
from minionerec.recommend.rankers.language import LanguageRanker, Search
from minionerec.recommend.rankers.load import load_ranker
from minionerec.recommend.rankers.protocol import Allowed, Queries, Ranker

HISTORIES = [np.array([0, 3], np.int32), np.array([5], np.int32), np.array([0, 3], np.int32), np.array([], np.int32)]


@pytest.fixture(scope="module")
def corpus(made):
    return Corpus.load(made / "corpus")


def test_it_ranks_what_the_decoder_ranks_with_the_items_of_an_sid_side_by_side(made, corpus):
    ranker = load_ranker(made / "checkpoint", corpus)
    assert isinstance(ranker, Ranker) and isinstance(ranker, LanguageRanker)
    found = ranker.rank(Queries(HISTORIES), 3)
    texts, prompts, _ = ranker.prompts(Queries(HISTORIES))
    sids, scores = decode_prompts(ranker.bundle.model, prompts, ranker.trie, 3, batch_size=4)
    for row, numbers in enumerate(sids.tolist()):
        assert list(found.items[row]) == [item for number in numbers for item in ranker.items_of[number]]
        listed = [score for number, score in zip(numbers, scores[row], strict=True) for _ in ranker.items_of[number]]
        assert found.scores[row] == pytest.approx(listed, rel=1e-5)
    assert found.items[0] == found.items[2]
    assert texts[0] == texts[2]


def test_a_list_does_not_depend_on_what_else_is_asked(made, corpus):
    ranker = load_ranker(made / "checkpoint", corpus, search=Search(beams=2))
    without = [[1], [0, 2, 5], [], [4, 1]]
    together = ranker.rank(Queries(HISTORIES), 2, Allowed.leaving_out(without, corpus.n_items))
    for row, (history, gone) in enumerate(zip(HISTORIES, without, strict=True)):
        alone = ranker.rank(Queries([history]), 2, Allowed.leaving_out([gone], corpus.n_items))
        assert alone.items[0] == together.items[row]
    assert [ranker.num_beams(2, left_out) for left_out in (0, 1)] == [2, 5] and ranker.num_beams(9, 0) == 5


def stock_ranker(checkpoint, corpus, **search):
    """A ranker that searches by `generate` of transformers."""
    return benchmark("stock").StockRanker(load_bundle(checkpoint), corpus, Search(**search))


@pytest.mark.parametrize("batch_size", [0, 1, 7])
@pytest.mark.parametrize("method", ["beam", "exact", "stock"])
def test_neither_search_nor_batch_size_changes_the_lists(made, corpus, method, batch_size):
    wanted = load_ranker(made / "checkpoint", corpus).rank(Queries(HISTORIES), 5)
    if method == "stock":
        ranker = stock_ranker(made / "checkpoint", corpus, batch_size=batch_size)
    else:
        ranker = load_ranker(made / "checkpoint", corpus, search=Search(method, batch_size=batch_size))
    found = ranker.rank(Queries(HISTORIES), 5)
    assert found.items == wanted.items
    for ours, theirs in zip(found.scores, wanted.scores, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4)


def test_more_candidates_than_the_catalogue_has_give_all_of_it(made, corpus):
    found = load_ranker(made / "checkpoint", corpus).rank(Queries(HISTORIES), 50)
    assert [sorted(row) for row in found.items] == [list(range(6))] * 4


def test_the_model_is_left_in_the_mode_it_was_in(made, corpus):
    bundle = load_bundle(made / "checkpoint")
    bundle.model.train()
    LanguageRanker(bundle, corpus).rank(Queries(HISTORIES), 2)
    assert bundle.model.training


def test_searches_that_there_are_not():
    with pytest.raises(ConfigError, match="unknown search 'wide'; known: beam, exact"):
        Search("wide")
    with pytest.raises(ConfigError, match="unknown scores 'odd'; known: full, renormalised"):
        Search(scores="odd")


@pytest.mark.parametrize("beams", [1, 3, 5])
@pytest.mark.parametrize("score_end", [False, True])
def test_generate_of_transformers_gives_the_same_lists(made, corpus, tmp_path, beams, score_end):
    checkpoint = made / "checkpoint"
    if score_end:
        checkpoint = copy_artefact(checkpoint, tmp_path / "prose", **{"wording.yaml": load_wording("prose").to_yaml()})
    ours = load_ranker(checkpoint, corpus, search=Search(score_end=score_end)).rank(Queries(HISTORIES), beams)
    stock = stock_ranker(checkpoint, corpus, score_end=score_end).rank(Queries(HISTORIES), beams)
    assert stock.items == ours.items
    for one, other in zip(stock.scores, ours.scores, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-4)
