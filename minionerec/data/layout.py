"""Writer of the published MiniOneRec layout, the counterpart of `minionerec.data.published`."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from minionerec.core.artefacts import read_json, write_text_atomic
from minionerec.core.errors import DataError
from minionerec.core.log import progress
from minionerec.data.corpus import Corpus
from minionerec.data.names import SPLITS
from minionerec.data.published import COLUMNS

RECORD = ("title", "description", "brand", "categories")
INTER_HEADER = "user_id:token\titem_id_list:token_seq\titem_id:token\n"


def item_records(items: pd.DataFrame) -> list[dict[str, str]]:
    """The entry of each item in `item.json`: title, description, brand and categories, "" where the table has none."""
    columns = [items[name].astype(str) if name in items else [""] * len(items) for name in RECORD]
    return [dict(zip(RECORD, texts, strict=True)) for texts in zip(*columns, strict=True)]


def read_index(path: str | os.PathLike[str], n_items: int) -> list[str]:
    """SIDs of a published `index.json`: item number → list of token strings, which are joined.

    Raises:
        DataError: If an item has none, or the file is no such object.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected an object of item number → tokens, got {type(content).__name__}.")
    sids = []
    for item in range(n_items):
        tokens = content.get(str(item))
        if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
            raise DataError(f"{path}: item {str(item)!r} has {tokens!r}; expected a list of token strings.")
        sids.append("".join(tokens))
    return sids


def layout_files(root: str | os.PathLike[str], name: str, with_sids: bool) -> list[Path]:
    """The files that `write_layout` writes."""
    root = Path(root)
    files = [root / "index" / f"{name}.item.json", *(root / f"{name}.{split}.inter" for split in SPLITS)]
    return files + [root / "info" / f"{name}.txt", *(root / split / f"{name}.csv" for split in SPLITS)] * with_sids


def write_layout(
    root: str | os.PathLike[str],
    name: str,
    corpus: Corpus,
    user_numbers: Mapping[str, int],
    records: Sequence[Mapping[str, str]],
    sids: Sequence[str] | None = None,
) -> None:
    """Write a corpus as the published files: byte for byte as the published tools write the same examples.

    `index/{name}.item.json` and `{name}.{split}.inter` are always written; `{split}/{name}.csv` and `info/{name}.txt`
    need SIDs. Items are called by their index, users by their number.

    Args:
        root: Folder to write into.
        name: How the files' names begin.
        corpus: Items and rows.
        user_numbers: User → number; "A" and the number is the user's name in the csv files.
        records: N records of `item.json`.
        sids: N semantic IDs as text, or None.

    Raises:
        ArtefactError: If a file cannot be written.
    """
    root = Path(root)
    content = {str(item): dict(record) for item, record in enumerate(records)}
    texts = {root / "index" / f"{name}.item.json": json.dumps(content, indent=2)}
    titles = corpus.items["title"].to_numpy(object)
    if sids is not None:
        lines = (f"{sid}\t{title}\t{item}\n" for item, (sid, title) in enumerate(zip(sids, titles, strict=True)))
        texts[root / "info" / f"{name}.txt"] = "".join(lines)
    for split in SPLITS:
        rows = corpus.rows(split)
        numbers = [user_numbers[user] for user in rows.users]
        histories = [history.tolist() for history in rows.histories]
        inter = (
            f"{number}\t{' '.join(map(str, history))}\t{target}\n"
            for number, history, target in zip(numbers, histories, rows.targets, strict=True)
        )
        texts[root / f"{name}.{split}.inter"] = INTER_HEADER + "".join(inter)
        if sids is not None:
            table = _csv_table(numbers, histories, rows.targets, titles, np.array(sids, dtype=object))
            texts[root / split / f"{name}.csv"] = table.to_csv(index=False, lineterminator="\n")
    for path, text in progress(texts.items(), "writing the published layout", unit="files"):
        write_text_atomic(path, text)


def _csv_table(
    numbers: list[int], histories: list[list[int]], targets: np.ndarray, titles: np.ndarray, sids: np.ndarray
) -> pd.DataFrame:
    cells = (
        [f"A{number}" for number in numbers],
        [str(titles[history].tolist()) for history in histories],
        titles[targets],
        [str(history) for history in histories],
        targets,
        [str(sids[history].tolist()) for history in histories],
        sids[targets],
    )
    return pd.DataFrame(dict(zip(COLUMNS, cells, strict=True)))
