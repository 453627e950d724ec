"""What a step of a catalogue model is reckoned to need."""

import numpy as np
import pytest
import torch

from minionerec.models.backbone.catalogue import CatalogueConfig, build_catalogue
from minionerec.training.memory import estimate_catalogue

SIDS = 5000


@pytest.fixture(scope="module")
def model():
    codes = np.stack(np.unravel_index(np.arange(SIDS), (20, 20, 20)), 1)
    tokens = np.arange(60).reshape(3, 20)
    config = CatalogueConfig(vocab_size=60, hidden_size=32, num_attention_heads=2, intermediate_size=64, towers=2)
    return build_catalogue(config, codes, tokens)


def test_weights_and_optimiser_states_are_counted(model):
    trained = sum(parameter.numel() for parameter in model.parameters())
    exact = estimate_catalogue(model, windows=16, width=10)
    assert exact.optimiser == 2 * exact.gradients == 8 * trained
    assert exact.weights == 4 * (trained + sum(buffer.numel() for buffer in model.buffers()))
    assert exact.working == 4 * 160 * SIDS * 6


def test_a_sample_needs_less_and_only_its_optimiser_states_grow_with_the_catalogue(model):
    exact, sampled = (estimate_catalogue(model, windows=16, width=10, columns=each) for each in (None, 400))
    assert sampled.working == 4 * 160 * 400 * 6
    assert sampled.gradients < exact.gradients / 2
    assert sampled.activations < exact.activations
    rows = 2 * (2 * SIDS + sum(model.config.code_sizes))  # the step at which each was last up to date
    assert sampled.optimiser == exact.optimiser + 4 * rows


def test_what_is_reckoned_is_about_what_torch_holds(model):
    """Scores and vectors kept for the backward pass, and gradients, as torch's own hooks and tensors say."""
    kept: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(0)
    histories, labels = torch.randint(1, SIDS, (2, 16, 10))
    held = {each.untyped_storage().data_ptr() for each in [*model.parameters(), *model.buffers()]}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(histories=histories, labels=labels).loss.backward()
    found = sum(size for position, size in kept.items() if position not in held)
    reckoned = estimate_catalogue(model, windows=16, width=10)
    assert found < reckoned.working + reckoned.activations < 6 * found
