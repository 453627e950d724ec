"""Commands as a user types them, in the tests' own process, which has imported what takes seconds to import."""

import contextlib
import io
import logging
import os
import sys
from pathlib import Path
from typing import NamedTuple

from minionerec.core.commands import run_command
from minionerec.pipeline.cli.main import dispatch


class Outcome(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def reported(self) -> str:
        """Its one line of an error; the test fails where there is more or less."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.status == 2, (self.status, self.out, self.err)
        assert len(lines) == 1 and self.err.endswith(f"{lines[0]}\n") and "Traceback" not in self.err, self.err
        return lines[0]


def command(folder: Path, *words: str) -> Outcome:
    """Run `minionerec` with these words in a folder, in this process."""
    out, err, argv, path, status = io.StringIO(), io.StringIO(), sys.argv, Path.cwd(), 0
    logger = logging.getLogger("minionerec")
    before, logger.handlers = logger.handlers, []
    try:
        sys.argv = ["minionerec", *words]
        os.chdir(folder)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run_command(dispatch)
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.argv, logger.handlers = argv, before
        os.chdir(path)
    return Outcome(status, out.getvalue(), err.getvalue())
