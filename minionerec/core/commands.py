"""The frame of every command: a user's error is one line on standard error and status 2, never a traceback."""

import sys
from collections.abc import Callable

from minionerec.core.errors import MinioneRecError
from minionerec.core.log import setup_logging


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
