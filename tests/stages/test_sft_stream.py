"""SFT from rows on disk: they are those in memory, and a run that dies goes on to the same weights."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import yaml
from support.examples import from_files, keep_in_files, training_examples
from support.kill import Point, random_points, stage_in_child
from support.launched import launch
from support.training import builder_of, catalogue_config, log_of, logged, make_inputs, same_weights, sft_config

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.models.prompts.examples import ExampleBuilder
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.training import examples
from minionerec.training.examples import Chance, plan_parts
from minionerec.training.packing import TreeCollator
from minionerec.training.rows import SftExamples
from minionerec.training.sampling import sample_blocks

MANY = {"next_sid": 1.0, "title_to_sid": 2.0, "sid_to_text": 1.5, "next_title": 0.5}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A corpus in row groups of a few users, and a checkpoint on it."""
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minionerec.data.shards.GROUP", 7)
        make_inputs(folder)
    run_sft(sft_config(folder, epochs=0.2))
    return folder


def blocks(folder, **changes):
    """Checkpoints after steps 3, 6, 9 and 10 of two epochs of 5: most of them inside an epoch."""
    return sft_config(folder, **{"evals_per_epoch": 2, **changes})


def both(folder, path, monkeypatch, split="leave-last-out", **changes):
    """The examples in memory, and those from files, which are as many."""
    monkeypatch.setattr(examples, "_AT_ONCE", 10)
    return both_of(folder, path, split, **changes)


def both_of(folder, path, split="leave-last-out", **changes):
    """The examples in memory, and those from files."""
    bundle, builder, corpus = builder_of(folder, changes.get("wording", "compact"))
    config = blocks(folder, **changes)
    corpus = replace(corpus, split=split)
    builder = ExampleBuilder(corpus, bundle.table, builder.wording, builder.specials)
    memory, theirs = training_examples(bundle, builder, replace(config, max_tokens=0))
    builder = ExampleBuilder(corpus.only_items(), bundle.table, builder.wording, builder.specials)
    disk, ours = training_examples(bundle, builder, config, corpus, path / "rows")
    assert changes.get("max_tokens") or ours.counts == theirs.counts
    assert changes.get("max_tokens") or all(
        ours.total(n) == theirs.total(n) for n in ("truncated", "truncated_completions")
    )
    assert [ours.total(name) for name in ("rows", "tokens", "losses")] == [
        len(disk), sum(map(len, disk["input_ids"])), sum(label >= 0 for row in disk["labels"] for label in row)
    ]  # fmt: skip
    return memory, disk, ours


def keyed(row, names):
    """A row as text; of weights those of labels, which alone are used."""
    reported = [round(float(w), 4) for w, label in zip(row["weights"], row["labels"], strict=True) if label >= 0]
    return json.dumps([reported if name == "weights" else row[name] for name in names])


def same_rows(memory, disk, names=("input_ids", "labels", "weights")):
    """As often in both, in whatever order."""
    assert Counter(keyed(row, names) for row in disk) == Counter(keyed(row, names) for row in memory)


@pytest.mark.parametrize("all_positions", [False, True])
def test_rows_on_disk_are_those_in_memory(shop, tmp_path, monkeypatch, all_positions):
    memory, disk, ours = both(
        shop, tmp_path, monkeypatch, "global time 8:1:1", all_positions=all_positions, recency=2.0,
        tasks={"next_sid": 1.0, "next_title": 1.0, "title_to_sid": 2.0},
    )  # fmt: skip
    same_rows(memory, disk)
    values = disk.data.column("input_ids").chunk(0).values.to_numpy()
    assert np.shares_memory(values, ours.stored[0][0]["input_ids"])  # mapped, and nothing copied


@pytest.mark.parametrize("all_positions", [False, True])
def test_what_a_teacher_is_asked_lies_on_disk_too(shop, tmp_path, monkeypatch, all_positions):
    memory, disk, _ = both(shop, tmp_path, monkeypatch, teacher="some", all_positions=all_positions)
    same_rows(memory, disk, ("input_ids", "labels", "weights", "histories", "slots"))


def test_prompts_in_several_ways_lie_on_disk_too(shop, tmp_path, monkeypatch):
    tasks = {"next_sid": 1.0, "title_to_sid": 1.0}
    memory, disk, _ = both(shop, tmp_path, monkeypatch, wording="lcrec", all_positions=False, tasks=tasks)

    def ways(rows):
        return Counter(json.dumps(sorted(row["prompts"])) for row in rows)

    assert ways(disk) == ways(memory)
    assert all(len(row["prompts"]) > 1 for row in disk)
    assert len({row["prompts"][0][1] for row in disk}) > 1  # examples begin with different ones


def test_weights_of_tasks_are_shares_of_their_rows(shop, tmp_path, monkeypatch):
    memory, disk, ours = both(shop, tmp_path, monkeypatch, all_positions=False, tasks=MANY)
    assert ours.counts == {"next_sid": 120, "title_to_sid": 48, "sid_to_text": 36, "next_title": 60}
    assert len(disk) == len(memory) == 264
    assert [(part.share, part.times) for part in plan_parts([tmp_path], MANY, tmp_path)] == [
        (1, 1), (1, 2), (1, 1), (0.5, 1), (0.5, 1)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def shards_of(tmp_path_factory):
    """The shop in three shards of several row groups."""
    folder = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minionerec.data.shards.GROUP", 4)
        patch.setattr("minionerec.data.shards.SHARD", 100)
        make_inputs(folder)
    run_sft(sft_config(folder, epochs=0.1))
    assert len(Corpus.load(folder / "corpus").files) == 3
    return folder


LIMITED = {"all_positions": True, "epochs": 1}


@pytest.mark.parametrize("tokens", [60, 201, 390])
def test_an_epoch_has_as_many_tokens_as_are_asked_for(shards_of, tmp_path, monkeypatch, tokens):
    """Whole rows of those in memory, of each shard as many tokens, and no row of a shard that is left out would fit."""
    read = []
    make = SftExamples.make
    monkeypatch.setattr(SftExamples, "make", lambda *of: read.append(of) or make(*of))
    monkeypatch.setattr(examples, "_AT_ONCE", 10)
    memory, everything, _ = both_of(shards_of, tmp_path / "all", **LIMITED)
    batches = len([part for _, part, *_ in read if not part.whole])
    longest = max(map(len, memory["input_ids"]))
    read.clear()
    _, disk, ours = both_of(shards_of, tmp_path / "some", max_tokens=tokens, **LIMITED)
    parts = [state["tally"]["tokens"] for _, state in ours.stored]
    shares = [part.most for part in ours.parts]
    assert sum(shares) == tokens and max(shares) - min(shares) <= 1
    for share, taken in zip(shares, parts, strict=True):
        assert share - longest < taken <= share
    assert len([part for _, part, *_ in read if not part.whole]) < batches
    names = ("input_ids", "labels", "weights")
    assert Counter(keyed(row, names) for row in disk) < Counter(keyed(row, names) for row in everything)


def test_more_tokens_than_there_are_change_nothing(shards_of, tmp_path):
    memory, disk, _ = both_of(shards_of, tmp_path, max_tokens=10**9, **LIMITED)
    same_rows(memory, disk)


def test_too_few_tokens_for_a_row_are_refused(shards_of, tmp_path):
    with pytest.raises(DataError, match="max_tokens has no room for a single window"):
        both_of(shards_of, tmp_path, max_tokens=5, **LIMITED)


def test_users_of_a_limited_epoch_are_drawn_by_seed(shards_of, tmp_path):
    found = []
    for seed in (1, 2, 1):
        _, disk, _ = both_of(shards_of, tmp_path / str(len(found)), max_tokens=300, seed=seed, **LIMITED)
        found.append(list(disk["input_ids"]))
    assert found[0] == found[2] != found[1]


def test_a_limited_run_that_dies_ends_as_if_nothing_had_happened(shards_of, tmp_path):
    def config(folder):
        return blocks(shards_of, output=str(tmp_path / folder / "sft"), max_tokens=400, **{**LIMITED, "epochs": 2})

    reported = stage_in_child(run_sft, tmp_path / "whole", config("whole"))
    manifest = read_manifest(tmp_path / "whole" / "sft")
    assert 400 - 3 * 13 < manifest["counts"]["tokens"] <= 400
    assert manifest["settings"]["max_tokens"] == 400
    run = partial(stage_in_child, run_sft, tmp_path / "cut", config("cut"))
    run(Point("step", reported["step"] // 2))
    run()
    assert same_weights(tmp_path / "cut" / "sft", tmp_path / "whole" / "sft")


def test_tokens_are_limited_of_windows_alone(tmp_path):
    for changes in ({}, {**LIMITED, "tasks": {"next_sid": 0.5}}):
        with pytest.raises(ConfigError, match="max_tokens is 50, which applies to windows"):
            sft_config(tmp_path, max_tokens=50, **{"all_positions": False, **changes})


def test_a_share_is_exact_over_batches():
    seen, drawn = 0, 0
    for number in range(50):
        chance = Chance(0.3, seen, [1, number])
        drawn += len(chance(7))
        seen = chance.seen
    assert (seen, drawn) == (350, 105)


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
    """A run from files that nothing interrupted, with its number of steps and writes."""
    folder = shop / "whole"
    return stage_in_child(partial(from_files, run_sft), folder, blocks(shop, output=str(folder / "sft")))


def dies_and_resumes(shop, tmp_path, points):
    for position, point in enumerate(points):
        mine = tmp_path / str(position)
        run = partial(stage_in_child, partial(from_files, run_sft), mine, blocks(shop, output=str(mine / "sft")))
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


def test_examples_of_several_splits_are_read_from_files(shop, tmp_path, monkeypatch):
    keep_in_files(monkeypatch)
    counts = run_sft(blocks(shop, output=str(tmp_path / "sft"), splits=["train", "valid", "test"])).counts
    assert counts["splits"] == ["train", "valid", "test"]
    assert counts["losses"] == 40 * 5 * 3  # five targets of three codes each


def test_a_teacher_is_asked_about_rows_from_disk(shop, tmp_path, monkeypatch):
    keep_in_files(monkeypatch)
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
