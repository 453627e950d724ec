"""Variants of windows."""

import numpy as np

from minionerec.data.windows import Window, varied_windows


def window(*items):
    return Window(np.array(items, dtype=np.int32), 1, np.array([-1, *range(10, 9 + len(items))]))


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(item in rest for item in part)


def test_variants_leave_items_out_and_keep_their_order_and_end():
    windows = [window(*range(8)), window(5, 6), window(3, 3, 4)]
    varied = varied_windows(windows, 200, seed=0)
    assert len(varied) == 600
    for place, variant in enumerate(varied):
        origin = windows[place // 200]
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
    one, again, other = (varied_windows(windows, 5, seed) for seed in (1, 1, 2))
    assert [v.items.tolist() for v in one] == [v.items.tolist() for v in again] != [v.items.tolist() for v in other]
    assert varied_windows(windows, 0, 1) == varied_windows([window(7)], 3, 1) == []
