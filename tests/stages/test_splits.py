"""Training on more splits than train: which examples, that nothing is measured, and that no figure comes of it."""

from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from support.builder import build
from support.commands import command
from support.evaluation import config as eval_config
from support.examples import user_windows
from support.small_shop import sign, spoil_manifest
from support.training import (
    Killed,
    catalogue_config,
    extend_config,
    grpo_config,
    kill_after,
    log_of,
    logged,
    make_inputs,
    same_weights,
    sft_config,
)

from minionerec.core.artefacts import read_manifest, require_unseen, trained_splits
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.source import Source, item_table
from minionerec.metrics.predictions import Predictions
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.nn.experts import EXPERTS, FEATURES
from minionerec.pipeline.config.recommend import ExportConfig
from minionerec.pipeline.config.reports import LevelsConfig, ReportConfig
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.export import run_export
from minionerec.pipeline.extend import run_extend
from minionerec.pipeline.grpo import run_grpo
from minionerec.pipeline.levels import run_levels
from minionerec.pipeline.report import run_report
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.recommend.rankers.lists import rank_rows
from minionerec.recommend.rankers.load import load_ranker

# make_inputs: 40 users with 3 training examples, one of valid and one of test each.
TRAINED, ALL = 120, 200
SPLITS = ["train", "valid", "test"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Models that validation chose, and those of all examples."""
    folder = tmp_path_factory.mktemp("splits")
    make_inputs(folder)
    for name, run, make in (("catalogue", run_catalogue, catalogue_config), ("sft", run_sft, sft_config)):
        config = make(folder, epochs=3, evals_per_epoch=2)
        run(config)
        run(replace(config, output=str(folder / f"{name}_all"), splits=SPLITS))
    return folder


def counts_of(path):
    return read_manifest(path)["counts"]


def random_corpus(seed, split, max_history):
    """Users of 1 to 12 items, their interactions in one order of time."""
    rng = np.random.default_rng(seed)
    users = rng.permutation(np.repeat(np.arange(30), rng.integers(1, 13, 30)))
    items = rng.integers(0, 9, len(users))
    source = Source(
        items=item_table([f"i{n}" for n in range(9)], title=["t"] * 9),
        users=users.astype(np.int32),
        item_index=items.astype(np.int32),
        times=1_500_000_000 + np.arange(len(users)),
        user_ids=pa.array([f"u{user}" for user in range(30)]),
        where="made up",
    )
    corpus = build(source, split=split, max_history=max_history).corpus()
    return replace(corpus, **{name: replace(rows, times=None) for name, rows in corpus.splits().items()})


@pytest.mark.parametrize("split", ["global_time", "leave_last_out"])
@pytest.mark.parametrize("max_history", [2, 5, 20])
def test_every_row_is_a_target_once_and_users_stay_whole(split, max_history):
    corpus = random_corpus(max_history, split, max_history)
    joined = corpus.training_on(SPLITS)
    users = np.concatenate([rows.users for rows in corpus.splits().values()])
    targets = np.concatenate([rows.targets for rows in corpus.splits().values()])
    assert len(joined.train) == sum(map(len, corpus.splits().values()))
    assert joined.popularity().tolist() == np.bincount(targets, minlength=9).tolist()
    assert joined.train.targets.dtype == np.int32
    windows = user_windows(joined)
    seen = Counter()
    for window in windows:
        for position in range(window.first_target, len(window.items)):
            history = joined.train.histories[window.rows[position]].tolist()
            assert joined.train.targets[window.rows[position]] == window.items[position]
            shown = window.items[:position].tolist()
            assert len(shown) >= min(len(history), max_history // 2)
            kept = min(len(shown), len(history))
            assert shown[len(shown) - kept :] == history[len(history) - kept :]
            seen[int(window.rows[position])] += 1
    assert seen == Counter(range(len(targets)))
    if max_history == 20:
        assert len(windows) == len(set(users))  # a user's examples of all splits are one window


def test_examples_of_all_splits_are_trained_on_and_none_is_measured(made):
    for name, key, size in (("catalogue", "targets", 1), ("sft", "losses", 3)):
        chosen, final = counts_of(made / name), counts_of(made / f"{name}_all")
        assert (chosen[key], final[key]) == (size * TRAINED, size * ALL)
        assert final["splits"] == SPLITS and "splits" not in chosen
        assert not {"best", "best_step"} & final.keys()
        assert not [key for row in log_of(made / f"{name}_all") for key in row if key.startswith("eval")]
        assert logged(made / f"{name}_all", "loss")
        assert not same_weights(made / name, made / f"{name}_all")
    pairs = [load_bundle(made / name).model.config.num_transitions for name in ("catalogue", "catalogue_all")]
    assert pairs[0] < pairs[1]


def test_train_and_valid_are_for_test(made, tmp_path):
    """Such a model is evaluated on test examples, and not on those of valid."""
    config = catalogue_config(made, epochs=1, output=str(tmp_path / "two"), splits=["train", "valid"])
    assert run_catalogue(config).counts["targets"] == 160
    asked = eval_config(made, checkpoint=config.output, output=str(tmp_path / "eval"))
    assert len(Predictions.load(run_eval(asked).output)) == 40
    words = r"two: was trained on the valid examples \(splits\), so metrics on them would mean nothing"
    with pytest.raises(ArtefactError, match=words):
        run_eval(replace(asked, split="valid", output=str(tmp_path / "valid")))


def test_experts_count_all_examples_with_the_weights_that_were_fitted_before(made, tmp_path):
    shape = {"experts": True, "recency": 3, "epochs": 1}
    run_catalogue(catalogue_config(made, output=str(tmp_path / "chosen"), **shape))
    weights = np.random.default_rng(0).normal(size=(len(FEATURES), len(EXPERTS))).tolist()
    bounds = {"least": [-9.0] * len(FEATURES), "most": [9.0] * len(FEATURES)}
    found = {"experts": {"weights": weights, **bounds, "before": 0.1, "after": 0.2}}
    spoil_manifest(tmp_path / "chosen", lambda content: content["counts"].update(found))
    sign(tmp_path / "chosen")
    shape |= {"splits": SPLITS, "fitted_weights": str(tmp_path / "chosen")}
    final = run_catalogue(catalogue_config(made, output=str(tmp_path / "all"), **shape))
    assert final.counts["experts"] == found["experts"]
    before, after = (load_bundle(tmp_path / name).model.experts for name in ("chosen", "all"))
    assert torch.allclose(after.weights, torch.tensor(weights))
    assert not torch.equal(before.popularity, after.popularity) and not torch.equal(before.repeats, after.repeats)
    assert len(before.followers) < len(after.followers)


def test_examples_without_windows_are_counted_too(made, tmp_path):
    config = sft_config(made, output=str(tmp_path / "rows"), all_positions=False, epochs=1, splits=SPLITS)
    counts = run_sft(config).counts
    assert (counts["rows"], counts["steps"]) == ({"next_sid": ALL}, ALL // 8)


def test_a_run_killed_and_repeated_equals_uninterrupted(made, tmp_path, monkeypatch):
    config = catalogue_config(made, epochs=3, evals_per_epoch=2, output=str(tmp_path / "killed"), splits=SPLITS)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 5)
        run_catalogue(config)
    run_catalogue(config)
    assert same_weights(config.output, made / "catalogue_all")
    assert log_of(tmp_path / "killed") == log_of(made / "catalogue_all")


def test_what_measures_refuses_it(made, tmp_path):
    words = r"sft_all: was trained on the test examples \(splits\), so metrics on them would mean nothing"
    asked = eval_config(made, checkpoint=str(made / "sft_all"), output=str(tmp_path / "eval"))
    with pytest.raises(ArtefactError, match=words):
        run_eval(asked)
    assert not (tmp_path / "eval").exists()
    corpus = Corpus.load(made / "corpus")
    ranker = load_ranker(made / "sft_all", corpus)
    lists = rank_rows(ranker, corpus.rows("test"), 5, corpus.n_items, table=ranker.table)
    folder = tmp_path / "predictions"
    lists.save(folder, config={}, inputs={"checkpoint": made / "sft_all"}, counts={"split": "test", "beams": 5})
    assert len(Predictions.load(folder)) == 40
    words = r"predictions: was made with .*sft_all, which was trained on the test examples"
    report = ReportConfig(
        corpus=str(made / "corpus"), predictions={"model": str(folder)}, output=str(tmp_path / "report"), sids=""
    )
    for run, settings in (
        (run_report, report),
        (run_levels, LevelsConfig(predictions=str(folder))),
        (run_levels, LevelsConfig(predictions=str(folder / "predictions.parquet"))),
    ):
        with pytest.raises(ArtefactError, match=words):
            run(settings)
    assert trained_splits(folder) == {"valid": made / "sft_all", "test": made / "sft_all"}
    require_unseen(made / "sft", "test")
    require_unseen(tmp_path / "nothing")


def test_what_was_made_from_an_earlier_checkpoint_at_the_path_is_not_refused(made, tmp_path):
    """A path that now holds such a model, but held another checkpoint when the predictions were made."""
    run_sft(sft_config(made, output=str(tmp_path / "sft"), epochs=0.2))
    lists = Predictions(["u"], np.array([1]), [""], [[0, 1]], [["", ""]], [[2.0, 1.0]])
    lists.save(tmp_path / "predictions", config={}, inputs={"checkpoint": tmp_path / "sft"})
    run_sft(sft_config(made, epochs=0.2, output=str(tmp_path / "sft"), splits=SPLITS))
    assert trained_splits(tmp_path / "sft")["test"] == tmp_path / "sft"
    require_unseen(tmp_path / "predictions")


def test_a_run_that_validates_does_not_begin_with_it(made, tmp_path):
    words = "trained on the valid examples .* Only a run that trains on them too can start from it"
    here = {"output": str(tmp_path / "out")}
    with pytest.raises(ArtefactError, match=words):
        run_sft(sft_config(made, teacher=str(made / "catalogue_all"), **here))
    with pytest.raises(ArtefactError, match=words):
        run_sft(sft_config(made, model=str(made / "sft_all"), dropout=0.0, **here))
    with pytest.raises(ArtefactError, match=words):
        run_catalogue(catalogue_config(made, checkpoint=str(made / "catalogue_all"), **here))
    with pytest.raises(ArtefactError, match=words):
        run_grpo(grpo_config(made, checkpoint=str(made / "sft_all"), **here))


def test_a_distilled_and_a_sharpened_model_are_trained_on_what_they_begin_with(made, tmp_path):
    teacher = str(made / "catalogue_all")
    distilled = sft_config(made, epochs=1, teacher=teacher, output=str(tmp_path / "distilled"), splits=SPLITS)
    assert run_sft(distilled).counts["splits"] == SPLITS
    sharp = catalogue_config(made, checkpoint=teacher, objective="expected", output=str(tmp_path / "sharp"), epochs=1)
    counts = run_catalogue(replace(sharp, splits=SPLITS)).counts
    assert (counts["targets"], counts["splits"]) == (ALL, SPLITS)
    assert not [key for row in log_of(tmp_path / "sharp") for key in row if key.startswith("eval")]
    other = replace(sharp, checkpoint=str(made / "catalogue"), splits=SPLITS, output=str(tmp_path / "other"))
    with pytest.raises(ArtefactError, match=r"catalogue: was trained on train, and this run is on train valid test"):
        run_catalogue(other)


def test_what_is_extended_stays_trained_on_these_splits(made, tmp_path):
    """Its counts of pairs are those of all examples, and nothing measures it, wherever the checkpoint lies by then."""
    run_extend(extend_config(made, made / "catalogue_all", tmp_path / "more"))
    assert counts_of(tmp_path / "more")["splits"] == SPLITS
    before, after = (load_bundle(folder).model for folder in (made / "catalogue_all", tmp_path / "more"))
    assert before.config.num_transitions == after.config.num_transitions
    with pytest.raises(ArtefactError, match="more: was trained on the test examples"):
        run_eval(eval_config(made, checkpoint=str(tmp_path / "more"), output=str(tmp_path / "eval")))


def test_items_of_an_sid_are_ranked_by_all_examples(made, tmp_path):
    corpus = Corpus.load(made / "corpus")
    behind = [load_ranker(made / name, corpus) for name in ("sft", "sft_all")]
    assert list(behind[0].items_of) == list(behind[1].items_of)  # here each SID has one item
    counted = []

    class Counted(Corpus):
        def popularity(self):
            counted.append(len(self.train))
            return super().popularity()

    mine = Counted(**{name: getattr(corpus, name) for name in corpus.__dataclass_fields__})
    for name in ("sft", "sft_all"):
        load_ranker(made / name, mine)
    assert (counted[0], counted[-1]) == (TRAINED, ALL)
    exported = run_export(
        ExportConfig(checkpoint=str(made / "sft_all"), corpus=str(made / "corpus"), output=str(tmp_path / "export"))
    )
    assert exported.counts["splits"] == SPLITS
    assert "metrics on these are not valid" in (exported.output / "README.md").read_text()


@pytest.mark.parametrize("splits", [["valid"], ["train", "test"], ["valid", "train"], []], ids=str)
def test_splits_are_the_beginning_of_a_history(made, tmp_path, splits):
    with pytest.raises(ConfigError, match="splits"):
        run_sft(sft_config(made, splits=splits, output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_is(made, tmp_path):
    """A second run of the same command does nothing, and says the same."""
    config = replace(catalogue_config(made, epochs=1, output=str(tmp_path / "all")), splits=["train"])
    (tmp_path / "catalogue.yaml").write_text(yaml.safe_dump(asdict(config)))
    for _ in range(2):
        done = command(tmp_path, "train-catalogue", "--config", "catalogue.yaml", "--splits", *SPLITS)
        assert done.status == 0 and "trained on valid and test too: not for evaluation on these" in done.out
