"""A search over a recipe's settings on validation examples, by Optuna; resumable, and without test examples.

OUTPUT/search/trials.log          Optuna's journal: every trial with its settings and value
OUTPUT/search/best.yaml           the best settings, a file for `--config`
OUTPUT/DATA/search/trial-N/...    the steps of a trial, laid out like those of a case
"""

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from minionerec.cli.plan import TRAINED, Job, Key, Plan, chosen
from minionerec.cli.recipes import Case, Recipe, RecipeStep, SearchSettings, all_steps, changed_steps
from minionerec.cli.runner import Runner, losses
from minionerec.core.artefacts import write_text_atomic
from minionerec.core.errors import ConfigError, MinioneRecError, shown
from minionerec.core.values import convert
from minionerec.reports.config import is_metric

JOURNAL, BEST = "trials.log", "best.yaml"
SPLIT = "valid"
_RANGE = {"low": float, "high": float, "log": bool, "whole": bool, "among": None}


def check_search(plan: Plan) -> None:
    """Check the settings of a recipe's search, before anything is run.

    Raises:
        ConfigError: If a range is invalid, its ends do not fit the settings, or another split is measured.
    """
    recipe, search = plan.recipe, plan.recipe.search
    if search is None:
        return
    where = f"{recipe.file}: search"
    ranges = {name: _range(given, f"{where}.over.{name}") for name, given in recipe.over.items()}
    for low in (True, False):
        jobs = _trial_jobs(plan, search, "search/trial", {name: _end(given, low) for name, given in ranges.items()})
        measured = [job for key, job in jobs.items() if key[1:3] == ("search/trial", search.measure)]
        if not measured:
            raise ConfigError(f"{where}: measure is {search.measure!r}, which reads nothing of {search.step!r}.")
        if not measured[0].ranks:
            raise ConfigError(f"{where}: measure is {search.measure!r}, a step without predictions.")
        split = getattr(measured[0].settings, "split", SPLIT)
        if split != SPLIT:
            raise ConfigError(
                f"{where}: measure is {search.measure!r}, which measures {split} examples; settings are chosen on "
                f"{SPLIT} examples alone. Name a step with split {SPLIT}."
            )
    if not is_metric(search.metric):
        raise ConfigError(f"{where}: metric is {search.metric!r}; expected HR@K, NDCG@K or MRR@K, such as NDCG@10.")
    _optuna()


def search_settings(plan: Plan, search: SearchSettings, runner: Runner) -> list[str]:
    """Try settings until there are as many trials as the file asks for, and write the best.

    Args:
        plan: That of the recipe.
        search: Its search.
        runner: What runs the steps of a trial.

    Returns:
        A line for each step that failed.

    Raises:
        ConfigError: If the existing trials are of another search, or none has a value.
    """
    optuna = _optuna()
    folder = plan.recipe.folder / "search"
    folder.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL)))
    found = optuna.create_study(storage=storage, study_name="search", direction="maximize", load_if_exists=True)
    _check_same(found, _identity(plan, search), folder)
    lost: list[str] = []
    running = found.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING])
    for number, settings in [(trial.number, dict(trial.params)) for trial in running]:
        lost += _try(plan, search, runner, found, number, settings)
    while (done := len(found.get_trials(deepcopy=False))) < search.trials:
        found.sampler = optuna.samplers.TPESampler(seed=search.seed + done)  # the same whenever the search is resumed
        trial = found.ask(_distributions(optuna, plan.recipe))
        lost += _try(plan, search, runner, found, trial.number, dict(trial.params))
    _write_best(plan, search, found, folder / BEST, runner.say)
    return lost


def with_winner(plan: Plan) -> Plan:
    """A plan with the best settings of its search as a case of its own, if there are any yet.

    Raises:
        ConfigError: If their file is malformed.
    """
    recipe, search = plan.recipe, plan.recipe.search
    if search is None:
        return plan
    file = recipe.folder / "search" / BEST
    if not file.is_file():
        return plan
    try:
        given = json.loads(file.read_text(encoding="utf-8").splitlines()[1].removeprefix("# settings: "))
    except (OSError, ValueError, IndexError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ConfigError(f"{file}: its second line no longer holds the best settings. Remove it and run again.")
    base = recipe.cases[search.case]
    steps = changed_steps(
        all_steps(base, recipe.cases), {search.step: _change(base, recipe, search, given, str(file))}, str(file)
    )
    return plan.with_case(
        replace(base, name=search.name, label=search.name, steps=steps, base=search.case, where=str(file))
    )


def _change(base: Case, recipe: Recipe, search: SearchSettings, settings: Mapping[str, Any], where: str) -> RecipeStep:
    """The searched step with other settings."""
    step = next(step for step in all_steps(base, recipe.cases) if step.name == search.step)
    return replace(
        step, values=dict(settings), config="", once=False, where=where, locations=dict.fromkeys(settings, where)
    )


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            "a search over settings needs optuna, which is not installed: pip install 'minionerec[search]'."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _range(given: Any, where: str) -> Any:
    """A list of values, or a mapping of low, high, log and whole."""
    if not isinstance(given, dict) or not given or set(given) - set(_RANGE):
        raise ConfigError(f"{where} is {shown(given)}; expected {{low, high, log, whole}} or {{among: [...]}}.")
    if "among" in given:
        if set(given) != {"among"} or not isinstance(given["among"], list) or not given["among"]:
            raise ConfigError(
                f"{where}: among is {shown(given['among'])}; expected a list of values, and nothing else."
            )
        if not all(isinstance(value, str | int | float | bool) for value in given["among"]):
            raise ConfigError(f"{where}: among has {shown(given['among'])}; expected texts, numbers, true or false.")
        return given["among"]
    if not {"low", "high"} <= set(given):
        raise ConfigError(f"{where}: expected both low and high.")
    found = {key: convert(value, _RANGE[key], f"{where}.{key}") for key, value in given.items()}
    found = {"log": False, "whole": False, **found}
    if not found["low"] < found["high"] or (found["log"] and found["low"] <= 0):
        raise ConfigError(
            f"{where}: low is {found['low']:g} and high {found['high']:g}; low must be less, and above 0 with log."
        )
    if found["whole"]:
        found |= {key: convert(given[key], int, f"{where}.{key}") for key in ("low", "high")}
    return found


def _distributions(optuna: Any, recipe: Recipe) -> dict[str, Any]:
    made = {}
    for name, given in recipe.over.items():
        values = _range(given, f"{recipe.file}: search.over.{name}")
        if isinstance(values, list):
            made[name] = optuna.distributions.CategoricalDistribution(values)
        elif values["whole"]:
            made[name] = optuna.distributions.IntDistribution(values["low"], values["high"], log=values["log"])
        else:
            made[name] = optuna.distributions.FloatDistribution(values["low"], values["high"], log=values["log"])
    return made


def _trial_jobs(plan: Plan, search: SearchSettings, name: str, settings: Mapping[str, Any]) -> dict[Key, Job]:
    """The jobs of one trial: the steps that its settings change, as far as the measured predictions need them."""
    recipe, base = plan.recipe, plan.recipe.cases[search.case]
    where = f"{recipe.file}: search.over"
    changes = {search.step: _change(base, recipe, search, settings, where)}
    steps = changed_steps(all_steps(base, recipe.cases), changes, where)
    data, seeds = (search.data or base.data[0],), tuple(search.seeds or base.seeds[:1])
    strange = [seed for seed in seeds if seed not in base.seeds]
    if strange:
        raise ConfigError(f"{recipe.file}: search: seeds names {strange[0]}; {base.name} has {list(base.seeds)}.")
    case = Case(name, name, data, seeds, steps, search.case, base.where, True)
    jobs = plan.with_case(case).all()
    return chosen(jobs, [key for key in jobs if key[1:3] == (name, search.measure)])


def _try(
    plan: Plan, search: SearchSettings, runner: Runner, found: Any, number: int, settings: dict[str, Any]
) -> list[str]:
    """Run one trial and report its value to Optuna."""
    name = f"search/trial-{number}"
    jobs = _trial_jobs(plan, search, name, settings)
    outcomes = runner.run(jobs)
    values = [
        _value(job, search)
        for key, job in jobs.items()
        if key.case == name and key.step == search.measure and outcomes[key].good
    ]
    if not values or not all(outcome.good for outcome in outcomes.values()):
        found.tell(number, state=_optuna().trial.TrialState.FAIL)
        runner.say(f"trial {number}: no value; {_in_words(settings)}")
        return losses(outcomes, jobs)
    value = statistics.fmean(values)
    found.tell(number, value)
    runner.say(f"trial {number}: validation {search.metric} {value:.4f}; {_in_words(settings)}")
    return []


def _value(job: Job, search: SearchSettings) -> float:
    """The metric on validation examples, mean over examples."""
    from minionerec.metrics.ranked import Ranked
    from minionerec.metrics.ranking import ranking_metrics

    k = int(search.metric.partition("@")[2])
    trained = getattr(type(job.settings), "kind", "") in TRAINED
    folder = job.folder / "predictions" if trained else job.folder
    ranked = Ranked.load(folder, SPLIT)
    if search.level not in ranked.ranks or (ranked.list_length is not None and ranked.list_length < k):
        raise ConfigError(f"{folder}: has no {search.metric} at level {search.level}, which the search asks for.")
    return float(ranking_metrics(ranked.ranks[search.level], [k], every_mrr=True)[search.metric].mean())


def _identity(plan: Plan, search: SearchSettings) -> dict[str, Any]:
    """Identity of a search: what is searched, and the settings that all trials share."""
    given = {key: value for key, value in vars(search).items() if key not in ("trials", "name", "seed")}
    some = {name: _end(_range(given, name), low=True) for name, given in plan.recipe.over.items()}
    shared = {}
    for key, job in _trial_jobs(plan, search, "search/trial", some).items():
        ours = key[1:3] == ("search/trial", search.step)
        shared[key.title] = {name: value for name, value in job.values.items() if not (ours and name in some)}
    plain: dict[str, Any] = json.loads(json.dumps({"asked": given, "over": sorted(some), "steps": shared}, default=str))
    return plain


def _end(values: Any, low: bool) -> Any:
    """The first value of a range, or its last."""
    return values[0 if low else -1] if isinstance(values, list) else values["low" if low else "high"]


def _check_same(found: Any, identity: dict[str, Any], folder: Path) -> None:
    before = found.user_attrs.get("identity")
    if before is None:
        found.set_user_attr("identity", identity)
    elif before != identity:
        raise ConfigError(
            f"{folder}: holds trials of another search, or of a recipe with other settings. Give the recipe another "
            "output, or remove that folder."
        )


def _write_best(plan: Plan, search: SearchSettings, found: Any, path: Path, say: Callable[[str], None]) -> None:
    finished = [trial for trial in found.get_trials(deepcopy=False) if trial.value is not None]
    if not finished:
        raise MinioneRecError(f"{path.parent}: no trial has a value; fix what failed, remove the folder, run again.")
    best = max(finished, key=lambda trial: (trial.value, -trial.number))
    jobs = _trial_jobs(plan, search, f"search/trial-{best.number}", dict(best.params))
    job = next(job for key, job in jobs.items() if key.step == search.step and key.case.startswith("search/"))
    values = {key: value for key, value in job.values.items() if key != "output"}
    head = (
        f"# Trial {best.number} of {len(finished)}: validation {search.metric} {best.value:.6f}\n"
        f"# settings: {json.dumps(best.params)}\n"
    )
    write_text_atomic(path, head + yaml.safe_dump(values, sort_keys=False))
    say(f"best: trial {best.number}, validation {search.metric} {best.value:.4f}; {_in_words(best.params)}: {path}")


def _in_words(settings: Mapping[str, Any]) -> str:
    words = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in settings.items()}
    return ", ".join(f"{name} {value}" for name, value in words.items())
