"""One configuration system: a dataclass per stage, YAML under it, flags over it.

`parse_config` reads the command line with `trl.TrlParser`: `--config file.yaml` gives values, flags win over them,
unknown keys are errors. `run_command` is the frame of every script: it turns user errors into one line and status 2.
"""

import logging
import sys
from argparse import ArgumentError, ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.log import setup_logging

C = TypeVar("C")
ROOT = Path(__file__).resolve().parents[2]


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Parse one YAML mapping.

    Raises:
        ConfigError: If the file is missing, is not YAML, or is not a mapping; the message names file and line.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(f"{path}: no such file. Give --config the path of a YAML file.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML ({' '.join(str(error).split())}).") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, got {type(content).__name__}.")
    return content


def parse_config(
    config_class: type[C], description: str, demo: str | None = None, args: Sequence[str] | None = None
) -> C:
    """Resolve one stage's configuration from YAML and flags.

    Args:
        config_class: A dataclass whose fields have `metadata={"help": ...}`.
        description: What the command does, for `--help`.
        demo: YAML file taken when no `--config` is given (and said so); relative to the project.
        args: Command-line words; those of this process if None.

    Returns:
        An instance of `config_class`.

    Raises:
        ConfigError: On an unknown key or flag, or a value that does not fit.
    """
    from trl import TrlParser

    words = list(sys.argv[1:] if args is None else args)
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    help_asked = "-h" in words or "--help" in words
    if demo is not None and "--config" not in words and not help_asked:
        logging.getLogger("minionerec").info("No --config given: taking the demo configuration, %s.", demo)
        path = ROOT / demo
        words = ["--config", str(path) if path.is_file() else demo, *words]
    if "--config" in words and not help_asked:
        place = words.index("--config") + 1
        if place >= len(words):
            raise ConfigError("--config needs the path of a YAML file after it.")
        known = [field.name for field in fields(config_class)]  # type: ignore[arg-type]
        for key in read_yaml(words[place]):
            if key not in known:
                raise ConfigError(f"{words[place]}: unknown key {key!r}. Known keys: {', '.join(known)}.")
    classes: list[Any] = [config_class]
    parser = TrlParser(classes, description=description, exit_on_error=False)
    parser.add_argument("--config", help="YAML file with any of the settings below; flags win over it")
    try:
        (config,) = parser.parse_args_and_config(words)[:1]
    except (ArgumentError, ArgumentTypeError, ValueError, TypeError) as error:
        raise ConfigError(f"{' '.join(str(error).split())} See --help.") from None
    return config


def run_command(main: Callable[[], None]) -> None:
    """Run a script's main function: a user's error becomes one line on standard error and exit status 2."""
    setup_logging()
    try:
        main()
    except MinioneRecError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run the same command again to go on\n")
        raise SystemExit(130) from None
