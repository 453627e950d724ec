"""Evaluation of a checkpoint whose search has an assistant: scores by the identity, rows apart, kills, old results."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.evaluation import assistant_scores, by_name, config, interrupted, launch
from support.training import sequential_config

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import Predictions
from minionerec.pipeline.config.evaluation import EvalConfig
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.sid.table import SidTable

ITEMS = 6


@pytest.fixture(scope="module")
def shop(made, tmp_path_factory) -> Path:
    """The corpus with histories of one SID and none among its test rows, its checkpoint, and a SASRec."""
    folder = tmp_path_factory.mktemp("assisted")
    for name in ("checkpoint", "sids"):
        shutil.copytree(made / name, folder / name)
    corpus = Corpus.load(made / "corpus")
    histories = corpus.test.histories.tolist()
    histories[:6] = [np.array(history, np.int32) for history in ([1], [4], [], [1, 3], [4, 3], [])]
    test = SplitExamples.of(corpus.test.users, histories, corpus.test.targets)
    replace(corpus, test=test).save(folder / "corpus", config={}, inputs={})
    run_sequential(sequential_config(folder / "corpus", folder / "sasrec", epochs=3, learning_rate=0.05))
    return folder


def assistant(shop):
    return str(shop / "sasrec" / "model")


def asked(shop, tmp_path, name="eval", **changes) -> EvalConfig:
    return config(shop, **{"assistant": assistant(shop), "share": 0.6, "output": str(tmp_path / name), **changes})


def plain(shop, tmp_path, name="plain", **changes) -> Predictions:
    return Predictions.load(run_eval(config(shop, output=str(tmp_path / name), **changes)).output)


def of_assistant(shop):
    sids = SidTable.load_index(shop / "sids").sids
    return assistant_scores(assistant(shop), Corpus.load(shop / "corpus"), sids)


@pytest.mark.parametrize("changes", [{}, {"scores": "renormalised"}, {"search": "exact"}, {"combine": "rerank"}])
def test_every_score_is_the_weighted_sum_of_both(shop, tmp_path, changes):
    """The identity: summed over the items of an SID, rows with equal prompts and other histories apart."""
    alone = plain(shop, tmp_path, **{name: value for name, value in changes.items() if name != "combine"})
    result = run_eval(asked(shop, tmp_path, **changes))
    mixed, second = by_name(Predictions.load(result.output)), of_assistant(shop)
    for row, first in enumerate(by_name(alone)):
        wanted = {sid: 0.6 * first[sid] + 0.4 * second[row][sid] for sid in first}
        assert mixed[row] == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    assert by_name(alone)[0] == by_name(alone)[1] and mixed[0] != pytest.approx(mixed[1], abs=1e-3)
    assert mixed[2] == mixed[5]
    counts = read_manifest(result.output)["counts"]
    assert counts["empty_histories"] == 2
    name = next(iter(result.metrics["recommenders"]))
    assert name == {"exact": "exact search", "beam": "beam search"}[changes.get("search", "beam")] + (
        ", reordered with sasrec" if "combine" in changes else " with sasrec"
    )


def test_the_whole_share_is_the_checkpoint_and_none_the_assistant(shop, tmp_path):
    plain(shop, tmp_path)
    whole = run_eval(asked(shop, tmp_path, "whole", share=1.0)).output
    before = (tmp_path / "plain" / "predictions.parquet").read_bytes()
    assert (whole / "predictions.parquet").read_bytes() == before
    none = Predictions.load(run_eval(asked(shop, tmp_path, "none", share=0.0)).output)
    for row, second in enumerate(of_assistant(shop)):
        assert list(dict.fromkeys(none.sids[row])) == sorted(second, key=second.get, reverse=True)


def test_reordering_keeps_what_the_checkpoint_found_and_the_search_finds_more(shop, tmp_path):
    narrow = {"beams": 2, "ks": [1, 2]}
    alone = plain(shop, tmp_path, **narrow)
    again = Predictions.load(run_eval(asked(shop, tmp_path, "rerank", share=0.1, combine="rerank", **narrow)).output)
    steps = Predictions.load(run_eval(asked(shop, tmp_path, "steps", share=0.1, **narrow)).output)
    assert [set(row) for row in again.sids] == [set(row) for row in alone.sids]
    assert again.sids != alone.sids
    assert any(set(ours) != set(theirs) for ours, theirs in zip(steps.sids, alone.sids, strict=True))


def test_what_was_seen_is_left_out_of_a_mixture_too(shop, tmp_path):
    everything = by_name(Predictions.load(run_eval(asked(shop, tmp_path, "all")).output))
    found = Predictions.load(run_eval(asked(shop, tmp_path, "masked", seen="mask", beams=3, ks=[1])).output)
    histories = Corpus.load(shop / "corpus").rows("test").histories.tolist()
    table = SidTable.load_index(shop / "sids")
    for row, history in enumerate(histories):
        left = [item for item in range(ITEMS) if item not in history]
        assert not set(history) & set(found.items[row])
        best = sorted({table.sids[item] for item in left}, key=everything[row].get, reverse=True)[:3]
        assert list(dict.fromkeys(found.sids[row])) == best


def test_a_checkpoint_assists_too(shop, tmp_path):
    """Its probabilities of all SIDs, normalised, whatever it is; here the searched one itself."""
    alone = by_name(plain(shop, tmp_path))
    mixed = by_name(
        Predictions.load(run_eval(asked(shop, tmp_path, assistant=str(shop / "checkpoint"), share=0.5)).output)
    )
    for first, found in zip(alone, mixed, strict=True):
        total = np.log(sum(np.exp(score) for score in first.values()))
        assert found == pytest.approx({sid: score - 0.5 * total for sid, score in first.items()}, rel=1e-4, abs=1e-4)


def test_a_length_penalty_divides_the_scores(shop, tmp_path):
    alone = by_name(plain(shop, tmp_path))
    for name, changes in (("steps", {}), ("rerank", {"combine": "rerank"})):
        mixed = by_name(Predictions.load(run_eval(asked(shop, tmp_path, name, length_penalty=1.0, **changes)).output))
        second = of_assistant(shop)
        for row, first in enumerate(alone):
            wanted = {sid: (0.6 * first[sid] + 0.4 * second[row][sid]) / 2 for sid in first}
            assert mixed[row] == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_an_assisted_evaluation_that_was_interrupted_resumes(shop, tmp_path, monkeypatch):
    whole = run_eval(asked(shop, tmp_path, "whole", batch_size=3)).output
    interrupted(monkeypatch, lambda: run_eval(asked(shop, tmp_path, batch_size=3)), tmp_path / "eval", after=4)
    with pytest.raises(ConfigError, match=r"differs in share \(then 0.6, now 0.5\)"):
        run_eval(asked(shop, tmp_path, batch_size=3, share=0.5))
    found = run_eval(asked(shop, tmp_path, batch_size=3)).output
    for name in ("predictions.parquet", "predictions.json", "metrics.json"):
        assert (found / name).read_bytes() == (whole / name).read_bytes()


def test_settings_that_say_nothing_or_too_much_are_refused(shop, tmp_path):
    with pytest.raises(ConfigError, match=r"length_penalty is 1, which search exact does not support. Use search beam"):
        config(shop, search="exact", length_penalty=1.0)
    with pytest.raises(ConfigError, match="but your own ranker is not searched; leave it out"):
        asked(shop, tmp_path, ranker="my_own.make")
    with pytest.raises(ConfigError, match="is not a checkpoint, so nothing is searched; leave it out"):
        run_eval(asked(shop, tmp_path, checkpoint=assistant(shop)))
    with pytest.raises(ArtefactError, match=r"was not trained on .*corpus"):
        other = Corpus.load(shop / "corpus")
        replace(other, test=other.test.take(slice(9))).save(tmp_path / "other", config={}, inputs={})
        run_eval(asked(shop, tmp_path, corpus=str(tmp_path / "other")))


@pytest.mark.slow
def test_launched_processes_share_an_assisted_search(shop, tmp_path):
    (shop / "eval.yaml").write_text(
        f"corpus: {shop / 'corpus'}\ncheckpoint: {shop / 'checkpoint'}\nassistant: {assistant(shop)}\nbeams: 5\n"
        "ks: [1, 5]\nresamples: 50\nbatch_size: 3\noutput: unused\n"
    )
    contents = set()
    for processes in (0, 2):
        process = launch(processes, shop, tmp_path / f"out{processes}")
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        contents.add((tmp_path / f"out{processes}" / "predictions.parquet").read_bytes())
    assert len(contents) == 1
