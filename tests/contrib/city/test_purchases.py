"""The generated city: exact probabilities that its purchases follow, blocks that stand alone, texts that tell."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minionerec.contrib.city.law import PurchaseContexts, likeliest, probabilities, probability_of
from minionerec.contrib.city.people import interactions_of, likes_of, people_of
from minionerec.contrib.city.purchases import LOYAL, SHARES, free_styles, purchases_of
from minionerec.contrib.city.sizes import DAY, DEPARTMENT, SHELF, seconds_a_choice
from minionerec.contrib.city.text import _departments, items_table
from minionerec.contrib.city.world import BEGAN, RANK_SHARES, World, taken_instead

PEOPLE = people_of(items=1340, users=3000, mean=8, days=400, epoch_days=60, seed=5)  # the last aisle has three shelves
MANY = people_of(items=400, users=20_000, mean=3, days=30, epoch_days=7, seed=9)  # three blocks
# Items that come late and are not taken twice, visits as often as not.
SHOP = people_of(items=200, users=800, mean=9, days=300, epoch_days=20, seed=3, late=0.8, returns=0.5, memory=4)


def all_contexts(people, block=0):
    """Every choice of a block as what it depends on, and what was chosen."""
    (users, rows, times), (counts, _, pauses) = purchases_of(people, block), interactions_of(people, block)
    rows = rows.astype(np.int64)
    numbers = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    back = np.arange(1, max(1, people.memory) + 1)
    recent = np.where(numbers[:, None] >= back, rows[np.arange(len(rows))[:, None] - back], -1)
    held = recent if people.memory else None
    return PurchaseContexts(users, recent[:, 0], times, pauses, held), rows


CONTEXTS, CHOSEN = all_contexts(PEOPLE)


def some(count, seed=0):
    positions = np.random.default_rng(seed).choice(len(CHOSEN), count, replace=False)
    return CONTEXTS.take(positions), CHOSEN[positions]


def test_rows_and_ranks_have_an_inverse():
    world = PEOPLE.world
    positions = np.arange(world.items)
    assert np.array_equal(np.sort(world.rows(positions)), positions)
    assert np.array_equal(world.positions(world.rows(positions)), positions)
    shelves, styles, epochs = np.arange(world.shelves)[:, None], np.arange(SHELF), np.int64(3)
    ranks = world.ranks(shelves, styles, epochs)
    assert np.array_equal(np.sort(ranks, axis=1), np.tile(np.arange(SHELF), (world.shelves, 1)))
    assert np.array_equal(world.styles_of_ranks(shelves, ranks, epochs), np.tile(styles, (world.shelves, 1)))
    assert np.array_equal(world.ranks(shelves, styles, epochs + 1), (ranks + 1) % SHELF)


def test_the_world_fits_into_its_tree_and_drifts():
    world = PEOPLE.world
    shelves = np.arange(world.shelves)
    following, near, far = world.partners.T
    assert np.array_equal(following // 8, shelves // 8) and (following != shelves).all()
    assert np.array_equal(near // DEPARTMENT, shelves // DEPARTMENT)
    assert far.min() >= 0 and far.max() < world.shelves
    appeals = np.stack([world.appeal(epoch) for epoch in range(world.epochs)])
    assert np.allclose(appeals.sum(axis=1), 1) and appeals.min() > 0
    assert np.abs(appeals[0] / appeals[3] - 1).max() > 0.5
    epochs = np.repeat(np.arange(world.epochs), 20_000)
    drawn = world.fashionable(np.random.default_rng(0).random(len(epochs)), epochs).reshape(world.epochs, -1)
    for epoch, appeal in enumerate(appeals):
        expected = 20_000 * appeal
        statistic = ((np.bincount(drawn[epoch], minlength=world.shelves) - expected) ** 2 / expected).sum()
        assert abs(statistic - world.shelves) < 5 * np.sqrt(2 * world.shelves)


def test_people_come_within_the_citys_days_in_sessions():
    counts, times, pauses = interactions_of(PEOPLE, 0)
    assert counts.min() == 2 and counts.max() <= PEOPLE.most
    assert counts.mean() == pytest.approx(PEOPLE.mean, rel=0.03)
    assert times.min() >= BEGAN and times.max() < BEGAN + 400 * DAY
    firsts = np.cumsum(counts) - counts
    assert np.array_equal(np.flatnonzero(pauses < 0), firsts)
    later = pauses[pauses >= 0]
    assert later.min() > 0
    assert not ((later > 1501) & (later < 3599)).any()  # so that half an hour tells what belongs to a session
    assert (later < 1800).mean() == pytest.approx(0.8, abs=0.01)


def test_days_that_just_suffice_hold_everybody():
    crowded = people_of(items=40, users=300, mean=50, days=-(-400 * seconds_a_choice(0.2) // DAY), epoch_days=1, seed=1)
    _, times, pauses = interactions_of(crowded, 0)
    assert times.min() >= BEGAN and times.max() < BEGAN + crowded.world.days * DAY
    assert (pauses[pauses >= 0] >= 0).all()


def test_a_block_stands_alone():
    whole = [purchases_of(MANY, block) for block in range(MANY.blocks)]
    assert [len(np.unique(users)) for users, _, _ in whole] == [8192, 8192, 3616]
    assert whole[2][0].max() == 19_999
    fresh = replace(MANY, world=World(MANY.world.items, MANY.world.days, MANY.world.epoch_days, MANY.world.seed))
    for again, before in zip(purchases_of(fresh, 1), whole[1], strict=True):
        assert np.array_equal(again, before)
    _, larger, _ = purchases_of(replace(MANY, users=50_000), 1)  # who comes later changes nothing
    assert np.array_equal(larger, whole[1][1])
    assert not np.array_equal(whole[0][1][:1000], whole[1][1][:1000])
    _, other, _ = purchases_of(replace(MANY, world=replace(MANY.world, seed=10)), 1)
    assert not np.array_equal(other[:1000], whole[1][1][:1000])


@settings(max_examples=30)
@given(
    st.integers(0, PEOPLE.users - 1),
    st.integers(-1, PEOPLE.world.items - 1),
    st.integers(BEGAN - DAY, BEGAN + 500 * DAY),
    st.integers(0, 10_000),
)
def test_probabilities_are_a_distribution_of_which_lists_are_the_top(user, newest, time, pause):
    contexts = PurchaseContexts(*(np.array([value]) for value in (user, newest, time, pause if newest >= 0 else -1)))
    dense = probabilities(PEOPLE, contexts)[0]
    assert dense.shape == (PEOPLE.world.items,)
    assert dense.min() > 0
    assert dense.sum() == pytest.approx(1)
    items, chances = likeliest(PEOPLE, contexts, 50)
    assert len(set(items[0].tolist())) == 50
    assert np.allclose(dense[items[0]], chances[0])
    assert np.allclose(chances[0], -np.sort(-dense)[:50])
    one = probability_of(PEOPLE, contexts, items[:, 7])
    assert one[0] == pytest.approx(dense[items[0, 7]])


def test_lists_may_be_as_long_as_the_city():
    small = people_of(items=60, users=10, mean=4, days=30, epoch_days=7, seed=3)
    contexts, _ = all_contexts(small)
    items, chances = likeliest(small, contexts, 60)
    assert np.array_equal(np.sort(items, axis=1), np.tile(np.arange(60), (len(items), 1)))
    assert np.allclose(chances.sum(axis=1), 1)


def test_probabilities_by_hand():
    """A choice within a session: what each source adds, for a shelf that no other source but fashion reaches."""
    world, (liked, favourites) = PEOPLE.world, likes_of(PEOPLE, 0)
    shelf = 9
    special = set(range(8, 16)) | set(liked[4].tolist())
    partner = int(world.partners[shelf, 1])
    assert partner not in special | {int(world.partners[shelf, 2])}
    follow, stay, _, fashion = SHARES[0]
    newest = world.rows(np.array([shelf * SHELF + 2]))
    contexts = PurchaseContexts(np.array([4]), newest, np.array([BEGAN + 1]), np.array([60]))
    by_shelf = np.empty(world.items)
    by_shelf[world.positions(np.arange(world.items))] = probabilities(PEOPLE, contexts)[0]
    by_shelf = by_shelf.reshape(world.shelves, SHELF)
    appeal = world.appeal(0)
    assert by_shelf[partner].sum() == pytest.approx(0.3 * follow + fashion * appeal[partner])
    assert shelf not in liked[4] and shelf not in world.partners[shelf]
    assert by_shelf[shelf].sum() == pytest.approx(stay * (0.6 + 0.4 / 8) + fashion * appeal[shelf])
    first, second = favourites[4]
    selling = RANK_SHARES[world.ranks(partner, np.arange(SHELF), np.int64(0))]
    expected = (0.3 * follow * (1 - LOYAL) + fashion * appeal[partner]) * selling
    expected[first] += 0.3 * follow * LOYAL * 0.7
    expected[second] += 0.3 * follow * LOYAL * 0.3
    assert by_shelf[partner] == pytest.approx(expected)
    first_purchase = PurchaseContexts(np.array([4]), np.array([-1]), np.array([BEGAN + 1]), np.array([-1]))
    assert probabilities(PEOPLE, first_purchase)[0].sum() == pytest.approx(1)


def test_purchases_follow_the_probabilities():
    """Within sessions, at their beginnings and at first purchases: hits, and the information of what was chosen."""
    contexts, chosen = some(6000)
    for kind in (contexts.pauses < 0, contexts.pauses > 1800, (contexts.pauses >= 0) & (contexts.pauses <= 1800)):
        part, targets = contexts.take(np.flatnonzero(kind)), chosen[kind]
        assert len(targets) > 500
        dense = probabilities(PEOPLE, part)
        own = dense[np.arange(len(targets)), targets]
        ranks = (dense > own[:, None]).sum(axis=1)
        top = -np.sort(-dense, axis=1).cumsum(axis=1)
        for k in (1, 5, 20, 100):
            expected = top[:, k - 1]
            sigma = np.sqrt((expected * (1 - expected)).sum()) / len(targets)
            assert abs((ranks < k).mean() - expected.mean()) < 4 * sigma, k
        nats = -(dense * np.log(dense)).sum(axis=1)
        spread = (dense * np.log(dense) ** 2).sum(axis=1) - nats**2
        assert abs(-np.log(own).mean() - nats.mean()) < 4 * np.sqrt(spread.sum()) / len(targets)


def test_a_shop_follows_its_probabilities():
    """Items that are not there yet and the last four are never taken, and all others as often as foretold."""
    contexts, chosen = all_contexts(SHOP)
    world, foretold, taken = SHOP.world, np.zeros(SHOP.world.items), np.zeros(SHOP.world.items)
    begins = world.begins.reshape(-1)[world.positions(np.arange(world.items))]
    assert 0.3 < (begins > 0).mean() < 0.8 and begins.max() < world.epochs
    assert (begins[chosen] <= world.epoch_of(contexts.times)).all()
    assert not (contexts.recent == chosen[:, None]).any()
    new = np.zeros(2)
    for begin in range(0, len(chosen), 2000):
        some = np.arange(begin, min(begin + 2000, len(chosen)))
        part, targets = contexts.take(some), chosen[some]
        dense = probabilities(SHOP, part)
        assert np.allclose(dense.sum(axis=1), 1)
        foretold += dense.sum(axis=0)
        taken += np.bincount(targets, minlength=world.items)
        fresh = begins == world.epoch_of(part.times)[:, None]
        new += dense[fresh].sum(), fresh[np.arange(len(some)), targets].sum()
        lists, chances = likeliest(SHOP, part, 20)
        assert np.allclose(np.take_along_axis(dense, lists, 1), chances)
        assert np.allclose(chances, -np.sort(-dense, axis=1)[:, :20])
        assert np.allclose(probability_of(SHOP, part, targets), dense[np.arange(len(some)), targets])
    assert abs(((taken - foretold) ** 2 / foretold).sum() - world.items) < 5 * np.sqrt(2 * world.items)
    assert abs(new[0] - new[1]) < 4 * np.sqrt(new[0])
    with pytest.raises(ValueError, match="last 4 items"):
        probabilities(SHOP, replace(contexts, recent=None).take(np.arange(3)))


def test_where_all_was_taken_lately_it_is_taken_again():
    there, shelves = np.zeros((2, SHELF), dtype=bool), np.array([1, 1])
    there[:, [2, 5]] = True
    free = free_styles(there, shelves, np.array([[SHELF + 2, 2 * SHELF + 5], [SHELF + 2, SHELF + 5]]))
    assert np.flatnonzero(free[0]).tolist() == [5] and np.flatnonzero(free[1]).tolist() == [2, 5]
    assert taken_instead(free)[1, [0, 2, 3, 5, 6, 19]].tolist() == [2, 2, 5, 5, 2, 2]


def test_sessions_begin_as_often_as_asked():
    _, _, pauses = interactions_of(SHOP, 0)
    assert (pauses[pauses >= 0] > 1800).mean() == pytest.approx(0.5, abs=0.02)


def test_titles_are_distinct_and_tell_shelf_and_style():
    from sklearn.feature_extraction.text import TfidfVectorizer

    world = PEOPLE.world
    table = items_table(world, 0, world.items).to_pylist()
    assert items_table(world, 700, 703).to_pylist() == table[700:703]
    assert len({row["title"] for row in table}) == len(table) == len({row["description"] for row in table})
    assert [row["item_id"] for row in table[:2]] == ["p0", "p1"]
    vectors = TfidfVectorizer().fit_transform([f"{row['title']} {row['description']}" for row in table])
    likeness = (vectors @ vectors.T).toarray()
    np.fill_diagonal(likeness, -1)
    positions = world.positions(np.arange(world.items))
    nearest = positions[likeness.argmax(axis=1)]
    alike = (nearest // SHELF == positions // SHELF) | (nearest % SHELF == positions % SHELF)
    assert alike.mean() > 0.95


@pytest.mark.parametrize("count", [3, 1000, 1024, 1025, 40_000])
def test_departments_have_names_of_their_own(count):
    names = _departments(np.arange(count), count - 1).to_pylist()
    assert len(set(names)) == count
    words = [name.split() for name in names[:100]]
    assert all(len(one) == len(words[0]) for one in words)
    assert not any(set(one[:2]) & set(other[:2]) for one, other in itertools.pairwise(words))
