"""Recipes: reading and checking their files, without running them; `docs/how-to/recipes.md` explains every key.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.errors import ConfigError, did_you_mean, shown
from minionerec.core.paths import find_path, path_word, shipped_root
from minionerec.core.values import convert, yaml_with_lines
from minionerec.pipeline.settings import Settings, StageConfig, setting, typed_values
from minionerec.pipeline.stages import STAGES, StageSpec

HOME = "configs"
USUAL = "language"
DEMO = "demo/language"
RUNS = "runs"
"""Placeholder of the recipe's `output`."""
PLACEHOLDER = re.compile(r"\{([A-Za-z0-9][\w.-]*)\}")
NAME = re.compile(r"[A-Za-z0-9][\w-]{0,59}")


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

    def contradictions(self) -> Iterator[str]:
        """Values that no recipe can have."""
        if PLACEHOLDER.search(self.output):
            yield (
                f"output is {shown(self.output)}, but the folder of all outputs holds no placeholders. Write it out."
            )
        if len(set(self.seeds)) < len(self.seeds):
            yield "seeds names one twice; give each once."


_KEYS = (*RecipeSettings.__dataclass_fields__, "base", "without", "variables", "steps")


@dataclass(frozen=True)
class RecipeStep:
    """A step of a recipe.

    Attributes:
        name: Name of the step.
        spec: Stage of the step.
        config: Settings that it inherits: a file, or RECIPE#STEP; "" for none. May hold placeholders.
        values: Settings of its own, which may hold placeholders.
        where: File, line and key, for messages.
        locations: Setting to file, line and key of the step that gives it, for messages.
    """

    name: str
    spec: StageSpec
    config: str
    values: Mapping[str, Any]
    where: str
    locations: Mapping[str, str]

    @property
    def kind(self) -> type[Settings]:
        """Class of the stage's settings."""
        return self.spec.config_class()

    @property
    def writes(self) -> bool:
        """Whether its stage writes an artefact, and does not only print."""
        return issubclass(self.kind, StageConfig)


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Attributes:
        file: File of the recipe.
        settings: Settings of the whole recipe.
        variables: Placeholder to its value, which may hold others.
        steps: Name to step, in order.
    """

    file: Path
    settings: RecipeSettings
    variables: Mapping[str, Any]
    steps: Mapping[str, RecipeStep]

    @property
    def folder(self) -> Path:
        """Folder of the outputs."""
        return Path(self.settings.output)

    @cached_property
    def name(self) -> str:
        """Name in commands: that of a shipped recipe, else the path."""
        home = shipped_root() / HOME
        if self.file.resolve().is_relative_to(home):
            return str(self.file.resolve().relative_to(home).with_suffix(""))
        return path_word(self.file)

    @cached_property
    def launch(self) -> Path | None:
        """File for `accelerate launch --config_file`; None if the machine decides.

        Raises:
            ConfigError: If it does not exist.
        """
        file = find_path(self.settings.launch) if self.settings.launch else None
        if file is not None and not file.is_file():
            raise ConfigError(f"{self.file}: launch is {self.settings.launch!r}, but there is no such file.")
        return file


def shipped_recipes() -> dict[str, str]:
    """Name of each shipped recipe to the comment in its first line, in the order of names.

    The usual recipe of a folder has the folder's name; files whose name begins with _ are only bases.
    """
    home = shipped_root() / HOME
    comments = {}
    for file in home.glob("*/[!_]*.yaml"):
        name = file.parent if file.stem == USUAL else file.with_suffix("")
        first_line = file.read_text(encoding="utf-8").partition("\n")[0]
        comments[str(name.relative_to(home))] = first_line.lstrip("# ").rstrip().rstrip(".")
    return dict(sorted(comments.items()))


def find_recipe(name: str | os.PathLike[str], beside: Path | None = None) -> Path:
    """The file of a recipe: a path, or the name of a shipped one.

    Args:
        name: Path or name.
        beside: Folder that is searched first.

    Raises:
        ConfigError: If there is neither.
    """
    for root in ([beside] if beside else []) + [Path(), shipped_root(), shipped_root() / HOME]:
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
    if "base" in yaml_with_lines(source)[0]:
        content = {key: value for key, value in _unpublished(_read_content(source)[0]).items() if value}
        comments = [line for line in text.split("\nbase:")[0].splitlines() if line.startswith("#")]
        text = "".join(f"{line}\n" for line in comments)
        text += yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    elif "reference: " in text:
        text = re.sub(r"^ +(?:reference: .+|published: \w[\w ./-]*)\n", "", text, flags=re.M)
        text = re.sub(r", (?:reference|published): [^,}]+", "", text)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(file, text)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error.strerror}). Give another path.") from None
    return file


def _unpublished(value: Any) -> Any:
    """A value without `reference`, and without the `published` counterparts that need it, in what it holds too."""
    if isinstance(value, dict):
        return {key: _unpublished(entry) for key, entry in value.items() if key not in ("reference", "published")}
    return [_unpublished(entry) for entry in value] if isinstance(value, list) else value


@contextmanager
def located(where: str) -> Iterator[None]:
    """Prefix the message of an error of settings with file, line and key.

    Raises:
        ConfigError: As it is raised inside, with that prefix.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def read_recipe(name: str | os.PathLike[str], changes: Mapping[str, Mapping[str, Any]] | None = None) -> Recipe:
    """A recipe with all of its names checked.

    Args:
        name: Path of its file, or the name of a shipped one.
        changes: Step to settings that replace those of the file.

    Raises:
        ConfigError: If it is malformed; the message names file, line and key.
    """
    file = find_recipe(name)
    content, locations = _read_content(file)
    variables, steps = content.pop("variables"), content.pop("steps")
    settings, values = RecipeSettings(), dict[str, Any]()
    for key in RecipeSettings.__dataclass_fields__:
        if key in content:
            values |= typed_values(RecipeSettings, {key: content[key]}, locations[key,])
            with located(locations[key,]):
                settings = RecipeSettings(**values)
    names = ", ".join(steps) or "none"
    if settings.serve and settings.serve not in steps:
        raise ConfigError(f"{locations['serve',]}: serve is {settings.serve!r}, which is no step; its steps: {names}.")
    if not steps:
        raise ConfigError(f"{file}: has no steps; give it `steps:` with at least one.")
    for step, changed in (changes or {}).items():
        if step not in steps:
            raise ConfigError(f"--set {step}: {file} has no such step; its steps: {names}.")
        steps[step] |= changed
        locations |= {("steps", step, key): f"--set {step}" for key in changed}
    return Recipe(file, settings, variables, {name: _read_step(name, steps, locations) for name in steps})


_Locations = dict[tuple[str, ...], str]
"""Keys of an entry to its file and line; of a step and its settings to the step with its file and line."""


def _read_content(file: Path, above: tuple[Path, ...] = ()) -> tuple[dict[str, Any], _Locations]:
    """The content of a file over that of its base, and the location of each entry, for messages."""
    content, lines = yaml_with_lines(file)
    own_locations: _Locations = {(str(key),): str(file) for key in content}
    own_locations |= {keys: f"{file}, line {line}" for keys, line in lines.items()}

    def where(key: str) -> str:
        return f"{own_locations.get((key,), file)}: {key}"

    for key in content:
        if key not in _KEYS:
            raise ConfigError(f"{where(str(key))}: unknown key {shown(key)}. Known keys: {', '.join(_KEYS)}.")
    merged: dict[str, Any] = {"variables": {}, "steps": {}}
    locations: _Locations = {}
    base = content.pop("base", None)
    if base is not None:
        base_name = convert(base, str, where("base"))
        with located(where("base")):
            base_file = find_recipe(base_name, file.parent)
        above = (*above, file.resolve())
        if base_file.resolve() in above:
            way = ", ".join(path.stem for path in above)
            raise ConfigError(f"{where('base')} is {base!r}, which is based on this file, by way of {way}. Change one.")
        merged, locations = _read_content(base_file, above)
    variables, steps = merged.pop("variables"), merged.pop("steps")
    for name in convert(content.pop("without", None) or [], list[str], where("without")):
        if name not in steps:
            raise ConfigError(
                f"{where('without')} names {name!r}; the steps of the base: {', '.join(steps) or 'none'}."
            )
        del steps[name]
    variables |= _mapping(content.pop("variables", None), where("variables"))
    locations |= own_locations
    steps = _merged_steps(steps, _mapping(content.pop("steps", None), where("steps")), locations)
    for name in variables:
        if not NAME.fullmatch(name) or name == RUNS:
            raise ConfigError(
                f"{where('variables')}: {shown(name)} cannot be a name; expected letters, digits, - and _, and not "
                f"{RUNS}."
            )
        if name in steps:
            raise ConfigError(
                f"{where('variables')}: {name!r} is both a variable and a step; give each a name of its own."
            )
    return {"variables": variables, **merged, **content, "steps": steps}, locations


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{where} is {shown(value)}; expected a mapping, such as `name: value`.")
    return {str(key): entry for key, entry in (value or {}).items()}


def _merged_steps(
    base: Mapping[str, Any], steps: Mapping[str, Any], locations: _Locations
) -> dict[str, dict[str, Any]]:
    """Merge steps of a file, not yet checked, into those of its base, and add the locations of their settings.

    A new step is placed after the one that it follows in its file, or last.
    """
    merged, names = dict(base), list(base)
    position = len(names)
    for name, content in steps.items():
        where = locations["steps", name] = f"{locations.get(('steps', name), locations['steps',])}: steps.{name}"
        if not NAME.fullmatch(name):
            raise ConfigError(f"{where}: {shown(name)} cannot be a step's name; expected letters, digits, - and _.")
        values = _mapping(content, where)
        locations.update((("steps", name, key), where) for key in values)
        merged[name] = {**base.get(name, {}), **values}
        if name not in base:
            names.insert(position, name)
        position = names.index(name) + 1
    return {name: merged[name] for name in names}


def _read_step(
    name: str, steps: Mapping[str, Mapping[str, Any]], locations: _Locations, followed: tuple[str, ...] = ()
) -> RecipeStep:
    """A step with its stage, and the settings of the other step that its `config` names by #STEP, all but its output.

    `followed` are the steps whose `config` led to this one.
    """
    where, values = locations["steps", name], dict(steps[name])
    value_locations = {key: locations["steps", name, key] for key in values}
    stage, config = (convert(values.pop(key, None) or "", str, f"{where}.{key}") for key in ("stage", "config"))
    others = ", ".join(other for other in steps if other != name) or "none"
    if stage and stage not in STAGES:
        raise ConfigError(f"{value_locations['stage']}.stage: no stage {shown(stage)}; known: {', '.join(STAGES)}.")
    if config.startswith("#"):
        if config[1:] not in steps or config[1:] in (*followed, name):
            problem = "refers back to the step itself" if config[1:] in steps else "names no step"
            raise ConfigError(f"{where}: config is {shown(config)}, which {problem}; the others: {others}.")
        other = _read_step(config[1:], steps, locations, (*followed, name))
        stage, config = stage or other.spec.name, other.config
        values = {**{key: value for key, value in other.values.items() if key != "output"}, **values}
        value_locations = {**other.locations, **value_locations}
    stage = stage or (name if name in STAGES else "")
    if not stage:
        raise ConfigError(
            f"{where}: has no stage, and no step of the base has this name; give it a `stage`, or the name of one of "
            f"the others: {others}."
        )
    return RecipeStep(name, STAGES[stage], config, values, where, value_locations)
