"""Pipelines: the stages of one folder of configurations, run one after another as a user would type them.

`configs/demo/pipeline.yaml` lists the stages in order, each as `script: configuration file beside it`. A stage is known
by its configuration's name without ending ("sft", "eval_grpo").
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import MANIFEST, fingerprint, read_manifest, to_plain
from minionerec.core.config import ROOT, parse_config, read_yaml
from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.log import get_logger, is_main_process
from minionerec.evaluation.config import EvalConfig
from minionerec.training.config import GrpoConfig, SftConfig

logger = get_logger(__name__)

FILE = "pipeline.yaml"
DEMO = "configs/demo"
LAUNCHED = ("sft", "grpo")
# What the inputs of these stages are stands in their configuration alone, so whether they are up to date can be told
# without the seconds that starting them takes. The other stages start quickly and say so themselves.
_SLOW_TO_START: dict[str, type] = {"sft": SftConfig, "grpo": GrpoConfig, "eval_beam": EvalConfig}
# What a distributed launcher leaves in the environment; a stage started from there is a launch of its own.
_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHER_PREFIXES = ("ACCELERATE_", "TORCHELASTIC_", "GROUP_", "ROLE_")


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline.

    Attributes:
        name: Name of its configuration file without ending.
        script: Name of its script without ending.
        config: Its configuration file.
        settings: The file's content.
        launch: File for `accelerate launch --config_file`; chosen by the machine if None.
        threads: CPU threads of its process; the library's own choice if None.
    """

    name: str
    script: str
    config: Path
    settings: Mapping[str, Any]
    launch: Path | None = None
    threads: int | None = None

    @property
    def path(self) -> Path:
        """The script."""
        return ROOT / "calc_level.py" if self.script == "calc_level" else ROOT / "scripts" / f"{self.script}.py"

    @property
    def output(self) -> str | None:
        """Where it writes, None where it writes nothing."""
        return os.path.normpath(self.settings["output"]) if self.settings.get("output") else None


def find_project_path(path: str | os.PathLike[str]) -> Path:
    """A path as given, or else, where nothing is there, relative to the project."""
    return Path(path) if Path(path).exists() else ROOT / path


def read_pipeline(path: str | os.PathLike[str]) -> list[Stage]:
    """The stages of a pipeline.

    Args:
        path: Folder with a `pipeline.yaml`, or such a file itself.

    Raises:
        ConfigError: If the file is missing or malformed, a stage has no such script or configuration, or two stages
            have the same name.
    """
    place = find_project_path(path)
    file = place / FILE if place.is_dir() else place
    if not file.is_file():
        raise ConfigError(f"{Path(path)}: no pipeline there; expected a folder with a {FILE}, such as {DEMO}.")
    content = read_yaml(file)
    unknown = sorted(set(content) - {"stages", "launch", "threads"})
    if unknown:
        raise ConfigError(f"{file}: unknown key {unknown[0]!r}. Known keys: stages, launch, threads.")
    entries = content.get("stages")
    if not isinstance(entries, list) or not all(isinstance(e, dict) and len(e) == 1 for e in entries) or not entries:
        raise ConfigError(f"{file}: expected `stages:` with a list of `script: configuration.yaml`.")
    launch = find_project_path(content["launch"]) if content.get("launch") else None
    if launch is not None and not launch.is_file():
        raise ConfigError(f"{file}: launch is {content['launch']!r}, but there is no such file.")
    threads = content.get("threads")
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise ConfigError(f"{file}: threads is {threads!r}; expected a whole number of CPU threads, at least 1.")
    stages: list[Stage] = []
    for script, name in (next(iter(entry.items())) for entry in entries):
        config = file.parent / str(name)
        stage = Stage(config.stem, str(script), config, read_yaml(config), launch, threads)
        if not stage.path.is_file():
            raise ConfigError(f"{file}: no script {stage.script!r} ({stage.path}); give the name of one in scripts/.")
        if any(stage.name == other.name for other in stages):
            raise ConfigError(f"{file}: {name!r} is listed twice; give each stage a configuration of its own.")
        stages.append(stage)
    return stages


def stage_command(stage: Stage) -> list[str]:
    """The words that run a stage: plain Python, or `accelerate launch` for the training stages."""
    words = [str(stage.path), "--config", str(stage.config)]
    if stage.script not in LAUNCHED:
        return [sys.executable, *words]
    launch = stage.launch
    if launch is None:
        import torch

        launch = ROOT / "ds_configs" / ("single_gpu.yaml" if torch.cuda.is_available() else "cpu.yaml")
    # --quiet: the stage has said what was wrong; the launcher's own traceback would only hide it.
    launcher = ["-m", "accelerate.commands.launch", "--quiet", "--config_file", str(launch)]
    threads = child_environment(stage).get("OMP_NUM_THREADS")
    if threads:
        launcher += ["--num_cpu_threads_per_process", threads]
    return [sys.executable, *launcher, *words]


def shown_command(command: Sequence[str]) -> str:
    """A command as a user would type it in the project's folder."""
    text = " ".join(_short(word) for word in command[1:])
    launcher = "-m accelerate.commands.launch --quiet"
    return text.replace(launcher, "accelerate launch") if text.startswith(launcher) else f"python {text}"


def _short(word: str) -> str:
    """A path under the current directory, relative to it; any other word as it is."""
    here = f"{Path.cwd()}{os.sep}"
    return word.removeprefix(here)


def child_environment(stage: Stage) -> dict[str, str]:
    """The environment of a stage: this process's, without what a distributed launcher put there.

    The stage's number of threads is added; an `OMP_NUM_THREADS` that is already set wins.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHER_VARIABLES and not name.startswith(_LAUNCHER_PREFIXES)
    }
    if stage.threads is not None:
        environment.setdefault("OMP_NUM_THREADS", str(stage.threads))
    return environment


def stage_is_current(stage: Stage) -> bool:
    """Whether a slow stage need not be started: its output stands, made from this configuration and these inputs."""
    if stage.script not in _SLOW_TO_START or stage.output is None or not (Path(stage.output) / MANIFEST).is_file():
        return False
    try:
        config = to_plain(parse_config(_SLOW_TO_START[stage.script], "", args=["--config", str(stage.config)]))
        manifest = read_manifest(stage.output)
        return all(config.get(name) == value for name, value in manifest["config"].items()) and all(
            fingerprint(record["path"]) == record["sha256"] for record in manifest["inputs"].values()
        )
    except (MinioneRecError, OSError, KeyError):
        return False  # the stage itself says what is wrong


def run_stage_process(stage: Stage, stdout: Any = None) -> subprocess.CompletedProcess[str]:
    """Run one stage as a process of its own.

    Args:
        stage: The stage.
        stdout: Where its standard output goes, as `subprocess.run` takes it.
    """
    return subprocess.run(stage_command(stage), stdout=stdout, text=True, env=child_environment(stage), check=False)


def run_pipeline(path: str | os.PathLike[str], first: str | None = None, last: str | None = None) -> None:
    """Run the stages of a pipeline in order, print each command, its wall time, and at the end the report's table.

    Args:
        path: Folder with a `pipeline.yaml`, or such a file itself.
        first: Name of the stage to begin with; the earlier ones are taken as they are.
        last: Name of the stage to end with.

    Raises:
        ConfigError: If the pipeline is malformed or has no stage of such a name.
        SystemExit: With the status of the first stage that fails.
    """
    stages = _between(read_pipeline(path), first, last, path)
    seconds: list[tuple[str, float, str]] = []
    closing = ""
    for number, stage in enumerate(stages, 1):
        print(f"\n[{number}/{len(stages)}] {stage.name}", flush=True)
        start = time.monotonic()
        if stage_is_current(stage):
            print(f"{stage.output} is up to date.", flush=True)
            seconds.append((stage.name, time.monotonic() - start, "up to date"))
            continue
        print(f"$ {shown_command(stage_command(stage))}", flush=True)
        done = run_stage_process(stage, subprocess.PIPE if stage.script == "report" else None)
        if stage.script == "report":
            print(done.stdout, end="", flush=True)
            closing = done.stdout if number < len(stages) else ""
        if done.returncode:
            logger.error("Stage %s failed with status %d; mend it and run again to go on.", stage.name, done.returncode)
            raise SystemExit(done.returncode)
        seconds.append((stage.name, time.monotonic() - start, ""))
    print("\nWall time")
    for name, duration, note in seconds:
        print(f"  {name:<16}{duration:8.1f} s  {note}".rstrip())
    print(f"  {'all':<16}{sum(duration for _, duration, _ in seconds):8.1f} s")
    if closing:
        print(f"\n{closing}", end="")
    sys.stdout.flush()


def _between(stages: list[Stage], first: str | None, last: str | None, path: str | os.PathLike[str]) -> list[Stage]:
    names = [stage.name for stage in stages]
    for option, name in (("--from", first), ("--until", last)):
        if name is not None and name not in names:
            raise ConfigError(f"{option} {name}: {path} has no such stage. Its stages: {', '.join(names)}.")
    begin = names.index(first) if first else 0
    end = names.index(last) + 1 if last else len(names)
    if begin >= end:
        raise ConfigError(f"--from {first} comes after --until {last} in {path}; swap them.")
    return stages[begin:end]


def _strings(value: Any) -> Iterator[str]:
    """Every string within settings; of "NAME=DIRECTORY" also the directory."""
    if isinstance(value, str):
        yield value
        yield value.rpartition("=")[2].strip()
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _strings(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _strings(entry)


def stages_before(stages: Sequence[Stage], settings: Mapping[str, Any]) -> list[Stage]:
    """Those stages whose output is read with these settings, directly or through other stages, in order.

    A stage is read where any setting but `output` is the path of its output.
    """
    by_output = {stage.output: stage for stage in stages if stage.output}
    needed: set[str] = set()
    open_settings = [settings]
    while open_settings:
        current = open_settings.pop()
        for text in _strings({name: value for name, value in current.items() if name != "output"}):
            stage = by_output.get(os.path.normpath(text)) if text else None
            if stage is not None and stage.name not in needed:
                needed.add(stage.name)
                open_settings.append(stage.settings)
    return [stage for stage in stages if stage.name in needed]


def ensure_before(path: str | os.PathLike[str], config: Any) -> None:
    """Make what a configuration reads of a pipeline's outputs, where it is missing or stale.

    In a launch of several processes the first one does it and the others wait. What the stages print goes to standard
    error, so that standard output holds the caller's own alone.

    Args:
        path: Folder of the pipeline.
        config: Resolved configuration (a dataclass) of the stage that is about to run.

    Raises:
        SystemExit: With the status of the first stage that fails.
    """
    stages = stages_before(read_pipeline(path), asdict(config))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from minionerec.training.processes import main_process_first

        with main_process_first():
            if is_main_process():
                _run_missing(stages)
    else:
        _run_missing(stages)


def _run_missing(stages: Sequence[Stage]) -> None:
    for stage in stages:
        if stage_is_current(stage):
            continue
        logger.info("First %s: %s", stage.name, shown_command(stage_command(stage)))
        done = run_stage_process(stage, sys.stderr)
        if done.returncode:
            logger.error("Stage %s, which this one needs, failed with status %d.", stage.name, done.returncode)
            raise SystemExit(done.returncode)
