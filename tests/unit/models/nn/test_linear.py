import pytest
import torch
from torch import nn

from minionerec.models.nn import layers as module
from minionerec.models.nn.layers import Linear, linear, replace_linear

HERE = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX512") or not torch.backends.mkldnn.is_available(),
    reason="the processor has no AVX-512, so torch's own product is used",
)


def product_and_gradients(function, gradient, *given):
    """The product and what a gradient of it gives for x, weight and bias, in the inputs' type."""
    leaves = [t.detach().clone().requires_grad_() for t in given]
    product = function(*leaves)
    product.backward(gradient)
    return [product.detach(), *(t.grad for t in leaves)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "rows, width, out",
    [((256, 50), 64, 256), ((6400,), 256, 64), ((129,), 64, 1000), ((255,), 300, 200), ((128,), 64, 3001)],
)
def test_product_and_gradients_agree_with_double_precision(rows, width, out, bias):
    torch.manual_seed(0)
    given = [torch.randn(*rows, width), torch.randn(out, width)] + [torch.randn(out)] * bias
    gradient = torch.randn(*rows, out)
    found = product_and_gradients(linear, gradient, *given)
    torchs = nn.functional.linear
    exact = product_and_gradients(torchs, gradient.double(), *(t.double() for t in given))
    sizes = product_and_gradients(torchs, gradient.double().abs(), *(t.double().abs() for t in given))
    for ours, right, size in zip(found, exact, sizes, strict=True):
        assert ours.dtype == torch.float32 and ours.shape == right.shape
        # Sums in float32: relative to the sum of sizes a few units of rounding (TF32 and bfloat16 have thousands).
        assert ((ours - right).abs() / size).max() < 4 * torch.finfo(torch.float32).eps


@HERE
@pytest.mark.filterwarnings("ignore:TF32")
def test_onednn_multiplies_what_is_large_enough(monkeypatch):
    called = []
    product = module._product
    monkeypatch.setattr(module, "_product", lambda *given: called.append(len(given[0])) or product(*given))
    x, layer = torch.randn(300, 64), Linear(64, 256)
    layer(x).sum().backward()
    assert called == [384, 64]  # rows filled up; the weight's gradient over 256 rows, the smaller factor transposed
    called.clear()
    for other in (x[:127], x.double(), x[:, :0]):
        linear(other, torch.zeros(256, other.shape[-1], dtype=other.dtype))
    with torch.backends.mkldnn.flags(enabled=False):
        layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert not called


def test_other_types_and_strides():
    torch.manual_seed(1)
    x, weight = torch.randn(64, 400).T, torch.randn(256, 128)[:, ::2]
    assert torch.allclose(linear(x, weight), x @ weight.T, atol=1e-4)
    assert torch.equal(linear(x.double(), weight.double()), nn.functional.linear(x.double(), weight.double()))
    assert linear(torch.zeros(0, 64), weight).shape == (0, 256)
    assert linear(torch.zeros(2, 0, 64), weight).shape == (2, 0, 256)


def test_the_product_may_be_changed_inplace():
    x, weight = torch.randn(200, 64), torch.randn(256, 64, requires_grad=True)
    (linear(x, weight).mul_(2)).sum().backward()
    assert torch.allclose(weight.grad, 2 * x.sum(0).expand(256, 64), atol=1e-3)


def test_only_wanted_gradients():
    x, weight = torch.randn(200, 64), torch.randn(256, 64, requires_grad=True)
    linear(x, weight).sum().backward()
    assert x.grad is None and weight.grad.shape == weight.shape
    with torch.no_grad():
        assert not linear(x, weight).requires_grad


def test_the_layer_is_torchs_in_name_and_weights():
    torch.manual_seed(2)
    ours = Linear(64, 256)
    torch.manual_seed(2)
    theirs = nn.Linear(64, 256)
    assert isinstance(ours, nn.Linear)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    x = torch.randn(3, 100, 64)
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)


def test_replacing_keeps_weights_names_and_ties(tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(3)
    sizes = {"vocab_size": 300, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, tie_word_embeddings=True))
    ids = torch.randint(300, (4, 100))
    names, before = list(model.state_dict()), model.eval()(input_ids=ids).logits
    parameters = [id(p) for p in model.parameters()]
    assert replace_linear(model) is model
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert len(layers) == 15 and all(type(m) is Linear and not m.training for m in layers)
    assert list(model.state_dict()) == names and [id(p) for p in model.parameters()] == parameters
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.allclose(model(input_ids=ids).logits, before, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = Qwen2ForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
