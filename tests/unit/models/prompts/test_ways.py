"""The tasks that tie codes to language, and several ways to ask for one."""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from support.small_corpus import make_corpus, rows_of

from minionerec.models.backbone.build import train_tokenizer
from minionerec.models.backbone.vocabulary import add_code_tokens
from minionerec.models.prompts.examples import ITEM_TASKS, ExampleBuilder, encode_completion, special_texts
from minionerec.models.prompts.wording import COMPLETION_FIELDS, PROMPT_FIELDS, TASKS, load_wording
from minionerec.sid.table import SidTable

TITLES = ["Red cup", "Blue {cup}", "", "Green cup", "Lamp"]
DESCRIPTIONS = ["for tea", "", "for nothing", "  ", "It shines at night. " * 50]
COUNTS = {
    "next_sid": 4,
    "title_to_sid": 4,
    "sid_to_title": 4,
    "description_to_sid": 3,
    "next_title": 3,
    "title_history_to_sid": 4,
    "title_history_to_title": 3,
    "sid_to_description": 3,
    "text_to_sid": 2,
    "sid_to_text": 2,
    "next_description": 2,
}
SPECIALS = {"bos": "<|bos|>", "eos": "<|eos|>"}


def corpus():
    rows = rows_of([("u", [0], target) for target in (1, 2, 3, 4)])
    return replace(make_corpus(TITLES, DESCRIPTIONS, list("abcde")), train=rows, valid=rows.take(slice(1)))


def build(wording, specials=SPECIALS):
    table = SidTable(np.array([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]]), list("abcde"))
    return ExampleBuilder(corpus(), table, load_wording(wording), specials)


@pytest.mark.parametrize("wording", ["compact", "prose", "lcrec"])
@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_an_example_for_all_that_have_its_texts(wording, task):
    examples = build(wording).build(task, "train")
    assert len(examples) == COUNTS[task]
    for example in examples:
        for field in COMPLETION_FIELDS[task]:
            text = {"title": TITLES, "description": DESCRIPTIONS}.get(field, build(wording).table.sids)[example.target]
            assert text[:20] in example.completion
        if "sid" in PROMPT_FIELDS[task]:
            assert all(build(wording).table.sids[example.target] in way for way in (example.prompt, *example.others))
    assert ("history" in " ".join(PROMPT_FIELDS[task])) == (task not in ITEM_TASKS)


def test_the_new_tasks_in_words():
    builder = build("compact")
    found = {task: builder.build(task, "train")[0] for task in ("text_to_sid", "sid_to_text", "next_description")}
    assert {task: (example.prompt, example.completion) for task, example in found.items()} == {
        "text_to_sid": ("<|bos|>title Red cup about for tea item ", "<a_0><b_0><|eos|>"),
        "sid_to_text": ("<|bos|>item <a_0><b_0> text ", "Red cup about for tea<|eos|>"),
        "next_description": ("<|bos|><a_0><b_0> about ", "for nothing<|eos|>"),
    }


@pytest.mark.parametrize("task", ["next_sid", "title_to_sid", "text_to_sid", "title_history_to_sid"])
def test_every_code_of_an_answer_is_one_token(task):
    wording = load_wording("lcrec")
    tokenizer = train_tokenizer([prompt for text in wording.tasks.values() for prompt in text.prompts], 400)
    builder = build("lcrec")
    add_code_tokens(tokenizer, builder.table)
    builder = build("lcrec", special_texts(tokenizer))
    examples = builder.build(task, "train")
    answers = encode_completion(tokenizer, [example.completion for example in examples])
    for example, ids in zip(examples, answers, strict=True):
        assert tuple(tokenizer.convert_ids_to_tokens(ids)[:2]) == builder.table.token_tuples[example.target]


def test_ways_to_ask_are_for_training_and_the_first_for_everything_else():
    builder, wording = build("lcrec"), load_wording("lcrec").task("next_sid")
    trained, held_out = builder.build("next_sid", "train")[0], builder.build("next_sid", "valid")[0]
    assert len(wording.prompts) == 4 == len({trained.prompt, *trained.others})
    assert (held_out.prompt, held_out.others) == (trained.prompt, ())
    assert trained.prompt == wording.prompt.format(**SPECIALS, history="<a_0><b_0>")
    assert trained.others[2] == builder.prompt("next_sid", history=[0], way=3)
    assert build("compact").build("next_sid", "train")[0].others == ()


def test_long_descriptions_end_with_a_word(tmp_path):
    wording = load_wording("lcrec")
    wording.save(tmp_path / "w.yaml")
    assert load_wording(tmp_path / "w.yaml") == wording
    example = build("lcrec").build("sid_to_description", "train")[-1]
    text = example.completion.removesuffix("\n<|eos|>")
    assert DESCRIPTIONS[4].startswith(text + " ") and 590 < len(text) <= 600
    assert len(build("compact").build("sid_to_description", "train")[-1].completion) > 900
    content = yaml.safe_load(wording.to_yaml()) | {"longest_description": 5}
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(content))
    cut = build(tmp_path / "w.yaml")
    assert [cut.completion("sid_to_description", item) for item in (0, 4)] == ["for\n<|eos|>", "It\n<|eos|>"]
