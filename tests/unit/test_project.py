"""The project as a whole: scripts answer, configurations parse, files that the package needs are there."""

import itertools
import json
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from minionerec.cli.pipeline import FILE, read_pipeline, shown_command, stage_command, stages_before
from minionerec.cli.stages import COMMANDS
from minionerec.core.config import ROOT, parse_config, read_yaml
from minionerec.core.errors import ConfigError

SCRIPTS = [ROOT / "calc_level.py", *sorted((ROOT / "scripts").glob("*.py"))]
PIPELINES = [
    path
    for path in sorted((ROOT / "configs").glob("*/*.yaml"))
    if isinstance(content := yaml.safe_load(path.read_text()), dict) and "stages" in content
]
BY_SCRIPT = {Path(command.script).stem: command for command in COMMANDS.values()}


def run(*words, cwd=ROOT):
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_answers_within_two_seconds(script):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(script, "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
    # Processor time, so that other work on the machine is not counted.
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 2


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "embed-items"])
def test_an_unknown_key_is_one_line_and_status_2(name, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("no_such_setting: 1\n")
    done = run(ROOT / COMMANDS[name].script, "--config", config)
    assert done.returncode == 2
    assert re.fullmatch(rf"error: {config}: unknown key 'no_such_setting'\. Known keys: .*\n", done.stderr)


def test_an_unknown_flag_is_one_line_and_status_2():
    done = run("-m", "minionerec.cli", "sft", "--no_such_flag", "1", "--config", "configs/demo/sft.yaml")
    assert done.returncode == 2
    assert "no_such_flag" in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_every_stage_of_a_pipeline_has_a_valid_configuration(path):
    stages = read_pipeline(path)
    for stage in stages:
        parse_config(BY_SCRIPT[stage.script].config_class(), "", args=["--config", str(stage.config)])


def test_every_configuration_belongs_to_a_stage_and_parses():
    known = {stage.config.resolve(): stage.script for path in PIPELINES for stage in read_pipeline(path)}
    homes = ("demo", "industrial", "qwen")
    others = [path for home in homes for path in sorted((ROOT / "configs" / home).glob("*.yaml"))]
    alone = [path for path in others if path.resolve() not in known and path not in PIPELINES]
    for path in alone:  # a variant of a stage: its name begins as the stage's own file does
        script = {
            "grpo": "grpo",
            "sft": "sft",
            "eval": "eval_beam",
            "report": "report",
            "sids": "build_sids",
            "sid": "sid_report",
        }[path.stem.split("_")[0]]
        parse_config(BY_SCRIPT[script].config_class(), "", args=["--config", str(path)])
    assert len(known) >= 20


def test_a_pipeline_reads_only_what_it_has_made_before():
    for path in PIPELINES:
        stages = read_pipeline(path)
        for place, stage in enumerate(stages):
            before = stages_before(stages, stage.settings)
            assert all(other in stages[:place] for other in before), stage.name
            assert place == 0 or before, stage.name


def test_stages_before_are_those_that_are_read():
    stages = read_pipeline("configs/demo")
    names = [stage.name for stage in stages_before(stages, {"predictions": ["X=runs/demo/eval_grpo"]})]
    assert names == ["data", "sids", "sft", "grpo", "eval_grpo"]
    assert [stage.name for stage in stages_before(stages, {"corpus": "runs/demo/corpus/"})] == ["data"]
    assert stages_before(stages, {"output": "runs/demo/sft", "corpus": "elsewhere"}) == []


def test_commands_are_shown_as_one_would_type_them(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    stages = {stage.name: shown_command(stage_command(stage)) for stage in read_pipeline("configs/demo")}
    assert stages["levels"] == "python calc_level.py --config configs/demo/levels.yaml"
    assert re.fullmatch(
        r"accelerate launch --config_file ds_configs/(cpu|single_gpu)\.yaml --num_cpu_threads_per_process 3 "
        r"scripts/sft\.py --config configs/demo/sft\.yaml",
        stages["sft"],
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("stages: []", "expected `stages:` with a list"),
        ("stages:\n  - sft: missing.yaml", r"missing\.yaml: no such file"),
        ("stages:\n  - no_such_script: pipeline.yaml", "no script 'no_such_script'"),
        ("stages:\n  - sft: pipeline.yaml\n  - sft: pipeline.yaml", "'pipeline.yaml' is listed twice"),
        ("steps: []", "unknown key 'steps'. Known keys: stages, launch, threads"),
        ("threads: 0\nstages:\n  - sft: pipeline.yaml", "threads is 0; expected a whole number"),
        ("launch: nowhere.yaml\nstages:\n  - sft: pipeline.yaml", "launch is 'nowhere.yaml'"),
    ],
)
def test_a_malformed_pipeline_is_refused(tmp_path, content, message):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_pipeline(tmp_path)


def test_run_refuses_what_is_not_there(tmp_path):
    for words, message in [
        ([tmp_path], "no pipeline there; expected a folder with a pipeline.yaml"),
        (["configs/demo", "--from", "nowhere"], "--from nowhere: configs/demo has no such stage. Its stages: data, "),
        (["configs/demo", "--from", "grpo", "--until", "sft"], "--from grpo comes after --until sft"),
    ]:
        done = run("scripts/run_pipeline.py", *words)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert message in done.stderr


def test_a_pipeline_stops_at_the_first_failing_stage(tmp_path):
    (tmp_path / FILE).write_text("stages:\n  - calc_level: broken.yaml\n  - report: never.yaml\n")
    (tmp_path / "broken.yaml").write_text(f"path: {tmp_path}/missing.json\n")
    (tmp_path / "never.yaml").write_text("output: nowhere\n")
    done = run("scripts/run_pipeline.py", tmp_path)
    assert done.returncode == 2
    assert "[1/2] broken" in done.stdout
    assert "[2/2]" not in done.stdout
    assert "Stage broken failed with status 2" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["cpu.yaml", "single_gpu.yaml", "zero2_4gpu.yaml", "zero2_cpu.yaml"])
def test_accelerate_takes_the_launch_files(name):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(ROOT / "ds_configs" / name))
    assert config.num_processes == {"zero2_4gpu.yaml": 4, "zero2_cpu.yaml": 2}.get(name, 1)
    assert config.use_cpu == (name == "cpu.yaml")
    for file in [value for key, value in config.deepspeed_config.items() if key.endswith("_file")]:
        assert (ROOT / file).is_file()
        assert config.mixed_precision is None  # with a DeepSpeed file, accelerate refuses settings that are its own


@pytest.mark.parametrize("name", ["zero2.json", "zero2_offload.json", "zero2_cpu.json"])
def test_deepspeed_knows_every_setting(name):
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    config = json.loads((ROOT / "ds_configs" / name).read_text())
    zero = config["zero_optimization"]
    assert set(zero) <= set(DeepSpeedZeroConfig.model_fields)
    parsed = DeepSpeedZeroConfig(**zero)
    assert parsed.stage == 2
    assert parsed.contiguous_gradients
    assert (parsed.offload_optimizer is not None) == ("offload" in name)
    if name == "zero2.json":  # the published run's
        assert parsed.overlap_comm and parsed.reduce_scatter and parsed.allgather_partitions
        assert parsed.reduce_bucket_size == parsed.allgather_bucket_size == 5e8
    batch = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    assert all(config[key] == "auto" for key in batch)


def test_package_data_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for pattern in project["tool"]["setuptools"]["package-data"]["minionerec"]:
        assert list((ROOT / "minionerec").glob(pattern)), pattern
    for name in (project["project"]["readme"], *project["project"]["license-files"], "CHANGELOG.md", "Makefile"):
        assert (ROOT / name).is_file(), name
    assert set(project["project"]["optional-dependencies"]) >= {"dev", "plots", "tensorboard", "peft", "serve"}


def test_constraints_pin_one_version_each_and_torch_first():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert re.fullmatch(r"torch==[\d.]+", lines[0])
    names = []
    for line in lines:
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==[A-Za-z0-9.]+", line)
        assert match, line
        names.append(re.sub(r"[-_.]+", "-", match[1]).lower())
    assert len(names) == len(set(names))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    wanted_names = {re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", word)[0]).lower() for word in wanted}
    assert wanted_names <= set(names)


def test_the_demo_configurations_name_what_the_pipeline_makes():
    outputs = {stage.output for stage in read_pipeline("configs/demo") if stage.output}
    assert outputs == {
        f"runs/demo/{name}" for name in ("corpus", "sids", "sft", "eval_sft", "grpo", "eval_grpo", "report")
    }
    for command in COMMANDS.values():
        assert command.demo is None or read_yaml(ROOT / "configs" / "demo" / command.demo)
