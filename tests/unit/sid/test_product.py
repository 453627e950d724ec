"""OPQ: planted parts, nearest codes, what the rotation is worth, and what it refuses."""

import faiss
import numpy as np
import pytest
from support.rounding import assert_near, rounding
from threadpoolctl import threadpool_limits

from minionerec.core.errors import DataError
from minionerec.sid.kmeans import assign, product_kmeans, reconstruct
from minionerec.sid.quantiser import Quantiser


def correlated(n=600, width=12, seed=0):
    """Vectors whose variance lies in few directions that no axis is along."""
    rng = np.random.default_rng(seed)
    turned = rng.normal(size=(n, width)) * 0.7 ** np.arange(width)
    return (turned @ np.linalg.qr(rng.normal(size=(width, width)))[0]).astype(np.float32)


def fitted(vectors, *how):
    """Codes of vectors, and the codebooks fitted on them."""
    books = product_kmeans(vectors, *how)
    return assign(vectors, books)[0], books


def error(vectors, codes, books):
    return float(((vectors - reconstruct(codes, books)) ** 2).sum())


def test_planted_digits_are_recovered():
    """Items whose digits were drawn independently, each of a subspace of its own: digits come back up to names."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    truth = rng.integers(0, 4, (400, 3))
    centres = rng.normal(size=(3, 4, 2)) * 10
    parts = np.concatenate([centres[digit][truth[:, digit]] for digit in range(3)], axis=1)
    vectors = (parts @ basis.T + rng.normal(scale=1e-3, size=parts.shape)).astype(np.float32)
    errors = []
    for seed in range(3):
        codes, books = fitted(vectors, (4, 4, 4), seed, 50)
        assert codes.shape == (400, 3) and codes.dtype == np.int32
        errors.append(error(vectors, codes, books))
    assert min(errors) < 0.1 < 1000 < float((vectors**2).sum())


@pytest.mark.parametrize("sizes", [(8, 8, 8), (8, 4, 6, 5, 7)])
def test_codebooks_lie_at_right_angles_and_codes_are_the_nearest_of_all_together(sizes):
    vectors = correlated(300)
    codes, books = fitted(vectors, sizes, 0, 5)
    for one, first in enumerate(books):
        assert first.shape == (sizes[one], 12) and first.dtype == np.float32
        for second in books[:one]:
            assert np.abs(first @ second.T).max() < rounding(vectors**2)
    every = np.indices(sizes[:3]).reshape(3, -1).T
    if len(sizes) == 3:  # brute force over all combinations
        distances = ((vectors[:40, None] - reconstruct(every, books)[None]) ** 2).sum(2)
        found = ((vectors[:40] - reconstruct(codes[:40], books)) ** 2).sum(1)
        assert_near(found, distances.min(1))
    assert (Quantiser(books).encode(vectors) == codes).all()


def test_the_error_is_that_of_faiss_and_a_rotation_is_worth_having():
    vectors = correlated()
    ours = np.mean([error(vectors, *fitted(vectors, (16, 16, 16), seed, 50)) for seed in range(4)])
    with threadpool_limits(limits=1):
        quantiser = faiss.ProductQuantizer(12, 3, 4)
        quantiser.cp.min_points_per_centroid = 1
        quantiser.train(vectors)
        plain = ((vectors - quantiser.decode(quantiser.compute_codes(vectors))) ** 2).sum()
        turn = faiss.OPQMatrix(12, 3)
        turn.pq = quantiser
        turn.train(vectors)
        turned = turn.apply(vectors)
        quantiser.train(turned)
        theirs = ((turned - quantiser.decode(quantiser.compute_codes(turned))) ** 2).sum()
    assert ours < 1.05 * theirs
    assert ours < 0.7 * plain


def test_same_seed_same_bytes_and_input_untouched():
    vectors = correlated()
    before = vectors.copy()
    one, two, other = (fitted(vectors, [16] * 4, seed, 5) for seed in (7, 7, 8))
    assert one[0].tobytes() == two[0].tobytes() != other[0].tobytes()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one[1], two[1], strict=True))
    assert vectors.tobytes() == before.tobytes()


def test_equal_vectors_get_equal_digits():
    vectors = np.repeat(correlated(200), 2, axis=0)
    codes, _ = fitted(vectors, (8, 8), 0, 5)
    assert (codes[::2] == codes[1::2]).all()


def test_what_cannot_be_cut():
    message = r"vectors of 12 dimensions cannot be split into 13 digits.* Lower digits, or raise dim"
    with pytest.raises(DataError, match=message):
        product_kmeans(correlated(50), [4] * 13)
    with pytest.raises(DataError, match="50 items cannot fill a codebook of 64 codes"):
        product_kmeans(correlated(50), [64] * 3)
