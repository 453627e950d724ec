"""Recipes: folders of settings whose stages are run one after another, and those that the package ships.

`pipeline.yaml` lists the stages in order, each as `stage: configuration file beside it`:

    threads: 1
    jobs: 2
    stages:
      - prepare-data: data.yaml
      - build-sids: sids.yaml

`threads` are the CPU threads of a stage, `jobs` the number of stages that run at a time.

A step is known by its configuration's name without ending ("sft", "eval_grpo"). Shipped recipes lie in
`configs/DATA SET/RECIPE`; a data set's name alone means its recipe `language`.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.cli.launch import run_words, shown_command, stage_words
from minionerec.cli.stages import STAGES, StageSpec
from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.log import get_logger
from minionerec.core.places import find_path, shipped_root
from minionerec.core.processes import is_main_process, join_for_training, wait_for_everyone
from minionerec.core.settings import Settings, StageConfig, load_settings, read_yaml

logger = get_logger(__name__)

FILE = "pipeline.yaml"
HOME = "configs"
USUAL = "language"
DEMO_RECIPE = f"{HOME}/demo/{USUAL}"
_KEYS = ("stages", "launch", "threads", "jobs")


@dataclass(frozen=True)
class Step:
    """One stage of a recipe.

    Attributes:
        name: Name of its configuration file without ending.
        spec: The stage.
        config: Its configuration file.
        settings: What the file says.
        launch: File for `accelerate launch --config_file`; chosen by the machine if None.
        threads: CPU threads of its process; the library's own choice if None.
    """

    name: str
    spec: StageSpec
    config: Path
    settings: Settings
    launch: Path | None = None
    threads: int | None = None

    @property
    def output(self) -> str | None:
        """Where it writes, None where it writes nothing."""
        writes = isinstance(self.settings, StageConfig) and self.settings.output
        return os.path.normpath(writes) if writes else None

    def words(self) -> list[str]:
        """The words that run it, after the name of Python's interpreter."""
        return stage_words(
            self.spec.name, self.config, launched=self.spec.launched, launch=self.launch, threads=self.threads
        )

    def is_current(self) -> bool:
        """Whether it need not be started; where something is wrong, the stage itself says what."""
        try:
            return isinstance(self.settings, StageConfig) and bool(self.output) and self.settings.up_to_date()
        except (MinioneRecError, OSError, KeyError):
            return False


def shipped_recipes() -> dict[str, str]:
    """Name of each shipped recipe, "data set/recipe", to what the first lines of its `pipeline.yaml` say."""
    home = shipped_root() / HOME
    found = {}
    for file in sorted(home.glob(f"*/*/{FILE}")):
        head = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        said = head[0].lstrip("# ").rstrip(".") if head else ""
        found[str(file.parent.relative_to(home))] = said
    return found


def find_recipe(name: str | os.PathLike[str]) -> Path:
    """The folder (or `pipeline.yaml`) of a recipe: a path, or the name of a shipped one.

    Raises:
        ConfigError: If there is neither.
    """
    given = Path(name)
    home = shipped_root() / HOME
    for place in (given, shipped_root() / given, home / given, home / given / USUAL):
        if (place / FILE).is_file() or (place.is_file() and place.suffix == ".yaml"):
            return place
    raise ConfigError(
        f"{name}: no recipe there; expected a folder with a {FILE}, or the name of a shipped one: "
        f"{', '.join(shipped_recipes())}."
    )


def copy_recipe(name: str, folder: str | os.PathLike[str]) -> Path:
    """Copy the files of a recipe into a new folder, to be edited.

    Raises:
        ConfigError: If there is no such recipe, or the folder holds something.
    """
    source, target = find_recipe(name), Path(folder)
    source = source.parent if source.is_file() else source
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{folder}: is not empty; give a new folder.")
    try:
        shutil.copytree(source, target, dirs_exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror}). Give another folder.") from None
    return target


def read_recipe(name: str | os.PathLike[str]) -> list[Step]:
    """The steps of a recipe, every configuration read and checked.

    Args:
        name: Folder with a `pipeline.yaml`, such a file itself, or the name of a shipped recipe.

    Raises:
        ConfigError: If a file is missing or malformed, there is no such stage, or two steps have one name.
    """
    file = _file_of(name)
    content = read_yaml(file)
    unknown = sorted(str(key) for key in content if key not in _KEYS)
    if unknown:
        raise ConfigError(f"{file}: unknown key {unknown[0]!r}. Known keys: {', '.join(_KEYS)}.")
    launch, threads = _read_launch(file, content), _read_count(file, content, "threads", "CPU threads")
    _read_jobs(file, content)
    steps: list[Step] = []
    for stage, name_of_file in _read_entries(file, content):
        step = _read_step(file, stage, name_of_file, launch, threads)
        if any(step.name == other.name for other in steps):
            raise ConfigError(f"{file}: {name_of_file!r} is listed twice; give each step a configuration of its own.")
        steps.append(step)
    return steps


def steps_at_a_time(name: str | os.PathLike[str]) -> int:
    """How many steps of a recipe run at a time, as its `pipeline.yaml` says.

    Raises:
        ConfigError: If it cannot be read.
    """
    file = _file_of(name)
    return _read_jobs(file, read_yaml(file))


def _file_of(name: str | os.PathLike[str]) -> Path:
    place = find_recipe(name)
    return place / FILE if place.is_dir() else place


def _read_entries(file: Path, content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(stage, name of its configuration file) of each step."""
    entries = content.get("stages")
    if not isinstance(entries, list) or not all(isinstance(e, dict) and len(e) == 1 for e in entries) or not entries:
        raise ConfigError(f"{file}: expected `stages:` with a list of `stage: configuration.yaml`.")
    return [(str(stage), str(name)) for stage, name in (next(iter(entry.items())) for entry in entries)]


def _read_launch(file: Path, content: Mapping[str, Any]) -> Path | None:
    given = content.get("launch")
    if given is None:
        return None
    launch = find_path(str(given))
    if not launch.is_file():
        raise ConfigError(f"{file}: launch is {given!r}, but there is no such file.")
    return launch


def _read_jobs(file: Path, content: Mapping[str, Any]) -> int:
    return _read_count(file, content, "jobs", "steps at a time") or 1


def _read_count(file: Path, content: Mapping[str, Any], name: str, what: str) -> int | None:
    count = content.get(name)
    if count is not None and (type(count) is not int or count < 1):
        raise ConfigError(f"{file}: {name} is {count!r}; expected a whole number of {what}, at least 1.")
    return count


def _read_step(file: Path, stage: str, name: str, launch: Path | None, threads: int | None) -> Step:
    if stage not in STAGES:
        raise ConfigError(f"{file}: no stage {stage!r}; known: {', '.join(STAGES)}.")
    spec, config = STAGES[stage], file.parent / name
    return Step(config.stem, spec, config, load_settings(spec.config_class(), config), launch, threads)


def between(steps: list[Step], first: str | None, last: str | None, recipe: str | os.PathLike[str]) -> list[Step]:
    """The steps from one name to another.

    Raises:
        ConfigError: If there is no step of such a name, or they stand the other way round.
    """
    names = [step.name for step in steps]
    for option, name in (("--from", first), ("--until", last)):
        if name is not None and name not in names:
            raise ConfigError(f"{option} {name}: {recipe} has no such step. Its steps: {', '.join(names)}.")
    begin = names.index(first) if first else 0
    end = names.index(last) + 1 if last else len(names)
    if begin >= end:
        raise ConfigError(f"--from {first} comes after --until {last} in {recipe}; swap them.")
    return steps[begin:end]


def steps_before(steps: Sequence[Step], settings: Settings) -> list[Step]:
    """Those steps whose output is read with these settings, directly or through other steps, in order."""
    by_output = {step.output: step for step in steps if step.output}
    needed: set[str] = set()
    waiting = [settings]
    while waiting:
        for path in _read_paths(waiting.pop()):
            step = by_output.get(path)
            if step is not None and step.name not in needed:
                needed.add(step.name)
                waiting.append(step.settings)
    return [step for step in steps if step.name in needed]


def _read_paths(settings: Settings) -> Iterator[str]:
    """What is read, and the folders that it lies in: the model of a seed lies in the output of its training."""
    for path in settings.named_paths():
        place = Path(os.path.normpath(path))
        yield from map(str, (place, *place.parents))


def ensure_before(recipe: Path, config: Settings) -> None:
    """Make what a configuration reads of a recipe's outputs, where it is missing or stale.

    In a launch of several processes the first one does it and the others wait. What the stages print goes to standard
    error, so that standard output holds the caller's own alone.

    Raises:
        SystemExit: With the status of the first stage that fails.
    """
    join_for_training()  # the group that a trainer may use later
    if is_main_process():
        for step in steps_before(read_recipe(recipe), config):
            if step.is_current():
                continue
            logger.info("First %s: %s", step.name, shown_command(step.words()))
            done = run_words(step.words(), step.threads, sys.stderr)
            if done.returncode:
                logger.error("Stage %s, which this one needs, failed with status %d.", step.name, done.returncode)
                raise SystemExit(done.returncode)
    wait_for_everyone()
