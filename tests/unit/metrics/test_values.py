"""Value of lists: what they find, re-ranking by value, and the comparison at one HR@10."""

import numpy as np
import pandas as pd
import pytest

from minionerec.core.errors import DataError
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.values import at_equal_hr, by_value, distinct_lists, item_values, value_metrics

VALUES = np.array([0.5, 2.0, 0.5, 1.0])


def test_lists_are_re_ranked_by_value():
    scores = [[-1.0, -1.5, -2.0, -2.5], [-1.0, -3.0]]
    predictions = Predictions(["a", "b"], np.array([1, 3]), ["", ""], [[0, 1, 2, 3], [2, 2]], [[""] * 4] * 2, scores)
    lists = distinct_lists(predictions)
    assert lists[0].tolist() == [[0, 1, 2, 3], [2, -1, -1, -1]] and lists[1][1].tolist() == [-1.0, *[-np.inf] * 3]
    assert by_value(*lists, VALUES, 0).tolist() == [[0, 1, 2, 3], [2, -1, -1, -1]]
    # log 4 - 1.5 and log 2 - 2.5 overtake -1 and -2.
    assert by_value(*lists, VALUES, 1).tolist() == [[1, 0, 3, 2], [2, -1, -1, -1]]


def test_a_list_finds_the_value_of_its_target():
    found = value_metrics(np.array([[0, 1, 2], [2, 0, -1], [3, 1, -1]]), np.array([1, 3, 3]), VALUES)
    assert {name: values.tolist() for name, values in found.items()} == {"HR@10": [1, 0, 1], "value@10": [2, 0, 1]}


@pytest.mark.parametrize("cells", [["1", "x"], ["1", "-2"], ["1", None], ["1", "inf"], ["0", "0"]])
def test_a_value_is_a_number_from_0(cells):
    with pytest.raises(DataError, match="column 'price' of the corpus's items"):
        item_values(pd.Series(cells, index=["i0", "i1"], name="price"))
    assert item_values(pd.Series(["1", "2.5"], index=["i0", "i1"], name="price")).tolist() == [1, 2.5]


def test_at_equal_hr_it_is_the_best_mixture():
    curve = [
        {"HR@10": np.array([hit, hit]), "value@10": np.array([value, value + 2])}
        for hit, value in ((0.5, 1), (0.375, 2), (0.25, 9))
    ]
    # Half of the first and half of the last, not the one between them.
    found, inside = at_equal_hr(0.375, curve, "value@10")
    assert inside and found.tolist() == [5, 7]
    found, inside = at_equal_hr(0.75, curve, "value@10")
    assert not inside and found.tolist() == [1, 3]
    found, inside = at_equal_hr(0.1, curve, "value@10")
    assert not inside and found.tolist() == [9, 11]
