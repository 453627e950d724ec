"""The demo shop: made again byte for byte, its probabilities true, its ceiling right and its text telling."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT

from minionerec.data.build import build_corpus
from minionerec.data.demo.catalogue import N_ITEMS, N_LINES, item_number, shop_items
from minionerec.data.demo.files import FILES, write_shop
from minionerec.data.demo.process import demo_probabilities, generate_shop
from minionerec.data.sources.tables import read_tables

DEMO = ROOT / "data" / "demo"


@pytest.fixture(scope="module")
def corpus():
    return build_corpus(read_tables(DEMO / "interactions.csv", DEMO / "items.csv")).corpus()


@pytest.fixture(scope="module")
def ceiling():
    return json.loads((DEMO / "ceiling.json").read_text())


def ranks_of(scores, targets):
    """Rank of each target from 1; ties go to the lower item, by counting who stands before it."""
    own = scores[np.arange(len(targets)), targets][:, None]
    earlier = np.arange(scores.shape[1])[None, :] < targets[:, None]
    return 1 + ((scores > own) | ((scores == own) & earlier)).sum(axis=1)


def hr_and_ndcg(ranks, k):
    return np.mean(ranks <= k), np.mean([1 / np.log2(rank + 1) if rank <= k else 0.0 for rank in ranks])


def test_made_again_byte_for_byte(tmp_path):
    write_shop(tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (DEMO / name).read_bytes(), name


def test_another_seed_gives_another_shop():
    assert generate_shop(1, n_users=5) == generate_shop(1, n_users=5) != generate_shop(2, n_users=5)


@given(st.lists(st.integers(0, N_ITEMS - 1), max_size=14))
def test_probabilities_are_a_distribution_of_the_last_ten(history):
    chances = demo_probabilities(history)
    assert chances.shape == (N_ITEMS,)
    assert chances.dtype == np.float64
    assert chances.min() > 0
    assert chances.sum() == pytest.approx(1)
    assert np.array_equal(chances, demo_probabilities(history[-10:]))


def test_probabilities_by_hand():
    """After one item: half follows it, 0.35 stays in its department, 0.15 goes by appeal in the whole shop."""
    item = item_number(3, 4, 2)
    fashion, chances = demo_probabilities([]), demo_probabilities([item])
    rest = chances - 0.15 * fashion
    department = np.arange(N_ITEMS) // 25
    following = item_number(4, 0, 2)
    assert rest[following] == pytest.approx(0.5 * 0.62)
    assert rest[department == 3].sum() == pytest.approx(0.35 + 0.5 * (0.26 + 0.12))
    assert rest[(department != 3) & (np.arange(N_ITEMS) != following)].sum() == pytest.approx(0)
    same, other = item_number(3, 2, 2), item_number(3, 2, 0)
    assert rest[same] / rest[other] == pytest.approx(3 * fashion[same] / fashion[other])


def test_purchases_follow_the_probabilities():
    """Chi-squared of how often each item was bought against what the histories foretold."""
    histories = {}
    bought, foretold = np.zeros(N_ITEMS), np.zeros(N_ITEMS)
    for user, item, _ in generate_shop(99, n_users=800):
        history = histories.setdefault(user, [])
        foretold += demo_probabilities(history)
        bought[item] += 1
        history.append(item)
    assert foretold.min() > 3
    statistic = ((bought - foretold) ** 2 / foretold).sum()
    assert abs(statistic - N_ITEMS) < 4 * np.sqrt(2 * N_ITEMS)


def test_numbers_of_purchases_and_order():
    purchases = generate_shop(3, n_users=300)
    counts = Counter(user for user, _, _ in purchases)
    assert set(counts.values()) == set(range(3, 15))
    assert [time for _, _, time in purchases] == sorted(time for _, _, time in purchases)


def test_the_ceiling_is_the_expected_value(corpus, ceiling):
    """Summing over all 300 possible targets of each row, instead of sorted prefixes."""
    for k in (1, 10, 50):
        hr = ndcg = 0.0
        histories = corpus.test.histories.tolist()
        for history in histories:
            chances = demo_probabilities(history)
            ranks = np.empty(N_ITEMS, dtype=int)
            ranks[np.argsort(-chances, kind="stable")] = np.arange(1, N_ITEMS + 1)
            hr += chances[ranks <= k].sum()
            ndcg += (chances / np.log2(ranks + 1))[ranks <= k].sum()
        assert ceiling["ceiling"][f"hr@{k}"] == pytest.approx(hr / len(histories), abs=1e-6)
        assert ceiling["ceiling"][f"ndcg@{k}"] == pytest.approx(ndcg / len(histories), abs=1e-6)


def test_the_true_ranking_scores_the_ceiling_and_popularity_far_below(corpus, ceiling):
    targets = corpus.test.targets
    true = ranks_of(np.stack([demo_probabilities(history) for history in corpus.test.histories]), targets)
    popular = ranks_of(np.tile(corpus.popularity(), (len(targets), 1)), targets)
    for k in (1, 3, 5, 10, 20, 50):
        for name, drawn, floor in zip(("hr", "ndcg"), hr_and_ndcg(true, k), hr_and_ndcg(popular, k), strict=True):
            key = f"{name}@{k}"
            assert abs(drawn - ceiling["ceiling"][key]) < 3 * ceiling["sigma"][key]
            assert ceiling["drawn"][key] == pytest.approx(drawn, abs=1e-6)
            assert ceiling["popularity"][key] == pytest.approx(floor, abs=1e-6)
            half_way = (ceiling["popularity"][key] + ceiling["ceiling"][key]) / 2
            assert ceiling["must_reach"][key] == pytest.approx(half_way, abs=2e-6)
    assert 0.5 < ceiling["ceiling"]["hr@10"] < 0.7
    assert ceiling["popularity"]["hr@10"] < 0.1


def test_sigma_is_the_spread_over_redrawn_targets(corpus, ceiling):
    rng = np.random.default_rng(0)
    ranked = -np.sort(-np.stack([demo_probabilities(history) for history in corpus.test.histories]), axis=1)
    sums = ranked.cumsum(axis=1)
    draws = [hr_and_ndcg(1 + (sums < rng.random((len(sums), 1))).sum(axis=1), 10) for _ in range(150)]
    hr, ndcg = np.std(draws, axis=0)
    assert hr == pytest.approx(ceiling["sigma"]["hr@10"], rel=0.25)
    assert ndcg == pytest.approx(ceiling["sigma"]["ndcg@10"], rel=0.25)


def test_counting_what_follows_what_reaches_the_margin_and_not_the_ceiling(corpus, ceiling):
    """So the margin is within reach of whoever uses the order of a history."""
    follows = np.zeros((N_ITEMS, N_ITEMS))
    for history, target in zip(corpus.train.histories, corpus.train.targets, strict=True):
        follows[history[-1], target] += 1
    scores = np.stack([follows[history[-1]] for history in corpus.test.histories]) + 1e-4 * corpus.popularity()
    hr, ndcg = hr_and_ndcg(ranks_of(scores, corpus.test.targets), 10)
    assert (round(hr, 3), round(ndcg, 3)) == (0.594, 0.454)  # as data/demo/README.md says
    assert ceiling["must_reach"]["ndcg@10"] < ndcg < ceiling["ceiling"]["ndcg@10"]


def test_texts_tell_department_and_line():
    """The nearest other text by TF-IDF is of the same department, and mostly of the same line or brand."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    items = shop_items()
    assert len({item["title"] for item in items}) == len({item["item_id"] for item in items}) == N_ITEMS
    vectors = TfidfVectorizer().fit_transform([f"{item['title']} {item['description']}" for item in items])
    likeness = (vectors @ vectors.T).toarray()
    np.fill_diagonal(likeness, -1)
    nearest = likeness.argmax(axis=1)
    departments = np.array([item["department"] for item in items])
    assert (departments[nearest] == departments).mean() > 0.99
    lines, brands = np.arange(N_ITEMS) // N_LINES, np.arange(N_ITEMS) % N_LINES
    assert ((lines[nearest] == lines) | (brands[nearest] == brands)).mean() > 0.95


def test_the_demo_is_small():
    assert sum(path.stat().st_size for path in DEMO.iterdir()) < 1_500_000
