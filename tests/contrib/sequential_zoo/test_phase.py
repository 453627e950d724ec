"""WEARec and the PSWRec family against literal transcriptions of their equations."""

import math
from functools import partial

import pytest
import torch
from support.histories import of_all_lengths, scrambled
from torch import nn

from minionerec.contrib.sequential_zoo.frequency import WaveletFourierFilter
from minionerec.contrib.sequential_zoo.pswrec import DILATIONS, KERNELS, PhaseBank, to_phases
from minionerec.models.sequential.registry import build_model

LASTFM = 3646
PSWREC = ["pswrec_v5", "pswrec_v12", "pswrec_v13", "pswrec_v14", "pswrec_v13_unrotated"]


histories = partial(of_all_lengths, shortest=0)


def literal_filter(mix, x):
    """The filter of a WEARec layer, branch by branch and bin by bin, without dropout and norm."""
    rows, length, _ = x.shape
    heads = x.view(rows, length, mix.num_heads, -1).transpose(1, 2)  # (B, H, L, d)
    adapted = mix.adapt(x.mean(1)).view(rows, mix.num_heads, length // 2 + 1, 2)
    scale, bias = adapted[..., :1], adapted[..., 1:]
    spectrum = torch.fft.rfft(heads, dim=2, norm="ortho")
    spectrum = spectrum * (mix.base_filter[..., None] * (1 + scale)) + (mix.base_bias[..., None] + bias)
    fourier = torch.fft.irfft(spectrum, n=length, dim=2, norm="ortho").transpose(1, 2).reshape(x.shape)
    wavelet = torch.zeros_like(x)
    for pair in range(length // 2):
        even, odd = x[:, 2 * pair], x[:, 2 * pair + 1]
        approximation, detail = (even + odd) / 2, (even - odd) / 2 * mix.detail[pair]
        wavelet[:, 2 * pair], wavelet[:, 2 * pair + 1] = approximation + detail, approximation - detail
    return (1 - mix.alpha) * wavelet + mix.alpha * fourier


@pytest.mark.parametrize("length", [8, 9, 50])
@pytest.mark.parametrize("num_heads", [1, 4])
def test_wearec_filter_is_that_of_its_equations_at_all_slots_and_at_one(length, num_heads):
    torch.manual_seed(0)
    mix = scrambled(WaveletFourierFilter(length, 8, num_heads, 0.3, 0.0).double())
    x = torch.randn(length, length, 8, dtype=torch.float64, requires_grad=True)
    expected = mix.norm(x + literal_filter(mix, x))
    at = torch.arange(length)  # row i reads slot i
    torch.testing.assert_close(mix(x), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mix(x, at), expected[at, at], rtol=1e-10, atol=1e-10)
    used = [x, *(value for name, value in mix.named_parameters() if name != "gate_param")]
    wanted = torch.autograd.grad(expected[at, at].square().sum(), used, retain_graph=True)
    for gradient, other in zip(torch.autograd.grad(mix(x, at).square().sum(), used), wanted, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_wearec_reads_the_newest_slot(padding):
    model = scrambled(build_model("wearec", num_items=30, max_len=10, hidden_size=8, padding=padding)).eval()
    batch = histories(12, 10, 30, padding)
    x = model.embedding(batch)
    for layer in model.layers:
        x = layer.feed_forward(layer.mix.norm(x + literal_filter(layer.mix, x)))
    slots = torch.full((12,), 9) if padding == "left" else ((batch > 0).sum(1) - 1).clamp(min=0)
    torch.testing.assert_close(model.user_vectors(batch), x[torch.arange(12), slots], rtol=1e-4, atol=1e-4)


def test_wearec_layers_start_alike_but_for_their_linear_maps():
    first, second = build_model("wearec", num_items=30).layers
    torch.testing.assert_close(first.mix.detail, second.mix.detail, rtol=0, atol=0)
    assert first.mix.detail.std().item() == pytest.approx(0.02, rel=0.1)
    assert not torch.equal(first.feed_forward.inner.weight, second.feed_forward.inner.weight)
    assert first.mix.base_filter.unique().tolist() == [1.0]
    assert first.mix.base_bias.unique().item() == pytest.approx(-0.1)


def literal_bank(bank, x):
    """U and V, (B, S, L) each, channel by channel with the published depth-wise convolutions."""
    parts = []
    for weight, taps, dilation in zip(bank.weights, KERNELS, DILATIONS, strict=True):
        padded, about = nn.functional.pad(x.transpose(1, 2), ((taps - 1) * dilation, 0)), {"dilation": dilation}
        parts.append([nn.functional.conv1d(padded, w[:, None], groups=len(w), **about).mean(1) for w in weight])
    return (torch.stack(each, 1)[:, : bank.num_bands] for each in zip(*parts, strict=True))


def literal_phases(bank, x, name):
    """Cosine, sine and magnitude by angles, (B, S, L) each."""
    real, imaginary = literal_bank(bank, x)
    magnitude = (real**2 + imaginary**2 + 1e-8).sqrt()
    loud = (magnitude > 1e-3).to(x.dtype)
    if name == "pswrec_v5":
        angle = torch.atan2(imaginary, real)
        return angle.cos() * loud, angle.sin() * loud, magnitude
    angle = torch.atan2(imaginary, real + 1e-8)
    if name == "pswrec_v12":
        angle = angle * loud
    return angle.cos(), angle.sin(), magnitude


def literal_weights(layer, q, k, name, phases, mask, threshold):
    """Attention weights, (B, H, L, L), of one PSWRec layer."""
    cos, sin, magnitude = phases
    heads, width = q.shape[1], q.shape[3]
    differences = cos[..., :, None] * cos[..., None, :] + sin[..., :, None] * sin[..., None, :]  # (B, S, L, L)
    if name in ("pswrec_v5", "pswrec_v13_unrotated"):
        bands = torch.einsum("hs,bsij->bhij", layer.band_logits.softmax(-1), differences)
    if name == "pswrec_v5":
        strength = torch.einsum("hs,bsl->bhl", layer.band_logits.softmax(-1), magnitude)
        product, total = (op(strength[..., :, None], strength[..., None, :]) for op in (torch.mul, torch.add))
        sync = bands * (2 * product / (total + 1e-8)) * layer.beta.exp()[:, None, None]
        gated = (q @ k.mT / math.sqrt(width) + sync + mask).softmax(-1) * torch.sigmoid(layer.kappa * sync)
        return gated / (gated.sum(-1, keepdim=True) + 1e-9)
    if name == "pswrec_v13_unrotated":
        relative = magnitude / (magnitude.mean(1, keepdim=True) + 1e-8)
        share = torch.tanh(torch.einsum("hs,bsl->bhl", nn.functional.softplus(layer.gamma), relative))[..., None]
        bias = nn.functional.softplus(layer.phase_bias)[:, None, None] * bands / math.sqrt(cos.shape[1])
        return ((q * (1 + 0.5 * share)) @ (k * (1 + 0.5 * share)).mT / math.sqrt(width) + bias + mask).softmax(-1)

    def turn(x):
        if layer.gamma is not None:
            x = x * (1 + layer.gamma.view(1, heads, 1, 1) * magnitude[..., None])
        first, second = x[..., : width // 2], x[..., width // 2 :]
        c, s = cos[..., None], sin[..., None]
        return torch.cat((first * c - second * s, second * c + first * s), -1)

    halves = torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))
    scores = turn(q[..., halves]) @ turn(k[..., halves]).mT / math.sqrt(width)
    if name == "pswrec_v12":
        apart = (differences < threshold) & ~torch.eye(q.shape[2], dtype=torch.bool)
        scores = scores.masked_fill(apart, -1e9)
    return (scores + mask).softmax(-1)


def literal_pswrec(model, name, batch):
    """States at all slots, (B, L, D), and the roughness of the phases: no trimming, no dropout."""
    embedding = model.embedding
    x = embedding.norm(embedding.items(batch) + embedding.positions.weight)
    if name != "pswrec_v5":
        x = embedding.norm(x)
    phases = literal_phases(model.bank, x, name)
    rough = sum(((part[..., 1:] - part[..., :-1]) ** 2).mean() for part in phases[:2])
    slots = torch.arange(batch.shape[1])
    seen = (slots <= slots[:, None]) & (batch > 0)[:, None, None, :]
    mask = torch.where(seen, 0.0, -10000.0).to(x.dtype)
    for layer in model.layers:
        own = layer.attention
        q, k, v = (part.unflatten(-1, (own.num_heads, -1)).transpose(1, 2) for part in own.qkv(x).chunk(3, -1))
        weights = literal_weights(own, q, k, name, phases, mask, getattr(model, "sync_threshold", None))
        x = own.norm(x + own.out((weights @ v).transpose(1, 2).flatten(2)))
        inner = nn.functional.gelu(layer.feed_forward.inner(x))
        x = layer.feed_forward.norm(x + layer.feed_forward.outer(inner))
    return x, rough


@pytest.mark.parametrize("length", [3, 20, 50])
@pytest.mark.parametrize("num_bands", [2, 4])
def test_the_bank_is_the_mean_of_depth_wise_convolutions(length, num_bands):
    torch.manual_seed(0)
    bank = PhaseBank(8, num_bands, "kept").double()
    assert [tuple(weight.shape) for weight in bank.weights] == [(2, 8, taps) for taps in KERNELS]
    for weight, taps in zip(bank.weights, KERNELS, strict=True):
        assert weight.abs().max() <= 1 / math.sqrt(taps)
        assert weight.std().item() == pytest.approx(1 / math.sqrt(3 * taps), rel=0.25)
    x = torch.randn(4, length, 8, dtype=torch.float64, requires_grad=True)
    given, wanted = bank(x), literal_phases(bank, x, "pswrec_v13")
    for mine, other in zip((given.cos, given.sin, given.magnitude), wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)
    weights = list(bank.weights)[:num_bands]
    own = torch.autograd.grad((given.cos + 2 * given.sin + 3 * given.magnitude).sum(), [x, *weights])
    other = torch.autograd.grad((wanted[0] + 2 * wanted[1] + 3 * wanted[2]).sum(), [x, *weights])
    for mine, expected in zip(own, other, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-7, atol=1e-7)


def test_phases_of_silent_slots_are_defined_and_so_are_their_gradients():
    real = torch.tensor([0.0, 0.0, -1e-8, 5e-4, 0.5, -0.5], requires_grad=True)
    imaginary = torch.tensor([0.0, 1e-30, 0.0, -5e-4, 0.5, 0.0], requires_grad=True)
    for silence, silent in (("no phase", (0.0, 0.0)), ("zero angle", (1.0, 0.0)), ("kept", None)):
        phases = to_phases(real, imaginary, silence)
        if silent is not None:
            assert phases.cos[:4].tolist() == [silent[0]] * 4
            assert phases.sin[:4].tolist() == [silent[1]] * 4
        assert phases.cos[4:].tolist() == pytest.approx([math.sqrt(0.5), -1.0])
        assert phases.sin[4:].tolist() == pytest.approx([math.sqrt(0.5), 0.0])
        for gradient in torch.autograd.grad((phases.cos + phases.sin + phases.magnitude).sum(), [real, imaginary]):
            assert gradient.isfinite().all()
    assert phases.cos[:2].tolist() == [1.0, 1.0]  # atan2(V, U + 1e-8) at the origin


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", PSWREC)
def test_pswrec_is_that_of_its_equations_in_value_and_gradient(name, padding):
    """Trimmed padding, one readout and merged products change nothing, in rows without any item too."""
    torch.manual_seed(0)
    shape = {"num_items": 30, "max_len": 12, "hidden_size": 16, "inner_size": 24, "padding": padding}
    without_dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    if name == "pswrec_v12":
        shape["sync_threshold"] = 0.2
    model = scrambled(build_model(name, **shape, phase_aux_weight=0.3, **without_dropout)).double()
    batch = histories(26, 12, 30, padding)
    states, rough = literal_pswrec(model, name, batch)
    slots = torch.full((26,), 11) if padding == "left" else ((batch > 0).sum(1) - 1).clamp(min=0)
    expected = states[torch.arange(26), slots]
    torch.testing.assert_close(model.user_vectors(batch), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.eval().user_vectors(batch), expected, rtol=1e-6, atol=1e-6)
    some = (batch > 0).any(1)
    torch.testing.assert_close(model.position_vectors(batch)[some, slots[some]], expected[some], rtol=1e-6, atol=1e-6)
    targets = torch.arange(26) + 1
    loss = nn.functional.cross_entropy(expected @ model.item_matrix().T, targets) + 0.3 * rough
    own = dict(model.named_parameters())
    wanted = torch.autograd.grad(loss, list(own.values()))
    torch.testing.assert_close(model.train().loss(batch, targets), loss, rtol=1e-7, atol=1e-7)
    found = torch.autograd.grad(model.loss(batch, targets), list(own.values()))
    for key, mine, other in zip(own, found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")
    model.phase_aux_weight = 0.0
    torch.testing.assert_close(model.loss(batch, targets), loss - 0.3 * rough, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("name", "twice"), [("pswrec_v5", False), ("pswrec_v12", True), ("pswrec_v14", True)])
def test_later_versions_drop_the_embedding_twice(name, twice):
    """The second norm moves what the first dropout made 0, the same amount throughout a slot."""
    x, _ = build_model(name, num_items=30, max_len=12).train().embed(torch.randint(1, 31, (64, 12)))
    assert (x == 0).double().mean() == pytest.approx(0.5, abs=0.02)
    kept = x[5, 5][x[5, 5] != 0]
    repeated = (kept[:, None] == kept).sum(1).max().item()
    assert (repeated > 1) == twice


def test_what_a_pswrec_starts_from():
    assert build_model("pswrec_v13", num_items=30).layers[1].attention.gamma.tolist() == [0.0] * 4
    assert build_model("pswrec_v14", num_items=30).layers[1].attention.gamma.tolist() == pytest.approx([0.1] * 4)
    v5 = build_model("pswrec_v5", num_items=30).layers[0].attention
    assert v5.band_logits.tolist() == [[-0.25, -0.25, -2.25, -6.25], [-6.25, -2.25, -0.25, -0.25]]
    assert v5.beta.tolist() == pytest.approx([0.1] * 2)
    assert v5.kappa.item() == 1.0
    unrotated = build_model("pswrec_v13_unrotated", num_items=30, num_heads=2, num_bands=3).layers[0].attention
    assert unrotated.gamma.tolist() == [[-3.0] * 3] * 2
    assert unrotated.phase_bias.tolist() == [-5.0] * 2
