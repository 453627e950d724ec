"""Paths of shipped files and user data.

In a checkout, recipes, launch files and the demo shop are in `configs`, `ds_configs` and `data/demo`; an installed
wheel has the same folders in `minionerec/shipped`. A relative path that does not exist in the current directory is
looked up there, so that the same settings work in both.
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
    """A path as given, or the shipped file of that path if only that exists; for a URL, its local copy.

    A first part `$MINIONEREC_DATA` is replaced by that environment variable (`data` if it is not set).

    Raises:
        ArtefactError: If the path is a URL that cannot be fetched (`minionerec.core.remote`).
        ConfigError: If the URL's protocol is unknown or its package is not installed.
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
    """The path of an input: a path as given, or the output of a stage's result.

    Args:
        name: Name of the input, for messages.
        given: A path, or an object with a path as its `output`.
        expected: Accepted values, for messages.

    Raises:
        ConfigError: If `given` is neither.
    """
    path = getattr(given, "output", given)
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{name} is {shown(path)}; expected {expected}.")
    return str(os.fspath(path))


def find_parts(path: str) -> list[Path] | None:
    """The files of a folder, in the order of their names; None if the path is no folder.

    Args:
        path: A path as in `find_path`; for a URL, the result holds local copies.

    Raises:
        ArtefactError: As `find_path`, or if the folder is empty or has subfolders (see `part_names`).
        ConfigError: As `find_path`.
    """
    if is_remote(path):
        return local_parts(path)
    folder = find_path(path)
    return parts_of(folder) if folder.is_dir() else None


def path_word(path: str | os.PathLike[str]) -> str:
    """A path as a word of a command, which is not read as an option where it begins with a hyphen.

    Example:
        >>> path_word("runs/shop"), path_word("-shop.csv")
        ('runs/shop', './-shop.csv')
    """
    word = os.fspath(path)
    return f"./{word}" if word.startswith("-") else word


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path for messages: relative to the current directory or the shipped files if it is below one of them."""
    full = Path(path).resolve()
    for root in (Path.cwd(), shipped_root()):
        if full.is_relative_to(root):
            return str(full.relative_to(root))
    return str(path)
