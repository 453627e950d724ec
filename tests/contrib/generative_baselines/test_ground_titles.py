"""The stage ground-titles on a corpus of eight items, two of which share their title and one of which has none."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from support.checkpoints import save_checkpoint
from support.encoders import save_encoder
from support.evaluation import copy_artefact, interrupted
from support.training import sequential_config

from minionerec.contrib.generative_baselines import ground_titles
from minionerec.contrib.generative_baselines.config import GroundingConfig
from minionerec.contrib.generative_baselines.ground_titles import run_grounding
from minionerec.contrib.generative_baselines.grounding import row_min_max
from minionerec.core import device
from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.records import read_run_record
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.data.times import RowTimes
from minionerec.metrics.predictions import Predictions
from minionerec.models.backbone.build import scratch_model, train_tokenizer
from minionerec.models.backbone.bundle import Bundle, load_bundle
from minionerec.models.backbone.vocabulary import add_code_tokens
from minionerec.models.prompts.wording import NEXT_TITLE, load_wording
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.recommend.rankers.load import load_ranker
from minionerec.recommend.rankers.protocol import Queries
from minionerec.sid.table import SidTable

TITLES = ["red lamp", "blue lamp", "red lamp", '"oak table"', "oak table", "", "steel bolt", "long bolt"]
GAMMAS = [0.0, 0.5, 3.0, 40.0]


def rows(n, seed):
    rng = np.random.default_rng(seed)
    histories = [rng.integers(0, 8, rng.integers(1, 5)).astype(np.int32) for _ in range(n)]
    targets = rng.choice(8, n, p=[0.05, 0.05, 0.2, 0.1, 0.1, 0.1, 0.3, 0.1]).astype(np.int32)
    return SplitExamples.of([f"u{position}" for position in range(n)], histories, targets)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus, and a model over its titles that was never trained."""
    folder = tmp_path_factory.mktemp("titles")
    items = pd.DataFrame({"item_id": list("abcdefgh"), "title": TITLES, "description": [""] * 8})
    corpus = Corpus(items, rows(40, 0), rows(20, 1), rows(30, 2), "leave-last-out", 10)
    corpus.save(folder / "corpus", config={}, inputs={})
    table = SidTable(np.array([[position // 4, position % 4] for position in range(8)]), list("abcdefgh"))
    tokenizer = train_tokenizer(TITLES, 300)
    add_code_tokens(tokenizer, table)
    model = scratch_model(tokenizer, 0, hidden_size=32, layers=2, heads=2, kv_heads=1, inner_size=48)
    for parameter in model.parameters():
        parameter.data *= 3
    bundle = Bundle(model, tokenizer, table, load_wording("compact"), 64, task=NEXT_TITLE)
    save_checkpoint(bundle, folder / "checkpoint")
    save_checkpoint(replace(bundle, task="next_sid"), folder / "sids")
    return folder


def config(made, output, **changes):
    settings = {"corpus": str(made / "corpus"), "checkpoint": str(made / "checkpoint"), "output": str(output)}
    settings |= {"max_new_tokens": 5, "text_beams": 2, "encoder": "tfidf", "candidates": 7}
    return GroundingConfig(**{**settings, "ks": [1, 5], "resamples": 20, **changes})


class Writer:
    """Writes what is wished in place of the model, and counts the prompts."""

    def __init__(self, made, texts):
        self.tokenizer, self.texts, self.asked = load_bundle(made / "checkpoint", titles=True).tokenizer, texts, 0

    def __call__(self, model, prompts, beams, most, end, penalty):
        self.asked += len(prompts)
        chosen = [self.texts[sum(prompt) % len(self.texts)] for prompt in prompts]
        tokens = [[*self.tokenizer(text, add_special_tokens=False)["input_ids"], end] for text in chosen]
        filled = torch.full((len(prompts), 60), -1)
        for row, ids in enumerate(tokens):
            filled[row, : len(ids)] = torch.tensor(ids)
        return filled[:, :most]


@pytest.fixture
def writes(made, monkeypatch):
    """What makes the model write some texts, by prompt."""

    def let(*texts):
        writer = Writer(made, texts)
        monkeypatch.setattr(ground_titles, "write_freely", writer)
        return writer

    return let


def texts_of(output, split="test"):
    frame = pd.read_parquet(output / "texts.parquet")
    return frame[frame["split"] == split]["text"].tolist()


@pytest.mark.parametrize("encoder", ["self", "tfidf", "hub"])
def test_a_title_of_the_catalogue_comes_first_with_all_its_items(made, tmp_path, writes, encoder):
    encoder = save_encoder(tmp_path / "encoder") if encoder == "hub" else encoder
    writes("red lamp", ' "red lamp"\n', "oak table", "steel  bolt")
    output = run_grounding(config(made, tmp_path / "out", encoder=encoder, max_new_tokens=40)).output
    predictions, reported = Predictions.load(output), read_manifest(output)["counts"]
    popularity = Corpus.load(made / "corpus").popularity()
    assert popularity[2] > popularity[0]
    wanted = {"red lamp": [2, 0], "oak table": sorted([3, 4], key=lambda item: -popularity[item]), "steel bolt": [6]}
    lists = predictions.items, predictions.scores, predictions.sids
    for text, items, scores, sids in zip(texts_of(output), *lists, strict=True):
        first = wanted[" ".join(text.replace('"', " ").split())]
        assert items[: len(first)] == first
        assert scores[: len(first)] == [0] * len(first) and scores[len(first)] < 0
        assert [sid.strip('"') for sid in sids[: len(first)]] == [TITLES[item].strip('"') for item in first]
        assert sorted(items) == list(range(8))
        assert scores[items.index(5)] == scores[-1]  # it has no title
    assert reported["in_catalogue"] == 1 and reported["nearest_distance"] == {"mean": 0, "median": 0}
    assert reported["distinct_texts"] == 3 and reported["gamma"] == 0 and reported["beams"] == 7
    assert not predictions.target_sids[0].startswith("<a_")


def slow_vectors(made, texts):
    """The state of the model at the last token of each text, each alone, without padding."""
    bundle = load_bundle(made / "checkpoint", titles=True)
    found = []
    for text in texts:
        ids = bundle.tokenizer(f"{bundle.tokenizer.bos_token}{text}")["input_ids"]
        with torch.no_grad():
            hidden = bundle.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
        found.append(hidden[0, -1].double().numpy())
    return found


def at_a_time(monkeypatch, size, most=None):
    """Let so many texts be written at a time, where memory holds so many of them."""
    plain, written = ground_titles.write_freely, []

    def write(model, prompts, *about):
        written.append(len(prompts))
        if most is not None and len(prompts) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return plain(model, prompts, *about)

    monkeypatch.setattr(ground_titles, "write_freely", write)
    monkeypatch.setattr(ground_titles, "fitting_free_batch", lambda *_: size)
    return written


def test_texts_do_not_depend_on_how_many_are_written_at_a_time(made, tmp_path, monkeypatch):
    contents, sizes = [], []
    for size, most in ((32, None), (7, None), (1, None), (32, 3)):
        with monkeypatch.context() as patch:
            sizes.append(at_a_time(patch, size, most))
            output = run_grounding(config(made, tmp_path / f"out{size}{most}")).output
        contents.append([(output / name).read_bytes() for name in ("texts.parquet", "predictions.parquet")])
    assert len(set(texts_of(output))) > 1
    assert contents[1:] == contents[:1] * 3
    assert (len(sizes[0]), set(sizes[2])) == (1, {1})
    whole = sizes[0][0]
    assert sizes[3][:3] == [whole, -(-whole // 2), -(-whole // 4)] and max(sizes[3][4:]) <= 3
    assert sum(size for size in sizes[3] if size <= 3) == whole


@pytest.mark.parametrize("free", [0, 2**40])
def test_what_a_model_writes_is_ranked_by_its_own_states(made, tmp_path, monkeypatch, free):
    monkeypatch.setattr(ground_titles, "_DISTANCES_AT_ONCE", 1)  # rows in several parts
    monkeypatch.setattr(device, "free_memory", lambda device: free)  # for one state at a time, or for all
    output = run_grounding(config(made, tmp_path / "out", encoder="self")).output
    texts, found = [" ".join(text.split()).strip("\"' ") for text in texts_of(output)], Predictions.load(output)
    assert len(set(texts)) > 1
    names = [title.strip('"') for title in TITLES]
    titled = [position for position, name in enumerate(names) if name]
    titles = dict(zip(titled, slow_vectors(made, [names[position] for position in titled]), strict=True))
    for row, vector in enumerate(slow_vectors(made, texts)):
        if not texts[row]:  # which says nothing
            assert set(found.scores[row]) == {0}
            continue
        far = {position: np.linalg.norm(vector - own) for position, own in titles.items()}
        far[5] = max(far.values())
        low, high = min(far.values()), max(far.values())
        scores = [-(far[item] - low) / (high - low) for item in found.items[row]]
        np.testing.assert_allclose(found.scores[row], scores, atol=2e-5)


def test_the_exponent_is_chosen_on_validation_rows_alone(made, tmp_path, writes):
    writes("red lamp", "long bolt", "blue table")
    asked = {"weights": "popularity", "gammas": GAMMAS}
    measured = run_grounding(config(made, tmp_path / "one", **asked))
    first = read_manifest(measured.output)["counts"]
    corpus = Corpus.load(made / "corpus")
    poisoned = replace(corpus.test, targets=np.full_like(corpus.test.targets, 7))
    replace(corpus, test=poisoned).save(tmp_path / "poisoned", config={}, inputs={})
    other = config(made, tmp_path / "two", corpus=str(tmp_path / "poisoned"), **asked)
    again = run_grounding(other)
    second = read_manifest(again.output)["counts"]
    assert second["gamma_ndcg@10"] == first["gamma_ndcg@10"] and second["gamma"] == first["gamma"]
    assert again.metrics["recommenders"] != measured.metrics["recommenders"]
    assert set(first["gamma_ndcg@10"]) == {"0", "0.5", "3", "40"}
    best = max(first["gamma_ndcg@10"].values())
    assert first["gamma_ndcg@10"][f"{first['gamma']:g}"] == best > first["gamma_ndcg@10"]["0"]
    shifted = replace(corpus.valid, targets=np.full_like(corpus.valid.targets, 7))
    replace(corpus, valid=shifted).save(tmp_path / "shifted", config={}, inputs={})
    third = config(made, tmp_path / "three", corpus=str(tmp_path / "shifted"), **asked)
    assert read_manifest(run_grounding(third).output)["counts"]["gamma_ndcg@10"] != first["gamma_ndcg@10"]


def test_validation_rows_may_be_drawn_and_an_exponent_given(made, tmp_path, writes):
    writes("red lamp", "long bolt")
    asked = {"weights": "popularity", "gammas": GAMMAS, "valid_examples": 5}
    one, two = (run_grounding(config(made, tmp_path / f"out{seed}", seed=seed, **asked)).output for seed in (0, 1))
    texts = [pd.read_parquet(folder / "texts.parquet") for folder in (one, two)]
    rows_of = [table.query("split == 'valid'")["row"].tolist() for table in texts]
    assert [len(rows) for rows in rows_of] == [5, 5] and rows_of[0] != rows_of[1]
    given = run_grounding(config(made, tmp_path / "given", weights="popularity", gammas=[3])).output
    assert read_manifest(given)["counts"]["gamma"] == 3 and texts_of(given, "valid") == []
    plain = Predictions.load(run_grounding(config(made, tmp_path / "plain")).output)
    assert Predictions.load(given).items != plain.items
    assert [row[0] for row in Predictions.load(given).items] == [row[0] for row in plain.items]


def train_sasrec(corpus, output, **changes):
    """SASRec of one epoch; where its model lies."""
    run_sequential(sequential_config(corpus, output, max_len=3, list_length=5, **changes))
    return output / "model"


def save_without_a_history(made, path):
    """Write the corpus with an empty history in the first test example; gives the corpus as it was."""
    corpus = Corpus.load(made / "corpus")
    histories = [np.zeros(0, np.int32), *corpus.test.histories[1:]]
    test = SplitExamples.of(corpus.test.users, histories, corpus.test.targets)
    replace(corpus, test=test).save(path, config={}, inputs={})
    return corpus


def check_pulled(found, plain, logits, gamma):
    """Lists are those of no weights, pulled by a model's logits."""
    for row, (items, scores) in enumerate(zip(found.items, found.scores, strict=True)):
        weights = row_min_max(logits[row])
        before = dict(zip(plain.items[row], plain.scores[row], strict=True))
        weights[[0, 2]] = weights[[0, 2]].max()  # which have one title
        wanted = [before[item] / (1 + weights[item]) ** gamma for item in items]
        np.testing.assert_allclose(scores, wanted, atol=1e-6)


def test_a_sequential_model_pulls_items_near(made, tmp_path, writes):
    writes("red lamp", "long bolt", "blue table")
    model = train_sasrec(made / "corpus", tmp_path / "sasrec")
    corpus = save_without_a_history(made, tmp_path / "corpus")
    asked = {"weights": "sequential", "sequential": str(model), "gammas": [2]}
    output = run_grounding(config(made, tmp_path / "out", **asked)).output
    plain = Predictions.load(run_grounding(config(made, tmp_path / "plain")).output)
    logits = load_ranker(model, corpus).scores(Queries(list(corpus.test.histories))).cpu().numpy()
    check_pulled(Predictions.load(output), plain, logits, 2)
    assert read_manifest(output)["counts"]["rows_with_context"] == 0
    other = config(made, tmp_path / "empty", **{**asked, "corpus": str(tmp_path / "corpus")})
    with pytest.raises(ArtefactError, match="was not trained on"):
        run_grounding(other)


def timed(rows, seed):
    """The same rows, every target a day after the newest item of the history, or at its context."""
    later = np.random.default_rng(seed).integers(0, 2, len(rows))
    return replace(rows, times=RowTimes(1000 + 86400 * later, np.full(len(rows), 1000))), 1 + later


def test_a_sequential_model_is_given_request_features(made, tmp_path, writes):
    """Of the rows of the split, and of those that choose the exponent; with context false of none."""
    writes("red lamp", "long bolt", "blue table")
    corpus = Corpus.load(made / "corpus")
    train, valid, test = (timed(rows, seed) for seed, rows in enumerate((corpus.train, corpus.valid, corpus.test)))
    corpus = replace(corpus, train=train[0], valid=valid[0], test=test[0])
    corpus.save(tmp_path / "corpus", config={}, inputs={})
    model = train_sasrec(tmp_path / "corpus", tmp_path / "sasrec", context=["gap"], learning_rate=0.1)
    weighed = {"weights": "sequential", "sequential": str(model), "gammas": [2.0, 3.0]}
    asked = {"corpus": str(tmp_path / "corpus"), **weighed}
    ranker, histories = load_ranker(model, corpus), list(corpus.test.histories)
    plain = Predictions.load(run_grounding(config(made, tmp_path / "plain", corpus=asked["corpus"])).output)
    reported = {}
    for tell, contexts in ((True, test[1]), (False, None)):
        settings = config(made, tmp_path / str(tell), context=tell, **asked)
        found = Predictions.load(run_grounding(settings).output)
        reported[tell] = read_manifest(settings.output)["counts"]
        check_pulled(
            found,
            plain,
            ranker.scores(Queries(histories, {} if contexts is None else {"gap": contexts})).cpu().numpy(),
            reported[tell]["gamma"],
        )
    assert (reported[True]["rows_with_context"], reported[False]["rows_with_context"]) == (30, 0)
    assert (reported[True]["given"], reported[False]["given"]) == (["gap"], [])
    assert reported[True]["gamma_ndcg@10"] != reported[False]["gamma_ndcg@10"]


def test_an_empty_history_is_weighed_by_popularity(made, tmp_path, writes):
    writes("long bolt")
    save_without_a_history(made, tmp_path / "corpus")
    model = train_sasrec(tmp_path / "corpus", tmp_path / "sasrec")
    asked = {"corpus": str(tmp_path / "corpus"), "gammas": [2]}
    by_model = config(made, tmp_path / "a", weights="sequential", sequential=str(model), **asked)
    by_count = config(made, tmp_path / "b", weights="popularity", **asked)
    one, two = (Predictions.load(run_grounding(each).output) for each in (by_model, by_count))
    assert one.items[0] == two.items[0] and one.scores[0] == two.scores[0]
    assert one.scores[1:] != two.scores[1:]


def test_texts_of_an_earlier_run_are_not_written_again(made, tmp_path, writes):
    writer = writes("red lamp", "long bolt", "blue table")
    first = run_grounding(config(made, tmp_path / "plain", split="valid")).output
    asked = writer.asked
    again = config(made, tmp_path / "again", split="valid", weights="popularity", texts=str(first))
    assert texts_of(run_grounding(again).output, "valid") == texts_of(first, "valid")
    assert writer.asked == asked
    both = config(made, tmp_path / "both", weights="popularity", gammas=GAMMAS, texts=str(first))
    fresh = config(made, tmp_path / "fresh", weights="popularity", gammas=GAMMAS)
    one, two = (run_grounding(each).output for each in (both, fresh))
    for name in ("predictions.parquet", "texts.parquet", "metrics.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    with pytest.raises(ArtefactError, match="generated with max_new_tokens 5, now it is 6"):
        run_grounding(config(made, tmp_path / "longer", texts=str(first), max_new_tokens=6))
    renamed = {"wording.yaml": replace(load_wording("compact"), name="renamed").to_yaml()}
    copied = copy_artefact(made / "checkpoint", tmp_path / "copied", **renamed)
    with pytest.raises(ArtefactError, match="its texts are of another checkpoint"):
        run_grounding(config(made, tmp_path / "other", texts=str(first), checkpoint=str(copied)))
    Predictions.load(first).save(tmp_path / "searched", config={}, inputs={})
    with pytest.raises(ArtefactError, match=r"has no texts\.parquet, so it is not an output of ground-titles"):
        run_grounding(config(made, tmp_path / "other", texts=str(tmp_path / "searched")))


def test_a_run_that_was_interrupted_resumes(made, tmp_path, monkeypatch):
    at_a_time(monkeypatch, 3)
    asked = {"weights": "popularity", "gammas": GAMMAS}
    whole = run_grounding(config(made, tmp_path / "whole", **asked)).output
    cut = config(made, tmp_path / "cut", **asked)
    interrupted(monkeypatch, lambda: run_grounding(cut), tmp_path / "cut", after=4)
    found = run_grounding(cut).output
    for name in ("predictions.parquet", "predictions.json", "texts.parquet", "metrics.json"):
        assert (found / name).read_bytes() == (whole / name).read_bytes()
    record = read_run_record(found)
    assert (record.parts, record.resumed_from) == (2, 4)
    assert set(record.seconds) == {"all", "load", "generate", "ground", "measure", "write"}
    timestamp = (found / "manifest.json").stat().st_mtime_ns
    run_grounding(cut)
    assert (found / "manifest.json").stat().st_mtime_ns == timestamp


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ks": [8]}, "ks 8 with 7 candidates: each K must be from 1 to the number of candidates"),
        ({"gammas": []}, "gammas is empty"),
        ({"weights": "sequential"}, "weights is 'sequential' and sequential ''"),
        ({"sequential": "runs/x"}, "weights is 'none' and sequential 'runs/x'"),
        ({"encoder": "vectors.npy"}, "a file of vectors, but generated texts need an encoder"),
    ],
)
def test_settings_that_do_not_fit_are_named(made, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        config(made, tmp_path / "out", **changes)


def test_models_and_catalogues_that_do_not_fit_are_named(made, tmp_path):
    with pytest.raises(ArtefactError, match=r"sids: was trained on next_sid and does not generate titles"):
        run_grounding(config(made, tmp_path / "out", checkpoint=str(made / "sids")))
    with pytest.raises(ConfigError, match="candidates is 8, but the catalogue has 7 distinct titles"):
        run_grounding(config(made, tmp_path / "out", candidates=8))
    assert not (tmp_path / "out").exists()
