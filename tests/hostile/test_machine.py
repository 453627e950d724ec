"""A machine that fails: a full disk, no leave to read or write, kills, a clock that jumps, two runs at once.

Whatever happens, the command says it in one line, what stood before still stands, and the same command ends with the
artefacts of an undisturbed run, byte for byte.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from support.kill import Point, random_points, stage_in_child
from support.launched import launch
from support.machine import on_machine, run_words, started
from support.paths import ROOT
from support.small_shop import STAGES, bytes_of, command, copied, stage

from minionerec.core.artefacts import read_manifest, require_writable, write_artefact, write_text_atomic
from minionerec.core.commands import run_command
from minionerec.core.errors import ArtefactError
from minionerec.models.backbone.bundle import load_bundle, write_model_files
from minionerec.models.backbone.card import CARD_FILE

OWN = {name: settings["output"] for name, settings in STAGES.items()}
slow = pytest.mark.slow
LONGER = dict.fromkeys(("sft", "dpo", "train-tiger", "train-catalogue", "train-sequential"), ("--epochs", "2"))
LONGER["grpo"] = ("--max_steps", "8")


def words_of(name):
    return (name, "--config", f"{name}.yaml")


def without(shop, tmp_path, name):
    """A copy of the shop without one stage's output and what goes on from it."""
    return copied(shop, tmp_path / "shop", (OWN[name], f"{OWN[name]}.finished"))


def ends_as_undisturbed(shop, folder, name, *more):
    """The same command again: the artefacts of a run that nothing disturbed, and no litter."""
    done = on_machine(folder, (*words_of(name), *more))
    assert done.status == 0, done
    assert _made(folder / OWN[name]) == _made(shop / OWN[name])
    assert not litter(folder)


def _made(folder):
    """The files below a folder, but for what an interrupted run of an artefact in it left to be resumed."""
    return {file: content for file, content in bytes_of(folder).items() if ".partial/" not in file}


def litter(folder):
    """What a run should have taken away."""
    found = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.name.endswith((".writing", ".old"))]
    return found + [file.name for file in folder.glob("*.partial") if not (file / "run.json").is_file()]


@slow
@pytest.mark.parametrize("name", STAGES)
def test_a_full_disk(shop, tmp_path, name):
    folder = without(shop, tmp_path, name)
    largest = max(len(content) for content in bytes_of(shop / OWN[name]).values())
    before = bytes_of(folder)
    for limit in (0, 100, largest // 2, largest - 1):
        reported = on_machine(folder, words_of(name), largest_file=limit).reported
        assert "File too large" in reported or "No space left" in reported or "cannot be" in reported, reported
        after = bytes_of(folder)
        assert {file: after.get(file) for file in before} == before
        assert not (folder / OWN[name] / "manifest.json").exists()
    ends_as_undisturbed(shop, folder, name)


@slow
@pytest.mark.parametrize("name", STAGES)
def test_a_disk_that_may_not_be_written(shop, tmp_path, name):
    folder = without(shop, tmp_path, name)
    folder.chmod(0o555)
    assert "ermission" in on_machine(folder, words_of(name), plain_user=True).reported
    folder.chmod(0o755)
    ends_as_undisturbed(shop, folder, name)


@slow
@pytest.mark.parametrize("name", STAGES)
def test_inputs_that_may_not_be_read(shop, tmp_path, name):
    folder = without(shop, tmp_path, name)
    rng = random.Random(name)
    settings = [value for value in STAGES[name].values() if isinstance(value, str) and (shop / value).exists()]
    for given in [*settings, f"{name}.yaml"]:
        path = folder / given
        files = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]
        if given == OWN[name]:
            continue
        chosen = {path, *(file for file in files if file.name == "manifest.json"), rng.choice(files)}
        for file in sorted(chosen):
            mode = file.stat().st_mode
            file.chmod(0)
            reported = on_machine(folder, words_of(name), plain_user=True).reported
            assert file.name in reported, reported
            file.chmod(mode)
    ends_as_undisturbed(shop, folder, name)


@slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", STAGES)
def test_killed_anywhere(shop, tmp_path, name):
    """Trainings of two epochs at twenty points, others at six."""
    folder, more = without(shop, tmp_path, name), LONGER.get(name, ())
    run = partial(stage_in_child, run_words)
    totals = run(folder, (folder, (*words_of(name), *more)))
    assert more or bytes_of(folder / OWN[name]) == bytes_of(shop / OWN[name])
    for number, point in enumerate(random_points(totals, 20 if more else 6, seed=len(name))):
        mine = without(shop, tmp_path / str(number), name)
        run(mine, (mine, (*words_of(name), *more)), point)
        ends_as_undisturbed(folder, mine, name, *more)
        shutil.rmtree(mine)


@slow
@pytest.mark.parametrize("name", STAGES)
def test_killed_while_replacing_an_older_output(shop, tmp_path, name):
    folder = copied(shop, tmp_path / "shop", (f"{OWN[name]}.finished",))
    first = min(folder.glob(f"{OWN[name]}/**/manifest.json")).parent
    file = sorted(read_manifest(first)["files"])[0]
    run = partial(stage_in_child, run_words)
    (first / file).write_bytes(b"changed")
    totals = run(folder, (folder, words_of(name)))
    for point in random_points(totals, 4, seed=len(name)):
        (first / file).write_bytes(b"changed")
        shutil.rmtree(folder / f"{OWN[name]}.finished", ignore_errors=True)
        run(folder, (folder, words_of(name)), point)
        ends_as_undisturbed(shop, folder, name)


@slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["sft", "grpo", "eval-beam", "train-tiger"])
def test_a_launch_of_two_processes_killed_anywhere(shop, tmp_path, name):
    """One of the processes, or both and the launcher, or one reported to end; the same launch then ends as ever."""
    whole = without(shop, tmp_path / "whole", name)
    totals, rng = launch(whole, name, 2), random.Random(name)
    kinds = [(rank, kind) for rank in range(2) for kind in ("step", "write") if totals[rank][kind]]
    for number, (rank, kind) in enumerate(kinds):
        mine = without(shop, tmp_path / str(number), name)
        die = Point(kind, rng.randint(1, totals[rank][kind]))
        sent = signal.SIGTERM if kind == "step" else signal.SIGKILL
        launch(mine, name, 2, die, rank=rank, whole=number % 2 == 1, number=sent)
        launch(mine, name, 2)
        assert bytes_of(mine / OWN[name]) == bytes_of(whole / OWN[name]), (rank, die)
        assert not litter(mine)
        shutil.rmtree(mine)


RECIPE = """output: made
seeds: [1, 2]
steps:
  sft: {config: sft.yaml, epochs: 2}
  eval-beam: {config: eval-beam.yaml, checkpoint: "{sft}"}
  report: {config: report.yaml, predictions: {SFT: "{eval-beam}"}}
"""


def _run(folder):
    words = [sys.executable, "-m", "minionerec", "run", "recipe.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _artefacts(folder):
    """What a recipe made, but for what says when and how long, as a page does, and what trainers keep to go on from."""
    beside = (".log", ".record.json", ".lock", "report/report.html", "report/manifest.json")
    found = bytes_of(folder / "made")
    return {file: content for file, content in found.items() if not file.endswith(beside) and ".finished/" not in file}


@slow
@pytest.mark.timeout(1800)
def test_a_recipe_killed_with_all_its_steps(shop, tmp_path):
    """The runner and whatever it has started, at any moment, several times over."""
    whole, cut = (copied(shop, tmp_path / name) for name in ("whole", "cut"))
    for folder in (whole, cut):
        (folder / "recipe.yaml").write_text(RECIPE)
    begin = time.monotonic()
    run = _run(whole)
    assert run.communicate()[1] is not None and run.returncode == 0
    took, rng = time.monotonic() - begin, random.Random(0)
    for _ in range(3):
        run = _run(cut)
        time.sleep(took * rng.uniform(0.1, 0.6))
        for process in [*psutil.Process(run.pid).children(recursive=True), run]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        run.communicate()
    run = _run(cut)
    reported = run.communicate()[1]
    assert run.returncode == 0, reported
    assert any(file.endswith("model.safetensors") for file in _artefacts(whole))
    assert _artefacts(cut) == _artefacts(whole)


@slow
@pytest.mark.parametrize("step", [1e8, -1e7])
@pytest.mark.parametrize("name", STAGES)
def test_a_clock_that_jumps(shop, tmp_path, name, step):
    folder = without(shop, tmp_path, name)
    done = on_machine(folder, words_of(name), clock=step)
    assert done.status == 0, done
    assert bytes_of(folder / OWN[name]) == bytes_of(shop / OWN[name])


@slow
@pytest.mark.parametrize("name", STAGES)
def test_two_runs_at_once(shop, tmp_path, name):
    folder = without(shop, tmp_path, name)
    ends = [wait() for wait in [started(folder, words_of(name)) for _ in range(3)]]
    assert 0 in [done.status for done in ends]
    for done in ends:
        assert done.status == 0 or "another run is writing it" in done.reported
    ends_as_undisturbed(shop, folder, name)


@pytest.mark.parametrize("seconds", [0, 1, 2**33])
def test_times_of_files_decide_nothing(folder, seconds):
    for file in folder.rglob("*"):
        os.utime(file, (seconds, seconds))
    for name in ("prepare-data", "build-sids", "eval-beam", "report"):
        before = (folder / OWN[name] / "manifest.json").stat().st_ctime_ns
        assert stage(folder, name).status == 0
        assert (folder / OWN[name] / "manifest.json").stat().st_ctime_ns == before


def test_a_change_that_is_hidden_by_times_and_size_is_seen(folder):
    file = folder / "sft/model.safetensors"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    content = bytearray(file.read_bytes())
    assert stage(folder, "eval-beam").status == 0  # hashed once in this process
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    os.utime(file, ns=times)
    assert "model.safetensors: differs" in stage(folder, "eval-beam", "--output", "new").reported


def test_who_comes_second_does_not_take_the_first_ones_folder_away(tmp_path):
    with write_artefact(tmp_path / "one", "cups", config={}) as folder:
        require_writable(tmp_path / "one", "cups")
        (folder / "cup.txt").write_text("cup")
    assert list(read_manifest(tmp_path / "one")["files"]) == ["cup.txt"]


PATHS = {"items.csv": "prepare-data", "histories.jsonl": "recommend", "build-sids.yaml": "build-sids"}


@pytest.mark.parametrize("name", PATHS)
def test_something_else_instead_of_a_file_is_one_line(shop, tmp_path, name):
    folder = without(shop, tmp_path, PATHS[name])
    (folder / name).unlink()
    for make in (lambda: None, (folder / name).mkdir, lambda: (folder / name).symlink_to(name)):
        make()
        reported = stage(folder, PATHS[name]).reported
        assert name in reported, reported
        if (folder / name).is_dir():
            (folder / name).rmdir()
        (folder / name).unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["items.csv", "corpus", "sft"])
def test_a_name_that_no_disk_takes_is_one_line(folder, name):
    stages = {"items.csv": ("prepare-data", "--items"), "corpus": ("build-sids", "--corpus")}
    words = stages.get(name, ("eval-beam", "--checkpoint"))
    for bad in ("x" * 300, f"{name}/under", "a\0b"):
        reported = command(folder, words[0], "--config", f"{words[0]}.yaml", words[1], bad, "--output", "new").reported
        assert reported


@pytest.mark.parametrize("bad", ["x" * 300, "items.csv/new", "a\0b"])
def test_an_output_that_no_disk_takes_is_one_line(folder, bad):
    for name in ("prepare-data", "build-sids", "eval-beam", "report", "recommend"):
        assert stage(folder, name, "--output", bad).reported


ATOMIC = ("index.json", "wording.yaml")
"""Files that are written beside their path and renamed."""


def test_a_disk_that_fills_at_any_file_of_a_checkpoint_is_one_line(shop, tmp_path, monkeypatch, capsys):
    bundle, made, struck = load_bundle(shop / "sft"), Path.mkdir, []

    def make(path, *how, **more):
        made(path, *how, **more)
        file = path / (f".{struck[-1]}.writing" if struck[-1] in ATOMIC else struck[-1])
        if path.name == ".model.writing" and not any(path.iterdir()):
            file.symlink_to("/dev/full")  # a disk that is full

    def write():
        with write_artefact(tmp_path / "model", "checkpoint", config={}) as folder:
            write_model_files(bundle, folder)
            (folder / CARD_FILE).write_text("a model card")

    monkeypatch.setattr(Path, "mkdir", make)
    of_others = {"training_log.json", "model.safetensors"}  # weights are the largest file: `test_a_full_disk`
    for name in [*sorted({*read_manifest(shop / "sft")["files"]} - of_others), "manifest.json"]:
        struck.append(name)
        with pytest.raises(SystemExit) as end:
            run_command(write)
        reported = capsys.readouterr().err
        assert (end.value.code, reported.count("\n")) == (2, 1), (name, reported)
        assert "No space left on device" in reported, (name, reported)
        assert list(tmp_path.iterdir()) == []
    assert len(struck) > 5


def test_a_device_is_no_path_of_a_file(tmp_path):
    (tmp_path / "a.json").symlink_to("/dev/full")
    with pytest.raises(ArtefactError, match=r"/dev/full: is not a regular file. Choose another path"):
        write_text_atomic(tmp_path / "a.json", "{}")
