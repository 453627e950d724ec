"""The life of a stage: up to date, unfinished, changed half-way, held by another, edited by hand."""

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from minionerec.core.artefacts import fingerprint, read_manifest, write_artefact, write_text_atomic
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.records import read_run_record
from minionerec.pipeline.settings import StageConfig, setting
from minionerec.pipeline.stage import LAUNCH_FILE, RECORD_FILE, Stage


@dataclass
class Sum(StageConfig):
    """Adds the numbers of a file up, `epochs` times, one epoch after another."""

    kind: ClassVar[str] = "sum"

    numbers: str = setting("", "what is added", input_kind="numbers")
    extra: str = setting("", "a file that is added too", input_kind="any")
    epochs: int = setting(2, "how often", resumable=True)
    sign: int = setting(1, "1 or -1")
    workers: int = setting(1, "how many add", affects_result=False)


class Killed(Exception):
    pass


def run_sum(config, die_after=None):
    """(sum, whether it was made now, epochs that were made now)."""
    stage = Stage(config)
    if stage.current() is not None:
        return int((stage.output / "sum.txt").read_text()), False, 0
    with stage.work() as work:
        state = work.folder / "state.json"
        done, total = json.loads(state.read_text()) if state.is_file() else (0, 0)
        began = done
        numbers = json.loads((Path(config.numbers) / "numbers.json").read_text())
        while done < config.epochs:
            done, total = done + 1, total + config.sign * sum(numbers)
            state.write_text(json.dumps([done, total]))
            if die_after == done:
                raise Killed
        with work.finish(seed=3, counts={"total": total}, keep_state=True) as folder:
            (folder / "sum.txt").write_text(str(total))
    return total, True, done - began


def write_numbers(path, numbers):
    with write_artefact(path, "numbers", config={}) as folder:
        (folder / "numbers.json").write_text(json.dumps(numbers))


@pytest.fixture
def config(tmp_path):
    write_numbers(tmp_path / "numbers", [1, 2])
    return Sum(output=str(tmp_path / "sum"), numbers=str(tmp_path / "numbers"))


def test_done_is_not_done_again(config, tmp_path, caplog):
    assert run_sum(config) == (6, True, 2)
    assert not config.output.endswith("partial")
    assert not (tmp_path / "sum.partial").exists()
    manifest = read_manifest(config.output, "sum")
    assert manifest["settings"] == {"epochs": 2, "sign": 1}
    assert manifest["config"]["workers"] == 1
    with caplog.at_level("INFO", "minionerec"):
        assert run_sum(config) == (6, False, 0)
        assert run_sum(replace(config, workers=4)) == (6, False, 0)
    assert caplog.text.count("sum is up to date.") == 2
    assert config.up_to_date()


def test_other_settings_or_inputs_are_made(config, tmp_path):
    run_sum(config)
    assert run_sum(replace(config, sign=-1)) == (-6, True, 2)
    assert not config.up_to_date()
    write_numbers(tmp_path / "numbers", [4])
    assert run_sum(config) == (8, True, 2)
    moved = tmp_path / "elsewhere"
    (tmp_path / "numbers").rename(moved)  # the same content at another place is the same input
    assert run_sum(replace(config, numbers=str(moved))) == (8, False, 0)


def test_a_run_says_that_it_replaces_what_was_made_from_other_inputs(config, tmp_path, caplog):
    run_sum(config)
    write_numbers(tmp_path / "other", [5])
    with caplog.at_level("INFO", "minionerec"):
        run_sum(replace(config, sign=-1))
        assert "will be replaced" not in caplog.text
        run_sum(replace(config, numbers=str(tmp_path / "other")))
    assert f"sum was made from other content (numbers {tmp_path / 'numbers'}) and will be replaced." in caplog.text


def test_more_epochs_go_on_from_a_finished_run(config):
    run_sum(config)
    assert run_sum(replace(config, epochs=5)) == (15, True, 3)
    assert run_sum(replace(config, epochs=4)) == (12, True, 4)


def test_an_unfinished_run_is_not_mixed_with_another(config, tmp_path):
    with pytest.raises(Killed):
        run_sum(config, die_after=1)
    assert not (tmp_path / "sum").exists() and (tmp_path / "sum.partial" / RECORD_FILE).is_file()
    message = r"sum.partial: holds an unfinished run that differs in sign \(then 1, now -1\)\. Resume it with the old"
    with pytest.raises(ConfigError, match=message):
        run_sum(replace(config, sign=-1))
    assert run_sum(replace(config, epochs=3), die_after=None)[2] == 2  # more epochs are no difference
    assert not (tmp_path / "sum.partial").exists()
    with pytest.raises(Killed):
        run_sum(replace(config, sign=-1), die_after=1)
    write_numbers(tmp_path / "numbers", [5])
    with pytest.raises(ConfigError, match="differs in the inputs' content"):
        run_sum(replace(config, sign=-1))
    shutil.rmtree(tmp_path / "sum.partial")
    assert run_sum(replace(config, sign=-1)) == (-10, True, 2)


def test_states_of_another_launch_are_refused(config, tmp_path):
    with pytest.raises(Killed):
        run_sum(config, die_after=1)
    stage, now = Stage(config), {"processes": 1, "device": "cpu"}
    stage.check_launch(now)  # what it has saved depends on no launch
    for then, words in (
        (
            {"processes": 2, "device": "cpu"},
            r"2 processes on cpu, and cannot be continued by 1 process on cpu\. Launch",
        ),
        ({"device": "cuda"}, r"a launch on cuda, and cannot be continued by a launch on cpu\. Launch it as it was"),
    ):
        (stage.partial / LAUNCH_FILE).write_text(json.dumps(then))
        with pytest.raises(ConfigError, match=rf"sum\.partial: was written by {words}"):
            stage.check_launch(now)
        stage.check_launch({**now, **then})
        Stage(replace(config, sign=-1)).check_launch(now)  # refused for its settings


def test_a_stage_waits_for_one_in_another_thread_and_not_for_itself(config, tmp_path, caplog):
    inner = replace(config, output=str(tmp_path / "inner"))
    second = Thread(target=run_sum, args=(replace(config, output=str(tmp_path / "second")),))
    with caplog.at_level("INFO", "minionerec"), Stage(config).work():
        assert run_sum(inner) == (6, True, 2)
        second.start()
        while "Waiting for a stage in another thread" not in caplog.text:
            assert second.is_alive()
        with pytest.raises(ConfigError, match="second: another run is writing it"):
            run_sum(replace(config, output=str(tmp_path / "second")))
        assert not (tmp_path / "second").exists()
    second.join()
    assert (tmp_path / "second" / "sum.txt").is_file()


def test_what_a_run_left_that_was_killed_after_its_last_write_is_no_unfinished_run(config, tmp_path):
    run_sum(config)
    (tmp_path / "sum.finished").rename(tmp_path / "sum.partial")
    assert run_sum(config) == (6, False, 0)
    assert run_sum(replace(config, sign=-1)) == (-6, True, 2)
    # One that was begun after the output was written is.
    with pytest.raises(Killed):
        run_sum(config, die_after=1)
    with pytest.raises(ConfigError, match="unfinished run that differs in sign"):
        run_sum(replace(config, sign=-1, epochs=3))


def test_inputs_that_are_missing_or_of_another_kind(config, tmp_path):
    with pytest.raises(ArtefactError, match=r"nowhere: no such directory"):
        run_sum(replace(config, numbers=str(tmp_path / "nowhere")))
    with write_artefact(tmp_path / "cups", "cups", config={}):
        pass
    with pytest.raises(ArtefactError, match="cups: holds a 'cups', expected a 'numbers'"):
        run_sum(replace(config, numbers=str(tmp_path / "cups")))
    with pytest.raises(ArtefactError, match=r"none\.txt: no such file or directory, but it is read as extra"):
        run_sum(replace(config, extra=str(tmp_path / "none.txt")))
    (tmp_path / "some.txt").write_text("x")
    assert run_sum(replace(config, extra=str(tmp_path / "some.txt")))[0] == 6


def test_nothing_else_is_replaced(config, tmp_path):
    with pytest.raises(ArtefactError, match="numbers: holds a 'numbers', which a 'sum' must not replace"):
        run_sum(replace(config, output=config.numbers))
    write_artefact_inside = tmp_path / "outer"
    write_numbers(write_artefact_inside / "numbers", [1])
    inside = replace(config, numbers=str(write_artefact_inside / "numbers"), output=str(write_artefact_inside))
    with pytest.raises(ArtefactError, match="outer: exists and is not an output of this project"):
        run_sum(inside)
    assert json.loads((tmp_path / "numbers" / "numbers.json").read_text()) == [1, 2]


def by_writing(path, text):
    path.write_text(text)


def by_renaming(path, text):
    path.with_name("new").write_text(text)
    path.with_name("new").replace(path)


@pytest.mark.parametrize("change", [by_writing, by_renaming])
@pytest.mark.parametrize("back", [False, True], ids=["stays", "comes back"])
def test_what_is_changed_while_it_is_read_is_in_no_output(config, tmp_path, change, back):
    """A file that is replaced after its fingerprint was taken, also one that is put back before the run ends."""
    extra = tmp_path / "extra.txt"
    extra.write_text("6")
    os.utime(extra, (1, 1))  # the clock of files may tick once in four milliseconds
    stage = Stage(replace(config, extra=str(extra)))
    message = r"extra\.txt: was changed while it was read as extra, so nothing is written"
    with pytest.raises(ArtefactError, match=message), stage.work() as work:
        change(extra, "7")
        (work.folder / "state.json").write_text(extra.read_text())
        if back:
            change(extra, "6")
        with work.finish() as folder:
            (folder / "sum.txt").write_text((work.folder / "state.json").read_text())
    assert not stage.output.exists() and not stage.partial.exists()
    extra.write_text("6")
    with stage.work() as work, work.finish() as folder:
        (folder / "sum.txt").write_text(extra.read_text())
    assert stage.current() is not None


def test_an_artefact_that_is_replaced_while_it_is_read_is_named(config, tmp_path):
    stage = Stage(config)
    with pytest.raises(ArtefactError, match="numbers: was changed while it was read as numbers"), stage.work() as work:
        write_numbers(tmp_path / "numbers", [100])
        with work.finish() as folder:
            (folder / "sum.txt").write_text("6")
    assert not stage.output.exists()


def test_what_changes_after_all_was_read_ends_no_long_run(config, tmp_path):
    stage = Stage(config)
    with stage.work() as work:
        work.inputs_read()
        write_numbers(tmp_path / "numbers", [100])
        with work.finish() as folder:
            (folder / "sum.txt").write_text("6")
    assert not config.up_to_date()
    made_from = read_manifest(config.output)["inputs"]["numbers"]["sha256"]
    write_numbers(tmp_path / "numbers", [1, 2])
    assert made_from == fingerprint(config.numbers)


def test_a_run_that_is_resumed_keeps_its_state_where_an_input_is_changed_as_it_is_read(config, tmp_path):
    with pytest.raises(Killed):
        run_sum(config, die_after=1)
    stage = Stage(config)
    with pytest.raises(ArtefactError, match="was changed while it was read as numbers"), stage.work() as work:
        write_numbers(tmp_path / "numbers", [100])
        work.inputs_read()
    write_numbers(tmp_path / "numbers", [1, 2])
    assert run_sum(config) == (6, True, 1)


def test_an_output_that_is_a_link_stays_one_and_lies_in_its_target(config, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "sum").symlink_to("disk/sum")
    assert run_sum(config)[:2] == (6, True)
    for epochs in (2, 3, 5):
        run_sum(replace(config, epochs=epochs))
    assert run_sum(replace(config, epochs=5)) == (15, False, 0)
    assert run_sum(replace(config, sign=-1, epochs=1)) == (-3, True, 1)
    assert (tmp_path / "sum").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "numbers", "sum"]
    kept = sorted(path.name for path in (tmp_path / "disk").iterdir() if path.suffix != ".lock")
    assert kept == ["sum", "sum.finished", "sum.record.json"]
    record = read_run_record(tmp_path / "sum")
    assert record is not None
    assert record == read_run_record(tmp_path / "disk" / "sum")


def test_a_link_that_a_run_before_left_as_the_old_output_goes(config, tmp_path):
    run_sum(config)
    (tmp_path / "disk").mkdir()
    (tmp_path / ".sum.old").symlink_to("disk")
    assert run_sum(replace(config, sign=-1)) == (-6, True, 2)
    assert (tmp_path / "disk").is_dir()
    assert not (tmp_path / ".sum.old").is_symlink()


def test_a_disk_is_not_replaced(config, tmp_path, monkeypatch):
    (tmp_path / "sum").mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) == config.output)
    with pytest.raises(
        ArtefactError, match=r"sum: a disk is mounted there, so it cannot be replaced\. Choose a folder"
    ):
        run_sum(config)


def test_a_text_is_written_where_a_link_leads(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "a.txt").symlink_to("disk/a.txt")
    for text in ("one", "two"):
        write_text_atomic(tmp_path / "a.txt", text)
    assert (tmp_path / "a.txt").is_symlink()
    assert (tmp_path / "disk" / "a.txt").read_text() == "two"
