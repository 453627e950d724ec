"""GRPO from prompts on disk: they are those in memory, and a run that dies goes on to the same weights."""

import json
from collections import Counter
from functools import partial

import pytest
import yaml
from support.examples import from_files, in_files
from support.kill import Point, stage_in_child
from support.launched import launch
from support.training import builder_of, grpo_config, make_inputs, same_weights, sft_config

from minionerec.core.errors import ConfigError
from minionerec.pipeline.grpo import run_grpo
from minionerec.pipeline.sft import run_sft
from minionerec.training import examples
from minionerec.training.grpo.prompts import grpo_examples

FROM_FILES = partial(from_files, run_grpo)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A corpus in row groups of a few users, and a checkpoint on it."""
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minionerec.data.shards.GROUP", 7)
        make_inputs(folder)
    run_sft(sft_config(folder, epochs=1))
    return folder


def blocks(folder, **changes):
    return grpo_config(folder, **{"epochs": 1, **changes})


def test_prompts_on_disk_are_those_in_memory(shop, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "_AT_ONCE", 10)
    bundle, builder, _ = builder_of(shop)
    about = builder, bundle.tokenizer, {"next_sid": 1.0, "title_to_sid": 2.0}, 40, 42, 512
    memory = grpo_examples(*about, tmp_path / "memory")
    stored = in_files(shop / "corpus")
    disk = grpo_examples(*about, tmp_path / "rows", stored)
    assert disk.counts == memory.counts == {"next_sid": 120, "title_to_sid": 48}
    assert (disk.total("truncated"), len(disk.again), len(disk.rows)) == (
        memory.total("truncated"),
        len(memory.again),
        200,
    )
    ours, theirs = (Counter(json.dumps(rows.rows[row]) for row in range(168)) for rows in (disk, memory))
    assert ours == theirs
    assert {json.dumps(disk.rows[row]) for row in range(168, 200)} <= set(ours)
    assert {row["history"] is None for row in disk.rows} == {False, True}
    with pytest.raises(ConfigError, match="task 'sid_to_title' answers with a title"):
        grpo_examples(builder, bundle.tokenizer, {"sid_to_title": 1.0}, 40, 0, 512, tmp_path / "other")


@pytest.mark.parametrize("point", [Point("step", 6), pytest.param(Point("write", 8), marks=pytest.mark.slow)])
def test_killed_it_resumes_to_the_same_weights(shop, tmp_path, point):
    totals = stage_in_child(FROM_FILES, tmp_path / "whole", blocks(shop, output=str(tmp_path / "whole" / "grpo")))
    assert totals["step"] == 7
    run = partial(stage_in_child, FROM_FILES, tmp_path / "cut", blocks(shop, output=str(tmp_path / "cut" / "grpo")))
    run(point)
    run()
    assert same_weights(tmp_path / "cut" / "grpo", tmp_path / "whole" / "grpo")
    assert not (tmp_path / "whole" / "grpo.finished" / "rows").exists()


@pytest.mark.slow
@pytest.mark.parametrize("way", [blocks, grpo_config], ids=["blocks", "whole"])
def test_two_processes_share_an_epoch_and_go_on(shop, tmp_path, way):
    config = way(shop, prompts_per_device=2, epochs=2, tasks={"next_sid": 0.25, "title_to_sid": 1.0})
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
        settings = {**config.__dict__, "output": str(tmp_path / name / "out")}
        (tmp_path / name / "grpo.yaml").write_text(yaml.safe_dump(settings))
    steps = [counts["step"] for counts in launch(tmp_path / "whole", "grpo", 2)]
    assert steps[0] == steps[1] == 2 * -(-(30 + 24) // 8)
    launch(tmp_path / "cut", "grpo", 2, Point("step", steps[0] - 2), rank=1, whole=True)  # in the second epoch
    launch(tmp_path / "cut", "grpo", 2)
    assert same_weights(tmp_path / "cut" / "out", tmp_path / "whole" / "out")
