"""What a study's file says: data sets, cases, their steps, seeds, tables, a search; read and checked, nothing run yet.

`docs/studies.md` explains every key. A step is `STAGE: {config, set, as, once}`; a case has steps of its own, those of
the whole study, or those of the case that it is `like` with some settings changed.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from minionerec.cli.recipes import HOME
from minionerec.cli.stages import STAGES
from minionerec.cli.study_settings import (
    Case,
    CaseSettings,
    SearchSettings,
    StepSettings,
    Study,
    StudySettings,
    StudyStep,
)
from minionerec.core.errors import ConfigError, shown
from minionerec.core.places import find_path, shipped_root
from minionerec.core.settings import Settings, StageConfig, read_yaml, typed_values

S = TypeVar("S", bound=Settings)
T = TypeVar("T")

FOLDER = "studies"
WORDS = ("data", "case", "seed", "runs")
"""Placeholders that are no step's output."""
TAKEN = ("prepared", "compare", "log", "search", *WORDS)
PLACEHOLDER = re.compile(r"\{([A-Za-z0-9][\w.-]*)\}")
_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,59}")
_OWN_KEYS = ("data", "steps", "cases", "compare", "log", "search")


def find_study(name: str) -> Path:
    """The file of a study: a path, or the name of a shipped one.

    Raises:
        ConfigError: If there is neither.
    """
    home = shipped_root() / HOME / FOLDER
    for place in (find_path(name), home / f"{name}.yaml"):
        if place.is_file():
            return place
    known = ", ".join(sorted(path.stem for path in home.glob("*.yaml")))
    raise ConfigError(f"{name}: no study there; expected a YAML file, or the name of a shipped one: {known}.")


def read_study(name: str) -> Study:
    """A study's file, every name in it checked.

    Args:
        name: Its path, or the name of a shipped one.

    Raises:
        ConfigError: If it is malformed; the message names file and key.
    """
    file = find_study(name)
    content = read_yaml(file)
    unknown = [key for key in content if key not in _OWN_KEYS and key not in StudySettings.__dataclass_fields__]
    if unknown:
        known = ", ".join([*StudySettings.__dataclass_fields__, *_OWN_KEYS])
        raise ConfigError(f"{file}: unknown key {shown(unknown[0])}. Known keys: {known}.")
    settings = _settings(
        StudySettings, {key: value for key, value in content.items() if key not in _OWN_KEYS}, str(file)
    )
    if len(set(settings.seeds)) < len(settings.seeds):
        raise ConfigError(f"{file}: seeds names one twice; give each once.")
    data = {
        key: tuple(_steps(value, f"{file}: data.{key}"))
        for key, value in _named(content.get("data"), f"{file}: data").items()
    }
    reader = _Cases(file, settings, data, tuple(_steps(content.get("steps"), f"{file}: steps")), content.get("cases"))
    cases = reader.read()
    compare = {
        key: _mapping(value, f"{file}: compare.{key}")
        for key, value in _named(content.get("compare", {"test": {}}), f"{file}: compare").items()
    }
    log = None if content.get("log") is None else _mapping(content["log"], f"{file}: log")
    search, over = _search(content.get("search"), cases, data, f"{file}: search")
    return Study(file, settings, data, cases, compare, log, search, over)


def _settings(kind: type[S], values: Mapping[str, Any], where: str) -> S:
    typed = typed_values(kind, values, where)
    return at(where, lambda: kind(**typed))


def at(where: str, make: Callable[[], T]) -> T:
    """What a function gives; an error of its settings says where they stand.

    Raises:
        ConfigError: As the function raises it, with the place before it.
    """
    try:
        return make()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {shown(value)}; expected a mapping, such as `name: value`.")
    return value


def _named(value: Any, where: str) -> dict[str, Any]:
    """A mapping whose keys name folders and placeholders."""
    found = {str(key): entry for key, entry in _mapping(value, where).items()}
    if not found:
        raise ConfigError(f"{where} is empty; name at least one.")
    for key in found:
        if not _NAME.fullmatch(key) or key in TAKEN:
            raise ConfigError(
                f"{where}: {shown(key)} cannot be a name; expected letters, digits, - and _, and none of "
                f"{', '.join(TAKEN)}."
            )
    return found


def _steps(value: Any, where: str) -> Iterator[StudyStep]:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(entry, dict) and len(entry) == 1 for entry in value):
        raise ConfigError(f"{where}: expected a list of steps, each `- STAGE: {{config: FILE, set: {{...}}}}`.")
    names: set[str] = set()
    for entry in value:
        ((stage, said),) = entry.items()
        step = _step(str(stage), said, where)
        if step.name in names:
            raise ConfigError(f"{where}: two steps are called {step.name!r}; give one another name by `as`.")
        names.add(step.name)
        yield step


def _step(stage: str, said: Any, where: str) -> StudyStep:
    where = f"{where}.{stage}"
    if stage not in STAGES:
        raise ConfigError(f"{where}: no such stage; known: {', '.join(STAGES)}.")
    said = {"config": said} if isinstance(said, str) else dict(_mapping(said, where))
    values = _mapping(said.pop("set", None), f"{where}.set")
    if "name" in said:
        raise ConfigError(f"{where}: unknown key 'name'. Known keys: config, set, as, once.")
    if "as" in said:
        said["name"] = said.pop("as")
    own = _settings(StepSettings, said, where)
    name = own.name or stage
    if not _NAME.fullmatch(name) or name in TAKEN:
        raise ConfigError(f"{where}: as is {shown(name)}, which cannot be a name; choose another.")
    kind = STAGES[stage].config_class()
    if not issubclass(kind, StageConfig):
        raise ConfigError(f"{where}: this stage only prints; leave it out.")
    places = dict.fromkeys(values, f"{where}.set")
    return StudyStep(name, STAGES[stage], kind, own.config, values, own.once, where, places)


@dataclass
class _Cases:
    """Reads cases, each after the one that it is like."""

    file: Path
    settings: StudySettings
    data: Mapping[str, Any]
    common: tuple[StudyStep, ...]
    given: Any
    found: dict[str, Case] = field(default_factory=dict)

    def read(self) -> dict[str, Case]:
        """All cases, in the order of the file."""
        self.given = _named(self.given, f"{self.file}: cases")
        both = sorted(set(self.data) & set(self.given))
        if both:
            raise ConfigError(f"{self.file}: {both[0]!r} is both a data set and a case; give each a name of its own.")
        for key in self.given:
            self._add(key, [])
        return {key: self.found[key] for key in self.given}

    def _add(self, key: str, waiting: list[str]) -> Case:
        if key in self.found:
            return self.found[key]
        where = f"{self.file}: cases.{key}"
        if key in waiting:
            raise ConfigError(f"{where}: is like itself, by way of {', '.join(waiting)}. Give it steps of its own.")
        said = dict(_mapping(self.given[key], where))
        steps, changes = said.pop("steps", None), _mapping(said.pop("set", None), f"{where}.set")
        own = _settings(CaseSettings, said, where)
        unknown = [name for name in own.data if name not in self.data]
        if unknown:
            raise ConfigError(f"{where}: data names {unknown[0]!r}; known: {', '.join(self.data)}.")
        base = None
        if own.like:
            if own.like not in self.given:
                raise ConfigError(f"{where}: like is {own.like!r}; known cases: {', '.join(self.given)}.")
            if steps is not None:
                raise ConfigError(f"{where}: has both like and steps; take one of the two.")
            base = self._add(own.like, [*waiting, key])
            found = changed_steps(all_steps(base, self.found), changes, f"{where}.set")
        else:
            found = self.common if steps is None else tuple(_steps(steps, f"{where}.steps"))
            _check_changes(found, changes, f"{where}.set")
            found = tuple(_with(step, changes, f"{where}.set") for step in found)
        if not found:
            raise ConfigError(f"{where}: has no steps; give it steps, or like and set.")
        self.found[key] = Case(
            key,
            own.label or key,
            tuple(own.data or (base.data if base else self.data)),
            tuple(own.seeds or (base.seeds if base else self.settings.seeds)),
            found,
            own.like or None,
            where,
            bool(own.seeds) or bool(base and base.own_seeds),
        )
        return self.found[key]


def all_steps(case: Case, cases: Mapping[str, Case]) -> list[StudyStep]:
    """The steps of a case in order, shared ones among them."""
    if case.base is None:
        return list(case.steps)
    own = {step.name: step for step in case.steps}
    return [own.get(step.name, step) for step in all_steps(cases[case.base], cases)]


def changed_steps(steps: Sequence[StudyStep], changes: Mapping[str, Any], where: str) -> tuple[StudyStep, ...]:
    """Steps with some settings changed: those that are, and those that read them, directly or through others.

    Args:
        steps: All steps of a case.
        changes: Step to setting to value.
        where: File and key, for messages.

    Raises:
        ConfigError: If nothing is changed, or there is no such step.
    """
    if not changes:
        raise ConfigError(f"{where} is empty; say what is changed, as `STEP: {{setting: value}}`.")
    _check_changes(steps, changes, where)
    touched: set[str] = set(changes)
    for step in steps:
        names = {name.partition(".")[0] for name in placeholders([step.config, step.values])}
        if names & touched or (names & {"case"}):
            touched.add(step.name)
    return tuple(_with(step, changes, where) for step in steps if step.name in touched)


def _with(step: StudyStep, changes: Mapping[str, Any], where: str) -> StudyStep:
    where = f"{where}.{step.name}"
    more = {str(key): value for key, value in _mapping(changes.get(step.name), where).items()}
    places = {**step.places, **dict.fromkeys(more, where)}
    return replace(step, values={**step.values, **more}, places=places)


def _check_changes(steps: Sequence[StudyStep], changes: Mapping[str, Any], where: str) -> None:
    names = [step.name for step in steps]
    for key in changes:
        if key not in names:
            raise ConfigError(f"{where}: no step {shown(key)}; its steps: {', '.join(names)}.")


def placeholders(value: Any) -> Iterator[str]:
    """The placeholders in a value, in what it holds too."""
    if isinstance(value, str):
        yield from PLACEHOLDER.findall(value)
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from placeholders(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from placeholders(entry)


def _search(
    value: Any, cases: Mapping[str, Case], data: Mapping[str, Any], where: str
) -> tuple[SearchSettings | None, dict[str, Any]]:
    if value is None:
        return None, {}
    said = dict(_mapping(value, where))
    over = _mapping(said.pop("over", None), f"{where}.over")
    found = _settings(SearchSettings, said, where)
    if not over:
        raise ConfigError(f"{where}: over is empty; name at least one setting, as `learning_rate: {{low: 1e-4, ...}}`.")
    if found.case not in cases:
        raise ConfigError(f"{where}: case is {found.case!r}; known: {', '.join(cases)}.")
    if found.name in cases or found.name in TAKEN or not _NAME.fullmatch(found.name):
        raise ConfigError(f"{where}: name is {found.name!r}, which is taken; choose another for the winner.")
    names = [step.name for step in all_steps(cases[found.case], cases)]
    for key, name in (("step", found.step), ("measure", found.measure)):
        if name not in names:
            raise ConfigError(f"{where}: {key} is {name!r}; the steps of {found.case}: {', '.join(names)}.")
    if found.data and found.data not in data:
        raise ConfigError(f"{where}: data is {found.data!r}; known: {', '.join(data)}.")
    return found, over
