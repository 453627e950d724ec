"""Reader of MovieLens as unpacked: ml-1m and ml-10m (`.dat`), ml-latest and ml-25m (`.csv`), ml-100k (`u.data`)."""

import os
from pathlib import Path

import pandas as pd

from minionerec.core.errors import DataError
from minionerec.data.source import BadRows
from minionerec.data.sources.tables import TableSource
from minionerec.data.sources.text import read_text_table

COLUMNS = {"user": "userId", "item": "movieId", "time": "timestamp", "title": "title"}
RATINGS = ("userId", "movieId", "rating", "timestamp")
_READ = tuple(name for name in RATINGS if name != "rating")
MOVIES = ("movieId", "title", "genres")
_SEPARATORS = {".csv": ",", ".dat": "::", ".data": "\t", ".item": "|"}


def read_movielens(
    interactions: str | os.PathLike[str], items: str | os.PathLike[str], bad: BadRows | None = None
) -> TableSource:
    """Read ratings, each an interaction whatever its stars, and films; a film's genres are its description.

    Args:
        interactions: `ratings.dat`, `ratings.csv` or `u.data`.
        items: `movies.dat`, `movies.csv` or `u.item` (which has no genres by name).
        bad: Counts rows that cannot be used; one is an error if None.

    Raises:
        DataError: As `minionerec.data.sources.tables.read_tables`, or if a file has another ending.
    """
    bad = bad or BadRows()
    ratings = _read(Path(interactions), RATINGS, bad)
    films = _read(Path(items), MOVIES, bad)
    for path, table, names in ((interactions, ratings, _READ), (items, films, MOVIES)):
        for name in names:
            if name not in table:
                found = ", ".join(map(str, table.columns))
                raise DataError(f"{path}: column {name!r} is missing; it has {found}. Give MovieLens' own file.")
    genres = films["genres"].str.replace("(no genres listed)", "", regex=False).str.replace("|", ", ", regex=False)
    return TableSource(
        [(Path(interactions), ratings)],
        str(interactions),
        (films.assign(description=genres if Path(items).suffix != ".item" else ""), Path(items)),
        bad,
        COLUMNS,
        "s",
    )


def _read(path: Path, names: tuple[str, ...], bad: BadRows) -> pd.DataFrame:
    separator = _SEPARATORS.get(path.suffix.lower())
    if separator is None:
        raise DataError(
            f"{path}: unknown kind of MovieLens file; known endings: {', '.join(_SEPARATORS)}. Give the unpacked file."
        )
    header = None if path.suffix.lower() == ".csv" else names
    more = path.suffix.lower() not in (".dat", ".data")
    return read_text_table(path, separator, header, quoted=separator == ",", bad=bad, more_columns=more)
