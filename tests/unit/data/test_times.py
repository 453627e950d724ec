"""Times of rows: a corpus's own, those of a file, and what is wrong with either."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.small_corpus import make_corpus
from support.small_shop import sign

from minionerec.core.errors import ArtefactError, DataError
from minionerec.data.audit import audit_examples
from minionerec.data.corpus import Corpus
from minionerec.data.names import SPLITS
from minionerec.data.rows import SplitExamples
from minionerec.data.times import NO_TIME, RowTimes, timed_examples

HEADER = "split,row,timestamp,previous_timestamp\n"


def rows_of(*times):
    """Rows with these (time, previous time) pairs."""
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
    test = timed_examples(corpus, "test").times
    assert (test.time.tolist(), test.previous.tolist()) == ([9, 12], [NO_TIME, 12])
    assert timed_examples(corpus, "train").times.same.tolist() == [True, False]
    joined = corpus.training_on(["valid", "test"])
    assert joined.train.times.time.tolist() == [5, 7, 9, 9, 12] and joined.train.times.time.dtype == np.int64
    for split, rows in corpus.splits().items():
        before = timed_corpus().splits()[split]
        assert rows.times.time.tolist() == before.times.time.tolist()
        assert rows.times.previous.tolist() == before.times.previous.tolist()


def test_a_corpus_without_times_reads_a_file(tmp_path, caplog):
    corpus = make_corpus(["lamp"])
    assert not corpus.has_times and timed_examples(corpus, "test").times is None
    path = file_of(tmp_path, "more,previous_timestamp,row,split,timestamp\n,3,0,test,4\n\n, ,0,valid,-8\n")
    assert timed_examples(corpus, "train", path).times is None
    test, valid = (timed_examples(corpus, split, path).times for split in ("test", "valid"))
    assert (test.time.tolist(), test.previous.tolist()) == ([4], [3])
    assert (valid.time.tolist(), valid.previous.tolist()) == ([-8], [NO_TIME])
    caplog.set_level("INFO")
    assert timed_examples(timed_corpus(), "test", path).times.time.tolist() == [9, 12]
    assert f"times of its own: {path} is not read" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: column 'split' is missing; expected split, row, timestamp, previous_timestamp"),
        ("split,row,row,timestamp,previous_timestamp\n", "line 1: column 'row' is duplicated"),
        (f"{HEADER}test,0,4\n", "line 2: 3 cells, expected 4"),
        (f"{HEADER}test,0,4,3\ntests,0,4,3\n", "line 3, column 'split': 'tests' is none of train, valid, test"),
        (f"{HEADER}test,-1,4,3\n", "line 2, column 'row': -1, but split 'test' has examples 0 to 1"),
        (f"{HEADER}test,2,4,3\n", "line 2, column 'row': 2, but split 'test' has examples 0 to 1"),
        (f"{HEADER}test,1,4,3\ntest,1,4,3\n", "line 3: example 1 of split 'test' is already on line 2"),
        (f"{HEADER}test,1,4,3\n", "names 1 of the 2 examples of split 'test'"),
        (f"{HEADER}test,1,4.5,3\n", "column 'timestamp': '4.5' is no whole number of 64 bits"),
        (f"{HEADER}test,1,4,1e3\n", "column 'previous_timestamp': '1e3' is no whole"),
        (f"{HEADER}test,1,4,-9223372036854775808\n", "'-9223372036854775808' is no whole number of 64 bits"),
        (f"{HEADER}test,1,4,9223372036854775808\n", "'9223372036854775808' is no whole number of 64 bits"),
        (f"{HEADER}test,,4,3\n", "column 'row': '' is no whole number"),
        (f'{HEADER}test,0,4,"3\n', "not CSV"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, text, message):
    rows = SplitExamples.of(["u"] * 2, [[0]] * 2, [0] * 2)
    corpus = replace(make_corpus(["lamp"]), test=rows)
    path = file_of(tmp_path, text)
    with pytest.raises(DataError) as caught:
        timed_examples(corpus, "test", path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_wrong_split(tmp_path):
    with pytest.raises(DataError, match=r"no such file\. Give the path of the times"):
        timed_examples(make_corpus(["lamp"]), "test", tmp_path / "none.csv")
    with pytest.raises(DataError, match="unknown split 'tests'"):
        timed_examples(timed_corpus(), "tests")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda times: pa.array([[1, 2]] * len(times), pa.list_(pa.uint64())), "list<element: uint64>; expected lists"),
        (
            lambda times: pa.array([[1, 2]] * len(times), pa.list_(pa.float64())),
            "list<element: double>; expected lists",
        ),
        (
            lambda times: pa.chunked_array([[*times.to_pylist()[:-1], None]], times.type),
            "column 'times' has missing values",
        ),
        (lambda times: pa.chunked_array([[[None, 1]] * len(times)], times.type), "column 'times' has missing values"),
        (lambda times: pa.chunked_array([[[1]] * len(times)], times.type), "lists of other lengths than 'items'"),
    ],
)
def test_forged_times_are_refused(tmp_path, change, message):
    timed_corpus().save(tmp_path / "corpus", config={}, inputs={})
    held = tmp_path / "corpus" / "sequences" / "00000.parquet"
    table = pq.read_table(held)
    pq.write_table(table.set_column(table.column_names.index("times"), "times", change(table["times"])), held)
    sign(tmp_path / "corpus")
    with pytest.raises(ArtefactError) as caught:
        Corpus.load(tmp_path / "corpus")
    assert message in str(caught.value) and str(held) in str(caught.value)


def test_the_published_times_fit_the_published_rows(industrial, data_root):
    path = data_root / "Amazon" / "times" / "Industrial_and_Scientific.times.csv"
    if not path.is_file():
        pytest.skip("the file of times is not there")
    found = {split: timed_examples(industrial, split, path).times for split in SPLITS}
    assert found.pop("train") is None
    assert all(times.known.all() for times in found.values())
    assert found["test"].same.mean() == pytest.approx(0.39, abs=0.005)
    audit = audit_examples(industrial, ["test"], found)
    assert (audit.pairs, audit.ties) == (4533, found["test"].same.sum())
