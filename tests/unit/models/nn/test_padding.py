"""Groups of rows of similar length: every row once, in the fewest slots, and back in order."""

import torch
from support.histories import histories_of

from minionerec.models.nn.layers import by_length, length_groups

ITEMS, LENGTH = 30, 12


def test_groups_cover_every_row_at_the_least_number_of_slots():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        lengths = torch.randint(0, LENGTH + 1, (9,), generator=generator).tolist()
        histories = histories_of(lengths, "right", LENGTH, ITEMS)
        groups = length_groups(histories, "right")
        assert sorted(torch.cat([positions for positions, _ in groups]).tolist()) == list(range(9))
        counted = sorted(length or LENGTH for length in lengths)
        widths = [
            LENGTH if not all(lengths[position] for position in positions) else columns.stop
            for positions, columns in groups
        ]
        slots = sum(len(positions) * width for (positions, _), width in zip(groups, widths, strict=True))
        least = min(
            a * max(counted[:a], default=0) + (b - a) * max(counted[a:b], default=0) + (9 - b) * counted[-1]
            for a in range(10)
            for b in range(a, 10)
        )
        assert slots == least
        for positions, columns in groups:
            assert (histories[positions] > 0).sum() == (histories[positions, columns] > 0).sum()


def test_by_length_keeps_the_order_of_rows():
    histories = histories_of([5, 1, LENGTH, 1, 3, 8], "right", LENGTH, ITEMS)
    assert len(length_groups(histories, "right")) == 3
    positions = by_length(lambda rows, positions: positions[:, None].float(), histories, "right")
    assert positions[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
