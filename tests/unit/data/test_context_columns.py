"""Columns of interactions that are request features: which are kept, how they are stored, and what examples have."""

import numpy as np
import pandas as pd
import pytest
from support.examples import in_blocks
from support.tables import write_table

from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.data.context_columns import is_determined_by_items, name_problem, values_problem
from minionerec.data.contexts import RequestFeature, chosen_features, context_codes, corpus_codes
from minionerec.data.corpus import Corpus
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare

ITEMS = pd.DataFrame({"item_id": [f"i{item}" for item in range(20)], "title": "Tea"})
SESSIONS = 1000
REASONS = {
    "brand": "the item determines it",
    "price": "numbers",
    "rating": "it is known after the choice",
    "constant": "one value",
    "nothing": "empty",
    "note": "texts that hardly recur",
    "rare": "texts that hardly recur",
    "many": "more than 256 values",
    "tags": "lists",
    "hour": "the name of a feature of times",
    "event": "without targets each row counts alike",
    "ends with a bar|": "a name with other signs than letters, digits, spaces, _, . and -",
}


def log():
    """Two rows of each session, with one time and two devices, and columns that do not serve."""
    chance = np.random.default_rng(0)
    session = np.repeat(np.arange(SESSIONS), 2)
    table = pd.DataFrame(
        {
            "user_id": [f"u{user}" for user in np.repeat(chance.integers(0, 60, SESSIONS), 2)],
            "item_id": [f"i{item}" for item in chance.integers(0, 20, 2 * SESSIONS)],
            "timestamp": 1_600_000_000 + session * 60,
            "device": np.tile(["phone", "computer"], SESSIONS),
            "channel": chance.choice(["shop", "", "unknown", "mail &amp; phone"], 2 * SESSIONS, p=[0.5, 0.1, 0.1, 0.3]),
            "member": chance.random(2 * SESSIONS) < 0.9,
        }
    )
    table.loc[table.index[-20:], "channel"] = "kiosk"  # after training
    rows = np.arange(len(table))
    of_item = table["item_id"].str[-1]
    table["brand"] = np.where(rows % 50 == 0, "none", "brand " + of_item)
    table["price"], table["rating"] = chance.random(len(table)).round(2), chance.integers(1, 6, len(table))
    table["constant"], table["nothing"] = "x", ""
    table["note"] = [f"note {row}" for row in np.tile(rows[: len(rows) // 2], 2)]
    table["rare"] = [f"{row}" + "a" if row < 200 else "" for row in rows]
    table["many"] = [f"value {row % 300}" for row in rows]
    table["tags"] = chance.choice(["a|b", "b|c", "a|c", "a"], len(table))
    table["hour"] = chance.choice(["early", "late"], len(table))
    table["event"] = chance.choice(["view", "purchase"], len(table))
    table["ends with a bar|"] = chance.choice(["a", "b"], len(table))
    return table


def prepared(folder, table, suffix=".csv", **settings):
    paths = {
        "interactions": str(write_table(table, folder / f"log{suffix}")),
        "items": str(write_table(ITEMS, folder / "items.csv")),
    }
    run_prepare(PrepareConfig(**paths, output=str(folder / "corpus"), **settings))
    return Corpus.load(folder / "corpus")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("ties", ["keep", "shuffle", "together"])
def test_each_example_has_the_values_of_its_targets_row(tmp_path, caplog, suffix, ties):
    caplog.set_level("INFO")
    table = log()
    corpus = prepared(tmp_path, table, suffix, ties=ties, core=2)
    assert set(corpus.context_values) == {"device", "channel", "member"}
    assert corpus.context_values["channel"] == ["shop", "mail & phone"]  # no value after training, nor "unknown"
    assert corpus.context_values["member"] == ["True", "False"] and set(corpus.event_names) == set()
    of_row = {
        row[:4]: row[4]
        for row in table[["user_id", "item_id", "timestamp", "device", "channel"]].itertuples(index=False)
    }
    for rows in corpus.splits().values():
        device, channel = (["", *rows.contexts[name].values] for name in ("device", "channel"))
        codes = zip(*(rows.contexts[name].codes.tolist() for name in ("device", "channel")), strict=True)
        parts = zip(rows.users, rows.targets, rows.times.time, codes, strict=True)
        for user, target, time, (of_device, of_channel) in parts:
            wanted = of_row[user, corpus.items["item_id"][target], time, device[of_device]].replace("&amp;", "&")
            assert channel[of_channel] == (wanted if wanted in channel else "")
    if suffix == ".csv":
        for name, reason in REASONS.items():
            assert f"{name} ({reason})" in caplog.text
    assert "request features: device, channel, member" in caplog.text


def test_the_codes_are_no_function_of_the_target(tmp_path):
    """The same rows with other items have the same codes: only the rows' own columns are read."""
    table = log()
    (tmp_path / "other").mkdir()
    corpus = prepared(tmp_path, table)
    others = table.assign(item_id=np.random.default_rng(1).permutation(table["item_id"]))
    other = prepared(tmp_path / "other", others)
    features = chosen_features(corpus, ["device", "gap", "channel"])
    assert chosen_features(other, ["device", "gap", "channel"]) == features
    for split in ("train", "valid", "test"):
        assert (corpus.rows(split).targets != other.rows(split).targets).any()
        assert np.array_equal(corpus_codes(corpus, features, split), corpus_codes(other, features, split))


def test_a_large_corpus_a_copy_and_parts_have_the_same_codes(tmp_path):
    corpus = prepared(tmp_path, log(), targets=["purchase"])
    features = chosen_features(corpus, ["device", "member"])
    wanted = corpus_codes(corpus, features)
    assert wanted.dtype == np.int16 and set(wanted[:, 0]) == {1, 2}
    assert np.array_equal(corpus_codes(in_blocks(tmp_path / "corpus"), features), wanted)
    corpus.save(tmp_path / "copy", config={}, inputs={})
    copy = Corpus.load(tmp_path / "copy")
    assert copy.context_values == corpus.context_values
    for split in ("train", "valid", "test"):
        assert np.array_equal(corpus_codes(copy, features, split), corpus_codes(corpus, features, split))
    every = corpus.training_on(["valid", "test"])
    assert len(corpus_codes(every, features)) == sum(corpus.sizes.values())
    some = np.array([5, 2, 9])
    assert np.array_equal(context_codes(features, corpus.chosen("train", some)), wanted[some])


def test_a_model_reads_the_values_of_another_corpus_by_name(tmp_path):
    rows = prepared(tmp_path, log()).train
    feature = RequestFeature("device", ("tablet", "phone"), unit=0)
    names = np.array(["", *rows.contexts["device"].values])[rows.contexts["device"].codes]
    assert np.array_equal(feature.of_examples(rows), np.where(names == "phone", 2, 0))
    assert not RequestFeature("colour", ("red",), unit=0).of_examples(rows).any()
    assert (feature.code("phone"), feature.code("watch"), feature.code("unknown"), feature.code(7)) == (2, 0, 0, 0)
    with pytest.raises(ValueError, match="expected a text, such as tablet"):
        feature.code(True)
    assert feature.of_request(0, 10) == 0 and RequestFeature.read(feature.stored(), "here") == feature
    for damaged in (
        {"values": []},
        {"values": ["a", "a"]},
        {"values": ["unknown"]},
        {"edges": [1], "values": ["a", 2]},
    ):
        with pytest.raises(ArtefactError, match="describes no request feature"):
            RequestFeature.read({**feature.stored(), **damaged}, "here")


@pytest.mark.parametrize("name", [*REASONS, "item_id", "colour"])
def test_a_named_column_serves_or_is_refused(tmp_path, name):
    reason = {
        "item_id": "it is read as something else",
        "colour": "the columns are user_id",
        **REASONS,
        "rating": "numbers",
    }
    with pytest.raises(ConfigError) as refused:
        prepared(tmp_path, log(), context_columns=[name])
    assert "context_columns names" in str(refused.value) and reason[name] in str(refused.value)
    assert "log.csv" in str(refused.value) and "\n" not in str(refused.value)


def test_none_or_some_are_kept_as_the_setting_says(tmp_path):
    assert not prepared(tmp_path, log(), context_columns=[]).context_values
    assert list(prepared(tmp_path, log(), context_columns=["device"]).context_values) == ["device"]
    assert list(prepared(tmp_path, log(), ".parquet", context_columns=["device"]).context_values) == ["device"]
    with pytest.raises(ConfigError, match=r"context_columns is \['device'\], but source is 'recbole'"):
        PrepareConfig(source="recbole", interactions="a.inter", output="b", context_columns=["device"])
    with pytest.raises(ConfigError, match=r"context names 'colour', which the corpus does not have. It has .*device"):
        chosen_features(Corpus.load(tmp_path / "corpus"), ["colour"])


USERS = pd.DataFrame(
    {
        "user_id": [f"u{user}" for user in range(59)],
        "country": [("France", "Peru", "")[user % 3] for user in range(59)],
        "device": "watch",  # a column of the interactions, too
        "age": range(59),
    }
)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_of_users_are_those_of_their_rows(tmp_path, caplog, suffix):
    caplog.set_level("INFO")
    users = str(write_table(USERS, tmp_path / f"users{suffix}"))
    corpus = prepared(tmp_path, log(), suffix, users=users)
    assert {"country", "channel", "member"} <= set(corpus.context_values) and "device" not in corpus.context_values
    assert set(corpus.context_values["country"]) == {"France", "Peru"}
    assert "device (users and interactions have such a column)" in caplog.text and "age (numbers)" in caplog.text
    of_user = dict(zip(USERS["user_id"], USERS["country"], strict=True))
    for rows in corpus.splits().values():
        stored = rows.contexts["country"]
        given = [("", *stored.values)[code] for code in stored.codes]
        assert given == [of_user.get(user, "") for user in rows.users]  # u59 is not in the table
    assert list(prepared(tmp_path, log(), suffix, users=users, context_columns=["country"]).context_values) == [
        "country"
    ]
    with pytest.raises(
        ConfigError, match=r"context_columns names 'colour', .* the columns are user_id, .*, country, dev"
    ):
        prepared(tmp_path, log(), suffix, users=users, context_columns=["colour"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="user_id"), r"users.csv: column 'user_id' is missing"),
        (
            lambda table: table.replace({"user_id": {"u3": "u2"}}),
            r"users.csv, line 5: user 'u2' is already in .*users.csv, line 4",
        ),
        (lambda table: table.replace({"user_id": {"u3": ""}}), r"users.csv, line 5, column 'user_id': the id is empty"),
    ],
)
def test_a_bad_table_of_users_is_refused(tmp_path, change, message):
    users = str(write_table(change(USERS), tmp_path / "users.csv"))
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, log(), users=users)
    assert not (tmp_path / "corpus").exists()
    with pytest.raises(ConfigError, match=r"users is 'users.csv', but source is 'recbole', which does not read it"):
        PrepareConfig(source="recbole", interactions="a.inter", output="b", users="users.csv")


def test_a_first_row_of_repeats_stays(tmp_path):
    """Of rows with one user, item and time the first stays, with its own values."""
    table = log()
    twice = pd.concat([table, table.assign(device="tablet")])
    corpus = prepared(tmp_path, twice, repeats="drop", context_columns=["device"])
    assert set(corpus.context_values["device"]) == {"phone", "computer"}


def test_reasons_are_those_of_values_and_names():
    assert values_problem({"a": 3}, 2) == "" and values_problem({"a": 3}, 0) == "one value"
    assert values_problem({"2024-01-02": 3, "2024-01-03": 3}, 0) == "times"
    assert values_problem({f"v{number}": 10**9 for number in range(256)}, 10**9) == ""  # by a sample of so many rows
    assert name_problem("gap") and name_problem("<b>") and not name_problem("device type")
    assert is_determined_by_items(1000, 950, 0.5) and not is_determined_by_items(1000, 949, 0.5)
    assert not is_determined_by_items(1000, 970, 0.97)  # nearly all rows have one value, whatever the item
