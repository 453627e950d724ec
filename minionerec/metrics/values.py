"""What items are worth, where purchases differ in value."""

import numpy as np
import pandas as pd

from minionerec.core.cells import number_of
from minionerec.core.errors import DataError, shown


def item_values(column: pd.Series) -> np.ndarray:
    """Read what each item is worth from a column of the items: float64 (N,).

    Args:
        column: N cells, by item id.

    Raises:
        DataError: If a cell is no number from 0, or all are 0.
    """
    numbers = np.array([number_of(cell) for cell in column], dtype=np.float64)
    bad = np.logical_not(np.isfinite(numbers) & (numbers >= 0))
    where = f"column {column.name!r} of the corpus's items"
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"{where} has {shown(column.iloc[row])} for item {column.index[row]} ({int(bad.sum())} such items); a "
            "value is a number from 0 for each item."
        )
    if not numbers.any():
        raise DataError(f"{where} is 0 for every item, so nothing has a value. Name another column.")
    return numbers
