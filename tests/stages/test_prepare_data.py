"""The prepare stage and its command."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.commands import command
from support.raw_files import write_amazon
from support.small_shop import bytes_of, sign, spoil_manifest

from minionerec.core.artefacts import read_manifest, verify_files
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.data.names import SOURCES, SPLITS
from minionerec.data.published import default_root, published_files
from minionerec.data.rows import joined
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import READERS, run_prepare
from minionerec.pipeline.settings import parse_settings


@pytest.fixture
def tables(tmp_path):
    rng = np.random.default_rng(0)
    pd.DataFrame({"item_id": range(5), "title": list("abcde")}).to_csv(tmp_path / "items.csv", index=False)
    bought = pd.DataFrame(
        {"user_id": rng.integers(0, 4, 40), "item_id": rng.integers(0, 5, 40), "timestamp": range(40)}
    )
    bought.to_csv(tmp_path / "bought.csv", index=False)
    return {"source": "tables", "items": str(tmp_path / "items.csv"), "interactions": str(tmp_path / "bought.csv")}


def test_the_artefact_comes_back_as_it_was_read(tmp_path):
    result = run_prepare(PrepareConfig(source="demo", output=str(tmp_path / "out")))
    verify_files(tmp_path / "out")
    corpus = Corpus.load(result.output)
    assert not result.up_to_date
    assert corpus.counts == result.counts
    assert {name: result.counts[name] for name in ("items", "users", "rows")} == {
        "items": 600,
        "users": 2200,
        "rows": 15_083,
    }
    assert (corpus.split, corpus.max_history) == ("global time 8:1:1", 10)
    for split in SPLITS:
        rows = corpus.rows(split)
        assert len(rows.users) == len(rows.histories) == len(rows.times.time) == len(rows.times.previous) == len(rows)
        assert rows.times.time.dtype == rows.times.previous.dtype == np.int64
        assert rows.targets.dtype == np.int32
        assert {history.dtype for history in rows.histories} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
    ("name", "value"), [("split", 3), ("max_history", "10"), ("max_history", None), ("truncated_histories", {"a": 1})]
)
def test_counts_of_another_form_are_refused(tmp_path, tables, name, value):
    folder = run_prepare(PrepareConfig(**tables, output=str(tmp_path / "out"))).output
    spoil_manifest(folder, lambda content: content["counts"].update({name: value}))
    sign(folder)
    with pytest.raises(ArtefactError, match="its manifest lacks the counts of a corpus"):
        Corpus.load(folder)


def test_an_error_leaves_the_old_output(tmp_path, tables):
    out = tmp_path / "out"
    run_prepare(PrepareConfig(**tables, output=str(out)))
    before = bytes_of(out)
    with open(tables["interactions"], "a") as file:
        file.write("1,77,99\n")
    with pytest.raises(DataError, match=r"bought\.csv, line 42, column 'item_id': item '77' is not in"):
        run_prepare(PrepareConfig(**tables, output=str(out)))
    assert bytes_of(out) == before
    left = [".out.lock", "bought.csv", "items.csv", "out", "out.record.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "published"}, "source is 'published', but category is None. Give --category"),
        ({"source": "tables", "items": "a.csv"}, "source is 'tables', but interactions is None. Give --interactions"),
        ({"items": "a.csv"}, "items is 'a.csv', but source is 'demo', which does not read it. Set source to 'tables'"),
        (
            {"source": "published", "category": "Pots", "split": "leave_last_out"},
            "split is 'leave_last_out' and max_history 10, but source 'published' is already split by global time",
        ),
        (
            {"source": "published", "category": "Pots", "core": 5},
            "core is 5, but source 'published' is already filtered and split, and can only be read whole",
        ),
        (
            {"columns": {"time": "when"}},
            "columns is {'time': 'when'}, but source is 'demo'.*'tables' or 'recbole', or leave",
        ),
        ({"max_title_words": 20}, "max_title_words is 20, but source is 'demo'.*'amazon2018' or 'amazon2023'"),
        (
            {"quirks": ["published_titles"]},
            "quirk 'published_titles' is for amazon2018 and amazon2023; source is 'demo'",
        ),
        (
            {"source": "published", "category": "Pots", "max_history": 5},
            "max_history 5, but source 'published'.*histories of 10",
        ),
    ],
)
def test_settings_that_contradict_one_another(settings, message):
    with pytest.raises(ConfigError, match=message):
        PrepareConfig(**{"source": "demo", "output": "x", **settings})


def test_filters_and_bad_rows_are_counted(tmp_path, tables):
    with open(tables["interactions"], "a") as file:
        file.write("1,77,99\n,1,99\n")
    settings = {**tables, "output": str(tmp_path / "out"), "start": "1970-01-01T00:00:10", "time_unit": "s"}
    with pytest.raises(DataError, match=r"line 42.*item '77'.*That makes 2 bad rows, and max_bad_rows is 1\."):
        run_prepare(PrepareConfig(**settings, max_bad_rows=1))
    counts = run_prepare(PrepareConfig(**settings, max_bad_rows=2, core=3)).counts
    expected = {"bad_rows": 2, "bad_rows_unknown_item": 1, "bad_rows_missing_id": 1, "interactions_outside_window": 10}
    assert {name: counts[name] for name in expected} == expected
    assert counts["interactions"] + counts["interactions_outside_core"] == 30
    assert read_manifest(tmp_path / "out", "corpus")["counts"] == counts


def test_yaml_dates_and_the_data_directory(tmp_path, tables, monkeypatch):
    monkeypatch.setenv("MINIONEREC_DATA", str(tmp_path))
    (tmp_path / "data.yaml").write_text(
        "source: tables\nitems: $MINIONEREC_DATA/items.csv\ninteractions: $MINIONEREC_DATA/bought.csv\n"
        f"start: 1970-01-01\nend: 1970-01-02\ntime_unit: s\noutput: {tmp_path / 'out'}\n"
    )
    config = parse_settings(PrepareConfig, ["--config", str(tmp_path / "data.yaml")])
    assert (config.start, config.end) == ("1970-01-01", "1970-01-02")
    assert run_prepare(config).counts["interactions"] == 40


def test_missing_sources_say_what_to_do(tmp_path, tables, monkeypatch):
    for name in ("items", "interactions"):
        with pytest.raises(
            DataError, match=rf"no\.csv: no such file\. Give the path of a csv.* table of your {name}\."
        ):
            run_prepare(PrepareConfig(**{**tables, name: "no.csv"}, output=str(tmp_path / "out")))
    films = {"items": tables["items"], "interactions": "no.dat"}
    with pytest.raises(DataError, match=r"no\.dat: no such file\. Give --interactions its path; data/README\.md says"):
        run_prepare(PrepareConfig(source="movielens", **films, output=str(tmp_path / "out")))
    monkeypatch.setenv("MINIONEREC_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"Amazon/train/Pots\*\.csv: no such file\. data/README\.md says where"):
        run_prepare(PrepareConfig(source="published", category="Pots", output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_every_source_has_a_reader():
    assert {"published", *READERS} == set(SOURCES)


def test_the_content_of_files_decides_and_not_their_path(tmp_path, tables):
    config = PrepareConfig(**tables, output=str(tmp_path / "out"))
    run_prepare(config)
    (tmp_path / "bought.csv").rename(tmp_path / "moved.csv")
    assert run_prepare(replace(config, interactions=str(tmp_path / "moved.csv"))).up_to_date
    content = (tmp_path / "items.csv").read_text()
    (tmp_path / "items.csv").write_text(content.replace("0,a", "0,z"))  # of the same length
    assert not run_prepare(replace(config, interactions=str(tmp_path / "moved.csv"))).up_to_date
    assert Corpus.load(tmp_path / "out").items["title"].tolist() == list("zbcde")


def test_the_command_with_no_arguments_and_with_a_mistake(tmp_path):
    nothing = command(tmp_path, "prepare-data")
    assert nothing.status == 2 and nothing.reported.startswith("error: output is empty; give --output: directory")
    done = command(tmp_path, "prepare-data", "--config", "demo#data")
    assert done.status == 0, done.err
    assert done.out == "corpus: runs/demo/corpus\n"
    assert read_manifest(tmp_path / "runs/demo/corpus", "corpus")["counts"]["test_rows"] == 1_509
    again = command(tmp_path, "prepare-data", "--config", "demo#data")
    assert (again.status, again.out) == (0, "corpus: runs/demo/corpus\n")
    assert "runs/demo/corpus is up to date." in again.err
    wrong = command(tmp_path, "prepare-data", "--source", "tables", "--output", "x")
    lost = [f"error: source is 'tables', but {name} is None. Give --{name}.\n" for name in ("interactions", "items")]
    assert (wrong.status, wrong.out, wrong.err) == (2, "", "".join(lost))


def test_industrial_through_the_stage_and_back_byte_for_byte(tmp_path, data_root, monkeypatch):
    name = "Industrial_and_Scientific"
    settings = PrepareConfig(
        source="published", category=name, output=str(tmp_path / "out"), layout=str(tmp_path / name)
    )
    counts = run_prepare(settings).counts
    assert {split: counts[f"{split}_rows"] for split in SPLITS} == {"train": 36_259, "valid": 4_532, "test": 4_533}
    written = published_files(tmp_path / name, name)
    for kind, real in published_files(default_root(), name).items():
        assert written[kind].read_bytes() == real.read_bytes(), kind
    corpus = Corpus.load(tmp_path / "out")
    for split in SPLITS:
        header, *lines = (tmp_path / name / f"{name}.{split}.inter").read_text().splitlines()
        assert header == "user_id:token\titem_id_list:token_seq\titem_id:token"
        for line, (user, history, target) in zip(lines, corpus.rows(split), strict=True):
            assert line.split("\t") == [user[1:], " ".join(map(str, history)), str(target)]
    assert run_prepare(settings).up_to_date
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "Amazon").symlink_to(data_root / "Amazon")
    monkeypatch.setenv("MINIONEREC_DATA", str(elsewhere))
    assert run_prepare(settings).up_to_date


def published_as_raw(folder, corpus):
    """The real corpus as raw reviews, which the published order must turn into the same rows again.

    Users come in the order of their numbers, each with all interactions; a target's time is its row's place, and the
    first interaction of a user comes just before.
    """
    rows = joined([corpus.rows(split) for split in SPLITS])
    interactions = []
    for user, own in pd.Series(np.arange(len(rows))).groupby(rows.users, sort=False):
        past, positions = rows.histories[int(own.iloc[0])].tolist(), own.tolist()
        times = [1_000_000_000 + positions[0] - len(past) + position for position in range(len(past))]
        times += [1_000_000_000 + row for row in positions]
        items = [*past, *rows.targets[positions]]
        interactions += [(int(user[1:]), f"B{item}", time) for item, time in zip(items, times, strict=True)]
    interactions.sort(key=lambda visit: visit[0])
    texts = zip(corpus.items["title"], corpus.items["description"], strict=True)
    items = [(f"B{position}", title, description) for position, (title, description) in enumerate(texts)]
    return write_amazon(folder, "amazon2018", [(f"A{user}", item, time) for user, item, time in interactions], items)


def test_industrial_goes_through_raw_files_and_comes_back(tmp_path, industrial):
    paths = published_as_raw(tmp_path, industrial)
    config = PrepareConfig(
        source="amazon2018",
        **paths,
        core=5,
        quirks=["published_titles"],
        max_title_words=20,
        output=str(tmp_path / "c"),
    )
    run_prepare(config)
    corpus = Corpus.load(tmp_path / "c")
    assert corpus.items["item_id"].tolist() == [f"B{position}" for position in range(3_686)]
    assert corpus.items["title"].tolist() == industrial.items["title"].tolist()
    for split in SPLITS:
        ours, theirs = corpus.rows(split), industrial.rows(split)
        assert ours.users.tolist() == theirs.users.tolist()
        assert ours.targets.tolist() == theirs.targets.tolist()
        assert [h.tolist() for h in ours.histories] == [h.tolist() for h in theirs.histories]


def test_repeated_interactions_are_dropped_and_counted_on_request(tmp_path, tables):
    """Those of one user, item and timestamp; the same item at another time stays."""
    bought = pd.read_csv(tables["interactions"])
    again = pd.concat([bought, bought.iloc[[3, 3, 30]], bought.iloc[[7]].assign(timestamp=39.5)], ignore_index=True)
    again.to_csv(tmp_path / "again.csv", index=False)
    pd.concat([bought, bought.iloc[[7]].assign(timestamp=39.5)]).to_csv(tmp_path / "once.csv", index=False)
    written = {
        name: run_prepare(PrepareConfig(**{**tables, **settings}, output=str(tmp_path / name)))
        for name, settings in {
            "dropped": {"interactions": str(tmp_path / "again.csv"), "repeats": "drop"},
            "once": {"interactions": str(tmp_path / "once.csv")},
            "kept": {"interactions": str(tmp_path / "again.csv")},
        }.items()
    }
    dropped, once, kept = (each.counts for each in written.values())
    assert dropped["interactions_repeated"] == 3 and "interactions_repeated" not in kept
    assert (dropped["interactions"], kept["interactions"]) == (41, 44)
    files = [
        {path.name: path.read_bytes() for path in (each.output / "sequences").iterdir()} for each in written.values()
    ]
    assert files[0] == files[1] != files[2] and dropped["rows"] == once["rows"]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_a_table_without_times_is_in_the_order_of_time(tmp_path, tables, suffix):
    bought = pd.read_csv(tables["interactions"])
    timed = run_prepare(PrepareConfig(**tables, split="leave_last_out", output=str(tmp_path / "timed")))
    path = tmp_path / f"order.{suffix}"
    bare = bought.drop(columns="timestamp")
    {"csv": lambda: bare.to_csv(path, index=False), "parquet": lambda: bare.to_parquet(path),
     "jsonl": lambda: bare.to_json(path, orient="records", lines=True)}[suffix]()  # fmt: skip
    settings = {**tables, "interactions": str(path), "output": str(tmp_path / "order")}
    with pytest.raises(
        DataError, match=r"column 'timestamp' is missing.* or give time=none where the rows are in the order"
    ):
        run_prepare(PrepareConfig(**settings, split="leave_last_out"))
    with pytest.raises(ConfigError, match=r"holds no times. Set split to 'leave_last_out'"):
        run_prepare(PrepareConfig(**settings, columns={"time": None}))
    with pytest.raises(ConfigError, match=r"repeats is 'drop', but .* holds no times"):
        run_prepare(PrepareConfig(**settings, columns={"time": None}, split="leave_last_out", repeats="drop"))
    run_prepare(PrepareConfig(**settings, columns={"time": None}, split="leave_last_out"))
    order, wanted = Corpus.load(tmp_path / "order"), Corpus.load(timed.output)
    assert not order.has_times and wanted.has_times
    for split in SPLITS:
        assert [(user, history.tolist(), target) for user, history, target in order.rows(split)] == [
            (user, history.tolist(), target) for user, history, target in wanted.rows(split)
        ]
    bare.assign(item_id=bare["item_id"].replace(3, 77)).to_csv(tmp_path / "order.csv", index=False)
    with pytest.raises(DataError, match=r"order.csv, line \d+, column 'item_id': item '77' is not in"):
        settings["interactions"] = str(tmp_path / "order.csv")
        run_prepare(PrepareConfig(**settings, columns={"time": None}, split="leave_last_out"))
