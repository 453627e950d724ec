"""Settings: a dataclass for each stage, with values from a YAML file and from flags, which win.

Every field is made by `setting`, which keeps with the default what the setting means, which values it takes and what
role it has: whether it affects the result, whether it names an input. Checks, `--help`, manifests and the test whether
an output is up to date all read that one description.

    @dataclass
    class SidConfig(StageConfig):
        corpus: str = setting("", "corpus whose items get SIDs", input_kind="corpus")
        levels: int = setting(3, "codes of each SID", least=1)
        weights: dict[str, float] = setting({"rule": 1.0}, "rewards with weights")

In YAML a list is a list and a mapping a mapping; on the command line they are words: `--weights rule=1 ndcg=0.5`.
"""

import argparse
import copy
import dataclasses
import operator
import os
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_origin

from minionerec.core.commands import CommandParser
from minionerec.core.errors import ConfigError, did_you_mean, shown
from minionerec.core.log import get_logger
from minionerec.core.paths import find_parts, find_path
from minionerec.core.urls import is_remote
from minionerec.core.values import convert, in_words, read_yaml, without_none

C = TypeVar("C")
logger = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Description:
    """Everything about a setting but its type and default.

    Attributes:
        help: Effect of the setting, with its unit.
        known: The values that it takes (of a list, each of its entries; of a mapping, its keys); any if empty.
        least: Smallest number allowed.
        above: Number that it must exceed.
        most: Largest number allowed.
        below: Number that it must stay under.
        required: Whether an empty text, list or mapping is an error.
        affects_result: Whether the result depends on it. What does not (paths, threads, how to resume) may differ
            between a finished or interrupted run and the one that resumes it.
        resumable: Whether a finished or interrupted run may be resumed with a larger value (epochs).
        input_kind: The kind of artefact that its path must lead to; "any" for an artefact of any kind or a file. The
            result depends on the content and not on the path.
        parts: Whether it may name a folder as well, whose files are the parts of what is read; each is an input then.
        writes: Whether it is a path that is written to, as every `output` is; it must be on this machine.
        path: Whether it is, or may be, or holds some other path than that of an input or of what is written. In every
            path a first part `~` or `~name` is the user's home folder, or that of the named user.
        requires: Name of the setting without which it means nothing. Where that one has its default this one must have
            its own too, and does not affect the result.
    """

    help: str
    known: Sequence[Any] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    required: bool = False
    affects_result: bool = True
    resumable: bool = False
    input_kind: str = ""
    parts: bool = False
    writes: bool = False
    path: bool = False
    requires: str = ""


def setting(default: Any, help: str, **described: Any) -> Any:
    """A field of a configuration.

    Args:
        default: Default value; a list or mapping is copied for every configuration.
        help: Effect of the setting, with its unit.
        described: Other attributes of the `Description`, by name.
    """
    metadata = {"setting": Description(help=help, **described)}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


type_hints: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)
"""Name of each setting of a configuration class to its type."""


def description(field: Field[Any]) -> Description:
    """The description of a field that `setting` made."""
    described: Description = field.metadata["setting"]
    return described


@dataclass
class Settings:
    """Base of all configurations; that of a stage which only prints needs no more."""

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read.

        Raises:
            ConfigError: Naming all settings that are wrong by themselves, or else all that contradict one another.
        """
        check_settings(self)
        problems: list[str] = []
        try:
            problems += self.contradictions()
        except ConfigError as error:
            problems += error.lines()
        if problems:
            raise ConfigError(*problems)

    def contradictions(self) -> Iterator[str]:
        """Contradictions between settings, each with its values and the remedy; every value is valid by itself.

        A configuration adds its own to those that it inherits. Where one makes further checks impossible, it may raise
        a ConfigError that ends the list.
        """
        yield from ()

    def local(self) -> Self:
        """A copy with local paths: every input at a URL is fetched, and named by the path of its copy.

        This is the edge: what runs after it is given these settings, reads local paths alone and fetches nothing. A
        folder whose files are the parts of an input stays as given; `inputs` names them.

        Raises:
            ArtefactError: If a URL cannot be fetched.
            ConfigError: If its protocol is not supported.
        """
        local = copy.copy(self)
        for field in fields(self):
            setattr(local, field.name, _local(description(field), getattr(self, field.name)))
        return local

    def inputs(self) -> dict[str, Path]:
        """Name to path of everything that is read; stages add what their settings do not name.

        Of local settings (`local`) every path is there. Where a folder is read as its parts, they are "setting 00000",
        "setting 00001" and so on, ordered by their names.

        Raises:
            ArtefactError: If a folder of parts cannot be read or fetched.
            ConfigError: If the protocol of its URL is not supported.
        """
        may_be_folders = {field.name for field in fields(self) if description(field).parts}
        inputs: dict[str, Path] = {}
        for name, path in _named_inputs(self).items():
            parts = find_parts(path) if name in may_be_folders else None
            inputs |= {name: Path(path)} if parts is None else {f"{name} {n:05}": part for n, part in enumerate(parts)}
        return inputs

    def named_paths(self) -> list[Path]:
        """Paths of all inputs that the settings name, whether they exist yet or not; recipes are ordered by them."""
        return [Path(path) for path in _named_inputs(self).values() if not is_remote(path)]


@dataclass
class StageConfig(Settings):
    """Base of the configurations of stages that write an artefact.

    Attributes:
        kind: The kind of artefact.
    """

    kind: ClassVar[str] = ""

    output: str = setting("", "directory to write", required=True, affects_result=False)

    def deciding(self) -> dict[str, Any]:
        """Values that affect the result, by name: the settings declared so, and what a stage adds to them."""
        return {field.name: getattr(self, field.name) for field in fields(self) if _decides(self, field)}

    def up_to_date(self) -> bool:
        """Whether the output was made from these settings and inputs, so that the stage need not be started."""
        from minionerec.pipeline.stage import Stage

        return Stage(self).current(say=False) is not None


def path_settings(config_class: type[Any]) -> list[str]:
    """Names of the settings that are paths: of inputs, of what is written, and others."""
    return [field.name for field in fields(config_class) if _is_path(field)]


def _is_path(field: Field[Any]) -> bool:
    described = description(field)
    return bool(described.input_kind or described.writes or described.path or field.name == "output")


def _named_inputs(config: Any) -> dict[str, str]:
    """Name of each setting that names an input to its path; of a mapping of paths, "setting key" to path."""
    inputs: dict[str, str] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if not description(field).input_kind or not value:
            continue
        if isinstance(value, Mapping):
            inputs |= {f"{field.name} {key}": path for key, path in value.items()}
        else:
            inputs[field.name] = value
    return inputs


def _local(described: Description, value: Any) -> Any:
    """The value of a setting in local settings."""
    if described.input_kind and isinstance(value, Mapping):
        return {key: str(find_path(path)) for key, path in value.items()}
    if not isinstance(value, str) or not (described.input_kind or described.path):
        return value
    if not value or (described.parts and find_parts(value) is not None):
        return value
    path = find_path(value)  # of a name, such as that of a model, the name
    return value if path == Path(value) else str(path)


def input_kinds(config: Any) -> dict[str, str]:
    """Name of each declared input to the kind of artefact that it must be; "any" where it may be a file too."""
    kinds = {field.name: description(field).input_kind for field in fields(config)}
    return {name: kinds[name.partition(" ")[0]] for name in _named_inputs(config)}


def _decides(config: Any, field: Field[Any]) -> bool:
    described = description(field)
    if not described.affects_result or described.input_kind:  # of an input the content does
        return False
    return not _lacks_owner(config, field)


def _lacks_owner(config: Any, field: Field[Any]) -> bool:
    """Whether a setting belongs to another that has its default."""
    owner = description(field).requires
    return bool(owner) and getattr(config, owner) == default_of(type(config).__dataclass_fields__[owner])


def check_settings(config: Any) -> None:
    """Check every setting against its description; in paths `~` becomes the user's home folder.

    Raises:
        ConfigError: Naming each invalid setting, its value and what is allowed.
    """
    problems: list[str] = []
    for field in fields(config):
        described = description(field)
        if _is_path(field):
            try:
                setattr(config, field.name, _at_home(field.name, getattr(config, field.name)))
            except ConfigError as error:
                problems += error.lines()
        value = getattr(config, field.name)
        if _lacks_owner(config, field) and value != default_of(field):
            owner, default = described.requires, getattr(config, described.requires)
            word = str(default).lower() if isinstance(default, bool) else shown(default) if default else "empty"
            flag = f"--{owner} true" if default is False else f"--{owner}"
            problems.append(f"{field.name} is {shown(value)}, but {owner} is {word}; give {flag}, or leave it out.")
        else:
            problems += _value_problems(field, value)
    if problems:
        raise ConfigError(*problems)


def _value_problems(field: Field[Any], value: Any) -> Iterator[str]:
    """The problems with the value of one setting by itself."""
    described = description(field)
    if described.required and not value and value != 0:
        yield f"{field.name} is empty; give --{field.name}: {described.help}."
    entries = value if isinstance(value, list | Mapping) else [value]
    for entry in entries:
        if described.known and entry is not None and entry not in described.known:
            known = ", ".join(str(word) for word in described.known if word)
            yield f"unknown {field.name} {shown(entry)}; known: {known}."
    if (described.writes or field.name == "output") and is_remote(value):
        yield (
            f"{field.name} is {shown(value)}, but outputs are written on this machine. Give a local folder, and copy "
            "it there afterwards."
        )
    bounds = _bounds(described)
    named = {f"{field.name} {key}": entry for key, entry in value.items()} if isinstance(value, Mapping) else {}
    for name, number in named.items() or ((field.name, entry) for entry in entries):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if not all(is_inside(number, bound) for _, bound, is_inside in bounds):
            allowed = " and ".join(f"{word} {bound:g}" for word, bound, _ in bounds)
            yield f"{name} is {number}; it must be {allowed}."


def _at_home(name: str, value: Any, inside: bool = False) -> Any:
    """Paths, and those in lists and mappings, with `~` and `~name` expanded.

    Mappings inside of others may hold other texts, such as notes, which are kept unless they begin with a home folder.
    """
    if isinstance(value, Mapping):
        return {
            key: _at_home(f"{name} {key}", entry, inside or isinstance(entry, Mapping)) for key, entry in value.items()
        }
    if isinstance(value, list):
        return [_at_home(name, entry, inside) for entry in value]
    if not isinstance(value, str) or not value.startswith("~"):
        return value
    expanded = os.path.expanduser(value)
    if expanded.startswith("~") and not inside:
        raise ConfigError(f"{name} is {shown(value)}, but there is no such user. Fix the name, or write ./{value}")
    return expanded


def _bounds(described: Description) -> list[tuple[str, float, Callable[[float, float], bool]]]:
    """The bounds of a number: each in words, its value, and the comparison that holds inside of it."""
    bounds = (
        ("at least", described.least, operator.ge),
        ("above", described.above, operator.gt),
        ("at most", described.most, operator.le),
        ("below", described.below, operator.lt),
    )
    return [(word, bound, is_inside) for word, bound, is_inside in bounds if bound is not None]


def parse_settings(
    config_class: type[C],
    words: Sequence[str],
    *,
    program: str = "",
    summary: str = "",
    fallback: str | None = None,
    read: Callable[[type[Any], str], dict[str, Any]] | None = None,
) -> C:
    """Resolve one stage's configuration from `--config` and flags; flags win.

    Args:
        config_class: The configuration's dataclass.
        words: Command-line words.
        program: Name of the command, for `--help`.
        summary: Description of the command, for `--help`.
        fallback: The configuration where there is no `--config`; it is logged.
        read: Reads the settings that `--config` names, each as its type; `file_values` if None.

    Raises:
        ConfigError: Naming every unknown key and flag, and every value that does not fit, with its file or flag.
        SystemExit: After `--help`.
    """
    parsed, unknown = settings_parser(config_class, program, summary).parse_known_args(words)
    known = {field.name: field for field in fields(config_class)}  # type: ignore[arg-type]
    problems: list[str] = []
    if unknown:
        flags = [word[2:].partition("=")[0] for word in unknown if word.startswith("--")]
        suggestions = "".join(did_you_mean(flag, known) for flag in flags)
        problems.append(f"unrecognized arguments: {' '.join(unknown)}.{suggestions} See --help.")
    flag_values = vars(parsed)
    file = flag_values.pop("config", None)
    if file is None and fallback is not None:
        logger.info("No --config given: using the demo configuration, %s.", fallback)
        file = fallback
    values: dict[str, Any] = {}
    try:
        values |= {} if file is None else (read or file_values)(config_class, file)
    except ConfigError as error:
        problems += error.lines()
    try:
        values |= typed_values(config_class, flag_values, "--")
    except ConfigError as error:
        problems += error.lines()
    if problems:
        raise ConfigError(
            *problems, *(problem for key, value in values.items() for problem in _value_problems(known[key], value))
        )
    return config_class(**values)


def file_values(config_class: type[Any], file: str) -> dict[str, Any]:
    """The settings of a configuration in a YAML file, each as its type.

    Raises:
        ConfigError: As `read_yaml` and `typed_values`.
    """
    file = str(find_path(_at_home("--config", file)))
    return typed_values(config_class, read_yaml(file), file)


def typed_values(config_class: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Convert settings of a YAML mapping to the types of a configuration.

    Args:
        config_class: The configuration's dataclass.
        values: Setting to value.
        where: The file, or file and line, for messages; "--" for flags.

    Raises:
        ConfigError: Naming every unknown key, and every value that does not fit.
    """
    hints, known = type_hints(config_class), {field.name: field for field in fields(config_class)}
    typed: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in values.items():
        if key not in known:
            suggestion = did_you_mean(key, known)
            problems.append(f"{where}: unknown key {shown(key)}. Known keys: {', '.join(known)}.{suggestion}")
            continue
        try:
            typed[key] = convert(value, hints[key], f"--{key}" if where == "--" else f"{where}: {key}")
        except ConfigError as error:
            problems += error.lines()
    if problems:
        raise ConfigError(
            *problems, *(problem for key, value in typed.items() for problem in _value_problems(known[key], value))
        )
    return typed


def settings_parser(config_class: type[Any], program: str = "", summary: str = "") -> CommandParser:
    """The parser of a command's flags: `--config`, and one for each setting."""
    parser = CommandParser(
        prog=program or None,
        description=summary,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.HelpFormatter,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file with any of the settings below, or RECIPE#STEP, such as demo#sft; flags win over it",
    )
    hints = type_hints(config_class)
    for field in fields(config_class):
        described, kind = description(field), without_none(hints[field.name])
        default = default_text(field)
        shown = f" (default: {default})" if default else ""
        choice = f"; one of {', '.join(str(word) for word in described.known if word)}" if described.known else ""
        options: dict[str, Any] = {"help": f"{described.help}{choice}{shown}".replace("%", "%%")}
        if kind is bool:
            options |= {"nargs": "?", "const": "true", "metavar": "true|false"}
        elif get_origin(kind) is dict:
            options |= {"nargs": "*", "metavar": "NAME=VALUE"}
        elif get_origin(kind) is list:
            options |= {"nargs": "*", "metavar": "VALUE"}
        else:
            options["metavar"] = {int: "N", float: "X"}.get(kind, "TEXT")
        parser.add_argument(f"--{field.name}", **options)
    return parser


def default_of(field: Field[Any]) -> Any:
    """The default of a setting; a list or mapping is a new one."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def default_text(field: Field[Any]) -> str:
    """The default of a setting as words of a command line; "" for an empty one."""
    value = default_of(field)
    return "" if value in (None, "", [], {}) else in_words(value)
