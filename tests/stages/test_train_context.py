"""Training with request features: killed, repeated, on all splits, continued, extended, evaluated."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.checkpoints import save_checkpoint
from support.evaluation import config as eval_config
from support.examples import keep_in_blocks, several_files
from support.gaps import GAP, LATER, LATER_ON, SAME, make_gap_corpus
from support.small_shop import sign, spoil_manifest
from support.training import (
    N_ITEMS,
    Killed,
    catalogue_config,
    extend_config,
    kill_after,
    make_inputs,
    same_weights,
)

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.nn.context import UNSOLD
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.extend import run_extend
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.training.catalogue.objectives import CatalogueTrainer
from minionerec.training.catalogue.popularity import WEIGHTS

USERS = 120  # each with one example of validation and one of test
LEARNS = {"epochs": 4, "learning_rate": 2e-2, "eval_examples": -1, "evals_per_epoch": 0.5}


def conditioned(folder, **changes):
    return catalogue_config(folder, **{"context": ["gap"], **changes})


def counts_of(path):
    return read_manifest(path)["counts"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Models of a corpus in which the context decides what comes next, told and not; and one of a few steps."""
    folder = tmp_path_factory.mktemp("contexts")
    make_inputs(folder)
    (folder / "corpus").rename(folder / "chains")
    with several_files():
        make_gap_corpus(folder / "corpus", USERS)
    make_gap_corpus(folder / "timeless", USERS, timed=False)
    run_catalogue(conditioned(folder, output=str(folder / "conditioned"), **LEARNS))
    run_catalogue(catalogue_config(folder, output=str(folder / "plain"), **LEARNS))
    run_catalogue(conditioned(folder, output=str(folder / "short")))
    return folder


def ndcg(folder, name, tmp_path, **changes):
    """Test NDCG@10, and the counts of the manifest."""
    output = tmp_path / f"eval_{name}_{len(list(tmp_path.iterdir()))}"
    settings = {"checkpoint": str(folder / name), "output": str(output), "beams": 10, "ks": [1, 10], "resamples": 10}
    result = run_eval(eval_config(folder, **{**settings, **changes}))
    return result.metrics["recommenders"]["beam search"]["sid"]["NDCG@10"][0], counts_of(output)


def test_the_two_slices_are_distinguished(made):
    """Told, the model knows which of two items comes; untold, or never told, it knows no more than both."""
    bundle = load_bundle(made / "conditioned")
    model, number = bundle.model, bundle.table.sid_numbers
    assert bundle.wording.context == (GAP,)
    histories, every = torch.from_numpy(number + 1)[:, None], np.arange(N_ITEMS)
    for context, follower in ((SAME, (every + 1) % N_ITEMS), (LATER, np.full(N_ITEMS, LATER_ON))):
        found = model.leaf_log_probs(histories, torch.full((N_ITEMS, 1), context)).argmax(1)
        assert (found == torch.from_numpy(number[follower])).float().mean() > 0.9
    best = {name: counts_of(made / name)["best"]["eval_ndcg@10"] for name in ("conditioned", "plain")}
    assert best["conditioned"] > 0.95
    assert best["plain"] < 0.9  # half of the rows first and half of them second would be 0.82


def test_an_evaluation_gives_request_features_or_does_not(made, tmp_path, caplog):
    with caplog.at_level("INFO", "minionerec"):
        whole, counts = ndcg(made, "conditioned", tmp_path)
    assert f"Known of {USERS} examples: gap of {USERS}." in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "minionerec"):
        unconditioned, silent = ndcg(made, "conditioned", tmp_path, context=False)
    assert "Known of" not in caplog.text
    assert counts["rows_with_context"] == USERS and "rows_with_context" not in silent
    assert (counts["given"], silent["given"]) == (["gap"], [])
    assert whole > 0.95 and unconditioned < 0.9
    never, plain = ndcg(made, "plain", tmp_path)
    assert "rows_with_context" not in plain and plain["given"] == []  # though context is true
    assert never < 0.9


def test_finished_evaluations_stand(made, tmp_path):
    conditioned_so = eval_config(made)
    assert conditioned_so.deciding()["context"] is True
    assert replace(conditioned_so, context=False).deciding()["context"] is False
    assert read_manifest(made / "conditioned")["settings"]["context"] == ["gap"]
    again = run_catalogue(conditioned(made, output=str(made / "short")))
    assert again.up_to_date


def test_the_weights_of_popularity_are_in_the_manifest_and_the_model(made):
    counts, model = counts_of(made / "short"), load_bundle(made / "short").model
    weights = counts["popularity"]["gap"]
    assert set(weights) == set(GAP.names) and set(weights.values()) <= set(WEIGHTS) and any(weights.values())
    assert model.popularity.weights.tolist() == pytest.approx([weights[name] for name in GAP.names])
    assert model.popularity.logs.std(1).min() > 0.01
    assert "popularity" not in counts_of(made / "plain") and load_bundle(made / "plain").model.popularity is None


def test_a_stopped_run_ends_as_if_nothing_had_happened(made, tmp_path, monkeypatch):
    config = conditioned(made, output=str(tmp_path / "stopped"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 8)
        run_catalogue(config)
    run_catalogue(config)
    assert same_weights(tmp_path / "stopped", made / "short")
    assert counts_of(tmp_path / "stopped")["popularity"] == counts_of(made / "short")["popularity"]


def test_a_training_without_validation_takes_weights_that_were_fitted_before(made, tmp_path, caplog):
    """Its popularity is that of all examples that it was trained on."""
    found = {"gap": {"unknown": 0.3, "same": 1.25, "later": 0.1}}  # which nothing here would find
    assert counts_of(made / "short")["popularity"] != found
    shutil.copytree(made / "short", tmp_path / "chosen")
    spoil_manifest(tmp_path / "chosen", lambda content: content["counts"].update(popularity=found))
    sign(tmp_path / "chosen")
    everything = conditioned(made, output=str(tmp_path / "all"), splits=["train", "valid", "test"])
    result = run_catalogue(replace(everything, fitted_weights=str(tmp_path / "chosen")))
    assert result.counts["popularity"] == found
    model = load_bundle(tmp_path / "all").model
    assert model.popularity.weights.tolist() == pytest.approx(list(found["gap"].values()))
    rows = Corpus.load(made / "corpus").training_on(["valid", "test"])
    counted = model.popularity.logs[UNKNOWN].exp().sum().item()
    assert counted == pytest.approx(len(rows.train) + N_ITEMS * UNSOLD, rel=1e-4)
    without = run_catalogue(replace(everything, output=str(tmp_path / "without"), epochs=0.2))
    assert without.counts["popularity"] == {} and "Give --fitted_weights, a checkpoint" in caplog.text


def test_what_begins_with_a_checkpoint_is_reported_what_that_was(made, tmp_path):
    """Whether the settings say so or not; it is never told where the checkpoint was not."""
    config = catalogue_config(
        made, checkpoint=str(made / "conditioned"), objective="expected", output=str(tmp_path / "on"), epochs=0.6
    )
    assert run_catalogue(config).counts["best"]["eval_ndcg@10"] > 0.95
    bundle = load_bundle(tmp_path / "on")
    assert bundle.wording.context == (GAP,) and bundle.model.config.context_sizes == [3]
    assert set(counts_of(tmp_path / "on")["popularity"]["gap"]) == set(GAP.names)
    assert not run_catalogue(replace(config, context=["gap"], output=str(tmp_path / "said"))).up_to_date
    assert same_weights(tmp_path / "said", tmp_path / "on")
    with pytest.raises(ConfigError, match=r"plain: was trained without context, and context is gap. Leave context out"):
        run_catalogue(replace(config, checkpoint=str(made / "plain"), context=["gap"], output=str(tmp_path / "bad")))
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(("objective", "counts"), [("likelihood", False), ("expected", True)])
def test_popularity_is_no_part_of_the_likelihood(made, tmp_path, monkeypatch, objective, counts):
    """Of a checkpoint that training goes on from it is weighed anew in the end; rewards are for what it recommends."""
    config = catalogue_config(made, checkpoint=str(made / "short"), output=str(tmp_path / "on"), objective=objective)
    weights, step = [], CatalogueTrainer.training_step

    def note(self, model, *words):
        weights.append(model.popularity.weights.any().item())
        return step(self, model, *words)

    monkeypatch.setattr(CatalogueTrainer, "training_step", note)
    run_catalogue(replace(config, epochs=0.4, evals_per_epoch=1))
    assert weights and set(weights) == {counts}
    assert any(counts_of(tmp_path / "on")["popularity"]["gap"].values())


def test_the_reference_is_given_what_the_model_is_given(made, tmp_path, monkeypatch):
    """So the KL term is nothing before the first step, though some contexts are hidden from both."""
    losses, asked = [], []
    step, forward = CatalogueTrainer.training_step, CatalogueModel.forward

    def first(self, model, inputs, *words):
        losses.append(float(step(self, model, inputs, *words)))
        raise Killed

    def note(self, *words, contexts=None, labels=None, **others):
        if labels is not None:
            asked.append((self.training, contexts[labels > 0].flatten().tolist()))
        return forward(self, *words, contexts=contexts, labels=labels, **others)

    for beta in (0.0, 10.0):
        config = catalogue_config(
            made,
            checkpoint=str(made / "conditioned"),
            objective="expected",
            output=str(tmp_path / str(beta)),
            beta=beta,
            dropout=0.0,
        )
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(CatalogueTrainer, "training_step", first)
            patch.setattr(CatalogueModel, "forward", note)
            run_catalogue(config)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    (training, of_model), (reading, of_reference) = asked[-2:]
    assert training and not reading and of_model == of_reference
    assert set(of_model) == {UNKNOWN, SAME, LATER}


def test_a_corpus_without_times_has_no_features(made, tmp_path):
    with pytest.raises(ConfigError, match=r"context names 'gap', which the corpus does not have. It has none, as no"):
        run_catalogue(conditioned(made, corpus=str(made / "timeless"), output=str(tmp_path / "timeless")))
    assert not (tmp_path / "timeless").exists()


@pytest.mark.parametrize("loss", [{}, {"loss": "sampled", "negatives": 6, "max_grad_norm": 0.0}])
def test_a_corpus_of_several_blocks_tells_the_same(made, tmp_path, monkeypatch, caplog, loss):
    keep_in_blocks(monkeypatch)
    with caplog.at_level("INFO", "minionerec"):
        result = run_catalogue(conditioned(made, output=str(tmp_path / "blocks"), **LEARNS, **loss))
    assert "blocks, read one after another" in caplog.text
    assert result.counts["best"]["eval_ndcg@10"] > 0.95
    assert set(result.counts["popularity"]["gap"]) == set(GAP.names)
    logs = [load_bundle(folder).model.popularity.logs for folder in (tmp_path / "blocks", made / "conditioned")]
    assert torch.allclose(*logs, atol=1e-5)


def test_what_is_extended_keeps_request_features_and_popularity(made, tmp_path):
    run_extend(extend_config(made, made / "conditioned", tmp_path / "x"))
    before, after = (load_bundle(folder) for folder in (made / "conditioned", tmp_path / "x"))
    assert after.wording == before.wording
    histories, contexts = torch.tensor([[1, 2], [5, 0]]), torch.tensor([[SAME], [LATER]])
    assert torch.equal(
        after.model.leaf_log_probs(histories, contexts), before.model.leaf_log_probs(histories, contexts)
    )
    assert torch.equal(after.model.popularity.weights, before.model.popularity.weights)


@pytest.mark.parametrize("tokens", [[], [[7]], [[7, 8]], [[1], [2]]])
def test_request_features_of_other_tokens_are_refused(made, tmp_path, tokens):
    bundle = load_bundle(made / "conditioned")
    save_checkpoint(bundle, tmp_path / "saved")
    assert load_bundle(tmp_path / "saved").model.popularity.weights.any() == bundle.model.popularity.weights.any()
    folder = tmp_path / "saved" / "config.json"
    content = json.loads(folder.read_text())
    assert len(content["context_tokens"][0]) == 2
    folder.write_text(json.dumps(content | {"context_tokens": tokens}))
    sign(tmp_path / "saved")
    with pytest.raises(
        ArtefactError, match=r"its context_tokens are not those of wording\.yaml|belong to no part|by config\.json"
    ):
        load_bundle(tmp_path / "saved")
