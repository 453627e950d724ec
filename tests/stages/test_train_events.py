"""Events of history items: from the table to windows, prompts, both kinds of models, lists and requests."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from support.evaluation import config as eval_config
from support.rounding import assert_near
from support.small_shop import sign
from support.training import SHAPE, catalogue_config, sft_config

from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.windows import padded_events, padded_windows
from minionerec.metrics.predictions import Predictions
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.backbone.catalogue import blocks
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.pipeline.build_sids import run_build_sids
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.config.recommend import ExportConfig, RecommendConfig
from minionerec.pipeline.config.sids import SidConfig
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.export import run_export
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.pipeline.recommend import run_recommend
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.recommend.rankers.lists import split_queries
from minionerec.recommend.rankers.load import load_ranker
from minionerec.recommend.rankers.protocol import Queries, context_used
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import RequestError
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.windows import held_out_windows, read_windows, write_windows

ITEMS = 12
EVENTS = ["view", "cart", "purchase"]
LEARNS = {"epochs": 9, "learning_rate": 2e-2, "dropout": 0.0, "eval_examples": -1, "evals_per_epoch": 0.25}


def log(users=60, purchases=6, seed=0):
    """What a user buys follows from the event before: after a view of item i it is i + 1, after a cart i + 2."""
    rng, rows, time = np.random.default_rng(seed), [], 1_500_000_000
    for user in range(users):
        for _ in range(purchases):
            item, event = int(rng.integers(ITEMS)), EVENTS[int(rng.integers(2))]
            target = (item + (1 if event == "view" else 2)) % ITEMS
            rows += [(f"u{user}", f"i{item}", time, event), (f"u{user}", f"i{target}", time + 60, "purchase")]
            time += 3600
    return pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp", "event"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    titles = [f"thing {item} of kind {item % 3}" for item in range(ITEMS)]
    items = pd.DataFrame({"item_id": [f"i{item}" for item in range(ITEMS)], "title": titles})
    items.to_csv(folder / "items.csv", index=False)
    log().to_csv(folder / "log.csv", index=False)
    tables = {"items": str(folder / "items.csv"), "interactions": str(folder / "log.csv")}
    config = PrepareConfig(source="tables", **tables, targets=["purchase"], output=str(folder / "corpus"))
    run_prepare(config)
    codes = {"codebook_sizes": [4, 3, 3], "dimensions": 4}
    run_build_sids(SidConfig(corpus=str(folder / "corpus"), output=str(folder / "sids"), **codes))
    return folder


@pytest.fixture(scope="module")
def catalogue(shop):
    run_catalogue(catalogue_config(shop, **LEARNS))
    return shop / "catalogue"


@pytest.fixture(scope="module")
def language(shop, catalogue):
    steps = {"epochs": 36, "learning_rate": 4e-3, "batch_size": 12, "device_batch_size": 12}
    measured = {"evals_per_epoch": 1 / 12, "eval_examples": 40}
    run_sft(sft_config(shop, **{**SHAPE, **LEARNS, **steps, **measured, "teacher": str(catalogue)}))
    return shop / "sft"


def test_windows_hold_the_event_of_each_item(shop, tmp_path):
    corpus = Corpus.load(shop / "corpus")
    assert set(corpus.event_names) == set(EVENTS)
    (windows,) = corpus.windows("train")
    events, (histories, _, _) = padded_events(windows, 10, "right"), padded_windows(windows, 10, "right")
    assert ((events > 0) == (histories > 0)).all()
    names = ["", *corpus.event_names]
    for row_events, items in zip(events.tolist(), histories.tolist(), strict=True):
        for step in range(len(items) - 1):
            if names[row_events[step]] in ("view", "cart") and items[step + 1]:
                assert names[row_events[step + 1]] == "purchase"
                assert (items[step + 1] - items[step]) % ITEMS == 1 + (names[row_events[step]] == "cart")
    table = load_table(shop)
    for given in (True, False):
        folder = tmp_path / str(given)
        write_windows(corpus, table, 0.0, folder, events=given)
        assert ("events" in read_windows(folder)) == given
    assert np.array_equal(read_windows(tmp_path / "True")["events"], events)
    heldout = held_out_windows(corpus.valid, table.sid_numbers, 10, events=True)
    for row, past in enumerate(corpus.valid.history_events):
        assert heldout["events"][row].tolist() == [*(past + 1).tolist(), *[0] * (10 - len(past))]


def load_table(shop):
    return SidTable.load_index(shop / "sids")


def test_a_corpus_written_again_keeps_events(shop, tmp_path):
    corpus = Corpus.load(shop / "corpus")
    corpus.save(tmp_path / "again", config={}, inputs={})
    again = Corpus.load(tmp_path / "again")
    for split, rows in corpus.splits().items():
        found = again.splits()[split]
        for one, other in zip(found.seen_events, rows.seen_events, strict=True):
            assert one[-len(other) :].tolist() == other.tolist()
        assert found.events.of_targets.tolist() == rows.events.of_targets.tolist()


@pytest.mark.parametrize("kind", ["catalogue", "language"])
def test_models_learn_what_an_event_means(shop, kind, request):
    """The same item, viewed or in the basket, has other items after it; without an event both are likely."""
    path = request.getfixturevalue(kind)
    recommender = Recommender.load(path)
    hits = []
    for item in range(ITEMS):
        for event, step in (("view", 1), ("cart", 2)):
            answer = recommender.recommend([f"i{item}"], k=2, events=[event])
            hits.append(answer.items[0].item_id == f"i{(item + step) % ITEMS}")
    assert np.mean(hits) > 0.65  # where events are not read at most half can be right
    both = [
        {found.item_id for found in recommender.recommend([f"i{item}"], k=2).items}
        == {f"i{(item + 1) % ITEMS}", f"i{(item + 2) % ITEMS}"}
        for item in range(ITEMS)
    ]
    assert np.mean(both) > 0.25


@pytest.mark.parametrize("kind", ["catalogue", "language"])
def test_prompts_name_events_by_their_names(shop, kind, request):
    """Numbers of a corpus may be others than those of training; unknown ones have no token."""
    path = request.getfixturevalue(kind)
    corpus = Corpus.load(shop / "corpus")
    ranker = load_ranker(path, corpus)
    assert context_used(ranker) == {"events"}
    queries = split_queries(corpus.test, used=context_used(ranker))
    assert queries.given == ("events",)
    wanted = ranker.rank(queries, 5)
    names = [*corpus.event_names[::-1], "other"]
    renamed = replace(corpus, counts={**corpus.counts, "event_names": names})
    number = {corpus.event_names.index(name): position for position, name in enumerate(names[:-1])}
    moved = [np.array([number[event] for event in past.tolist()], np.int16) for past in queries.events]
    other = load_ranker(path, renamed)
    assert other.rank(replace(queries, events=moved), 5) == wanted
    unknown = [np.where(np.arange(len(past)) % 2 == 0, 3, past) for past in moved]
    hidden = [np.where(np.arange(len(past)) % 2 == 0, -1, past) for past in moved]
    assert other.rank(replace(queries, events=unknown), 5) == other.rank(replace(queries, events=hidden), 5)
    texts, prompts, _ = ranker.prompts(queries.take([0]))
    bundle = load_bundle(path)
    last = bundle.wording.events.index(corpus.event_names[int(queries.events[0][-1])])
    assert texts[0].endswith(f"<event_{last}>")
    assert bundle.tokenizer.decode(prompts[0][-1:]) == f"<event_{last}>"
    one = [ranker.rank(queries.take([row]), 5) for row in range(3)]
    assert [each.items[0] for each in one] == wanted.items[:3]


def test_the_catalogue_model_reads_events_of_prompts_as_of_windows(shop, catalogue, monkeypatch):
    corpus, bundle = Corpus.load(shop / "corpus"), load_bundle(catalogue)
    model, table = bundle.model.eval(), bundle.table
    builder = ExampleBuilder(corpus, table, bundle.wording, special_texts(bundle.tokenizer))
    rows = corpus.valid.take(np.arange(4))
    parts = zip(rows.histories, rows.history_events, strict=True)
    texts = [builder.prompt("next_sid", history=history, events=events) for history, events in parts]
    prompts = bundle.tokenizer(texts)["input_ids"]
    heldout = held_out_windows(rows, table.sid_numbers, corpus.max_history, events=True)
    histories, events = (torch.from_numpy(heldout[name].astype(np.int64)) for name in ("histories", "events"))
    read, _, read_events = model.read_prompts(prompts)
    width = read.shape[1]
    assert torch.equal(read, histories[:, :width]) and torch.equal(read_events, events[:, :width])
    with torch.inference_mode():
        wanted = model.leaf_log_probs(histories, events=events)
        assert_near(model.sid_log_probs(prompts, model.trie), wanted)
        assert not torch.allclose(model.leaf_log_probs(histories), wanted, atol=1e-2)
        nothing = model.leaf_log_probs(histories, events=torch.zeros_like(events))
        assert torch.equal(model.leaf_log_probs(histories), nothing)
        labels = torch.from_numpy(heldout["labels"].astype(np.int64))
        loss = model(histories=histories, labels=labels, events=events).loss
        monkeypatch.setattr(blocks, "SIDS_AT_ONCE", 5)
        assert_near(model(histories=histories, labels=labels, events=events).loss, loss)
        found = model(input_ids=torch.tensor(prompts[:1])).logits[0, -1]
    first = {int(code): position for position, code in enumerate(model.trie.token[1 : 1 + len(set(table.codes[:, 0]))])}
    masses = model.node_log_probs(wanted[:1])[0]
    for token, position in first.items():
        assert_near(found[token], masses[1 + position])


def test_lists_and_figures_say_what_was_given(shop, catalogue, tmp_path):
    settings = {"checkpoint": str(catalogue), "beams": ITEMS, "ks": [1, 5], "output": str(tmp_path / "eval")}
    result = run_eval(eval_config(shop, **settings))
    predictions = Predictions.load(tmp_path / "eval")
    assert predictions.given == ("events",)
    assert any("given events" in line for line in result.lines)


def test_an_export_names_the_tokens_of_events(shop, language, tmp_path):
    settings = {"checkpoint": str(language), "corpus": str(shop / "corpus"), "output": str(tmp_path / "export")}
    run_export(ExportConfig(**settings))
    about = json.loads((tmp_path / "export" / "prompts.json").read_text())
    names = load_bundle(language).wording.events
    assert about["events"] == {name: f"<event_{number}>" for number, name in enumerate(names)}
    assert "`events` in `prompts.json`" in (tmp_path / "export" / "README.md").read_text()


def test_a_teacher_of_other_events_is_refused(shop, catalogue, tmp_path):
    lines = (shop / "log.csv").read_text().replace(",cart", ",basket")
    (tmp_path / "log.csv").write_text(lines)
    tables = {"items": str(shop / "items.csv"), "interactions": str(tmp_path / "log.csv")}
    run_prepare(PrepareConfig(source="tables", **tables, targets=["purchase"], output=str(tmp_path / "corpus")))
    settings = {"corpus": str(tmp_path / "corpus"), "teacher": str(catalogue), "output": str(tmp_path / "sft")}
    with pytest.raises(ConfigError, match=r"reads the events .*cart.*, but this training's corpus has .*basket"):
        run_sft(sft_config(shop, **settings))


def test_event_tokens_of_another_wording_are_refused(shop, catalogue, tmp_path):
    shutil.copytree(catalogue, tmp_path / "spoiled")
    config = json.loads((tmp_path / "spoiled" / "config.json").read_text())
    config["event_tokens"] = config["event_tokens"][::-1]
    (tmp_path / "spoiled" / "config.json").write_text(json.dumps(config))
    sign(tmp_path / "spoiled")
    with pytest.raises(ArtefactError, match=r"its event_tokens are not those of wording\.yaml"):
        load_bundle(tmp_path / "spoiled")


def test_requests_and_files_of_histories_have_events(shop, catalogue, tmp_path):
    recommender = Recommender.load(catalogue)
    viewed = recommender.recommend(["i3", "gone"], k=3, events=["view", "cart"])
    assert viewed.items == recommender.recommend(["i3"], k=3, events=["view"]).items
    carted = recommender.recommend(["i3"], k=3, events=["cart"])
    assert viewed.items != carted.items
    assert recommender.recommend(["i3"], k=3, events=["never met"]) == recommender.recommend(["i3"], k=3)
    with pytest.raises(RequestError, match="events: has 1 events for 2 items of the history; give one for each"):
        recommender.recommend(["i3", "i4"], events=["view"])
    with pytest.raises(RequestError, match=r"events\[0\]: is 3; expected the name of an event"):
        recommender.recommend(["i3"], events=[3])
    rows = [{"history": ["i3"], "events": ["view"]}, {"history": ["i3"], "events": ["cart"]}, {"history": ["i3"]}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {"checkpoint": str(catalogue), "histories": str(tmp_path / "rows.jsonl"), "k": 3}
    run_recommend(RecommendConfig(**config, output=str(tmp_path / "lists")))
    lists = pd.read_parquet(tmp_path / "lists" / "recommendations.parquet")["items"]
    plain = recommender.recommend(["i3"], k=3)
    for row, answer in enumerate((viewed, carted, plain)):
        assert lists[row].tolist() == [item.item_id for item in answer.items]


def test_queries_keep_events_with_their_items():
    events = [np.array([0, 1, 2], np.int16), np.array([1], np.int16)]
    queries = Queries([np.array([4, 5]), np.array([6])], seen=[np.array([3, 4, 5]), np.array([6])], events=events)
    assert [past.tolist() for past in queries.history_events] == [[1, 2], [1]]
    assert [past.tolist() for past in queries.take([1, 0]).events] == [[1], [0, 1, 2]]
    without = queries.without_items([4])
    assert [past.tolist() for past in without.events] == [[0, 1, 2], [0, 2]]
    joined = Queries.joined([queries, Queries([np.array([1, 2])])])
    assert [past.tolist() for past in joined.events] == [[0, 1, 2], [1], [-1, -1]]
    assert queries.key(0) != replace(queries, events=[events[0] * 0, events[1]]).key(0)
    assert queries.given == ("events",) and Queries([np.array([1])]).given == ()
