"""The folder and the memory of the engine of prepare-data, and folders of files."""

import re
from itertools import pairwise

import fsspec
import pandas as pd
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.engines import demo_tables, prepared

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.core.remote import look_again
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare


@pytest.fixture
def tables(tmp_path):
    return demo_tables(tmp_path)


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
        ({"engine_memory": "4MB"}, "engine_memory is '4MB'; it must be at least 256MiB"),
    ],
)
def test_settings_that_contradict_one_another(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        PrepareConfig(source="demo", output="x", **settings)


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
