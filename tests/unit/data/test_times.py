"""Times of examples: a corpus's own, those of a file, and what is wrong with either."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.small_corpus import corpus_of, make_corpus, random_corpus

from minionerec.core.errors import DataError
from minionerec.data.audit import audit_examples
from minionerec.data.corpus import Corpus
from minionerec.data.names import SPLITS
from minionerec.data.rows import SplitExamples
from minionerec.data.times import NO_TIME, RowTimes
from minionerec.data.times_file import with_times_of_file

HEADER = "split,row,timestamp,previous_timestamp\n"


def rows_of(*times):
    count, columns = len(times), np.array(times, dtype=np.int64).T
    return SplitExamples.of(["u"] * count, [[0]] * count, [1] * count, RowTimes(*columns))


def timed_corpus():
    tables = {"train": rows_of((5, 5), (7, 5)), "valid": rows_of((9, 7)), "test": rows_of((9, NO_TIME), (12, 12))}
    return replace(make_corpus(["lamp", "chair"]), **tables)


def file_of(folder, text):
    path = folder / "times.csv"
    path.write_text(text)
    return path


def test_timestamps_of_rows_that_are_known():
    times = RowTimes(np.array([5, 7, NO_TIME, 9]), np.array([5, 6, 3, NO_TIME]))
    assert times.same.tolist() == [True, False, False, False]
    assert times.later.tolist() == [False, True, False, False]
    assert times.known.tolist() == [True, True, False, False]


def test_times_survive_writing(tmp_path):
    timed_corpus().save(tmp_path / "corpus", config={}, inputs={})
    corpus = Corpus.load(tmp_path / "corpus")
    assert corpus.has_times
    test = corpus.test.times
    assert (test.time.tolist(), test.previous.tolist()) == ([9, 12], [NO_TIME, 12])
    assert corpus.train.times.same.tolist() == [True, False]
    joined = corpus.training_on(["valid", "test"])
    assert joined.train.times.time.tolist() == [5, 7, 9, 9, 12] and joined.train.times.time.dtype == np.int64
    for split, rows in corpus.splits().items():
        before = timed_corpus().splits()[split]
        assert rows.times.time.tolist() == before.times.time.tolist()
        assert rows.times.previous.tolist() == before.times.previous.tolist()


# Of v an example is missing: the last item of its test history is the target of none.
UNTIMED = (
    [("u", [0], 1), ("u", [0, 1], 0), ("v", [1], 2)],
    [("u", [0, 1, 0], 2), ("v", [1, 2], 0)],
    [("u", [0, 1, 0, 2], 1), ("v", [1, 2, 0, 1], 2), ("w", [], 1)],
)


def given(folder, *lines, corpus=None):
    """The times that each split gets from lines of a file."""
    corpus = corpus or corpus_of(*UNTIMED, n_items=3)
    found = with_times_of_file(corpus, file_of(folder, HEADER + "".join(f"{line}\n" for line in lines)))
    assert found.has_times and all(
        [list(map(str, row)) for row in rows] == [list(map(str, row)) for row in corpus.rows(split)]
        for split, rows in found.splits().items()
    )
    return {split: list(zip(*vars(rows.times).values(), strict=True)) for split, rows in found.splits().items()}


def test_an_interaction_has_the_time_that_either_example_gives(tmp_path):
    lines = ["test,0,9,7", "valid,1, ,3", "test,2,5,", "valid,0,7,6", "test,1,9,8"]
    assert given(tmp_path, *lines) == {
        "train": [(NO_TIME, NO_TIME), (6, NO_TIME), (3, NO_TIME)],
        "valid": [(7, 6), (NO_TIME, 3)],
        "test": [(9, 7), (9, 8), (5, NO_TIME)],
    }
    # Those that one example lacks are in the other, in either direction.
    lines = ["test,0,,7", "test,1,,", "test,2,,", "train,2,2,", "train,1,6,5", "train,0,,0"]
    assert given(tmp_path, *lines) == {
        "train": [(5, 0), (6, 5), (2, NO_TIME)],
        "valid": [(7, 6), (NO_TIME, 2)],
        "test": [(NO_TIME, 7), (NO_TIME, NO_TIME), (NO_TIME, NO_TIME)],
    }


def test_times_of_a_file_are_kept_and_leave_the_sequences_as_they_are(tmp_path):
    corpus = replace(random_corpus([f"i{n}" for n in range(9)], 3, gaps=0.2), counts={})
    lines = [
        f"{split},{row},{time},{'' if before == NO_TIME else before}"
        for split, rows in corpus.splits().items()
        for row, (time, before) in enumerate(zip(*vars(rows.times).values(), strict=True))
        if split != "train"
    ]
    plain = replace(corpus, **{split: replace(rows, times=None) for split, rows in corpus.splits().items()})
    timed = with_times_of_file(plain, file_of(tmp_path, HEADER + "\n".join(lines)))
    for name, each in {"plain": plain, "timed": timed}.items():
        each.save(tmp_path / name, config={}, inputs={})
    tables = [pq.read_table(tmp_path / name / "sequences" / "00000.parquet") for name in ("plain", "timed")]
    assert tables[1].drop_columns(["times"]).equals(tables[0])
    read = Corpus.load(tmp_path / "timed")
    for split in ("valid", "test"):
        for name in ("time", "previous"):
            assert getattr(read.rows(split).times, name).tolist() == getattr(corpus.rows(split).times, name).tolist()
    known = read.train.times.time != NO_TIME
    assert known.any() and (read.train.times.time[known] == corpus.train.times.time[known]).all()
    assert [bool(read.rows(split).times.known.any()) for split in SPLITS] == [False, True, True]
    assert not Corpus.load(tmp_path / "plain").has_times


def test_columns_come_in_any_order_and_a_split_may_be_left_out(tmp_path):
    path = file_of(tmp_path, "more,previous_timestamp,row,split,timestamp\n,3,0,test,4\n\n, ,0,valid,-8\n")
    corpus = with_times_of_file(make_corpus(["lamp"]), path)
    assert [rows.times.time.tolist() for rows in corpus.splits().values()] == [[NO_TIME], [-8], [4]]
    assert [rows.times.previous.tolist() for rows in corpus.splits().values()] == [[NO_TIME], [NO_TIME], [3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty. Expected a header and a row a line"),
        ("split,row,row,timestamp,previous_timestamp\n", "column 'row' occurs twice"),
        (f"{HEADER}test,0,4\n", "line 2: 3 cells, expected 4"),
        (f"{HEADER}test,0,4,3\ntests,0,4,3\n", "line 3, column 'split': 'tests' is none of train, valid, test"),
        (f"{HEADER}test,-1,4,3\n", "line 2, column 'row': -1, but split 'test' has examples 0 to 2"),
        (f"{HEADER}test,3,4,3\n", "line 2, column 'row': 3, but split 'test' has examples 0 to 2"),
        (f"{HEADER}test,1,4,3\ntest,1,4,3\n", "line 3: example 1 of split 'test' is already on line 2"),
        (f"{HEADER}test,1,4,3\n", "names 1 of the 3 examples of split 'test'"),
        (f"{HEADER}test,1,4.5,3\n", "column 'timestamp': '4.5' is no whole number of 64 bits"),
        (f"{HEADER}test,1,4,1e3\n", "column 'previous_timestamp': '1e3' is no whole"),
        (f"{HEADER}test,1,4,-9223372036854775808\n", "'-9223372036854775808' is no whole number of 64 bits"),
        (f"{HEADER}test,1,4,9223372036854775808\n", "'9223372036854775808' is no whole number of 64 bits"),
        (f"{HEADER}test,,4,3\n", "column 'row': '' is no whole number"),
        (f'{HEADER}test,0,4,"3\n', 'a quote (") is opened and never closed'),
        (HEADER, "names no example"),
        (f"{HEADER}valid,0,7,6\n", "names 1 of the 2 examples of split 'valid'"),
        (
            f"{HEADER}test,2,5,5\n",
            "column 'previous_timestamp': 5, but the history of example 2 of split 'test' is empty",
        ),
        (
            f"{HEADER}valid,0,7,6\ntest,0,9,8\n",
            "line 3: gives 8 as the time of an interaction of example 0 of split 'test', which has 7 on line 2.",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, text, message):
    path = file_of(tmp_path, text)
    with pytest.raises(DataError) as caught:
        with_times_of_file(corpus_of(*UNTIMED, n_items=3), path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_wrong_split(tmp_path):
    with pytest.raises(DataError, match=r"no such file\. Give the path of a table"):
        with_times_of_file(make_corpus(["lamp"]), tmp_path / "none.csv")
    with pytest.raises(DataError, match="unknown split 'tests'"):
        timed_corpus().rows("tests")


def test_the_published_times_fit_the_published_rows(industrial, data_root):
    path = data_root / "Amazon" / "times" / "Industrial_and_Scientific.times.csv"
    if not path.is_file():
        pytest.skip("the file of times is not there")
    corpus = with_times_of_file(industrial, path)
    found = {split: corpus.rows(split).times for split in SPLITS}
    assert not found["train"].known.any() and (found.pop("train").time != NO_TIME).sum() == 2625
    assert all(times.known.all() for times in found.values())
    assert found["test"].same.mean() == pytest.approx(0.39, abs=0.005)
    audit = audit_examples(corpus, ["test"], found)
    assert (audit.pairs, audit.ties) == (4533, found["test"].same.sum())
