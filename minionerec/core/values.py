"""Parsing of values: YAML files and words of the command line become numbers, texts, lists and mappings."""

import copy
import datetime
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml

from minionerec.core.errors import ConfigError, one_line, shown

_TRUE, _FALSE, _NONE = ("true", "yes", "on", "1"), ("false", "no", "off", "0"), ("none", "null")
_WHOLE = re.compile(r"[-+]?[0-9]{1,20}")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_LOWEST, _HIGHEST = -(2**31), 2**32 - 1
_DEPTH, _SIZE = 20, 1 << 20


class _Loader(yaml.SafeLoader):
    """YAML for settings: unique keys, bounded depth, and every error with its line."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node of the file, unless it is nested too deep or an alias of another list or mapping."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias (*name); write the value out", mark)
        self.depth += 1
        if self.depth > _DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"nested more than {_DEPTH} deep", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """The value of a node; an invalid date or number is an error of its line."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            problem = "a number of too many digits" if "digits" in str(error) else f"{shown(node.value)}: {error}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys are all different."""
        seen: set[str] = set()
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(None, None, "expected a mapping", node.start_mark)
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{shown(key.value)} twice", key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        ValueError: If it is no YAML, names a key twice, repeats nodes by aliases, or is nested too deep; the message
            names line and column, on one line.
    """
    return copy.deepcopy(_parsed(text)[0])


@lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[Any, Mapping[tuple[str, ...], int]]:
    """The value of a YAML text, which callers must not modify, and the line of every key.

    Cached, since a recipe is read again for each of its steps, and parsing dominates the time of a plan.

    Raises:
        ValueError: As `parse_yaml`.
    """
    try:
        loader = _Loader(text)  # a SafeLoader
        node = loader.get_single_node()
        value = None if node is None else loader.construct_document(node)
        return value, dict(_lines_of(node, ()))
    except RecursionError:
        raise ValueError("nested too deep") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ValueError(f"{position}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(one_line(error)) from None


def _lines_of(node: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        path = (*above, str(key.value))
        yield path, key.start_mark.line + 1
        yield from _lines_of(value, path)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Parse one YAML mapping.

    Raises:
        ConfigError: If the file cannot be read, is not YAML, or is not a mapping; the message names file and line.
    """
    return _mapping_of(path, _text_of(path))


def yaml_with_lines(path: str | Path) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    """Parse one YAML mapping, and find the line of every key: that of `a: {b: 1}` is at ("a", "b").

    Raises:
        ConfigError: As `read_yaml`.
    """
    text = _text_of(path)
    return _mapping_of(path, text), dict(_parsed(text)[1])


def _text_of(path: str | Path) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(_SIZE + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path}: no such file. Give --config the path of a YAML file.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Give the path of a YAML file.") from None
    except ValueError as error:  # a NUL in the path
        raise ConfigError(f"{path}: cannot be read ({error}). Give the path of a YAML file.") from None
    if len(content) > _SIZE:
        raise ConfigError(f"{path}: is larger than 1 MiB, so it holds no settings. Give the path of a YAML file.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"0x{content[error.start]:02x}"
        raise ConfigError(f"{path}, line {line}: byte {byte} is not UTF-8 text. Save the file as UTF-8.") from None


def _mapping_of(path: str | Path, text: str) -> dict[str, Any]:
    try:
        content = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not valid YAML ({error}).") from None
    if content is None:
        raise ConfigError(f"{path}: is empty, expected a mapping of settings.")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, got {type(content).__name__}.")
    return content


def without_none(hint: Any) -> Any:
    """The type of a setting that may also be None."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        return next(part for part in get_args(hint) if part is not type(None))
    return hint


def convert(value: Any, hint: Any, where: str) -> Any:
    """A value of a YAML file or of the command line as the type of a setting.

    Args:
        value: A value parsed by YAML, a word, or a list of words.
        hint: str, int, float, bool, `Any`, a list or a mapping of these; each may be optional (`| None`).
        where: File and key, or the flag, for messages.

    Raises:
        ConfigError: If the value does not fit the type.

    Example:
        >>> convert("1e-3", float, "--learning_rate"), convert(["a=2", "b"], dict[str, float], "--tasks")
        (0.001, {'a': 2.0, 'b': 1.0})
    """
    kind = without_none(hint)
    if kind is not hint and (value is None or (isinstance(value, str) and value.lower() in _NONE)):
        return None
    if get_origin(kind) is list:
        (inner,) = get_args(kind)
        if isinstance(value, str | int | float):
            raise ConfigError(f"{where} is {shown(value)}; expected a list, such as [{shown(value).strip(chr(39))}].")
        return [convert(entry, inner, where) for entry in _entries(value, where)]
    if get_origin(kind) is dict:
        return _convert_mapping(value, get_args(kind)[1], where)
    return _convert_scalar(value, kind, where)


def in_words(value: Any) -> str:
    """A value of a setting as words of a command line.

    Example:
        >>> in_words({"reach": 10, "exclude_seen": True}), in_words([1, 5]), in_words(None), in_words([])
        ('reach=10 exclude_seen=true', '1 5', 'none', 'empty')
    """
    if value is None:
        return "none"
    if isinstance(value, str | Mapping | list | tuple) and not value:
        return "empty"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={in_words(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(in_words, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _entries(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where} is {shown(value)}; expected a list.")
    return value


def _convert_mapping(value: Any, inner: Any, where: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        named = {_name(key, where): entry for key, entry in value.items()}
        if len(named) < len(value):
            raise ConfigError(f"{where} names a key twice, once as a text. Give each its own name.")
        return {key: convert(entry, inner, f"{where}: {key}") for key, entry in named.items()}
    converted: dict[str, Any] = {}
    for word in _entries(value, where):
        name, equals, text = str(word).partition("=") if isinstance(word, str | int | float) else ("", "", "")
        name = name.strip()
        if not name or (not equals and inner is not float) or (equals and not text.strip()):
            raise ConfigError(f"{where} has {shown(word)}; expected NAME=VALUE.")
        name = _name(name, where)
        if name in converted:
            raise ConfigError(f"{where} names {shown(name)} twice. Give each its own name.")
        converted[name] = convert(text.strip() if equals else 1.0, inner, f"{where} {name}")
    return converted


def _name(key: Any, where: str) -> str:
    """The key of a mapping as a text of one line."""
    if not isinstance(key, str | int | float) or len(str(key)) > 200 or _CONTROL.search(str(key)):
        raise ConfigError(f"{where} has the name {shown(key)}; expected a text of one line.")
    return str(key)


def _convert_scalar(value: Any, kind: Any, where: str) -> Any:
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(kind, "a value")
    try:
        if kind is Any:
            return parse_yaml(value) if isinstance(value, str) else value
        if kind is bool and isinstance(value, str):
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[value.lower()]
        if kind is bool and isinstance(value, bool):
            return value
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            if kind is int:
                return _whole(value)
            if kind is float and math.isfinite(number := _number(value)):
                return number
        if kind is str:
            return _text(value)
    except (ValueError, KeyError, OverflowError):
        pass
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        expected = f"a whole number from {_LOWEST:,} to {_HIGHEST:,}"
    if kind is str and isinstance(value, str):
        expected = "a text of one line"
    if kind is str and isinstance(value, float):
        expected = "a text; put it in quotes"
    raise ConfigError(f"{where} is {shown(value)}; expected {expected}.")


def _text(value: Any) -> str:
    """A text without control characters; whole numbers and dates become texts, other numbers would lose digits."""
    if isinstance(value, datetime.date) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)  # YAML reads a bare date as one
    if isinstance(value, str) and not _CONTROL.search(value):
        return value
    raise ValueError


def _number(value: str | int | float) -> float:
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        raise ValueError
    return float(value)


def _whole(value: str | int | float) -> int:
    if isinstance(value, str) and not _WHOLE.fullmatch(value.strip()):
        raise ValueError
    if isinstance(value, float) and value != int(value):
        raise ValueError
    number = int(value)
    if not _LOWEST <= number <= _HIGHEST:
        raise ValueError
    return number
