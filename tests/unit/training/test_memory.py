"""The memory estimate against what autograd keeps."""

from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from minionerec.training.memory import estimate_memory, saved_per_token
from minionerec.training.sft import add_dropout

TOKENS = 48


def model_of(layers=2, dtype=torch.float32):
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=50,
            hidden_size=96,
            num_hidden_layers=layers,
            num_attention_heads=6,
            num_key_value_heads=2,
            intermediate_size=320,
            use_sliding_window=False,
        )
    ).to(dtype)


def kept_bytes(model):
    """Bytes of the tensors that autograd keeps of a forward pass, weights and their copies left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = {tuple(shape) for parameter in model.parameters() for shape in (parameter.shape, parameter.shape[::-1])}
    held, storages = [], {}

    def pack(tensor):
        held.append(tensor)  # alive, so that no address is used twice
        position = tensor.untyped_storage()
        if position.data_ptr() not in weights and tuple(tensor.shape) not in shapes:
            storages[position.data_ptr()] = position.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.model(input_ids=torch.zeros(1, TOKENS, dtype=torch.long), use_cache=False)
    return sum(storages.values())


@pytest.mark.parametrize(
    ("dtype", "mixed", "dropout"),
    [
        (torch.float32, False, 0.0),
        (torch.float32, False, 0.5),
        (torch.float32, True, 0.5),
        (torch.bfloat16, False, 0.0),
    ],
)
def test_a_block_keeps_what_the_formula_says(dtype, mixed, dropout):
    kept = []
    for layers in (1, 2):
        model = model_of(layers, dtype).train()
        add_dropout(model, dropout)
        with torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext():
            kept.append(kept_bytes(model))
    size = dtype.itemsize
    formula = saved_per_token(
        96, 32, 6, 320, weight_bytes=size, compute_bytes=2 if mixed else size, dropout=dropout > 0
    )
    assert (kept[1] - kept[0]) / TOKENS == pytest.approx(formula, rel=0.02)


def test_what_each_setting_saves():
    model = model_of()
    count = sum(parameter.numel() for parameter in model.parameters())
    plain = estimate_memory(model, tokens=1000, labels=100)
    assert (plain.weights, plain.gradients, plain.optimiser) == (4 * count, 4 * count, 8 * count)
    assert plain.logits == 100 * 50 * 12 + 50 * 96 * 4
    saved = estimate_memory(model, tokens=1000, labels=100, checkpointing=True)
    assert plain.activations / 2 < saved.activations < plain.activations
    zero = {"stage": 2, "reduce_bucket_size": 1000, "allgather_bucket_size": 10**9, "overlap_comm": True}
    shared = estimate_memory(model.to(torch.bfloat16), tokens=1000, labels=100, processes=4, zero=zero)
    assert shared.weights == 2 * count
    assert shared.gradients == 2 * count // 4 + 2 * (2 * 1000 + count)
    assert shared.optimiser == 12 * count // 4
    updates = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")).get_base_model()
    assert estimate_memory(updates, tokens=1000, labels=100).optimiser < 0.1 * plain.optimiser
