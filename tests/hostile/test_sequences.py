"""A corpus's sequences from a hostile hand: each flaw is one line with the file, or the corpus, and the remedy."""

import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.small_corpus import triples_of
from support.small_shop import copied, sign, stage

from minionerec.core.errors import ArtefactError
from minionerec.data.corpus import Corpus
from minionerec.data.shards import REMEDY, shard_files

FILE = "sequences/00000.parquet"
LISTS = ("items", "times", "rows", "splits")


def rewrite(file, change):
    pq.write_table(change(pq.read_table(file)), file)


def put(table, name, values, kind=None):
    """The table with other values in a column."""
    kind = table.schema.field(name).type if kind is None else kind
    return table.set_column(table.column_names.index(name), name, pa.array(values, kind))


def cast(name, kind):
    return lambda table: put(table, name, table[name].to_pylist(), kind)


def one(name, value, position=0):
    """Another value at a position of the second sequence."""

    def change(table):
        lists = table[name].to_pylist()
        lists[1][position] = value
        return put(table, name, lists)

    return change


def each(name, change):
    """Another list in place of each."""
    return lambda table: put(table, name, [change(own) for own in table[name].to_pylist()])


def every(name, value):
    return each(name, lambda own: [value] * len(own))


def instead(name, value):
    """Another list, or user, in the second row of the file."""
    return lambda table: put(table, name, [table[name][0].as_py(), value, *table[name].to_pylist()[2:]])


def longer(name):
    return each(name, lambda own: [*own, own[-1]])


def moved(name):
    """As many values in all, one of them in the list before."""

    def change(table):
        first, second, *others = table[name].to_pylist()
        return put(table, name, [[*first, second[0]], second[1:], *others])

    return change


def renumbered(number):
    """Where training row 5 is, another number."""

    def change(table):
        lists, splits = table["rows"].to_pylist(), table["splits"].to_pylist()
        for row, marks in zip(lists, splits, strict=True):
            for position, (found, split) in enumerate(zip(row, marks, strict=True)):
                if (found, split) == (5, 0):
                    row[position] = number
                    marks[position] = -1 if number < 0 else split
        return put(put(table, "rows", lists), "splits", splits)

    return change


FLAWS = {
    **{f"no {name}": (lambda table, name=name: table.drop_columns([name]), f"has 0 columns '{name}'") for name in
       ("user", "items", "rows", "splits")},
    **{f"{name} twice": (lambda table, name=name: table.append_column(name, table[name]), f"has 2 columns '{name}'")
       for name in ("user", *LISTS)},
    **{f"{name} as texts": (lambda table, name=name: put(table, name, ["1 2"] * len(table), pa.string()),
                            f"column '{name}' holds string; expected lists of int") for name in LISTS},
    **{f"{name} as numbers": (lambda table, name=name: put(table, name, range(len(table)), pa.int64()),
                              f"column '{name}' holds int64; expected") for name in ("user", *LISTS)},
    **{f"{name} as fractions": (cast(name, pa.list_(pa.float64())), f"column '{name}' holds list<.*double>; expected")
       for name in LISTS},
    **{f"{name} of a wider type": (cast(name, pa.list_(pa.int64())), f"column '{name}' holds list<.*int64>; expected")
       for name in ("items", "rows", "splits")},
    "unsigned times": (cast("times", pa.list_(pa.uint64())), "column 'times' holds list<.*uint64>; expected lists"),
    "times of a narrower type": (
        lambda table: put(table, "times", [[1] * len(each) for each in table["items"]], pa.list_(pa.int32())),
        "column 'times' holds list<.*int32>; expected lists of int64",
    ),
    "users as bytes": (cast("user", pa.binary()), "column 'user' holds binary; expected texts"),
    "users as lists": (
        lambda table: put(table, "user", [[each] for each in table["user"].to_pylist()], pa.list_(pa.string())),
        "column 'user' holds list<.*string>; expected texts",
    ),
    "a user is missing": (instead("user", None), "column 'user' has missing values"),
    "no user": (lambda table: put(table, "user", [None] * len(table)), "column 'user' has missing values"),
    **{f"no list of {name}": (instead(name, None), f"column '{name}' has missing values") for name in LISTS},
    **{f"a gap in {name}": (one(name, None), f"column '{name}' has missing values") for name in LISTS},
    **{f"only gaps in {name}": (every(name, None), f"column '{name}' has missing values") for name in LISTS},
    "a gap in each list of times": (each("times", lambda own: [None, *own[1:]]), "column 'times' has missing values"),
    "no last list of times": (
        lambda table: put(table, "times", [*table["times"].to_pylist()[:-1], None]), "column 'times' has missing values"
    ),
    "an item beyond the catalogue": (one("items", 12), "column 'items' holds 12; expected 0 to 11"),
    "items beyond the catalogue": (every("items", 99), "column 'items' holds 99; expected 0 to 11"),
    "an item below zero": (one("items", -1), "column 'items' holds -1; expected 0 to 11"),
    "a row below nobody's": (one("rows", -2, -1), "column 'rows' holds -2; expected -1 to"),
    "a split that is none": (one("splits", 3, -1), "column 'splits' holds 3; expected -1 to 2"),
    "a split below nobody's": (one("splits", -128, -1), "column 'splits' holds -128; expected -1 to 2"),
    "items longer than the others": (longer("items"), "has lists of other lengths than 'items'"),
    **{f"{name} longer than items": (longer(name), f"column '{name}' has lists of other lengths than 'items'")
       for name in ("times", "rows", "splits")},
    **{f"{name} in another's list": (moved(name), f"column '{name}' has lists of other lengths than 'items'")
       for name in ("times", "rows", "splits")},
    "times shorter than items": (each("times", lambda own: own[:-1]), "has lists of other lengths than 'items'"),
    "an empty list": (instead("rows", []), "column 'rows' has lists of other lengths than 'items'"),
    "a row of no split": (one("splits", -1, -1), "'rows' and 'splits' disagree"),
    "a split without a row": (one("rows", -1, -1), "'rows' and 'splits' disagree"),
    "a first item of a split": (one("splits", 0), "'rows' and 'splits' disagree"),
}  # fmt: skip


def refused(folder, reported, named):
    """What reading the corpus says: one line that begins with what it names and ends with the remedy."""
    with pytest.raises(ArtefactError, match=reported) as wrong:
        Corpus.load(folder)
    line = str(wrong.value)
    assert line.startswith(f"{named}: ") and line.endswith(REMEDY) and "\n" not in line, line
    return line


@pytest.fixture
def folder(shop, tmp_path):
    return shutil.copytree(shop / "corpus", tmp_path / "corpus")


@pytest.fixture
def parts(shop, tmp_path, monkeypatch):
    """The same corpus in several files."""
    monkeypatch.setattr("minionerec.data.shards.SHARD", 60)
    Corpus.load(shop / "corpus").save(tmp_path / "parts", config={}, inputs={})
    assert len(shard_files(tmp_path / "parts")) > 2
    return tmp_path / "parts"


def content(corpus):
    return [triples_of(rows) for rows in corpus.splits().values()]


def test_what_is_rewritten_without_a_flaw_is_read_as_before(shop, folder, parts):
    before = content(Corpus.load(folder))
    rewrite(folder / FILE, lambda table: cast("items", pa.list_(pa.int32()))(table))
    sign(folder)
    assert content(Corpus.load(folder)) == content(Corpus.load(parts)) == before


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_file_of_another_form_is_one_line(folder, flaw):
    change, reported = FLAWS[flaw]
    rewrite(folder / FILE, change)
    with pytest.raises(ArtefactError, match=f"{FILE}: differs from manifest.json"):
        Corpus.load(folder)
    sign(folder)
    refused(folder, reported, folder / FILE)


@pytest.mark.parametrize("read", ["chains", "blocks"])
@pytest.mark.parametrize("flaw", ["users as bytes", "a gap in rows", "items beyond the catalogue", "an empty list"])
def test_a_block_of_another_form_is_one_line(parts, flaw, read):
    change, reported = FLAWS[flaw]
    rewrite(parts / FILE, change)
    sign(parts)
    line = refused(parts, reported, parts / FILE)
    with pytest.raises(ArtefactError, match=re.escape(line)):
        list(getattr(Corpus.load(parts, block=1), read)())


@pytest.mark.parametrize("flaw", ["no items", "an item beyond the catalogue", "a user is missing", "a row of no split"])
def test_a_stage_says_what_the_reader_says(shop, tmp_path, flaw):
    folder = copied(shop, tmp_path / "shop", ("new",))
    rewrite(folder / "corpus" / FILE, FLAWS[flaw][0])
    sign(folder / "corpus")
    reported = stage(folder, "eval-beam", "--output", "new").reported
    assert re.search(f"corpus/{FILE}: .*{FLAWS[flaw][1]}.*{re.escape(REMEDY)}$", reported), reported


def test_a_file_that_is_missing_or_torn_is_one_line(folder):
    content = (folder / FILE).read_bytes()
    for bad in (b"", b"PAR1", content[:-1], content[: len(content) // 2], b"PAR1" + content[9:], b"user,items\n"):
        (folder / FILE).write_bytes(bad)
        sign(folder)
        refused(folder, "cannot be read as parquet", folder / FILE)
    (folder / FILE).unlink()
    (folder / FILE).mkdir()
    (folder / FILE / "file").write_bytes(b"")
    sign(folder)
    with pytest.raises(ArtefactError, match=f"{folder / FILE}: is not listed in manifest.json"):
        Corpus.load(folder)
    shutil.rmtree(folder / FILE)
    sign(folder)
    refused(folder, "holds no sequences; it may be of an earlier version", folder)


@pytest.mark.parametrize("number", [-1, 6, 90, 2**31 - 1])
def test_a_row_that_is_missing_or_there_twice_is_one_line(folder, parts, number):
    """Training row 5 is nobody's, or has the number of another, or one that is too large."""
    rewrite(folder / FILE, renumbered(number))
    sign(folder)
    refused(folder, f"train example 5 is in none of its files, {FILE}", folder)
    for file in shard_files(parts):
        rewrite(file, renumbered(number))
    sign(parts)
    with pytest.raises(ArtefactError, match=r"parts: holds 0 of 1 train examples"):
        Corpus.load(parts, block=1).chosen("train", [5])


def test_a_sequence_that_is_missing_or_there_twice_is_one_line(folder):
    table = pq.read_table(folder / FILE)
    for rows in (list(range(1, len(table))), [0, *range(len(table))]):
        pq.write_table(table.take(rows), folder / FILE)
        sign(folder)
        refused(folder, rf"(train|valid|test) example \d+ is in none of its files, {FILE}", folder)


def test_a_file_among_several_is_missing_or_one_too_many(parts):
    file = shard_files(parts)[1]
    before = file.read_bytes()
    file.unlink()
    with pytest.raises(ArtefactError, match=r"sequences/00001.parquet: listed in manifest.json but missing"):
        Corpus.load(parts)
    sign(parts)
    refused(parts, rf"(train|valid|test) example \d+ is in none of its files, {FILE} to \d+.parquet", parts)
    file.write_bytes(before)
    sign(parts)
    Corpus.load(parts)
    stray = parts / "sequences/00099.parquet"
    stray.write_bytes(before)
    with pytest.raises(ArtefactError, match=r"00099.parquet: is not listed in manifest.json"):
        Corpus.load(parts)
    sign(parts)
    refused(parts, rf"(train|valid|test) example \d+ is in none of its files, {FILE} to \d+.parquet", parts)
    for file in shard_files(parts):
        file.unlink()
    sign(parts)
    refused(parts, "holds no sequences; it may be of an earlier version", parts)


def test_times_in_some_files_only_are_one_line(parts):
    rewrite(shard_files(parts)[1], lambda table: table.drop_columns(["times"]))
    sign(parts)
    refused(parts, "some files of its sequences have times, and some have none", parts)


def test_a_flaw_names_the_file_among_several(parts):
    file = shard_files(parts)[2]
    rewrite(file, FLAWS["an item beyond the catalogue"][0])
    sign(parts)
    refused(parts, FLAWS["an item beyond the catalogue"][1], file)
