"""A recipe's plan: each step of each case, data set and seed as a job, with settings, output and dependencies.

OUTPUT/STEP                                   output of a step of a recipe without cases, unless it names another one;
                                              of a training with the recipe's seeds, the folder of its seed-N and of
                                              the settings of each, seed-N.yaml

OUTPUT/DATA/prepared/STEP                     output made once for a data set, unless its step names another one
OUTPUT/DATA/CASE/STEP/seed-N                  output of a step; of one that is run once, STEP alone
OUTPUT/DATA/CASE/STEP/seed-N/predictions      predictions, where comparisons look for the seeds of a recommender
OUTPUT/DATA/CASE/STEP/seed-N.yaml, .log       the step's settings and its log
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from minionerec.cli.launch import stage_words
from minionerec.cli.recipes import (
    OF_CASE,
    OF_DATA,
    PLACEHOLDER,
    Case,
    Recipe,
    RecipeStep,
    all_steps,
    at,
    find_recipe,
    read_recipe,
    settings_file,
)
from minionerec.core.artefacts import write_text_atomic
from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.paths import find_path
from minionerec.core.settings import Settings, StageConfig, file_values, typed_values
from minionerec.core.stages import StageSpec
from minionerec.core.values import read_yaml

PREPARED = "prepared"
MEASURED = ("predictions", "preference")
"""Kinds of artefacts of one seed that tables compare."""
TRAINED = ("sequential_model",)
"""Kinds of trainings that write predictions beside the model, in OUTPUT/predictions."""
_SEEDED = ("checkpoint", "sids", "preference", *TRAINED)
"""Kinds of artefacts that are made with a case's seed."""


class Key(NamedTuple):
    """Key of a step: its data set, its case (`PREPARED`: the data set itself), and its seed, if any.

    In a recipe without cases both are "".
    """

    data: str
    case: str
    step: str
    seed: int | None

    @property
    def title(self) -> str:
        """Its name in messages."""
        name = "/".join(part for part in self[:3] if part)
        return name if self.seed is None else f"{name}, seed {self.seed}"


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

    @property
    def ranks(self) -> bool:
        """Whether tables compare its output."""
        kind = type(self.settings)
        return getattr(kind, "kind", "") in (*MEASURED, *TRAINED)

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
        seeds: The seeds of cases that name none of their own; the recipe's if None.
        jobs: The jobs made so far.
        before: RECIPE#STEP whose settings are being read, to detect a recipe that refers to itself.
    """

    recipe: Recipe
    seeds: tuple[int, ...] | None = None
    jobs: dict[Key, Job] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    _open: list[Key] = field(default_factory=list, repr=False)
    _read: dict[tuple[type[Settings], str], dict[str, Any]] = field(default_factory=dict, repr=False)

    def with_case(self, case: Case) -> "Plan":
        """The plan of the recipe with one case more; it has the jobs made so far."""
        recipe = replace(self.recipe, cases={**self.recipe.cases, case.name: case})
        return replace(self, recipe=recipe, jobs=dict(self.jobs))

    def all(self) -> dict[Key, Job]:
        """Every job; prepared data first, then one seed after another, so that an early stop leaves every case one.

        Raises:
            ConfigError: If a placeholder is unknown, settings do not fit, or two steps write one output.
        """
        for data in self.recipe.data:
            for step in self.recipe.data[data]:
                self.job(data, None, step.name, None)
        most = max(len(self.seeds_of(case)) for case in self.recipe.cases.values())
        for number in range(most):
            for data in self.recipe.data:
                for case in self.recipe.cases.values():
                    seeds = self.seeds_of(case)
                    if data in case.data and number < len(seeds):
                        for step in case.steps:
                            self.job(data, case, step.name, seeds[number])
        return _with_paths(self.jobs)

    def seeds_of(self, case: Case) -> tuple[int | None, ...]:
        """The seeds that a case is run with; None alone in a recipe without cases."""
        return (case.seeds if case.own_seeds or self.seeds is None else self.seeds) or (None,)

    def repeats(self, step: RecipeStep) -> bool:
        """Whether a recipe without cases runs a step with each of its seeds: a training that names no seed itself."""
        return bool(self.recipe.settings.seeds) and not step.once and "seed" not in step.values and _takes_seed(step)

    def job(self, data: str, case: Case | None, name: str, seed: int | None) -> Job:
        """The job of a step of a case (None: of a data set), made on first use."""
        while case is not None and case.base is not None and all(step.name != name for step in case.steps):
            case = self.recipe.cases[case.base]
        steps = self.recipe.data[data] if case is None else case.steps
        step = next(step for step in steps if step.name == name)
        shared = case is None or step.once or not (self.recipe.has_cases or self.repeats(step))
        key = Key(data, PREPARED if case is None else case.name, name, None if shared else seed)
        if key in self._open:
            raise ConfigError(f"{step.where}: needs itself, by way of other steps. Change its placeholders.")
        if key not in self.jobs:
            self._open.append(key)
            self.jobs[key] = self._made(key, case, step)
            self._open.remove(key)
        return self.jobs[key]

    def _made(self, key: Key, case: Case | None, step: RecipeStep) -> Job:
        text = Filled(self, key, case, step)
        kind, cases = step.kind, self.recipe.has_cases
        given: dict[str, Any] = {}
        config = text.of(step.config, f"{step.where}.config")
        if config:
            given = self._config_values(kind, config, f"{step.where}.config")
        values = dict(given)
        for name, value in step.values.items():
            where = step.locations[name]
            values |= typed_values(kind, {name: text.of(value, f"{where}: {name}")}, where)
        if key.seed is not None and "seed" not in step.values and _takes_seed(step):
            values["seed"] = key.seed
        base = self.recipe.folder / key.data / key.case / key.step
        base = base if key.seed is None else base / f"seed-{key.seed}"
        if not cases and key.seed is not None and "output" in step.values:
            values["output"] = str(Path(values["output"]) / f"seed-{key.seed}")
        if cases and case is not None and getattr(kind, "kind", "") in MEASURED:
            _check_predictions(key, step)
            values["output"] = str(base / "predictions")
        elif step.writes and "output" not in step.values and (case is not None or "output" not in given):
            if not self.recipe.settings.output:
                raise ConfigError(f"{step.where}: has no output; give it one, or the recipe an `output` for all steps.")
            values["output"] = str(base)
        settings = at([step.where, *step.locations.values()][-1], lambda: kind(**values))
        file = f"{self.recipe.name}#{step.name}"
        if cases or key.seed is not None:  # RECIPE#STEP would be its first case and seed
            file = f"{base if cases else values['output']}.yaml"
        common = self.recipe.settings
        launch = text.of(common.launch, f"{self.recipe.file}: launch") if common.launch else None
        job = Job(
            key,
            step.spec,
            settings,
            file,
            values,
            tuple(text.needs),
            launch and _launch_file(self.recipe, launch),
            common.threads,
        )
        log = Path(file).with_suffix(".log") if cases else None
        return replace(job, log=log)

    def _config_values(self, kind: type[Settings], config: str, where: str) -> dict[str, Any]:
        """The settings of a file, or RECIPE#STEP, which is read once for all cases and seeds."""
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
    if recipe.has_cases:
        raise ConfigError(
            f"{reference}: {recipe.name} runs its steps for several cases; the settings of each are beside its output, "
            f"as {recipe.folder}/DATA/CASE/STEP/seed-N.yaml."
        )
    (case,) = recipe.cases.values()
    found = next((step for step in case.steps if step.name == step_name), None)
    if found is None:
        names = ", ".join(step.name for step in case.steps)
        raise ConfigError(f"{reference}: {recipe.name} has no step {step_name!r}; its steps: {names}.")
    if found.kind is not kind:
        raise ConfigError(f"{reference}: is a step of minionerec {found.stage}, whose settings are others.")
    plan = Plan(recipe, before=(*before, own))
    return dict(plan.job("", case, step_name, plan.seeds_of(case)[0]).values)


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
    """Fills the placeholders in the texts of one step, and collects the steps that they name."""

    plan: Plan
    key: Key
    case: Case | None
    step: RecipeStep | None
    needs: list[Key] = field(default_factory=list)
    _variables: list[str] = field(default_factory=list, repr=False)

    def of(self, value: Any, where: str) -> Any:
        """A value with all placeholders filled, in what it holds too."""
        if isinstance(value, str):
            lone = PLACEHOLDER.fullmatch(value)
            if lone is not None and lone[1] in self.plan.recipe.variables:
                return self._variable(lone[1], where)
            return self._text(value, where)
        if isinstance(value, dict):
            lone_names = [name for name, entry in value.items() if entry is None and isinstance(name, str)]
            if len(value) == 1 and lone_names and ("." in lone_names[0] or lone_names[0] in self._known()):
                raise ConfigError(f'{where} is a mapping; put the placeholder in quotes: "{{{lone_names[0]}}}".')
            return {name: self.of(entry, f"{where}: {name}") for name, entry in value.items()}
        return [self.of(entry, where) for entry in value] if isinstance(value, list) else value

    def _text(self, text: str, where: str) -> str:
        """A text with its placeholders filled from the inside out, as in {data.{case}}; what is filled in stays."""
        open_parts = [""]
        for part in re.split(r"([{}])", text):
            if part == "{":
                open_parts.append("")
            elif part == "}" and len(open_parts) > 1:
                name = open_parts.pop()
                whole = f"{{{name}}}"
                open_parts[-1] += self._value(name, where) if PLACEHOLDER.fullmatch(whole) else whole
            else:
                open_parts[-1] += part
        return "{".join(open_parts)

    def _known(self) -> list[str]:
        return [*self._words(), *self.plan.recipe.variables, *(step.name for step in self._before())]

    def _words(self) -> dict[str, str]:
        words = {"runs": str(self.plan.recipe.folder)} if self.plan.recipe.settings.output else {}
        if self.plan.recipe.has_cases:
            words |= {OF_DATA: self.key.data}
            words |= {} if self.case is None else {OF_CASE: self.case.name}
        return words | ({} if self.key.seed is None else {"seed": str(self.key.seed)})

    def _before(self) -> Iterator[RecipeStep]:
        """The steps of the same case, or data set, that come before."""
        data = self.plan.recipe.data[self.key.data]
        for step in data if self.case is None else all_steps(self.case, self.plan.recipe.cases):
            if self.step is not None and step.name == self.step.name:
                return
            yield step

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
        owner, _, step = name.rpartition(".")
        data = self.plan.recipe.data[self.key.data]
        if not owner and any(step == before.name for before in self._before()):
            return self._output(self.case, step, where)
        if owner == OF_DATA and any(step == one.name for one in data):
            return self._output(None, step, where)
        other = self.plan.recipe.cases.get(owner) if self.case is not None and owner else None
        if other is not None and any(step == one.name for one in all_steps(other, self.plan.recipe.cases)):
            if self.key.data not in other.data:
                raise ConfigError(f"{where} names {{{name}}}, but {owner} is not run on {self.key.data}.")
            return self._output(other, step, where)
        known = ", ".join(f"{{{word}}}" for word in [*self._known(), *(f"{OF_DATA}.{one.name}" for one in data)])
        more = " and {CASE.STEP}" if self.case is not None and self.plan.recipe.has_cases else ""
        raise ConfigError(f"{where} names {{{name}}}, which is unknown here; known: {known or 'none'}{more}.")

    def _output(self, case: Case | None, name: str, where: str) -> str:
        seed = None if case is None else self._seed_in(case, name, where)
        found = [self.plan.job(self.key.data, case, name, seed)]
        if found[0].output is None:
            raise ConfigError(f"{where} names {{{name}}}, but that step only prints.")
        folder = found[0].folder
        if (
            case is not None
            and not self.plan.recipe.has_cases
            and found[0].key.seed is not None
            and self.key.seed is None
        ):
            found = [self.plan.job(self.key.data, case, name, each) for each in self.plan.seeds_of(case)]
            folder = folder.parent  # the folder of all seeds
        self.needs += [job.key for job in found if job.key not in self.needs]
        return str(folder)

    def _seed_in(self, case: Case, name: str, where: str) -> int | None:
        """The seed with which a case's step is read: this one's, or its only one."""
        seeds = case.seeds or (None,)
        if self.key.seed in seeds:
            return self.key.seed
        if not self.plan.recipe.has_cases:
            return self.plan.seeds_of(case)[0]
        if len(seeds) == 1:
            return seeds[0]
        step = next(step for step in all_steps(case, self.plan.recipe.cases) if step.name == name)
        if step.once:
            return None
        if self.key.seed is None:
            raise ConfigError(f"{where} reads {case.name}.{name}, which is made for each seed; this step is run once.")
        raise ConfigError(f"{where} reads {case.name}.{name}, which has no seed {self.key.seed}, but {list(seeds)}.")


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
    """The jobs of the steps from one name to another, in every case; outputs of other steps are used as they are.

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


def _takes_seed(step: RecipeStep) -> bool:
    """Whether the output of a step depends on a case's seed."""
    return getattr(step.kind, "kind", "") in _SEEDED and "seed" in {each.name for each in fields(step.kind)}


def _check_predictions(key: Key, step: RecipeStep) -> None:
    if "output" in step.values:
        raise ConfigError(f"{step.locations['output']}: predictions of cases are laid out by seed; leave output out.")
    if key.seed is None:
        raise ConfigError(
            f"{step.where}: predictions are compared by seed, so a case does not make them once; leave `once` out, or "
            "give the case one seed."
        )


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
