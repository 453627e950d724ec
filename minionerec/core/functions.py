"""A user's own functions, named in settings by their dotted paths."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from minionerec.core.errors import ConfigError


def function_at(dotted: str, setting: str) -> Any:
    """The function (or class) of a dotted path, such as `my_rewards.novelty`.

    Modules are imported from Python's path or the current directory.

    Args:
        dotted: Module and name.
        setting: Name of the setting, for messages.

    Raises:
        ConfigError: If the module or the name does not exist, or the object cannot be called.
    """
    module, _, name = dotted.rpartition(".")
    if not module:
        raise ConfigError(f"{setting} is {dotted!r}; expected the dotted path of a function, such as my_module.{name}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        function = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{setting} is {dotted!r}, but there is no module {error.name!r}. Install it, or run in its folder."
        ) from None
    except AttributeError:
        raise ConfigError(f"{setting} is {dotted!r}, but the module {module!r} has no {name!r}.") from None
    if not callable(function):
        raise ConfigError(f"{setting} is {dotted!r}, which cannot be called: it is a {type(function).__name__}.")
    return function


def function_file(dotted: str, setting: str) -> Path | None:
    """The file that holds the function of a dotted path, so that stages can treat it as an input.

    Args:
        dotted: Module and name.
        setting: Name of the setting, for messages.

    Returns:
        The file; None for a module without one.

    Raises:
        ConfigError: If there is no such function.
    """
    function_at(dotted, setting)
    spec = importlib.util.find_spec(dotted.rpartition(".")[0])
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
