"""AdamW by rows: the weights are torch's, whichever rows have a gradient when."""

import copy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.processes import rows_apart, stage_in_processes

from minionerec.core.errors import ConfigError
from minionerec.models.nn.rows import take_rows
from minionerec.training.catalogue import row_adamw
from minionerec.training.catalogue.row_adamw import RowAdamW, gathered, mean_of_rows

HOW = {"lr": 1e-2, "betas": (0.9, 0.98), "weight_decay": 0.1}
ROWS, WIDTH = 12, 3


def pair(seed=0, dtype=torch.float64, **how):
    """The same table twice, one for torch's AdamW, one for ours."""
    torch.manual_seed(seed)
    dense = torch.nn.Parameter(torch.randn(ROWS, WIDTH, dtype=dtype))
    sparse = torch.nn.Parameter(dense.detach().clone())
    how = {**HOW, **how}
    return dense, sparse, torch.optim.AdamW([dense], **how), RowAdamW([sparse], **how)


def step(dense, sparse, theirs, ours, rows, scale=1.0):
    """One step in which some rows have a gradient."""
    ours.refresh([(sparse, rows)])
    assert torch.allclose(sparse[rows], dense[rows], rtol=1e-6, atol=1e-7)
    values = torch.randn(len(rows), WIDTH, dtype=dense.dtype) * scale
    dense.grad = torch.zeros_like(dense).index_add(0, rows, values)
    (take_rows(sparse, rows) * values).sum().backward()
    assert sparse.grad is None
    theirs.step()
    ours.step()


def test_with_all_rows_touched_it_is_torchs_adamw():
    tables = pair(dtype=torch.float32)
    for _ in range(50):
        step(*tables, torch.randperm(ROWS))
    assert torch.allclose(tables[0], tables[1], rtol=1e-5, atol=1e-6)


@settings(max_examples=30)
@example([[0, 0, 5], *[[]] * 30], (0.5, 0.3), 0.0)
@given(
    st.lists(st.lists(st.integers(0, ROWS - 1), max_size=4), min_size=1, max_size=40),
    st.sampled_from([(0.9, 0.98), (0.9, 0.999), (0.5, 0.3), (0.0, 0.9)]),
    st.sampled_from([0.0, 0.1, 3.0]),
)
def test_rows_that_waited_are_where_torchs_adamw_has_them(touched, betas, weight_decay):
    """A schedule, rows that repeat in a step, steps without any gradient, and rows that are never read.

    With an epsilon that is none: ours is that of a row's last step, which shows after many steps of a small beta2.
    """
    dense, sparse, theirs, ours = pair(betas=betas, weight_decay=weight_decay, eps=1e-14)
    for number, rows in enumerate(touched):
        for optimizer in (theirs, ours):
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 - number / len(touched))
        step(dense, sparse, theirs, ours, torch.tensor(rows, dtype=torch.int64))
    ours.settle()
    assert torch.allclose(dense, sparse, rtol=1e-6, atol=1e-7)
    if ours.state[sparse]:
        for time in ("exp_avg", "exp_avg_sq"):
            assert torch.allclose(theirs.state[dense][time], ours.state[sparse][time], rtol=1e-9, atol=1e-12)


def test_long_waits_and_many_steps():
    tables = pair()
    for number in range(1450):
        step(*tables, torch.tensor([number % 7 if number % 700 else ROWS - 1]))
    tables[3].settle()
    assert torch.allclose(tables[0], tables[1], rtol=1e-6, atol=1e-7)


def test_only_rows_that_are_read_are_touched():
    _, sparse, _, ours = pair()
    (take_rows(sparse, torch.tensor([2, 5]))).sum().backward()
    before = sparse.detach().clone()
    ours.step()
    assert (sparse != before).any(1).nonzero()[:, 0].tolist() == [2, 5]
    assert ours.state[sparse]["exp_avg"].any(1).nonzero()[:, 0].tolist() == [2, 5]
    before = sparse.detach().clone()
    ours.step()  # without a gradient
    assert torch.equal(sparse, before)
    ours.refresh([(sparse, torch.tensor([5, 5]))])
    assert (sparse != before).any(1).nonzero()[:, 0].tolist() == [5]


def test_several_backward_passes_add_up_and_zero_grad_forgets():
    dense, sparse, theirs, ours = pair()
    for rows in ([1, 2], [2, 3]):
        take_rows(sparse, torch.tensor(rows)).sum().backward()
    dense.grad = torch.zeros_like(dense)
    dense.grad[[1, 3]], dense.grad[2] = 1, 2
    ours.step()
    theirs.step()
    ours.settle()
    assert torch.allclose(dense[1:4], sparse[1:4], rtol=1e-9)
    take_rows(sparse, torch.tensor([4])).sum().backward()
    ours.zero_grad()
    before = sparse.detach().clone()
    ours.step()
    assert torch.equal(sparse, before)


def test_dense_parameters_are_those_of_torchs_adamw():
    torch.manual_seed(0)
    one = torch.nn.Linear(4, 3)
    other = copy.deepcopy(one)
    theirs, ours = torch.optim.AdamW(one.parameters(), **HOW), RowAdamW(other.parameters(), **HOW)
    for _ in range(20):
        x = torch.randn(5, 4)
        for layer, optimizer in ((one, theirs), (other, ours)):
            optimizer.zero_grad()
            layer(x).square().sum().backward()
            optimizer.step()
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(first, second, rtol=1e-5, atol=1e-6)


def test_a_saved_state_resumes_bit_by_bit(tmp_path, monkeypatch):
    """Behind the place where what is kept of each step had to grow."""
    monkeypatch.setattr(row_adamw, "_ROOM", 16)
    runs = [pair(dtype=torch.float32)[1:] for _ in range(2)]
    torch.manual_seed(1)
    steps = [(torch.randint(ROWS, (3,)), torch.randn(3, WIDTH)) for _ in range(40)]
    for which, (sparse, _, ours) in enumerate(runs):
        for number, (rows, values) in enumerate(steps):
            if which and number == 30:
                torch.save({"table": sparse.detach(), "state": ours.state_dict()}, tmp_path / "state.pt")
                saved = torch.load(tmp_path / "state.pt", weights_only=True)
                runs[1] = (torch.nn.Parameter(saved["table"]), None, None)
                sparse = runs[1][0]
                ours = RowAdamW([sparse], **HOW)
                ours.load_state_dict(saved["state"])
            ours.refresh([(sparse, rows)])
            (take_rows(sparse, rows) * values).sum().backward()
            ours.step()
    assert torch.equal(runs[0][0], runs[1][0])


@pytest.mark.parametrize("beta2", [0.81, 0.5, 1.0])
def test_betas_by_which_a_row_would_be_pushed_without_end_are_refused(beta2):
    with pytest.raises(ConfigError, match=rf"beta2 is {beta2:g} and beta1 0.9; .* above beta1 squared, 0.81"):
        RowAdamW([torch.nn.Parameter(torch.ones(2, 2))], betas=(0.9, beta2))


def test_a_decay_of_everything_is_refused():
    _, sparse, _, ours = pair(lr=1.0, weight_decay=2.0)
    take_rows(sparse, torch.tensor([4])).sum().backward()
    with pytest.raises(ConfigError, match="learning rate 1 times weight decay 2 is 1 or more"):
        ours.step()


def test_one_process_keeps_what_it_has():
    values = torch.arange(6.0).view(3, 2)
    assert gathered(values) is values and mean_of_rows(values, values) is values
    assert mean_of_rows(None, values) is None


def test_two_processes_hold_the_same(tmp_path):
    stage_in_processes(rows_apart, str(tmp_path), 2)
    one, two = (torch.load(tmp_path / f"rank{rank}") for rank in (0, 1))
    assert [each.tolist() for each in one["gathered"]] == [[0, 1], [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]]
    both, second, none = one["means"]
    assert both[:, 0].tolist() == [0, 0, 0, 3.0, 0, 0.5, 1.0, 0, 0, 0, 0, 0]  # (1 + 1 + 2 + 2) / 2 in row 3
    assert second[:, 2].tolist() == [0, 0, 0, 2.0, 0, 0, 1.0, 0, 0, 0, 0, 0] and none is None
    for name in ("table", "exp_avg", "exp_avg_sq", "last"):
        assert torch.equal(one[name], two[name]), name
    table = torch.nn.Parameter(torch.arange(36.0).view(12, 3) / 7)
    optimizer = RowAdamW([table], lr=1e-2, weight_decay=0.1)
    chances = [torch.Generator().manual_seed(rank) for rank in (0, 1)]
    for _ in range(60):  # what one process makes of the rows of both
        for chance in chances:
            rows = torch.randint(12, (2,), generator=chance)
            optimizer.refresh([(table, rows)])
            (take_rows(table, rows) * torch.randn(2, 3, generator=chance) / 2).sum().backward()
        optimizer.step()
    optimizer.settle()
    assert torch.allclose(table, one["table"], rtol=1e-5, atol=1e-6)
    assert torch.allclose(optimizer.state[table]["exp_avg_sq"], one["exp_avg_sq"], rtol=1e-4, atol=1e-7)
