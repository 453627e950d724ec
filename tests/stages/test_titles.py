"""A model over titles: trained, killed, searched, measured by title and by item, and mixed with an assistant."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.evaluation import assistant_scores, by_name
from support.evaluation import config as eval_config
from support.examples import tokenised_windows, user_windows
from support.training import grpo_config, logged, make_inputs, sequential_config, sft_config

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.grpo import run_grpo
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.recommend.rankers.language import TitleRanker
from minionerec.recommend.rankers.load import load_ranker
from minionerec.recommend.rankers.protocol import Queries
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Request
from minionerec.serve.explain import explain
from minionerec.training.rows import tokenise_examples

TASK = "title_history_to_title"
TITLES = {"tasks": {TASK: 1.0}, "eval_beams": 10, "learning_rate": 1e-2, "text_vocabulary": 400, "dropout": 0.0}
N = 24


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    """The corpus of chains, where two items have one title and one title begins another; a model, and a SASRec."""
    folder = tmp_path_factory.mktemp("titles")
    made = folder / "made"
    made.mkdir()
    make_inputs(made, users=60)
    corpus = Corpus.load(made / "corpus")
    titles = corpus.items["title"].tolist()
    titles[23], titles[10] = titles[5], titles[1] + " and more words that nobody else has"
    replace(corpus, items=corpus.items.assign(title=titles)).save(folder / "corpus", config={}, inputs={})
    shutil.copytree(made / "sids", folder / "sids")
    run_sft(sft_config(folder, **TITLES, epochs=10, evals_per_epoch=0.5, output=str(folder / "sft")))
    run_sequential(sequential_config(folder / "corpus", folder / "sasrec", epochs=3, learning_rate=0.05))
    return folder


def evaluate(shop, output, **changes):
    settings = {"checkpoint": str(shop / "sft"), "output": str(output), "beams": 23, "ks": [1, 10], "resamples": 20}
    return run_eval(eval_config(shop, **{**settings, **changes}))


def assisted(shop, output, **changes):
    model = str(shop / "sasrec" / "model")
    return Predictions.load(evaluate(shop, output, assistant=model, **changes).output)


def test_it_learns_to_generate_titles(shop):
    """A guess among the tokens would cost log(400) = 6.0 each; most are forced by the title that they end."""
    counts = read_manifest(shop / "sft")["counts"]
    assert logged(shop / "sft", "eval_loss")[-1] < 2.5 and counts["best"]["eval_ndcg@10"] > 0
    assert counts["task"] == TASK and counts["rows"] == {TASK: 60}
    bundle = load_bundle(shop / "sft", titles=True)
    assert bundle.task == TASK and len(bundle.tokenizer) <= 400 + len(bundle.table.tokens)


def test_windows_of_titles_are_the_rows_one_by_one(shop):
    """One row a user window: the labelled tokens behind each prefix are those of the examples."""
    bundle, corpus = load_bundle(shop / "sft", titles=True), Corpus.load(shop / "corpus")
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))

    def reported(rows):
        return sorted(
            (tuple(ids[:position]), ids[position])
            for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True)
            for position, label in enumerate(labels)
            if label >= 0
        )

    windows = tokenised_windows(bundle, builder, None, task=TASK)
    one_by_one, _ = tokenise_examples(bundle.tokenizer, builder.build(TASK, "train"), 512)
    assert reported(windows) == reported(one_by_one)
    assert not any(windows["histories"]) and not any(windows["slots"])


def test_what_has_no_title_is_read_and_never_reported(shop):
    bundle, corpus = load_bundle(shop / "sft", titles=True), Corpus.load(shop / "corpus")
    nameless = replace(corpus, items=corpus.items.assign(title=[" ", *corpus.items["title"][1:]]))
    builder = ExampleBuilder(nameless, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    window = next(w for w in user_windows(nameless) if 0 in w.items[w.first_target :].tolist())
    rows = tokenised_windows(bundle, builder, [window], task=TASK)
    generated = bundle.tokenizer.decode([label for label in rows["labels"][0] if label >= 0])
    assert generated.count("<|eos|>") == len(window.items) - window.first_target - 1


def test_it_is_measured_by_title_and_by_item(shop, tmp_path):
    """Items of one title share a rank, the more popular first; with all beams every item is listed."""
    result = evaluate(shop, tmp_path / "eval")
    tables = (result.output / "metrics.txt").read_text(encoding="utf-8")
    assert "title-level" in result.text and "title-level" in tables and "item-level" in tables
    assert result.metrics["sid_means"] == "title" and "beam search over titles" in result.metrics["recommenders"]
    predictions, corpus = Predictions.load(result.output), Corpus.load(shop / "corpus")
    titles, popularity = corpus.items["title"].tolist(), corpus.popularity()
    pair = sorted((5, 23), key=lambda item: (-popularity[item], item))
    for target, name, items, sids in zip(
        predictions.targets, predictions.target_sids, predictions.items, predictions.sids, strict=True
    ):
        assert name == titles[target] and sids == [titles[item] for item in items]
        assert sorted(items) == list(range(N)) and items.index(pair[1]) == items.index(pair[0]) + 1
    assert read_json(result.output / "predictions.json")[0]["output"].strip() in titles
    renormalised = Predictions.load(evaluate(shop, tmp_path / "renormalised", scores="renormalised").output)
    for row in by_name(renormalised):
        assert sum(np.exp(list(row.values()))) == pytest.approx(1, abs=1e-4)  # D3, first half: every leaf is reached


def test_exact_search_and_a_beam_of_all_titles_agree(shop, tmp_path):
    one, two = (Predictions.load(evaluate(shop, tmp_path / how, search=how).output) for how in ("beam", "exact"))
    for first, second in zip(by_name(one), by_name(two), strict=True):
        assert first == pytest.approx(second, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("changes", [{}, {"scores": "renormalised"}, {"search": "exact"}, {"combine": "rerank"}])
def test_mixed_scores_are_the_weighted_sum_of_both(shop, tmp_path, changes):
    """D1 over titles, items of a title summed."""
    alone = evaluate(shop, tmp_path / "alone", **{k: v for k, v in changes.items() if k != "combine"})
    mixed = by_name(assisted(shop, tmp_path / "mixed", share=0.6, **changes))
    corpus = Corpus.load(shop / "corpus")
    second = assistant_scores(shop / "sasrec" / "model", corpus, corpus.items["title"].tolist())
    for row, first in enumerate(by_name(Predictions.load(alone.output))):
        assert mixed[row] == pytest.approx(
            {t: 0.6 * first[t] + 0.4 * second[row][t] for t in first}, rel=1e-4, abs=1e-4
        )


def test_where_sids_are_needed_it_is_refused(shop, tmp_path):
    with pytest.raises(ArtefactError, match=r"was trained on title_history_to_title and generates titles"):
        run_grpo(grpo_config(shop, output=str(tmp_path / "grpo")))
    ranker = load_ranker(shop / "sft", Corpus.load(shop / "corpus"))
    assert isinstance(ranker, TitleRanker) and ranker.table.n_unique == N - 1
    with pytest.raises(ConfigError, match="beams is 24, but the catalogue has 23 distinct titles"):
        evaluate(shop, tmp_path / "wide", beams=24)


def test_an_explanation_says_pieces_of_titles(shop):
    """The way down the tree spells the title of the item that is explained."""
    recommender = Recommender.load(shop / "sft", corpus=shop / "corpus")
    nodes, _ = explain(recommender, Request(history=["i3", "i4"], k=1))
    reported = ""
    while nodes:
        node = next(node for node in nodes if node["children"] or "i" in "".join(node["items"]))
        reported, nodes = reported + node["code"], node["children"]
    assert reported.removesuffix("<|eos|>") in Corpus.load(shop / "corpus").items["title"].tolist()


def test_rows_are_searched_alone_as_together(shop):
    corpus = Corpus.load(shop / "corpus")
    ranker, histories = load_ranker(shop / "sft", corpus), corpus.rows("test").histories.tolist()[:12]
    together = ranker.rank(Queries(histories), 5)
    for row, history in enumerate(histories):
        alone = ranker.rank(Queries([history]), 5)
        assert alone.items[0] == together.items[row]
        assert torch.allclose(torch.tensor(alone.scores[0]), torch.tensor(together.scores[row]), atol=1e-4)
