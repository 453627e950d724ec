"""A recipe's plan: each step, for each of its seeds, as a job with settings, output and dependencies.

OUTPUT/STEP                       output of a step, unless it names another one
OUTPUT/STEP/seed-N                output of a step that is run with several seeds; of one that makes predictions
                                  seed-N/predictions, where a report looks for the seeds of a recommender
OUTPUT/STEP/seed-N.yaml           its settings
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.paths import find_path
from minionerec.core.values import convert, read_yaml
from minionerec.pipeline.cli.launch import stage_words
from minionerec.pipeline.cli.recipes import PLACEHOLDER, RUNS, Recipe, RecipeStep, find_recipe, located, read_recipe
from minionerec.pipeline.settings import Settings, StageConfig, file_values, typed_values
from minionerec.pipeline.stages import StageSpec

_PREDICTIONS = "predictions"


class Key(NamedTuple):
    """Key of a job: its step, and its seed where the step is run with several."""

    step: str
    seed: int | None = None

    @property
    def title(self) -> str:
        """Name in messages."""
        return self.step if self.seed is None else f"{self.step}, seed {self.seed}"


@dataclass(frozen=True)
class Job:
    """A step of a plan, ready to be started.

    Attributes:
        key: Step and seed.
        spec: Stage of the step.
        settings: Settings of the stage.
        config: The value of `--config`: RECIPE#STEP, or the file that the settings are written to, if they are not
            those of the recipe's file.
        values: Settings that are given, without defaults.
        needs: Jobs whose outputs it reads.
        launch: File for `accelerate launch --config_file`; chosen by the machine if None.
        threads: CPU threads of its process; the library's own choice if None.
        log: Log file; None if it prints to the terminal.
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
        """Name in messages."""
        return self.key.title

    @property
    def output(self) -> Path | None:
        """Output; None if it only prints."""
        output = isinstance(self.settings, StageConfig) and self.settings.output
        return Path(os.path.normpath(output)) if output else None

    @property
    def folder(self) -> Path:
        """Output of a job that writes one."""
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
        if self.config.endswith(".yaml"):
            file = Path(self.config)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomic(file, f"# {self.title}\n{yaml.safe_dump(dict(self.values), sort_keys=False)}")
        elif config_values(type(self.settings), self.config) != self.values:
            raise ConfigError(f"{self.config}: was changed since this run began. Run the same command again.")


@dataclass
class Plan:
    """Makes the jobs of a recipe.

    Attributes:
        recipe: The recipe.
        seeds: Seeds of all trainings, those that name one too; the recipe's, of those that name none, if empty.
        in_files: Whether each job's settings are written to a file, as they are not those of the recipe's file.
        above: RECIPE#STEP whose settings are being read, to detect a recipe that refers to itself.
    """

    recipe: Recipe
    seeds: Sequence[int] = ()
    in_files: bool = False
    above: tuple[str, ...] = ()

    @cached_property
    def step_seeds(self) -> dict[str, Sequence[int | None]]:
        """Step to the seeds that it is run with, None alone if it is run once.

        Trainings that take a seed are repeated, and steps that read the output of such a step.
        """
        step_seeds: dict[str, Sequence[int | None]] = {}
        seeds = self.seeds or self.recipe.settings.seeds
        for name, step in self.recipe.steps.items():
            filler = _Filler(self, step)
            step_seeds[name] = [None]
            if seeds and step.spec.seeds != "all":
                filler.fill([step.config, step.values], step.where)
                if self._takes_seed(step) or any(step_seeds[read] == seeds for read in filler.steps):
                    step_seeds[name] = seeds
        return step_seeds

    def _takes_seed(self, step: RecipeStep) -> bool:
        """Whether a step is a training that the seed of a recipe is given to."""
        return step.spec.seeds == "each" and (bool(self.seeds) or "seed" not in step.values)

    def all(self) -> dict[Key, Job]:
        """Make all jobs, in the order of the steps, one seed after another: an early stop leaves whole seeds.

        Raises:
            ConfigError: If a placeholder is unknown, settings do not fit, or two steps write one output.
        """
        jobs: dict[Key, Job] = {}
        ranks: dict[Key, int] = {}
        for name in self.recipe.steps:
            for rank, seed in enumerate(self.step_seeds[name]):
                job = jobs[Key(name, seed)] = self.job(name, seed)
                ranks[job.key] = max([rank, *(ranks[need] for need in job.needs)])
        by_output = _by_output(jobs)
        for key in sorted(jobs, key=ranks.__getitem__):
            job = jobs.pop(key)
            needs = dict.fromkeys([*job.needs, *_read_jobs(job.settings, by_output)])
            jobs[key] = replace(job, needs=tuple(need for need in needs if need != key))
        try:
            TopologicalSorter({key: job.needs for key, job in jobs.items()}).prepare()
        except CycleError as error:
            title = error.args[1][0].title
            raise ConfigError(f"{title} needs itself, by way of other steps. Change its inputs.") from None
        return jobs

    def job(self, name: str, seed: int | None = None) -> Job:
        """The job of a step, with one of its seeds.

        Raises:
            ConfigError: If a placeholder is unknown or settings do not fit.
        """
        step, common = self.recipe.steps[name], self.recipe.settings
        filler = _Filler(self, step, seed)
        where = f"{step.where}.config"
        config = convert(filler.fill(step.config, where), str, where)
        with located(where):
            values = config_values(step.kind, config, self.recipe.file.parent, self.above) if config else {}
        for setting, value in step.values.items():
            where = step.locations[setting]
            values |= typed_values(step.kind, {setting: filler.fill(value, f"{where}: {setting}")}, where)
        if seed is not None and self._takes_seed(step):
            values["seed"] = seed
        if step.writes and "output" not in step.values and not common.output:
            raise ConfigError(f"{step.where}: has no output; give it one, or the recipe an `output` for all steps.")
        if step.writes and ("output" not in step.values or seed is not None):
            values["output"] = str(self.output(step, seed))
        with located([step.where, *step.locations.values()][-1]):
            settings = step.kind(**values)
        is_separate = self.in_files or seed is not None  # RECIPE#STEP would have other settings
        config = f"{self.folder(step, seed)}.yaml" if is_separate else f"{self.recipe.name}#{name}"
        needs = [
            Key(read, other)
            for read in dict.fromkeys(filler.steps)
            for other in ([seed] if seed in self.step_seeds[read] else self.step_seeds[read])
        ]
        return Job(
            Key(name, seed), step.spec, settings, config, values, tuple(needs), self.recipe.launch, common.threads
        )

    def folder(self, step: RecipeStep, seed: int | None = None) -> Path:
        """The folder of a step: the one that it names or that has its name, and with a seed `seed-N` below it."""
        folder = self.recipe.folder / step.name
        if step.writes and "output" in step.values:
            where = f"{step.locations['output']}: output"
            folder = Path(convert(_Filler(self, step, seed).fill(step.values["output"], where), str, where))
        return folder if seed is None else folder / f"seed-{seed}"

    def output(self, step: RecipeStep, seed: int | None = None) -> Path:
        """The output of a step that writes one; without a seed, of a step with several, the folder of all of them."""
        is_below = seed is not None and getattr(step.kind, "kind", "") == _PREDICTIONS
        return self.folder(step, seed) / _PREDICTIONS if is_below else self.folder(step, seed)


def config_values(
    kind: type[Settings], config: str, beside: Path | None = None, above: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The settings that `config` names: of a file, or RECIPE#STEP, with placeholders filled.

    Args:
        kind: Class of the settings.
        config: A path, or RECIPE#STEP.
        beside: Folder that is searched too: for a recipe first, for a file last.
        above: References that led here.

    Raises:
        ConfigError: If there are none, the step is of another stage, or they do not fit.
    """
    if "#" not in config or Path(config).is_file():
        file = find_path(config)
        if beside is not None and not file.exists() and (beside / config).is_file():
            file = beside / config
        if {"steps", "base"} & set(read_yaml(file)):
            raise ConfigError(f"{config}: is a recipe; name the step whose settings are meant: --config {config}#STEP.")
        return file_values(kind, str(file))
    recipe_name, _, step_name = config.rpartition("#")
    recipe = read_recipe(find_recipe(recipe_name, beside))
    reference = f"{recipe.file.resolve()}#{step_name}"
    if reference in above:
        raise ConfigError(f"{config} takes its settings from itself, by way of other steps. Change one.")
    step = recipe.steps.get(step_name)
    if step is None:
        raise ConfigError(f"{config}: {recipe.name} has no step {step_name!r}; its steps: {', '.join(recipe.steps)}.")
    if step.kind is not kind:
        raise ConfigError(f"{config}: is a step of minionerec {step.spec.name}, whose settings are others.")
    plan = Plan(recipe, above=(*above, reference))
    return dict(plan.job(step_name, plan.step_seeds[step_name][0]).values)


def plan_of(name: str | os.PathLike[str]) -> dict[Key, Job]:
    """The jobs of a recipe.

    Args:
        name: Path of its file, or the name of a shipped one.

    Raises:
        ConfigError: If something in it is wrong.
    """
    return Plan(read_recipe(name)).all()


@dataclass
class _Filler:
    """Fills the placeholders in the texts of one step.

    Attributes:
        plan: The plan.
        step: The step.
        seed: Seed of the step, if it is run with several.
        steps: Names of the steps whose outputs were filled in.
    """

    plan: Plan
    step: RecipeStep
    seed: int | None = None
    steps: list[str] = field(default_factory=list)

    def fill(self, value: Any, where: str, variables: tuple[str, ...] = ()) -> Any:
        """A value with all placeholders filled, in what it holds too; what is filled in is not filled again.

        Args:
            value: The value; one that is only a placeholder gets the type of what is filled in.
            where: File, line and key, for messages.
            variables: The variables that led to it.
        """
        if isinstance(value, str):
            whole = PLACEHOLDER.fullmatch(value)
            if whole is not None:
                return self._value(whole[1], where, variables)
            return PLACEHOLDER.sub(lambda match: str(self._value(match[1], where, variables)), value)
        if isinstance(value, dict):
            name = next(iter(value), None)
            if value == {name: None} and name in self._known():
                raise ConfigError(f'{where} is a mapping; put the placeholder in quotes: "{{{name}}}".')
            return {name: self.fill(entry, f"{where}: {name}", variables) for name, entry in value.items()}
        return [self.fill(entry, where, variables) for entry in value] if isinstance(value, list) else value

    def _known(self) -> list[str]:
        """The placeholders that the step may name."""
        recipe = self.plan.recipe
        names = list(recipe.steps)
        runs = [RUNS] if recipe.settings.output else []
        return [*runs, *recipe.variables, *names[: names.index(self.step.name)]]

    def _value(self, name: str, where: str, variables: tuple[str, ...]) -> Any:
        recipe = self.plan.recipe
        if name in variables:
            circle = " -> ".join([*variables[variables.index(name) :], name])
            raise ConfigError(f"{where}: the variables {circle} name each other in a circle. Write one of them out.")
        if name not in self._known():
            known = ", ".join(f"{{{word}}}" for word in self._known()) or "none"
            raise ConfigError(f"{where} names {{{name}}}, which is unknown here; known: {known}.")
        if name == RUNS:
            return str(recipe.folder)
        if name in recipe.variables:
            return self.fill(recipe.variables[name], where, (*variables, name))
        if not recipe.steps[name].writes:
            raise ConfigError(f"{where} names {{{name}}}, but that step only prints.")
        self.steps.append(name)
        seed = None if self.seed is None or self.seed not in self.plan.step_seeds[name] else self.seed
        return os.path.normpath(self.plan.output(recipe.steps[name], seed))


def selected_jobs(
    plan: Plan, only: Sequence[str] | None = None, first: str | None = None, last: str | None = None
) -> dict[Key, Job]:
    """Select jobs of a plan; outputs of other steps are used as they are. The whole recipe is checked.

    Args:
        plan: The plan.
        only: Steps that are selected, with their dependencies; all if None.
        first: Of these, the step to begin with.
        last: Of these, the step to end with.

    Raises:
        ConfigError: If there is no such step, they are in the wrong order, or the recipe is wrong.
    """
    jobs, names, recipe = plan.all(), list(plan.recipe.steps), plan.recipe.name

    def position(option: str, name: str) -> int:
        if name not in names:
            raise ConfigError(f"{option} {name}: {recipe} has no such step. Its steps: {', '.join(names)}.")
        return names.index(name)

    if only is not None:
        wanted = {names[position("--only", name)] for name in only}
        jobs = _with_needs(jobs, [key for key in jobs if key.step in wanted])
        names = [name for name in names if any(key.step == name for key in jobs)]
    begin = 0 if first is None else position("--from", first)
    end = len(names) if last is None else position("--until", last) + 1
    if begin >= end:
        raise ConfigError(f"--from {first} comes after --until {last} in {recipe}; swap them.")
    jobs = {key: job for key, job in jobs.items() if key.step in names[begin:end]}
    return {key: replace(job, needs=tuple(need for need in job.needs if need in jobs)) for key, job in jobs.items()}


def jobs_before(jobs: Mapping[Key, Job], settings: Settings) -> dict[Key, Job]:
    """Select the jobs whose output is read with these settings, directly or through others, in order."""
    return _with_needs(jobs, _read_jobs(settings, _by_output(jobs)))


def _with_needs(jobs: Mapping[Key, Job], keys: Iterable[Key]) -> dict[Key, Job]:
    """Select jobs with all of their dependencies, in the same order."""
    needed, waiting = set[Key](), list(keys)
    while waiting:
        key = waiting.pop()
        if key not in needed:
            needed.add(key)
            waiting += jobs[key].needs
    return {key: job for key, job in jobs.items() if key in needed}


def _by_output(jobs: Mapping[Key, Job]) -> dict[Path, Key]:
    """Output of each job to its key.

    Raises:
        ConfigError: If two write one output, or one writes inside another's.
    """
    by_output: dict[Path, Key] = {}
    writing = [(job.output, key) for key, job in jobs.items() if job.output is not None]
    for output, key in sorted(writing, key=lambda pair: len(pair[0].parts)):
        outer = next((by_output[folder] for folder in (output, *output.parents) if folder in by_output), None)
        if outer is not None:
            raise ConfigError(
                f"{key.title} writes {output}, and {outer.title} writes {jobs[outer].output}; give each an output of "
                "its own, none inside another."
            )
        by_output[output] = key
    return by_output


def _read_jobs(settings: Settings, by_output: Mapping[Path, Key]) -> list[Key]:
    """The jobs whose outputs settings name by path, or a folder in them, such as the `model` of a training."""
    paths = [Path(os.path.normpath(path)) for path in settings.named_paths()]
    folders = [folder for path in paths for folder in (path, *path.parents)]
    return list(dict.fromkeys(by_output[folder] for folder in folders if folder in by_output))
