"""The life of a preference study: what stands, what is made anew, what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from filelock import FileLock
from support.paths import ROOT

from minionerec.core.artefacts import read_json, read_manifest, verify_files
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.preference import run
from minionerec.preference.config import PreferenceConfig, WorldConfig
from minionerec.preference.jobs import job_stage, study_jobs, study_stage, study_worlds
from minionerec.preference.synthetic import write_world
from minionerec.reports.preference_report import run_preference_study

TINY = {"items": 120, "width": 12, "resamples": 20, "workers": 1, "models": ["bt_hier"], "seeds": [4]}
RUNS = 5  # the floors and one model


def config_of(output, **changes):
    return PreferenceConfig(output=str(output), **{**TINY, **changes})


def own_config(folder, output, **changes):
    world = write_world(WorldConfig(output=str(folder / "world"), items=120, width=12, halo=0.5, seed=4))
    files = {"comparisons": str(world / "comparisons.parquet"), "features": str(world / "features.npz")}
    return PreferenceConfig(output=str(output), **{**TINY, **files, **changes})


def edit(path, words="edited"):
    path.write_text(path.read_text() + words)


def made(monkeypatch):
    """The models of the runs that are made from now on."""
    original, models = run.fit_and_measure, []

    def counted(config, job):
        models.append(job.model)
        original(config, job)

    monkeypatch.setattr(run, "fit_and_measure", counted)
    return models


@pytest.fixture
def finished(tmp_path):
    config = config_of(tmp_path / "out", document=str(tmp_path / "study.md"))
    assert not config.up_to_date()
    assert run_preference_study(config).done == RUNS
    return config


def test_a_finished_study_is_left_as_it_is(finished, monkeypatch):
    models = made(monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in Path(finished.output).rglob("*") if path.is_file()}
    assert finished.up_to_date()
    again = run_preference_study(config_of(finished.output, document=finished.document, workers=2, restart=True))
    assert again.up_to_date and again.done == 0 and models == []
    assert again.lines() == [
        f"report: {finished.document}",
        f"report: {Path(finished.output, 'reports', 'halo-pair-bt_hier', 'report.md')}",
    ]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    manifest = read_manifest(study_stage(finished).output, "preference_study")
    assert manifest["counts"]["runs"] == RUNS


def test_a_run_is_an_artefact_of_what_decides_it(finished, monkeypatch):
    job = study_jobs(finished)[-1]
    manifest = read_manifest(job.place(finished.output), "preference_run")
    assert manifest["settings"] == {**finished.settings(), "unit": "pair", "seed": 4, "model": "bt_hier"}
    assert set(manifest["inputs"]) == {"world"} and manifest["seed"] == 4
    written = yaml.safe_load((job.place(finished.output) / "config.yaml").read_text())
    assert written == manifest["settings"]
    # More runs are added to those that stand; another way to fit makes them anew.
    models = made(monkeypatch)
    assert run_preference_study(config_of(finished.output, models=["bt_hier", "bt_lowrank"])).done == 1
    assert models == ["bt_lowrank"]
    assert run_preference_study(config_of(finished.output, position_bias=False)).done == RUNS


@pytest.mark.parametrize("name", ["results.json", "predictions.csv", "model.json"])
def test_an_edited_run_is_said_and_made_anew(finished, monkeypatch, caplog, name):
    place = study_jobs(finished)[-1].place(finished.output)
    before = (place / name).read_bytes()
    edit(place / name)
    assert not finished.up_to_date()
    models = made(monkeypatch)
    with caplog.at_level("INFO", "minionerec"):
        assert run_preference_study(finished).done == 1
    assert models == ["bt_hier"] and (place / name).read_bytes() == before
    assert f"{place / name} was changed since it was written: {place} is made anew" in caplog.text
    assert finished.up_to_date()


def test_an_edited_world_is_said_and_made_anew_and_its_runs_stand(finished, monkeypatch, caplog):
    (world,) = study_worlds(finished)
    truth = Path(world.output) / "truth.parquet"
    before = truth.read_bytes()
    truth.write_bytes(before + b"edited")
    assert not finished.up_to_date()
    monkeypatch.setattr(run, "fit_and_measure", None)
    with caplog.at_level("INFO", "minionerec"):
        assert run_preference_study(finished).done == 0
    assert truth.read_bytes() == before and f"{truth} was changed since it was written" in caplog.text
    assert finished.up_to_date()


def test_an_edited_comparison_page_or_document_is_made_anew(finished, monkeypatch, caplog):
    monkeypatch.setattr(run, "fit_and_measure", None)
    group = study_jobs(finished)[0].group(finished.output)
    page = study_stage(finished).output / "halo-pair-bt_hier" / "report.md"
    places = [group / "against" / "against.json", page, Path(finished.document)]
    whole = {path: path.read_text() for path in places}
    for path in places[1:]:
        edit(path)
        assert not finished.up_to_date()
        assert not run_preference_study(finished).up_to_date
        assert finished.up_to_date()
    assert page.read_text() == whole[page] and "edited" not in Path(finished.document).read_text()
    Path(finished.document).unlink()
    assert not finished.up_to_date()
    run_preference_study(finished)
    assert "# Personal preference" in Path(finished.document).read_text()
    edit(places[0])
    Path(finished.document).unlink()
    with caplog.at_level("INFO", "minionerec"):
        run_preference_study(finished)
    assert places[0].read_text() == whole[places[0]] and f"{places[0]} was changed" in caplog.text
    verify_files(group / "against")


def test_the_document_may_come_later_and_lie_elsewhere(finished, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "fit_and_measure", None)
    later = config_of(finished.output, document=str(tmp_path / "elsewhere" / "study.md"))
    assert not later.up_to_date()
    assert run_preference_study(later).reports[0].is_file() and later.up_to_date()
    (tmp_path / "other.md").write_text("something else\n")
    assert not config_of(finished.output, document=str(tmp_path / "other.md")).up_to_date()


def test_what_own_files_hold_decides_and_not_where_they_lie(tmp_path, monkeypatch):
    config = own_config(tmp_path, tmp_path / "out")
    run_preference_study(config)
    assert set(read_manifest(job_stage(config, study_jobs(config)[0]).output)["inputs"]) == {"comparisons", "features"}
    models = made(monkeypatch)
    moved = tmp_path / "moved.parquet"
    moved.write_bytes(Path(config.comparisons).read_bytes())
    config.comparisons = str(moved)
    assert config.up_to_date() and run_preference_study(config).up_to_date
    table = pd.read_parquet(moved)
    table.iloc[:-3].to_parquet(moved)
    assert not config.up_to_date()
    assert run_preference_study(config).done == RUNS == len(models)
    counts = read_json(study_jobs(config)[0].place(config.output) / "results.json")["counts"]
    assert counts["comparisons"] == len(table) - 3
    moved.unlink()
    assert not config.up_to_date()
    with pytest.raises(DataError, match=r"moved\.parquet: no such file\. Give --comparisons"):
        run_preference_study(config)


def cut_off(config, monkeypatch, number):
    """Interrupt a study in its run of this number, from 1."""
    original, runs = run.fit_and_measure, []

    def fit(*args):
        runs.append(args)
        if len(runs) == number:
            raise KeyboardInterrupt
        original(*args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run, "fit_and_measure", fit)
        run_preference_study(config)


def test_a_cut_off_study_goes_on_to_the_same_bytes(finished, tmp_path, monkeypatch):
    config = config_of(tmp_path / "cut")
    cut_off(config, monkeypatch, 4)
    assert (tmp_path / "cut" / "reports.partial" / "run.json").is_file() and not config.up_to_date()
    models = made(monkeypatch)
    assert run_preference_study(config).done == 2 and models == ["bt_user", "bt_hier"]
    assert config.up_to_date() and not (tmp_path / "cut" / "reports.partial").exists()
    for one, two in zip(study_jobs(finished), study_jobs(config), strict=True):
        for name in read_manifest(one.place(finished.output))["files"]:
            first, second = (place / name for place in (one.place(finished.output), two.place(config.output)))
            assert first.read_bytes() == second.read_bytes()


def test_a_cut_off_study_holds_its_settings_until_restart(tmp_path, monkeypatch):
    cut_off(config_of(tmp_path / "out"), monkeypatch, 3)
    other = config_of(tmp_path / "out", halo=0.5, seeds=[5], workers=2)
    with pytest.raises(ConfigError, match=r"differs in halo \(then 0\.6, now 0\.5\), seeds \(then \[4\], now \[5\]\)"):
        run_preference_study(other)
    assert not (tmp_path / "out" / "worlds" / "halo-5").exists()
    assert run_preference_study(config_of(tmp_path / "out", halo=0.5, restart=True)).done == RUNS
    # Before the first run is finished nothing is held: wrong settings can be mended.
    cut_off(config_of(tmp_path / "new"), monkeypatch, 1)
    assert run_preference_study(config_of(tmp_path / "new", halo=0.5)).done == RUNS


def test_a_run_remade_in_a_study_that_was_cut_off_asks_for_new_pages(finished, monkeypatch):
    """All runs stand and the old pages are whole, but they may not be of these runs."""
    edit(study_jobs(finished)[0].place(finished.output) / "results.json")
    edit(study_jobs(finished)[-1].place(finished.output) / "results.json")
    cut_off(finished, monkeypatch, 2)
    run.fit_and_measure(finished, study_jobs(finished)[-1])
    assert not finished.up_to_date()
    assert not run_preference_study(finished).up_to_date and finished.up_to_date()


def test_two_at_once_are_refused(tmp_path):
    config = config_of(tmp_path / "out")
    stage = study_stage(config)
    Path(config.output).mkdir()
    with (
        FileLock(stage.output.with_name(".reports.lock")),
        pytest.raises(ConfigError, match=r"reports: another run is writing it"),
    ):
        run_preference_study(config)
    run.write_world(study_worlds(config)[0])
    job = study_jobs(config)[0]
    place = job.place(config.output)
    place.parent.mkdir(parents=True)
    with (
        FileLock(place.with_name(".majority.lock")),
        pytest.raises(ConfigError, match=r"majority: another run is writing it"),
    ):
        run.fit_and_measure(config, job)
    run.fit_and_measure(config, job)
    assert (place / "results.json").is_file()


def test_what_is_no_output_of_ours_is_not_replaced(tmp_path):
    (tmp_path / "out" / "reports").mkdir(parents=True)
    (tmp_path / "out" / "reports" / "mine.txt").write_text("mine")
    with pytest.raises(ArtefactError, match=r"reports: exists and is not an output of this project"):
        run_preference_study(config_of(tmp_path / "out"))
    world = write_world(WorldConfig(output=str(tmp_path / "there"), items=120, width=12, seed=4))
    config = config_of(tmp_path / "other")
    place = study_jobs(config)[0].place(config.output)
    place.parent.mkdir(parents=True)
    world.rename(place)
    with pytest.raises(ArtefactError, match=r"holds a 'preference_world', which a 'preference_run' must not replace"):
        run_preference_study(config)


def test_a_world_is_written_once(tmp_path):
    config = WorldConfig(output=str(tmp_path / "world"), items=120, width=12, seed=4)
    place = write_world(config)
    written = (place / "manifest.json").stat().st_mtime_ns
    assert write_world(config) == place and (place / "manifest.json").stat().st_mtime_ns == written
    assert set(read_manifest(place, "preference_world")["settings"]) == {
        "world",
        "items",
        "width",
        "halo",
        "nonlinear",
        "lapse",
        "seed",
    }
    other = WorldConfig(output=str(tmp_path / "world"), items=120, width=12, seed=5)
    before = (place / "comparisons.parquet").read_bytes()
    assert (write_world(other) / "comparisons.parquet").read_bytes() != before


def test_the_command_prints_where_the_reports_lie(tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text(yaml.safe_dump({**TINY, "output": str(tmp_path / "out"), "workers": 2}))
    words = [sys.executable, "-m", "minionerec.cli", "train-preference", "--config", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    page = tmp_path / "out" / "reports" / "halo-pair-bt_hier" / "report.md"
    assert done.stdout == f"report: {page}\n" and page.is_file()
    assert "5 runs, of which 0 stand already" in done.stderr
    again = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert again.stdout == done.stdout and f"{tmp_path / 'out'} is up to date." in again.stderr
