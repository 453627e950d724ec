"""What becomes of items with one timestamp, on made-up baskets, against plain loops."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.baskets import EVENLY, filled, source_of
from support.builder import build
from support.examples import each_window, joined_windows, user_windows

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.transitions import count_transitions
from minionerec.data.windows import padded_windows, varied_windows


def built(pairs, **settings):
    """A corpus of made-up baskets; examples that leave a split empty are not looked at."""
    try:
        return build(source_of(pairs), **settings).corpus()
    except DataError as error:
        assume("holds no example" not in str(error))
        raise


def by_target(corpus):
    """Target → (time, history, previous time, split)."""
    return {
        target: (time, history.tolist(), before, split)
        for split, rows in corpus.splits().items()
        for (_, history, target), time, before in zip(rows, rows.times.time, rows.times.previous, strict=True)
    }


def test_borders_move_back_to_the_beginning_of_a_timestamp():
    corpus = build(source_of(EVENLY), ties="together").corpus()
    # 81 rows of timestamps 1 to 9, nine each: the borders 64 and 72 lie in 8 and at the beginning of 9.
    found = {name: set(rows.times.time.tolist()) for name, rows in corpus.splits().items()}
    assert found == {"train": set(range(1, 8)), "valid": {8}, "test": {9}}
    assert corpus.split == "global time 8:1:1, ties together"
    assert corpus.counts["ties"] == "together" and corpus.together


def test_the_last_step_is_test_with_each_of_its_items_a_row():
    corpus = build(source_of(EVENLY), split="leave_last_out", ties="together").corpus()
    found = {name: (len(rows), set(rows.times.time.tolist())) for name, rows in corpus.splits().items()}
    assert found == {"train": (63, set(range(1, 8))), "valid": (9, {8}), "test": (9, {9})}
    assert len({(user, tuple(history)) for user, history, _ in corpus.test}) == len(set(corpus.test.users)) == 3


@settings(max_examples=25)
@given(filled, st.integers(1, 5), st.sampled_from(["keep", "together"]))
def test_windows_show_a_target_nothing_but_its_history(pairs, max_history, ties):
    corpus = built(pairs, split="leave_last_out", max_history=max_history, ties=ties)
    train = corpus.train
    windows = user_windows(corpus)
    met = Counter()
    for window in windows:
        assert len(window.items) <= max_history + 1
        for position in range(window.first_target, len(window.items)):
            target, history = train.targets[window.rows[position]], train.histories[window.rows[position]].tolist()
            shown = window.items[:position].tolist()
            assert target == window.items[position]
            assert shown == history[-len(shown) :]
            assert len(shown) >= min(len(history), max_history // 2)
            met[int(window.rows[position])] += 1
    assert met == Counter(range(len(train)))
    context_of = dict(enumerate(timestamp for _, timestamp in pairs))
    varied = each_window(varied_windows(joined_windows(windows), True, 3, seed=0)) if ties == "together" else []
    for variant in varied[len(windows) :]:
        for position in range(variant.first_target, len(variant.items)):
            assert variant.rows[position] >= 0
            before = [context_of[item] for item in variant.items[:position].tolist()]
            assert all(context < context_of[variant.items[position]] for context in before)


@settings(max_examples=25)
@given(filled, st.integers(1, 3))
def test_pairs_are_counted_across_timestamps_alone(pairs, reach):
    corpus = built(pairs, split="leave_last_out", max_history=4, ties="together")
    (whole,) = corpus.windows("train")
    histories, targets, _ = padded_windows(whole, 4, "right")
    found = count_transitions([(histories, targets)], len(pairs), reach, 0.5, 0.0)
    for before in range(len(pairs)):
        for after in found[[before]].indices:
            assert pairs[before][0] == pairs[after][0] and pairs[before][1] < pairs[after][1]
    nearest = sum(len(row) > 0 for row in corpus.train.histories)
    assert (found.data == 1).sum() <= nearest <= found.data.sum()


def test_rows_of_a_step_begin_windows_of_their_own(caplog):
    caplog.set_level("INFO")
    pairs = [(0, 0), (0, 1), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]
    corpus = build(source_of(pairs), split="leave_last_out", ties="together").corpus()
    found = [(window.items.tolist(), window.first_target, window.rows.tolist()) for window in user_windows(corpus)]
    assert found == [([0, 1], 1, [-1, 0]), ([0, 2], 1, [-1, 1]), ([0, 1, 2, 3, 4], 3, [-1, -1, -1, 2, 3])]
    assert "2 of 4 train examples begin a window in which the user's previous example is no target" in caplog.text
    assert corpus.train.times.later.all()
    joined = corpus.training_on(["valid", "test"])
    assert joined.train.times.time.tolist() == [1, 1, 2, 3, 4, 5] and len(user_windows(joined)) == 3
    assert user_windows(joined)[2].items.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_every_order_of_a_tie_is_as_likely_as_another():
    source = source_of([(user, timestamp) for user in range(1200) for timestamp in (1, 1, 1, 2)])
    source = replace(source, item_index=np.tile(np.arange(4, dtype=np.int32), 1200))
    corpus = build(source, split="leave_last_out", ties="shuffle").corpus()
    assert corpus.split == "leave last out, ties shuffled" and not corpus.together
    met = Counter(tuple(history.tolist()) for history in corpus.test.histories)
    assert len(met) == 6 and all(140 < count < 260 for count in met.values())


def test_a_timestamp_is_a_second():
    pairs = [(0, 0), (0, 100), (0, 1000), (0, 1999), (0, 5000), (0, 9000)]
    source = replace(source_of(pairs), ticks=1000)
    corpus = build(source, split="leave_last_out", ties="together").corpus()
    assert sorted(by_target(corpus)) == [2, 3, 4, 5]
    assert corpus.train.times.time.tolist() == [1, 1] and corpus.train.times.previous.tolist() == [0, 0]


@pytest.mark.parametrize("ties", ["shuffle", "together"])
def test_ties_need_timestamps(ties):
    source = source_of(EVENLY)
    without = replace(source, times=None)
    with pytest.raises(ConfigError, match=f"ties is '{ties}', but made up holds no times"):
        build(without, split="leave_last_out", ties=ties)
    parts = replace(source, times=source.times + 0.5, ticks=None)
    with pytest.raises(ConfigError, match=f"ties is '{ties}', but made up holds times with fractions"):
        build(parts, ties=ties)
    for kept in (without, parts):
        assert not build(kept, split="leave_last_out").corpus().has_times
