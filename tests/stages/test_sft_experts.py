"""SFT and GRPO with experts: when they are fitted, what is written, and who uses them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from support.training import grpo_config, make_inputs, same_weights, sft_config

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.models.backbone.bundle import EXPERTS_FILE, load_bundle
from minionerec.models.nn.experts import EXPERTS, FEATURES
from minionerec.pipeline.config.evaluation import EvalConfig
from minionerec.pipeline.config.recommend import ExportConfig
from minionerec.pipeline.config.training import ExtendConfig
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.export import run_export
from minionerec.pipeline.extend import run_extend
from minionerec.pipeline.grpo import run_grpo
from minionerec.pipeline.sft import run_sft
from minionerec.recommend.rankers import expert_fit as stage
from minionerec.recommend.rankers import experts as module
from minionerec.recommend.rankers.language import LanguageRanker
from minionerec.recommend.rankers.protocol import Queries


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A shop of chains, and a model that has hardly learned them, with experts and without."""
    folder = tmp_path_factory.mktemp("shop")
    make_inputs(folder, users=150)
    for name, experts in (("sft", True), ("plain", False)):
        run_sft(sft_config(folder, output=str(folder / name), epochs=1, batch_size=32, experts=experts))
    return folder


def evaluated(folder, name, **changes):
    """NDCG@10 and the lists of an evaluation."""
    settings = {"corpus": str(folder / "corpus"), "checkpoint": str(folder / "sft"), "beams": 10, "ks": [1, 10]}
    settings = {**settings, "resamples": 20, "output": str(folder / name), **changes}
    result = run_eval(EvalConfig(**settings))
    recommenders = read_json(Path(settings["output"]) / "metrics.json")["recommenders"]
    name = next(iter(recommenders))
    return name, recommenders[name]["sid"]["NDCG@10"][0], Predictions.load(result.output).items


def test_they_are_fitted_after_the_training_and_used_by_an_evaluation(shop):
    manifest = read_manifest(shop / "sft")
    assert EXPERTS_FILE in manifest["files"] and EXPERTS_FILE not in read_manifest(shop / "plain")["files"]
    fitted, state = manifest["counts"]["experts"], load_file(shop / "sft" / EXPERTS_FILE)
    assert fitted["after"] > fitted["before"]
    assert state["weights"].shape == (len(FEATURES), len(EXPERTS))
    assert np.allclose(state["weights"], fitted["weights"]) and "experts" not in read_manifest(shop / "plain")["counts"]
    assert same_weights(shop / "sft", shop / "plain")
    together, alone = evaluated(shop, "together"), evaluated(shop, "alone", experts=False)
    assert together[0] == "beam search with experts" and alone[0] == "beam search"
    assert together[1] > alone[1] and together[2] != alone[2]
    assert alone[1:] == evaluated(shop, "never", checkpoint=str(shop / "plain"))[1:]


def test_they_are_left_out_where_validation_examples_are_trained_on(shop, tmp_path, caplog):
    config = sft_config(shop, output=str(tmp_path / "all"), epochs=0.1, experts=True, splits=["train", "valid"])
    run_sft(config)
    assert "Experts are left out: the examples that their weights would be fitted on were trained on" in caplog.text
    assert EXPERTS_FILE not in read_manifest(config.output)["files"]


def test_a_model_of_titles_has_none():
    with pytest.raises(ConfigError, match=r"experts is true, but they rank SIDs, and the tasks are title_to_sid"):
        sft_config(Path("folder"), experts=True, all_positions=False, tasks={"title_to_sid": 1.0})


def test_grpo_fits_its_own(shop, tmp_path):
    config = grpo_config(shop, output=str(tmp_path / "plain"), max_steps=1, tasks={"next_sid": 0.25})
    run_grpo(config)
    assert EXPERTS_FILE not in read_manifest(config.output)["files"]
    run_grpo(replace(config, output=str(tmp_path / "own"), experts=True))
    own = read_manifest(tmp_path / "own")
    assert EXPERTS_FILE in own["files"] and own["counts"]["experts"]["after"] > own["counts"]["experts"]["before"]


def test_an_export_is_the_model_alone_and_an_extension_keeps_them(shop, tmp_path, caplog):
    run_export(ExportConfig(checkpoint=str(shop / "sft"), corpus=str(shop / "corpus"), output=str(tmp_path / "export")))
    assert "The export is the language model alone: other engines do not have its experts." in caplog.text
    assert not (tmp_path / "export" / EXPERTS_FILE).exists()
    settings = {"checkpoint": str(shop / "sft"), "corpus": str(shop / "corpus"), "sids": str(shop / "sids")}
    run_extend(ExtendConfig(**settings, output=str(tmp_path / "extended")))
    corpus, queries = Corpus.load(shop / "corpus"), Queries([np.array([3, 4]), np.array([11])])
    before, after = (
        LanguageRanker(load_bundle(path), corpus).rank(queries, 24) for path in (shop / "sft", tmp_path / "extended")
    )
    assert before.items == after.items


def test_an_assistant_is_not_combined_with_them(shop, tmp_path):
    settings = {"assistant": str(shop / "plain"), "output": str(tmp_path / "eval")}
    with pytest.raises(ConfigError, match=r"has experts, which were fitted to it alone\. Set experts to false"):
        evaluated(shop, "eval", **settings)
    assert evaluated(shop, "eval", **settings, experts=False)[0] == "beam search with plain"


def test_a_fit_to_all_candidates_is_a_fit_to_all_sids(shop, monkeypatch):
    bundle, corpus = load_bundle(shop / "plain"), Corpus.load(shop / "corpus")
    _, whole = stage.with_experts(bundle, corpus, 42)
    monkeypatch.setattr(module, "ALL_SIDS", 1)
    narrowed, found = stage.with_experts(bundle, corpus, 42)
    assert found["experts"]["after"] == whole["experts"]["after"]
    assert np.allclose(found["experts"]["weights"], whole["experts"]["weights"], atol=0.02)
    # Fewer candidates are fitted to, and listed, all the same.
    monkeypatch.setattr(module, "NAMED", 3)
    monkeypatch.setattr(stage, "_BEAMS", 4)
    narrowed, found = stage.with_experts(bundle, corpus, 42)
    assert found["experts"]["after"] > found["experts"]["before"]
    lists = LanguageRanker(narrowed, corpus).rank(Queries(corpus.valid.histories.tolist()), 4).items
    assert np.mean([target in items[:1] for items, target in zip(lists, corpus.valid.targets, strict=True)]) > 0.5
