"""SFT on many tasks with several ways to ask: each example takes them in turn, also in a run that was cut off."""

from functools import partial

import pytest
import torch
from support.kill import Point, stage_in_child
from support.training import builder_of, make_inputs, same_weights, sft_config

from minionerec.core.errors import ConfigError
from minionerec.models.prompts.wording import load_wording
from minionerec.pipeline.sft import run_sft
from minionerec.training.packing import TreeCollator, prompt_in_turn
from minionerec.training.rows import tokenise_examples

TASKS = {"next_sid": 0.1, "title_to_sid": 0.5, "sid_to_text": 0.5, "next_description": 0.1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two epochs that nothing cut off, and the epochs that its batches were asked for."""
    folder = tmp_path_factory.mktemp("whole")
    make_inputs(folder)
    epochs = []
    collate = TreeCollator.__call__

    def spied(self, examples):
        epochs.append((self.epoch, any(example["prompts"] for example in examples)))
        return collate(self, examples)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TreeCollator, "__call__", spied)
        result = run_sft(many_tasks(folder))
    return folder, result, epochs


def many_tasks(folder, **changes):
    settings = {"wording": "lcrec", "all_positions": False, "tasks": TASKS, "evals_per_epoch": 2}
    return sft_config(folder, **{**settings, **changes})


def test_all_tasks_are_trained_and_each_epoch_asks_in_its_own_way(whole):
    _, result, epochs = whole
    assert result.counts["rows"] == {"next_sid": 12, "title_to_sid": 12, "sid_to_text": 12, "next_description": 12}
    assert {epoch for epoch, trained in epochs if trained} == {0, 1}


def test_a_run_that_was_interrupted_asks_in_the_same_ways(whole, tmp_path):
    folder, result, _ = whole
    per_epoch = result.counts["steps"] // 2
    run = partial(stage_in_child, run_sft, tmp_path, many_tasks(folder, output=str(tmp_path / "sft")))
    run(Point("step", 2 * per_epoch - 1))  # in the second epoch, behind a checkpoint inside it
    assert run()["step"] < per_epoch
    assert same_weights(tmp_path / "sft", folder / "sft")


def test_an_example_takes_every_way_once_in_as_many_epochs(whole):
    bundle, builder, _ = builder_of(whole[0], "lcrec")
    examples = builder.build("next_sid", "train")
    rows, again, other = (tokenise_examples(bundle.tokenizer, examples, 512, seed)[0] for seed in (1, 1, 2))
    assert rows["prompts"] == again["prompts"] != other["prompts"]
    plain = bundle.tokenizer([text for e in examples for text in (e.prompt, *e.others)])["input_ids"]
    begins = set()
    for position in range(len(examples)):
        ways = [tuple(ids) for ids in plain[4 * position : 4 * position + 4]]
        row = {name: column[position] for name, column in rows.items()}
        asked = [prompt_in_turn(row, epoch) for epoch in range(8)]
        prompts = [tuple(t for t, label in zip(a["input_ids"], a["labels"], strict=True) if label < 0) for a in asked]
        assert set(prompts[:4]) == set(ways) and prompts[:4] == prompts[4:]
        begins.add(ways.index(prompts[0]))
        answer = [label for label in row["labels"] if label >= 0]
        for one in asked:
            assert [label for label in one["labels"] if label >= 0] == answer == one["input_ids"][-len(answer) :]
            assert len(one["weights"]) == len(one["input_ids"]) == len(one["labels"])
    assert begins == {0, 1, 2, 3}


def test_a_batch_is_packed_as_its_epoch_asks(whole):
    bundle, builder, _ = builder_of(whole[0], "lcrec")
    rows, _ = tokenise_examples(bundle.tokenizer, builder.build("title_to_sid", "train"), 512, 3)
    examples = [{name: column[position] for name, column in rows.items()} for position in range(6)]
    collator = TreeCollator(64)
    first = collator(examples)
    collator.epoch = 1
    second = collator(examples)
    asked = [prompt_in_turn(example, 1) | {"prompts": []} for example in examples]
    wanted = TreeCollator(64)(asked)
    assert all(torch.equal(second[name], wanted[name]) for name in wanted)
    assert not torch.equal(first["input_ids"], second["input_ids"])


def test_one_way_is_all_that_all_positions_can_ask_in(tmp_path):
    make_inputs(tmp_path)
    wording = load_wording("compact").to_yaml().replace("'{bos}{history}'\n    completion: '{sid}'", "X", 1)
    assert "X" in wording
    (tmp_path / "w.yaml").write_text(wording.replace("X", "['{bos}{history}', '{history}']\n    completion: '{sid}'"))
    with pytest.raises(ConfigError, match="'compact' has 2 prompts"):
        run_sft(sft_config(tmp_path, wording=str(tmp_path / "w.yaml")))
