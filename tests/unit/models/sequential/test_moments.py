"""What models make of moments: nothing at first, then each moment its own, in scores and in both losses."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.moments import make_moments

from minionerec.core.errors import ConfigError
from minionerec.data.moments import LATER, MOMENTS, SAME, UNKNOWN, row_moments
from minionerec.data.protocols import PROTOCOLS
from minionerec.models.sequential.rank import rank_rows, top_items
from minionerec.models.sequential.registry import MODELS, build_model
from minionerec.recommend.rankers.load import SequentialAssistant
from minionerec.recommend.rankers.protocol import Queries
from minionerec.recommend.rankers.sequential import SequentialRanker

ITEMS, LENGTH = 20, 10
HYPER = {
    "caser": {"num_users": 3},
    "causal": {"hidden_size": 16, "num_heads": 2, "pointer": True},
    "rpg": {"hidden_size": 16, "num_heads": 2, "inner_size": 16, "num_digits": 3, "num_codes": 4},
}
TOLD = sorted(set(MODELS) - {"bert4rec"})
HISTORIES = torch.tensor([[3, 8, 5, 2] + [0] * 6, [1] + [0] * 9, [4, 4, 9, 1, 7, 6, 11, 20, 2, 5]])
AFTER = torch.tensor([[8, 5, 2, 9] + [0] * 6, [7] + [0] * 9, [4, 9, 1, 7, 6, 11, 20, 2, 5, 13]])
TARGETS, USERS = torch.tensor([9, 7, 13]), torch.arange(3)


def built(name, told=True):
    torch.manual_seed(0)
    model = build_model(name, num_items=ITEMS, max_len=LENGTH, padding="right", **HYPER.get(name, {}))
    if name == "rpg":
        model.set_digits(torch.randint(0, 4, (ITEMS, 3), dtype=torch.int32))
    if told:
        model.tell_moments()
    return model.eval()


def stirred(name):
    """A model whose moments were drawn at random, so that each makes a difference."""
    model = built(name)
    for part in model.moment_states.parameters():
        torch.nn.init.normal_(part, std=0.5)
    return model


def said(model, moments):
    """Scores of items, the loss of rows, and that of all positions where there is one."""
    with torch.no_grad():
        found = [model.scores(HISTORIES, USERS, moments)[:, 1:], model.loss(HISTORIES, TARGETS, USERS, moments)]
        if model.causal:
            everywhere = None if moments is None else moments[:, None].expand(-1, LENGTH)
            found.append(model.sequence_loss(HISTORIES, AFTER, everywhere))
    return found


@pytest.mark.parametrize("name", TOLD)
def test_at_first_a_model_that_is_told_is_the_same_and_then_each_moment_has_its_own(name):
    plain, model = built(name, told=False), built(name)
    assert not any(parameter.any() for parameter in model.moment_states.parameters())
    for moments in (None, torch.tensor([SAME, LATER, UNKNOWN])):
        for found, wanted in zip(said(model, moments), said(plain, moments), strict=True):
            assert torch.equal(found, wanted)
    model = stirred(name)
    whole = [said(model, torch.full((3,), moment)) for moment in range(len(MOMENTS))]
    for first, second in ((UNKNOWN, SAME), (UNKNOWN, LATER), (SAME, LATER)):
        assert all((one - other).abs().max() > 1e-3 for one, other in zip(whole[first], whole[second], strict=True))
    for untold, unknown in zip(said(model, None), whole[UNKNOWN], strict=True):
        assert torch.equal(untold, unknown)
    mixed = said(model, torch.tensor([LATER, SAME, UNKNOWN]))[0]  # each row has its own
    for row, moment in enumerate((LATER, SAME, UNKNOWN)):
        assert torch.allclose(mixed[row], whole[moment][0][row], atol=1e-5)


@pytest.mark.parametrize("padding", ["right", "left"])
def test_at_all_positions_each_target_has_the_moment_of_its_own(padding):
    """The loss of a window is the mean of those of its rows."""
    torch.manual_seed(1)
    model = build_model("causal", num_items=ITEMS, max_len=LENGTH, padding=padding, **HYPER["causal"]).eval()
    model.tell_moments()
    for part in model.moment_states.parameters():
        torch.nn.init.normal_(part, std=0.5)
    items, asked = [3, 8, 5, 2], [0, LATER, SAME, UNKNOWN]
    rows = [(items[: place + 1], items[place + 1], asked[place + 1]) for place in range(3)]

    def tensor(values):
        return torch.tensor([values + [0] * (LENGTH - 3) if padding == "right" else [0] * (LENGTH - 3) + values])

    def history(values):
        gap = [0] * (LENGTH - len(values))
        return torch.tensor([values + gap if padding == "right" else gap + values])

    with torch.no_grad():
        whole = model.sequence_loss(tensor(items[:3]), tensor(items[1:]), tensor(asked[1:]))
        alone = [
            model.loss(history(read), torch.tensor([target]), None, torch.tensor([moment]))
            for read, target, moment in rows
        ]
    assert whole.item() == pytest.approx(torch.stack(alone).mean().item(), abs=1e-5)


def test_a_model_of_hidden_items_cannot_be_told():
    with pytest.raises(ConfigError, match=r"BERT4Rec learns to fill in items .* Leave moments out"):
        built("bert4rec")


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("max_len", [4, 10])
def test_rows_and_windows_have_the_moments_of_their_rows(tmp_path, padding, max_len):
    corpus = make_moments(tmp_path / "corpus", users=20)
    protocol = PROTOCOLS["rows"].with_changes(max_len=max_len, padding=padding)
    split = protocol.split(corpus)
    for name in ("train", "valid", "test"):
        assert (split.rows(name).moments == row_moments(corpus.times_of(name), len(corpus.rows(name)))).all()
    some = np.array([5, 2])
    assert split.train.take(some).moments.tolist() == split.train.moments[some].tolist()
    windows = split.windows
    assert windows.moments.shape == windows.targets.shape and windows.moments.dtype == np.int8
    assert not windows.moments[windows.targets == 0].any()
    # Each target has the items before it as its row has them, as far as the window reaches, and the row's moment.
    rows = Counter()
    for history, target, moment in zip(corpus.train.histories, split.train.targets, split.train.moments, strict=True):
        rows[int(history[-1]) + 1, int(target), int(moment)] += 1
    found = Counter()
    for history, target, moment in zip(windows.histories, windows.targets, windows.moments, strict=True):
        asked = target > 0
        found.update(zip(history[asked].tolist(), target[asked].tolist(), moment[asked].tolist(), strict=True))
    assert found == rows and {moment for _, _, moment in found} == {SAME, LATER}
    timeless = make_moments(tmp_path / "timeless", users=20, timed=False)
    plain = protocol.split(timeless)
    assert plain.train.moments is None and plain.windows.moments is None and plain.times is None
    assert (plain.windows.targets == windows.targets).all()


def test_ranks_lists_rankers_and_assistants_are_told(tmp_path):
    corpus = make_moments(tmp_path / "corpus", users=20)
    split = PROTOCOLS["rows"].split(corpus)
    torch.manual_seed(0)
    model = build_model("sasrec", num_items=split.num_items, max_len=10, padding="right")
    model.tell_moments()
    for part in model.moment_states.parameters():
        torch.nn.init.normal_(part)
    cpu, histories = torch.device("cpu"), corpus.test.histories.tolist()
    asked = split.test.moments
    told, untold = split.test, replace(split.test, moments=None)
    ranker = SequentialRanker(model, "sasrec")
    assert ranker.context == {"session_context"}
    for rows, moments in ((told, asked), (untold, None)):
        items, values = top_items(model, rows, "keep", cpu, split.num_items)
        ranks = rank_rows(model, rows, "keep", cpu)["item"]
        assert ranks.tolist() == [row.tolist().index(want) + 1 for row, want in zip(items, rows.targets, strict=True)]
        ranking = ranker.rank(Queries(histories, moments), split.num_items)
        assert ranking.items == (items - 1).tolist()
        assert np.allclose(ranking.scores, values, atol=1e-5)
    assert (rank_rows(model, told, "keep", cpu)["item"] != rank_rows(model, untold, "keep", cpu)["item"]).any()
    every = np.arange(split.num_items)
    assistant = SequentialAssistant(ranker, every, np.ones(split.num_items))
    assert assistant.context == ranker.context
    wanted = ranker.scores(Queries(histories, asked)).log_softmax(-1)
    assert torch.allclose(assistant.log_probs(Queries(histories, asked)), wanted, atol=1e-5)
    assert not torch.allclose(assistant.log_probs(Queries(histories)), wanted, atol=1e-2)
