"""The engine `spark`: it makes what DuckDB makes; what is missing, contradictory or lost is one line."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest
from support.commands import command
from support.engines import demo_tables, prepared
from support.paths import ROOT

from minionerec.contrib.spark.engine import submitted
from minionerec.core.errors import ConfigError
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare


def no_spark():
    """Why Spark cannot be tested here; None where it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "there is no Java"
    return None


spark = pytest.mark.skipif(bool(no_spark()), reason=str(no_spark()))


@pytest.fixture
def tables(tmp_path):
    return demo_tables(tmp_path)


@pytest.mark.slow
@spark
@pytest.mark.parametrize("form", ["demo", "csv", "parquet", "lines"])
def test_spark_makes_what_duckdb_makes(tmp_path, tables, form):
    chosen = {"core": 4, "start": "2024-02", "end": "2024-11-30", "repeats": "drop", "ties": "shuffle"}
    chosen["max_eval_examples"] = 300
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
    lines, baskets = folder / "lines.txt", [" ".join(f"i{(user + k) % 9}" for k in range(5)) for user in range(50)]
    lines.write_text("".join(f"u{user * 37 % 50} {items}\n" for user, items in enumerate(baskets)))
    return {"source": "user_items", "interactions": str(lines), "split": "leave_last_out"}


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
