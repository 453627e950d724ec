"""BERT4Rec, LightSANs, FEARec and TRM4Rec against literal transcriptions of their equations."""

import pytest
import torch

from minionerec.core.errors import ConfigError
from minionerec.sequential import build_model
from minionerec.sequential.models.fearec import AutoCorrelation
from minionerec.sequential.models.lightsans import InterestAttention

BEAUTY = 12101


@pytest.mark.parametrize(
    ("name", "hyper", "count"),
    [
        ("lightsans", {}, 896_000),
        ("fearec", {}, 877_824),
    ],
)
def test_models_have_the_published_numbers_of_parameters(name, hyper, count):
    model = build_model(name, num_items=BEAUTY, **hyper)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def histories(rows, width, items, padding="right", seed=0):
    """Random histories of all lengths from 1 to `width`, padded."""
    generator = torch.Generator().manual_seed(seed)
    lengths = 1 + torch.arange(rows) * width // rows
    lengths[-1] = width
    slots = torch.arange(width)
    real = slots < lengths[:, None] if padding == "right" else slots >= width - lengths[:, None]
    return torch.randint(1, items + 1, (rows, width), generator=generator) * real


def newest_slots(batch, padding="right"):
    return (batch > 0).sum(1) - 1 if padding == "right" else torch.full((len(batch),), batch.shape[1] - 1)


def scrambled(model, seed=0):
    """The model with weights far from their start, so that no part of it is almost nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model


def assert_same_gradients(values, others, used):
    """Two results have the same gradients with respect to some tensors; none counts as zero."""
    direction = torch.randn(values.shape, dtype=values.dtype, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((values * direction).sum(), used, allow_unused=True)
    wanted = torch.autograd.grad((others * direction).sum(), used, allow_unused=True)
    for gradient, other, tensor in zip(found, wanted, used, strict=True):
        zero = torch.zeros_like(tensor)
        gradient, other = (zero if one is None else one for one in (gradient, other))
        torch.testing.assert_close(gradient, other, rtol=1e-8, atol=1e-8)


def literal_auto_correlation(mix, x, num_heads):
    """The FEARec layer by Fourier transforms, heads and rolls, without dropout."""
    q, k, v = (part(x).unflatten(-1, (num_heads, -1)).permute(0, 2, 3, 1) for part in (mix.query, mix.key, mix.value))
    length = x.shape[1]
    spectrum = torch.fft.rfft(q, dim=-1) * torch.conj(torch.fft.rfft(k, dim=-1))
    correlation = torch.fft.irfft(spectrum, n=length, dim=-1).mean((1, 2))  # (B, L)
    rows = []
    for row in range(len(x)):
        chosen_by = correlation.mean(0) if mix.training else correlation[row]
        delays = chosen_by.topk(mix.num_delays).indices.tolist()
        weights = correlation[row, delays].softmax(0)
        rows.append(sum(w * v[row].roll(-d, -1) for w, d in zip(weights, delays, strict=True)))
    context = torch.stack(rows).permute(0, 3, 1, 2).flatten(2)
    return mix.norm(x + mix.out(context))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("length", [7, 50])
@pytest.mark.parametrize("num_heads", [1, 4])
def test_fearec_layer_is_auto_correlation_by_fourier_transforms_at_all_slots_and_at_one(training, length, num_heads):
    torch.manual_seed(0)
    mix = scrambled(AutoCorrelation(length, 8, 3, 0.0).double()).train(training)
    x = torch.randn(length, length, 8, dtype=torch.float64, requires_grad=True)
    expected = literal_auto_correlation(mix, x, num_heads)
    at = torch.arange(length)  # row i reads slot i
    torch.testing.assert_close(mix(x), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mix(x, at), expected[at, at], rtol=1e-9, atol=1e-9)
    used = [x, *mix.parameters()]
    assert_same_gradients(mix(x), literal_auto_correlation(mix, x, num_heads), used)
    assert_same_gradients(mix(x, at), expected[at, at], used)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_fearec_reads_the_newest_slot_and_pads_short_batches(padding):
    hyper = {"hidden_size": 8, "padding": padding, "topk_factor": 1.5}
    model = scrambled(build_model("fearec", num_items=30, max_len=10, **hyper)).eval()
    batch = histories(12, 10, 30, padding)
    assert model.layers[0].mix.num_delays == 3
    x = model.embedding(batch)
    for layer in model.layers:
        x = layer.feed_forward(literal_auto_correlation(layer.mix, x, 2))
    expected = x[torch.arange(12), newest_slots(batch, padding)]
    torch.testing.assert_close(model.user_vectors(batch), expected, rtol=1e-4, atol=1e-4)
    short = batch[:5, 5:] if padding == "left" else batch[:5, :5]
    assert (batch[:5] > 0).sum(1).max() <= 5
    torch.testing.assert_close(model.user_vectors(short), model.user_vectors(batch[:5]), rtol=1e-5, atol=1e-5)


def literal_interest_attention(attention, x, positions):
    """The LightSANs layer product by product, without dropout."""
    heads = attention.num_heads
    width = x.shape[-1] // heads

    def split(z):
        return z.unflatten(-1, (heads, width)).transpose(1, 2)

    def pool(z, theta):
        weights = (z @ theta).softmax(-2)  # over the slots
        return torch.stack(
            [sum(w[slot, :, None] * row[slot] for slot in range(len(row))) for w, row in zip(weights, z, strict=True)]
        )

    q, k, v = attention.query(x), attention.key(x), attention.value(x)
    interests, values = split(pool(k, attention.key_pool)), split(pool(v, attention.value_pool))
    weights = (split(q) @ interests.transpose(-1, -2) / width**0.5).softmax(-2)
    normed = attention.position_norm(positions)[None]
    order = split(attention.position_query(normed) / (2 * width) ** 0.5) @ split(
        attention.position_key(normed)
    ).transpose(-1, -2)
    order = (order / width**0.5).softmax(-2)
    context = weights @ values + order @ split(v)
    return attention.norm(x + attention.out(context.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(("num_heads", "interests"), [(1, 3), (2, 5), (4, 1)])
def test_lightsans_layer_is_that_of_its_equations_at_all_slots_and_at_one(num_heads, interests):
    torch.manual_seed(0)
    attention = scrambled(InterestAttention(8, num_heads, interests, 0.0, 0.0).double())
    x = torch.randn(9, 9, 8, dtype=torch.float64, requires_grad=True)
    positions = torch.randn(9, 8, dtype=torch.float64, requires_grad=True)
    expected = literal_interest_attention(attention, x, positions)
    at = torch.arange(9)  # row i reads slot i
    torch.testing.assert_close(attention(x, positions), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(attention(x, positions, at), expected[at, at], rtol=1e-9, atol=1e-9)
    used = [x, positions, *attention.parameters()]
    assert_same_gradients(attention(x, positions), literal_interest_attention(attention, x, positions), used)
    assert_same_gradients(attention(x, positions, at), expected[at, at], used)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_lightsans_reads_the_newest_slot_and_pads_short_batches(padding):
    model = scrambled(build_model("lightsans", num_items=30, max_len=10, hidden_size=8, padding=padding)).eval()
    batch = histories(12, 10, 30, padding)
    x = model.norm(model.items(batch))
    for layer in model.layers:
        x = layer.feed_forward(literal_interest_attention(layer.attention, x, model.positions.weight))
    expected = x[torch.arange(12), newest_slots(batch, padding)]
    torch.testing.assert_close(model.user_vectors(batch), expected, rtol=1e-4, atol=1e-4)
    short = batch[:5, 5:] if padding == "left" else batch[:5, :5]
    torch.testing.assert_close(model.user_vectors(short), model.user_vectors(batch[:5]), rtol=1e-5, atol=1e-5)


def test_lightsans_drops_weights_of_interests_but_not_of_positions():
    torch.manual_seed(0)
    attention = scrambled(InterestAttention(8, 2, 3, 0.0, 1.0).double())
    x, positions, at = torch.randn(4, 6, 8).double(), torch.randn(6, 8).double(), torch.arange(4)
    dropped = attention(x, positions), attention(x, positions, at)
    heads = attention.split_heads(attention.value(x))
    context = (attention.position_weights(positions) @ heads).transpose(1, 2).flatten(2)
    expected = attention.norm(x + attention.out(context))
    torch.testing.assert_close(dropped[0], expected)
    torch.testing.assert_close(dropped[1], expected[at, at])


def test_lightsans_pools_start_wide_and_the_rest_narrow():
    model = build_model("lightsans", num_items=30).requires_grad_(False)
    assert model.layers[1].attention.key_pool.std() == pytest.approx(1, rel=0.2)
    assert model.layers[1].attention.query.weight.std() == pytest.approx(0.02, rel=0.1)
    with pytest.raises(ConfigError, match="num_interests is 0"):
        build_model("lightsans", num_items=30, num_interests=0)


@pytest.mark.parametrize("name", ["fearec", "lightsans"])
def test_models_without_masks_depend_on_their_padding(name):
    model = scrambled(build_model(name, num_items=30, max_len=20, hidden_size=8)).eval()
    batch = histories(20, 20, 30)
    before = model.user_vectors(batch)
    with torch.no_grad():
        model.item_matrix()[0] += torch.arange(8)
    changed = (model.user_vectors(batch) - before).abs().amax(1) > 1e-4
    assert not changed[-1]
    assert changed[:10].all()


def test_fearec_refuses_what_makes_no_delay():
    with pytest.raises(ConfigError, match=r"topk_factor 0\.1 makes 0 delays of max_len 50"):
        build_model("fearec", num_items=30, topk_factor=0.1)
