"""Evaluations and reports of a corpus of several blocks, and baselines that are measured once: the same figures."""

import shutil
from functools import partial

import numpy as np
import pytest
from support import evaluation
from support.evaluation import copy_artefact
from support.examples import in_blocks, keep_in_blocks, several_files

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ArtefactError
from minionerec.data import transitions
from minionerec.data.corpus import Corpus
from minionerec.data.slices import example_slices
from minionerec.data.transitions import count_transitions
from minionerec.pipeline.config.reports import ReportConfig
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.report import run_report
from minionerec.recommend.evaluation.baseline_lists import CONSTANTS_FILE, FILE, read_baseline_lists, read_chosen
from minionerec.recommend.rankers import baselines
from minionerec.recommend.rankers.baselines import make_baselines
from minionerec.recommend.rankers.lists import rank_rows
from minionerec.reports import results
from minionerec.sid.table import SidTable

config = partial(evaluation.config, baselines=True)


@pytest.fixture(scope="module")
def pieces(made, tmp_path_factory):
    """The shop in several files, and an evaluation of it as one block."""
    folder = tmp_path_factory.mktemp("pieces")
    for name in ("sids", "checkpoint"):
        shutil.copytree(made / name, folder / name)
    with several_files(50):
        Corpus.load(made / "corpus").save(folder / "corpus", config={}, inputs={})
    run_eval(config(folder))
    return folder


def report(folder, output, monkeypatch, **changes):
    monkeypatch.chdir(folder)
    settings = {"corpus": "corpus", "sids": "sids", "predictions": {"model": "eval"}, "resamples": 50}
    return run_report(ReportConfig(**{**settings, "output": str(output), **changes}))


def counted(asked):
    """`make_baselines`, which writes down in `asked` that it was called."""
    return lambda *of, **how: asked.append(of) or make_baselines(*of, **how)


@pytest.mark.parametrize("part", [1, 10, 1000])
def test_an_evaluation_of_several_blocks_writes_the_same_bytes(pieces, tmp_path, monkeypatch, part):
    keep_in_blocks(monkeypatch)
    monkeypatch.setattr(baselines, "_PART", part)
    found = run_eval(config(pieces, output=str(tmp_path / "eval"))).output
    for name in ("predictions.parquet", FILE, CONSTANTS_FILE, "ranks.parquet", "metrics.json", "metrics.txt"):
        assert (found / name).read_bytes() == (pieces / "eval" / name).read_bytes(), name


def test_a_report_of_several_blocks_is_the_same_page(pieces, tmp_path, monkeypatch):
    whole = report(pieces, tmp_path / "whole", monkeypatch)
    keep_in_blocks(monkeypatch)
    parts = report(pieces, tmp_path / "parts", monkeypatch)
    assert (parts.output / "report.html").read_bytes() == (whole.output / "report.html").read_bytes()
    assert (parts.output / "metrics.json").read_bytes() == (whole.output / "metrics.json").read_bytes()


@pytest.mark.parametrize("ks", [[1, 2], [1, 5]])
@pytest.mark.parametrize("sids", ["sids", ""])
def test_a_report_takes_the_baselines_of_an_evaluation(pieces, tmp_path, monkeypatch, ks, sids):
    """The figures are those of a report that makes the lists itself, at smaller cut-offs and without SIDs too."""
    asked = []
    monkeypatch.setattr(results, "make_baselines", counted(asked))
    taken = report(pieces, tmp_path / "taken", monkeypatch, ks=ks, sids=sids)
    assert len(asked) == (0 if sids else 1)  # the evaluation's candidates are SIDs
    monkeypatch.setattr(results, "_has_baselines", lambda *of: False)
    own = report(pieces, tmp_path / "own", monkeypatch, ks=ks, sids=sids)
    assert len(asked) == (1 if sids else 2)
    assert (own.output / "report.html").read_bytes() == (taken.output / "report.html").read_bytes()
    assert (tmp_path / "own" / "metrics.json").read_bytes() == (tmp_path / "taken" / "metrics.json").read_bytes()


def test_baselines_are_taken_from_no_other_evaluation(pieces, tmp_path, monkeypatch):
    """Of fewer candidates, of seen items left out, of another corpus, or with no such file, nothing is taken."""
    asked = []
    monkeypatch.setattr(results, "make_baselines", counted(asked))
    run_eval(config(pieces, seen="mask", output=str(tmp_path / "masked")))
    assert FILE not in read_manifest(tmp_path / "masked")["files"]
    narrow = run_eval(config(pieces, beams=2, ks=[1, 2], output=str(tmp_path / "narrow"))).output
    other = copy_artefact(pieces / "eval", tmp_path / "other")  # says of no corpus that it was made from it
    assert FILE in read_manifest(other)["files"]
    for number, (folder, ks) in enumerate(((tmp_path / "masked", [1, 5]), (other, [1, 5]), (narrow, [1, 2]))):
        report(pieces, tmp_path / f"r{number}", monkeypatch, ks=ks, predictions={"model": str(folder)})
    assert len(asked) == 2  # the last one has them, of as few candidates as are asked for
    both = {"narrow": str(narrow), "model": "eval"}
    report(pieces, tmp_path / "both", monkeypatch, ks=[1, 2], predictions=both)
    assert len(asked) == 2


def test_lists_are_cut_to_what_a_baseline_says_of_fewer(pieces):
    corpus = Corpus.load(pieces / "corpus")
    table = SidTable.load_index(pieces / "sids", corpus.items["item_id"].tolist())
    rows = corpus.rows("test")
    for width in (1, 2, 3, 4, 5):
        found, chosen = read_baseline_lists(pieces / "eval", rows, corpus.n_items, width, table)
        for name, baseline in make_baselines(corpus, table, chosen)[1].items():
            made = rank_rows(baseline, rows, width, corpus.n_items, table=table)
            assert (found[name].items, found[name].scores) == (made.items, made.scores)
            assert (found[name].sids, found[name].target_sids) == (made.sids, made.target_sids)


def test_a_damaged_file_of_baselines_is_named(pieces, tmp_path):
    corpus = Corpus.load(pieces / "corpus")
    (tmp_path / CONSTANTS_FILE).write_bytes((pieces / "eval" / CONSTANTS_FILE).read_bytes())
    assert read_chosen(tmp_path).examples > 0
    (tmp_path / FILE).write_bytes(b"PAR1 no more")
    with pytest.raises(ArtefactError, match=FILE):
        read_baseline_lists(tmp_path, corpus.rows("test"), corpus.n_items, 2, None)
    (tmp_path / CONSTANTS_FILE).write_text('{"ridge": 3}')
    with pytest.raises(ArtefactError, match=f"{CONSTANTS_FILE}: holds no constants of baselines"):
        read_chosen(tmp_path)


@pytest.mark.parametrize("split", ["valid", "test", "train"])
def test_slices_of_several_blocks_are_those_of_one(pieces, split):
    stored, corpus = in_blocks(pieces / "corpus"), Corpus.load(pieces / "corpus")
    rows = corpus.rows(split)
    ours, theirs = (example_slices(data, data.rows(split), split) for data in (stored, corpus))
    assert ours.keys() == theirs.keys()
    for group, kinds in theirs.items():
        assert {kind: found.tolist() for kind, found in ours[group].items()} == {
            kind: found.tolist() for kind, found in kinds.items()
        }
    assert len(rows) == stored.sizes[split]


def test_the_page_of_an_evaluation_says_what_its_baselines_file_says(pieces):
    """The figures beside the model's are those of the lists that are kept."""
    corpus = Corpus.load(pieces / "corpus")
    table = SidTable.load_index(pieces / "sids", corpus.items["item_id"].tolist())
    rows = corpus.rows("test")
    figures = read_json(pieces / "eval" / "metrics.json")["recommenders"]
    for name, found in read_baseline_lists(pieces / "eval", rows, corpus.n_items, 5, table)[0].items():
        hits = [sid in sids for sid, sids in zip(found.target_sids, found.sids, strict=True)]
        assert figures[name]["sid"]["HR@5"][0] == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("block", [1, 3, 7, 64])
def test_pairs_added_up_in_blocks_are_those_added_up_at_once(monkeypatch, block):
    rng = np.random.default_rng(3)
    size, sources = 20, rng.random(20) < 0.5
    parts = []
    for _ in range(9):
        chain = rng.integers(1, size + 1, (5, 7)) * (rng.random((5, 7)) < 0.9)
        parts.append((chain[:, :-1], chain[:, 1:]))
    monkeypatch.setattr(transitions, "_BLOCK", block)
    found = count_transitions(parts, size, 4, 0.5, 0.25)  # powers of two: no sum is rounded
    joined = [tuple(np.concatenate(column) for column in zip(*parts, strict=True))]
    whole = count_transitions(joined, size, 4, 0.5, 0.25)
    some = count_transitions(parts, size, 4, 0.5, 0.25, sources)
    for name in ("indptr", "indices", "data"):
        assert getattr(found, name).tolist() == getattr(whole, name).tolist()
        assert getattr(found, name).dtype == getattr(whole, name).dtype
    lengths = np.diff(whole.indptr)
    assert np.diff(some.indptr).tolist() == np.where(sources, lengths, 0).tolist()
    assert some.data.tolist() == whole.data[np.repeat(sources, lengths)].tolist()
