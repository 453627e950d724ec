"""Texts of a hundred thousand characters: cut by a stated limit, counted, and trained on in seconds."""

import csv
import random
import time

import pytest
from support.small_shop import copied, stage

from minionerec.core.artefacts import read_manifest
from minionerec.data.corpus import Corpus
from minionerec.models.prompts.examples import LONGEST_COMPLETION, LONGEST_TEXT, ExampleBuilder
from minionerec.models.prompts.wording import load_wording
from minionerec.sid.table import SidTable

LONG = 100_000
WORDS = {"one word": "x" * LONG, "spaces": " " * LONG, "letters": "".join(random.Random(0).choices("abc é€", k=LONG))}
TASKS = ("next_sid", "title_to_sid", "sid_to_title", "description_to_sid")


@pytest.mark.parametrize("kind", WORDS)
def test_long_titles_and_descriptions(shop, tmp_path, kind):
    folder = copied(shop, tmp_path / "shop", ("corpus", "sids", "sft", "sft.finished"))
    with open(folder / "items.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    rows[1][1:] = [f"a {WORDS[kind]} b", f"c {WORDS[kind]} d"]
    with open(folder / "items.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    begin = time.monotonic()
    for name in ("prepare-data", "build-sids"):
        done = stage(folder, name)
        if done.status:
            assert "items.csv" in done.reported  # a reader that refuses the cell says so
            return
    words = ["--all_positions", "false", "--tasks", *(f"{task}=1" for task in TASKS)]
    done = stage(folder, "sft", *words, "--wording", "prose")
    assert done.status == 0, done
    assert time.monotonic() - begin < 60
    counts = read_manifest(folder / "sft")["counts"]
    assert counts["truncated_texts"] == 2
    assert f"2 titles and descriptions were truncated to {LONGEST_TEXT} characters" in done.err
    if kind == "letters":  # of one letter a few tokens hold all
        assert counts["truncated_completions"] == 1 and counts["truncated_prompts"] >= 1
        assert f"1 completions were too long and were truncated to their first {LONGEST_COMPLETION} tokens" in done.err
    assert counts["tokens"] < 2 * (512 + LONGEST_COMPLETION) + 300 * sum(counts["rows"].values())


def test_texts_within_the_limit_are_whole(shop):
    counts = read_manifest(shop / "sft")["counts"]
    assert counts["truncated_completions"] == counts["truncated_prompts"] == 0


def test_a_prompt_ends_and_a_completion_begins_as_the_whole_text_does(shop):
    corpus = Corpus.load(shop / "corpus")
    title = "".join(chr(97 + position % 26) for position in range(3 * LONGEST_TEXT))
    corpus.items["title"] = [title, *corpus.items["title"][1:]]
    table = SidTable.load_index(shop / "sids", corpus.items["item_id"].tolist())
    builder = ExampleBuilder(corpus, table, load_wording("prose"), {"bos": "", "eos": ""})
    prompt, completion = builder.prompt("title_to_sid", item=0), builder.completion("sid_to_title", 0)
    assert title[-LONGEST_TEXT:] in prompt and title[-LONGEST_TEXT - 1 :] not in prompt
    assert title[:LONGEST_TEXT] in completion and title[: LONGEST_TEXT + 1] not in completion
