"""GRPO from a corpus of several blocks: the prompts of one, and a run that dies goes on to the same weights."""

import json
from collections import Counter
from functools import partial

import pytest
import yaml
from support.examples import from_blocks, several_files
from support.kill import Point, stage_in_child
from support.launched import launch
from support.training import builder_of, grpo_config, make_inputs, same_weights, sft_config

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.pipeline.grpo import run_grpo
from minionerec.pipeline.sft import run_sft
from minionerec.training import examples
from minionerec.training.grpo.prompts import grpo_examples

IN_BLOCKS = partial(from_blocks, run_grpo)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A corpus in four files, and a checkpoint on it."""
    folder = tmp_path_factory.mktemp("shop")
    with several_files():
        make_inputs(folder)
    run_sft(sft_config(folder, epochs=1))
    return folder


def blocks(folder, **changes):
    return grpo_config(folder, **{"epochs": 1, **changes})


def test_prompts_of_several_blocks_are_those_of_one(shop, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "_AT_ONCE", 10)
    bundle, builder, _ = builder_of(shop)
    about = bundle.tokenizer, {"next_sid": 1.0, "title_to_sid": 2.0}, 40, 42, 512
    found = []
    for block in (0, 1):
        builder.corpus = Corpus.load(shop / "corpus", block)
        assert (builder.corpus.n_blocks > 1) == block
        prompts = grpo_examples(builder, *about, tmp_path / str(block))
        assert prompts.counts == {"next_sid": 120, "title_to_sid": 48}
        assert (prompts.total("truncated"), len(prompts.again), len(prompts.rows)) == (0, 32, 200)
        texts = [json.dumps(row) for row in prompts.rows]
        assert set(texts[168:]) <= set(texts[:168])
        assert {row["history"] is None for row in prompts.rows} == {False, True}
        found.append(Counter(texts[:168]))
    assert found[0] == found[1]
    with pytest.raises(ConfigError, match="task 'sid_to_title' answers with a title"):
        grpo_examples(builder, bundle.tokenizer, {"sid_to_title": 1.0}, 40, 0, 512, tmp_path / "other")


@pytest.mark.parametrize("point", [Point("step", 6), pytest.param(Point("write", 8), marks=pytest.mark.slow)])
def test_killed_it_resumes_to_the_same_weights(shop, tmp_path, point):
    totals = stage_in_child(IN_BLOCKS, tmp_path / "whole", blocks(shop, output=str(tmp_path / "whole" / "grpo")))
    assert totals["step"] == 7
    run = partial(stage_in_child, IN_BLOCKS, tmp_path / "cut", blocks(shop, output=str(tmp_path / "cut" / "grpo")))
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
