"""A device to hold against the CPU: a GPU by `make test-gpu`; MINIONEREC_TEST_DEVICE=cpu tries the tests themselves."""

import os

import pytest
import torch

from minionerec.core.device import VARIABLE

DEVICE = os.environ.get("MINIONEREC_TEST_DEVICE", "")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The GPU; the CPU where that was asked for."""
    if DEVICE == "cpu":
        return torch.device("cpu")
    if DEVICE != "cuda" or not torch.cuda.is_available():
        pytest.skip("wants a GPU: make test-gpu")
    return torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def free_order(monkeypatch):
    """Sums come in any order, as for most users, unless a test asks for more."""
    monkeypatch.delenv(VARIABLE, raising=False)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def fixed_order(monkeypatch, free_order):
    """Sums come in a fixed order (`minionerec.core.device`)."""
    monkeypatch.setenv(VARIABLE, "1")
    yield
    torch.use_deterministic_algorithms(False)
