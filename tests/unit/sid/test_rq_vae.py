import numpy as np
import pytest
import torch

from minionerec.core.errors import ArtefactError, DataError
from minionerec.sid.kmeans import assign, reconstruct, residual_kmeans
from minionerec.sid.quantiser import CODEBOOKS_FILE, Quantiser
from minionerec.sid.report import level_use
from minionerec.sid.rq_vae import _RqVae, fit_rq_vae


def clusters(rng, n=300, width=10, centres=(6, 4), scales=(5.0, 1.0)):
    """Two planted levels: far groups, and near groups within each."""
    truth = np.stack([rng.integers(0, size, n) for size in centres], axis=1)
    offsets = [rng.normal(size=(size, width)) * scale for size, scale in zip(centres, scales, strict=True)]
    vectors = sum(offset[truth[:, level]] for level, offset in enumerate(offsets))
    return (vectors + 0.02 * rng.normal(size=vectors.shape)).astype(np.float32), truth


SMALL = {"hidden_sizes": (24,), "latent_size": 6, "batch_size": 64}


def test_training_lowers_the_error_and_stops_early():
    vectors, _ = clusters(np.random.default_rng(0), n=128)
    training = {"epochs": 2000, "learning_rate": 3e-3, "patience": 2}
    quantiser, errors, best, _ = fit_rq_vae(vectors, (8, 8), 0, **training, **SMALL)
    assert errors[best] == min(errors) < 0.1 < 0.5 < errors[0]
    assert len(errors) < 200 and len(errors) - 1 - best == 2  # two checks without a better one, then the end
    assert [book.shape for book in quantiser.codebooks] == [(8, 6), (8, 6)]


def test_planted_groups_are_recovered():
    vectors, truth = clusters(np.random.default_rng(1), scales=(8.0, 1.0))
    codes = fit_rq_vae(vectors, (6, 8), 1, epochs=100, **SMALL)[0].encode(vectors)
    assert len(set(zip(codes[:, 0].tolist(), truth[:, 0].tolist(), strict=True))) == 6


def test_plus_starts_at_residual_kmeans_and_ends_no_worse():
    vectors = np.random.default_rng(2).normal(size=(200, 8)).astype(np.float32)
    start, errors, *_ = fit_rq_vae(vectors, (8, 8), 3, plus=True, epochs=0, hidden_sizes=(12,))
    mean, scale = start.encoder.mean, start.encoder.scale
    codes, codebooks = residual_kmeans((vectors - mean) / np.float32(scale), (8, 8), 3)
    assert (start.encode(vectors) == codes).mean() > 0.99
    use = level_use(codes, vectors=vectors, codebooks=[book * scale for book in codebooks])
    left = ((vectors - mean - scale * reconstruct(codes, codebooks)) ** 2).sum()
    assert errors == [pytest.approx(left / ((vectors - mean) ** 2).sum(), rel=1e-4)] and use[1].used == 8
    more = {"epochs": 200, "learning_rate": 1e-3}
    tuned, later, best, _ = fit_rq_vae(vectors, (8, 8), 3, plus=True, hidden_sizes=(12,), **more)
    assert later[0] == errors[0] and later[best] < 0.99 * errors[0]
    assert tuned.points(vectors).shape == vectors.shape


@pytest.mark.parametrize("plus", [False, True])
def test_the_saved_quantiser_gives_the_same_codes(tmp_path, plus):
    vectors, _ = clusters(np.random.default_rng(3), n=80)
    state = torch.random.get_rng_state()
    quantiser = fit_rq_vae(vectors, (5, 4, 3), 0, plus=plus, epochs=10, **SMALL)[0]
    assert torch.equal(state, torch.random.get_rng_state())  # nobody else's random numbers are touched
    quantiser.save(tmp_path / CODEBOOKS_FILE)
    loaded = Quantiser.load(tmp_path)
    assert loaded.encode(vectors).tobytes() == quantiser.encode(vectors).tobytes()
    assert loaded.encoder.residual is plus
    with pytest.raises(DataError, match="vectors have 9 dimensions, but the codebooks were made from vectors of 10"):
        loaded.points(vectors[:, :9])


def test_codebooks_alone_are_a_quantiser(tmp_path):
    vectors, _ = clusters(np.random.default_rng(4), n=80)
    codes, codebooks = residual_kmeans(vectors, (5, 4), 0, 10)
    Quantiser(codebooks).save(tmp_path / CODEBOOKS_FILE)
    assert Quantiser.load(tmp_path).encode(vectors).tolist() == codes.tolist() == assign(vectors, codebooks)[0].tolist()
    with pytest.raises(ArtefactError, match="no such file, so it is not known how these SIDs were made"):
        Quantiser.load(tmp_path / "nowhere")


def test_dead_codes_are_revived():
    vectors, _ = clusters(np.random.default_rng(5), n=60, centres=(3, 2))
    *_, revived = fit_rq_vae(vectors, (40, 40), 0, epochs=40, **SMALL)
    assert revived > 0


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_gradient_passes_straight_through_and_codebooks_follow_residuals():
    model = _RqVae(np.zeros((1, 4), np.float32), (5,), 3, False, torch.Generator().manual_seed(0))
    books, inputs = drawn(1, 2, 6, 3), drawn(9, 7, 4)
    model.codebooks.extend(torch.nn.Parameter(book) for book in books)
    latents = model.encoder(inputs).detach().requires_grad_()
    codes, loss, residuals = model.quantise(latents)
    left = latents.detach()
    expected = 0.0
    for level, book in enumerate(books):
        nearest = ((left[:, None] - book[None]) ** 2).sum(2).argmin(1)
        assert codes[:, level].tolist() == nearest.tolist()
        expected += 1.25 * ((left - book[nearest]) ** 2).mean() / 2
        left = (left - book[nearest]).detach()
    torch.testing.assert_close(loss.detach(), expected)
    torch.testing.assert_close(residuals[-1].detach(), left)
    decoded = model.decoder(latents - residuals[-1].detach())
    seen = (latents.detach() - left).requires_grad_()
    weights = drawn(3, 7, 4)
    (through,) = torch.autograd.grad((decoded * weights).sum(), latents, retain_graph=True)
    (direct,) = torch.autograd.grad((model.decoder(seen) * weights).sum(), seen)
    torch.testing.assert_close(through, direct)


@pytest.mark.parametrize("plus", [False, True])
def test_same_seed_same_bytes(plus):
    vectors, _ = clusters(np.random.default_rng(6), n=90)
    one, two, other = (fit_rq_vae(vectors, (6, 5), seed, plus=plus, epochs=20, **SMALL) for seed in (1, 1, 2))
    for a, b in zip(one[0].codebooks, two[0].codebooks, strict=True):
        assert a.tobytes() == b.tobytes()
    assert one[1] == two[1] != other[1]


def test_bad_vectors():
    vectors = np.zeros((4, 2), np.float32)
    with pytest.raises(DataError, match="4 items cannot fill a codebook of 5 codes"):
        fit_rq_vae(vectors, (5,), 0)
    vectors[2, 1] = np.nan
    with pytest.raises(DataError, match="must be a finite float32"):
        fit_rq_vae(vectors, (2,), 0)
