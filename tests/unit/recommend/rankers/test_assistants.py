"""A second recommender in a search: it gets the request features too, where it was conditioned on it."""

import numpy as np
import pytest
import torch
from support.conditioned import save_conditioned
from support.gaps import GAP, LATER, SAME
from support.store import shared

from minionerec.core.errors import DataError
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN
from minionerec.recommend.rankers.language import LanguageRanker, Search
from minionerec.recommend.rankers.load import load_assistant, load_ranker
from minionerec.recommend.rankers.protocol import Queries

SHARE = 0.3
HISTORY = np.array([3, 9], np.int32)


@pytest.fixture(scope="module")
def shop(conditioned, tmp_path_factory):
    """The corpus, and by its name a checkpoint that was conditioned on the gap and one that was not."""
    plain = shared(tmp_path_factory, save_conditioned, False) / "conditioned"
    return Corpus.load(conditioned / "corpus"), {
        "conditioned": conditioned / "conditioned",
        "unconditioned": plain,
    }


def of_model(ranker: LanguageRanker, context: int) -> np.ndarray:
    """Log-probabilities of all SIDs after the history by the model itself."""
    rows = torch.from_numpy(ranker.table.sid_numbers[HISTORY] + 1)[None]
    with torch.no_grad():
        return ranker.bundle.model.eval().leaf_log_probs(rows, torch.tensor([[context]]))[0].numpy()


@pytest.mark.parametrize("combine", ["steps", "rerank"])
@pytest.mark.parametrize("searched", ["conditioned", "unconditioned"])
def test_an_assistant_is_given_request_features_where_it_knows_them(shop, searched, combine):
    corpus, checkpoints = shop
    other = "unconditioned" if searched == "conditioned" else "conditioned"
    ranker = load_ranker(checkpoints[searched], corpus, search=Search("exact"))
    helper = load_ranker(checkpoints[other], corpus)
    assert ("gap" in ranker.context) is (searched == "conditioned")
    ranker.assistant, ranker.share, ranker.combine = load_assistant(checkpoints[other], ranker, corpus), SHARE, combine
    assert ranker.context and bool(ranker.assistant.context) is (other == "conditioned")
    contexts = [UNKNOWN, SAME, LATER, SAME]
    found = ranker.rank(
        Queries([HISTORY] * 4, {"gap": np.array(contexts)}), 24
    )  # prompts that are equal where only the assistant is told
    for context, items, scores in zip(contexts, found.items, found.scores, strict=True):
        reported = {"conditioned": context, "unconditioned": UNKNOWN}
        wanted = SHARE * of_model(ranker, reported[searched]) + (1 - SHARE) * of_model(helper, reported[other])
        assert scores == pytest.approx(wanted[ranker.table.sid_numbers[list(items)]], rel=1e-4, abs=1e-4)
    assert len({round(scores[0], 3) for scores in found.scores}) == GAP.size


def test_queries_are_joined_taken_and_distinguished():
    known, unknown = (
        Queries([HISTORY, HISTORY, HISTORY[:0]], {"gap": np.array([SAME, LATER, LATER])}),
        Queries([HISTORY[:1]]),
    )
    assert known.context["gap"].tolist() == [SAME, LATER, UNKNOWN]  # no session goes on behind an empty history
    assert known.given == ("gap",) and unknown.given == ()
    assert len({known.key(0), known.key(1), unknown.key(0), known.take([1]).key(0)}) == 3
    assert Queries.joined([known, known.take([1])]).context["gap"].tolist() == [SAME, LATER, UNKNOWN, LATER]
    joined = Queries.joined([known, unknown])
    assert len(joined) == 4 and joined.context["gap"].tolist() == [SAME, LATER, UNKNOWN, UNKNOWN]
    longer = Queries([HISTORY[-1:]], {"gap": np.array([SAME])}, [HISTORY])
    fewer = longer.without_items(HISTORY[-1:].tolist())
    assert [past.tolist() for past in fewer.histories] == [HISTORY[-1:].tolist(), []]
    assert [past.tolist() for past in fewer.seen] == [HISTORY.tolist(), HISTORY[:1].tolist()]
    assert fewer.context["gap"].tolist() == [SAME, UNKNOWN]
    assert Queries([HISTORY[-1:]], {"gap": np.array([SAME])}).key(0) != longer.key(0) == longer.take([0]).key(0)
    with pytest.raises(DataError, match="gap has 2 values for 1 histories"):
        Queries([HISTORY], {"gap": np.array([SAME, LATER])})
