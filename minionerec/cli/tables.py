"""What a recipe with cases ends in: comparisons of its cases and the experiment log, as jobs of their own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from minionerec.cli.plan import MEASURED, PREPARED, Filled, Job, Key, Plan
from minionerec.cli.recipes import Case, Recipe, all_steps, at
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.settings import typed_values
from minionerec.core.stages import STAGES

COMPARE, LOG, PREFERENCE = "compare", "experiment-log", "preference-report"
_OF_ENTRY = ("corpus", "items", "protocol", "sids", "reference", "split")
"""Settings of the log that are said of each data set."""


def check_tables(recipe: Recipe) -> None:
    """Check what the file says of tables and log, before anything is run.

    Raises:
        ConfigError: If a table is about a step without predictions, or its settings do not fit.
    """
    for name, said in recipe.compare.items():
        where = f"{recipe.file}: compare.{name}"
        _check_of(recipe, str(said.get("of", name)), f"{where}.of")
        for data in recipe.data:
            stage = _stage(recipe, str(said.get("of", name)))
            typed = _typed(stage, _filled(recipe, data, _settings(said), where), where)
            at(where, partial(STAGES[stage].config_class(), **{**typed, "runs": {"a": "a"}, "output": "a"}))
    if recipe.log is not None:
        where = f"{recipe.file}: log"
        _check_of(recipe, str(recipe.log.get("of", "test")), f"{where}.of")
        _log_settings(recipe, {data: {"a": "a"} for data in recipe.data})


def _kinds(recipe: Recipe) -> dict[str, str]:
    """Name of each step of a case to the kind of artefact that it makes, "" for none."""
    steps = [step for case in recipe.cases.values() for step in all_steps(case, recipe.cases)]
    return {step.name: getattr(step.kind, "kind", "") for step in steps}


def _stage(recipe: Recipe, of: str) -> str:
    """The stage that makes a table of a step's outputs."""
    return PREFERENCE if _kinds(recipe).get(of) == "preference" else COMPARE


def _check_of(recipe: Recipe, of: str, where: str) -> None:
    names = [name for name, kind in _kinds(recipe).items() if kind in (*MEASURED, "sequential_summary")]
    if of not in names:
        raise ConfigError(f"{where} is {of!r}; steps with predictions: {', '.join(sorted(names)) or 'none'}.")


def tables(recipe: Recipe, say: Callable[[str], None]) -> Iterator[Job]:
    """The jobs of all tables and of the log, of what stands now.

    Args:
        recipe: The recipe.
        say: What a line about a case that is left out goes to.
    """
    standing = _Standing(recipe, Plan(recipe).all())
    for data in recipe.data:
        for name, said in recipe.compare.items():
            where = f"{recipe.file}: compare.{name}"
            runs = {
                label: str(place)
                for label, (place, stands) in standing.places(data, str(said.get("of", name)), say).items()
                if stands
            }
            if runs:
                stage = _stage(recipe, str(said.get("of", name)))
                values = _typed(stage, _filled(recipe, data, _settings(said), where), where)
                values |= {"runs": runs, "output": str(recipe.place / data / COMPARE / name)}
                yield _job(recipe, Key(data, COMPARE, name, None), stage, values)
    if recipe.log is not None:
        of = str(recipe.log.get("of", "test"))
        found = {data: standing.places(data, of, lambda line: None) for data in recipe.data}
        stages = {data: {label: str(place) for label, (place, _) in places.items()} for data, places in found.items()}
        stages = {data: places for data, places in stages.items() if places}
        if any(stands for places in found.values() for _, stands in places.values()):
            yield _job(recipe, Key("all", "log", LOG, None), LOG, _log_settings(recipe, stages))


def _job(recipe: Recipe, key: Key, stage: str, values: Mapping[str, Any]) -> Job:
    spec = STAGES[stage]
    output = Path(values["output"])
    file = output.with_name(f"{output.name}.yaml")
    return Job(
        key,
        spec,
        spec.config_class()(**values),
        str(file),
        values,
        threads=recipe.settings.threads,
        log=file.with_suffix(".log"),
    )


def _settings(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key != "of"}


def _typed(stage: str, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key in ("runs", "entries", "output"):
        if key in values:
            raise ConfigError(f"{where}: {key} is the recipe's own to say; leave it out.")
    return typed_values(STAGES[stage].config_class(), values, where)


def _filled(recipe: Recipe, data: str, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings with the placeholders of a data set filled."""
    text = Filled(Plan(recipe), Key(data, PREPARED, "", None), None, None)
    return {key: text.of(value, f"{where}: {key}") for key, value in values.items()}


def _log_settings(recipe: Recipe, stages: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """What the experiment log is told: one entry a data set.

    Args:
        recipe: The recipe.
        stages: Data set to label to the folder of predictions.
    """
    where, said = f"{recipe.file}: log", _settings(recipe.log or {})
    if LOG not in STAGES:
        raise ConfigError(f"{where}: there is no stage {LOG!r}; leave log out.")
    entries: dict[str, Any] = {}
    for data, places in stages.items():
        own = {key: value for key, value in said.items() if key in _OF_ENTRY}
        entries[data] = {**_filled(recipe, data, own, where), "stages": dict(places)}
    values = _typed(LOG, {key: value for key, value in said.items() if key not in _OF_ENTRY}, where)
    values |= {"entries": entries, "output": str(recipe.place / "log")}
    at(where, lambda: STAGES[LOG].config_class()(**values))
    return values


@dataclass
class _Standing:
    """Tells which outputs are what the recipe says, by way of all that they were made from.

    Attributes:
        recipe: The recipe.
        jobs: Its jobs, all of them.
    """

    recipe: Recipe
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
        for case in self.recipe.cases.values():
            if data not in case.data or all(step.name != of for step in case.steps):
                continue
            own = {key.seed: job for key, job in self.jobs.items() if key[:3] == (data, case.name, of)}
            job = next(iter(own.values()))
            place = job.folder if None in own else job.folder.parent.parent
            there = sorted(int(path.parent.name[5:]) for path in place.glob("seed-*/predictions") if path.is_dir())
            stale = [seed for seed in there if not self._is_ours(own.get(seed) or own.get(None), seed, case)]
            if stale:
                say(
                    f"{data}, {of}: {case.label} is left out of the table: {place}/seed-{stale[0]} is of other "
                    "settings or inputs, or of a seed that the recipe does not name. Run the recipe, or remove it."
                )
            else:
                found[case.label] = (place, bool(there))
        return found

    def _is_ours(self, job: Job | None, seed: int, case: Case) -> bool:
        """Whether the predictions of a seed are what the recipe says."""
        if job is None or seed not in case.seeds:
            return False
        if job.key.seed is not None:
            return self._stands(job.key)
        return all(self._stands(need) for need in job.needs) and _seed_stands(job, seed)

    def _stands(self, key: Key) -> bool:
        """Whether a step is up to date, and all that it needs."""
        if key not in self._known:
            job = self.jobs[key]
            self._known[key] = all(self._stands(need) for need in job.needs) and job.is_current()
        return self._known[key]


def _seed_stands(job: Job, seed: int) -> bool:
    """Whether one seed of a step that runs several by itself is up to date."""
    from minionerec.sequential.config import SequentialConfig
    from minionerec.sequential.seeds import resolve_protocol, seed_runs

    settings = job.settings
    if not isinstance(settings, SequentialConfig):
        raise ConfigError(f"{job.key.title}: of the stages that run several seeds only train-sequential is known here.")
    one = replace(settings, seed=seed, seeds=1)
    (run,) = seed_runs(one, resolve_protocol(one))
    try:
        return all(stage.current(say=False) is not None for stage in (run.model, run.predictions))
    except (ArtefactError, OSError, KeyError):
        return False
