"""Wordings, examples and user windows."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import yaml
from support.examples import user_windows
from support.gaps import GAP
from support.small_corpus import corpus_of, make_corpus

from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.data.contexts import WEEKDAYS, RequestFeature
from minionerec.data.times import NO_TIME, RowTimes
from minionerec.models.backbone.build import train_tokenizer
from minionerec.models.prompts.examples import ExampleBuilder, encode_completion, encode_prompt, special_texts
from minionerec.models.prompts.wording import BUILT_IN, TASKS, load_wording
from minionerec.sid.table import SidTable
from minionerec.training.rows import check_all_positions

SPECIALS = {"bos": "<|bos|>", "eos": "<|eos|>"}


def small_corpus(train=(("u", [0], 1), ("u", [0, 1], 2)), max_history=10):
    items = make_corpus(["Red {cup}", "Blue cup", ""], ["for tea", "", "nothing"], ["x", "y", "z"]).items
    return replace(corpus_of(train, [("v", [1], 0)], [("v", [1], 0)], 3, max_history), items=items)


def small_table():
    return SidTable(np.array([[0, 3], [0, 4], [12, 3]]), ["x", "y", "z"])


def build(wording="compact", corpus=None):
    return ExampleBuilder(corpus or small_corpus(), small_table(), load_wording(wording), SPECIALS)


GOLDEN = {
    "compact": {
        "next_sid": ("<|bos|><a_0><b_3><a_0><b_4>", "<a_12><b_3>"),
        "title_to_sid": ("<|bos|>title Red {cup} item ", "<a_0><b_3><|eos|>"),
        "sid_to_title": ("<|bos|>item <a_0><b_3> title ", "Red {cup}<|eos|>"),
        "description_to_sid": ("<|bos|>about for tea item ", "<a_0><b_3><|eos|>"),
        "title_history_to_sid": ("<|bos|>titles Red {cup} ; Blue cup item ", "<a_12><b_3>"),
        "title_history_to_title": ("<|bos|>Red {cup}<|eos|>", "Blue cup<|eos|>"),
    },
    "prose": {
        "next_sid": (
            "<|bos|>You recommend items from a shop.\nA customer chose these items, oldest first: "
            "<a_0><b_3>, <a_0><b_4>.\nName the code of the item this customer will choose next.\nNext item: ",
            "<a_12><b_3>\n<|eos|>",
        ),
        "sid_to_title": (
            "<|bos|>You know every item of a shop by its title and by its code.\nCode: <a_0><b_3>\n"
            "Say the title of this item.\nTitle: ",
            "Red {cup}\n<|eos|>",
        ),
        "title_history_to_title": (
            "<|bos|>You recommend items from a shop.\nA customer chose items with these titles, oldest first: "
            "Red {cup}.\nSay the title of the item this customer will choose next.\nTitle: ",
            "Blue cup\n<|eos|>",
        ),
    },
    "lcrec": {
        "next_sid": (
            "<|bos|>A shop's customer has chosen, oldest first: <a_0><b_3>, <a_0><b_4>.\n"
            "Which item comes next? Give its code.\nCode: ",
            "<a_12><b_3>\n<|eos|>",
        ),
        "title_to_sid": (
            '<|bos|>A shop sells an item called "Red {cup}".\nWhat is its code?\nCode: ',
            "<a_0><b_3>\n<|eos|>",
        ),
    },
}


@pytest.mark.parametrize("wording", BUILT_IN)
def test_golden_prompts(wording):
    builder = build(wording)
    for task, (prompt, completion) in GOLDEN[wording].items():
        examples = builder.build(task, "train")
        example = examples[-1] if task in ("next_sid", "title_history_to_sid") else examples[0]
        assert (example.prompt, example.completion) == (prompt, completion)


@pytest.mark.parametrize("wording", BUILT_IN)
def test_every_task_is_worded_and_survives_saving(wording, tmp_path):
    loaded = load_wording(wording)
    assert set(loaded.tasks) == set(TASKS)
    loaded.save(tmp_path / "w.yaml")
    assert load_wording(tmp_path / "w.yaml") == loaded


def test_items_without_text_and_targets_without_title_are_left_out():
    builder = build()
    assert [example.target for example in builder.build("title_to_sid", "train")] == [0, 1]
    assert [example.target for example in builder.build("description_to_sid", "train")] == [0, 2]
    assert [example.target for example in builder.build("next_title", "train")] == [1]


def test_equal_histories_keep_their_own_targets():
    corpus = small_corpus((("u", [0], 1), ("w", [0], 2)))
    examples = build(corpus=corpus).build("next_sid", "train")
    assert examples[0].prompt == examples[1].prompt
    assert [example.target for example in examples] == [1, 2]


COMPACT = yaml.safe_load(load_wording("compact").to_yaml())


def change(**tasks):
    return {**COMPACT, "tasks": {**COMPACT["tasks"], **tasks}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"name": "x"}, "a wording has the keys"),
        (change(next_item={"prompt": "", "completion": ""}), "unknown task 'next_item'; known tasks: next_sid"),
        (change(next_sid={"prompt": "{histroy}", "completion": "{sid}"}), r"unknown placeholder \{histroy\}; allowed"),
        (change(next_sid={"prompt": "{bos}", "completion": "{sid}"}), r"placeholder \{history\} is missing"),
        (change(next_sid={"prompt": "{history}", "completion": "next {sid}"}), r"must begin with \{sid\}"),
        (
            change(title_history_to_title={"prompt": "{bos}", "completion": "{title}"}),
            r"placeholder \{history_titles\} is missing",
        ),
        (
            change(title_history_to_title={"prompt": "{titles}", "completion": "{title}"}),
            "allowed: history_titles, closed_titles, bos, eos",
        ),
        (change(next_sid={"prompt": "{history}"}), "needs exactly the keys prompt and completion"),
        (change(next_sid={"prompt": "{history", "completion": "{sid}"}), "for plain braces"),
        (change(next_sid={"prompt": [], "completion": "{sid}"}), "'next_sid', prompt: is an empty list"),
        (change(next_sid={"prompt": ["{history}", 3], "completion": "{sid}"}), "is 3; expected a text"),
        (
            change(next_sid={"prompt": ["{history}", "{title}"], "completion": "{sid}"}),
            r"unknown placeholder \{title\}; allowed: history, bos, eos",
        ),
        (
            change(sid_to_text={"prompt": "{sid}", "completion": "{title}"}),
            r"completion: the placeholder \{description\} is missing",
        ),
        ({**change(), "longest_description": -1}, "longest_description is -1; expected a number of characters"),
        ({**change(), "longest_description": True}, "longest_description is True; expected a number of characters"),
        ({**change(), "context": "gap"}, "context is 'gap'; expected a list of request features"),
        (change(next_sid={"prompt": "{history}{context}", "completion": "{sid}"}), r"unknown placeholder \{context\}"),
    ],
)
def test_bad_wordings(content, message, tmp_path):
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=message):
        load_wording(tmp_path / "w.yaml")


def conditioned(corpus):
    wording = replace(load_wording("compact"), context=(GAP, RequestFeature("weekday", WEEKDAYS)))
    return ExampleBuilder(corpus, small_table(), wording, SPECIALS)


def test_known_codes_stand_behind_the_history(tmp_path):
    times = RowTimes(np.array([4, 5, NO_TIME]), np.array([4, 4, 5]))
    corpus = small_corpus((("u", [0], 1), ("u", [0, 1], 2), ("u", [1], 0)))
    builder = conditioned(replace(corpus, train=replace(corpus.train, times=times)))
    wanted = ["<a_0><b_3><gap_1><weekday_4>", "<a_0><b_3><a_0><b_4><gap_2><weekday_4>", "<a_0><b_4>"]
    assert [example.prompt for example in builder.build("next_sid", "train")] == [f"<|bos|>{text}" for text in wanted]
    assert builder.build("next_sid", "train")[0].completion == "<a_0><b_4>"
    assert builder.prompt("next_sid", history=[0]) == builder.prompt("next_sid", history=[0], context=[0, 0])
    assert builder.prompt("next_sid", history=[0], context=[0, 7]) == "<|bos|><a_0><b_3><weekday_7>"
    assert "<gap" not in builder.prompt("next_title", history=[0], context=[1, 1])  # the next SID alone
    assert conditioned(corpus).build("next_sid", "train")[0].prompt == "<|bos|><a_0><b_3>"
    with pytest.raises(ConfigError, match=r"context gives gap, weekday behind it\. Set all_positions to false"):
        check_all_positions(builder)
    builder.wording.save(tmp_path / "wording.yaml")
    assert load_wording(tmp_path / "wording.yaml") == builder.wording
    assert builder.wording.tokens == ["<gap_1>", "<gap_2>", *(f"<weekday_{code}>" for code in range(1, 8))]
    assert "context" not in load_wording("compact").to_yaml()
    content = yaml.safe_load((tmp_path / "wording.yaml").read_text())
    content["context"][0]["values"] = []
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ArtefactError, match=r"bad\.yaml: context: .* describes no request feature"):
        load_wording(tmp_path / "bad.yaml")


def test_unknown_wording_and_task():
    with pytest.raises(ConfigError, match="'poem' is neither a file nor built in; built in are compact, prose"):
        load_wording("poem")
    with pytest.raises(ConfigError, match="unknown task 'sing'; known tasks: next_sid"):
        build().build("sing", "train")


def test_tokens_are_cut_on_the_left_and_completions_stand_alone():
    tokenizer = train_tokenizer(["red cup", "blue cup"], 300)
    tokenizer.add_tokens(small_table().tokens)
    whole = encode_prompt(tokenizer, ["red cup <a_0><b_3>"], None)[0][0]
    assert encode_prompt(tokenizer, ["red cup <a_0><b_3>"], 3)[0][0] == whole[-3:]
    short = encode_prompt(tokenizer, ["<a_0>"], None)[0][0]
    found, truncated = encode_prompt(tokenizer, ["red cup <a_0><b_3>", "<a_0>", "blue cup <a_0><b_3>"], len(short))
    assert found[1] == short
    assert truncated == 2
    assert encode_prompt(tokenizer, ["red cup <a_0><b_3>"], len(whole))[1] == 0
    assert encode_prompt(tokenizer, ["red cup <a_0><b_3>"], None)[1] == 0
    assert special_texts(tokenizer) == SPECIALS
    ids = encode_completion(tokenizer, ["<a_0><b_3><|eos|>"])[0]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<a_0>", "<b_3>", "<|eos|>"]
    with pytest.raises(DataError, match=r"prompt 1 \(''\) has no token"):
        encode_prompt(tokenizer, ["red", ""], None)


def test_windows_do_not_join_what_does_not_continue():
    corpus = small_corpus((("u", [0, 1], 2), ("u", [1], 0), ("w", [2], 2), ("u", [1, 0], 1)))
    windows = [(w.items.tolist(), w.first_target) for w in user_windows(corpus)]
    assert windows == [([0, 1, 2], 2), ([1, 0, 1], 1), ([2, 2], 1)]


def test_windows_of_the_real_corpus(industrial):
    windows = user_windows(industrial)
    targets = Counter(int(t) for w in windows for t in w.items[w.first_target :])
    assert targets == Counter(industrial.train.targets.tolist())
    assert sum(targets.values()) == 36_259
    assert len(windows) < 8_000
