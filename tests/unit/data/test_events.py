"""Events and conditions of interactions: which rows are read, and which of them are predicted."""

import numpy as np
import pandas as pd
import pytest
from support.builder import build, read_recbole, read_tables
from support.tables import write_table

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.data.filters import parse_conditions
from minionerec.data.source import BadRows
from minionerec.data.windows import varied_windows
from minionerec.models.backbone.build import train_tokenizer
from minionerec.models.backbone.vocabulary import add_code_tokens, code_token_ids
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.models.prompts.wording import NEXT_SID, load_wording
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.sid.table import SidTable
from minionerec.training.rows import SftExamples

ITEMS = pd.DataFrame({"item_id": [f"i{item}" for item in range(6)], "title": [f"thing {item}" for item in range(6)]})


def log(n_users=12):
    """A user views two items and then buys the second, again and again."""
    rows = []
    for user in range(n_users):
        for visit in range(4):
            items = [ITEMS["item_id"][(user + visit + step) % len(ITEMS)] for step in (0, 1, 1)]
            for step, (item, event) in enumerate(zip(items, ("view", "view", "purchase"), strict=True)):
                time = 1_500_000_000 + visit * 86_400 + step * 60 + user
                rows.append((f"u{user}", item, time, event, visit + 1))
    return pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp", "event", "rating"])


def source_of(folder, table, suffix=".csv", **options):
    bought, items = write_table(table, folder / f"bought{suffix}"), write_table(ITEMS, folder / f"items{suffix}")
    return read_tables(bought, items, **options)


def read(folder, bought, suffix=".csv", **options):
    return build(source_of(folder, bought, suffix, **options))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_only_targets_are_predicted_and_other_events_are_in_histories(tmp_path, suffix):
    table = log()
    built = build(source_of(tmp_path, table, suffix, events=True), targets=["purchase"], max_history=3)
    assert built.counts["events"] == {"view": 96, "purchase": 48} and built.counts["targets"] == ["purchase"]
    assert built.counts["rows"] == 48 and built.counts["split"] == "global time 8:1:1, targets purchase"
    whole = built.corpus()
    for rows in whole.splits().values():
        for _, history, target in rows:
            assert history[-1] == target  # the target's own view, a minute before
    assert whole.popularity().sum() == len(whole.train)


def test_the_last_targets_of_a_user_are_left_out(tmp_path):
    table = log()
    more = table.groupby("user_id").tail(1).assign(event="view")
    more["timestamp"] += 100  # views after the last purchase
    source = source_of(tmp_path, pd.concat([table, more]), events=True)
    built = build(source, targets=["purchase"], split="leave_last_out")
    assert [built.counts[f"{split}_rows"] for split in ("train", "valid", "test")] == [24, 12, 12]


def test_windows_and_their_variants_have_losses_at_targets_alone(tmp_path):
    items, bought = write_table(ITEMS, tmp_path / "items.csv"), write_table(log(), tmp_path / "bought.csv")
    paths = {"items": str(items), "interactions": str(bought), "output": str(tmp_path / "corpus")}
    run_prepare(PrepareConfig(source="tables", targets=["purchase"], **paths))
    corpus = Corpus.load(tmp_path / "corpus")
    assert corpus.partly_targets and not corpus.together
    losses = []
    for windows in corpus.windows("train"):
        for begin, end, first in zip(windows.begins, windows.ends, windows.firsts, strict=True):
            losses += windows.items[begin + first : end].tolist()
        varied = varied_windows(windows, corpus.partly_targets, 3, seed=0)
        for begin, end, first in zip(varied.begins, varied.ends, varied.firsts, strict=True):
            assert (varied.rows[begin + first : end] >= 0).all()
    assert sorted(losses) == sorted(corpus.train.targets.tolist())


def test_a_language_model_learns_no_viewed_item_from_variants_either(tmp_path):
    rows = [
        (f"u{user}", f"i{3 * step + (user + visit) % 3}", 1_500_000_000 + visit * 600 + step * 60 + user, event)
        for user in range(12)
        for visit in range(4)
        for step, event in enumerate(("view", "purchase"))
    ]
    table = pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp", "event"])
    corpus = build(source_of(tmp_path, table, events=True), targets=["purchase"]).corpus()
    sids = SidTable(np.array([[item // 3, item % 3] for item in range(6)]), ITEMS["item_id"].tolist())
    tokenizer = train_tokenizer(ITEMS["title"].tolist(), 300)
    add_code_tokens(tokenizer, sids)
    code_ids = code_token_ids(tokenizer, sids)
    builder = ExampleBuilder(corpus, sids, load_wording("compact"), special_texts(tokenizer))
    maker = SftExamples(tokenizer, builder, corpus, {NEXT_SID: 1.0}, 42, all_positions=True, variants=5)
    positions, make = maker.opened(NEXT_SID)
    labels = set(make(positions)[0]["labels"][0].tolist())
    viewed, bought = (int(code_ids[0][code]) for code in (0, 1))
    assert bought in labels and viewed not in labels


def test_events_of_recbole(tmp_path):
    file = tmp_path / "shop.inter"
    table = log().rename(columns={"timestamp": "timestamp:float", "event": "kind:token", "user_id": "user_id:token"})
    table.rename(columns={"item_id": "item_id:token"}).to_csv(file, sep="\t", index=False)
    built = build(read_recbole(file, events=True, columns={"event": "kind"}, where="rating >= 2"), targets=["purchase"])
    assert built.counts["events"] == {"view": 72, "purchase": 36}
    assert built.counts["interactions_left_out_by_where"] == 36


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("rating >= 3", 72),
        ("rating>2 and event == purchase", 24),
        ("event != 'view'", 48),
        ("rating == 3.0", 36),
        ("'rating' < 1e9", 144),
        ("", 144),
    ],
)
def test_rows_that_do_not_meet_a_condition_are_left_out(tmp_path, suffix, where, rows):
    corpus = read(tmp_path, bought=log(), suffix=suffix, where=where)
    assert corpus.counts["interactions"] == rows
    assert corpus.counts.get("interactions_left_out_by_where", 0) == 144 - rows


def test_missing_cells_meet_no_condition_and_texts_are_not_compared_as_numbers(tmp_path):
    table = log().astype({"rating": object})
    table.loc[3, "rating"] = ""
    assert read(tmp_path, bought=table, where="rating <= 4").counts["interactions"] == 143
    table.loc[5, "rating"] = "many"
    with pytest.raises(DataError, match=r"bought.csv, line 7, column 'rating': 'many' is no number \(1 such rows\)"):
        read(tmp_path, bought=table, where="rating <= 4")
    bad = BadRows(1)
    assert read(tmp_path, bought=table, where="rating <= 4", bad=bad).counts["interactions"] == 142
    assert bad.counts() == {"bad_rows": 1, "bad_rows_bad_number": 1}
    assert read(tmp_path, bought=table, where="rating != many").counts["interactions"] == 143


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("rating", "expected comparisons of a column with a value, such as 'rating >= 4'"),
        ("rating >= high", ">= compares numbers, and 'high' is none"),
        ("rating >= nan", ">= compares numbers, and 'nan' is none"),
        ("rating >= 4 and", ">= compares numbers, and '4 and' is none"),
    ],
)
def test_conditions_that_cannot_be_read(tmp_path, where, words):
    with pytest.raises(ConfigError, match=words):
        parse_conditions(where)
    with pytest.raises(ConfigError, match=words):
        PrepareConfig(interactions="a", items="b", output=str(tmp_path), where=where)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_and_events_that_are_not_there_are_named(tmp_path, suffix):
    with pytest.raises(DataError, match="column 'price' is missing; it has user_id, item_id, timestamp, event, rating"):
        read(tmp_path, bought=log(), suffix=suffix, where="price > 1")
    with pytest.raises(DataError, match=r"column 'event' is missing.* Name the right one with --columns event=NAME"):
        source_of(tmp_path, log().drop(columns="event"), suffix, events=True)
    with pytest.raises(ConfigError, match=r"targets names 'buy', which .* does not hold; its events: view, purchase"):
        build(source_of(tmp_path, log(), suffix, events=True), targets=["buy"])


def test_an_interaction_without_an_event_is_a_bad_row(tmp_path):
    table = log()
    table.loc[4, "event"] = " "
    with pytest.raises(DataError, match=r"bought.csv, line 6: column 'event' is empty \(1 such rows\)"):
        source_of(tmp_path, table, events=True)
    source = source_of(tmp_path, table, events=True, bad=BadRows(1))
    assert build(source, targets=["purchase"]).counts["interactions"] == 143


def test_a_column_of_something_else_is_no_column_of_events(tmp_path):
    table = log(200).assign(event=lambda table: table.index.astype(str))
    with pytest.raises(DataError, match="column 'event' holds more than 1,000 different texts"):
        source_of(tmp_path, table, events=True)


def test_what_is_not_read_is_named(tmp_path, caplog):
    caplog.set_level("INFO")
    read(tmp_path, bought=log(), suffix=".parquet")
    message = (
        "columns that are not read: event, rating. Without targets each row counts alike, whatever its 'event' is."
    )
    assert message in caplog.text
    caplog.clear()
    source_of(tmp_path, log(), events=True, where="rating > 0")
    assert "columns that are not read" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"targets": ["purchase"], "ties": "shuffle"}, "ties is 'shuffle', but targets are given"),
        ({"columns": {"event": "kind"}}, "columns names event=kind, but events are read for targets alone"),
        ({"source": "movielens", "targets": ["purchase"]}, "targets is .*, but source is 'movielens'"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        PrepareConfig(**{"source": "tables", "interactions": "a", "items": "b", "output": str(tmp_path), **settings})
