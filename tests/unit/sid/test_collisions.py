import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minionerec.core.errors import ConfigError, DataError
from minionerec.sid import collisions
from minionerec.sid.collisions import count_collisions, resolve_collisions
from minionerec.sid.kmeans import reconstruct, residual_kmeans

INDUSTRIAL = Path(os.environ.get("MINIONEREC_DATA") or "data") / "Amazon"


def test_counts_in_both_readings():
    counts = count_collisions(np.array([[0, 1], [0, 1], [0, 2], [3, 1], [3, 1], [3, 1]]))
    assert (counts.items, counts.unique, counts.groups, counts.sharing_items) == (6, 3, 2, 5)
    assert counts.identified_items == 1
    assert (counts.sharing_rate, counts.surplus_rate) == (5 / 6, 3 / 6)
    assert (counts.largest_bucket, counts.used_codes) == (3, (2, 2))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_counts_against_counting_by_hand(sids):
    counts = count_collisions(np.array(sids))
    buckets = Counter(sids)
    assert counts.unique == len(buckets)
    assert counts.sharing_items == sum(buckets[sid] > 1 for sid in sids)
    assert counts.surplus_rate == pytest.approx(1 - len(set(sids)) / len(sids))
    assert counts.largest_bucket == max(buckets.values())


def test_keep_changes_nothing():
    codes = np.array([[0, 1], [0, 1]])
    kept_codes, kept = resolve_collisions(codes, "keep")
    assert kept_codes.tolist() == codes.tolist() and kept.before == kept.after
    assert (kept.moved, kept.distance_paid) == (0, None)


def test_extra_token_numbers_the_members_of_each_group():
    codes = np.array([[0, 1], [2, 2], [0, 1], [3, 3], [2, 2], [0, 1]])
    added_codes, added = resolve_collisions(codes, "extra_token")
    assert added_codes.tolist() == [[0, 1, 0], [2, 2, 0], [0, 1, 1], [3, 3, -1], [2, 2, 1], [0, 1, 2]]
    assert (added.moved, added.after.unique, added.before.unique) == (5, 6, 3)
    assert added.after.used_codes == (3, 3, 3)


def test_extra_token_without_collision_adds_no_level():
    assert resolve_collisions(np.array([[0, 1], [1, 0]]), "extra_token")[0].shape == (2, 2)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_extra_token_all_numbers_every_item_in_its_group(pairs):
    added_codes, added = resolve_collisions(np.array(pairs), "extra_token_all")
    before: Counter[tuple[int, int]] = Counter()
    for pair, sid in zip(pairs, added_codes.tolist(), strict=True):
        assert sid == [*pair, before[pair]]
        before[pair] += 1
    assert added.after.unique == added.moved == len(pairs)


def test_extra_token_all_resumes_after_the_numbers_that_are_taken():
    taken = np.array([[0, 1, 0], [0, 1, 1], [2, 2, 0]])
    added, _ = resolve_collisions(np.array([[0, 1], [2, 2], [3, 3]]), "extra_token_all", taken=taken)
    assert added.tolist() == [[0, 1, 2], [2, 2, 1], [3, 3, 0]]


LINE = [np.array([[0.0], [100.0]], np.float32), np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)]


def test_relocate_keeps_the_nearest_and_moves_the_rest_to_the_nearest_free_code():
    vectors = np.array([[1.3], [0.9], [1.4], [2.0]], np.float32)
    codes = np.array([[0, 1], [0, 1], [0, 1], [0, 2]])
    moved_codes, moved = resolve_collisions(codes, "relocate", vectors=vectors, codebooks=LINE)
    # 0.9 stays at 1; 1.3 is next in line: 2 is taken, 0 lies at 1.3 and 3 at 1.7, so it takes 0; 1.4 takes 3
    assert moved_codes.tolist() == [[0, 0], [0, 1], [0, 3], [0, 2]]
    assert moved.moved == 2
    assert moved.distance_paid == pytest.approx(1.3**2 + 1.6**2 - 0.3**2 - 0.4**2, rel=1e-5)


def test_relocation_shows_its_progress_by_the_items_that_move(monkeypatch):
    shown = []
    monkeypatch.setattr(collisions, "progress", lambda items, text, total, unit: shown.append((total, unit)) or items)
    _, moved = resolve_collisions(np.tile([0, 1], (4, 1)), "relocate", vectors=np.zeros((4, 1)), codebooks=LINE)
    assert shown == [(moved.moved, "items")] == [(3, "items")]


def test_relocate_breaks_ties_by_item_order():
    vectors = np.array([[1.5], [1.5]], np.float32)
    moved, _ = resolve_collisions(np.array([[0, 1], [0, 1]]), "relocate", vectors=vectors, codebooks=LINE)
    assert moved.tolist() == [[0, 1], [0, 2]]


def test_relocate_goes_higher_only_where_a_prefix_is_full():
    vectors = np.array([[0.0], [1.0], [2.0], [3.0], [2.9], [100.0]], np.float32)
    codes = np.array([[0, 0], [0, 1], [0, 2], [0, 3], [0, 3], [1, 0]])
    moved, _ = resolve_collisions(codes, "relocate", vectors=vectors, codebooks=LINE)
    assert moved.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 1], [1, 0]]


def test_taken_sids_stay_taken():
    vectors = np.array([[1.1], [1.4]], np.float32)
    codes, taken = np.array([[0, 1], [0, 1]]), np.array([[0, 1, -1], [0, 2, 0], [0, 2, 1]])
    moved_codes, moved = resolve_collisions(codes, "relocate", vectors=vectors, codebooks=LINE, taken=taken)
    assert moved_codes.tolist() == [[0, 0], [0, 3]]
    assert (moved.before.items, moved.before.unique, moved.after.unique) == (5, 3, 5)
    added, _ = resolve_collisions(np.array([[0, 1], [0, 2], [0, 2], [1, 1]]), "extra_token", taken=taken)
    assert added.tolist() == [[0, 1, 0], [0, 2, 2], [0, 2, 3], [1, 1, -1]]
    with pytest.raises(DataError, match="have no 2 distinct SIDs in codebooks of 2/4 codes besides the 7 taken"):
        full = [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2]]
        resolve_collisions(codes, "relocate", vectors=vectors, codebooks=LINE, taken=np.array(full))


def test_relocate_without_room():
    message = r"9 items have no 9 distinct SIDs in codebooks of 2/4 codes\. Raise codebook_sizes"
    with pytest.raises(DataError, match=message):
        resolve_collisions(np.zeros((9, 2), int), "relocate", vectors=np.zeros((9, 1), np.float32), codebooks=LINE)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.floats(0, 1))
def test_relocate_beside_taken_sids_respects_them(seed, sizes, filled):
    rng = np.random.default_rng(seed)
    codebooks = [rng.normal(size=(size, 2)).astype(np.float32) for size in sizes]
    taken = np.stack([rng.integers(0, size, 4) for size in sizes], axis=1)
    room = int(np.prod(sizes)) - len(set(map(tuple, taken.tolist())))
    n = int(room * filled)
    vectors = rng.normal(size=(n, 2)).astype(np.float32)
    codes = np.stack([rng.integers(0, max(1, size // 2), n) for size in sizes], axis=1)
    resolved, _ = resolve_collisions(codes, "relocate", vectors=vectors, codebooks=codebooks, taken=taken)
    before, all_sids = (Counter(map(tuple, rows)) for rows in (taken.tolist(), taken.tolist() + resolved.tolist()))
    assert all(count <= max(1, before[sid]) for sid, count in all_sids.items())


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.floats(0.1, 1))
def test_relocate_leaves_no_collision_and_spares_the_best_of_each_group(seed, sizes, filled):
    rng = np.random.default_rng(seed)
    codebooks = [rng.normal(size=(size, 3)).astype(np.float32) for size in sizes]
    n = max(1, int(np.prod(sizes) * filled))
    vectors = rng.normal(size=(n, 3)).astype(np.float32)
    codes = np.stack([rng.integers(0, max(1, size // 2), n) for size in sizes], axis=1)
    resolved_codes, resolved = resolve_collisions(codes, "relocate", vectors=vectors, codebooks=codebooks)
    assert resolved.after.unique == n and resolved.after.sharing_items == 0
    again, _ = resolve_collisions(codes, "relocate", vectors=vectors, codebooks=codebooks)
    assert resolved_codes.tobytes() == again.tobytes()
    distances = ((vectors - reconstruct(codes, codebooks)) ** 2).sum(axis=1)
    for sid in {tuple(row) for row in codes.tolist()}:
        group = np.flatnonzero((codes == sid).all(axis=1))
        stays = group[np.argmin(distances[group])]
        assert tuple(resolved_codes[stays]) == sid
    assert resolved.moved == n - resolved.before.unique


@pytest.mark.parametrize(
    ("codes", "method", "codebooks", "error", "message"),
    [
        ([[0, 0]], "shuffle", LINE, ConfigError, "unknown way to resolve collisions 'shuffle'; known: keep, relocate"),
        ([[0, 0]], "relocate", None, DataError, "relocate needs the item vectors and the codebooks"),
        ([[0, 0]], "sinkhorn", None, DataError, "sinkhorn needs the item vectors and the codebooks"),
        ([[0, 4]], "relocate", LINE, DataError, "within codebook sizes 2 4"),
        ([[0, -1]], "relocate", LINE, DataError, "needs codes of 2 full levels"),
        ([[0, -1], [0, -1]], "extra_token", None, DataError, "needs SIDs of one length"),
    ],
)
def test_bad_input(codes, method, codebooks, error, message):
    vectors = np.zeros((len(codes), 1), np.float32)
    with pytest.raises(error, match=message):
        resolve_collisions(np.array(codes), method, vectors=vectors, codebooks=codebooks)


def test_relocate_on_industrial_tfidf_vectors():
    if not (INDUSTRIAL / "index").is_dir():
        pytest.skip(f"needs the published files under {INDUSTRIAL} (set MINIONEREC_DATA)")
    from minionerec.core.artefacts import read_json
    from minionerec.sid.embed.texts import tfidf_svd

    items = read_json(INDUSTRIAL / "index" / "Industrial_and_Scientific.item.json")
    vectors = tfidf_svd([f"{item['title']} {item['description']}" for item in items.values()], 32, 42)
    codes, codebooks = residual_kmeans(vectors, (256, 256, 256), 42, 4)
    resolved_codes, resolved = resolve_collisions(codes, "relocate", vectors=vectors, codebooks=codebooks)
    assert resolved.before.unique < 3500  # there is something to resolve
    assert (resolved.after.items, resolved.after.unique, resolved.after.largest_bucket) == (3686, 3686, 1)
    same_prefix = (codes[:, :2] == resolved_codes[:, :2]).all(axis=1)
    assert same_prefix.mean() > 0.99
