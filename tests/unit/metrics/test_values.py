"""What items are worth, read from a column."""

import pandas as pd
import pytest

from minionerec.core.errors import DataError
from minionerec.metrics.values import item_values


@pytest.mark.parametrize("cells", [["1", "x"], ["1", "-2"], ["1", None], ["1", "inf"], ["0", "0"]])
def test_a_value_is_a_number_from_0(cells):
    with pytest.raises(DataError, match="column 'price' of the corpus's items"):
        item_values(pd.Series(cells, index=["i0", "i1"], name="price"))
    assert item_values(pd.Series(["1", "2.5"], index=["i0", "i1"], name="price")).tolist() == [1, 2.5]
