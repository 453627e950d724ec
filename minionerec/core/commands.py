"""The frame of every command: a user's error is one line on standard error and status 2, never a traceback."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.log import setup_logging


class CommandParser(argparse.ArgumentParser):
    """A parser of command lines that says what is wrong in one line, as every other error of a user is said."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{message[:1].lower()}{message[1:]}. See --help.")


def run_command(main: Callable[[], None]) -> None:
    """Run a command's main function, and end the process with its status where it fails."""
    setup_logging()
    try:
        main()
    except MinioneRecError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run the same command again to go on\n")
        raise SystemExit(130) from None
