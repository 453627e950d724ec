"""Evaluation of recommenders other than checkpoints: sequential models, and a user's own by its dotted path."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.evaluation import config, copy_artefact
from support.gaps import make_gap_corpus
from support.runs import recommenders_of
from support.training import TINY, sequential_config

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.pipeline.config.reports import ReportConfig
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.report import run_report
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.recommend.evaluation.baseline_lists import read_chosen
from minionerec.recommend.rankers.baselines import MIXTURE, NAMES, make_baselines
from minionerec.reports import results
from minionerec.sid.table import SidTable

MINE = """
import numpy as np
from minionerec.recommend.rankers.protocol import Ranking

class Backwards:
    def __init__(self, corpus):
        self.items = list(range(corpus.n_items))[::-1]

    def rank(self, queries, k, allowed=None):
        masks = [None if allowed is None else allowed.row(row) for row in range(len(queries))]
        lists = [[item for item in self.items if mask is None or mask[item]][:k] for mask in masks]
        return Ranking(lists, [[-float(rank) for rank, _ in enumerate(row)] for row in lists])

def forwards(corpus):
    made = Backwards(corpus)
    made.items = made.items[::-1]
    return made

def nothing(corpus):
    return 5

class Wrong(Backwards):
    def rank(self, queries, k, allowed=None):
        lists = [self.items[:k] for _ in queries.histories]
        lists[3] = self.bad
        return Ranking(lists, [[0.0] * len(row) for row in lists])

def twice(corpus):
    made = Wrong(corpus)
    made.bad = [1, 1]
    return made

def beyond(corpus):
    made = Wrong(corpus)
    made.bad = [9]
    return made

def longer(corpus):
    made = Wrong(corpus)
    made.bad = [0, 1, 2, 3]
    return made

def seen(corpus):
    made = Wrong(corpus)
    made.bad = corpus.rows("test").histories[3][:1].tolist()
    return made

class rising(Backwards):
    def rank(self, queries, k, allowed=None):
        return Ranking([[0, 1]] * len(queries), [[1.0, 2.0]] * len(queries))

class Conditioned:
    context = frozenset({"gap"})

    def __init__(self, corpus):
        self.n = corpus.n_items

    def rank(self, queries, k, allowed=None):
        pairs = zip(queries.histories, queries.codes(["gap"])[:, 0].tolist())
        first = [7 if context == 2 else (history[-1] + 1) % self.n for history, context in pairs]
        lists = [[int(item), *(other for other in range(self.n) if other != item)][:k] for item in first]
        return Ranking(lists, [[-float(rank) for rank, _ in enumerate(row)] for row in lists])

class fewer(Backwards):
    def rank(self, queries, k, allowed=None):
        return Ranking([[0]], [[1.0]])
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of a user's own, in the current directory."""
    (tmp_path / "my_own.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own", raising=False)
    yield tmp_path / "my_own.py"
    sys.modules.pop("my_own", None)
    sys.path[:] = [folder for folder in sys.path if folder != str(tmp_path)]


def test_a_users_own_recommender_is_measured_and_reported_like_any_other(made, mine, tmp_path):
    asked = config(made, ranker="my_own.Backwards", beams=4, ks=[1, 4], baselines=True, output=str(tmp_path / "eval"))
    result = run_eval(asked)
    predictions = Predictions.load(result.output)
    assert predictions.items == [[5, 4, 3, 2]] * 40
    assert predictions.sids == [[""] * 4] * 40
    corpus = Corpus.load(made / "corpus")
    targets = corpus.rows("test").targets
    ours = result.metrics["recommenders"]["my_own.Backwards"]
    assert ours["sid"] is None and ours["invalid"] is None
    assert ours["item"]["HR@1"][0] == pytest.approx(np.mean(targets == 5))
    assert ours["item"]["HR@4"][0] == pytest.approx(np.mean(targets >= 2))
    fitted = [name for name in NAMES if name != MIXTURE]  # of which the mixture needs more examples
    assert list(result.metrics["recommenders"]) == ["my_own.Backwards", *fitted]
    manifest = read_manifest(result.output)
    assert set(manifest["inputs"]) == {"corpus", "ranker"}
    assert manifest["counts"]["truncated_prompts"] is None and manifest["counts"]["beams"] == 4
    assert manifest["counts"]["ndcg@10"] is None
    assert "my_own.Backwards on test (leave-last-out), 4 beams" in result.text
    assert not (result.output / "predictions.json").exists()
    page = run_report(
        ReportConfig(
            corpus=str(made / "corpus"),
            predictions={"mine": str(result.output)},
            output=str(tmp_path / "report"),
            resamples=50,
        )
    )
    assert "mine" in page.text
    found = recommenders_of(tmp_path / "report")["mine"]["metrics"]
    assert found["item"]["HR@1"]["mean"] == ours["item"]["HR@1"][0]


def test_with_sids_items_are_measured_by_them_too(made, mine, tmp_path):
    asked = {"ranker": "my_own.forwards", "sids": str(made / "sids"), "beams": 3, "ks": [1, 3]}
    result = run_eval(config(made, **asked, output=str(tmp_path / "eval")))
    predictions, table = Predictions.load(result.output), SidTable.load_index(made / "sids")
    assert predictions.items == [[0, 1, 2]] * 40
    assert predictions.sids == [[table.sids[item] for item in (0, 1, 2)]] * 40
    targets = Corpus.load(made / "corpus").rows("test").targets
    ours = result.metrics["recommenders"]["my_own.forwards"]
    assert ours["sid"]["HR@3"][0] == pytest.approx(np.isin(targets, [0, 1, 2, 4]).mean())  # 1 and 4 share theirs
    assert ours["item"]["HR@3"][0] == pytest.approx(np.isin(targets, [0, 1, 2]).mean())
    first = read_json(result.output / "predictions.json")[0]
    history = Corpus.load(made / "corpus").rows("test").histories[0]
    assert first["input"] == ", ".join(table.sids[item] for item in history)
    assert first["predict"] == predictions.sids[0]


def test_items_of_the_history_are_left_out_where_they_are_masked(made, mine, tmp_path):
    asked = config(made, ranker="my_own.Backwards", seen="mask", beams=2, ks=[1], output=str(tmp_path / "eval"))
    result = run_eval(asked)
    for row, history in zip(
        Predictions.load(result.output).items, Corpus.load(made / "corpus").rows("test").histories, strict=True
    ):
        assert row == [item for item in range(5, -1, -1) if item not in history][:2]
    assert list(result.metrics["recommenders"]) == ["my_own.Backwards"]


def test_a_changed_file_is_another_recommender(made, mine, tmp_path, caplog):
    asked = config(made, ranker="my_own.Backwards", output=str(tmp_path / "eval"))
    first = run_eval(asked)
    timestamp = (first.output / "manifest.json").stat().st_mtime_ns
    run_eval(asked)
    assert (first.output / "manifest.json").stat().st_mtime_ns == timestamp
    mine.write_text(MINE + "\n# changed\n")
    run_eval(asked)
    assert (first.output / "manifest.json").stat().st_mtime_ns > timestamp


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("my_own.nothing", {}, ConfigError, r"ranker is 'my_own.nothing', which returned a int without a method"),
        ("my_own.absent", {}, ConfigError, "the module 'my_own' has no 'absent'"),
        ("my_own.twice", {}, DataError, r"list for row 3 \(from 0\) is invalid: an item is listed twice"),
        ("my_own.beyond", {}, DataError, r"row 3 .*: item 9 is not one of the 6 items \(0 to 5\)"),
        ("my_own.longer", {"beams": 3, "ks": [1]}, DataError, "it has 4 items, but k is 3 candidates"),
        ("my_own.seen", {"seen": "mask", "beams": 1, "ks": [1]}, DataError, "is listed, but not allowed"),
        ("my_own.rising", {}, DataError, r"row 0 .*: score 2.0 follows 1.0; scores must not increase"),
        ("my_own.fewer", {}, DataError, "returned 1 lists and 1 lists of scores for 40 histories"),
        ("my_own.forwards", {"beams": 7, "ks": [1]}, ConfigError, "beams is 7, but the catalogue has 6 items; give"),
    ],
)
def test_what_is_no_recommender_is_reported(made, mine, tmp_path, name, changes, error, message):
    with pytest.raises(error, match=message):
        run_eval(config(made, ranker=name, output=str(tmp_path / "eval"), **changes))
    assert not (tmp_path / "eval").exists()


@pytest.fixture(scope="module")
def trained(made, tmp_path_factory):
    """Two sequential models over the rows of the corpus, and their own predictions."""
    folder = tmp_path_factory.mktemp("trained")
    sized = {"max_len": 3, "epochs": 2, "list_length": 5, "sids": str(made / "sids")}
    for model, hyper in (("sasrec", TINY), ("caser", {"hidden_size": 8})):
        run_sequential(sequential_config(made / "corpus", folder / model, model=model, hyper=hyper, **sized))
    return folder


def test_a_sequential_model_gives_the_lists_that_its_training_wrote(made, trained, tmp_path):
    folder = trained / "sasrec"
    asked = config(made, checkpoint=str(folder / "model"), sids=str(made / "sids"), output=str(tmp_path / "eval"))
    result = run_eval(asked)
    found, wanted = Predictions.load(result.output), Predictions.load(folder / "predictions")
    # Its training knows the names of users with training rows alone.
    frames = [lists.to_frame().drop(columns="user") for lists in (found, wanted)]
    assert frames[0].equals(frames[1])
    assert next(iter(result.metrics["recommenders"])) == "sasrec"
    own = read_json(folder / "predictions" / "metrics.json")["test"]
    for level, metric in (("item", "HR@5"), ("item", "HR@1"), ("sid", "HR@1")):
        assert result.metrics["recommenders"]["sasrec"][level][metric][0] == pytest.approx(own[level][metric][0])


def test_seen_items_are_left_out_of_a_sequential_models_lists(made, trained, tmp_path):
    model = str(trained / "sasrec" / "model")
    kept = Predictions.load(
        run_eval(config(made, checkpoint=model, beams=6, ks=[1], output=str(tmp_path / "k"))).output
    )
    assert kept.target_sids == [""] * 40
    masked = run_eval(config(made, checkpoint=model, seen="mask", beams=2, ks=[1], output=str(tmp_path / "m")))
    histories = Corpus.load(made / "corpus").rows("test").histories
    for everything, row, history in zip(kept.items, Predictions.load(masked.output).items, histories, strict=True):
        assert row == [item for item in everything if item not in history][:2]


def test_models_that_do_not_fit_are_refused(made, trained, tmp_path):
    output = str(tmp_path / "eval")
    with pytest.raises(ConfigError, match="caser has user embeddings"):
        run_eval(config(made, checkpoint=str(trained / "caser" / "model"), output=output))
    corpus = Corpus.load(made / "corpus")
    replace(corpus, test=corpus.test.take(slice(20))).save(tmp_path / "corpus", config={}, inputs={})
    other = {"corpus": str(tmp_path / "corpus"), "checkpoint": str(trained / "sasrec" / "model")}
    with pytest.raises(ArtefactError, match=r"model: was not trained on .*corpus, so its item indices differ"):
        run_eval(config(made, **other, output=output))
    moved = copy_artefact(made / "corpus", tmp_path / "moved")
    result = run_eval(config(made, **{**other, "corpus": str(moved)}, output=output))  # the same content elsewhere
    assert len(Predictions.load(result.output)) == 40
    with pytest.raises(ArtefactError, match=r"holds a 'predictions', expected a 'checkpoint' or a 'sequential_model'"):
        run_eval(config(made, checkpoint=output, output=str(tmp_path / "again")))


def test_baselines_are_not_given_what_the_model_is(mine, tmp_path, monkeypatch):
    make_gap_corpus(tmp_path / "corpus", users=300)
    for name, given in (("with", True), ("without", False)):
        asked = config(
            tmp_path, ranker="my_own.Conditioned", context=given, beams=10, ks=[1, 10], baselines=True, output=name
        )
        run_eval(asked)
    assert read_chosen(Path("with")) == read_chosen(Path("without")) == make_baselines(Corpus.load("corpus"))[0]
    ndcg = {
        name: {of: each["item"]["NDCG@10"][0] for of, each in read_json(f"{name}/metrics.json")["recommenders"].items()}
        for name in ("with", "without")
    }
    own = {name: of.pop("my_own.Conditioned") for name, of in ndcg.items()}
    assert ndcg["with"] == ndcg["without"] and own["with"] > own["without"]
    sentence = "The baselines are given the histories alone, without gap."
    assert sentence in Path("with/metrics.txt").read_text(encoding="utf-8")
    assert "The baselines are given" not in Path("without/metrics.txt").read_text(encoding="utf-8")

    def page(output, **predictions):
        run_report(ReportConfig(corpus="corpus", resamples=50, predictions=predictions, output=output))
        return recommenders_of(output), (Path(output) / "report.html").read_text(encoding="utf-8")

    with monkeypatch.context() as patch:
        patch.setattr(results, "make_baselines", None)  # all are taken from the evaluations
        for predictions, wanted in (
            ({"model": "with"}, ["model (given gap)"]),
            ({"model": "without"}, ["model"]),
            ({"model": "with", "plain": "without"}, ["model (given gap)", "plain"]),
        ):
            found, text = page("page", **predictions)
            assert list(found) == [*wanted, *NAMES] and (sentence in text) is ("model (given gap)" in wanted)
            assert not any(found[name]["given"] for name in NAMES)
    monkeypatch.setattr(results, "_has_baselines", lambda *of: False)
    assert page("page", model="with", plain="without")[0] == found  # one that ranks by baselines itself has the same
