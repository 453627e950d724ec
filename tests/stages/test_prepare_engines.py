"""The settings `engine` of prepare-data, and folders of files."""

import os
import re
import subprocess
import sys
import time
from itertools import pairwise

import fsspec
import pandas as pd
import psutil
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.commands import command
from support.engines import no_spark
from support.paths import ROOT

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.core.remote import look_again
from minionerec.data.config import PrepareConfig
from minionerec.data.corpus import Corpus
from minionerec.data.engines.spark import submitted
from minionerec.data.prepare import run_prepare

spark = pytest.mark.skipif(bool(no_spark()), reason=str(no_spark()))


def prepared(folder, engine="duckdb", **settings):
    """The files and the counts of a corpus, and the seed of its manifest."""
    output = folder / engine
    result = run_prepare(PrepareConfig(**settings, engine=engine, output=str(output)))
    files = {path.relative_to(output).as_posix(): path.read_bytes() for path in output.rglob("*.parquet")}
    assert "sequences/00000.parquet" in files and "items.parquet" in files
    assert Corpus.load(output).counts == result.counts
    assert not list(folder.glob(".minionerec-engine*"))
    return files, result.counts, read_manifest(output)["seed"]


@pytest.fixture
def tables(tmp_path):
    """The demo shop with two rows that cannot be used, as settings."""
    text = (ROOT / "data" / "demo" / "interactions.csv").read_text()
    again = "".join(text.splitlines(keepends=True)[1:9:2])
    (tmp_path / "bought.csv").write_text(f"{text}U0001,nothing,1719033260\n,P001,1719033260\n{again}")
    items = str(ROOT / "data" / "demo" / "items.csv")
    return {"source": "tables", "interactions": str(tmp_path / "bought.csv"), "items": items, "max_bad_rows": 2}


@pytest.mark.slow
@spark
@pytest.mark.parametrize("form", ["demo", "csv", "parquet", "lines"])
def test_spark_makes_what_duckdb_makes(tmp_path, tables, form):
    chosen = {
        "core": 4,
        "start": "2024-02",
        "end": "2024-11-30",
        "repeats": "drop",
        "ties": "shuffle",
        "max_eval_examples": 300,
        "seed": 9,
    }
    if form == "parquet":
        table = pd.read_csv(tables["interactions"], keep_default_na=False)
        table["timestamp"] = pd.to_datetime(table["timestamp"], unit="s")
        table.to_parquet(tmp_path / "bought.parquet", index=False)
        tables["interactions"] = str(tmp_path / "bought.parquet")
    settings = {"demo": {"source": "demo"}, "lines": _lines(tmp_path)}.get(form, {**tables, **chosen})
    found = prepared(tmp_path, "spark", **settings)
    assert found == prepared(tmp_path, **settings)
    if form == "csv":
        assert found[1]["bad_rows"] == 2 and found[1]["interactions_repeated"] == 4
        assert found[1]["interactions_outside_core"] and found[2] == 9
    assert run_prepare(PrepareConfig(**settings, output=str(tmp_path / "spark"))).up_to_date  # it decides nothing


@pytest.mark.slow
@spark
def test_spark_works_in_a_folder_of_any_name(tmp_path, tables):
    folder = tmp_path / 'a b\'s "q" ü %20 #x ?y [1]*{x}'
    folder.mkdir()
    assert prepared(folder, "spark", **tables) == prepared(folder, **tables)
    with pytest.raises(ConfigError, match=r"a,b: engine 'spark' takes a comma for the end of a path\. Give another"):
        prepared(tmp_path, "spark", **tables, engine_folder=str(tmp_path / "a,b"))


@pytest.mark.slow
@spark
def test_java_that_ends_during_a_run_is_one_line(tmp_path):
    words = ["prepare-data", "--source", "demo", "--engine", "spark", "--output", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    run = subprocess.Popen(
        [sys.executable, "-m", "minionerec", *words], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    while not list(tmp_path.glob(".minionerec-engine*/table1")):
        assert run.poll() is None
        time.sleep(0.05)
    for process in psutil.Process(run.pid).children(recursive=True):
        process.kill()
    reported = run.communicate(timeout=120)[1]
    assert run.returncode == 2 and reported.splitlines()[-1].startswith("error: Spark failed ("), reported
    assert "Traceback" not in reported and [path.name for path in tmp_path.iterdir()] == [".out.lock"]


def _lines(folder):
    lines = folder / "lines.txt"
    lines.write_text(
        "".join(f"u{user * 37 % 50} {' '.join(f'i{(user + k) % 9}' for k in range(5))}\n" for user in range(50))
    )
    return {"source": "user_items", "interactions": str(lines), "split": "leave_last_out"}


def test_an_engine_works_in_the_folder_and_memory_that_it_is_given(tmp_path, tables):
    (tmp_path / "spill").mkdir()
    given = {"engine_memory": "300MB", "engine_folder": str(tmp_path / "spill")}
    found = prepared(tmp_path, **tables, **given)
    assert found[1]["bad_rows"] == 2 and not list((tmp_path / "spill").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file: engine 'duckdb' cannot keep its tables there"):
        prepared(tmp_path, **tables, split="leave_last_out", engine_folder=str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_memory": "4 apples"}, "must be a size in bytes such as 4GB or 512MiB"),
        ({"engine_memory": "-4GB"}, "must be a size in bytes"),
        ({"engine": "spark", "engine_memory": "4MB"}, "engine_memory is '4MB'; it must be at least 256MiB"),
    ],
)
def test_settings_that_contradict_one_another(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        PrepareConfig(source="demo", output="x", **settings)


def test_an_engine_that_is_not_there_is_reported(tmp_path, monkeypatch):
    for name in ("pyspark", "pyspark.sql"):
        monkeypatch.setitem(sys.modules, name, None)
    done = command(ROOT, "prepare-data", "--source", "demo", "--engine", "spark", "--output", str(tmp_path / "out"))
    assert "is not installed. Install it: pip install 'minionerec[spark]'" in done.reported


def test_under_spark_submit_the_memory_is_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert submitted()
    with pytest.raises(ConfigError, match=r"spark-submit has started Spark already\. Give it"):
        run_prepare(PrepareConfig(source="demo", output=str(tmp_path / "out"), engine="spark", engine_memory="1GB"))


def folder_of_interactions(tables, folder, kind="parquet", parts=3):
    """The interactions of `tables` as a folder of files; settings that read it."""
    table = pd.read_csv(tables["interactions"], keep_default_na=False)
    folder.mkdir()
    bounds = [len(table) * part // parts for part in range(parts + 1)]
    for part, (begin, end) in enumerate(pairwise(bounds)):
        some = table.iloc[begin:end]
        if kind == "parquet":
            some.to_parquet(folder / f"part-{part:05}-c000.snappy.parquet", index=False)
        else:
            some.to_csv(folder / f"part-{part:05}-c000.csv", index=False)
    (folder / "_SUCCESS").write_text("")
    return {**tables, "interactions": str(folder)}


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_folder_of_files_gives_what_the_file_gives(tmp_path, tables, kind):
    settings = folder_of_interactions(tables, tmp_path / "visits", kind)
    wanted = prepared(tmp_path / "one", **tables, ties="shuffle")
    found = prepared(tmp_path / "many", **settings, ties="shuffle")
    assert found == wanted
    inputs = read_manifest(tmp_path / "many" / "duckdb")["inputs"]
    assert sorted(inputs) == ["interactions 00000", "interactions 00001", "interactions 00002", "items"]


def test_a_folder_is_up_to_date_until_one_of_its_files_changes(tmp_path, tables):
    settings = folder_of_interactions(tables, tmp_path / "visits", "csv") | {"output": str(tmp_path / "out")}
    assert not run_prepare(PrepareConfig(**settings)).up_to_date
    (tmp_path / "visits" / "_committed").write_text("1")
    assert run_prepare(PrepareConfig(**settings)).up_to_date
    last = tmp_path / "visits" / "part-00002-c000.csv"
    lines = last.read_text().splitlines(keepends=True)
    last.write_text("".join(line for line in lines if "nothing" not in line and not line.startswith(",")))
    done = run_prepare(PrepareConfig(**settings))
    assert not done.up_to_date and done.counts["bad_rows"] == 0
    (tmp_path / "visits" / "part-00003-c000.csv").write_text("user_id,item_id,timestamp\nU0001,P001,1719033260\n")
    more = run_prepare(PrepareConfig(**settings))
    assert more.counts["interactions"] == done.counts["interactions"] + 1


def test_a_folder_elsewhere_is_fetched_file_by_file(tmp_path, tables, monkeypatch):
    settings = folder_of_interactions(tables, tmp_path / "visits")
    monkeypatch.setenv("MINIONEREC_CACHE", str(tmp_path / "cache"))
    MemoryFileSystem.store.clear()
    far = fsspec.filesystem("memory")
    far.put(str(tmp_path / "visits"), "/lake/visits", recursive=True)
    try:
        found = prepared(tmp_path / "far", **{**settings, "interactions": "memory://lake/visits"})
        assert found == prepared(tmp_path / "near", **settings)
        copies = {path.name: path for path in (tmp_path / "cache").rglob("*.parquet")}
        assert len(copies) == 3
        before = {name: path.stat().st_mtime_ns for name, path in copies.items()}
        far.pipe_file("/lake/visits/part-00009.parquet", copies["part-00002-c000.snappy.parquet"].read_bytes())
        prepared(tmp_path / "more", **{**settings, "interactions": "memory://lake/visits", "max_bad_rows": 4})
        assert len(list((tmp_path / "cache").rglob("*.parquet"))) == 4
        assert {name: path.stat().st_mtime_ns for name, path in copies.items()} == before
    finally:
        MemoryFileSystem.store.clear()
        look_again()


def test_only_tables_come_as_folders(tmp_path, tables):
    settings = folder_of_interactions(tables, tmp_path / "visits", "csv") | {"source": "user_items", "items": None}
    with pytest.raises(DataError, match="visits: is a folder, and source 'user_items' reads one file"):
        run_prepare(PrepareConfig(**settings, split="leave_last_out", output=str(tmp_path / "out")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtefactError, match="empty: is a folder without files to read"):
        run_prepare(PrepareConfig(**{**tables, "interactions": str(tmp_path / "empty")}, output=str(tmp_path / "out")))
