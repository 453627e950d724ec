"""Sums in a fixed order: only where there is a GPU, and only where it is asked for."""

import os

import pytest
import torch

from minionerec.models.nn.device import VARIABLE, fix_order


@pytest.mark.parametrize(("reported", "gpu", "fixed"), [("1", True, True), ("1", False, False), ("0", True, False)])
def test_the_environment_asks_for_it(monkeypatch, reported, gpu, fixed):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setenv(VARIABLE, reported)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # a user's own stays
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        fix_order()
        assert torch.are_deterministic_algorithms_enabled() is fixed
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    finally:
        torch.use_deterministic_algorithms(before)
