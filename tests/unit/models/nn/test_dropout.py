import numpy as np
import pytest
import torch

from minionerec.core.machine import keep_freed_memory
from minionerec.models.nn.layers import Dropout, dropout_mask


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
