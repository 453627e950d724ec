"""A study's plan: each step of each case, data set and seed as a job, with its settings, its output and what it needs.

OUTPUT/DATA/prepared/STEP                     what is made once for a data set, unless its file names a place of its own
OUTPUT/DATA/CASE/STEP/seed-N                  what a step makes; of one that is run once, or takes all seeds, STEP alone
OUTPUT/DATA/CASE/STEP/seed-N/predictions      predictions, where comparisons look for the seeds of a recommender
OUTPUT/DATA/CASE/STEP/seed-N.yaml, .log       the step's settings, and what it said
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from minionerec.cli.recipes import Step
from minionerec.cli.study_file import PLACEHOLDER, all_steps, at
from minionerec.cli.study_settings import Case, Study, StudyStep
from minionerec.core.artefacts import write_text_atomic
from minionerec.core.errors import ConfigError
from minionerec.core.places import find_path
from minionerec.core.settings import StageConfig, named_here, read_yaml, typed_values

PREPARED = "prepared"
_SEEDED = ("checkpoint", "sids")
"""Kinds of artefacts that are made with the study's seed."""


class Key(NamedTuple):
    """Which step it is: of which data set and case (`PREPARED`: of the data set itself), with which seed, if one."""

    data: str
    case: str
    step: str
    seed: int | None

    @property
    def title(self) -> str:
        """How it is called in what a user reads."""
        name = f"{self.data}/{self.case}/{self.step}"
        return name if self.seed is None else f"{name}, seed {self.seed}"


@dataclass(frozen=True)
class Job:
    """One step of a study, ready to be started.

    Attributes:
        key: Which step it is.
        step: The stage with its settings, and the file that they are written to.
        values: What that file says.
        needs: The steps whose outputs it reads.
        ranks: Whether its output holds predictions, for tables.
    """

    key: Key
    step: Step
    values: Mapping[str, Any]
    needs: tuple[Key, ...]
    ranks: bool

    @property
    def title(self) -> str:
        """How it is called in what a user reads."""
        return self.key.title

    @property
    def log(self) -> Path:
        """The file of what the step said."""
        return self.step.config.with_suffix(".log")

    def prepare(self) -> None:
        """Write the file of the step's settings."""
        file = self.step.config
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(file, f"# {self.title}\n{yaml.safe_dump(dict(self.values), sort_keys=False)}")

    @property
    def output(self) -> Path:
        """Where it writes."""
        return Path(self.step.output or "")


@dataclass
class Plan:
    """Makes the jobs of a study.

    Attributes:
        study: What its file says.
        seeds: The seeds of cases that name none of their own; the study's if None.
        jobs: The jobs made so far.
    """

    study: Study
    seeds: tuple[int, ...] | None = None
    jobs: dict[Key, Job] = field(default_factory=dict)
    _open: list[Key] = field(default_factory=list, repr=False)
    _files: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    def all(self) -> dict[Key, Job]:
        """Every job; prepared data first, then one seed after another, so that an early stop leaves every case one.

        Raises:
            ConfigError: If a placeholder leads nowhere, settings do not fit, or two steps write one place.
        """
        for data in self.study.data:
            for step in self.study.data[data]:
                self.job(data, None, step.name, None)
        most = max(len(self.seeds_of(case)) for case in self.study.cases.values())
        for place in range(most):
            for data in self.study.data:
                for case in self.study.cases.values():
                    seeds = self.seeds_of(case)
                    if data in case.data and place < len(seeds):
                        for step in case.steps:
                            self.job(data, case, step.name, seeds[place])
        return _with_paths(self.jobs)

    def seeds_of(self, case: Case) -> tuple[int, ...]:
        """The seeds that a case is run with."""
        return case.seeds if case.own_seeds or self.seeds is None else self.seeds

    def job(self, data: str, case: Case | None, name: str, seed: int | None) -> Job:
        """The job of a step of a case (None: of a data set), made where it is not there yet."""
        while case is not None and case.base is not None and all(step.name != name for step in case.steps):
            case = self.study.cases[case.base]
        steps = self.study.data[data] if case is None else case.steps
        step = next(step for step in steps if step.name == name)
        shared = case is None or step.once or _takes_all_seeds(step)
        key = Key(data, PREPARED if case is None else case.name, name, None if shared else seed)
        if key in self._open:
            raise ConfigError(f"{step.where}: needs itself, by way of other steps. Change its placeholders.")
        if key not in self.jobs:
            self._open.append(key)
            self.jobs[key] = self._made(key, case, step)
            self._open.remove(key)
        return self.jobs[key]

    def _made(self, key: Key, case: Case | None, step: StudyStep) -> Job:
        text = Filled(self, key, case, step)
        kind = step.kind
        ranks = kind.kind == "predictions" or _takes_all_seeds(step)
        given: dict[str, Any] = {}
        config = text.of(step.config, f"{step.where}: config")
        if config:
            given = self._file_values(kind, str(_beside(self.study.file, config)))
        values = dict(given)
        for name, value in step.values.items():
            where = step.places[name]
            values |= typed_values(kind, {name: text.of(value, f"{where}: {name}")}, where)
        values |= self._seeds(key, case, step)
        own = self._place(key)
        base = own if key.seed is None else own / f"seed-{key.seed}"
        if case is not None and kind.kind == "predictions":
            _check_predictions(key, step)
            values["output"] = str(base / "predictions")
        elif "output" not in step.values and (case is not None or "output" not in given):
            values["output"] = str(base)
        where = [step.where, *step.places.values()][-1]
        settings = at(where, lambda: kind(**values))
        file = base.with_name(f"{base.name}.yaml")
        launch = find_path(self.study.settings.launch) if self.study.settings.launch else None
        ready = Step(step.name, step.spec, file, settings, launch, self.study.settings.threads)
        return Job(key, ready, values, tuple(text.needs), ranks)

    def _file_values(self, kind: type[StageConfig], file: str) -> dict[str, Any]:
        if file not in self._files:
            self._files[file] = read_yaml(file)
        return typed_values(kind, self._files[file], file)

    def _place(self, key: Key) -> Path:
        return self.study.place / key.data / key.case / key.step

    def _seeds(self, key: Key, case: Case | None, step: StudyStep) -> dict[str, Any]:
        """What a step is told of seeds."""
        names = {each.name for each in fields(step.kind)}
        if case is None or "seed" in step.values:
            return {}
        if _takes_all_seeds(step):
            seeds = sorted(self.seeds_of(case))
            if seeds != list(range(seeds[0], seeds[0] + len(seeds))):
                raise ConfigError(f"{step.where}: takes its seeds one after another, so {seeds} must be in a row.")
            return {"seed": seeds[0], "seeds": len(seeds)}
        if key.seed is not None and "seed" in names and step.kind.kind in _SEEDED:
            return {"seed": key.seed}
        return {}


@dataclass
class Filled:
    """Puts values for placeholders in the texts of one step, and notes the steps that they name."""

    plan: Plan
    key: Key
    case: Case | None
    step: StudyStep | None
    needs: list[Key] = field(default_factory=list)

    def of(self, value: Any, where: str) -> Any:
        """A value with all placeholders filled, in what it holds too."""
        if isinstance(value, str):
            while PLACEHOLDER.search(value):  # from the inside out: {data.{case}}
                value = PLACEHOLDER.sub(lambda found: self._value(found[1], where), value)
            return value
        if isinstance(value, dict):
            lone = [name for name, entry in value.items() if entry is None and isinstance(name, str)]
            if len(value) == 1 and lone and ("." in lone[0] or lone[0] in self._known()):
                raise ConfigError(f'{where} is a mapping; put the placeholder in quotes: "{{{lone[0]}}}".')
            return {name: self.of(entry, f"{where}: {name}") for name, entry in value.items()}
        return [self.of(entry, where) for entry in value] if isinstance(value, list) else value

    def _known(self) -> list[str]:
        return [*self._words(), *(step.name for step in self._before())]

    def _words(self) -> dict[str, str]:
        words = {"data": self.key.data, "runs": str(self.plan.study.place)}
        words |= {} if self.case is None else {"case": self.case.name}
        return words | ({} if self.key.seed is None else {"seed": str(self.key.seed)})

    def _before(self) -> Iterator[StudyStep]:
        """The steps of the same case, or data set, that come before."""
        data = self.plan.study.data[self.key.data]
        for step in data if self.case is None else all_steps(self.case, self.plan.study.cases):
            if self.step is not None and step.name == self.step.name:
                return
            yield step

    def _value(self, name: str, where: str) -> str:
        if name in self._words():
            return self._words()[name]
        owner, _, step = name.rpartition(".")
        if not owner and any(step == before.name for before in self._before()):
            return self._output(self.case, step, where)
        if owner == "data" and any(step == one.name for one in self.plan.study.data[self.key.data]):
            return self._output(None, step, where)
        other = self.plan.study.cases.get(owner) if self.case is not None else None
        if other is not None and any(step == one.name for one in all_steps(other, self.plan.study.cases)):
            if self.key.data not in other.data:
                raise ConfigError(f"{where} names {{{name}}}, but {owner} is not run on {self.key.data}.")
            return self._output(other, step, where)
        known = [*self._known(), *(f"data.{one.name}" for one in self.plan.study.data[self.key.data])]
        raise ConfigError(
            f"{where} names {{{name}}}, which stands for nothing here; known: "
            f"{', '.join(f'{{{word}}}' for word in known)}{' and {CASE.STEP}' if self.case is not None else ''}."
        )

    def _output(self, case: Case | None, name: str, where: str) -> str:
        seed = None if case is None else self._seed_in(case, name, where)
        found = self.plan.job(self.key.data, case, name, seed)
        if found.key not in self.needs:
            self.needs.append(found.key)
        return str(found.output)

    def _seed_in(self, case: Case, name: str, where: str) -> int | None:
        """The seed with which a case's step is read: this one's, or its only one."""
        seeds = self.plan.seeds_of(case)
        if self.key.seed in seeds:
            return self.key.seed
        if len(seeds) == 1:
            return seeds[0]
        step = next(step for step in all_steps(case, self.plan.study.cases) if step.name == name)
        if step.once or _takes_all_seeds(step):
            return None
        if self.key.seed is None:
            raise ConfigError(f"{where} reads {case.name}.{name}, which is made for each seed; this step is run once.")
        raise ConfigError(f"{where} reads {case.name}.{name}, which has no seed {self.key.seed}, but {list(seeds)}.")


def chosen(jobs: Mapping[Key, Job], wanted: Iterable[Key]) -> dict[Key, Job]:
    """Some jobs, with all that they need, in the same order."""
    needed: set[Key] = set()
    waiting = list(wanted)
    while waiting:
        key = waiting.pop()
        if key not in needed:
            needed.add(key)
            waiting += jobs[key].needs
    return {key: job for key, job in jobs.items() if key in needed}


def _check_predictions(key: Key, step: StudyStep) -> None:
    if "output" in step.values:
        raise ConfigError(f"{step.places['output']}: the study lays predictions out by seed; leave output out.")
    if key.seed is None:
        raise ConfigError(
            f"{step.where}: predictions are compared by seed, so a case does not make them once; leave `once` out, or "
            "give the case one seed."
        )


def _takes_all_seeds(step: StudyStep) -> bool:
    """Whether its stage runs several seeds by itself."""
    return {"seed", "seeds"} <= {each.name for each in fields(step.kind)}


def _beside(study: Path, name: str) -> Path:
    """A file of settings: as named, among what is shipped, or beside the study's file."""
    found = find_path(name)
    return found if found.exists() or not (study.parent / name).is_file() else study.parent / name


def _with_paths(jobs: Mapping[Key, Job]) -> dict[Key, Job]:
    """The jobs, with those as needs too whose outputs their settings name by path.

    Raises:
        ConfigError: If two write one place.
    """
    by_output: dict[str, Key] = {}
    for key, job in jobs.items():
        other = by_output.setdefault(os.path.normpath(job.output), key)
        if other != key:
            raise ConfigError(f"{other.title} and {key.title} both write {job.output}; give each an output of its own.")
    found = {}
    for key, job in jobs.items():
        needs = list(job.needs)
        for path in named_here(job.step.settings):
            for place in (path, *path.parents):
                need = by_output.get(os.path.normpath(place))
                if need is not None and need != key and need not in needs:
                    needs.append(need)
        found[key] = Job(key, job.step, job.values, tuple(needs), job.ranks)
    _check_order(found)
    return found


def _check_order(jobs: Mapping[Key, Job]) -> None:
    """Check that no step needs itself, by way of others."""
    done: set[Key] = set()
    left = dict(jobs)
    while left:
        ready = [key for key, job in left.items() if done.issuperset(job.needs)]
        if not ready:
            raise ConfigError(f"{next(iter(left)).title} needs itself, by way of other steps. Change its inputs.")
        done.update(ready)
        left = {key: job for key, job in left.items() if key not in done}
