"""The k-core, the window and the numbering: fixpoint, order and oracle, by property."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minionerec.core.errors import ConfigError
from minionerec.data.filters import k_core, parse_time

interactions = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=60)


def columns(pairs):
    return (np.array([pair[position] for pair in pairs], dtype=np.int32) for position in range(2))


def slow_core(pairs, k):
    """One user or item at a time, whichever is found first; the positions that stay."""
    left = set(range(len(pairs)))
    while True:
        for side in range(2):
            for value in range(7):
                those = {position for position in left if pairs[position][side] == value}
                if 0 < len(those) < k:
                    left -= those
                    break
            else:
                continue
            break
        else:
            return sorted(left)


@given(interactions, st.integers(0, 5))
def test_core_is_the_fixpoint_that_a_slow_loop_finds(pairs, k):
    users, items = columns(pairs)
    kept = k_core(users, items, k)
    assert kept.tolist() == slow_core(pairs, k)
    for codes in (users[kept], items[kept]):
        assert all(count >= k for count in np.bincount(codes) if count)
    assert k_core(users[kept], items[kept], k).tolist() == list(range(len(kept)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1970-01-02", 86_400), ("1970-02", 31 * 86_400), ("1970-01-01T01:00:00+01:00", 0), ("1970-01-01T00:00:07", 7)],
)
def test_timestamps_are_in_utc(text, seconds, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["soon", "2016-13", "16-10"])
def test_what_is_no_timestamp(text):
    with pytest.raises(ConfigError, match=f"'{text}' is no time; give an ISO month"):
        parse_time(text)
