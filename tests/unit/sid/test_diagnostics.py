import numpy as np
import pytest
from scipy.sparse import csr_array

from minionerec.core.errors import DataError
from minionerec.sid.report import (
    FOLDS,
    HITS,
    STRENGTH,
    diagnose,
    gather_evidence,
    next_item_bits,
    prefix_numbers,
    purity,
)


@pytest.fixture(scope="module")
def shop():
    """Forty items in eight families; users walk within a family, and titles name it."""
    rng = np.random.default_rng(0)
    family = np.repeat(np.arange(8), 5)
    vectors = (4 * np.eye(8)[family] + rng.normal(size=(40, 8))).astype(np.float32)
    titles = [f"family{f} thing{position}" for position, f in enumerate(family)]
    users, histories, targets = [], [], []
    for user in range(120):
        item = int(rng.integers(40))
        history = []
        for _ in range(4):
            history.append(item)
            item = int(rng.choice(np.flatnonzero(family == family[item]))) if rng.random() < 0.8 else rng.integers(40)
            users.append(f"u{user}")
            histories.append(np.array(history))
            targets.append(int(item))
    histories[7] = np.array([], dtype=int)
    codes = np.stack([family, np.tile(np.arange(5), 8)], axis=1)
    return codes, gather_evidence(vectors, titles, users, histories, np.array(targets)), (users, histories, targets)


def test_evidence(shop):
    _, evidence, (users, histories, targets) = shop
    assert len(evidence.target) == len(users) - 1  # the empty history is left out
    kept = [row for row, history in enumerate(histories) if len(history)]
    assert evidence.last.tolist() == [histories[row][-1] for row in kept]
    folds = {}
    for row, fold in zip(kept, evidence.fold, strict=True):
        assert folds.setdefault(users[row], fold) == fold
    assert set(folds.values()) == set(range(FOLDS))
    rows = zip(users, histories, targets, strict=True)
    buyers = {(item, user) for user, history, target in rows for item in [*history.tolist(), target]}
    assert evidence.buyers.nnz == len(buyers)
    np.testing.assert_allclose(np.sqrt(evidence.buyers.power(2).sum(axis=1)), 1, rtol=1e-5)


def test_purity_against_all_pairs():
    rng = np.random.default_rng(1)
    features = (rng.random((30, 6)) < 0.4).astype(float)
    features[3] = 0
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    features = np.divide(features, lengths, out=np.zeros_like(features), where=lengths > 0)
    groups = rng.integers(0, 8, 30)
    means = []
    for item in range(30):
        others = [j for j in range(30) if j != item and groups[j] == groups[item] and features[j].any()]
        if features[item].any() and others:
            means.append(np.mean([features[item] @ features[j] for j in others]))
    assert purity(groups, csr_array(features)) == pytest.approx(np.mean(means))
    assert purity(np.arange(30), csr_array(features)) is None


def test_bits_against_a_plain_loop(shop):
    codes, evidence, _ = shop
    rng = np.random.default_rng(2)
    codes = np.stack([codes[:, 0] // 2, rng.integers(0, 3, 40), np.where(rng.random(40) < 0.5, 1, -1)], axis=1)
    sids = [tuple(row) for row in codes.tolist()]
    for use_history in (True, False):
        total, rows = 0.0, list(zip(evidence.last, evidence.target, evidence.fold, strict=True))
        for last, target, fold in rows:
            others = [(sids[i], sids[j]) for i, j, f in rows if f != fold]
            total += np.log2(sids.count(sids[target]))
            for level in range(3):
                reported, code = sids[target][:level], sids[target][: level + 1]
                chance = 1 / len({sid[: level + 1] for sid in sids if sid[:level] == reported})
                for known in range(4 if use_history else 1):
                    alike = [after for before, after in others if before[:known] == sids[last][:known]]
                    alike = [after for after in alike if after[:level] == reported]
                    matching = sum(after[: level + 1] == code for after in alike)
                    chance = (matching + STRENGTH * chance) / (len(alike) + STRENGTH)
                total -= np.log2(chance)
        assert next_item_bits(codes, evidence, use_history) == pytest.approx(total / len(evidence.target))


def test_hits_against_a_dense_table(shop):
    codes, evidence, _ = shop
    found = diagnose(codes, evidence).prefixes
    for numbers, measures in zip(prefix_numbers(codes), found, strict=True):
        size = numbers.max() + 1
        popular = following = 0
        for last, target, fold in zip(numbers[evidence.last], numbers[evidence.target], evidence.fold, strict=True):
            other = evidence.fold != fold
            frequency = np.bincount(numbers[evidence.target[other]], minlength=size)
            pairs = numbers[evidence.target[other]][numbers[evidence.last[other]] == last]
            score = np.bincount(pairs, minlength=size) + STRENGTH * frequency / frequency.sum()
            popular += target in np.argsort(-frequency, kind="stable")[:HITS]
            following += target in np.argsort(-score, kind="stable")[:HITS]
        assert measures.popular_hits == pytest.approx(popular / len(evidence.target))
        assert measures.next_hits == pytest.approx(following / len(evidence.target))


def test_a_table_that_follows_taste_is_reported_from_a_shuffled_one(shop):
    codes, evidence, _ = shop
    good = diagnose(codes, evidence)
    bad = diagnose(codes[np.random.default_rng(3).permutation(40)], evidence)
    assert [measures.prefixes for measures in good.prefixes] == [8, 40]
    assert good.collisions.identified_items == 40 and good.levels[0].perplexity == 8
    first, shuffled = good.prefixes[0], bad.prefixes[0]
    assert first.word_purity > 3 * shuffled.word_purity and first.word_purity > 3 * good.word_chance
    assert first.buyer_purity > 2 * shuffled.buyer_purity and shuffled.buyer_purity < 1.5 * good.buyer_chance
    assert first.variance_left < 0.6 < shuffled.variance_left
    assert good.bits_per_item < bad.bits_per_item - 0.1 and good.bits_per_item < good.popular_bits
    last = good.prefixes[1]
    assert (last.word_purity, last.buyer_purity, last.grouped_items) == (None, None, 0)
    assert last.variance_left == pytest.approx(0, abs=1e-9)


def test_bad_input():
    rows = (["u"], [np.array([0])], np.array([1]))
    with pytest.raises(DataError, match="none of the 2 titles holds a word"):
        gather_evidence(np.zeros((2, 1), np.float32), ["", "..."], *rows)
    with pytest.raises(DataError, match="none of the 1 training examples has a history"):
        gather_evidence(np.zeros((2, 1), np.float32), ["a b", "c"], ["u"], [np.array([], int)], np.array([1]))
