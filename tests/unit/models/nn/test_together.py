"""What processes tell one another of rows: the same in each, and the mean of what they have."""

import torch
from support.processes import rows_apart, stage_in_processes

from minionerec.models.nn.rows import take_rows
from minionerec.training.catalogue.row_adamw import RowAdamW, gathered, mean_of_rows


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
