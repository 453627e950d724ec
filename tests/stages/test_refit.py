"""Training on all rows for service: which rows, how long, that nothing is measured, and that no figure comes of it."""

from collections import Counter
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from support.builder import build
from support.commands import command
from support.evaluation import config as eval_config
from support.examples import user_windows
from support.kill import Point, stage_in_child
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

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.refit import refitted_ancestor, require_held_out
from minionerec.data.corpus import Corpus
from minionerec.data.source import Source, item_table
from minionerec.metrics.predictions import Predictions
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.nn.experts import EXPERTS, FEATURES
from minionerec.recommend.config import ExportConfig
from minionerec.recommend.evaluation.stage import run_eval
from minionerec.recommend.export import run_export
from minionerec.recommend.rankers.lists import rank_rows
from minionerec.recommend.rankers.load import load_ranker
from minionerec.reports.config import LevelsConfig, ReportConfig
from minionerec.reports.levels import run_levels
from minionerec.reports.report import run_report
from minionerec.training.catalogue import run_catalogue
from minionerec.training.extend import run_extend
from minionerec.training.grpo.stage import run_grpo
from minionerec.training.sft import run_sft

# make_inputs: 40 users with 3 training rows, one of valid and one of test each.
TRAINED, ALL = 120, 200


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Chosen models, and their refits."""
    folder = tmp_path_factory.mktemp("refit")
    make_inputs(folder)
    catalogue = partial(catalogue_config, folder, epochs=3)
    sft = partial(sft_config, folder, evals_per_epoch=2)
    run_catalogue(catalogue())
    run_sft(sft())
    run_catalogue(catalogue(output=str(folder / "catalogue_all"), refit=str(folder / "catalogue")))
    run_sft(sft(output=str(folder / "sft_all"), refit=str(folder / "sft")))
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
    joined = corpus.with_every_row()
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
        assert len(windows) == len(set(users))  # a user's rows of all splits are one window


def test_all_rows_are_trained_on_and_none_is_measured(made):
    for name, rows in (("catalogue", "targets"), ("sft", "losses")):
        chosen, refit = counts_of(made / name), counts_of(made / f"{name}_all")
        assert (chosen[rows], refit[rows]) == ((TRAINED, ALL) if name == "catalogue" else (3 * TRAINED, 3 * ALL))
        assert refit["refit"] is True
        assert "refit" not in chosen
        assert not {"best", "best_step"} & refit.keys()
        assert not [key for row in log_of(made / f"{name}_all") for key in row if key.startswith("eval")]
        assert logged(made / f"{name}_all", "loss")
        assert not same_weights(made / name, made / f"{name}_all")
        assert set(read_manifest(made / f"{name}_all")["inputs"]) == {"corpus", "sids", "refit"}
    pairs = [load_bundle(made / name).model.config.num_transitions for name in ("catalogue", "catalogue_all")]
    assert pairs[0] < pairs[1]


def test_experts_count_all_rows_with_the_weights_of_the_chosen_run(made, tmp_path):
    """A refit has no held-out rows: what experts count for is the chosen run's, the counts are its own."""
    shape = {"experts": True, "recency": 3, "epochs": 1}
    run_catalogue(catalogue_config(made, output=str(tmp_path / "chosen"), **shape))
    weights = np.random.default_rng(0).normal(size=(len(FEATURES), len(EXPERTS))).tolist()
    bounds = {"least": [-9.0] * len(FEATURES), "most": [9.0] * len(FEATURES)}
    found = {"experts": {"weights": weights, **bounds, "before": 0.1, "after": 0.2}}
    spoil_manifest(tmp_path / "chosen", lambda content: content["counts"].update(found))
    sign(tmp_path / "chosen")
    refit = run_catalogue(catalogue_config(made, output=str(tmp_path / "all"), refit=str(tmp_path / "chosen"), **shape))
    assert refit.counts["experts"] == found["experts"]
    before, after = (load_bundle(tmp_path / name).model.experts for name in ("chosen", "all"))
    assert torch.allclose(after.weights, torch.tensor(weights))
    assert not torch.equal(before.popularity, after.popularity) and not torch.equal(before.repeats, after.repeats)
    assert len(before.followers) < len(after.followers)


def test_rows_without_windows_are_counted_too(made, tmp_path):
    chosen = sft_config(made, output=str(tmp_path / "rows"), all_positions=False, epochs=1)
    assert run_sft(chosen).counts["rows"] == {"next_sid": TRAINED}
    found = run_sft(replace(chosen, output=str(tmp_path / "all"), refit=chosen.output)).counts
    assert found["rows"] == {"next_sid": ALL}
    assert found["steps"] == ALL // 8  # one epoch of more steps


def test_it_ends_where_the_best_weights_stood_on_the_schedule_of_the_chosen_run(made, tmp_path):
    # The learning rate rises until it does harm, so that an early validation is the best one.
    hurt = {"epochs": 4, "learning_rate": 2.0, "warmup": 0.9, "max_grad_norm": 100.0, "schedule": "linear"}
    choice = {"evals_per_epoch": 3, "select_by": "loss"}
    chosen = sft_config(made, output=str(tmp_path / "chosen"), all_positions=False, **hurt, **choice)
    result = run_sft(chosen)
    best, steps = result.counts["best_step"], result.counts["steps"]
    assert best < steps == 60
    refit = run_sft(replace(chosen, output=str(tmp_path / "all"), refit=chosen.output))
    assert refit.counts["steps"] == round(best * ALL / TRAINED)
    assert refit.counts["epochs"] == pytest.approx(best / 15, abs=1 / 25)
    last = [row for row in log_of(tmp_path / "all") if "learning_rate" in row][-1]
    assert last["step"] == refit.counts["steps"]
    # The schedule goes up over 90 of 100 steps, of which the refit makes its share; a log shows the step before.
    assert last["step"] < 90
    assert last["learning_rate"] == pytest.approx(2.0 * (last["step"] - 1) / 90)


def test_a_refit_killed_and_repeated_equals_uninterrupted(made, tmp_path, monkeypatch):
    config = catalogue_config(made, epochs=3, output=str(tmp_path / "killed"), refit=str(made / "catalogue"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 5)
        run_catalogue(config)
    run_catalogue(config)
    assert same_weights(config.output, made / "catalogue_all")
    assert log_of(tmp_path / "killed") == log_of(made / "catalogue_all")
    assert not (tmp_path / "killed.finished").exists()


def test_a_refit_that_has_ended_makes_no_more_steps(made, tmp_path):
    config = sft_config(made, evals_per_epoch=2, output=str(tmp_path / "cut" / "sft"), refit=str(made / "sft"))
    totals = stage_in_child(run_sft, tmp_path / "cut", config)
    (tmp_path / "cut").rename(tmp_path / "whole")
    stage_in_child(run_sft, tmp_path / "cut", config, Point("write", totals["write"] - 3))
    assert (tmp_path / "cut" / "sft.partial").is_dir()
    assert stage_in_child(run_sft, tmp_path / "cut", config)["step"] == 0
    assert same_weights(tmp_path / "cut" / "sft", made / "sft_all")
    assert same_weights(tmp_path / "whole" / "sft", made / "sft_all")


def test_what_measures_refuses_it(made, tmp_path):
    words = r"sft_all: was trained on all examples, .* It is for serving; measure .*/sft instead"
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
    words = r"predictions: was made with .*sft_all, which was trained on all examples"
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
    assert refitted_ancestor(folder) == made / "sft_all"
    require_held_out(made / "sft")
    require_held_out(tmp_path / "nothing")


def test_what_was_made_from_an_earlier_checkpoint_at_the_path_is_not_refused(made, tmp_path):
    """A path that now holds a refit, but held another checkpoint when the predictions were made."""
    run_sft(sft_config(made, output=str(tmp_path / "sft"), epochs=0.2))
    lists = Predictions(["u"], np.array([1]), [""], [[0, 1]], [["", ""]], [[2.0, 1.0]])
    lists.save(tmp_path / "predictions", config={}, inputs={"checkpoint": tmp_path / "sft"})
    run_sft(sft_config(made, evals_per_epoch=2, output=str(tmp_path / "sft"), refit=str(made / "sft")))
    assert refitted_ancestor(tmp_path / "sft") == tmp_path / "sft"
    require_held_out(tmp_path / "predictions")


def test_a_run_that_validates_does_not_begin_with_it(made, tmp_path):
    words = "trained on all examples, .* A run that validates cannot start from it; only a refit can"
    here = {"output": str(tmp_path / "out")}
    with pytest.raises(ArtefactError, match=words):
        run_sft(sft_config(made, teacher=str(made / "catalogue_all"), **here))
    with pytest.raises(ArtefactError, match=words):
        run_sft(sft_config(made, model=str(made / "sft_all"), dropout=0.0, **here))
    with pytest.raises(ArtefactError, match=words):
        run_catalogue(catalogue_config(made, checkpoint=str(made / "catalogue_all"), **here))
    with pytest.raises(ArtefactError, match=words):
        run_grpo(grpo_config(made, checkpoint=str(made / "sft_all"), **here))


def test_a_distilled_and_a_sharpened_model_are_refit_with_refits(made, tmp_path):
    distilled = sft_config(made, epochs=1, teacher=str(made / "catalogue"), output=str(tmp_path / "distilled"))
    run_sft(distilled)
    again = replace(
        distilled, output=str(tmp_path / "all"), refit=distilled.output, teacher=str(made / "catalogue_all")
    )
    assert run_sft(again).counts["refit"] is True
    sharp = catalogue_config(
        made, checkpoint=str(made / "catalogue"), objective="expected", learning_rate=1e-2, output=str(tmp_path / "r")
    )
    assert run_catalogue(sharp).counts["best_step"] > 0
    with pytest.raises(ArtefactError, match=r"/catalogue: was not trained on all examples, .* Refit it first"):
        run_catalogue(replace(sharp, output=str(tmp_path / "r_all"), refit=sharp.output))
    whole = {"checkpoint": str(made / "catalogue_all"), "output": str(tmp_path / "r_all"), "refit": sharp.output}
    counts = run_catalogue(replace(sharp, **whole)).counts
    assert (counts["targets"], counts["refit"]) == (ALL, True)
    assert not [key for row in log_of(tmp_path / "r_all") for key in row if key.startswith("eval")]


def test_newer_rows_are_welcome(made, tmp_path):
    make_inputs(tmp_path, users=60)
    newer = {"corpus": str(tmp_path / "corpus"), "sids": str(tmp_path / "sids"), "output": str(tmp_path / "all")}
    counts = run_catalogue(catalogue_config(made, epochs=3, refit=str(made / "catalogue"), **newer)).counts
    assert counts["targets"] == 5 * 60


def test_what_is_extended_stays_a_refit(made, tmp_path):
    """Its counts of pairs are those of all rows, and nothing measures it, wherever the refit lies by then."""
    run_extend(extend_config(made, made / "catalogue_all", tmp_path / "more"))
    assert counts_of(tmp_path / "more")["refit"] is True
    before, after = (load_bundle(folder).model for folder in (made / "catalogue_all", tmp_path / "more"))
    assert before.config.num_transitions == after.config.num_transitions
    with pytest.raises(ArtefactError, match="more: was trained on all examples"):
        run_eval(eval_config(made, checkpoint=str(tmp_path / "more"), output=str(tmp_path / "eval")))


def test_items_of_an_sid_are_ranked_by_all_rows(made, tmp_path):
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
    assert exported.counts["refit"] is True
    assert "metrics on these are not valid" in (exported.output / "README.md").read_text()


@pytest.mark.parametrize(
    ("refit", "changes", "error", "message"),
    [
        ("sft", {"seed": 1}, ConfigError, r"other settings, seed \(there 42, here 1\)\. A refit takes"),
        ("sft", {"epochs": 9}, ConfigError, r"epochs \(there 2, here 9"),
        (
            "sft",
            {"layers": 1, "heads": 1, "kv_heads": 1, "inner_size": 8, "seed": 1, "tied": False},
            ConfigError,
            "and 1 more",
        ),
        ("sft", {"teacher": "catalogue"}, ConfigError, r"teacher \(given here, not there\)"),
        ("sft_all", {}, ArtefactError, "is itself trained on all examples; give refit the checkpoint that validation"),
        ("catalogue", {}, ConfigError, "was made by another stage"),
        ("corpus", {}, ArtefactError, "holds a 'corpus', expected a 'checkpoint'"),
        ("missing", {}, ArtefactError, "missing"),
    ],
)
def test_what_is_refused(made, tmp_path, refit, changes, error, message):
    changes = {name: str(made / value) if name == "teacher" else value for name, value in changes.items()}
    changes = {"evals_per_epoch": 2, **changes, "output": str(tmp_path / "out"), "refit": str(made / refit)}
    with pytest.raises(error, match=message):
        run_sft(sft_config(made, **changes))
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_better_step_leaves_nothing_to_refit(made, tmp_path):
    worse = catalogue_config(
        made, checkpoint=str(made / "catalogue"), objective="expected", weight_decay=500.0, output=str(tmp_path / "w")
    )
    assert run_catalogue(worse).counts["best_step"] == 0
    whole = {"checkpoint": str(made / "catalogue_all"), "output": str(tmp_path / "all"), "refit": worse.output}
    with pytest.raises(ArtefactError, match="no step of its run was better than its beginning"):
        run_catalogue(replace(worse, **whole))


def test_how_a_step_is_computed_may_differ(made, tmp_path):
    config = sft_config(made, evals_per_epoch=2, refit=str(made / "sft"), output=str(tmp_path / "all"))
    counts = run_sft(replace(config, device_batch_size=4, gradient_checkpointing=True)).counts
    assert counts["steps"] == counts_of(made / "sft_all")["steps"]


def test_the_command_says_what_it_is(made, tmp_path):
    """A second run of the same command does nothing, and says the same."""
    config = catalogue_config(made, epochs=3, refit=str(made / "catalogue"), output=str(tmp_path / "all"))
    (tmp_path / "catalogue.yaml").write_text(yaml.safe_dump(asdict(config)))
    for _ in range(2):
        done = command(tmp_path, "train-catalogue", "--config", "catalogue.yaml")
        assert done.status == 0 and "trained on all examples: for deployment, not for evaluation" in done.out
    assert same_weights(tmp_path / "all", made / "catalogue_all")
    assert torch.isfinite(next(iter(load_bundle(tmp_path / "all").model.parameters()))).all()
