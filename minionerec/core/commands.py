"""Entry point of every command: a user's error is one line on standard error and status 2, never a traceback."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from minionerec.core.errors import ConfigError, MinioneRecError, fault
from minionerec.core.log import setup_logging


class CommandParser(argparse.ArgumentParser):
    """An argument parser that raises `ConfigError` where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Report an error.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{message[:1].lower()}{message[1:]}. See --help.")


@dataclass(frozen=True)
class Command:
    """A command that is no stage.

    Attributes:
        summary: Purpose, for `--help`.
        arguments: Function from the program's name to the argument parser.
        run: Function that takes the program's name and runs the command with `sys.argv`.
    """

    summary: str
    arguments: Callable[[str], argparse.ArgumentParser]
    run: Callable[[str], None]


def run_command(main: Callable[[], None]) -> None:
    """Run the main function of a command.

    Errors that a user can fix and system errors are printed as one line, and the process exits with status 2. Other
    exceptions keep their traceback.
    """
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        setup_logging()
        main()
        sys.stdout.flush()
    except MinioneRecError as error:
        _end(error)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run the same command again to resume\n")
        raise SystemExit(130) from None
    except Exception as error:
        message = fault(error)
        if message is None:
            raise
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushing at exit must not fail again
        _end(MinioneRecError(message))


def _open_streams() -> None:
    """Open closed standard streams on the null device, so that their output does not go into the next opened file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def _end(error: MinioneRecError) -> NoReturn:
    remote = sys.modules.get("minionerec.core.remote")  # loaded only if something was fetched
    for line in error.lines():
        sys.stderr.write(f"error: {line if remote is None else remote.with_urls(line)}\n")
    raise SystemExit(2) from None
