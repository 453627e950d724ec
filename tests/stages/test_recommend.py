"""Recommending for a file of histories: parts, processes, kills, bad rows, and what is written."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.gaps import GAP

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.core.records import read_run_record
from minionerec.pipeline import recommend as stage
from minionerec.pipeline.config.recommend import RecommendConfig
from minionerec.pipeline.recommend import FILE, SCHEMA, read_histories, run_recommend
from minionerec.recommend.rankers.language import LanguageRanker
from minionerec.recommend.recommender import Recommender

ROWS = [
    {
        "user": f"person {index}",
        "history": list("uvwxyz")[index % 6 : index % 6 + 3],
        "without": list("uvw")[: index % 3],
    }
    for index in range(23)
]


@pytest.fixture(autouse=True)
def five_at_once(monkeypatch):
    monkeypatch.setattr(stage, "ROWS_AT_ONCE", 5)


@pytest.fixture
def histories(tmp_path):
    pd.DataFrame(ROWS).to_parquet(tmp_path / "histories.parquet")
    return tmp_path / "histories.parquet"


def config(made, histories, **changes):
    given = {"checkpoint": str(made / "checkpoint"), "corpus": str(made / "corpus"), "histories": str(histories)}
    output = str(histories.parent / "recommended")
    return RecommendConfig(**{**given, "output": output, "k": 3, **changes})


def written(result):
    return pq.read_table(result.output / FILE).to_pylist()


def test_lists_are_those_of_the_recommender_row_by_row(made, histories):
    result = run_recommend(config(made, histories))
    recommender = Recommender.load(made / "checkpoint", corpus=made / "corpus")
    assert pq.read_schema(result.output / FILE).names == SCHEMA.names
    for row, asked in zip(written(result), ROWS, strict=True):
        answer = recommender.recommend(asked["history"], 3, without=asked["without"])
        assert row["user"] == asked["user"] and row["unknown"] == []
        assert row["items"] == [item.item_id for item in answer.items]
        assert row["titles"] == [item.title for item in answer.items]
        assert row["sids"] == [item.sid for item in answer.items]
        assert row["scores"] == pytest.approx([item.score for item in answer.items], rel=1e-4, abs=1e-5)
        assert row["probabilities"] == pytest.approx([item.probability for item in answer.items], rel=1e-4, abs=1e-5)
    assert read_manifest(result.output, "recommendations")["counts"]["rows"] == 23
    assert "23 lists (0 with fewer" in result.lines[0]
    timestamp = (result.output / FILE).stat().st_mtime_ns
    assert run_recommend(config(made, histories)).counts["rows"] == 23
    assert (result.output / FILE).stat().st_mtime_ns == timestamp


def test_lines_of_json_with_filters_and_unknown_ids(made, tmp_path):
    rows = [{"history": ["u", "??"]}, {"history": [], "only": ["x", "u", "!"]}, {"history": ["v"], "only": None}]
    path = tmp_path / "histories.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"where": {"price": {"at_least": 3}}, "k": 4, "exclude_seen": True}
    result = run_recommend(config(made, path, **asked))
    found = written(result)
    assert [row["user"] for row in found] == ["0", "1", "2"]
    assert set(found[0]["items"]) == set("wxy") and found[0]["unknown"] == ["??"]
    assert found[1]["items"] == ["x"] and found[1]["unknown"] == ["!"]
    assert result.counts == {"rows": 3, "short_lists": 3, "rows_with_unknown_ids": 2}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_history_that_is_null_is_empty(tmp_path, kind):
    path = tmp_path / f"histories.{kind}"
    path.write_text('{"history": null}\n{"history": ["x"]}\n')
    if kind == "parquet":
        pd.DataFrame({"history": [None, ["x"]]}).to_parquet(path)
    (_, rows), *_ = read_histories(path)
    assert [row["history"] for row in rows] == [[], ["x"]]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_context_of_rows(conditioned, tmp_path, kind):
    checkpoint, corpus = conditioned / "conditioned", str(conditioned / "corpus")
    rows = [
        {"history": ["i3", "i9"], "context": context and {"gap": context}}
        for context in ("same", None, "unknown", "later")
    ]
    path = tmp_path / f"histories.{kind}"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if kind == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    asked = {"checkpoint": str(checkpoint), "corpus": corpus, "histories": str(path), "k": 24}
    found = written(run_recommend(RecommendConfig(**asked, output=str(tmp_path / "lists"))))
    recommender = Recommender.load(checkpoint, corpus=corpus)
    for row, asked_row in zip(found, rows, strict=True):
        answer = recommender.recommend(asked_row["history"], 24, context=asked_row["context"] or {})
        scores = {item.item_id: item.score for item in answer.items}
        assert dict(zip(row["items"], row["scores"], strict=True)) == pytest.approx(scores, rel=1e-4, abs=1e-5)
    assert len({row["scores"][0] for row in found}) == 3


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_with_times_have_the_gap_that_follows(conditioned, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(LanguageRanker, "features", (replace(GAP, unit=86_400),))
    checkpoint, corpus = conditioned / "conditioned", str(conditioned / "corpus")
    days = [datetime(2018, 11, day, 9, tzinfo=UTC) for day in (3, 5)]
    rows = [
        {"times": days, "now": datetime(2018, 11, 5, 20, tzinfo=UTC)},
        {"times": days, "now": datetime(2018, 11, 6, tzinfo=UTC)},
        {"times": None, "now": None},
        {"times": days, "now": datetime(2018, 11, 6, tzinfo=UTC), "context": {"gap": "same"}},
    ]
    rows = [{"history": ["i3", "i9"], "context": None, **row} for row in rows]
    path = tmp_path / f"histories.{kind}"
    if kind == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row, default=datetime.isoformat) + "\n" for row in rows))
    asked = {"checkpoint": str(checkpoint), "corpus": corpus, "histories": str(path), "k": 24}
    lists = written(run_recommend(RecommendConfig(**asked, output=str(tmp_path / "lists"))))
    assert [dict(row["context"])["gap"] for row in lists] == ["same", "later", "unknown", "same"]
    given = [{"history": ["i3", "i9"], "context": dict(row["context"])} for row in lists]
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    path = path.rename(path.with_suffix(".jsonl"))
    asked["histories"] = str(path)
    assert written(run_recommend(RecommendConfig(**asked, output=str(tmp_path / "given")))) == lists
    with pytest.raises(DataError, match="row 2: now: is missing, but times is given; give it too, or leave times out"):
        path.write_text('{"history": []}\n{"history": ["i3"], "times": [5]}\n')
        run_recommend(RecommendConfig(**asked, output=str(tmp_path / "none")))


def test_a_run_that_was_interrupted_resumes(made, histories, monkeypatch):
    whole = written(run_recommend(config(made, histories, output=str(histories.parent / "whole"))))
    write, parts = stage._write_part, []

    def stops(path, *given):
        if len(parts) == 2:
            raise KeyboardInterrupt
        parts.append(path.name)
        write(path, *given)

    monkeypatch.setattr(stage, "_write_part", stops)
    with pytest.raises(KeyboardInterrupt):
        run_recommend(config(made, histories))
    again = []
    monkeypatch.setattr(stage, "_write_part", lambda *given: (again.append(given[0].name), write(*given)))
    assert written(run_recommend(config(made, histories))) == whole
    assert len(parts) == 2 and len(again) == 3 and not set(parts) & set(again)
    record = read_run_record(Path(config(made, histories).output))
    assert (record.parts, record.resumed_from) == (2, 2)


def test_processes_take_turns(made, histories, monkeypatch):
    alone = written(run_recommend(config(made, histories, output=str(histories.parent / "alone"))))
    folder = histories.parent / "shared"
    folder.mkdir()
    settings = {"k": 3}

    def load():
        return Recommender.load(made / "checkpoint", corpus=made / "corpus")

    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, mine in (("1", {1, 3}), ("0", {0, 1, 2, 3, 4})):
        monkeypatch.setenv("RANK", rank)
        assert stage._answer_parts(histories, load, settings, folder) == 5
        assert {int(path.stem[5:]) for path in folder.glob("*.parquet")} == mine
    found = [row for number in range(5) for row in pq.read_table(stage._part(folder, number)).to_pylist()]
    assert found == alone


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"history": ["u"', "line 2: not valid JSON"),
        ("[1]", "line 2: not valid JSON .a JSON list, expected an object"),
        (
            '{"history": ["u"], "hist": 1}',
            "line 2: unknown name 'hist'; known: history, user, only, without, context, times, now",
        ),
        (
            '{"history": [], "context": "now"}',
            "row 2: context is 'now'; expected an object of request features and values",
        ),
        ('{"history": ["u"], "context": {"moon": "full"}}', r"row 2: context\.moon: is unknown; expected gap, hour"),
        ('{"user": "a"}', "row 2: history is 'None'; expected a list of item ids"),
        ('{"history": "u"}', "row 2: history is 'u'; expected a list of item ids"),
        ('{"history": ["u", null]}', "row 2: history is .*; expected a list of item ids"),
        ('{"history": [], "user": [1]}', "row 2: user is .*; expected a text or a whole number"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(made, tmp_path, line, message):
    path = tmp_path / "histories.jsonl"
    path.write_text('{"history": ["u"]}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        run_recommend(config(made, path))
    assert not (tmp_path / "recommended").exists()


def test_files_and_settings_that_cannot_be_taken(made, histories, tmp_path):
    (tmp_path / "histories.txt").write_text("u v\n")
    with pytest.raises(DataError, match=r"unknown file type '.txt'; known: .parquet, .jsonl"):
        run_recommend(config(made, tmp_path / "histories.txt"))
    pd.DataFrame({"past": [["u"]]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match="column 'history' is missing; it has past"):
        run_recommend(config(made, tmp_path / "other.parquet"))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"broken\.parquet: cannot be read"):
        run_recommend(config(made, tmp_path / "broken.parquet"))
    with pytest.raises(ConfigError, match="give either --checkpoint, a directory, or --ranker, your own"):
        config(made, histories, ranker="my.make")
    with pytest.raises(ConfigError, match="your own ranker needs --corpus"):
        config(made, histories, checkpoint="", ranker="my.make", corpus="")
    with pytest.raises(ArtefactError, match="its manifest names no corpus"):
        run_recommend(config(made, histories, corpus=""))


def test_a_ranker_of_the_users_own(made, histories, tmp_path, monkeypatch):
    (tmp_path / "my_ranker.py").write_text(
        "from minionerec.recommend.rankers.baselines import make_baselines\n\n"
        "def make(corpus):\n    return make_baselines(corpus)[1]['popularity']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_ranker", raising=False)
    result = run_recommend(config(made, histories, checkpoint="", ranker="my_ranker.make"))
    first = written(result)[0]
    assert len(first["items"]) == 3 and first["sids"] == first["probabilities"] == []
    assert set(read_manifest(result.output)["inputs"]) == {"corpus", "histories", "ranker"}
