"""Layers: rotary positions, groups of rows of similar length, dropout."""

import numpy as np
import pytest
import torch
from support.histories import histories_of

from minionerec.core.machine import keep_freed_memory
from minionerec.models.nn.layers import Dropout, by_length, dropout_mask, length_groups, rotate


def test_rotation_depends_on_distance_alone():
    q, k = torch.randn(2, 8)
    turned_q, turned_k = (rotate(x.expand(1, 1, 9, 8))[0, 0] for x in (q, k))
    products = turned_q @ turned_k.T
    for distance in range(9):
        diagonal = products.diagonal(-distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-5)
    assert not torch.allclose(products[8, 0], products[8, 8], atol=1e-3)


ITEMS, LENGTH = 30, 12


def test_groups_cover_every_row_at_the_least_number_of_slots():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        lengths = torch.randint(0, LENGTH + 1, (9,), generator=generator).tolist()
        histories = histories_of(lengths, "right", LENGTH, ITEMS)
        groups = length_groups(histories, "right")
        assert sorted(torch.cat([positions for positions, _ in groups]).tolist()) == list(range(9))
        counted = sorted(length or LENGTH for length in lengths)
        widths = [
            LENGTH if not all(lengths[position] for position in positions) else columns.stop
            for positions, columns in groups
        ]
        slots = sum(len(positions) * width for (positions, _), width in zip(groups, widths, strict=True))
        least = min(
            a * max(counted[:a], default=0) + (b - a) * max(counted[a:b], default=0) + (9 - b) * counted[-1]
            for a in range(10)
            for b in range(a, 10)
        )
        assert slots == least
        for positions, columns in groups:
            assert (histories[positions] > 0).sum() == (histories[positions, columns] > 0).sum()


def test_elsewhere_than_on_a_cpu_all_rows_are_one_group():
    """So that no value is needed on the processor: tensors of the meta device have none."""
    ((positions, columns),) = length_groups(torch.zeros(9, LENGTH, dtype=torch.long, device="meta"), "right")
    assert (positions.shape, positions.device.type, columns) == ((9,), "meta", slice(0, LENGTH))


def test_by_length_keeps_the_order_of_rows():
    histories = histories_of([5, 1, LENGTH, 1, 3, 8], "right", LENGTH, ITEMS)
    assert len(length_groups(histories, "right")) == 3
    positions = by_length(lambda rows, positions: positions[:, None].float(), histories, "right")
    assert positions[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("p", [0.1, 0.25, 0.3, 0.5, 0.9, 0.001])
def test_share_and_scale(p):
    torch.manual_seed(0)
    mask = dropout_mask(torch.Size([1000, 2000]), p)
    error = np.sqrt(p * (1 - p) / mask.numel())
    assert abs((mask == 0).double().mean() - p) < 5 * error + 1e-5
    kept = mask[mask != 0]
    assert torch.all(kept == kept[0]) and abs(kept[0] * (1 - p) - 1) < 1e-3
    assert abs(mask.double().mean() - 1) < 5 * error / (1 - p)


def test_rows_columns_and_neighbours_are_independent():
    torch.manual_seed(1)
    zeros = (dropout_mask(torch.Size([512, 512]), 0.5) == 0).double() - 0.5
    for other in (zeros.roll(1, 0), zeros.roll(1, 1), zeros.roll(7, 1), zeros.T):
        assert abs((zeros * other).mean()) < 5 * 0.25 / 512


def test_gradient_flows_where_elements_stayed():
    x = torch.ones(64, 8, requires_grad=True)
    y = Dropout(0.3)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_torchs_seed_decides():
    layer, x = Dropout(0.5), torch.ones(100, 100)
    torch.manual_seed(3)
    first, second = layer(x), layer(x)
    torch.manual_seed(3)
    assert torch.equal(first, layer(x))
    assert not torch.equal(first, second)


def test_nothing_to_drop():
    x = torch.ones(4, 3)
    assert Dropout(0.0)(x) is x
    assert Dropout(0.5).eval()(x) is x
    assert torch.all(Dropout(1.0)(x) == 0)
    assert Dropout(0.5)(torch.ones(0, 3)).shape == (0, 3)


def test_keeps_the_dtype():
    assert Dropout(0.5)(torch.ones(8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_freed_memory_is_kept_where_the_c_library_can():
    assert keep_freed_memory() in (True, False)
    x = torch.ones(1 << 22)
    assert float((x + x).sum()) == 2 * (1 << 22)
