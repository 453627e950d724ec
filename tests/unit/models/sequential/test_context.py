"""What models make of contexts: nothing at first, then each context its own, in scores and in both losses."""

from collections import Counter

import numpy as np
import pytest
import torch
from support.examples import in_blocks
from support.gaps import GAP, LATER, SAME, gap_codes, make_gap_corpus
from support.histories import sequential_model

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN
from minionerec.models.sequential.rank import rank_rows, top_items
from minionerec.models.sequential.registry import MODELS, build_model
from minionerec.recommend.rankers.load import sequential_assistant
from minionerec.recommend.rankers.protocol import Queries
from minionerec.recommend.rankers.sequential import SequentialRanker
from minionerec.training.sequential.train import TrainingExamples

ITEMS, LENGTH = 20, 10
HYPER = {"causal": {"hidden_size": 16, "num_heads": 2, "pointer": True}}
REPORTED = sorted(set(MODELS) - {"bert4rec"})
HISTORIES = torch.tensor([[3, 8, 5, 2] + [0] * 6, [1] + [0] * 9, [4, 4, 9, 1, 7, 6, 11, 20, 2, 5]])
AFTER = torch.tensor([[8, 5, 2, 9] + [0] * 6, [7] + [0] * 9, [4, 9, 1, 7, 6, 11, 20, 2, 5, 13]])
TARGETS, USERS = torch.tensor([9, 7, 13]), torch.arange(3)


def built(name, conditioned=True, padding="right"):
    torch.manual_seed(0)
    model = sequential_model(name, ITEMS, LENGTH, padding, **HYPER.get(name, {}))
    if conditioned:
        model.condition_on([GAP])
    return model.eval()


def stirred(name, padding="right"):
    """A model whose contexts were drawn at random, so that each makes a difference."""
    model = built(name, padding=padding)
    for part in model.context_states.parameters():
        torch.nn.init.normal_(part, std=0.5)
    return model


def reported(model, contexts):
    """Scores of items, the loss of rows, and that of all positions where there is one."""
    with torch.no_grad():
        found = [model.scores(HISTORIES, USERS, contexts)[:, 1:], model.loss(HISTORIES, TARGETS, USERS, contexts)]
        if model.causal:
            everywhere = None if contexts is None else contexts[:, None].expand(-1, LENGTH, -1)
            found.append(model.sequence_loss(HISTORIES, AFTER, everywhere))
    return found


@pytest.mark.parametrize("name", REPORTED)
def test_at_first_a_conditioned_model_is_the_same_and_then_each_gap_has_its_own(name):
    plain, model = built(name, conditioned=False), built(name)
    assert not any(parameter.any() for parameter in model.context_states.parameters())
    for contexts in (None, torch.tensor([[SAME], [LATER], [UNKNOWN]])):
        for found, wanted in zip(reported(model, contexts), reported(plain, contexts), strict=True):
            assert torch.equal(found, wanted)
    model = stirred(name)
    whole = [reported(model, torch.full((3, 1), context)) for context in range(GAP.size)]
    for first, second in ((UNKNOWN, SAME), (UNKNOWN, LATER), (SAME, LATER)):
        assert all((one - other).abs().max() > 1e-3 for one, other in zip(whole[first], whole[second], strict=True))
    for unconditioned, unknown in zip(reported(model, None), whole[UNKNOWN], strict=True):
        assert torch.equal(unconditioned, unknown)
    mixed = reported(model, torch.tensor([[LATER], [SAME], [UNKNOWN]]))[0]  # each row has its own
    for row, context in enumerate((LATER, SAME, UNKNOWN)):
        assert torch.allclose(mixed[row], whole[context][0][row], atol=1e-5)


@pytest.mark.parametrize("padding", ["right", "left"])
def test_at_all_positions_each_target_has_the_gap_of_its_own(padding):
    """The loss of a window is the mean of those of its rows."""
    model = stirred("causal", padding)
    items, asked = [3, 8, 5, 2], [0, LATER, SAME, UNKNOWN]
    rows = [(items[: position + 1], items[position + 1], asked[position + 1]) for position in range(3)]

    def padded(values):
        gap = [0] * (LENGTH - len(values))
        return torch.tensor([values + gap if padding == "right" else gap + values])

    with torch.no_grad():
        whole = model.sequence_loss(padded(items[:3]), padded(items[1:]), padded(asked[1:])[..., None])
        alone = [
            model.loss(padded(read), torch.tensor([target]), None, torch.tensor([[context]]))
            for read, target, context in rows
        ]
    assert whole.item() == pytest.approx(torch.stack(alone).mean().item(), rel=1e-4, abs=1e-5)


def test_a_model_of_hidden_items_cannot_be_conditioned():
    with pytest.raises(ConfigError, match=r"BERT4Rec learns to fill in items .* Leave context out"):
        built("bert4rec")


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("max_len", [4, 10])
@pytest.mark.parametrize("read", [Corpus.load, in_blocks])
def test_rows_and_windows_have_the_gaps_of_their_rows(tmp_path, padding, max_len, read):
    corpus = make_gap_corpus(tmp_path / "corpus", users=20)

    def batch(all_positions):
        examples = TrainingExamples.of(
            read(tmp_path / "corpus"),
            max_len,
            padding,
            all_positions=all_positions,
            features=[GAP],
            folder=tmp_path / "rows",
        )
        torch.manual_seed(0)
        histories, targets, users, contexts = examples.batch(np.arange(len(examples)), torch.device("cpu"))
        assert users is None
        return histories, targets, contexts[..., 0]

    # Each target has the items before it as its row has them, as far as the window reaches, and the row's context,
    # unless that is hidden by chance.
    rows = {}
    for history, target, context in zip(
        corpus.train.histories, corpus.train.targets, gap_codes(corpus.train), strict=True
    ):
        rows.setdefault((int(history[-1]) + 1, int(target) + 1), Counter())[int(context)] += 1
    one, one_target, one_context = batch(False)
    last = one[:, -1] if padding == "left" else one.gather(1, (one > 0).sum(1, keepdim=True) - 1)[:, 0]
    every, every_target, every_context = batch(True)
    asked = every_target > 0
    assert not every_context[~asked].any()
    for found in (
        (last, one_target, one_context),
        (every[asked], every_target[asked], every_context[asked]),
    ):
        found = list(zip(*(part.tolist() for part in found), strict=True))
        assert Counter(pair[:2] for pair in found) == Counter({pair: sum(of.values()) for pair, of in rows.items()})
        known = [(pair, context) for *pair, context in found if context != UNKNOWN]
        assert len(known) > 0.8 * len(found) and {context for _, context in known} == {SAME, LATER}
        assert all(rows[tuple(pair)][context] for pair, context in known)


def test_ranks_lists_rankers_and_assistants_are_conditioned(tmp_path):
    corpus = make_gap_corpus(tmp_path / "corpus", users=20)
    torch.manual_seed(0)
    model = build_model("sasrec", num_items=corpus.n_items, max_len=10, padding="right")
    model.condition_on([GAP])
    for part in model.context_states.parameters():
        torch.nn.init.normal_(part)
    cpu, histories = torch.device("cpu"), corpus.test.histories.tolist()
    rows, conditioned = corpus.test, gap_codes(corpus.test)
    ranker = SequentialRanker(model, "sasrec")
    assert ranker.context == {"gap"} and ranker.features == (GAP,)
    found = []
    for contexts in (conditioned, None):
        table = None if contexts is None else contexts[:, None]
        items, values = top_items(model, rows, "keep", cpu, corpus.n_items, contexts=table)
        found.append(rank_rows(model, rows, "keep", cpu, contexts=table)["item"])
        assert found[-1].tolist() == [
            row.tolist().index(want + 1) + 1 for row, want in zip(items, rows.targets, strict=True)
        ]
        ranking = ranker.rank(Queries(histories, {} if contexts is None else {"gap": contexts}), corpus.n_items)
        assert ranking.items == (items - 1).tolist()
        assert np.allclose(ranking.scores, values, atol=1e-5)
    assert (found[0] != found[1]).any()
    every = np.arange(corpus.n_items)
    assistant = sequential_assistant(ranker, every, np.ones(corpus.n_items))
    assert assistant.context == ranker.context
    wanted = ranker.scores(Queries(histories, {"gap": conditioned})).log_softmax(-1)
    assert torch.allclose(assistant.log_probs(Queries(histories, {"gap": conditioned})), wanted, atol=1e-5)
    assert not torch.allclose(assistant.log_probs(Queries(histories)), wanted, atol=1e-2)
