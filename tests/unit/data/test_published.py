"""The published layout: a hand-made one with every kind of damage, and the real one where it is at hand."""

import ast
import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minionerec.core.errors import DataError
from minionerec.data.published import (
    COLUMNS,
    _literal,
    default_root,
    published_files,
    published_index_path,
    read_published,
)

SIDS = ["<a_1><b_1>", "<a_1><b_2>", "<a_2><b_1>", "<a_2><b_1>"]
TITLES = ["Red pot", "Blue 'pot'", 'Pan, 12"', "Lid"]


def row(user, history, target, **changes):
    cells = {
        "user_id": user,
        "history_item_title": str([TITLES[item] for item in history]),
        "item_title": TITLES[target],
        "history_item_id": str(history),
        "item_id": str(target),
        "history_item_sid": str([SIDS[item] for item in history]),
        "item_sid": SIDS[target],
    }
    return {**cells, **changes}


def write_rows(root, split, rows, columns=COLUMNS):
    (root / split).mkdir(parents=True, exist_ok=True)
    with open(root / split / "Pots_5.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def root(tmp_path):
    """A right layout of four items and two users."""
    write_rows(tmp_path, "train", [row("A1", [0], 1), row("A2", [2], 3)])
    write_rows(tmp_path, "valid", [row("A1", [0, 1], 2)])
    write_rows(tmp_path, "test", [row("A1", [0, 1, 2], 2)])
    (tmp_path / "info").mkdir()
    lines = [f"{sid}\t{title}\t{item}" for item, (sid, title) in enumerate(zip(SIDS, TITLES, strict=True))]
    (tmp_path / "info" / "Pots_5.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "index").mkdir()
    descriptions = ["['Holds soup.', \"It's red.\"]", "", "['A 12' pan', 'heavy']", "plain words"]
    items = {
        str(item): {"title": TITLES[item], "description": description, "brand": "", "categories": ""}
        for item, description in reversed(list(enumerate(descriptions)))
    }
    (tmp_path / "index" / "Pots.item.json").write_text(json.dumps(items), encoding="utf-8")
    (tmp_path / "index" / "Pots.index.json").write_text("{}", encoding="utf-8")
    return tmp_path


CELLS = st.text(st.sampled_from("a7é ,[]'\"\\\n\r\0"), max_size=4)


@given(
    st.one_of(st.lists(CELLS), st.lists(st.integers(-2, 10**20))).map(str)
    | st.lists(st.sampled_from(["[", "]", "'", "', '", ", ", "0", "07", "a", "\\", "\n"])).map("".join)
)
def test_lists_are_those_of_python(text):
    try:
        wanted = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        wanted = None
    assert _literal(text) == wanted


def test_rows_items_and_counts(root):
    corpus = read_published(root, "Pots")
    assert corpus.items["item_id"].tolist() == ["0", "1", "2", "3"]
    assert corpus.items["title"].tolist() == TITLES
    assert corpus.items["description"].tolist() == ["Holds soup. It's red.", "", "A 12' pan heavy", "plain words"]
    assert corpus.train.users.tolist() == ["A1", "A2"]
    assert [history.tolist() for history in corpus.test.histories] == [[0, 1, 2]]
    assert corpus.train.targets.tolist() == [1, 3]
    assert (corpus.split, corpus.max_history) == ("published, global time 8:1:1", 10)
    expected = {"rows": 4, "users": 2, "items": 4, "interactions": 6, "sids": 3, "items_sharing_a_sid": 2}
    expected |= {"items_without_description": 1, "descriptions_unparsed": 1, "continued_rows": 2, "broken_rows": 0}
    assert {name: corpus.counts[name] for name in expected} == expected


def test_index_path(root):
    assert published_index_path(root, "Pots") == root / "index" / "Pots.index.json"


def test_the_environment_names_the_root(monkeypatch):
    monkeypatch.setenv("MINIONEREC_DATA", "/somewhere")
    assert default_root() == Path("/somewhere/Amazon")
    monkeypatch.delenv("MINIONEREC_DATA")
    assert default_root() == Path("data/Amazon")


def test_missing_files_say_where_to_get_them(root):
    with pytest.raises(DataError, match=r"train/Hats\*\.csv: no such file\. data/README\.md says where to get"):
        read_published(root, "Hats")


def test_two_files_for_one_category(root):
    (root / "test" / "Pots_6.csv").write_text("")
    with pytest.raises(DataError, match=r"2 files match \(Pots_5\.csv, Pots_6\.csv\)"):
        published_files(root, "Pots")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("history_item_id", "[0, 1", r"'\[0, 1' is not a list\. Write it as a Python"),
        ("history_item_id", "__import__('os').getcwd()", ".* is not a list"),
        ("history_item_title", "Red pot", "'Red pot' is not a list"),
        ("history_item_title", "{'a': 1}", ".* is not a list"),
        ("item_id", "17", "item '17' is not in the info file"),
        ("history_item_id", "[0, 17]", "item '17' is not in the info file"),
        ("item_sid", "<a_9><b_9>", "SID '<a_9><b_9>' is not in the info file"),
        (
            "history_item_sid",
            "['<a_1><b_1>', '<a_1><b_1>']",
            "SID '<a_1><b_1>' for item '1', but the info file says '<a_1><b_2>'",
        ),
        ("history_item_sid", "[['<a_1>'], 5]", r"SID \['<a_1>'\] is not in the info"),
    ],
)
def test_a_bad_cell_is_named_by_line_and_column(root, column, value, message):
    write_rows(root, "train", [row("A1", [0], 1), row("A1", [0, 1], 2, **{column: value})])
    with pytest.raises(DataError, match=f"line 3, column '{column}': {message}"):
        read_published(root, "Pots")


def test_histories_of_different_lengths(root):
    write_rows(root, "train", [row("A1", [0], 1), row("A1", [0, 1], 2, history_item_title="['Red pot']")])
    message = r"line 3: the history columns differ in length \(history_item_title 1, history_item_id 2, history_"
    with pytest.raises(DataError, match=message):
        read_published(root, "Pots")


def test_a_row_with_too_few_cells(root):
    with open(root / "train" / "Pots_5.csv", "a") as file:
        file.write("A9,[]\n")
    with pytest.raises(DataError, match=r"line 4: 2 cells, expected 7"):
        read_published(root, "Pots")


TWO_LINES = row("A1", [0], 1, item_title="two\nlines")  # of a file, which are counted as an editor does


@pytest.mark.parametrize(
    ("split", "rows", "message"),
    [
        ("valid", None, r"valid/Pots_5\.csv: column 'item_sid' is missing; it has user_id"),
        ("valid", [], r"split 'valid' holds no example \(train 2, valid 0, test 1\)"),
        ("train", [TWO_LINES, row("A2", [2], 3, item_id="17")], "line 4, column 'item_id': item '17'"),
        ("train", [row("A1", [0] * 11, 1)], "line 2: a history of 11 items, expected at most 10"),
        ("train", [row("A1", [0, 1, 2, 2], 3)], r"leaks: valid example 1 \(user 'A1', 2 items of history\)"),
    ],
)
def test_files_that_are_no_splits(root, split, rows, message):
    columns = COLUMNS if rows is not None else [name for name in COLUMNS if name != "item_sid"]
    write_rows(root, split, rows or [], columns)
    with pytest.raises(DataError, match=message):
        read_published(root, "Pots")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<a_1>\tRed pot\n", "line 1: 2 fields, expected 3"),
        ("<a_1>\tRed pot\t0\n\tLid\t1\n", "line 2: item '1' has no SID"),
        ("<a_1>\tRed pot\t0\n<a_2>\tLid\t0\n", "line 2: item '0' is already on line 1"),
        ("\n", "holds no item"),
    ],
)
def test_a_bad_info_file(root, text, message):
    (root / "info" / "Pots_5.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        read_published(root, "Pots")


def test_info_and_items_must_list_the_same_items(root):
    path = root / "index" / "Pots.item.json"
    items = json.loads(path.read_text())
    path.write_text(json.dumps({**items, "8": items["0"]}))
    with pytest.raises(DataError, match=r"item '8' has no line, so no SID, in .*Pots_5\.txt \(1 such\)"):
        read_published(root, "Pots")
    del items["2"]
    path.write_text(json.dumps(items))
    with pytest.raises(DataError, match=r"item '2' of .* is missing or no object"):
        read_published(root, "Pots")


def test_industrial_has_the_published_counts(industrial):
    expected = {"train_rows": 36_259, "valid_rows": 4_532, "test_rows": 4_533, "users": 7_694, "items": 3_686}
    expected |= {"interactions": 53_018, "sids": 3_670, "items_sharing_a_sid": 31}
    expected |= {"broken_rows": 0, "possible_leaks": 0}
    assert {name: industrial.counts[name] for name in expected} == expected


def test_industrial_rows_as_they_stand_in_the_file(industrial):
    """Every row and item against a plain reading; nothing is evaluated but number lists, as JSON."""
    for split, path in published_files(default_root(), "Industrial_and_Scientific").items():
        if path.suffix != ".csv":
            continue
        with open(path, newline="", encoding="utf-8") as file:
            records = list(csv.DictReader(file))
        rows = industrial.rows(split)
        assert rows.users.tolist() == [record["user_id"] for record in records]
        assert rows.targets.tolist() == [int(record["item_id"]) for record in records]
        assert [h.tolist() for h in rows.histories] == [json.loads(record["history_item_id"]) for record in records]
        titles = industrial.items["title"].to_numpy()
        assert titles[rows.targets].tolist() == [record["item_title"] for record in records]
