"""How stages are started: their words, their environment, the launch file, and what is shown of it."""

import sys
from pathlib import Path

import pytest
import torch
import yaml
from support.paths import ROOT

from minionerec.pipeline.cli import launch
from minionerec.pipeline.cli.launch import run_words, shown_command, stage_environment, stage_words
from minionerec.pipeline.cli.plan import plan_of


@pytest.fixture(params=[True, False], ids=["GPU", "no GPU"])
def gpu(request, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param)
    return request.param


def test_commands_are_shown_as_one_would_type_them(monkeypatch, gpu):
    """Where there is a GPU a launcher picks it; one process on the CPU starts by itself."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    shown = {key.step: shown_command(job.words()) for key, job in plan_of("demo").items()}
    assert shown["levels"] == "minionerec calc-level --config demo/language#levels"
    launcher = (
        "accelerate launch --config_file ds_configs/single_gpu.yaml --num_cpu_threads_per_process 3 -m minionerec"
    )
    assert shown["sft"] == f"{launcher if gpu else 'minionerec'} sft --config demo/language#sft"


def test_commands_are_shown_quoted_for_a_shell():
    words = stage_words("sft", "my shop.yaml#sft", launched=False)
    assert shown_command(words) == "minionerec sft --config 'my shop.yaml#sft'"
    assert shown_command(stage_words("sft", "ünï.yaml#sft", launched=False)).endswith("--config ünï.yaml#sft")


def test_what_is_shown_elsewhere_can_be_typed_there(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    shown = {key.step: shown_command(job.words()).split() for key, job in plan_of("demo").items()}
    assert shown["data"] == ["minionerec", "prepare-data", "--config", "demo/language#data"]
    # The launcher knows nothing of what the package ships; the command itself finds it.
    assert Path(shown["sft"][3]).is_file()
    assert shown["sft"][-2:] == ["--config", "demo/language#sft"]


@pytest.mark.parametrize("name", ["single_gpu.yaml", "cpu.yaml"])
def test_the_launchers_own_parser_takes_the_words(name):
    from accelerate.commands.launch import launch_command_parser

    file = ROOT / "ds_configs" / name
    words = stage_words("sft", Path("a/sft.yaml"), launched=True, launch=file, threads=5)
    assert words[:2] == ["-m", "accelerate.commands.launch"]
    parsed = launch_command_parser().parse_args(words[2:])
    assert parsed.module and parsed.quiet
    assert parsed.training_script == "minionerec"
    assert parsed.training_script_args == ["sft", "--config", "a/sft.yaml"]
    assert Path(parsed.config_file) == file


def test_a_recipe_says_threads_and_launch_file_and_the_environment_wins(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    file = tmp_path / "mine.yaml"
    file.write_text("threads: 7\nlaunch: ds_configs/zero2_cpu.yaml\nsteps: {sft: {corpus: c, sids: s, output: x}}\n")
    (step,) = plan_of(file).values()
    assert step.words()[-2:] == ["--config", f"{file}#sft"]
    words = step.words()
    assert words[words.index("--num_cpu_threads_per_process") + 1] == "7"
    assert Path(words[words.index("--config_file") + 1]).samefile(ROOT / "ds_configs" / "zero2_cpu.yaml")
    assert stage_environment(7)["OMP_NUM_THREADS"] == "7"
    assert "OMP_NUM_THREADS" not in stage_environment(None)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert stage_environment(7)["OMP_NUM_THREADS"] == "2"
    assert step.words()[words.index("--num_cpu_threads_per_process") + 1] == "2"


def test_a_stage_inherits_no_launch(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "ACCELERATE_USE_CPU"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MINE", "1")
    environment = stage_environment(None)
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT", "ACCELERATE_USE_CPU"} & set(environment)
    assert environment["MINE"] == "1"


@pytest.fixture
def launched(monkeypatch):
    """What each launch would have read: the words, and the content of the launch file while it runs."""
    seen = []

    def run(words, **_):
        file = Path(words[words.index("--config_file") + 1]) if "--config_file" in words else None
        seen.append((words, file and yaml.safe_load(file.read_text())))

    monkeypatch.setattr(launch.subprocess, "run", run)
    return seen


def test_a_shipped_deepspeed_file_is_found_where_there_is_none(launched, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    file = ROOT / "ds_configs" / "zero2_cpu.yaml"
    words = stage_words("sft", Path("sft.yaml"), launched=True, launch=file)
    run_words(words, None)
    ((seen, content),) = launched
    assert Path(content["deepspeed_config"]["deepspeed_config_file"]) == ROOT / "ds_configs" / "zero2_cpu.json"
    before = yaml.safe_load(file.read_text())
    assert content | {"deepspeed_config": before["deepspeed_config"]} == before
    assert seen[0] == sys.executable and seen[-3:] == words[-3:]
    assert not Path(seen[seen.index("--config_file") + 1]).exists()  # it was there for the launch alone


def test_a_launch_file_is_taken_as_it_is_where_its_files_are(launched, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    for name in ("zero2_cpu.yaml", "cpu.yaml"):
        words = stage_words("sft", Path("sft.yaml"), launched=True, launch=Path("ds_configs") / name)
        run_words(words, None)
        assert launched[-1][0] == [sys.executable, *words]
    plain = stage_words("report", Path("report.yaml"), launched=False)
    run_words(plain, None)
    assert launched[-1][0] == [sys.executable, "-m", "minionerec", "report", "--config", "report.yaml"]
    monkeypatch.chdir(tmp_path)
    run_words(stage_words("sft", Path("sft.yaml"), launched=True, launch=ROOT / "ds_configs" / "cpu.yaml"), None)
    assert launched[-1][0][1:3] == ["-m", "accelerate.commands.launch"]
