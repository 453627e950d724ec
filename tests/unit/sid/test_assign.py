"""What is done in blocks beside what is done at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minionerec.core.errors import DataError
from minionerec.sid import collisions as resolving
from minionerec.sid import kmeans, report
from minionerec.sid.collisions import resolve_collisions
from minionerec.sid.embed.stored import VectorFile
from minionerec.sid.kmeans import assign, balanced_assign, balanced_stream, fit_residual, reconstruct, residual_kmeans
from minionerec.sid.quantiser import EncodedVectors, Encoder, Quantiser
from minionerec.sid.report import level_use, sid_report


def clustered(rows=900, width=6, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(20, width))[rng.integers(0, 20, rows)] + 0.3 * rng.normal(size=(rows, width))).astype("f4")


@pytest.fixture
def stored(tmp_path):
    vectors = clustered()
    np.save(tmp_path / "v.npy", vectors)
    return vectors, VectorFile(tmp_path / "v.npy")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("device", [{}, {"device": "cpu:0"}], ids=["processor", "device"])
def test_one_pass_gives_the_codes_and_distances_of_all(stored, threads, device, monkeypatch):
    vectors, file = stored
    monkeypatch.setattr(kmeans, "_BLOCK", 100)
    codebooks = residual_kmeans(vectors, (8, 8), 0, 5)[1]
    codes, left = assign(vectors, codebooks)
    before = vectors.copy()
    for given_rows in (vectors, file):
        found, distances = assign(given_rows, codebooks, threads, **device)
        assert found.dtype == np.int32 and (found == assign(vectors, codebooks, **device)[0]).all()
        if device:
            assert (found == codes).mean() > 0.999  # sums may be ordered otherwise
            np.testing.assert_allclose(distances, left, rtol=1e-3)
        else:
            wanted = ((vectors - reconstruct(found, codebooks)) ** 2).sum(axis=1)
            np.testing.assert_allclose(distances, wanted, rtol=1e-4)
    assert (vectors == before).all()


def test_codebooks_of_a_file_are_those_of_the_array(stored):
    vectors, file = stored
    codebooks = residual_kmeans(vectors, (8, 8), 0, 5, train_rows=300)[1]
    for balance in (False, True):
        ours = residual_kmeans(file, (8, 8), 0, 5, train_rows=300, balanced=balance)
        whole = residual_kmeans(vectors, (8, 8), 0, 5, train_rows=300, balanced=balance)
        assert ours[0].tobytes() == whole[0].tobytes()
        assert all(one.tobytes() == other.tobytes() for one, other in zip(ours[1], whole[1], strict=True))
    rows = np.sort(np.random.default_rng(0).choice(900, 300, replace=False))
    alone = fit_residual(vectors[rows], (8, 8), 0, 5)
    assert all(one.tobytes() == other.tobytes() for one, other in zip(alone, codebooks, strict=True))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 400), st.integers(1, 400))
def test_balanced_without_all_costs_is_balanced(seed, size, more, at_once):
    rng = np.random.default_rng(seed)
    costs = rng.normal(size=(size + more, size)).astype(np.float32)
    prices = 0.3 * rng.normal(size=size)
    parts = [(slice(i, min(i + 50, len(costs))), costs[i : i + 50]) for i in range(0, len(costs), 50)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kmeans, "COSTS_BYTES", 4 * size * at_once)
        codes = balanced_stream(len(costs), parts, lambda items: costs[items], prices)
    counts = np.bincount(codes, minlength=size)
    assert codes.dtype == np.int32 and set(counts) <= {len(costs) // size, -(-len(costs) // size)}


def test_balanced_without_all_costs_costs_little_more(monkeypatch):
    points, centroids = clustered(6000), clustered(12, seed=1)
    costs = ((points[:, None] - centroids) ** 2).sum(axis=2)
    _, prices = balanced_assign(costs[::4])
    codes = balanced_stream(len(costs), [(slice(0, 6000), costs)], lambda items: costs[items], prices)
    ours, best = (costs[np.arange(6000), found].sum() for found in (codes, balanced_assign(costs)[0]))
    assert costs.min(axis=1).sum() < 0.95 * best and ours < 1.02 * best


def test_balanced_levels_of_many_items_are_balanced(stored, monkeypatch):
    vectors, file = stored
    monkeypatch.setattr(kmeans, "COSTS_BYTES", 1000)
    codes, codebooks = residual_kmeans(file, (8, 8), 0, 5, balanced=True)
    assert all(set(np.bincount(column)) <= {112, 113} for column in codes.T)
    left = ((vectors - reconstruct(codes, codebooks)) ** 2).sum()
    monkeypatch.undo()
    whole = residual_kmeans(vectors, (8, 8), 0, 5, balanced=True)
    assert left < 1.02 * ((vectors - reconstruct(*whole)) ** 2).sum()


@pytest.mark.parametrize("collisions", ["keep", "relocate", "extra_token", "extra_token_all"])
def test_collisions_of_a_file_are_resolved_as_those_of_the_array(stored, collisions, monkeypatch):
    vectors, file = stored
    codebooks = residual_kmeans(vectors, (8, 12, 12), 0, 5)[1]
    codes, left = assign(file, codebooks)
    whole_codes, whole = resolve_collisions(codes, collisions, vectors=vectors, codebooks=codebooks)
    ours_codes, ours = resolve_collisions(codes, collisions, vectors=file, codebooks=codebooks, left=left)
    assert ours_codes.tobytes() == whole_codes.tobytes() and ours.distance_paid == whole.distance_paid
    if collisions == "relocate":
        assert whole.moved > 50 and whole.after.unique == 900
        monkeypatch.setattr(resolving, "FEW", 0)  # distances by products
        monkeypatch.setattr(resolving, "ORDERS_BYTES", 200)
        monkeypatch.setattr(resolving, "_BLOCK", 7)
        many, _ = resolve_collisions(codes, collisions, vectors=file, codebooks=codebooks, left=left)
        assert many.tobytes() == whole_codes.tobytes()


def test_sinkhorn_needs_an_array(stored):
    vectors, file = stored
    codes, codebooks = residual_kmeans(vectors, (8, 8), 0, 5)
    with pytest.raises(DataError, match="sinkhorn needs all item vectors in memory"):
        resolve_collisions(codes, "sinkhorn", vectors=file, codebooks=codebooks)


def test_points_of_an_encoder_are_made_when_asked_for(stored):
    vectors, file = stored
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(4, 6)).astype("f4"), rng.normal(size=(3, 4)).astype("f4")
    layers = [(first, np.zeros(4, "f4")), (second, np.ones(3, "f4"))]
    quantiser = Quantiser([rng.normal(size=(5, 3)).astype("f4")], Encoder(vectors.mean(axis=0), 2.0, layers, False))
    points, whole = EncodedVectors(file, quantiser), quantiser.points(vectors)
    assert points.shape == whole.shape and len(points) == 900
    np.testing.assert_allclose(points[np.array([5, 2])], whole[[5, 2]], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(points[7], whole[7], rtol=1e-4, atol=1e-5)
    assert (assign(points, quantiser.codebooks)[0] == quantiser.encode(vectors)).all()


def test_errors_of_a_file_are_of_a_sample_which_is_reported(stored, monkeypatch):
    vectors, file = stored
    codes, codebooks = residual_kmeans(vectors, (8, 8), 0, 5)
    _, resolution = resolve_collisions(codes, "keep")
    whole = sid_report("m", codes, resolution, vectors=vectors, codebooks=codebooks)
    assert "error_rows" not in whole
    all_read = sid_report("m", codes, resolution, vectors=file, codebooks=codebooks)
    assert all_read["levels"] == whole["levels"] and all_read["error_rows"] == 900
    monkeypatch.setattr(report, "ERROR_ROWS", 600)
    found = sid_report("m", codes, resolution, vectors=file, codebooks=codebooks, seed=1)
    assert found["error_rows"] == 600 and "variance left is that of a sample of 600 items" in report.report_lines(found)
    for one, other in zip(found["levels"], whole["levels"], strict=True):
        assert one["use"] == other["use"] and one["error"] != other["error"]
        assert one["error"] == pytest.approx(other["error"], rel=0.1)
    rows = np.arange(0, 900, 3)
    use = level_use(codes, vectors=vectors[rows], codebooks=codebooks, rows=rows)[-1]
    left = ((vectors[rows] - reconstruct(codes[rows], codebooks)) ** 2).sum()
    variance = ((vectors[rows] - vectors[rows].mean(0)) ** 2).sum()
    assert use.error == pytest.approx(left / variance, rel=1e-4)
