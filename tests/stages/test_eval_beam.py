"""Evaluation by beam search: real items, honest lists, and no say for generation configs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.evaluation import CODES, config, copy_artefact

from minionerec.core.artefacts import read_manifest, write_artefact
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.metrics.levels import level_analysis
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.published_json import read_published_json
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.pipeline.evaluate import run_eval
from minionerec.recommend.rankers.candidates import ranked_items
from minionerec.sid.table import SidTable

# Items 1 and 4 share an SID, and 4 is the more popular of the two.


def test_lists_hold_every_sid_once_and_its_items_by_popularity(made):
    result = run_eval(config(made, baselines=True))
    predictions = Predictions.load(result.output)
    table = SidTable.load_index(made / "sids")
    assert len(predictions) == 40
    for items, sids, scores in zip(predictions.items, predictions.sids, predictions.scores, strict=True):
        assert sorted(items) == list(range(6))
        assert [table.sids[item] for item in items] == sids
        assert items.index(1) == items.index(4) + 1
        assert scores == sorted(scores, reverse=True)
    recommender = result.metrics["recommenders"]["beam search"]
    assert recommender["invalid"] == 0
    assert recommender["sid"]["HR@5"] == [1.0, 1.0, 1.0]
    assert recommender["item"]["HR@1"][0] <= recommender["sid"]["HR@1"][0]
    assert {"popularity", "most recent items", "transition counts", "EASE"} < set(result.metrics["recommenders"])


def test_parquet_and_published_json_tell_the_same(made):
    output = run_eval(config(made)).output
    from_parquet = level_analysis(Predictions.load(output), [1, 5])
    from_json = level_analysis(read_published_json(output / "predictions.json"), [1, 5])
    assert from_parquet.to_json() == from_json.to_json()
    first = json.loads((output / "predictions.json").read_text())[0]
    assert set(first) == {"input", "output", "predict"}
    assert first["output"].endswith(">\n")


POISON = {"do_sample": True, "top_k": 1, "temperature": 0.7, "top_p": 0.1, "repetition_penalty": 5.0, "num_beams": 3}


@pytest.mark.parametrize("search", ["beam", "exact"])
def test_a_poisoned_generation_config_changes_nothing(made, tmp_path, search):
    clean = run_eval(config(made, search=search, output=str(tmp_path / "clean"))).output / "predictions.parquet"
    before = json.loads((made / "checkpoint" / "generation_config.json").read_text())
    text = json.dumps({**before, **POISON})
    bad = copy_artefact(made / "checkpoint", tmp_path / "checkpoint", **{"generation_config.json": text})
    changes = {"search": search, "checkpoint": str(bad), "output": str(tmp_path / "poisoned")}
    poisoned = run_eval(config(made, **changes)).output / "predictions.parquet"
    assert load_bundle(bad).model.generation_config.do_sample is False
    assert poisoned.read_bytes() == clean.read_bytes()


def test_exact_search_finds_what_a_beam_as_wide_as_the_catalogue_finds(made, tmp_path):
    beam = Predictions.load(run_eval(config(made)).output)
    result = run_eval(config(made, search="exact", output=str(tmp_path / "e")))
    exact = Predictions.load(result.output)
    assert exact.items == beam.items
    for ours, theirs in zip(exact.scores, beam.scores, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert "exact search" in result.metrics["recommenders"]
    best = Predictions.load(
        run_eval(config(made, search="exact", beams=2, ks=[1, 2], output=str(tmp_path / "b"))).output
    )
    assert [row[: len(few)] for row, few in zip(exact.items, best.items, strict=True)] == best.items


def test_few_users_for_an_interval_are_reported(made, tmp_path, caplog, monkeypatch):
    users = len(set(Corpus.load(made / "corpus").test.users))
    for fewest in (users, users + 1):
        monkeypatch.setattr("minionerec.recommend.evaluation.measuring.FEWEST", fewest)
        caplog.clear()
        run_eval(config(made, output=str(tmp_path / str(fewest))))
        found = f"are of {users} users, too few for intervals by user" in caplog.text
        assert found == (users < fewest)


def test_prompts_that_were_cut_are_counted(made, tmp_path, caplog):
    counts = read_manifest(run_eval(config(made)).output)["counts"]
    assert counts["truncated_prompts"] == 0
    folder = copy_artefact(made / "checkpoint", tmp_path / "checkpoint", {"max_prompt_length": 4})
    caplog.set_level("INFO")
    found = run_eval(config(made, checkpoint=str(folder), output=str(tmp_path / "short")))
    corpus, bundle = Corpus.load(made / "corpus"), load_bundle(folder)
    histories = corpus.rows("test").histories
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    prompts = [builder.prompt("next_sid", history=history) for history in histories]
    wanted = sum(len(bundle.tokenizer(prompt)["input_ids"]) > 4 for prompt in prompts)
    assert 0 < wanted < len(histories)
    assert read_manifest(found.output)["counts"]["truncated_prompts"] == wanted
    assert f"{wanted} of 40 prompts were truncated to their last 4 tokens" in caplog.text


def test_scores_change_with_the_normaliser(made, tmp_path):
    full = Predictions.load(run_eval(config(made)).output)
    other = Predictions.load(run_eval(config(made, scores="renormalised", output=str(tmp_path / "r"))).output)
    assert np.exp([np.unique(row) for row in other.scores]).sum(1) == pytest.approx(1, abs=1e-4)
    assert np.exp([np.unique(row) for row in full.scores]).sum(1).max() < 0.999


def test_masked_lists_are_the_kept_ones_without_the_history(made, tmp_path):
    kept = Predictions.load(run_eval(config(made)).output)
    result = run_eval(config(made, seen="mask", beams=2, ks=[1, 2], output=str(tmp_path / "m")))
    masked = Predictions.load(result.output)
    assert set(result.metrics["recommenders"]) == {"beam search"}
    histories = [set(history.tolist()) for history in Corpus.load(made / "corpus").rows("test").histories]
    assert any(set(row[:3]) & gone for row, gone in zip(kept.items, histories, strict=True))
    for everything, sids, row, gone in zip(kept.items, masked.sids, masked.items, histories, strict=True):
        wanted = [item for item in everything if item not in gone]
        assert row == wanted[: len(row)]
        assert len(set(sids)) == min(2, len({(0, 1) if item in (1, 4) else item for item in wanted}))


def test_ranked_items():
    table = SidTable(CODES, list("uvwxyz"))
    popularity, by_id = np.array([0, 2, 0, 0, 2, 0]), np.arange(6)
    assert list(ranked_items(table.sid_numbers, popularity, by_id)) == [[0], [1, 4], [2], [5], [3]]
    assert ranked_items(table.sid_numbers, popularity, by_id[::-1])[1] == [4, 1]
    assert ranked_items(table.sid_numbers, np.array([0, 1, 0, 0, 2, 0]), by_id)[1] == [4, 1]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"beams": 6, "ks": [1]},
            ConfigError,
            "beams is 6, but the catalogue has 5 distinct SIDs; give --beams 5 or fewer",
        ),
        ({"ks": [1, 10]}, ConfigError, "ks 1 10 with 5 beams: each K must be from 1 to the number of beams"),
        ({"ks": []}, ConfigError, "ks empty with 5 beams"),
        ({"checkpoint": ""}, ConfigError, "checkpoint is empty; give --checkpoint a directory, or --ranker"),
        ({"ranker": "no_such.make"}, ConfigError, "there is no module 'no_such'"),
    ],
)
def test_bad_settings(made, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        run_eval(config(made, **{"output": str(tmp_path / "bad"), **changes}))
    assert not (tmp_path / "bad").exists()


def test_inputs_that_do_not_belong_together(made, tmp_path):
    table = SidTable.load_index(made / "sids")
    with write_artefact(tmp_path / "sids", "sids", config={}) as folder:
        SidTable(table.codes + 1, table.item_ids).save_index(folder / "index.json")
    with pytest.raises(ArtefactError, match="was trained on the SID table"):
        run_eval(config(made, sids=str(tmp_path / "sids"), output=str(tmp_path / "bad")))
    corpus = Corpus.load(made / "corpus")
    renamed = replace(corpus, items=corpus.items.assign(item_id=list("uvwxyq")))
    renamed.save(tmp_path / "corpus", config={}, inputs={})
    with pytest.raises(DataError, match="item 5 is 'q', in the SID table 'z'"):
        run_eval(config(made, corpus=str(tmp_path / "corpus"), output=str(tmp_path / "bad")))
    replace(corpus, test=corpus.test.take(slice(0))).save(tmp_path / "empty", config={}, inputs={})
    with pytest.raises(DataError, match="split 'test' holds no example"):
        run_eval(config(made, corpus=str(tmp_path / "empty"), output=str(tmp_path / "bad")))
    with pytest.raises(ArtefactError, match="holds a 'sids', expected a 'checkpoint'"):
        run_eval(config(made, checkpoint=str(made / "sids"), output=str(tmp_path / "bad")))
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArtefactError, match="cannot be written"):
        run_eval(config(made, output=str(tmp_path / "file" / "out")))
