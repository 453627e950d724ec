import itertools

import numpy as np
import pytest

from minionerec.core.errors import DataError
from minionerec.sid import on_device
from minionerec.sid.kmeans import fit_codebook_sizes, reconstruct, residual_kmeans, training_rows


def planted(rng, sizes=(5, 4, 3), per_leaf=6, width=12):
    """Sums of one far, one middle and one near offset: a hierarchy whose leaves residual k-means must find."""
    offsets = [
        np.linalg.qr(rng.normal(size=(width, width)))[0][:size] * scale
        for size, scale in zip(sizes, (100.0, 10.0, 1.0), strict=True)
    ]
    leaves = list(itertools.product(*map(range, sizes)))
    truth = np.repeat(leaves, per_leaf, axis=0)
    truth = truth[rng.permutation(len(truth))]
    vectors = sum(offset[truth[:, level]] for level, offset in enumerate(offsets))
    return (vectors + rng.normal(scale=1e-3, size=vectors.shape)).astype(np.float32), truth


@pytest.mark.parametrize("seed", range(5))
def test_planted_hierarchy_is_recovered(seed):
    vectors, truth = planted(np.random.default_rng(seed))
    codes, codebooks = residual_kmeans(vectors, (5, 4, 3), seed, 20)
    assert codes.dtype == np.int32 and codes.shape == truth.shape
    for level, size in enumerate((5, 4, 3)):
        pairs = {(int(ours), int(planted)) for ours, planted in zip(codes[:, level], truth[:, level], strict=True)}
        assert len(pairs) == size  # one of our codes for each planted one, and the other way round
        assert codebooks[level].shape == (size, 12) and codebooks[level].dtype == np.float32
    assert np.abs(vectors - reconstruct(codes, codebooks)).max() < 0.01


def test_codes_are_the_nearest_of_each_residual():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(200, 6)).astype(np.float32)
    codes, codebooks = residual_kmeans(vectors, (8, 7, 5), 0, 10)
    residuals = vectors.astype(np.float64)
    for level, codebook in enumerate(codebooks):
        distances = ((residuals[:, None, :] - codebook[None]) ** 2).sum(axis=2)
        own = distances[np.arange(200), codes[:, level]]
        assert (own <= distances.min(axis=1) + 1e-5).all()
        residuals -= codebook[codes[:, level]]
    # centroids are means of their items, up to the last iteration's moves
    first = np.stack([vectors[codes[:, 0] == code].mean(axis=0) for code in range(8)])
    assert np.abs(first - codebooks[0]).max() < 0.2


def test_same_seed_same_bytes_and_input_untouched():
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(700, 16)).astype(np.float32)
    before = vectors.copy()
    one, two, other = (residual_kmeans(vectors, (32, 16), seed, 10) for seed in (7, 7, 8))
    assert one[0].tobytes() == two[0].tobytes()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one[1], two[1], strict=True))
    assert one[0].tobytes() != other[0].tobytes()
    assert vectors.tobytes() == before.tobytes()


def test_about_as_good_as_faiss_residual_quantizer_on_clustered_data():
    import faiss
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(2)
    centres = rng.normal(size=(40, 16))
    vectors = (centres[rng.integers(0, 40, 1500)] + 0.5 * rng.normal(size=(1500, 16))).astype(np.float32)
    theirs = faiss.ResidualQuantizer(16, 3, 4)
    theirs.max_beam_size = 1
    with threadpool_limits(limits=1):
        theirs.train(vectors)
        decoded = theirs.decode(theirs.compute_codes(vectors))
    ours = [((vectors - reconstruct(*residual_kmeans(vectors, (16, 16, 16), seed))) ** 2).sum() for seed in range(6)]
    assert np.mean(ours) < 1.05 * ((vectors - decoded) ** 2).sum()


def test_training_on_a_sample_still_codes_every_item():
    vectors, truth = planted(np.random.default_rng(3), per_leaf=40)
    codes, codebooks = residual_kmeans(vectors, (5, 4, 3), 0, 20, train_rows=5 * 64)
    assert codes.shape == (2400, 3)
    for level, size in enumerate((5, 4)):  # a sample's centroids are off by about the third level's scale
        assert len(set(zip(codes[:, level].tolist(), truth[:, level].tolist(), strict=True))) == size
    assert np.abs(vectors - reconstruct(codes, codebooks)).max() < 3
    assert codebooks[0].tobytes() != residual_kmeans(vectors, (5, 4, 3), 0, 20)[1][0].tobytes()


def test_equal_items_get_equal_codes():
    rng = np.random.default_rng(4)
    vectors = np.repeat(rng.normal(size=(3, 4)).astype(np.float32), 5, axis=0)
    codes, codebooks = residual_kmeans(vectors, (6, 6), 0, 5)  # more codes than distinct items
    assert len({tuple(row) for row in codes.tolist()}) == 3
    np.testing.assert_allclose(reconstruct(codes, codebooks), vectors, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 28, 50, 120, 300, 3686, 12101])
@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_fitted_sizes_have_room_for_every_item(n, levels):
    sizes = fit_codebook_sizes((max(256, n),) * levels, n)
    assert all(1 <= size <= n for size in sizes)
    assert np.prod(np.array(sizes, dtype=object)) >= n


def test_fitted_sizes_of_small_catalogues_are_reported(caplog):
    with caplog.at_level("INFO", logger="minionerec"):
        assert fit_codebook_sizes((256, 256, 256), 3686) == (256, 256, 256)
        assert caplog.text == ""
        assert fit_codebook_sizes((16, 256, 16), 300) == (16, 21, 16)
    assert "300 items fill no more than 21 codes per level: taking 16/21/16 instead of 16/256/16" in caplog.text


def nan_at(row):
    vectors = np.zeros((4, 2), dtype=np.float32)
    vectors[row, 1] = np.nan
    return vectors


@pytest.mark.parametrize(
    ("vectors", "sizes", "message"),
    [
        (nan_at(2), (2,), "vectors: row 2, column 1 is nan"),
        (np.zeros((4, 2)), (2, 5), r"4 items cannot fill a codebook of 5 codes\. Lower codebook_sizes to at most 4"),
        (np.zeros((0, 2)), (2,), r"vectors have shape \(0, 2\)"),
        (np.zeros(4), (2,), r"vectors have shape \(4,\)"),
        (np.zeros((4, 2)), (), "one number of at least 1 per level"),
        (np.zeros((4, 2)), (2, 0), "codebook sizes are 2 0"),
    ],
)
def test_bad_input(vectors, sizes, message):
    with pytest.raises(DataError, match=message):
        residual_kmeans(vectors, sizes)


def test_distances_from_a_device_give_the_same_kmeans():
    vectors, truth = planted(np.random.default_rng(5))
    codes, codebooks = residual_kmeans(vectors, (5, 4, 3), 0, 20, device="cpu:0")
    for level, size in enumerate((5, 4, 3)):
        assert len(set(zip(codes[:, level].tolist(), truth[:, level].tolist(), strict=True))) == size
    noise = np.random.default_rng(6).normal(size=(600, 8)).astype(np.float32)
    left = {}
    for device in ("cpu", "cpu:0"):
        left[device] = ((noise - reconstruct(*residual_kmeans(noise, (16, 16), 0, 20, device=device))) ** 2).sum()
    assert left["cpu:0"] < 1.02 * left["cpu"]
    few = np.repeat(noise[:3], 5, axis=0)
    codes, codebooks = residual_kmeans(few, (6, 6), 0, 5, device="cpu:0")  # codes that stay empty
    np.testing.assert_allclose(reconstruct(codes, codebooks), few, atol=1e-5)


@pytest.mark.parametrize("held", [True, False])
def test_a_device_makes_the_steps_of_lloyd(held, monkeypatch):
    rng = np.random.default_rng(8)
    points = rng.normal(size=(700, 6)).astype(np.float32)
    centroids = np.concatenate([points[:9], np.full((2, 6), 50.0, np.float32)])  # two that no point has
    monkeypatch.setattr(on_device, "_BLOCK", 64)
    monkeypatch.setattr(on_device, "_fits", lambda points, device: held)
    wanted = centroids.copy()
    for _ in range(4):
        apart = ((points[:, None] - wanted[None]) ** 2).sum(-1)
        codes = apart.argmin(1)
        empty = [code for code in range(11) if not (codes == code).any()]
        means = [points[codes == code].mean(0) if code not in empty else wanted[code] for code in range(11)]
        wanted = np.array(means)
        wanted[empty] = points[np.argsort(-apart[np.arange(700), codes], kind="stable")[: len(empty)]]
    found = on_device.lloyd_on(points, centroids, 4, "cpu:0")
    assert found.dtype == np.float32 and (points[:9] == centroids[:9]).all()
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    settled = on_device.lloyd_on(points, centroids, 500, "cpu:0")
    np.testing.assert_array_equal(settled, on_device.lloyd_on(points, settled, 1, "cpu:0"))


def test_wide_vectors_start_from_projections():
    rng = np.random.default_rng(7)
    truth = rng.permutation(np.repeat(np.arange(12), 20))
    vectors = (rng.normal(size=(12, 200))[truth] + 0.05 * rng.normal(size=(240, 200))).astype(np.float32)
    codes, _ = residual_kmeans(vectors, (12,), 0, 10)
    assert len(set(zip(codes[:, 0].tolist(), truth.tolist(), strict=True))) == 12


def test_training_rows():
    assert training_rows(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    rows = training_rows(1000, 50, 1)
    assert len(set(rows.tolist())) == 50 and (np.diff(rows) > 0).all() and rows.max() < 1000
