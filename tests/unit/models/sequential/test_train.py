"""The trainer and the ranking: brute-force ranks, resumed runs, recipes, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import source_of

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.protocols import PROTOCOLS
from minionerec.data.rows import SplitExamples
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.rank import rank_rows, top_items
from minionerec.models.sequential.registry import build_model
from minionerec.training.sequential import train
from minionerec.training.sequential.train import (
    Progress,
    TrainingExamples,
    epoch_seed,
    fit,
    make_optimizer,
    train_epoch,
)

CPU = torch.device("cpu")
SMALL = {"hidden_size": 16, "inner_size": 32, "num_layers": 2}


def cycles(n_items=12, n_users=40, seed=0):
    """Users who go round a circle of items, so that the next item is certain."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 11, n_users)
    items = [((rng.integers(n_items) + np.arange(n)) % n_items + 1).tolist() for n in lengths]
    return source_of(*items, n_items=n_items)


OPTIMISER = {"learning_rate": 3e-3}


class Table(SequentialModel):
    """Scores that stand in a table, one row a user."""

    needs_users = True

    def __init__(self, scores):
        super().__init__(num_items=scores.shape[1] - 1, max_len=4, padding="left")
        self.table = scores

    def user_vectors(self, histories, users=None):
        return self.table[users]

    def logits(self, vectors):
        return vectors.clone()


def table_rows(scores, rng):
    rows, items = scores.shape
    histories = [rng.integers(0, items - 1, rng.integers(0, 4)) for _ in range(rows)]
    return SplitExamples.of([""] * rows, histories, rng.integers(0, items - 1, rows)), {"users": np.arange(rows)}


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(3, 12), st.sampled_from(["mask", "zero", "keep"]))
def test_ranks_and_lists_are_those_of_a_full_sort(seed, rows, items, seen):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.integers(-2, 3, (rows, items)).astype(np.float32))  # whole numbers: many ties
    (examples, users), model = table_rows(scores, rng), Table(scores)
    ranks = rank_rows(model, examples, seen, CPU, **users)["item"]
    found, values = top_items(model, examples, seen, CPU, items, **users)
    shorter = int(rng.integers(1, items + 1))
    first, their_values = top_items(model, examples, seen, CPU, shorter, **users)
    assert their_values.tolist() == values[:, :shorter].tolist()
    finite = their_values > -np.inf  # what may not be recommended has no order
    assert (first[finite] == found[:, :shorter][finite]).all()
    for row in range(rows):
        expected = scores[row].numpy().copy()
        history = examples.histories[row] + 1
        if seen != "keep":
            expected[history] = 0.0 if seen == "zero" else -np.inf
        if seen != "zero":
            expected[0] = -np.inf
        order = np.argsort(-expected, kind="stable")
        assert found[row].tolist() == order.tolist()
        assert values[row].tolist() == expected[order].tolist()
        assert ranks[row] == order.tolist().index(examples.targets[row] + 1) + 1


def test_ranking_goes_in_chunks(monkeypatch):
    rng = np.random.default_rng(1)
    scores = torch.from_numpy(rng.normal(size=(70, 9)).astype(np.float32))
    (rows, users), model = table_rows(scores, rng), Table(scores)
    whole = rank_rows(model, rows, "mask", CPU, **users)["item"]
    monkeypatch.setattr("minionerec.models.sequential.rank._SCORES_AT_ONCE", 1)  # chunks of 16
    assert rank_rows(model, rows, "mask", CPU, **users)["item"].tolist() == whole.tolist()


def test_an_sid_ranks_as_its_best_item():
    scores = torch.tensor([[9.0, 1.0, 5.0, 2.0, 4.0, 3.0]])
    numbers = np.array([0, 1, 2, 1, 0])  # items 1 and 5 share an SID, so do 2 and 4
    for target, item_rank, sid_rank in [(1, 5, 2), (3, 4, 3), (4, 2, 1)]:
        rows = SplitExamples.of(["u"], [[]], [target - 1])
        ranks = rank_rows(Table(scores), rows, "keep", CPU, numbers)
        assert (ranks["item"].item(), ranks["sid"].item()) == (item_rank, sid_rank)


def test_scores_that_are_no_numbers_and_items_beyond_the_table_are_errors():
    scores = torch.full((1, 5), torch.nan)
    with pytest.raises(ConfigError, match="training diverged"):
        rank_rows(Table(scores), SplitExamples.of(["u"], [[]], [0]), "keep", CPU)
    with pytest.raises(DataError, match=r"row 0 \(of 1\) has item 9 and target 9, .* items 1 to 4"):
        rank_rows(Table(scores), SplitExamples.of(["u"], [[]], [8]), "keep", CPU)
    split = PROTOCOLS["a"].split(cycles())
    with pytest.raises(DataError, match=r"items 1 to 5"):
        fit(build_model("sasrec", num_items=5), examples_of(split), None, PROTOCOLS["a"], None, CPU)


def weights_of(model):
    return torch.cat([value.flatten().float() for value in model.state_dict().values()])


def examples_of(corpus, protocol=PROTOCOLS["a"], all_positions=False):
    return TrainingExamples.of(corpus, protocol.max_len, protocol.padding, all_positions=all_positions)


def train_small(folder, corpus, name="sasrec", protocol=PROTOCOLS["a"], hyper=SMALL, all_positions=False, **changes):
    torch.manual_seed(3)
    model = build_model(name, num_items=corpus.n_items, max_len=protocol.max_len, padding=protocol.padding, **hyper)
    examples, protocol = examples_of(corpus, protocol, all_positions), replace(protocol, batch_size=32, seed=7)

    def valid(model):
        return rank_rows(model, corpus.valid, protocol.seen, CPU)["item"]

    return fit(model, examples, valid, protocol, folder, CPU, **{"epochs": 3, **OPTIMISER, **changes}), model


@pytest.mark.parametrize(("stop", "all_positions"), [(1, True), (2, False)])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch, stop, all_positions):
    protocol = replace(PROTOCOLS["a"], max_len=8)
    split = protocol.split(cycles())
    whole, expected = train_small(tmp_path / "whole", split, protocol=protocol, all_positions=all_positions)

    def die(*args):
        if args[-1] == stop:
            raise KeyboardInterrupt
        return train_epoch(*args)

    monkeypatch.setattr(train, "train_epoch", die)
    with pytest.raises(KeyboardInterrupt):
        train_small(tmp_path / "cut", split, protocol=protocol, all_positions=all_positions)
    monkeypatch.undo()
    torch.manual_seed(99)  # what happens between the two runs leaves no trace
    done, model = train_small(tmp_path / "cut", split, protocol=protocol, all_positions=all_positions)
    assert done == whole
    assert torch.equal(weights_of(model), weights_of(expected))
    assert [row["epoch"] for row in done.history] == [0, 1, 2]


def test_training_learns_stops_and_keeps_its_best_epoch(tmp_path):
    protocol = replace(PROTOCOLS["b"], max_len=8)
    split = protocol.split(cycles())
    done, model = train_small(
        tmp_path / "state",
        split,
        protocol=protocol,
        epochs=20,
        learning_rate=2e-2,
        hyper={**SMALL, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    )
    values = [round(row["NDCG@10"], 4) for row in done.history]
    assert done.best == max(values) > 0.95
    assert values[done.best_epoch] == done.best and done.best not in values[done.best_epoch + 1 :]
    assert done.epoch == min(20, done.best_epoch + 1 + 11)
    ranks = rank_rows(model, split.valid, protocol.seen, CPU)["item"]
    values = ranking_metrics(ranks, protocol.ks, every_mrr=protocol.mrr)["NDCG@10"]
    assert values.mean() == pytest.approx(done.best, abs=5e-5)


def test_each_epoch_has_every_row_once_in_a_new_order():
    orders, whole = [], examples_of(PROTOCOLS["a"].split(cycles()))
    examples = replace(whole, rows=whole.rows.take(slice(10)))
    for epoch in range(2):
        torch.manual_seed(epoch_seed(5, epoch))
        parts = list(examples.batches(4, 5, epoch))
        assert [len(part) for part in parts] == [4, 4, 2]
        orders.append(np.concatenate(parts).tolist())
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(10))
    assert orders[0] != orders[1]
    assert len({epoch_seed(seed, epoch) for seed in range(20) for epoch in range(20)}) == 400


def test_adam_is_adam():
    split = PROTOCOLS["a"].split(cycles())
    torch.manual_seed(0)
    model = build_model("sasrec", num_items=12, padding="left", **SMALL, hidden_dropout=0.0, attention_dropout=0.0)
    other = build_model("sasrec", num_items=12, padding="left", **SMALL, hidden_dropout=0.0, attention_dropout=0.0)
    other.load_state_dict(model.state_dict())
    protocol = replace(PROTOCOLS["a"], batch_size=32, seed=7)
    examples = examples_of(split)
    model.double(), other.double()  # Adam makes a whole step of a gradient that is nothing but rounding
    train_epoch(model, examples, make_optimizer(model, 3e-3), protocol, 0)
    train_epoch(other, examples, torch.optim.Adam(other.parameters(), lr=3e-3), protocol, 0)
    assert torch.allclose(weights_of(model), weights_of(other), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 1e30, "epochs": 5}, r"loss of epoch 0 is nan: training diverged. Lower learning_rate"),
        ({"name": "bert4rec", "hyper": {}, "all_positions": True}, "BERT4Rec sees items after a position"),
    ],
)
def test_what_cannot_be_trained_is_reported(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        train_small(tmp_path / "state", PROTOCOLS["a"].split(cycles()), **changes)


@pytest.mark.parametrize(
    ("protocol", "values", "improved", "best"),
    [
        # A stops after ten epochs in a row that are not strictly better.
        (PROTOCOLS["a"], [0.10001, 0.10002] + [0.10002] * 30, [True, True] + [False] * 10, 0.10002),
        # B rounds, takes ties, and stops on the eleventh worse epoch.
        (PROTOCOLS["b"], [0.04331, 0.04329, 0.04334] + [0.0432] * 30, [True] * 3 + [False] * 11, 0.0433),
        (replace(PROTOCOLS["a"], stop_after=2), [1, 0, 2, 0, 0, 9], [True, False, True, False, False], 2),
    ],
)
def test_training_stops_after_worse_epochs_in_a_row(protocol, values, improved, best):
    progress, found = Progress(0, -1, -np.inf, 0, []), []
    for value in values:
        found.append(progress.improves(value, protocol))
        if progress.worse >= protocol.stop_after:
            break
    assert (found, progress.best) == (improved, best)
