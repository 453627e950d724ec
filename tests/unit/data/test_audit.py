"""The audit of the order within timestamps, against plain loops and known figures."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from support.baskets import source_of
from support.builder import build
from support.small_corpus import make_corpus, rows_of

from minionerec.data.audit import Agreement, audit_examples
from minionerec.data.names import SPLITS
from minionerec.data.times import NO_TIME, RowTimes


def test_ids_are_compared_as_text_and_as_numbers():
    """9 > 10 > 009 < 9 > 8 as texts, and as numbers 9 < 10 > 9 = 009 > 8; one item twice is no pair of ids."""
    source = replace(source_of([(0, 5)] * 6), item_index=np.array([0, 1, 2, 0, 0, 3], np.int32))

    def audit(*ids):
        items = source.items.iloc[:4].assign(item_id=[*ids])
        one_more = np.concatenate([source.item_index, np.zeros(9, np.int32)])
        users, times = np.repeat([0, 1], [6, 9]).astype(np.int32), np.repeat([5, 6], [6, 9]).astype(np.int64)
        users_too = pa.array(["u", "v"])
        columns = {"item_index": one_more, "users": users, "times": times, "user_ids": users_too}
        return build(replace(source, items=items, **columns)).audit

    found = audit("9", "10", "009", "8")
    assert found.orders["text"]["ties"] == Agreement(4, 1)
    assert found.orders["number"]["ties"] == Agreement(3, 1)
    assert found.ties == 13
    assert "number" not in audit("9", "10", "²", "8").orders
    assert "number" not in audit("9", "10", "", "8").orders


def test_the_interval_is_wilsons():
    # By hand, n = 100, p = .6, z = 1.959964: centre .59630, half width .09426.
    assert Agreement(100, 60).interval == pytest.approx((0.50200, 0.69060), abs=2e-5)
    assert Agreement().interval == (0.0, 1.0) and np.isnan(Agreement().share)


@pytest.mark.parametrize(
    ("pairs", "rising", "far"),
    [(100, 61, True), (100, 39, True), (100, 60, False), (10_000, 5_900, False), (10, 8, False), (0, 0, False)],
)
def test_far_from_chance_is_far_and_certain(pairs, rising, far):
    assert Agreement(pairs, rising).far is far


def test_a_listing_is_warned_of_and_a_shuffled_one_is_not():
    rng = np.random.default_rng(0)
    pairs = [(user, day) for day in range(8) for user in range(40) for _ in range(4)]
    listing, chance = source_of(pairs), source_of(pairs)
    chance = replace(chance, item_index=rng.permutation(chance.item_index))
    found, other = (build(source).audit for source in (listing, chance))
    shares = [audit.orders["text"]["ties"].share for audit in (found, other)]
    assert shares[0] == 1.0 and shares[1] == pytest.approx(0.5, abs=0.05)
    assert found.warning().startswith(
        "Within one second item ids as text rise in 100.0% of 960 (95 % interval 99.6% to 100.0%), by chance they "
        "would in 50%; between seconds in 100.0% of 280"
    )
    assert "or report examples within one second separately." in found.warning()
    same = build(source_of([(user, 0) for user in range(40) for _ in range(4)])).audit.warning()  # nothing to compare
    assert "by chance they would in 50%. The order" in same and same.endswith("Set ties to 'shuffle' or 'together'.")
    assert other.warning() is None and not other.agrees_with_ids
    assert found.lines() == [
        "neighbouring pairs within one second: 960 of 1,240 (77.4%)",
        "  item ids as text rise in 100.0% of 960 (95 % interval 99.6% to 100.0%); else in 100.0% of 280 (95 % "
        "interval 98.6% to 100.0%)",
        "  positions in the file rise in 100.0% of 960 (95 % interval 99.6% to 100.0%)",
    ]
    plain = json.loads(json.dumps(found.counts()))
    assert plain == {
        "pairs": 1240,
        "ties": 960,
        "chance": 0.5,
        "text": {"ties": {"pairs": 960, "rising": 960}, "others": {"pairs": 280, "rising": 280}},
        "file": {"ties": {"pairs": 960, "rising": 960}},
    }
    assert build(listing).counts["order"] == plain


def corpus_of(*tables):
    """A corpus of the items 3, 1, 2 with (history, target) rows."""
    splits = {name: rows_of([("u", *row) for row in rows]) for name, rows in zip(SPLITS, tables, strict=True)}
    return replace(make_corpus(list("abc"), item_ids=["3", "1", "2"]), **splits)


def test_rows_of_a_split_with_times_from_elsewhere():
    corpus = corpus_of([([0], 1)], [([0, 1], 2), ([], 1), ([2], 0)], [([1], 0), ([1], 2), ([2], 2)])
    times = {
        "valid": RowTimes(np.array([5, 5, NO_TIME]), np.array([5, NO_TIME, 4])),
        "test": RowTimes(np.array([5, 6, 7]), np.array([4, 6, 7])),
    }
    found = audit_examples(corpus, ["valid", "test"], times)
    assert (found.pairs, found.ties) == (4, 3)
    assert found.orders["text"] == {"ties": Agreement(2, 2), "others": Agreement(1, 1)}
    plain = audit_examples(corpus, SPLITS)
    assert (plain.pairs, plain.ties, plain.orders["number"]) == (6, None, {"all": Agreement(5, 4)})
    assert plain.lines()[0] == "neighbouring pairs: 6; their times are unknown"
    assert plain.warning() is None
