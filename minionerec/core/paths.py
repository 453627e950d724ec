"""Paths of shipped files and user data, and functions named by dotted paths.

In a checkout recipes, launch files and the demo shop lie in `configs`, `ds_configs` and `data/demo`; an installed wheel
holds the same folders in `minionerec/shipped`. A relative path that does not exist in the current directory is looked
for there, so that the same settings work in both.
"""

import os
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
