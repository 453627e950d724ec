"""Rotary positions."""

import torch

from minionerec.models.nn.layers import rotate


def test_rotation_depends_on_distance_alone():
    q, k = torch.randn(2, 8)
    turned_q, turned_k = (rotate(x.expand(1, 1, 9, 8))[0, 0] for x in (q, k))
    products = turned_q @ turned_k.T
    for distance in range(9):
        diagonal = products.diagonal(-distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-5)
    assert not torch.allclose(products[8, 0], products[8, 8], atol=1e-3)
