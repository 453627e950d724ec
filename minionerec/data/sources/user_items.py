"""Reader of "user item item ..." text files, one line a user, items oldest first; titles in a JSON file beside it."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from minionerec.core.artefacts import read_json
from minionerec.core.errors import DataError
from minionerec.data.source import BadRows, Source, item_table, read_lines


def read_user_items(
    interactions: str | os.PathLike[str], items: str | os.PathLike[str] | None = None, bad: BadRows | None = None
) -> Source:
    """Read one line a user: the user, then the items, oldest first, between spaces.

    There are no times, so only leave last out can split these interactions.

    Args:
        interactions: The text file. A colon after the user is allowed.
        items: JSON object of item id → title, or → an object with `title` and perhaps `description`. Item index i is
            its i-th entry. Without it the items are those of the lines, numbers in rising order, with no title.
        bad: Counts lines that cannot be used; one is an error if None.

    Returns:
        The source. Its counts: `items_without_title`.

    Raises:
        DataError: On a line with no item, a user with two lines, an item without an entry in `items`, an entry that
            is no title, or a file with no line, as far as `bad` does not allow it.
    """
    path, bad = Path(interactions), bad or BadRows()
    titles = None if items is None else _read_titles(Path(items))
    sequences = _read_sequences(path, titles, items, bad)
    if not sequences:
        raise DataError(f"{path}: holds no interaction; expected lines of 'user item item ...'.")
    if titles is None:
        named = {item for chosen in sequences.values() for item in chosen}
        titles = dict.fromkeys(sorted(named, key=_rising), ("", ""))
    index_of = {item: index for index, item in enumerate(titles)}
    lengths = [len(chosen) for chosen in sequences.values()]
    return Source(
        items=item_table(
            list(titles),
            title=[title for title, _ in titles.values()],
            description=[description for _, description in titles.values()],
        ),
        users=np.repeat(np.arange(len(sequences), dtype=np.int32), lengths),
        item_index=np.array([index_of[item] for chosen in sequences.values() for item in chosen], dtype=np.int32),
        times=None,
        user_ids=pa.array(list(sequences)),
        where=str(path),
    )


def _read_sequences(
    path: Path, titles: Mapping[str, object] | None, items: str | os.PathLike[str] | None, bad: BadRows
) -> dict[str, list[str]]:
    """User → items, oldest first, in the order of the lines; lines that cannot be used are counted.

    Args:
        path: The text file.
        titles: The items that are known; any if None.
        items: Where they are known from, for messages.
        bad: Counts the lines.
    """
    line_of: dict[str, int] = {}
    sequences: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        user, *chosen = line.split() or [""]
        if not user:
            continue
        user, colon, first = user.partition(":")
        if colon and first:
            chosen = [first, *chosen]
        elif not colon and chosen and chosen[0].startswith(":"):
            chosen = [item for item in (chosen[0][1:], *chosen[1:]) if item]
        where = f"{path}, line {number}"
        unknown = None if titles is None else next((item for item in chosen if item not in titles), None)
        if not chosen:
            bad.add("malformed", f"{where}: user {user!r} has no item; expected 'user item item ...'. Drop the line.")
        elif user in line_of:
            bad.add(
                "repeated_user",
                f"{where}: user {user!r} already has line {line_of[user]}. Join the two lines in time order.",
            )
        elif unknown is not None:
            bad.add("unknown_item", f"{where}: item {unknown!r} is not in {items}. Add it there or drop the line.")
        else:
            line_of[user] = number
            sequences[user] = chosen
    return sequences


def _rising(item: str) -> tuple[bool, int, str]:
    """Sorts numbers before words, numbers by value."""
    return (False, int(item), item) if item.isdecimal() else (True, 0, item)


def _read_titles(path: Path) -> dict[str, tuple[str, str]]:
    """Item id → title and description, in the file's order."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected an object of item id → title, got {type(content).__name__}.")
    found = {}
    for item, entry in content.items():
        record = {"title": entry} if isinstance(entry, str) else entry
        texts = [record.get(name) or "" for name in ("title", "description")] if isinstance(record, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise DataError(f"{path}: item {item!r} has {entry!r}; expected a title or an object with a title.")
        found[item] = (str(texts[0]).strip(), str(texts[1]).strip())
    return found
