"""Recipes: reading and checking their files, without running them; `docs/recipes.md` explains every key.

A recipe names steps, each a stage with its settings; placeholders such as `{sids}` are outputs of other steps:

    # Semantic IDs of my shop
    output: runs/shop
    steps:
      corpus: {stage: prepare-data, interactions: shop.csv}
      sids: {stage: build-sids, corpus: "{corpus}"}

A recipe may inherit everything from another (`base`) and change it, and it may run its steps for several data sets,
cases and seeds. Shipped recipes are in `configs/FOLDER/NAME.yaml`; a folder's name alone means its recipe `language`.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.errors import ConfigError, did_you_mean, shown
from minionerec.core.paths import find_path, path_word, shipped_root
from minionerec.core.settings import Settings, StageConfig, setting, typed_values
from minionerec.core.stages import STAGES, StageSpec
from minionerec.core.values import convert, yaml_with_lines

S = TypeVar("S", bound=Settings)
T = TypeVar("T")

HOME = "configs"
USUAL = "language"
DEMO = "demo/language"
OF_DATA, OF_CASE = "data", "case"
WORDS = (OF_DATA, OF_CASE, "seed", "runs")
"""Placeholders that are not outputs of steps."""
TAKEN = ("prepared", "compare", "log", "search", *WORDS)
"""Names that no step, data set or case of a recipe with cases may have."""
PLACEHOLDER = re.compile(r"\{([A-Za-z0-9][\w.-]*)\}")
NAME = re.compile(r"[A-Za-z0-9][\w-]{0,59}")
_OWN_KEYS = ("base", "without", "variables", "data", "steps", "cases", "compare", "log", "search")
_OF_CASES = ("data", "cases", "compare", "log", "search")
"""Keys that only a recipe with cases has."""
_OF_STEP = ("stage", "config", "once")


@dataclass
class RecipeSettings(Settings):
    """Settings of a whole recipe."""

    output: str = setting("", "folder of its steps' outputs, unless they name their own")
    seeds: list[int] = setting(
        [],
        "seeds of every case that names none of its own; without cases, of every training that names no seed",
        least=0,
    )
    jobs: int = setting(1, "steps that run at a time", least=1)
    threads: int | None = setting(None, "CPU threads of each step; the library's own choice if not given", least=1)
    launch: str | None = setting(None, "file for `accelerate launch`; chosen by the machine if not given", path=True)
    serve: str = setting("", "step whose model is to be served: a run ends with the command; none if empty")


@dataclass
class CaseSettings(Settings):
    """Settings of one case of a recipe, other than its steps."""

    label: str = setting("", "name in the tables; that of the case if empty")
    base: str = setting("", "case whose steps it inherits and changes; the recipe's own steps if empty")
    data: list[str] = setting([], "data sets that it is run on; all if empty")
    seeds: list[int] = setting([], "its own seeds; the recipe's if empty", least=0)


@dataclass
class SearchSettings(Settings):
    """Settings of a recipe's search, other than the ranges."""

    case: str = setting("", "case whose settings are searched", required=True)
    step: str = setting("", "step of the case whose settings are searched", required=True)
    measure: str = setting("", "step of the case whose predictions on validation examples are measured", required=True)
    metric: str = setting("NDCG@10", "metric to maximise: HR@K, NDCG@K or MRR@K", required=True)
    level: str = setting("item", "reading of a hit", known=("item", "sid"))
    trials: int = setting(20, "number of trials", least=1)
    data: str = setting("", "data set to search on; the first if empty")
    seeds: list[int] = setting([], "seeds of each trial, which are averaged; the case's first if empty", least=0)
    seed: int = setting(0, "seed of the search itself", least=0)
    name: str = setting("best", "name of the case with the best settings", required=True)


@dataclass(frozen=True)
class RecipeStep:
    """One step, as in the file.

    Attributes:
        name: Its name.
        where: File, line and key, for messages.
        stage: Its stage; "" where a step of the base names it.
        config: Settings that it inherits: a file, or RECIPE#STEP; "" for none. May hold placeholders.
        values: Settings of its own, which may hold placeholders.
        once: Whether it is run once for all seeds.
        locations: Setting to file, line and key, for messages.
    """

    name: str
    where: str
    stage: str
    config: str
    values: Mapping[str, Any]
    once: bool
    locations: Mapping[str, str]

    @property
    def spec(self) -> StageSpec:
        """Its stage."""
        return STAGES[self.stage]

    @property
    def kind(self) -> type[Settings]:
        """Class of the stage's settings."""
        return self.spec.config_class()

    @property
    def writes(self) -> bool:
        """Whether its stage writes an artefact, and does not only print."""
        return issubclass(self.kind, StageConfig)

    def changed(self, by: "RecipeStep") -> "RecipeStep":
        """The step with the name and the settings of another one over its own."""
        return replace(
            self,
            name=by.name,
            where=by.where,
            stage=by.stage or self.stage,
            config=by.config or self.config,
            values={**self.values, **by.values},
            once=by.once or self.once,
            locations={**self.locations, **by.locations},
        )


Steps = Mapping[str, RecipeStep]


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: Its name; "" for the only one of a recipe without cases.
        label: Its name in tables.
        data: Data sets that it is run on.
        seeds: Its seeds.
        steps: Its own steps, in order.
        base: Case whose other steps it shares; None where all are its own.
        where: File, line and key, for messages.
        own_seeds: Whether it names its seeds itself.
    """

    name: str
    label: str
    data: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: tuple[RecipeStep, ...]
    base: str | None
    where: str
    own_seeds: bool


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Attributes:
        file: Its file.
        settings: Its settings as a whole.
        variables: Placeholder to its value, which may hold others.
        data: Data set to the steps that prepare it; "" alone in a recipe without cases.
        cases: The cases, by name; "" alone in a recipe without cases.
        compare: Table to its settings; `of` names the step whose predictions it compares.
        log: Settings of the experiment log; None for no log.
        search: The search; None for none.
        over: Setting to the values that are searched, as in the file.
    """

    file: Path
    settings: RecipeSettings
    variables: Mapping[str, Any]
    data: Mapping[str, tuple[RecipeStep, ...]]
    cases: Mapping[str, Case]
    compare: Mapping[str, Mapping[str, Any]]
    log: Mapping[str, Any] | None
    search: SearchSettings | None
    over: Mapping[str, Any]

    @property
    def has_cases(self) -> bool:
        """Whether it runs its steps for data sets, cases and seeds, and not just once."""
        return "" not in self.cases

    @property
    def folder(self) -> Path:
        """The folder of its outputs."""
        return Path(self.settings.output)

    @cached_property
    def name(self) -> str:
        """Its name in commands: that of a shipped recipe, else its path."""
        home = shipped_root() / HOME
        if self.file.resolve().is_relative_to(home):
            return str(self.file.resolve().relative_to(home).with_suffix(""))
        return path_word(self.file)


def shipped_recipes() -> dict[str, str]:
    """Name of each shipped recipe to the comment in its first line, in the order of names.

    The usual recipe of a folder has the folder's name; files whose name begins with _ are only bases.
    """
    home = shipped_root() / HOME
    found = {}
    for file in sorted(home.glob("*/[!_]*.yaml")):
        with open(file, encoding="utf-8") as opened:
            head = opened.readline()
        name = file.parent if file.stem == USUAL else file.with_suffix("")
        found[str(name.relative_to(home))] = head.lstrip("# ").rstrip().rstrip(".")
    return dict(sorted(found.items()))


def find_recipe(name: str | os.PathLike[str], beside: Path | None = None) -> Path:
    """The file of a recipe: a path, or the name of a shipped one.

    Args:
        name: Path or name.
        beside: Folder that is searched first.

    Raises:
        ConfigError: If there is neither.
    """
    home = shipped_root() / HOME
    for root in ([beside] if beside else []) + [Path(), shipped_root(), home]:
        for file in (root / name, root / f"{name}.yaml", root / name / f"{USUAL}.yaml"):
            if file.is_file() and file.suffix == ".yaml":
                return file
    if (Path(name) / "pipeline.yaml").is_file():
        raise ConfigError(
            f"{name}: is a folder with a pipeline.yaml, as recipes were in version 0.1; a recipe is one file now. "
            "Write the files' settings as its steps (docs/recipes.md)."
        )
    raise ConfigError(
        f"{name}: no such recipe; expected a YAML file, or the name of a shipped one."
        f"{did_you_mean(name, shipped_recipes())} minionerec recipes lists them."
    )


def copy_recipe(name: str, target: str | os.PathLike[str]) -> Path:
    """Write a recipe as one file, to be edited, with the content of its bases.

    The comparison with published results (`reference`) is left out, since these are about one data set alone.

    Args:
        name: Name of a shipped recipe, or path.
        target: A new file that ends in .yaml, or a folder, in which the file gets the recipe's own name.

    Raises:
        ConfigError: If there is no such recipe, or the file exists.
    """
    source, file = find_recipe(name), Path(target)
    file = file if file.suffix == ".yaml" else file / source.name
    if file.exists():
        raise ConfigError(f"{file}: exists already; give a new file.")
    text = source.read_text(encoding="utf-8")
    content, _ = yaml_with_lines(source)
    if "base" in content:
        head = "".join(f"{line}\n" for line in text.split("\nbase:")[0].splitlines() if line.startswith("#"))
        text = head + _written_out(source)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(file, _without_reference(text))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error.strerror}). Give another path.") from None
    return file


def _without_reference(text: str) -> str:
    """The text of a recipe without `reference`, and without the `published` counterparts that need it."""
    if not re.search(r"\breference: ", text):
        return text
    text = re.sub(r"^ +(?:reference: .+|published: \w[\w ./-]*)\n", "", text, flags=re.M)
    return re.sub(r", (?:reference|published): [^,}]+", "", text)


def _written_out(file: Path) -> str:
    """A recipe without its base, as YAML."""
    layer = _Layer.read(file)
    rest = {key: value for key, (value, _) in layer.raw.items()}
    content: dict[str, Any] = {"variables": layer.variables} if layer.variables else {}
    content |= {key: rest.pop(key) for key in list(rest) if key in RecipeSettings.__dataclass_fields__}
    if layer.data:
        content["data"] = {name: _steps_content(steps) for name, steps in layer.data.items()}
    if layer.steps:
        content["steps"] = _steps_content(layer.steps)
    if layer.cases:
        content["cases"] = {
            name: {**values, **({"steps": _steps_content(steps)} if steps else {})}
            for name, (values, steps, _) in layer.cases.items()
        }
    return yaml.safe_dump(content | rest, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)


def _steps_content(steps: Steps) -> dict[str, Any]:
    return {
        step.name: {
            **({"stage": step.stage} if step.stage not in ("", step.name) else {}),
            **({"config": step.config} if step.config else {}),
            **({"once": True} if step.once else {}),
            **step.values,
        }
        for step in steps.values()
    }


def read_recipe(name: str | os.PathLike[str]) -> Recipe:
    """A recipe with all of its names checked.

    Args:
        name: Path of its file, or the name of a shipped one.

    Raises:
        ConfigError: If it is malformed; the message names file, line and key.
    """
    return _Layer.read(find_recipe(name)).recipe()


def at(where: str, make: Callable[[], T]) -> T:
    """The result of a function; an error of its settings is prefixed with file, line and key.

    Raises:
        ConfigError: As the function raises it, with that prefix.
    """
    try:
        return make()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _settings(kind: type[S], values: Mapping[str, Any], where: str) -> S:
    typed = typed_values(kind, values, where)
    return at(where, lambda: kind(**typed))


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {shown(value)}; expected a mapping, such as `name: value`.")
    return {str(key): entry for key, entry in value.items()}


def _merged(base: Steps, own: Steps) -> dict[str, RecipeStep]:
    """Steps with others over them; a new one is placed after the one that it follows in its file, or last."""
    names = list(base)
    before: str | None = None
    for name in own:
        if name not in base:
            names.insert(len(names) if before is None else names.index(before) + 1, name)
        before = name
    new = {name: step for name, step in own.items() if name not in base}
    return {
        name: base[name].changed(own[name]) if name in base and name in own else {**base, **new}[name] for name in names
    }


def _inherited(step: RecipeStep, steps: Steps, before: tuple[str, ...] = ()) -> RecipeStep:
    """A step with the settings of the other step that its `config` names by #STEP, all but its output."""
    if not step.config.startswith("#"):
        return step
    name = step.config[1:]
    if name not in steps or name in (*before, step.name):
        names = ", ".join(other for other in steps if other != step.name) or "none"
        raise ConfigError(
            f"{step.where}: config is {shown(step.config)}, "
            + (
                f"which refers back to the step itself; its other steps: {names}."
                if name in steps
                else f"but there is no such step; the others: {names}."
            )
        )
    other = _inherited(steps[name], steps, (*before, step.name))
    own_stage = step.stage or other.stage or (other.name if other.name in STAGES else "")
    values = {key: value for key, value in other.values.items() if key != "output"}
    return replace(other, config=other.config, values=values, once=False).changed(
        replace(step, stage=own_stage, config="")
    )


def _complete(steps: Steps, case: str) -> tuple[RecipeStep, ...]:
    """Steps that each have a stage: the one that they name, or that of their own name."""
    found = []
    for step in steps.values():
        step = _inherited(step, steps)
        if not step.stage and step.name not in STAGES:
            others = ", ".join(name for name in steps if name != step.name) or "none"
            raise ConfigError(
                f"{step.where}: has no stage, and no step of the base has this name; give it a `stage`, or the "
                f"name of one of the others: {others}."
            )
        found.append(step if step.stage else replace(step, stage=step.name))
        if case and step.name in TAKEN:
            raise ConfigError(f"{step.where}: {step.name!r} cannot be the name of a step here; choose another.")
        if case and not found[-1].writes:
            raise ConfigError(f"{step.where}: this stage only prints; leave it out.")
    return tuple(found)


@dataclass
class _Layer:
    """The content of a file over that of its base.

    Attributes:
        file: The file.
        lines: The lines of its keys.
        raw: Key to its value and file, line and key; all but steps.
        variables: Placeholder to value.
        data: Data set to its steps.
        steps: Steps.
        cases: Case to its settings, the steps that it changes or adds, and file, line and key.
    """

    file: Path
    lines: Mapping[tuple[str, ...], int]
    raw: dict[str, tuple[Any, str]] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    data: dict[str, dict[str, RecipeStep]] = field(default_factory=dict)
    steps: dict[str, RecipeStep] = field(default_factory=dict)
    cases: dict[str, tuple[Mapping[str, Any], Steps, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path, waiting: tuple[Path, ...] = ()) -> "_Layer":
        """A file, its bases read before."""
        content, lines = yaml_with_lines(file)
        layer = cls(file, lines)
        known = [*RecipeSettings.__dataclass_fields__, *_OWN_KEYS]
        for key in content:
            if key not in known:
                raise ConfigError(f"{layer.where(str(key))}: unknown key {shown(key)}. Known keys: {', '.join(known)}.")
        base = content.pop("base", None)
        if base is not None:
            layer = replace(layer._base(base, waiting), file=file, lines=lines)
        layer._put(content)
        return layer

    def _base(self, base: Any, waiting: tuple[Path, ...]) -> "_Layer":
        where = self.where("base")
        name = convert(base, str, where)
        found = at(where, lambda: find_recipe(name, self.file.parent))
        before = (*waiting, self.file.resolve())
        if found.resolve() in before:
            names = ", ".join(path.stem for path in before)
            raise ConfigError(
                f"{where} is {name!r}, which is based on this file itself, by way of {names}. Change one."
            )
        return self.read(found, before)

    def where(self, *keys: str) -> str:
        """File, line and key, for messages."""
        found = next((self.lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), None)
        position = str(self.file) if found is None else f"{self.file}, line {found}"
        return f"{position}: {'.'.join(keys)}" if keys else position

    def _read_names(self, value: Any, *keys: str) -> dict[str, Any]:
        """A mapping whose keys name folders and placeholders."""
        found = _mapping(value, self.where(*keys))
        if not found:
            raise ConfigError(f"{self.where(*keys)} is empty; name at least one.")
        for key in found:
            if not NAME.fullmatch(key) or key in TAKEN:
                raise ConfigError(
                    f"{self.where(*keys, key)}: {shown(key)} cannot be a name; expected letters, digits, - and _, and "
                    f"none of {', '.join(TAKEN)}."
                )
        return found

    def _read_steps(self, value: Any, *keys: str) -> dict[str, RecipeStep]:
        """Steps by name, in order."""
        return {name: self._step(name, raw, *keys, name) for name, raw in _mapping(value, self.where(*keys)).items()}

    def _step(self, name: str, raw: Any, *keys: str) -> RecipeStep:
        where = self.where(*keys)
        if not NAME.fullmatch(name):
            raise ConfigError(f"{where}: {shown(name)} cannot be a step's name; expected letters, digits, - and _.")
        values = _mapping(raw, where)
        stage, config = (convert(values.pop(key, None) or "", str, self.where(*keys, key)) for key in _OF_STEP[:2])
        once = convert(values.pop("once", None) or False, bool, self.where(*keys, "once"))
        if stage and stage not in STAGES:
            raise ConfigError(f"{self.where(*keys, 'stage')}: no stage {shown(stage)}; known: {', '.join(STAGES)}.")
        return RecipeStep(name, where, stage, config, values, once, dict.fromkeys(values, where))

    def _put(self, content: dict[str, Any]) -> None:
        for name in convert(content.pop("without", None) or [], list[str], self.where("without")):
            if name not in self.steps:
                known = ", ".join(self.steps) or "none"
                raise ConfigError(f"{self.where('without')} names {name!r}; the steps of the base: {known}.")
            del self.steps[name]
        self.variables |= _mapping(content.pop("variables", None), self.where("variables"))
        self.steps = _merged(self.steps, self._read_steps(content.pop("steps", None), "steps"))
        if "data" in content:
            for name, raw in self._read_names(content.pop("data"), "data").items():
                self.data[name] = _merged(self.data.get(name, {}), self._read_steps(raw, "data", name))
        if "cases" in content:
            for name, raw in self._read_names(content.pop("cases"), "cases").items():
                where = self.where("cases", name)
                values = _mapping(raw, where)
                steps = self._read_steps(values.pop("steps", None), "cases", name, "steps")
                before = self.cases.get(name)
                if before is not None:
                    values, steps = {**before[0], **values}, _merged(before[1], steps)
                self.cases[name] = (values, steps, where)
        self.raw |= {key: (value, self.where(key)) for key, value in content.items()}

    def recipe(self) -> Recipe:
        """The checked recipe."""
        settings = RecipeSettings()
        for key in RecipeSettings.__dataclass_fields__:
            if key in self.raw:
                value, where = self.raw[key]
                typed = typed_values(RecipeSettings, {key: value}, where.removesuffix(f": {key}"))
                setattr(settings, key, typed[key])
                at(where.removesuffix(f": {key}"), settings.__post_init__)
        if PLACEHOLDER.search(settings.output):
            raise ConfigError(
                f"{self.raw['output'][1]} is {shown(settings.output)}, but the folder of all outputs holds no "
                "placeholders. Write it out."
            )
        if len(set(settings.seeds)) < len(settings.seeds):
            raise ConfigError(f"{self.raw['seeds'][1]} names one twice; give each once.")
        self._check_names()
        self._check_serve(settings.serve)
        given = [key for key in _OF_CASES if key in self.raw or getattr(self, key, None)]
        if not given:
            return self._plain(settings)
        file = self.where()
        for key, there in (
            ("output", settings.output),
            ("seeds", settings.seeds),
            ("data", self.data),
            ("cases", self.cases),
        ):
            if not there:
                raise ConfigError(
                    f"{file}: has {given[0]}, but no {key}; a recipe with cases needs output, seeds, data and cases."
                )
        data = {name: _complete(steps, name) for name, steps in self.data.items()}
        cases = _cases(self, settings)
        compare = self._named("compare", {"test": {}})
        log = None if self.raw.get("log", (None,))[0] is None else _mapping(*self.raw["log"])
        search, over = _search(*self.raw.get("search", (None, "")), cases, data)
        return Recipe(self.file, settings, self.variables, data, cases, compare, log, search, over)

    def _plain(self, settings: RecipeSettings) -> Recipe:
        if not self.steps:
            raise ConfigError(f"{self.where()}: has no steps; give it `steps:` with at least one.")
        case = Case("", "", ("",), tuple(settings.seeds), _complete(self.steps, ""), None, self.where("steps"), False)
        return Recipe(self.file, settings, self.variables, {"": ()}, {"": case}, {}, None, None, {})

    def _named(self, key: str, default: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        value, where = self.raw.get(key, (default, ""))
        found = _mapping(value, where)
        for name in found:
            if not NAME.fullmatch(name):
                raise ConfigError(f"{where}: {shown(name)} cannot be a name; expected letters, digits, - and _.")
        return {name: _mapping(raw, f"{where}.{name}") for name, raw in found.items()}

    def _check_serve(self, name: str) -> None:
        """Check that `serve` names a step of a recipe without cases."""
        if name and name not in self.steps:
            where, names = self.raw["serve"][1], ", ".join(self.steps) or "none"
            raise ConfigError(f"{where} is {name!r}, which is no step; its steps: {names}.")

    def _check_names(self) -> None:
        where = self.where("variables")
        names = {*self.steps, *(name for _, steps, _ in self.cases.values() for name in steps)}
        for name in self.variables:
            if not NAME.fullmatch(name) or name in WORDS:
                raise ConfigError(
                    f"{where}: {shown(name)} cannot be a name; expected letters, digits, - and _, and none of "
                    f"{', '.join(WORDS)}."
                )
            if name in names:
                raise ConfigError(f"{where}: {name!r} is both a variable and a step; give each a name of its own.")
        both = sorted(set(self.data) & set(self.cases))
        if both:
            raise ConfigError(
                f"{self.where('cases', both[0])}: {both[0]!r} is both a data set and a case; give each a name "
                "of its own."
            )


def _cases(layer: _Layer, settings: RecipeSettings) -> dict[str, Case]:
    """The cases in the order of the file, each made after its base."""
    found: dict[str, Case] = {}

    def add(key: str, waiting: list[str]) -> Case:
        if key in found:
            return found[key]
        (values, changes, where), known = layer.cases[key], layer.cases
        if key in waiting:
            raise ConfigError(f"{where}: is based on itself, by way of {', '.join(waiting)}. Give it own steps.")
        own = _settings(CaseSettings, values, where)
        unknown = [name for name in own.data if name not in layer.data]
        if unknown:
            raise ConfigError(f"{where}: data names {unknown[0]!r}; known: {', '.join(layer.data)}.")
        if own.base and own.base not in known:
            raise ConfigError(f"{where}: base is {own.base!r}; known cases: {', '.join(known)}.")
        base = add(own.base, [*waiting, key]) if own.base else None
        if base is not None:
            steps = changed_steps(all_steps(base, found), changes, where)
        else:
            steps = _complete(_merged(layer.steps, changes), key)
        if not steps:
            raise ConfigError(f"{where}: has no steps; give it `steps`, or a `base` and changes.")
        found[key] = Case(
            key,
            own.label or key,
            tuple(own.data or (base.data if base else layer.data)),
            tuple(own.seeds or (base.seeds if base else settings.seeds)),
            steps,
            own.base or None,
            where,
            bool(own.seeds) or bool(base and base.own_seeds),
        )
        return found[key]

    return {key: add(key, []) for key in layer.cases}


def all_steps(case: Case, cases: Mapping[str, Case]) -> list[RecipeStep]:
    """The steps of a case in order, shared ones among them."""
    if case.base is None:
        return list(case.steps)
    shared = {step.name: step for step in all_steps(cases[case.base], cases)}
    return list(_merged(shared, {step.name: step for step in case.steps}).values())


def changed_steps(steps: list[RecipeStep], changes: Steps, where: str) -> tuple[RecipeStep, ...]:
    """The changed steps, and those that read them, directly or through others.

    Args:
        steps: All steps of a case.
        changes: The steps that are changed or added.
        where: File, line and key, for messages.

    Raises:
        ConfigError: If nothing is changed, or there is no such step.
    """
    if not changes:
        raise ConfigError(f"{where}: changes nothing; say what, as `steps: {{STEP: {{setting: value}}}}`.")
    touched: set[str] = set(changes)
    found = _complete(_merged({step.name: step for step in steps}, changes), "a case")
    for step in found:
        names = {name.partition(".")[0] for name in placeholders([step.config, step.values])}
        if names & touched or (names & {OF_CASE}):
            touched.add(step.name)
    return tuple(step for step in found if step.name in touched)


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
    value: Any, where: str, cases: Mapping[str, Case], data: Mapping[str, Any]
) -> tuple[SearchSettings | None, dict[str, Any]]:
    if value is None:
        return None, {}
    raw = _mapping(value, where)
    over = _mapping(raw.pop("over", None), f"{where}.over")
    found = _settings(SearchSettings, raw, where)
    if not over:
        raise ConfigError(f"{where}: over is empty; name at least one setting, as `learning_rate: {{low: 1e-4, ...}}`.")
    if found.case not in cases:
        raise ConfigError(f"{where}: case is {found.case!r}; known: {', '.join(cases)}.")
    if found.name in cases or found.name in TAKEN or not NAME.fullmatch(found.name):
        raise ConfigError(f"{where}: name is {found.name!r}, which is taken; choose another for the best settings.")
    names = [step.name for step in all_steps(cases[found.case], cases)]
    for key, name in (("step", found.step), ("measure", found.measure)):
        if name not in names:
            raise ConfigError(f"{where}: {key} is {name!r}; the steps of {found.case}: {', '.join(names)}.")
    if found.data and found.data not in data:
        raise ConfigError(f"{where}: data is {found.data!r}; known: {', '.join(data)}.")
    return found, over


def settings_file(name: str, beside: Path | None = None) -> Path:
    """A file of settings: as named, among the shipped files, or in a folder."""
    found = find_path(name)
    return found if beside is None or found.exists() or not (beside / name).is_file() else beside / name
