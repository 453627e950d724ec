"""Windows and their variants, against loops over users."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.examples import Window, each_window, joined_windows

from minionerec.data.rows import padded
from minionerec.data.windows import FlatWindows, padded_windows, varied_windows

SEQUENCES = st.lists(st.integers(1, 23), min_size=1, max_size=6)


def lay_out(lengths):
    """Distinct items 1, 2, ... user by user: flat, begins, ends."""
    ends = np.cumsum(lengths)
    return np.arange(1, ends[-1] + 1, dtype=np.int32), ends - lengths, ends


def windows_of(flat, begins, ends, firsts, max_len, padding):
    return padded_windows(FlatWindows(flat - 1, np.full(len(flat), -1), begins, ends, firsts), max_len, padding)


def unpad(row):
    return [int(item) for item in row if item]


@given(SEQUENCES, st.integers(1, 9), st.sampled_from(["left", "right"]))
def test_histories_are_the_newest_items_on_the_side_away_from_padding(lengths, max_len, padding):
    flat, begins, ends = lay_out(np.array(lengths))
    histories = padded(flat, np.maximum(begins, ends - 1 - max_len), ends - 1, max_len, padding)
    for row, (begin, end) in zip(histories, zip(begins, ends - 1, strict=True), strict=True):
        newest = flat[begin:end][-max_len:].tolist()
        fill = [0] * (max_len - len(newest))
        assert row.tolist() == (fill + newest if padding == "left" else newest + fill)


@given(SEQUENCES, st.integers(1, 9), st.integers(1, 30), st.sampled_from(["left", "right"]))
def test_windows_hold_every_target_once_with_its_past_before_it(lengths, max_len, first, padding):
    flat, begins, ends = lay_out(np.array(lengths))
    firsts = np.minimum(first, np.array(lengths))
    windows = windows_of(flat, begins, ends, firsts, max_len, padding)
    met = []
    for history, targets, _ in zip(*windows, strict=True):
        items = unpad(history)
        assert items == list(range(items[0], items[-1] + 1))
        for position in np.flatnonzero(targets):
            target = int(targets[position])
            assert history[position] == target - 1  # the item before it stands where the loss is
            user = int(np.searchsorted(ends, target - 1, side="right"))
            before = target - 1 - int(begins[user])
            assert target - items[0] >= min(before, max(1, max_len // 2))
            met.append(target)
    wanted = [item for b, e, f in zip(begins, ends, firsts, strict=True) for item in flat[b + f : e].tolist()]
    assert sorted(met) == wanted


def window(*items):
    return Window(np.array(items, dtype=np.int32), 1, np.array([-1, *range(10, 9 + len(items))]))


def variants_of(windows, count, seed):
    return each_window(varied_windows(joined_windows(windows), False, count, seed))[len(windows) :]


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(item in rest for item in part)


def test_variants_leave_items_out_and_keep_their_order_and_end():
    windows = [window(*range(8)), window(5, 6), window(3, 3, 4)]
    varied = variants_of(windows, 200, seed=0)
    assert len(varied) == 600
    for position, variant in enumerate(varied):
        origin = windows[position // 200]
        assert variant.first_target == 1
        assert 2 <= len(variant.items) <= len(origin.items)
        assert variant.items[-1] == origin.items[-1]
        pairs = list(zip(origin.items.tolist(), origin.rows.tolist(), strict=True))
        assert is_subsequence(list(zip(variant.items.tolist(), variant.rows.tolist(), strict=True)), pairs)
    long = [variant.items for variant in varied[:200]]
    assert len({tuple(items) for items in long}) > 60
    kept = np.mean([np.isin(range(8), items) for items in long], axis=0)
    assert (np.diff(kept[:-1]) > -0.1).all() and kept[0] < 0.5 < kept[-2]  # the oldest are left out the most
    assert all(variant.items.tolist() == [5, 6] for variant in varied[200:400])


def test_variants_follow_from_the_seed():
    windows = [window(*range(8))]
    one, again, other = (variants_of(windows, 5, seed) for seed in (1, 1, 2))
    assert [v.items.tolist() for v in one] == [v.items.tolist() for v in again] != [v.items.tolist() for v in other]
    assert variants_of(windows, 0, 1) == variants_of([window(7)], 3, 1) == []
