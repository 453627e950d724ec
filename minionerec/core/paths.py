"""Paths of shipped files and user data, and functions named by dotted paths.

In a checkout recipes, launch files and the demo shop lie in `configs`, `ds_configs` and `data/demo`; an installed wheel
holds the same folders in `minionerec/shipped`. A relative path that does not exist in the current directory is looked
for there, so that the same settings work in both.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from minionerec.core.errors import ConfigError, shown
from minionerec.core.remote import local_parts, local_path, parts_of
from minionerec.core.urls import is_remote

_PACKAGE = Path(__file__).resolve().parents[1]
DATA_VARIABLE = "$MINIONEREC_DATA"
_SHIPPED = ("configs", "ds_configs", "data")  # a checkout holds more beside them, such as runs


def shipped_root() -> Path:
    """The folder with `configs`, `ds_configs` and `data/demo`: of the wheel, or the checkout itself."""
    installed = _PACKAGE / "shipped"
    return installed if installed.is_dir() else _PACKAGE.parent


def find_path(path: str | os.PathLike[str]) -> Path:
    """A path as given, or, where it does not exist, that of a shipped file; of a URL its local copy.

    A first part `$MINIONEREC_DATA` is the folder of that environment variable (`data` where it is not set).

    Raises:
        ArtefactError: If the path is a URL that cannot be fetched (`minionerec.core.remote`).
        ConfigError: If it is one of an unknown protocol, or of one whose package is not installed.
    """
    if is_remote(path):
        return local_path(path)
    given = Path(path)
    if given.parts[:1] == (DATA_VARIABLE,):
        return Path(os.environ.get(DATA_VARIABLE[1:]) or "data", *given.parts[1:])
    if os.path.exists(given) or given.is_absolute() or given.parts[:1] not in [(folder,) for folder in _SHIPPED]:
        return given
    shipped = shipped_root() / given
    return shipped if shipped.exists() else given


def input_path(name: str, given: Any, expected: str = "the folder that a stage wrote, or its result") -> str:
    """The path of an input: as given, or the output of the stage whose result it is.

    Args:
        name: Name of the input, for messages.
        given: A path, or an object with a path as its `output`.
        expected: The expected form, for messages.

    Raises:
        ConfigError: If it is neither.
    """
    path = getattr(given, "output", given)
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{name} is {shown(path)}; expected {expected}.")
    return str(os.fspath(path))


def find_parts(path: str) -> list[Path] | None:
    """The files of a folder, in the order of their names; None where a path is anything else.

    Args:
        path: As of `find_path`; of a URL the local copies of its files.

    Raises:
        ArtefactError: As `find_path`, or if no file is in the folder, or another folder (see `part_names`).
        ConfigError: As `find_path`.
    """
    if is_remote(path):
        return local_parts(path)
    found = find_path(path)
    return parts_of(found) if found.is_dir() else None


def path_word(path: str | os.PathLike[str]) -> str:
    """A path as a word of a command, which is not read as an option where it begins with a hyphen.

    Example:
        >>> path_word("runs/shop"), path_word("-shop.csv")
        ('runs/shop', './-shop.csv')
    """
    word = os.fspath(path)
    return f"./{word}" if word.startswith("-") else word


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path for messages: relative to the current directory, else to the shipped files, where it is below one."""
    full = Path(path).resolve()
    for root in (Path.cwd(), shipped_root()):
        if full.is_relative_to(root):
            return str(full.relative_to(root))
    return str(path)


def function_at(dotted: str, setting: str) -> Any:
    """The function (or class) of a dotted path, such as `my_rewards.novelty`.

    Modules are looked for where Python finds them, and in the current directory.

    Args:
        dotted: Module and name.
        setting: Name of the setting, for messages.

    Raises:
        ConfigError: If there is no such module or no such name in it, or it cannot be called.
    """
    module, _, name = dotted.rpartition(".")
    if not module:
        raise ConfigError(f"{setting} is {dotted!r}; expected the dotted path of a function, such as my_module.{name}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{setting} is {dotted!r}, but there is no module {error.name!r}. Install it, or run in its folder."
        ) from None
    except AttributeError:
        raise ConfigError(f"{setting} is {dotted!r}, but the module {module!r} has no {name!r}.") from None
    if not callable(found):
        raise ConfigError(f"{setting} is {dotted!r}, which cannot be called: it is a {type(found).__name__}.")
    return found


def function_file(dotted: str, setting: str) -> Path | None:
    """The file that holds the function of a dotted path: an input, for a changed file is a changed function.

    Args:
        dotted: Module and name.
        setting: Name of the setting, for messages.

    Returns:
        The file; None for a module that has none.

    Raises:
        ConfigError: If there is no such function.
    """
    function_at(dotted, setting)
    spec = importlib.util.find_spec(dotted.rpartition(".")[0])
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
