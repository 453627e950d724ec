"""Recipes: reading and checking their files, without running them; `docs/recipes.md` explains every key.

A recipe names steps, each a stage with its settings; placeholders such as `{sids}` are outputs of other steps:

    # Semantic IDs of my shop
    output: runs/shop
    steps:
      corpus: {stage: prepare-data, interactions: shop.csv}
      sids: {stage: build-sids, corpus: "{corpus}"}

A recipe may inherit everything from another (`base`) and change it. Shipped recipes are in `configs/FOLDER/NAME.yaml`;
a folder's name alone means its recipe `language`.
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
from minionerec.core.values import convert, yaml_with_lines
from minionerec.pipeline.settings import Settings, StageConfig, setting, typed_values
from minionerec.pipeline.stages import STAGES, StageSpec

T = TypeVar("T")

HOME = "configs"
USUAL = "language"
DEMO = "demo/language"
WORDS = ("seed", "runs")
"""Placeholders that are not outputs of steps."""
PLACEHOLDER = re.compile(r"\{([A-Za-z0-9][\w.-]*)\}")
NAME = re.compile(r"[A-Za-z0-9][\w-]{0,59}")
_OWN_KEYS = ("base", "without", "variables", "steps")
_OF_STEP = ("stage", "config", "once")


@dataclass
class RecipeSettings(Settings):
    """Settings of a whole recipe."""

    output: str = setting("", "folder of its steps' outputs, unless they name their own")
    seeds: list[int] = setting(
        [],
        "seeds of every training that names no seed; steps that read its output are run with each seed, too",
        least=0,
    )
    jobs: int = setting(1, "steps that run at a time", least=1)
    threads: int | None = setting(None, "CPU threads of each step; the library's own choice if not given", least=1)
    launch: str | None = setting(None, "file for `accelerate launch`; chosen by the machine if not given", path=True)
    serve: str = setting("", "step whose model is to be served: a run ends with the command; none if empty")


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
class Recipe:
    """A recipe.

    Attributes:
        file: Its file.
        settings: Its settings as a whole.
        variables: Placeholder to its value, which may hold others.
        steps: Its steps by name, in order.
    """

    file: Path
    settings: RecipeSettings
    variables: Mapping[str, Any]
    steps: Mapping[str, RecipeStep]

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
    """A recipe without its base and without published results to compare with, as YAML."""
    layer = _Layer.read(file)
    rest = {key: value for key, (value, _) in layer.raw.items()}
    content: dict[str, Any] = {"variables": layer.variables} if layer.variables else {}
    content |= {key: rest.pop(key) for key in list(rest) if key in RecipeSettings.__dataclass_fields__}
    if layer.steps:
        content["steps"] = _steps_content(layer.steps)
    return yaml.safe_dump(
        _unpublished(content | rest), sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
    )


def _unpublished(value: Any) -> Any:
    """A value without the keys `reference` and `published`, in what it holds too."""
    if isinstance(value, dict):
        return {key: _unpublished(entry) for key, entry in value.items() if key not in ("reference", "published")}
    return [_unpublished(entry) for entry in value] if isinstance(value, list) else value


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


def read_recipe(name: str | os.PathLike[str], changes: Mapping[str, Mapping[str, Any]] | None = None) -> Recipe:
    """A recipe with all of its names checked.

    Args:
        name: Path of its file, or the name of a shipped one.
        changes: Step to settings that replace those of the file.

    Raises:
        ConfigError: If it is malformed; the message names file, line and key.
    """
    return _Layer.read(find_recipe(name)).recipe(changes or {})


def at(where: str, make: Callable[[], T]) -> T:
    """The result of a function; an error of its settings is prefixed with file, line and key.

    Raises:
        ConfigError: As the function raises it, with that prefix.
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


def _complete(steps: Steps) -> dict[str, RecipeStep]:
    """Steps that each have a stage: the one that they name, or that of their own name."""
    complete = {}
    for step in steps.values():
        step = _inherited(step, steps)
        if not step.stage and step.name not in STAGES:
            others = ", ".join(name for name in steps if name != step.name) or "none"
            raise ConfigError(
                f"{step.where}: has no stage, and no step of the base has this name; give it a `stage`, or the "
                f"name of one of the others: {others}."
            )
        complete[step.name] = step if step.stage else replace(step, stage=step.name)
    return complete


@dataclass
class _Layer:
    """The content of a file over that of its base.

    Attributes:
        file: The file.
        lines: The lines of its keys.
        raw: Key to its value and file, line and key; all but steps.
        variables: Placeholder to value.
        steps: Steps.
    """

    file: Path
    lines: Mapping[tuple[str, ...], int]
    raw: dict[str, tuple[Any, str]] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, RecipeStep] = field(default_factory=dict)

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
        self.raw |= {key: (value, self.where(key)) for key, value in content.items()}

    def recipe(self, changes: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """The checked recipe, with settings of steps that replace those of the file."""
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
        if not self.steps:
            raise ConfigError(f"{self.where()}: has no steps; give it `steps:` with at least one.")
        for name, values in changes.items():
            if name not in self.steps:
                raise ConfigError(f"--set {name}: {self.file} has no such step; its steps: {', '.join(self.steps)}.")
            where = f"--set {name}"
            step = self.steps[name]
            locations = {**step.locations, **dict.fromkeys(values, where)}
            self.steps[name] = replace(step, values={**step.values, **values}, locations=locations)
        return Recipe(self.file, settings, self.variables, _complete(self.steps))

    def _check_serve(self, name: str) -> None:
        """Check that `serve` names a step."""
        if name and name not in self.steps:
            where, names = self.raw["serve"][1], ", ".join(self.steps) or "none"
            raise ConfigError(f"{where} is {name!r}, which is no step; its steps: {names}.")

    def _check_names(self) -> None:
        where = self.where("variables")
        for name in self.variables:
            if not NAME.fullmatch(name) or name in WORDS:
                raise ConfigError(
                    f"{where}: {shown(name)} cannot be a name; expected letters, digits, - and _, and none of "
                    f"{', '.join(WORDS)}."
                )
            if name in self.steps:
                raise ConfigError(f"{where}: {name!r} is both a variable and a step; give each a name of its own.")


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


def settings_file(name: str, beside: Path | None = None) -> Path:
    """A file of settings: as named, among the shipped files, or in a folder."""
    found = find_path(name)
    return found if beside is None or found.exists() or not (beside / name).is_file() else beside / name
