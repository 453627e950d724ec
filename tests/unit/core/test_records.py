"""Run records: what a stage leaves beside its output, over kills and growth, and what a reader takes."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import Mock

import pytest

from minionerec.core.artefacts import read_manifest, write_artefact
from minionerec.core.errors import ConfigError
from minionerec.core.machine import Gpu, Machine
from minionerec.core.records import Batch, RunRecord, parse_record, read_run_record, record_path, to_json
from minionerec.pipeline import stage
from minionerec.pipeline.settings import StageConfig, setting
from minionerec.pipeline.stage import Stage

WHOLE = RunRecord(
    command=("minionerec", "sft", "--config", "sft.yaml"),
    commit="0" * 40,
    started="2030-01-31T12:00:00Z",
    ended="2030-01-31T13:00:00Z",
    seconds={"all": 3600.0, "train": 3000.5, "validate": 500.0},
    parts=2,
    resumed_from=300,
    machine=Machine("a processor", 8, 4, 2**34, (Gpu("a card", 2**36),)),
    processes=2,
    batch=Batch(4, 8, 64),
    peak_memory_bytes=2**30,
    peak_gpu_memory_bytes=2**33,
)


@dataclass
class Climb(StageConfig):
    """Climbs `steps` steps of one second each, and looks about after each for a quarter of a second."""

    kind: ClassVar[str] = "climb"

    steps: int = setting(4, "how many", resumable=True)
    pace: int = setting(1, "how fast")


@pytest.fixture
def time(monkeypatch):
    """A clock that goes on when it is told to."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(stage, "time", clock)
    return clock


class Killed(Exception):
    pass


def climb(config, time, die_after=None):
    """Half a second to begin with, the steps that are missing, and two seconds of writing."""
    stage = Stage(config)
    if stage.current() is not None:
        return
    with stage.work() as work:
        time.now += 0.5
        folder = work.folder / "steps"
        done = int(folder.read_text()) if folder.is_file() else 0
        work.log_batch(2, 3, 6)
        work.reached(done)
        with work.phase("climb"):
            while done < config.steps:
                time.now += 1.0
                with work.phase("look"):
                    time.now += 0.25
                done += 1
                if done == die_after:
                    raise Killed
                folder.write_text(str(done))
                work.reached(done)
        with work.finish(keep_state=True) as folder:
            (folder / "top.txt").write_text(str(done))
            time.now += 2.0


@pytest.fixture
def config(tmp_path):
    return Climb(output=str(tmp_path / "top"))


def record_of(config):
    return read_run_record(Path(config.output))


def test_phases_are_distinguished(config, time):
    climb(config, time)
    found = record_of(config)
    assert found.seconds == {"all": 7.5, "climb": 4.0, "look": 1.0, "write": 2.0}
    assert (found.parts, found.resumed_from, found.batch) == (1, None, Batch(2, 3, 6))
    assert found.processes == 1 and found.machine.cores >= 1 and found.machine.threads >= 1
    assert found.peak_memory_bytes > 1_000_000
    assert found.started <= found.ended and found.started.endswith("Z")


def test_a_run_that_resumes_adds_up(config, time):
    with pytest.raises(Killed):
        climb(config, time, die_after=3)  # half a second, three steps, of which two are kept
    assert record_of(config) is None
    with pytest.raises(Killed):
        climb(config, time, die_after=3)
    climb(config, time)
    found = record_of(config)
    assert found.seconds == {"all": 0.5 * 3 + 1.25 * 6 + 2.0, "climb": 6.0, "look": 1.5, "write": 2.0}
    assert (found.parts, found.resumed_from) == (3, 2)


def test_a_kill_leaves_what_was_kept_at_the_last_safe_point(config, time, monkeypatch):
    with pytest.raises(Killed), monkeypatch.context() as killing, Stage(config).work() as work:
        time.now += 3.0
        work.folder.joinpath("steps").write_text("1")
        work.reached(0)
        time.now += 5.0
        killing.setattr(stage.Work, "keep", lambda self: None)  # the system gives no time for a last word
        raise Killed
    climb(config, time)
    found = record_of(config)
    assert found.seconds["all"] == 3.0 + 0.5 + 3 * 1.25 + 2.0
    assert (found.parts, found.resumed_from) == (2, 1)


def test_a_run_that_left_nothing_begins_at_nought(config, time):
    with pytest.raises(Killed):
        climb(config, time, die_after=1)
    climb(config, time)
    assert (record_of(config).parts, record_of(config).resumed_from) == (2, 0)


def test_a_run_that_grew_counts_what_it_grew_from(config, time):
    climb(config, time)
    climb(replace(config, steps=6), time)
    found = record_of(config)
    assert (found.parts, found.resumed_from) == (2, 4)
    assert found.seconds["climb"] == 6.0 and found.seconds["all"] == 7.5 + 5.0


def test_a_run_thrown_away_does_not_count(config, time):
    with pytest.raises(Killed):
        climb(config, time, die_after=3)
    with pytest.raises(ConfigError, match="differs in pace"):
        climb(replace(config, pace=2), time)
    shutil.rmtree(f"{config.output}.partial")
    climb(replace(config, pace=2), time)
    assert (record_of(config).parts, record_of(config).seconds["all"]) == (1, 7.5)


def test_what_is_up_to_date_keeps_its_record(config, time):
    climb(config, time)
    path = record_path(Path(config.output))
    before = path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino
    time.now += 100
    climb(config, time)
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before
    path.unlink()
    climb(config, time)  # no part of freshness
    assert not path.exists()


def test_another_output_has_another_record(config, time):
    climb(config, time)
    climb(replace(config, steps=2), time)
    assert record_of(config).seconds["climb"] == 2.0
    assert record_of(config).parts == 1


def test_the_artefact_knows_nothing_of_it(config, time, tmp_path):
    climb(config, time)
    time.now += 1234.5
    other = replace(config, output=str(tmp_path / "other"))
    climb(other, time)
    files = [{file.name: file.read_bytes() for file in Path(one.output).iterdir()} for one in (config, other)]
    for found in files:
        found.pop("manifest.json")
    assert files[0] == files[1] == {"top.txt": b"4"}
    manifests = [read_manifest(one.output) for one in (config, other)]
    assert manifests[0]["files"] == manifests[1]["files"] and manifests[0]["settings"] == manifests[1]["settings"]


def test_only_the_first_process_writes(config, time, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with Stage(config).work() as work, work.phase("climb"):
        work.stage.partial.mkdir()
        work.reached(1)
        time.now += 1.0
    assert list(Path(config.output).parent.rglob("*record*")) == []


def test_a_record_that_cannot_be_written_costs_nothing(config, time, caplog):
    record_path(Path(config.output)).mkdir()
    climb(config, time)
    assert (Path(config.output) / "top.txt").read_text() == "4"
    assert f"{config.output}.record.json: is not a run record, so that of this run is not written" in caplog.text
    assert record_of(config) is None


def test_facts_that_cannot_be_had_cost_nothing(config, time, caplog, monkeypatch):
    monkeypatch.setattr(stage, "this_machine", Mock(side_effect=RuntimeError("the driver is gone")))
    climb(config, time)
    assert (Path(config.output) / "top.txt").read_text() == "4"
    assert caplog.text.count("The run continues without its record: the driver is gone") == 1
    assert not record_path(Path(config.output)).exists()


@pytest.mark.parametrize("content", ["my own notes", "[1]", '{"seconds": 3}', "{"])
def test_a_file_of_the_users_stays(config, time, caplog, content):
    path = record_path(Path(config.output))
    path.write_text(content)
    climb(config, time)
    assert path.read_text() == content
    assert "is not a run record" in caplog.text
    assert record_of(config) is None


def test_what_a_kill_left_of_its_writing_is_removed(config, time, tmp_path):
    climb(config, time)
    left = tmp_path / ".top.record.json.writing"
    left.write_text("{")
    climb(config, time)
    assert not left.exists()


def test_a_record_comes_back_as_it_was_written():
    for record in (WHOLE, replace(WHOLE, commit=None, resumed_from=None, batch=None, peak_gpu_memory_bytes=None)):
        assert parse_record(json.loads(json.dumps(to_json(record)))) == record
    reported = to_json(WHOLE)
    assert reported["batch"] == {"per_device": 4, "accumulation": 8, "global": 64}
    assert not {"batch", "peak_gpu_memory_bytes"} & set(to_json(replace(WHOLE, batch=None, peak_gpu_memory_bytes=None)))


@pytest.fixture
def artefact(tmp_path):
    with write_artefact(tmp_path / "one", "one", config={}):
        pass
    return tmp_path / "one"


def test_a_record_belongs_to_one_artefact(artefact):
    digest = read_manifest(artefact)["sha256"]
    record_path(artefact).write_text(json.dumps({**to_json(WHOLE), "artefact": digest}))
    assert read_run_record(artefact) == WHOLE
    with write_artefact(artefact, "one", config={"other": 1}):
        pass
    assert read_run_record(artefact) is None
    assert read_run_record(artefact.with_name("none")) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("command", "minionerec sft"),
        ("command", [1]),
        ("commit", 7),
        ("started", None),
        ("seconds", [1.0]),
        ("seconds", {"train": 1.0}),
        ("seconds", {"all": -1.0}),
        ("seconds", {"all": True}),
        ("seconds", {"all": float("nan")}),
        ("parts", 0.5),
        ("resumed_from", -1),
        ("machine", {}),
        ("machine", {**to_json(WHOLE)["machine"], "gpus": "none"}),
        ("processes", "2"),
        ("batch", {"per_device": 1}),
        ("peak_memory_bytes", 1.5),
        ("peak_gpu_memory_bytes", 2**63),
    ],
)
def test_a_record_of_another_form_is_none(artefact, name, value):
    reported = {**to_json(WHOLE), "artefact": read_manifest(artefact)["sha256"], name: value}
    record_path(artefact).write_text(json.dumps(reported))
    assert read_run_record(artefact) is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"3", b'{"a": 1, "a": 2}', b"[" * 100_000])
def test_a_file_that_is_no_record_is_none(artefact, content):
    record_path(artefact).write_bytes(content)
    assert read_run_record(artefact) is None
