"""A city with columns: exact probabilities of views and purchases, and of each next item by Bayes' rule."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from minionerec.contrib.city.ceiling import run_city_ceiling
from minionerec.contrib.city.columns import (
    CARTS,
    LACKING,
    SEEN,
    VIEWS,
    Histories,
    Predictor,
    chances_of,
    distribution,
    histories_of,
)
from minionerec.contrib.city.config import CeilingConfig, MakeCityConfig
from minionerec.contrib.city.law import PurchaseContexts
from minionerec.contrib.city.make import city_people, run_make_city
from minionerec.contrib.city.people import (
    BRAND_SETS,
    TASTE_CHANCES,
    TASTES,
    Columns,
    likes_of,
    people_of,
    tastes_of,
)
from minionerec.contrib.city.purchases import (
    LOYAL,
    PARTNER_SHARES,
    SAME_SHELF,
    SHARES,
    STYLE_SHARES,
    TASTE_SHARES,
    purchases_of,
)
from minionerec.contrib.city.sizes import BRANDS, DAY, SHELF
from minionerec.contrib.city.text import items_table
from minionerec.contrib.city.world import BEGAN, RANK_SHARES, is_weekend
from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.pipeline.cli.init import run_init
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare

COLUMNS = Columns(price_factor=3.0, brand_factor=5.0, weekend_factor=4.0)
MANY = people_of(items=340, users=1500, mean=10, days=300, epoch_days=60, seed=5, columns=COLUMNS)
SHOP = people_of(items=200, users=1200, mean=9, days=300, epoch_days=20, seed=3, late=0.8, returns=0.5, columns=COLUMNS)
TINY = people_of(items=180, users=40, mean=4, days=60, epoch_days=30, seed=7, columns=COLUMNS)  # nine shelves
TINY_SHOP = replace(TINY, world=replace(TINY.world, late=0.7))


def law(people, contexts, row, weekend):
    """The probability of each item for each taste, from the sources one by one: float64 (H, N), for one context."""
    world, columns = people.world, people.columns
    fields = (contexts.users, contexts.newest, contexts.times, contexts.pauses)
    user, newest, time, pause = (int(values[row]) for values in fields)
    epoch = int(world.epoch_of(np.array([time]))[0])
    liked, (first, second) = (values[user] for values in likes_of(people, 0))
    shares = SHARES[2 if newest < 0 else 0 if pause <= 1800 else 1]
    by_shelf = np.zeros((2, world.shelves))  # chosen, and by fashion
    if newest >= 0:
        shelf = int(world.positions(np.array([newest]))[0]) // SHELF
        for partner, share in zip(world.partners[shelf], PARTNER_SHARES, strict=True):
            by_shelf[0, partner] += shares[0] * share
        aisle = [other for other in range(world.shelves) if other // 8 == shelf // 8]
        by_shelf[0, shelf] += shares[1] * SAME_SHELF
        for other in aisle:
            by_shelf[0, other] += shares[1] * (1 - SAME_SHELF) / len(aisle)
    for favourite, share in zip(liked, TASTE_SHARES, strict=True):
        by_shelf[0, favourite] += shares[2] * share
    by_shelf[1] = shares[3] * world.appeal(epoch)
    if weekend:
        by_shelf *= [columns.weekend_factor if shelf // 8 in (1, 3, 7) else 1 for shelf in range(world.shelves)]
        by_shelf /= by_shelf.sum()
    chances = np.zeros((TASTES, world.items))
    for shelf in range(world.shelves):
        numbers = world.rows(shelf * SHELF + np.arange(SHELF)).tolist()
        selling = RANK_SHARES[world.ranks(np.array([shelf]), np.arange(SHELF), epoch)].reshape(-1)
        loyal = (1 - LOYAL) * selling
        loyal[first] += LOYAL * STYLE_SHARES[0]
        loyal[second] += LOYAL * STYLE_SHARES[1]
        factors = np.array([factors_of(columns, int(item_class)) for item_class in world.classes[shelf]]).T  # (H, 20)
        sold = [world.begins[shelf, style] <= epoch for style in range(SHELF)]
        for share, weights in zip(by_shelf[:, shelf], (loyal, selling), strict=True):
            drawn = weights * factors / (weights * factors).sum(axis=1, keepdims=True)
            for style in range(SHELF):
                taken = next(other % SHELF for other in range(style, style + SHELF) if sold[other % SHELF])
                chances[:, numbers[taken]] += share * drawn[:, style]
    return chances


def factors_of(columns, item_class):
    """The factor of an item of a class for each taste."""
    bands = [number for number in range(3) for _ in BRAND_SETS]
    return [
        (columns.price_factor if item_class // BRANDS == band else 1)
        * (columns.brand_factor if item_class % BRANDS in brands else 1)
        for band, brands in zip(bands, BRAND_SETS * 3, strict=True)
    ]


class Oracle:
    """The probability of each next item, added up over tastes, calendars and the ways in which a purchase happens."""

    def __init__(self, people, histories):
        self.people, self.histories, self.tables = people, histories, {}
        self.shelf_of = people.world.positions(np.arange(people.world.items)) // SHELF

    def table(self, row, shift):
        key = row, bool(is_weekend(self.histories.contexts.times[row], shift))
        if key not in self.tables:
            self.tables[key] = law(self.people, self.histories.contexts, *key)
        return self.tables[key]

    def views(self, row):
        return range(row - int(self.histories.views[row]), row)

    def bought(self, row, item, shift):
        """Probability, for each taste, of the views of a purchase and of the item bought."""
        table, views, chance = self.table(row, shift), self.views(row), 0.0
        for cause in (None, *views):  # none, or the view that is of the item bought
            share = 1.0 if not views else 1 - SEEN if cause is None else SEEN / len(views)
            way = share * table[:, item]
            for view in views:
                other = self.histories.items[view]
                way = way * (table[:, other] if view != cause else float(other == item))
            chance = chance + way
        return chance

    def past(self, position, shift, without):
        """Probability, for each taste, of what is known of the time before the views of a purchase."""
        histories, likelihood = self.histories, np.ones(TASTES)
        rows = [row for row in range(self.views(position).start)
                if histories.contexts.users[row] == histories.contexts.users[position]]  # fmt: skip
        before = {view for row in rows if histories.bought[row] for view in self.views(row)}
        for row in rows:
            item, table = histories.items[row], self.table(row, shift)
            if without in ("price_and_brand", "columns"):  # of which the shelf is known
                if histories.bought[row]:
                    likelihood = likelihood * table[:, self.shelf_of == self.shelf_of[item]].sum(axis=1)
            elif without == "events":
                if histories.bought[row]:
                    likelihood = likelihood * table[:, item]
            elif histories.bought[row]:
                likelihood = likelihood * self.bought(row, item, shift)
            elif row not in before:
                likelihood = likelihood * table[:, item]
        return likelihood

    def prediction(self, position, without):
        histories, total = self.histories, np.zeros(self.people.world.items)
        for shift in range(7) if without in ("weekday", "columns") else [0]:
            likelihood = TASTE_CHANCES * self.past(position, shift, without)
            for item in range(len(total)):
                if without in ("events", "columns"):
                    total[item] += (likelihood * self.table(position, shift)[:, item]).sum()
                    continue
                chance = (likelihood * self.bought(position, item, shift)).sum()
                for view in self.views(position):
                    cart = CARTS[int(histories.items[view] == item)]
                    chance *= cart if histories.carts[view] else 1 - cart
                total[item] += chance
        return total / total.sum()


def every(people):
    """The histories of the first block, and the positions of its purchases."""
    histories = histories_of(people, 0)
    return histories, np.flatnonzero(histories.bought)


def one_taste(people, histories):
    """Weights of the tastes that are all on the true one: float64 (M, H)."""
    return np.eye(TASTES)[tastes_of(people, 0)[histories.contexts.users]]


@pytest.mark.parametrize("people", [TINY, TINY_SHOP], ids=["city", "shop"])
def test_predictions_add_up_all_tastes_calendars_and_ways(people):
    histories, purchases = every(people)
    users = histories.contexts.users
    many_views = [row for row in purchases if 3 <= row - np.searchsorted(users, users[row]) <= 12]
    repeated = [row for row in many_views
                if (np.diff(np.sort(histories.items[row - histories.views[row] : row])) == 0).any()]  # fmt: skip
    shown = [row for row in many_views
             if histories.items[row] in histories.items[row - histories.views[row] : row]
             and histories.carts[row - histories.views[row] : row].any()]  # fmt: skip
    after_shown = [row for row in many_views if row - 1 - histories.views[row] in shown]
    assert repeated and shown and after_shown
    positions = np.array([*purchases[:2], *many_views[5:7], *repeated[:1], *shown[:2], *after_shown[:2]])
    predictor, oracle = Predictor(people, histories), Oracle(people, histories)
    for without in ("", *LACKING):
        found = predictor.predictions(positions, without)
        assert found.sum(axis=1) == pytest.approx(np.ones(len(positions)))
        for row, position in enumerate(positions):
            assert found[row] == pytest.approx(oracle.prediction(position, without), rel=1e-8), (without, position)


@pytest.mark.parametrize("people", [TINY, TINY_SHOP], ids=["city", "shop"])
def test_the_law_is_that_of_the_sources_one_by_one(people):
    histories, _ = every(people)
    tastes, items = tastes_of(people, 0), histories.items
    chances, gains = chances_of(people, histories.contexts, items)
    for row in np.random.default_rng(0).choice(len(histories), 12, replace=False):
        contexts = histories.contexts.take(np.array([row]))
        for weekend in (False, True):
            expected = law(people, histories.contexts, row, weekend)
            taste = tastes[contexts.users[0]]
            table = distribution(people, contexts, np.eye(TASTES)[[taste]], np.array([weekend]))
            assert table[0] == pytest.approx(expected[taste])
            assert chances[row] * (gains[row] if weekend else 1) == pytest.approx(expected[:, items[row]])
    with pytest.raises(ValueError, match="the city has no columns"):
        chances_of(replace(people, columns=None), histories.contexts, items)


@pytest.mark.parametrize("people", [MANY, SHOP], ids=["city", "shop"])
@pytest.mark.parametrize("bought", [True, False], ids=["purchases", "views"])
def test_items_are_drawn_as_often_as_the_law_says(people, bought):
    """Each item by itself, the first and the first ten of the law, and the share of leisure shelves at weekends."""
    histories = histories_of(people, 0)
    histories = histories.take(np.flatnonzero(histories.bought == bought))
    tastes, weekend = one_taste(people, histories), is_weekend(histories.contexts.times)
    leisure = people.world.leisure[people.world.positions(np.arange(people.world.items)) // SHELF]
    foretold, hits, variance = np.zeros(people.world.items), np.zeros((4, 2)), np.zeros(4)
    for begin in range(0, len(histories), 2000):
        some = np.arange(begin, min(begin + 2000, len(histories)))
        table = distribution(people, histories.contexts.take(some), tastes[some], weekend[some])
        assert table.sum(axis=1) == pytest.approx(np.ones(len(some)))
        foretold += table.sum(axis=0)
        items = histories.items[some]
        order = np.argsort(-table, axis=1)
        events = [(order[:, :k] == items[:, None]).any(axis=1) for k in (1, 10)]
        expected = [np.take_along_axis(table, order[:, :k], 1).sum(axis=1) for k in (1, 10)]
        for flags in (weekend[some], ~weekend[some]):
            events.append(leisure[items] & flags)
            expected.append(table[:, leisure].sum(axis=1) * flags)
        for number, (event, chance) in enumerate(zip(events, expected, strict=True)):
            hits[number] += event.sum(), chance.sum()
            variance[number] += (chance * (1 - chance)).sum()
    assert (np.abs(hits[:, 0] - hits[:, 1]) < 4 * np.sqrt(variance)).all()
    statistic = ((np.bincount(histories.items, minlength=len(foretold)) - foretold) ** 2 / foretold).sum()
    assert foretold.min() > 0.5
    assert abs(statistic - len(foretold)) < 5 * np.sqrt(2 * len(foretold))


def enumerated(people, views, days):
    """Every history of a purchase and the view before another, if `views` is 1, on any of some days, and its chance.

    Returns:
        A predictor of all histories, one after another; the positions of their last purchases, int64 (R,); and the
        probabilities of what comes before these, float64 (R,).
    """
    items, other = range(people.world.items), SHELF + 3
    rows = []
    for day in days:
        time = BEGAN + day * DAY
        for first in items:
            last = (0, first, time + 60, 60, True, views, False)
            beginning = (first, other, time, 7200, True, 0, False)
            for view in items if views else []:
                for cart in (False, True):
                    rows += beginning, (view, first, time + 60, 60, False, 0, cart), last
            rows += () if views else (beginning, last)
    shown, newest, times, pauses, bought, of, carts = map(np.array, zip(*rows, strict=True))
    contexts = PurchaseContexts(np.zeros(len(rows), dtype=np.int64), newest, times, pauses)
    length = 2 + views
    predictor = Predictor(people, Histories(contexts, shown, bought, of, carts))
    predictor._first = np.arange(len(rows)) // length * length  # all are of the same user
    likelihoods, gains = chances_of(people, contexts, shown)
    likelihoods = (likelihoods * np.where(is_weekend(times), gains, 1)[:, None]).reshape(-1, length, TASTES)
    before = likelihoods[:, 0] / len(days)  # (R, H)
    if views:
        of_it = SEEN + (1 - SEEN) * likelihoods[:, 1]  # that the view is of the item bought
        cart = CARTS[0] + (CARTS[1] - CARTS[0]) * of_it
        before *= likelihoods[:, 1] * np.where(carts[1::length, None], cart, 1 - cart)
    return predictor, np.arange(length - 1, len(rows), length), before @ TASTE_CHANCES


@pytest.mark.parametrize(
    ("items", "views", "days"), [(40, 1, [2]), (180, 0, range(7))], ids=["views and carts", "weekdays"]
)
def test_who_knows_more_expects_no_worse(items, views, days):
    """By adding up all histories; and what is known does not move the mean of the predictions."""
    people = people_of(items=items, users=1, mean=3, days=30, epoch_days=30, seed=4, columns=COLUMNS)
    predictor, positions, chances = enumerated(people, views, days)
    assert chances.sum() == pytest.approx(1)
    hits = {}
    for without in ("", *LACKING):
        table = predictor.predictions(positions, without)
        assert chances @ table == pytest.approx(chances @ predictor.predictions(positions), rel=1e-9)
        hits[without] = [chances @ -np.sort(-table, axis=1)[:, :k].sum(axis=1) for k in (1, 5, 10)]
    for without in LACKING:
        assert np.less_equal(hits[without], np.add(hits[""], 1e-12)).all()
        assert np.less_equal(hits["columns"], np.add(hits[without], 1e-12)).all()
    assert hits["price_and_brand"][2] < hits[""][2] - 0.001
    assert hits["events" if views else "weekday"][2] < hits[""][2] - (0.1 if views else 0.0001)


def test_with_factors_of_one_purchases_are_those_of_a_city_without_columns():
    plain = purchases_of(replace(SHOP, columns=None), 0)
    for values, others in zip(plain, purchases_of(replace(SHOP, columns=Columns(1.0, 1.0, 1.0)), 0), strict=True):
        assert np.array_equal(values, others)
    assert not np.array_equal(plain[1], purchases_of(SHOP, 0)[1])


def test_views_and_carts_are_as_many_as_the_constants_say():
    histories, purchases = every(MANY)
    of = histories.views[purchases]
    for number, share in enumerate(VIEWS):
        assert (of == number).mean() == pytest.approx(share, abs=4 * math.sqrt(share / len(of)))
    law_of_items, gains = chances_of(MANY, histories.contexts, histories.items)
    weekend = is_weekend(histories.contexts.times)
    own = law_of_items[np.arange(len(histories)), tastes_of(MANY, 0)[histories.contexts.users]]
    own = own * np.where(weekend, gains, 1)
    shown, carts, expected = np.zeros(len(purchases)), np.zeros((2, 2)), np.zeros(len(purchases))
    for back in range(1, len(VIEWS)):
        some, views = histories.views_of(purchases, back)
        same = histories.items[views] == histories.items[purchases[some]]
        shown[some] = np.maximum(shown[some], same)
        carts += np.histogram2d(same, histories.carts[views], bins=2)[0]
    # Of purchases with one view: with probability SEEN it is the item bought, or else by chance.
    one = of == 1
    expected = SEEN + (1 - SEEN) * own[purchases[one] - 1]
    assert abs(shown[one].mean() - expected.mean()) < 4 * math.sqrt(0.25 / one.sum())
    assert SEEN < shown[of > 0].mean() < SEEN + 0.15
    for other, (without, with_cart) in zip(CARTS, carts, strict=True):
        views = without + with_cart
        assert with_cart / views == pytest.approx(other, abs=4 * math.sqrt(other * (1 - other) / views))


def test_weekends_tastes_and_leisure_are_as_the_page_says():
    times = BEGAN + np.arange(0, 60 * DAY, 25_000)
    assert is_weekend(times).tolist() == (pd.to_datetime(times, unit="s").dayofweek >= 5).tolist()
    world = people_of(items=1280, users=1, mean=3, days=30, epoch_days=30, seed=4).world
    categories = np.array(items_table(world, 0, 1280, columns=True)["category"])
    leisure = world.leisure[world.positions(np.arange(1280)) // SHELF]
    assert set(categories[leisure]) == {"Bread and Cakes", "Balcony and Beds", "Music and Play"}
    assert len(set(categories)) == 8 and not set(categories[leisure]) & set(categories[~leisure])
    many = people_of(items=40, users=8000, mean=3, days=30, epoch_days=30, seed=6, columns=COLUMNS)
    band, brands = np.divmod(tastes_of(many, 0), len(BRAND_SETS))
    sizes = np.array([len(BRAND_SETS[number]) for number in brands])
    for counts in (np.bincount(band), np.bincount(sizes)[1:]):
        assert np.abs(counts / 8000 - 1 / 3).max() < 4 * math.sqrt(2 / 9 / 8000)


SETTINGS = {"items": 200, "users": 150, "mean_interactions": 8, "days": 200, "seed": 2, "columns": True}


def prepare(folder, output, **settings):
    tables = {name: str(folder / "city" / f"{name}.parquet") for name in ("items", "interactions")}
    run_prepare(PrepareConfig(source="tables", **tables, output=str(folder / output), **settings))
    return Corpus.load(folder / output)


def ceiling(folder, corpus, **settings):
    paths = {name: str(folder / one) for name, one in (("city", "city"), ("corpus", corpus))}
    return run_city_ceiling(CeilingConfig(**paths, output=str(folder / f"ceiling_{corpus}"), **settings))


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    """A city with columns."""
    folder = tmp_path_factory.mktemp("columns")
    run_make_city(MakeCityConfig(output=str(folder / "city"), **SETTINGS))
    return folder


def test_views_stand_before_their_purchases_in_the_same_session(city):
    table = pd.read_parquet(city / "city" / "interactions.parquet")
    assert table.columns.tolist() == ["user_id", "item_id", "timestamp", "event", "device"]
    assert set(table["device"]) == {"phone", "computer", "tablet"}
    counts = read_manifest(city / "city", "city")["counts"]
    assert counts["interactions"] == len(table) and counts["purchases"] == (table["event"] == "purchase").sum()
    histories = histories_of(city_people(read_manifest(city / "city")["settings"]), 0)
    assert (table["event"] != "cart").sum() == len(histories)
    positions = np.flatnonzero(table["event"] != "cart")
    assert (table["event"] == "purchase").to_numpy()[positions].tolist() == histories.bought.tolist()
    assert table["item_id"].to_numpy()[positions].tolist() == [f"p{item}" for item in histories.items]
    later = 0
    for _, log in table.groupby("user_id", sort=False):
        times, events = log["timestamp"].to_numpy(), log["event"].to_numpy()
        assert (np.diff(times) > 0).all()
        session = np.append(0, np.cumsum(np.diff(times) > 1800))
        carts = np.flatnonzero(events == "cart")
        assert (events[carts - 1] == "view").all() and (session[carts - 1] == session[carts]).all()
        assert (log["item_id"].to_numpy()[carts - 1] == log["item_id"].to_numpy()[carts]).all()
        for number in np.unique(session):
            assert len(set(log["device"][session == number])) == 1
            of_session = events[session == number]
            assert "purchase" in of_session  # its views are of a purchase of the session, or come after all of them
            later += of_session[-1] != "purchase"
    assert later > 100
    ends = positions[histories.bought]
    times = table["timestamp"].to_numpy()
    for back in (1, 2, 3):
        some, views = histories.views_of(np.flatnonzero(histories.bought), back)
        before = times[ends[some]] - times[positions[views]]
        assert (before > 0).all() and before.max() <= 360


def test_items_have_a_brand_that_no_text_names_a_category_and_a_price(city):
    people = city_people(read_manifest(city / "city")["settings"])
    items = pd.read_parquet(city / "city" / "items.parquet")
    assert items.columns.tolist() == ["item_id", "title", "description", "brand", "category", "price"]
    assert items["brand"].nunique() == BRANDS and items["title"].is_unique
    texts = " ".join([*items["title"], *items["description"]])
    assert not any(brand in texts for brand in items["brand"].unique())
    positions = people.world.positions(np.arange(len(items)))
    classes = people.world.classes.reshape(-1)[positions]
    assert ((np.searchsorted([5, 15, 45, 135], items["price"]) - 1) == classes // BRANDS).all()
    assert items["brand"].groupby(classes % BRANDS).nunique().eq(1).all()
    assert items["category"].groupby(positions // SHELF // 8).nunique().eq(1).all()
    assert items_table(people.world, 0, 200).column_names == ["item_id", "title", "description"]


def test_the_bytes_are_the_same_in_processes_and_the_form_of_a_shop_has_the_columns_too(city, tmp_path):
    run_make_city(MakeCityConfig(output=str(tmp_path / "city"), **SETTINGS, processes=2))
    for name in ("items", "interactions"):
        assert (tmp_path / "city" / f"{name}.parquet").read_bytes() == (city / "city" / f"{name}.parquet").read_bytes()
    run_make_city(MakeCityConfig(output=str(tmp_path / "shop"), **SETTINGS, form="shop"))
    items = pd.read_csv(tmp_path / "shop" / "items.csv")
    assert items.columns.tolist() == ["item_id", "title", "description", "brand", "category", "price", "in_stock"]
    assert items["description"].str.endswith(".").all()
    events = pd.read_csv(tmp_path / "shop" / "interactions.csv")
    assert events["timestamp"].is_monotonic_increasing and set(events["event"]) == {"view", "cart", "purchase"}


def test_the_ceiling_is_the_same_of_purchases_with_and_without_their_views(city):
    """And it is that of all predictions, for each kind of knowledge."""
    people = city_people(read_manifest(city / "city")["settings"])
    histories, purchases = every(people)
    times, users = histories.contexts.times[purchases], histories.contexts.users[purchases]
    predictor = Predictor(people, histories)
    for corpus, settings in (("logged", {"targets": ["purchase"]}), ("bought", {"where": "event == purchase"})):
        test = prepare(city, corpus, **settings).test
        content = json.loads((ceiling(city, corpus, ks=[1, 10]).output / "ceiling.json").read_text())
        assert set(content["without"]) == set(LACKING)
        known = {(user, time): at for user, time, at in zip(users, times, purchases, strict=True)}
        keys = zip((int(user[1:]) for user in test.users), test.times.time, strict=True)
        positions = np.array([known[key] for key in keys])
        assert np.array_equal(histories.items[positions], test.targets)
        gains = 1 / np.log2(np.arange(2, 12))
        for without in ("", *LACKING):
            totals = content["without"][without] if without else content
            table = predictor.predictions(positions, without)
            ranked = -np.sort(-table, axis=1)[:, :10]
            assert totals["rows"] == len(positions)
            assert totals["ceiling"]["ndcg@10"] == pytest.approx((ranked @ gains).mean(), abs=1e-6)
            assert totals["ceiling"]["hr@1"] == pytest.approx(ranked[:, 0].mean(), abs=1e-6)
            own = table[np.arange(len(positions)), test.targets]
            assert totals["nats"] == pytest.approx(-np.log(own).mean(), abs=1e-6)
            assert abs(totals["drawn"]["ndcg@10"] - totals["ceiling"]["ndcg@10"]) < 4 * totals["sigma"]["ndcg@10"]


def test_a_corpus_whose_targets_are_views_too_is_refused(city):
    prepare(city, "whole")
    with pytest.raises(
        ConfigError, match=r"whole: test example \d+ is no purchase of the city. Prepare the corpus with"
    ):
        ceiling(city, "whole")


def test_init_finds_events_brand_category_and_price(city, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tables = [str(city / "city" / f"{name}.parquet") for name in ("items", "interactions")]
    monkeypatch.setattr(sys, "argv", ["minionerec init", *tables, "mine"])
    run_init("minionerec init")
    printed = capsys.readouterr().out
    assert "Targets are those of 'purchase'" in printed
    assert "Columns of items: brand (category), category (category), price (number)." in printed
    assert "Request features among the columns of interactions and users: device." in printed


def test_factors_belong_to_columns_and_memory_does_not():
    with pytest.raises(ConfigError, match=r"brand_factor is 2\.0, but columns is false; give --columns true"):
        MakeCityConfig(brand_factor=2.0)
    with pytest.raises(ConfigError, match=r"memory is 3, but a city with columns has none.* Leave memory out"):
        MakeCityConfig(columns=True, memory=3)
