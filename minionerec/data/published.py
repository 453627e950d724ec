"""The published MiniOneRec layout, read and written: `{train,valid,test}/*.csv`, `info/*.txt`, `index/*.item.json`."""

import ast
import glob
import json
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.artefacts import read_json, write_text_atomic
from minionerec.core.errors import DataError
from minionerec.core.log import progress
from minionerec.core.paths import DATA_VARIABLE, find_path
from minionerec.data.corpus import Corpus, check_filled
from minionerec.data.files import read_text
from minionerec.data.names import PUBLISHED_HISTORY, SPLITS
from minionerec.data.rows import SplitExamples
from minionerec.data.sources.tables import csv_rows, further_columns
from minionerec.data.times import NO_TIME, RowTimes

COLUMNS = (
    "user_id",
    "history_item_title",
    "item_title",
    "history_item_id",
    "item_id",
    "history_item_sid",
    "item_sid",
)
WHERE_TO_GET = "data/README.md says where to get the published files and how MINIONEREC_DATA points to them"


def default_root() -> Path:
    """Folder `Amazon` under the directory that `MINIONEREC_DATA` names (`data` where it names none)."""
    return find_path(f"{DATA_VARIABLE}/Amazon")


def _only(root: Path, pattern: str) -> Path:
    found = sorted(root.glob(pattern))
    if not found:
        raise DataError(f"{root / pattern}: no such file. {WHERE_TO_GET}.")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise DataError(f"{root / pattern}: {len(found)} files match ({names}), expected one. Give a longer category.")
    return found[0]


def published_files(root: str | os.PathLike[str], category: str) -> dict[str, Path]:
    """The five files that `read_published` reads.

    Args:
        root: The folder that holds `train`, `valid`, `test`, `info` and `index`.
        category: How the files' names begin, e.g. "Industrial_and_Scientific".

    Returns:
        `train`, `valid`, `test`, `info`, `items` → path.

    Raises:
        DataError: If a file is missing, or several fit the category.
    """
    root = Path(root)
    name = glob.escape(category)
    files = {split: _only(root / split, f"{name}*.csv") for split in SPLITS}
    files["info"] = _only(root / "info", f"{name}*.txt")
    files["items"] = _only(root / "index", f"{name}.item.json")
    return files


def published_index_path(root: str | os.PathLike[str], category: str) -> Path:
    """The file of published semantic IDs, `index/{category}.index.json`.

    Raises:
        DataError: If it is missing.
    """
    return _only(Path(root) / "index", f"{glob.escape(category)}.index.json")


def published_numbers(corpus: Corpus) -> dict[str, int]:
    """The number in each user's name, "A22" → 22.

    Raises:
        DataError: If a user is called otherwise.
    """
    numbers = {}
    for split in SPLITS:
        for user in corpus.rows(split).users:
            if not (user.startswith("A") and user[1:].isdecimal()):
                raise DataError(f"{split}: user {user!r} is not 'A' and a number, so this is not the published data.")
            numbers[user] = int(user[1:])
    return numbers


_NUMBERS = re.compile(r"\[(?:0|[1-9][0-9]{0,17})(?:, (?:0|[1-9][0-9]{0,17}))*\]")
_TEXTS = re.compile(r"\['[^'\\\n\r\0]*'(?:, '[^'\\\n\r\0]*')*\]")


def _literal(text: str) -> Any:
    """A Python literal, or None where the text is none; never evaluates anything.

    Lists of whole numbers, and of texts without quotes and backslashes, are read without Python's parser, which took
    most of the time of reading.
    """
    if _NUMBERS.fullmatch(text):
        return [int(number) for number in text[1:-1].split(", ")]
    if _TEXTS.fullmatch(text):
        return text[2:-2].split("', '")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _description(text: Any) -> tuple[str, bool]:
    """Plain text of one description, and whether it looked like a list but could not be parsed as one.

    The published field is the text of a Python list; a few hold unescaped quotes. Those keep their words: brackets
    and outer quotes go, and the borders between entries become spaces.
    """
    if isinstance(text, list):
        return " ".join(str(part) for part in text).strip(), False
    text = str(text or "").strip()
    if not text.startswith("["):
        return text, False
    parts = _literal(text)
    if isinstance(parts, list):
        return " ".join(str(part) for part in parts).strip(), False
    plain = text.removeprefix("[").removesuffix("]").strip("'\"")
    return plain.replace("', '", " ").replace('", "', " "), True


def _read_info(path: Path) -> tuple[list[str], list[str], list[str]]:
    """SIDs, titles and item ids of the info file, in item order."""
    sids: list[str] = []
    titles: list[str] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(read_text(path, f"{WHERE_TO_GET}.").split("\n"), start=1):
        if not line.strip():
            continue
        parts = line.rstrip("\r").split("\t")
        if len(parts) != 3:
            raise DataError(
                f"{path}, line {number}: {len(parts)} fields, expected 3 (SID, title, item id) between tabs."
            )
        sid, title, item_id = parts
        if not sid:
            raise DataError(f"{path}, line {number}: item {item_id!r} has no SID. Add it, or drop the item everywhere.")
        if item_id in line_of:
            raise DataError(f"{path}, line {number}: item {item_id!r} is already on line {line_of[item_id]}. Keep one.")
        line_of[item_id] = number
        sids.append(sid)
        titles.append(title)
    if not sids:
        raise DataError(f"{path}: holds no item; expected lines of SID, title and item id. {WHERE_TO_GET}.")
    return sids, titles, list(line_of)


def _read_items(
    path: Path, info_path: Path, item_ids: Sequence[str], titles: Sequence[str]
) -> tuple[pd.DataFrame, int]:
    """The item table in info order, and how many descriptions could not be parsed."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected an object of item id → title and description, got {type(content).__name__}.")
    strays = set(content) - set(item_ids)
    if strays:
        first = min(strays)
        raise DataError(
            f"{path}: item {first!r} has no line, so no SID, in {info_path} ({len(strays)} such). Add or drop it."
        )
    found_titles, descriptions, records, unparsed = [], [], [], 0
    for item_id, title in zip(item_ids, titles, strict=True):
        record = content.get(item_id)
        if not isinstance(record, dict):
            raise DataError(
                f"{path}: item {item_id!r} of {info_path} is missing or no object. The two must list the same items."
            )
        text, failed = _description(record.get("description"))
        unparsed += failed
        found_titles.append(str(record.get("title") or title))
        descriptions.append(text)
        records.append(record)
    items = pd.DataFrame({"item_id": list(item_ids), "title": found_titles, "description": descriptions})
    return items.assign(**further_columns(pd.DataFrame(records), path, ("title", "description"))), unparsed


def _read_rows(path: Path, index_of: Mapping[str, int], sids: Sequence[str]) -> SplitExamples:
    """The rows of one CSV file, checked cell by cell.

    Args:
        path: The file.
        index_of: Item id to item index.
        sids: SID of each item as text.

    Raises:
        DataError: Naming file, line and column of the first cell that is wrong.
    """
    users: list[str] = []
    histories: list[np.ndarray] = []
    targets: list[int] = []
    rows = csv_rows(path, COLUMNS)
    for line, own in progress(rows, f"reading {path.name}", unit="rows"):
        user, titles, _, ids, item_id, texts, sid = own
        where = f"{path}, line {line}"
        lists = _parsed_lists(where, (titles, ids, texts))
        items = []
        for column, one in (*(("history_item_id", one) for one in lists[1]), ("item_id", item_id)):
            item = index_of.get(str(one))
            if item is None:
                raise DataError(
                    f"{where}, column {column!r}: item {str(one)!r} is not in the info file. "
                    "Use the info file that belongs to these rows."
                )
            items.append(item)
        for column, one, item in zip(
            [*["history_item_sid"] * len(lists[2]), "item_sid"], [*lists[2], sid], items, strict=True
        ):
            if one != sids[item]:
                raise _wrong_sid(f"{where}, column {column!r}: SID {one!r}", str(one), item, index_of, sids)
        users.append(user)
        histories.append(np.array(items[:-1], dtype=np.int32))
        targets.append(items[-1])
    return SplitExamples.of(users, histories, targets)


def _wrong_sid(what: str, sid: str, item: int, index_of: Mapping[str, int], sids: Sequence[str]) -> DataError:
    if sid not in sids:
        return DataError(f"{what} is not in the info file. Use the info file that belongs to these rows.")
    return DataError(f"{what} for item {list(index_of)[item]!r}, but the info file says {sids[item]!r}. Mend one.")


def _parsed_lists(where: str, texts: Sequence[str]) -> list[list[Any]]:
    """The three history columns as lists of one length."""
    lists = []
    for column, text in zip(COLUMNS[1::2], texts, strict=True):
        parsed = _literal(text)
        if not isinstance(parsed, list):
            raise DataError(
                f"{where}, column {column!r}: {text[:80]!r} is not a list. Write it as a Python list, e.g. [1, 2]."
            )
        lists.append(parsed)
    if not len(lists[0]) == len(lists[1]) == len(lists[2]):
        lengths = ", ".join(f"{name} {len(cell)}" for name, cell in zip(COLUMNS[1::2], lists, strict=True))
        raise DataError(f"{where}: the history columns differ in length ({lengths}). Mend the row.")
    if len(lists[1]) > PUBLISHED_HISTORY:
        raise DataError(
            f"{where}: a history of {len(lists[1])} items, expected at most {PUBLISHED_HISTORY}. Keep the newest."
        )
    return lists


def read_published(root: str | os.PathLike[str], category: str) -> Corpus:
    """Read one category of the published layout.

    Item index i is line i of the info file. SIDs in the rows are compared with the info file's as plain text and then
    dropped: the table of semantic IDs is read from `published_index_path`.

    Args:
        root: The folder that holds `train`, `valid`, `test`, `info` and `index`; see `default_root`.
        category: How the files' names begin, e.g. "Industrial_and_Scientific".

    Returns:
        The corpus, split "published, global time 8:1:1", histories of at most 10 items. Its counts are those of
        `corpus_counts` and `check_histories`, `interactions` (each user's rows and first history together),
        `descriptions_unparsed` (list-like descriptions with broken quotes, whose words are kept), `sids` and
        `items_sharing_a_sid`.

    Raises:
        DataError: If a file or column is missing, a cell does not parse, an item or SID is unknown, an SID contradicts
            the info file, history columns differ in length, a split is empty, or the split leaks.
    """
    return read_published_files(published_files(root, category))


def read_published_files(files: Mapping[str, Path]) -> Corpus:
    """The same as `read_published` of the files that `published_files` names."""
    sids, titles, item_ids = _read_info(files["info"])
    index_of = {item_id: index for index, item_id in enumerate(item_ids)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, on odd escapes inside titles that are parsed as literals
        items, unparsed = _read_items(files["items"], files["info"], item_ids, titles)
        train, valid, test = (_read_rows(files[split], index_of, sids) for split in SPLITS)
    corpus = Corpus(items, train, valid, test, split="published, global time 8:1:1", max_history=PUBLISHED_HISTORY)
    check_filled({split: len(rows) for split, rows in corpus.splits().items()}, str(files["info"].parent.parent))
    first: dict[str, int] = {}  # of each user, the length of the first example's history
    for rows in (test, valid, train):
        firsts = np.unique(rows.user_numbers, return_index=True)[1]
        first.update(zip(rows.users[firsts].tolist(), rows.lengths[firsts].tolist(), strict=True))
    _, sharing = np.unique(np.array(sids), return_counts=True)
    counts = {
        **corpus_counts(corpus),
        "interactions": len(train) + len(valid) + len(test) + sum(first.values()),
        "descriptions_unparsed": unparsed,
        "sids": len(sharing),
        "items_sharing_a_sid": int(sharing[sharing > 1].sum()),
        **check_histories(corpus),
    }
    return replace(corpus, counts=counts)


def check_histories(corpus: Corpus) -> dict[str, int]:
    """Check by the histories alone that no split contains the targets of a later one.

    A user's examples are windows of one growing list of items, and a history shorter than `max_history` gives its
    example's position in that list. An example whose position an earlier split has already reached leaks: a training
    example of that user holds its target. This cannot happen in a split by time nor in leave last out, so it is an
    error. Full histories do not give their position; there an example counts as a possible leak where some example of
    an earlier split continues it (its history is this example's history and target) and is not itself continued by it.
    A user who buys the same things over and over can bring that about in a right split, so it is only counted.

    Args:
        corpus: Examples of each split in the order in which they happened.

    Returns:
        `continued_rows`: examples whose history is exactly the same user's previous example plus its target;
        `broken_rows`: examples that have a previous example and do not continue it (examples in between are missing);
        `possible_leaks`: examples of valid and test with a full history that an example of an earlier split continues.

    Raises:
        DataError: On the first example that leaks, naming split, example and user.
    """
    limit = corpus.max_history
    newest: dict[str, tuple[int, ...]] = {}  # the user's next history
    reached: dict[str, int] = {}  # position of the user's farthest example in earlier splits, at most `limit`
    full: dict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)  # (user, full history) → targets there
    counts = {"continued_rows": 0, "broken_rows": 0, "possible_leaks": 0}
    for split, table in corpus.splits().items():
        rows = [(user, tuple(history.tolist()), target) for user, history, target in table]
        for number, (user, history, target) in enumerate(rows, start=1):
            after = (*history, target)[-limit:]
            if len(history) < limit and reached.get(user, -1) >= len(history):
                raise DataError(
                    f"the split leaks: {split} example {number} (user {user!r}, {len(history)} items of history) "
                    f"precedes an example of the same user in an earlier split. "
                    f"Split again: {split} examples must come later."
                )
            if len(history) == limit:
                counts["possible_leaks"] += any(
                    (*after, later)[-limit:] != history for later in full.get((user, after), ())
                )
            if user in newest:
                counts["continued_rows" if newest[user] == history else "broken_rows"] += 1
            newest[user] = after
        for user, history, target in rows:
            reached[user] = max(reached.get(user, -1), len(history))
            if len(history) == limit:
                full[user, history].add(target)
    return counts


def corpus_counts(corpus: Corpus) -> dict[str, Any]:
    """Numbers that every corpus reports.

    Returns:
        `{split}_rows`; `rows`; `users` with at least one example; `items`; `items_without_description`; for valid and
        test `{split}_cold_targets`, examples whose target is that of no training example, and `{split}_new_users`,
        examples whose user has no training example; `full_histories`, examples with `max_history` items.
    """
    splits = corpus.splits()
    users = {split: set(rows.users.tolist()) for split, rows in splits.items()}
    counts: dict[str, Any] = {f"{split}_rows": len(rows) for split, rows in splits.items()}
    counts["rows"] = sum(len(rows) for rows in splits.values())
    counts["users"] = len(set().union(*users.values()))
    counts["items"] = corpus.n_items
    counts["items_without_description"] = int((corpus.items["description"] == "").sum())
    for split in SPLITS[1:]:
        counts[f"{split}_cold_targets"] = int((corpus.popularity()[splits[split].targets] == 0).sum())
        counts[f"{split}_new_users"] = sum(user not in users["train"] for user in splits[split].users)
    counts["full_histories"] = sum(int((rows.lengths >= corpus.max_history).sum()) for rows in splits.values())
    return counts


def with_times_by_order(corpus: Corpus) -> Corpus:
    """The same corpus with times derived from the order of its examples.

    Adjacent examples of one user are taken to have one timestamp, all others different ones: the number, from 0 through
    all splits, of the first example of the same time. So the later is the greater and the same time the same number,
    and distances mean nothing. The time of a history's newest item is unknown before a user's first example, and where
    the history does not end with the target of the user's previous example, so that examples are missing.
    """
    latest: dict[str, tuple[int, int, int]] = {}  # of each user's latest example: its number, time and target
    number, splits = 0, []
    for rows in (corpus.train, corpus.valid, corpus.test):
        times = RowTimes(np.empty(len(rows), dtype=np.int64), np.full(len(rows), NO_TIME))
        examples = zip(rows.users.tolist(), rows.newest.tolist(), rows.targets.tolist(), strict=True)
        for row, (user, newest, target) in enumerate(examples):
            latest_number, latest_time, latest_target = latest.get(user, (-2, NO_TIME, -2))
            times.time[row] = time = latest_time if latest_number == number - 1 else number
            times.previous[row] = latest_time if latest_target == newest else NO_TIME
            latest[user] = (number, time, target)
            number += 1
        splits.append(replace(rows, times=times))
    train, valid, test = splits
    return replace(corpus, train=train, valid=valid, test=test)


# The writer of the same layout.

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
