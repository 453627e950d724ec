"""Reader of RecBole's atomic files: `.inter`, one interaction a line, and `.item`, with headers `name:type`."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.filters import parse_conditions
from minionerec.data.names import COLUMNS
from minionerec.data.source import BadRows
from minionerec.data.sources.tables import BROKEN_ID, TableSource, column_of
from minionerec.data.sources.text import read_text_table


def read_recbole(
    interactions: str | os.PathLike[str],
    items: str | os.PathLike[str] | None = None,
    bad: BadRows | None = None,
    *,
    time_unit: str | None = None,
    where: str = "",
    events: bool = False,
    columns: Mapping[str, str] = MappingProxyType({}),
) -> TableSource:
    """Read one line an interaction, and items with their titles; see https://recbole.io/atomic_files.html.

    Args:
        interactions: The `.inter` file.
        items: The `.item` file. Without it items are those of the interactions by first appearance, with no title.
        bad: Counts rows that cannot be used; one is an error if None.
        time_unit: As of `minionerec.data.sources.tables.read_tables`.
        where: As of `minionerec.data.sources.tables.read_tables`.
        events: As of `minionerec.data.sources.tables.read_tables`.
        columns: As of `minionerec.data.sources.tables.read_tables`, named without their types.

    Raises:
        DataError: As `minionerec.data.sources.tables.read_tables`.
    """
    path, bad, columns = Path(interactions), bad or BadRows(), {**COLUMNS, **columns}
    item_column, title_column = columns["item"], columns["title"]
    if items is None and title_column == item_column:
        raise ConfigError(
            f"columns has title={title_column}, the column of item ids, but there is no file of items. Leave it out."
        )
    purchases = _read(path, bad)
    if f"{item_column}_list" in purchases.columns:
        raise DataError(
            f"{path}: column {item_column + '_list'!r} means that its rows are histories, already split. Give the file "
            "with one interaction a line."
        )
    if items is None:
        column_of(purchases, path, item_column, "item")
        ids = pd.Series(pd.unique(purchases[item_column]), dtype="str")
        usable = ids[(ids != "") & ~ids.str.contains(BROKEN_ID)].to_numpy()
        catalogue = pd.DataFrame({item_column: usable, title_column: "", columns["description"]: ""})
        source = path
    else:
        catalogue, source = _read(Path(items), bad, (title_column, columns["description"])), Path(items)
    conditions = parse_conditions(where)
    return TableSource([(path, purchases)], str(path), (catalogue, source), bad, columns, time_unit, conditions, events)


def _read(path: Path, bad: BadRows, texts: Collection[str] = ()) -> pd.DataFrame:
    """Read a file without the types of its columns; tokens of a sequence that is none of `texts` are parted by "|"."""
    table = read_text_table(path, "\t", quoted=False, bad=bad)
    for name in table.columns:
        if str(name).endswith(":token_seq") and str(name).split(":")[0] not in texts:
            table[name] = table[name].str.replace(" ", "|")
    return table.rename(columns=lambda name: str(name).split(":")[0])
