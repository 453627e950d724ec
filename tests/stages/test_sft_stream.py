"""SFT from a corpus of several blocks: the examples of one, and a run that dies goes on to the same weights."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import yaml
from support.examples import from_blocks, keep_in_blocks, several_files, training_examples
from support.kill import Point, random_points, stage_in_child
from support.launched import launch
from support.training import builder_of, catalogue_config, log_of, logged, make_inputs, same_weights, sft_config

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.data.order import MOST_SHUFFLED, SHUFFLED, default_buffer
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.training import examples
from minionerec.training.packing import TreeCollator
from minionerec.training.rows import SftExamples
from minionerec.training.sampling import sample_blocks

MANY = {"next_sid": 1.0, "title_to_sid": 2.0, "sid_to_text": 1.5, "next_title": 0.5}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A corpus in four files, and a checkpoint on it."""
    folder = tmp_path_factory.mktemp("shop")
    with several_files():
        make_inputs(folder)
    run_sft(sft_config(folder, epochs=0.2))
    return folder


def blocks(folder, **changes):
    """Checkpoints after steps 3, 6, 9 and 10 of two epochs of 5: most of them inside an epoch."""
    return sft_config(folder, **{"evals_per_epoch": 2, **changes})


def both(folder, path, split="leave-last-out", **changes):
    """The examples of a corpus of one block, and those of the same in several."""
    bundle, builder, _ = builder_of(folder, changes.get("wording", "compact"))
    found = []
    for block in (0, 1):
        corpus = replace(Corpus.load(folder / "corpus", block), split=split)
        assert (corpus.n_blocks > 1) == block
        rows, stored = training_examples(bundle, builder, blocks(folder, **changes), corpus, path / str(block))
        assert [stored.total(name) for name in ("rows", "tokens", "losses")] == [
            len(rows), sum(map(len, rows["input_ids"])), sum(label >= 0 for row in rows["labels"] for label in row)
        ]  # fmt: skip
        found.append((rows, stored))
    return found


def keyed(row, names):
    """A row as text; of weights those of labels, which alone are used; of prompts whatever begins."""
    reported = [round(float(w), 4) for w, label in zip(row["weights"], row["labels"], strict=True) if label >= 0]
    if "prompts" in names:
        return json.dumps(sorted(row["prompts"]))
    return json.dumps([reported if name == "weights" else row[name] for name in names])


def counted(rows, names=("input_ids", "labels", "weights")):
    """How often each row is there."""
    return Counter(keyed(row, names) for row in rows)


PLAIN = ("input_ids", "labels", "weights")


@pytest.mark.parametrize("all_positions", [False, True])
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"split": "global time 8:1:1", "recency": 2.0, "tasks": {"next_sid": 1.0, "title_to_sid": 2.0}}, PLAIN),
        ({"tasks": {"title_history_to_title": 1.0}}, PLAIN),
        ({"teacher": "some"}, (*PLAIN, "histories", "slots")),
        ({"wording": "lcrec", "tasks": {"next_sid": 1.0, "title_to_sid": 1.0}}, ("prompts",)),
    ],
    ids=["weights", "titles", "teacher", "templates"],
)
def test_examples_of_several_blocks_are_those_of_one(shop, tmp_path, monkeypatch, changes, names, all_positions):
    if names == ("prompts",) and all_positions:
        pytest.skip("a window has one template")
    monkeypatch.setattr(examples, "_AT_ONCE", 10)
    (one, whole), (several, ours) = both(shop, tmp_path, all_positions=all_positions, **changes)
    assert counted(several, names) == counted(one, names)
    assert ours.counts == whole.counts
    assert all(ours.total(name) == whole.total(name) for name in ("truncated", "truncated_completions"))
    values = several.data.column("input_ids").chunk(0).values.to_numpy()
    assert np.shares_memory(values, ours.stored[0][0]["input_ids"])  # mapped, and nothing copied
    if names == ("prompts",):
        assert all(len({row["prompts"][0][1] for row in rows}) > 1 for rows in (one, several))


def test_weights_of_tasks_are_shares_of_their_rows(shop, tmp_path):
    (one, whole), (_, ours) = both(shop, tmp_path, all_positions=False, tasks=MANY)
    assert whole.counts == {"next_sid": 120, "title_to_sid": 48, "sid_to_text": 36, "next_title": 60}
    assert len(one) == 264
    assert {**ours.counts, "next_title": 60} == whole.counts
    assert abs(ours.counts["next_title"] - 60) <= 2  # a share of each of four blocks


def test_a_killed_writer_goes_on(shop, tmp_path, monkeypatch):
    """The examples are those of a writer that was not killed."""
    monkeypatch.setattr(examples, "_AT_ONCE", 10)
    bundle, builder, corpus = builder_of(shop)
    config = blocks(shop, all_positions=False)
    wanted, _ = training_examples(bundle, builder, config, corpus, tmp_path / "whole")
    make, calls = SftExamples.examples, []

    def dies(self, requested):
        calls.append(requested.positions[0])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return make(self, requested)

    monkeypatch.setattr(SftExamples, "examples", dies)
    with pytest.raises(KeyboardInterrupt):
        training_examples(bundle, builder, config, corpus, tmp_path / "cut")
    found, _ = training_examples(bundle, builder, config, corpus, tmp_path / "cut")
    assert calls == [*range(0, 40, 10), *range(30, 120, 10)]
    assert list(found) == list(wanted)


LIMITED = {"all_positions": True, "epochs": 1}


@pytest.mark.parametrize("tokens", [60, 201, 390, 10**9])
def test_an_epoch_has_as_many_tokens_as_are_asked_for(shop, tmp_path, tokens):
    """Whole rows, of each block as many tokens, and no row of a block that is left out would fit."""
    limited = both(shop, tmp_path / "some", max_tokens=tokens, **LIMITED)
    for (rows, stored), (every, whole) in zip(limited, both(shop, tmp_path / "all", **LIMITED), strict=True):
        longest, count = max(map(len, every["input_ids"])), len(stored.parts)
        for number, states in enumerate(zip(stored.stored, whole.stored, strict=True)):
            taken, held = (state["tally"]["tokens"] for _, state in states)
            share = tokens // count + (number < tokens % count)
            assert taken == held <= share or share - longest < taken <= share
        assert counted(rows) <= counted(every)
        assert (len(rows) == len(every)) == (tokens == 10**9)


def test_too_few_tokens_for_a_row_are_refused(shop, tmp_path):
    with pytest.raises(DataError, match="max_tokens has no room for a single window"):
        both(shop, tmp_path, max_tokens=5, **LIMITED)


def test_users_of_a_limited_epoch_are_drawn_by_seed(shop, tmp_path):
    found = []
    for seed in (1, 2, 1):
        made = both(shop, tmp_path / str(len(found)), max_tokens=300, seed=seed, **LIMITED)
        found.append([list(rows["input_ids"]) for rows, _ in made])
    for first, other, again in zip(*found, strict=True):
        assert first == again != other


def test_a_limited_run_that_dies_ends_as_if_nothing_had_happened(shop, tmp_path):
    def config(folder):
        return blocks(shop, output=str(tmp_path / folder / "sft"), max_tokens=400, **{**LIMITED, "epochs": 2})

    reported = stage_in_child(run_sft, tmp_path / "whole", config("whole"))
    manifest = read_manifest(tmp_path / "whole" / "sft")
    assert 400 - 13 < manifest["counts"]["tokens"] <= 400
    assert manifest["settings"]["max_tokens"] == 400
    run = partial(stage_in_child, run_sft, tmp_path / "cut", config("cut"))
    run(Point("step", reported["step"] // 2))
    run()
    assert same_weights(tmp_path / "cut" / "sft", tmp_path / "whole" / "sft")


def test_tokens_are_limited_of_windows_alone(tmp_path):
    for changes in ({}, {**LIMITED, "tasks": {"next_sid": 0.5}}):
        with pytest.raises(ConfigError, match="max_tokens is 50, which applies to windows"):
            sft_config(tmp_path, max_tokens=50, **{"all_positions": False, **changes})


def test_many_examples_are_shuffled_block_by_block():
    assert [default_buffer(count) for count in (0, MOST_SHUFFLED, MOST_SHUFFLED + 1)] == [0, 0, SHUFFLED]


@pytest.mark.parametrize(("count", "processes", "size"), [(100, 1, 8), (100, 2, 8), (101, 3, 4), (5, 2, 8)])
def test_each_process_gets_its_own_blocks(count, processes, size):
    order = sample_blocks(count, 32, processes, size, 0)
    rows = list(order)
    assert len(rows) == len(order) == count
    assert sorted(rows) == list(range(count))
    order.set_epoch(1)
    assert count < 10 or list(order) != rows


@pytest.fixture(scope="module")
def whole(shop):
    """A run from several blocks that nothing interrupted, with its number of steps and writes."""
    folder = shop / "whole"
    return stage_in_child(partial(from_blocks, run_sft), folder, blocks(shop, output=str(folder / "sft")))


def dies_and_resumes(shop, tmp_path, points):
    for position, point in enumerate(points):
        mine = tmp_path / str(position)
        run = partial(stage_in_child, partial(from_blocks, run_sft), mine, blocks(shop, output=str(mine / "sft")))
        run(point)
        run()
        assert same_weights(mine / "sft", shop / "whole" / "sft"), point


@pytest.mark.parametrize("point", [Point("step", 7), pytest.param(Point("write", 12), marks=pytest.mark.slow)])
def test_killed_it_ends_as_if_nothing_had_happened(shop, whole, tmp_path, point):
    assert whole["step"] == 10
    dies_and_resumes(shop, tmp_path, [point])


@pytest.mark.slow
def test_killed_at_twenty_points(shop, whole, tmp_path):
    dies_and_resumes(shop, tmp_path, random_points(whole, 20, seed=3))


def test_rows_are_laid_aside_with_the_work(shop, whole):
    assert not (shop / "whole" / "sft.finished" / "rows").exists()
    assert (shop / "whole" / "sft.finished" / "checkpoint-10").is_dir()
    assert len(logged(shop / "whole" / "sft", "eval_loss")) == 4


def test_epochs_see_all_rows_and_each_in_another_order(shop, tmp_path, monkeypatch):
    epochs: dict[int, list] = {}
    collate = TreeCollator.__call__

    def spied(self, examples):
        reported = [tuple(example["input_ids"]) for example in examples]
        batch = collate(self, examples)
        epochs.setdefault(self.epoch, []).append(reported)
        return batch

    monkeypatch.setattr(TreeCollator, "__call__", spied)
    run_sft(blocks(shop, output=str(tmp_path / "sft"), evals_per_epoch=0.5, eval_examples=5))
    first, second = ([row for batch in epochs[epoch][:5] for row in batch] for epoch in (0, 1))
    assert len(first) == 40
    assert sorted(first) == sorted(second)
    assert first != second


def test_examples_of_several_splits_are_read_from_blocks(shop, tmp_path, monkeypatch):
    keep_in_blocks(monkeypatch)
    counts = run_sft(blocks(shop, output=str(tmp_path / "sft"), splits=["train", "valid", "test"])).counts
    assert counts["splits"] == ["train", "valid", "test"]
    assert counts["losses"] == 40 * 5 * 3  # five targets of three codes each


def test_a_teacher_is_asked_about_rows_of_several_blocks(shop, tmp_path, monkeypatch):
    keep_in_blocks(monkeypatch)
    run_catalogue(catalogue_config(shop, output=str(tmp_path / "catalogue"), epochs=0.5))
    config = blocks(shop, output=str(tmp_path / "sft"), teacher=str(tmp_path / "catalogue"), epochs=1, variants=1)
    assert run_sft(config).counts["rows"] == {"next_sid": 80}


@pytest.mark.slow
def test_two_processes_share_an_epoch_and_go_on(shop, tmp_path):
    config = blocks(shop, device_batch_size=4, tasks={"next_sid": 1.0, "title_to_sid": 0.5}, all_positions=False)
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
        settings = {**config.__dict__, "output": str(tmp_path / name / "out")}
        (tmp_path / name / "sft.yaml").write_text(yaml.safe_dump(settings))
    steps = [counts["step"] for counts in launch(tmp_path / "whole", "sft", 2)]
    assert steps[0] == steps[1] == 2 * -(-(120 + 12) // 8)
    launch(tmp_path / "cut", "sft", 2, Point("step", steps[0] - 3), rank=1, whole=True)  # in the second epoch
    launch(tmp_path / "cut", "sft", 2)
    assert same_weights(tmp_path / "cut" / "out", tmp_path / "whole" / "out")
    assert np.isfinite(log_of(tmp_path / "cut" / "out")[-1]["eval_loss"])
