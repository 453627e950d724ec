"""A process and its device: sums in a fixed order where a GPU is asked for it, and the memory that is free."""

import os

import pytest
import torch

from minionerec.core.device import VARIABLE, fix_order, free_memory


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


def test_what_torch_keeps_of_a_gpu_for_later_is_free(monkeypatch):
    figures = {"mem_get_info": (1000, 5000), "memory_reserved": 700, "memory_allocated": 600}
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert free_memory(torch.device("cuda")) == 1100
