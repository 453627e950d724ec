"""What a study ends in: a comparison of its cases on each data set, and the experiment log, as jobs of their own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from minionerec.cli.recipes import Step
from minionerec.cli.stages import STAGES
from minionerec.cli.study_file import all_steps, at
from minionerec.cli.study_plan import PREPARED, Filled, Job, Key, Plan
from minionerec.cli.study_settings import Case, Study
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.settings import typed_values

COMPARE, LOG = "compare", "experiment-log"
_OF_ENTRY = ("corpus", "items", "protocol", "sids", "reference", "split")
"""Settings of the log that are said of each data set."""


def check_tables(study: Study) -> None:
    """Check what the file says of tables and log, before anything is run.

    Raises:
        ConfigError: If a table is about a step without predictions, or its settings do not fit.
    """
    for name, said in study.compare.items():
        where = f"{study.file}: compare.{name}"
        _check_of(study, str(said.get("of", name)), f"{where}.of")
        for data in study.data:
            typed = _typed(COMPARE, _filled(study, data, _settings(said), where), where)
            at(where, partial(STAGES[COMPARE].config_class(), **{**typed, "runs": {"a": "a"}, "output": "a"}))
    if study.log is not None:
        where = f"{study.file}: log"
        _check_of(study, str(study.log.get("of", "test")), f"{where}.of")
        _log_settings(study, {data: {"a": "a"} for data in study.data})


def _check_of(study: Study, of: str, where: str) -> None:
    names = {
        step.name
        for case in study.cases.values()
        for step in all_steps(case, study.cases)
        if step.kind.kind in ("predictions", "sequential_summary")
    }
    if of not in names:
        raise ConfigError(f"{where} is {of!r}; steps with predictions: {', '.join(sorted(names)) or 'none'}.")


def tables(study: Study, say: Callable[[str], None]) -> Iterator[Job]:
    """The jobs of all tables and of the log, of what stands now.

    Args:
        study: The study.
        say: What a line about a case that is left out goes to.
    """
    standing = _Standing(study, Plan(study).all())
    for data in study.data:
        for name, said in study.compare.items():
            where = f"{study.file}: compare.{name}"
            runs = {
                label: str(place)
                for label, (place, stands) in standing.places(data, str(said.get("of", name)), say).items()
                if stands
            }
            if runs:
                values = _typed(COMPARE, _filled(study, data, _settings(said), where), where)
                values |= {"runs": runs, "output": str(study.place / data / COMPARE / name)}
                yield _job(study, Key(data, COMPARE, name, None), STAGES[COMPARE].name, values)
    if study.log is not None:
        of = str(study.log.get("of", "test"))
        found = {data: standing.places(data, of, lambda line: None) for data in study.data}
        stages = {data: {label: str(place) for label, (place, _) in places.items()} for data, places in found.items()}
        stages = {data: places for data, places in stages.items() if places}
        if any(stands for places in found.values() for _, stands in places.values()):
            yield _job(study, Key("all", "log", LOG, None), LOG, _log_settings(study, stages))


def _job(study: Study, key: Key, stage: str, values: Mapping[str, Any]) -> Job:
    spec = STAGES[stage]
    output = Path(values["output"])
    file = output.with_name(f"{output.name}.yaml")
    return Job(
        key,
        Step(key.step, spec, file, spec.config_class()(**values), threads=study.settings.threads),
        values,
        (),
        False,
    )


def _settings(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key != "of"}


def _typed(stage: str, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key in ("runs", "entries", "output"):
        if key in values:
            raise ConfigError(f"{where}: {key} is the study's own to say; leave it out.")
    return typed_values(STAGES[stage].config_class(), values, where)


def _filled(study: Study, data: str, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings with the placeholders of a data set filled."""
    text = Filled(Plan(study), Key(data, PREPARED, "", None), None, None)
    return {key: text.of(value, f"{where}: {key}") for key, value in values.items()}


def _log_settings(study: Study, stages: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """What the experiment log is told: one entry a data set.

    Args:
        study: The study.
        stages: Data set to label to the folder of predictions.
    """
    where, said = f"{study.file}: log", _settings(study.log or {})
    if LOG not in STAGES:
        raise ConfigError(f"{where}: there is no stage {LOG!r}; leave log out.")
    entries: dict[str, Any] = {}
    for data, places in stages.items():
        own = {key: value for key, value in said.items() if key in _OF_ENTRY}
        entries[data] = {**_filled(study, data, own, where), "stages": dict(places)}
    values = _typed(LOG, {key: value for key, value in said.items() if key not in _OF_ENTRY}, where)
    values |= {"entries": entries, "output": str(study.place / "log")}
    at(where, lambda: STAGES[LOG].config_class()(**values))
    return values


@dataclass
class _Standing:
    """Tells which outputs are what the study's file says, by way of all that they were made from.

    Attributes:
        study: The study.
        jobs: Its jobs, all of them.
    """

    study: Study
    jobs: Mapping[Key, Job]
    _known: dict[Key, bool] = field(default_factory=dict, repr=False)

    def places(self, data: str, of: str, say: Callable[[str], None]) -> dict[str, tuple[Path, bool]]:
        """Label of each case with such a step to the folder of its seeds, and whether predictions stand there.

        Args:
            data: The data set.
            of: Name of the step.
            say: What a line about a case that is left out goes to.
        """
        found = {}
        for case in self.study.cases.values():
            if data not in case.data or all(step.name != of for step in case.steps):
                continue
            own = {key.seed: job for key, job in self.jobs.items() if key[:3] == (data, case.name, of)}
            job = next(iter(own.values()))
            place = job.output if None in own else job.output.parent.parent
            there = sorted(int(path.parent.name[5:]) for path in place.glob("seed-*/predictions") if path.is_dir())
            stale = [seed for seed in there if not self._is_ours(own.get(seed) or own.get(None), seed, case)]
            if stale:
                say(
                    f"{data}, {of}: {case.label} is left out of the table: {place}/seed-{stale[0]} is of other "
                    "settings or inputs, or of a seed that the study does not name. Run the study, or remove it."
                )
            else:
                found[case.label] = (place, bool(there))
        return found

    def _is_ours(self, job: Job | None, seed: int, case: Case) -> bool:
        """Whether the predictions of a seed are what the study's file says."""
        if job is None or seed not in case.seeds:
            return False
        if job.key.seed is not None:
            return self._stands(job.key)
        return all(self._stands(need) for need in job.needs) and _seed_stands(job, seed)

    def _stands(self, key: Key) -> bool:
        """Whether a step is up to date, and all that it needs."""
        if key not in self._known:
            job = self.jobs[key]
            self._known[key] = all(self._stands(need) for need in job.needs) and job.step.is_current()
        return self._known[key]


def _seed_stands(job: Job, seed: int) -> bool:
    """Whether one seed of a step that runs several by itself is up to date."""
    from minionerec.sequential.config import SequentialConfig
    from minionerec.sequential.seeds import resolve_protocol, seed_runs

    settings = job.step.settings
    if not isinstance(settings, SequentialConfig):
        raise ConfigError(f"{job.key.title}: of the stages that run several seeds only train-sequential is known here.")
    one = replace(settings, seed=seed, seeds=1)
    (run,) = seed_runs(one, resolve_protocol(one))
    try:
        return all(stage.current(say=False) is not None for stage in (run.model, run.predictions))
    except (ArtefactError, OSError, KeyError):
        return False
