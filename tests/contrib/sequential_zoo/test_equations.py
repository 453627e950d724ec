"""FEARec, LightSANs and TRM4Rec against literal transcriptions of their equations."""

import pytest
import torch
from support.histories import assert_same_gradients, newest_slots, scrambled
from support.histories import of_all_lengths as histories

from minionerec.contrib.sequential_zoo.frequency import AutoCorrelation
from minionerec.contrib.sequential_zoo.lightsans import InterestAttention
from minionerec.models.sequential.registry import build_model


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


def literal_interest_attention(attention, x, positions):
    """The LightSANs layer product by product, without dropout."""
    heads = attention.num_heads
    width = x.shape[-1] // heads

    def split(z):
        return z.unflatten(-1, (heads, width)).transpose(1, 2)

    def pool(z, theta):
        pairs = zip((z @ theta).softmax(-2), z, strict=True)  # over the slots
        return torch.stack([sum(w[slot, :, None] * row[slot] for slot in range(len(row))) for w, row in pairs])

    q, k, v = attention.query(x), attention.key(x), attention.value(x)
    interests, values = split(pool(k, attention.key_pool)), split(pool(v, attention.value_pool))
    weights = (split(q) @ interests.transpose(-1, -2) / width**0.5).softmax(-2)
    normed = attention.position_norm(positions)[None]
    query = split(attention.position_query(normed) / (2 * width) ** 0.5)
    order = query @ split(attention.position_key(normed)).transpose(-1, -2)
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
@pytest.mark.parametrize("name", ["fearec", "lightsans"])
def test_models_of_such_layers_read_the_newest_slot(name, padding):
    hyper = {"topk_factor": 1.5} if name == "fearec" else {}
    model = scrambled(build_model(name, num_items=30, max_len=10, hidden_size=8, padding=padding, **hyper)).eval()
    batch = histories(12, 10, 30, padding)
    x = model.embedding(batch) if name == "fearec" else model.norm(model.items(batch))
    for layer in model.layers:
        if name == "fearec":
            assert layer.mix.num_delays == 3
            mixed = literal_auto_correlation(layer.mix, x, 2)
        else:
            mixed = literal_interest_attention(layer.attention, x, model.positions.weight)
        x = layer.feed_forward(mixed)
    expected = x[torch.arange(12), newest_slots(batch, padding)]
    torch.testing.assert_close(model.user_vectors(batch), expected, rtol=1e-4, atol=1e-4)


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


def with_other_padding(name):
    """Vectors of users, and those after the vector of the padding has changed."""
    model = scrambled(build_model(name, num_items=30, max_len=20, hidden_size=8, padding="right")).eval()
    batch = histories(20, 20, 30)
    before = model.user_vectors(batch)
    with torch.no_grad():
        model.item_matrix()[0] += torch.arange(8)
    return before, model.user_vectors(batch)


@pytest.mark.parametrize("name", ["fearec", "lightsans", "wearec"])
def test_models_without_masks_depend_on_their_padding(name):
    before, after = with_other_padding(name)
    changed = (after - before).abs().amax(1) > 1e-4
    assert not changed[-1]
    assert changed[:10].all()


def literal_rotation(x):
    """Rotary embedding with half-split pairs, slot by slot and pair by pair: (B, H, L, d)."""
    turned = torch.empty_like(x)
    half = x.shape[-1] // 2
    for slot in range(x.shape[2]):
        for i in range(half):
            angle = torch.tensor(slot * 10000 ** (-2 * i / x.shape[-1]), dtype=x.dtype)
            first, second = x[:, :, slot, i], x[:, :, slot, i + half]
            turned[:, :, slot, i] = first * angle.cos() - second * angle.sin()
            turned[:, :, slot, i + half] = second * angle.cos() + first * angle.sin()
    return turned


def literal_recursion(model, batch, full_backprop):
    """TRM4Rec on the whole padded batch: answers at all slots."""

    def rms(x):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    def apply(block, x):
        q, k, v = (part.unflatten(-1, (block.num_heads, -1)).transpose(1, 2) for part in block.qkv(x).chunk(3, -1))
        if model.angles is not None:
            q, k = literal_rotation(q), literal_rotation(k)
        seen = (batch > 0)[:, None, None, :] & torch.ones(batch.shape[1], batch.shape[1]).tril().bool()
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + (~seen) * -10000.0
        x = rms(x + block.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
        gate, up = block.gate_up(x).chunk(2, -1)
        return rms(x + block.down(gate * gate.sigmoid() * up))

    x = model.items(batch) * model.items.embedding_dim**0.5
    if model.positions is not None:
        x = x + model.positions.weight
    answer, reasoning = model.answer.expand_as(x), model.reasoning.expand_as(x)
    for step in range(model.num_steps):
        for block in model.blocks:
            reasoning = apply(block, reasoning + answer + x)
            answer = apply(block, answer + reasoning)
        if step < model.num_steps - 1 and not full_backprop:
            reasoning, answer = reasoning.detach(), answer.detach()
    return answer


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("full_backprop", [False, True])
@pytest.mark.parametrize(
    ("num_blocks", "use_rope", "use_positions"),
    [(1, True, False), (2, True, True), (2, False, True), (1, False, False)],
)
def test_trm4rec_is_that_of_its_equations(padding, full_backprop, num_blocks, use_rope, use_positions):
    hyper = {"num_blocks": num_blocks, "use_rope": use_rope, "use_positions": use_positions, "num_steps": 3}
    hyper |= {"full_backprop": full_backprop, "padding": padding, "hidden_size": 8}
    model = scrambled(build_model("trm4rec", num_items=30, max_len=10, **hyper).double())
    batch = histories(15, 10, 30, padding)[torch.randperm(15)]
    batch[3] = 0
    rows, at = torch.arange(15), newest_slots(batch, padding).clamp(min=0)
    whole = literal_recursion(model, batch, full_backprop)
    torch.testing.assert_close(model.user_vectors(batch), whole[rows, at], rtol=1e-5, atol=1e-5)
    real = batch > 0
    torch.testing.assert_close(model.position_vectors(batch)[real], whole[real], rtol=1e-5, atol=1e-5)
    assert_same_gradients(model.user_vectors(batch), whole[rows, at], list(model.parameters()), 1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(model.eval().user_vectors(batch), whole[rows, at], rtol=1e-5, atol=1e-5)


def test_trm4rec_with_one_cycle_or_full_backprop_moves_its_starts_and_else_does_not():
    batch = histories(6, 10, 30)
    for hyper, moves in (({}, False), ({"num_steps": 1}, True), ({"full_backprop": True}, True)):
        model = build_model("trm4rec", num_items=30, max_len=10, hidden_size=8, **hyper)
        model.loss(batch, torch.arange(1, 7)).backward()
        assert (model.answer.grad is not None and model.reasoning.grad is not None) is moves
        assert model.blocks[0].down.weight.grad is not None


def test_trm4rec_does_not_depend_on_its_padding():
    before, after = with_other_padding("trm4rec")
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
