"""A recipe's plan: each step, for each of its seeds, as a job with settings, output and dependencies.

OUTPUT/STEP                       output of a step, unless it names another one
OUTPUT/STEP/seed-N                output of a step that is run with several seeds; of one that makes predictions
                                  seed-N/predictions, where a report looks for the seeds of a recommender
OUTPUT/STEP/seed-N.yaml           its settings
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.paths import find_path
from minionerec.core.values import read_yaml
from minionerec.pipeline.cli.launch import stage_words
from minionerec.pipeline.cli.recipes import (
    PLACEHOLDER,
    Recipe,
    RecipeStep,
    at,
    find_recipe,
    placeholders,
    read_recipe,
    settings_file,
)
from minionerec.pipeline.settings import Settings, StageConfig, file_values, typed_values
from minionerec.pipeline.stages import StageSpec

_PREDICTIONS = "predictions"


class Key(NamedTuple):
    """Key of a job: its step, and its seed where the step is run with several."""

    step: str
    seed: int | None = None

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.step if self.seed is None else f"{self.step}, seed {self.seed}"


@dataclass(frozen=True)
class Job:
    """One step of a plan, ready to be started.

    Attributes:
        key: Its step.
        spec: The stage.
        settings: Its settings.
        config: What `--config` names: RECIPE#STEP, or, of one with a seed, the file that the settings are written to.
        values: The settings that are given, without defaults.
        needs: Its dependencies: the steps whose outputs it reads.
        launch: File for `accelerate launch --config_file`; chosen by the machine if None.
        threads: CPU threads of its process; the library's own choice if None.
        log: Its log file; None where there is none.
    """

    key: Key
    spec: StageSpec
    settings: Settings
    config: str
    values: Mapping[str, Any]
    needs: tuple[Key, ...] = ()
    launch: Path | None = None
    threads: int | None = None
    log: Path | None = None

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.key.title

    @property
    def output(self) -> Path | None:
        """Its output, None where it writes nothing."""
        writes = isinstance(self.settings, StageConfig) and self.settings.output
        return Path(os.path.normpath(writes)) if writes else None

    @property
    def folder(self) -> Path:
        """The output of a job that writes one."""
        return Path(str(self.output))

    def words(self) -> list[str]:
        """The words that run it, after the name of Python's interpreter."""
        return stage_words(
            self.spec.name, self.config, launched=self.spec.launched, launch=self.launch, threads=self.threads
        )

    def is_current(self) -> bool:
        """Whether it need not be started; errors are left to the stage itself to report."""
        try:
            return isinstance(self.settings, StageConfig) and bool(self.output) and self.settings.up_to_date()
        except (MinioneRecError, OSError, KeyError):
            return False

    def prepare(self) -> None:
        """Write the file of the step's settings, unless its recipe holds them.

        Raises:
            ConfigError: If its recipe holds others now.
        """
        if "#" in self.config:
            if recipe_values(type(self.settings), self.config) != self.values:
                raise ConfigError(f"{self.config}: was changed since this run began. Run the same command again.")
        else:
            file = Path(self.config)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomic(file, f"# {self.title}\n{yaml.safe_dump(dict(self.values), sort_keys=False)}")


@dataclass
class Plan:
    """Makes the jobs of a recipe.

    Attributes:
        recipe: The recipe.
        seeds: Seeds of all trainings, those that name one too; the recipe's, of those that name none, if empty.
        in_files: Whether each job's settings are written to a file, as they are not those of the recipe's file.
        jobs: The jobs made so far.
        before: RECIPE#STEP whose settings are being read, to detect a recipe that refers to itself.
    """

    recipe: Recipe
    seeds: tuple[int, ...] = ()
    in_files: bool = False
    jobs: dict[Key, Job] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    _open: list[Key] = field(default_factory=list, repr=False)
    _read: dict[tuple[type[Settings], str], dict[str, Any]] = field(default_factory=dict, repr=False)

    def all(self) -> dict[Key, Job]:
        """Every job, in the order of the steps; one seed after another, so that an early stop leaves every step one.

        Raises:
            ConfigError: If a placeholder is unknown, settings do not fit, or two steps write one output.
        """
        for seed in self.all_seeds:
            for name in self.recipe.steps:
                if self.repeats(name):
                    self.job(name, seed)
                elif seed == self.all_seeds[-1]:
                    self.job(name)
        return _with_paths(self.jobs)

    @property
    def all_seeds(self) -> tuple[int | None, ...]:
        """The seeds that steps are repeated with; None alone without any."""
        return self.seeds or tuple(self.recipe.settings.seeds) or (None,)

    def repeats(self, name: str) -> bool:
        """Whether a step is run with each seed: a training that takes it, and what reads such a step's output."""
        step = self.recipe.steps[name]
        if self.all_seeds == (None,) or step.once or step.spec.seeds == "all":
            return False
        if self._takes_seed(step):
            return True
        names = list(self.recipe.steps)
        before = names[: names.index(name)]
        return any(read in before and self.repeats(read) for read in self._read_by(step))

    def _takes_seed(self, step: RecipeStep) -> bool:
        """Whether a step is a training that the seed of a recipe is given to."""
        return step.spec.seeds == "each" and (bool(self.seeds) or "seed" not in step.values)

    def _read_by(self, step: RecipeStep) -> set[str]:
        """The placeholders of a step, in the variables that it names, too."""
        names, waiting = set[str](), [*placeholders([step.config, step.values])]
        while waiting:
            name = waiting.pop()
            if name not in names:
                names.add(name)
                waiting += placeholders(self.recipe.variables.get(name))
        return names

    def job(self, name: str, seed: int | None = None) -> Job:
        """The job of a step, made on first use."""
        key = Key(name, seed)
        step = self.recipe.steps[name]
        if key in self._open:
            raise ConfigError(f"{step.where}: needs itself, by way of other steps. Change its placeholders.")
        if key not in self.jobs:
            self._open.append(key)
            self.jobs[key] = self._made(key, step)
            self._open.remove(key)
        return self.jobs[key]

    def _made(self, key: Key, step: RecipeStep) -> Job:
        text = Filled(self, key, step)
        kind = step.kind
        given: dict[str, Any] = {}
        config = text.of(step.config, f"{step.where}.config")
        if config:
            given = self._config_values(kind, config, f"{step.where}.config")
        values = dict(given)
        for name, value in step.values.items():
            where = step.locations[name]
            values |= typed_values(kind, {name: text.of(value, f"{where}: {name}")}, where)
        if key.seed is not None and self._takes_seed(step):
            values["seed"] = key.seed
        base = self.recipe.folder / key.step
        if step.writes and "output" not in step.values:
            if not self.recipe.settings.output:
                raise ConfigError(f"{step.where}: has no output; give it one, or the recipe an `output` for all steps.")
            values["output"] = str(base)
        if step.writes:
            base = Path(values["output"])
        if key.seed is not None:
            base = base / f"seed-{key.seed}"
            if step.writes:
                values["output"] = str(base / _PREDICTIONS if getattr(kind, "kind", "") == _PREDICTIONS else base)
        settings = at([step.where, *step.locations.values()][-1], lambda: kind(**values))
        in_file = self.in_files or key.seed is not None  # RECIPE#STEP would have other settings
        common = self.recipe.settings
        launch = text.of(common.launch, f"{self.recipe.file}: launch") if common.launch else None
        return Job(
            key,
            step.spec,
            settings,
            f"{base}.yaml" if in_file else f"{self.recipe.name}#{step.name}",
            values,
            tuple(text.needs),
            launch and _launch_file(self.recipe, launch),
            common.threads,
        )

    def _config_values(self, kind: type[Settings], config: str, where: str) -> dict[str, Any]:
        """The settings of a file, or RECIPE#STEP, which is read once for all seeds."""
        beside = self.recipe.file.parent
        if (kind, config) not in self._read:
            if "#" in config:
                found = at(where, lambda: recipe_values(kind, config, beside, self.before))
            else:
                found = file_values(kind, str(settings_file(config, beside)))
            self._read[kind, config] = found
        return self._read[kind, config]


def recipe_values(
    kind: type[Settings], reference: str, beside: Path | None = None, before: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The settings of a step of a recipe, placeholders filled.

    Args:
        kind: Class of the settings that are wanted.
        reference: RECIPE#STEP.
        beside: Folder that is searched for a recipe first.
        before: References that led here.

    Raises:
        ConfigError: If there is no such recipe or step, or the step is of another stage.
    """
    name, _, step_name = reference.rpartition("#")
    recipe = read_recipe(find_recipe(name, beside))
    own = f"{recipe.file.resolve()}#{step_name}"
    if own in before:
        raise ConfigError(f"{reference} takes its settings from itself, by way of other steps. Change one.")
    found = recipe.steps.get(step_name)
    if found is None:
        names = ", ".join(recipe.steps)
        raise ConfigError(f"{reference}: {recipe.name} has no step {step_name!r}; its steps: {names}.")
    if found.kind is not kind:
        raise ConfigError(f"{reference}: is a step of minionerec {found.stage}, whose settings are others.")
    plan = Plan(recipe, before=(*before, own))
    return dict(plan.job(step_name, plan.all_seeds[0] if plan.repeats(step_name) else None).values)


def config_values(kind: type[Settings], config: str) -> dict[str, Any]:
    """The settings that `--config` names: of a file, or RECIPE#STEP.

    Raises:
        ConfigError: If there are none, or they do not fit.
    """
    if "#" in config and not Path(config).is_file():
        return recipe_values(kind, config)
    file = find_path(config)
    if {"steps", "base"} & set(read_yaml(file)):
        raise ConfigError(f"{config}: is a recipe; name the step whose settings are meant: --config {config}#STEP.")
    return file_values(kind, config)


def plan_of(name: str | os.PathLike[str]) -> dict[Key, Job]:
    """The jobs of a recipe.

    Args:
        name: Path of its file, or the name of a shipped one.

    Raises:
        ConfigError: If something in it is wrong.
    """
    return Plan(read_recipe(name)).all()


@dataclass
class Filled:
    """Fills the placeholders in the texts of one step, and collects the jobs that they name."""

    plan: Plan
    key: Key
    step: RecipeStep
    needs: list[Key] = field(default_factory=list)
    _variables: list[str] = field(default_factory=list, repr=False)

    def of(self, value: Any, where: str) -> Any:
        """A value with all placeholders filled, in what it holds too; what is filled in is not filled again."""
        if isinstance(value, str):
            lone = PLACEHOLDER.fullmatch(value)
            if lone is not None and lone[1] in self.plan.recipe.variables:
                return self._variable(lone[1], where)
            return PLACEHOLDER.sub(lambda match: self._value(match[1], where), value)
        if isinstance(value, dict):
            lone_names = [name for name, entry in value.items() if entry is None and isinstance(name, str)]
            if len(value) == 1 and lone_names and lone_names[0] in self._known():
                raise ConfigError(f'{where} is a mapping; put the placeholder in quotes: "{{{lone_names[0]}}}".')
            return {name: self.of(entry, f"{where}: {name}") for name, entry in value.items()}
        return [self.of(entry, where) for entry in value] if isinstance(value, list) else value

    def _known(self) -> list[str]:
        return [*self._words(), *self.plan.recipe.variables, *self._before()]

    def _words(self) -> dict[str, str]:
        words = {"runs": str(self.plan.recipe.folder)} if self.plan.recipe.settings.output else {}
        return words | ({} if self.key.seed is None else {"seed": str(self.key.seed)})

    def _before(self) -> list[str]:
        """The steps that come before."""
        names = list(self.plan.recipe.steps)
        return names[: names.index(self.step.name)]

    def _variable(self, name: str, where: str) -> Any:
        """The value of a variable, which may hold others."""
        if name in self._variables:
            ring = " -> ".join([*self._variables[self._variables.index(name) :], name])
            raise ConfigError(f"{where}: the variables {ring} name each other in a circle. Write one of them out.")
        self._variables.append(name)
        try:
            return self.of(self.plan.recipe.variables[name], where)
        finally:
            self._variables.pop()

    def _value(self, name: str, where: str) -> str:
        if name in self._words():
            return self._words()[name]
        if name in self.plan.recipe.variables:
            return str(self._variable(name, where))
        if name in self._before():
            return self._output(name, where)
        known = ", ".join(f"{{{word}}}" for word in self._known())
        raise ConfigError(f"{where} names {{{name}}}, which is unknown here; known: {known or 'none'}.")

    def _output(self, name: str, where: str) -> str:
        """The output of a step: with the seed of this one, or, of a step over seeds, the folder of all seeds."""
        plan = self.plan
        repeats = plan.repeats(name)
        seeds = [None] if not repeats else list(plan.all_seeds) if self.key.seed is None else [self.key.seed]
        jobs = [plan.job(name, seed) for seed in seeds]
        if jobs[0].output is None:
            raise ConfigError(f"{where} names {{{name}}}, but that step only prints.")
        folder = jobs[0].folder
        if repeats and self.key.seed is None:
            folder = next(parent for parent in (folder, *folder.parents) if parent.name == f"seed-{seeds[0]}").parent
        self.needs += [job.key for job in jobs if job.key not in self.needs]
        return str(folder)


def chosen(jobs: Mapping[Key, Job], wanted: Iterable[Key]) -> dict[Key, Job]:
    """Some jobs, with all of their dependencies, in the same order."""
    needed: set[Key] = set()
    waiting = list(wanted)
    while waiting:
        key = waiting.pop()
        if key not in needed:
            needed.add(key)
            waiting += jobs[key].needs
    return {key: job for key, job in jobs.items() if key in needed}


def between(jobs: Mapping[Key, Job], first: str | None, last: str | None, recipe: str) -> dict[Key, Job]:
    """The jobs of the steps from one name to another; outputs of other steps are used as they are.

    Raises:
        ConfigError: If there is no step of such a name, or they are in the wrong order.
    """
    names = list(dict.fromkeys(key.step for key in jobs))
    for option, name in (("--from", first), ("--until", last)):
        if name is not None and name not in names:
            raise ConfigError(f"{option} {name}: {recipe} has no such step. Its steps: {', '.join(names)}.")
    begin = names.index(first) if first else 0
    end = names.index(last) + 1 if last else len(names)
    if first and last and begin >= end:
        raise ConfigError(f"--from {first} comes after --until {last} in {recipe}; swap them.")
    found = {key: job for key, job in jobs.items() if key.step in names[begin:end]}
    return {key: replace(job, needs=tuple(need for need in job.needs if need in found)) for key, job in found.items()}


def jobs_before(jobs: Mapping[Key, Job], settings: Settings) -> dict[Key, Job]:
    """Those jobs whose output is read with these settings, directly or through others, in order."""
    return chosen(jobs, _read_of(settings, _by_output(jobs)))


def _launch_file(recipe: Recipe, name: str) -> Path:
    launch = find_path(name)
    if not launch.is_file():
        raise ConfigError(f"{recipe.file}: launch is {name!r}, but there is no such file.")
    return launch


def _by_output(jobs: Mapping[Key, Job]) -> dict[str, Key]:
    """Output of each job to its key.

    Raises:
        ConfigError: If two write one output.
    """
    found: dict[str, Key] = {}
    for key, job in jobs.items():
        other = key if job.output is None else found.setdefault(str(job.output), key)
        if other != key:
            raise ConfigError(f"{other.title} and {key.title} both write {job.output}; give each an output of its own.")
    for output, key in found.items():
        around = next((found[str(folder)] for folder in Path(output).parents if str(folder) in found), None)
        if around is not None:
            raise ConfigError(
                f"{key.title} writes {output}, inside the output of {around.title}; give each an output of its own."
            )
    return found


def _read_of(settings: Settings, by_output: Mapping[str, Key]) -> list[Key]:
    """The jobs whose outputs settings name by path, or a folder in them, such as the `model` of a training."""
    found = (
        by_output.get(os.path.normpath(folder)) for path in settings.named_paths() for folder in (path, *path.parents)
    )
    return list(dict.fromkeys(key for key in found if key is not None))


def _with_paths(jobs: Mapping[Key, Job]) -> dict[Key, Job]:
    """The jobs, with dependencies also on those whose outputs their settings name by path."""
    by_output = _by_output(jobs)
    found = {}
    for key, job in jobs.items():
        read = [need for need in _read_of(job.settings, by_output) if need != key]
        found[key] = replace(job, needs=tuple(dict.fromkeys([*job.needs, *read])))
    _check_order(found)
    return found


def _check_order(jobs: Mapping[Key, Job]) -> None:
    """Check that no step depends on itself through others."""
    done: set[Key] = set()
    left = dict(jobs)
    while left:
        ready = [key for key, job in left.items() if done.issuperset(job.needs)]
        if not ready:
            raise ConfigError(f"{next(iter(left)).title} needs itself, by way of other steps. Change its inputs.")
        done.update(ready)
        left = {key: job for key, job in left.items() if key not in done}
