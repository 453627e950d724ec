"""The published layout: what is written from any corpus can be read again."""

import json

import pytest
from support.interactions import ITEMS, corpus_rows, random_interactions
from support.raw_files import write_amazon

from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.data.published import read_index, read_published
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare


@pytest.fixture
def settings(tmp_path):
    paths = write_amazon(tmp_path, "amazon2018", random_interactions(), ITEMS)
    return {"source": "amazon2018", **paths, "output": str(tmp_path / "c"), "layout": str(tmp_path / "l")}


def test_any_corpus_can_be_written_and_read_again(tmp_path, settings):
    settings["quirks"] = ["published_order"]
    run_prepare(PrepareConfig(**settings))
    corpus = Corpus.load(tmp_path / "c")
    names = sorted(path.name for path in (tmp_path / "l").rglob("*") if path.is_file())
    assert names == ["l.item.json", "l.test.inter", "l.train.inter", "l.valid.inter"]
    assert run_prepare(PrepareConfig(**settings)).up_to_date
    (tmp_path / "l/l.test.inter").unlink()
    assert not run_prepare(PrepareConfig(**settings)).up_to_date
    assert (tmp_path / "l/l.test.inter").is_file()
    tokens = {str(item): [f"<a_{item}>", "<b_0>"] for item in range(8)}
    index = tmp_path / "corpus.index.json"
    index.write_text(json.dumps(tokens))
    run_prepare(PrepareConfig(**settings, layout_index=str(index)))
    again = read_published(tmp_path / "l", "l")
    assert again.items["title"].tolist() == corpus.items["title"].tolist()
    assert again.items["description"].tolist() == corpus.items["description"].tolist()
    users = dict.fromkeys(user for user, _, _ in random_interactions())
    numbers = {user: f"A{position}" for position, user in enumerate(users)}
    item_number = {item: str(position) for position, item in enumerate(corpus.items["item_id"])}
    assert corpus_rows(again) == [
        (numbers[user], [item_number[item] for item in history], item_number[target])
        for user, history, target in corpus_rows(corpus)
    ]
    record = json.loads((tmp_path / "l/index/l.item.json").read_text())["0"]
    assert record["brand"] == "Acme" and record["categories"] == "Shop, Things"
    index.write_text(json.dumps({**tokens, "3": ["<a_9>"]}))
    assert not run_prepare(PrepareConfig(**settings, layout_index=str(index))).up_to_date


def test_bad_indices(tmp_path):
    path = tmp_path / "index.json"
    for content, message in (
        ({"0": ["<a_1>"]}, r"index\.json: item '1' has None; expected a list of token strings"),
        ({"0": ["<a_1>"], "1": "<a_2>"}, "item '1' has '<a_2>'"),
        ([], "expected an object of item number"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=message):
            read_index(path, 2)


def test_settings_and_paths(tmp_path, settings):
    with pytest.raises(ConfigError, match="layout_index is 'x', but layout is not given"):
        PrepareConfig(source="demo", layout_index="x", output="y")
    with pytest.raises(DataError, match=r"no\.json: no such file\. Give --layout_index"):
        run_prepare(PrepareConfig(**settings, layout_index=str(tmp_path / "no.json")))
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="cannot be written"):
        run_prepare(PrepareConfig(**{**settings, "layout": str(tmp_path / "file")}))
    assert not (tmp_path / "c").exists()
