"""The frame of every command where its standard streams are closed."""

import subprocess
import sys

import pytest
from support.paths import ROOT

SEVERAL = "raise ConfigError('this is wrong', 'and that')"
GOOD, BAD = "print('said')", "raise ConfigError('a setting is wrong')"
RUN = "from minionerec.core.commands import run_command\nfrom minionerec.core.errors import ConfigError\n"
OPENS = "import os; assert open(os.devnull, 'rb').fileno() > 2"


@pytest.mark.parametrize(
    ("does", "closed", "status", "out", "err"),
    [
        (GOOD, ">&-", 0, "", ""),
        (SEVERAL, "", 2, "", "error: this is wrong\nerror: and that\n"),
        (BAD, ">&-", 2, "", "error: a setting is wrong\n"),
        (GOOD, "2>&-", 0, "said\n", ""),
        (BAD, "2>&-", 2, "", ""),
        (OPENS, "<&- >&- 2>&-", 0, "", ""),
        (BAD, ">&- 2>&-", 2, "", ""),
    ],
)
def test_closed_streams(does, closed, status, out, err):
    code = f"{RUN}def main():\n    {does}\nrun_command(main)"
    words = ["bash", "-c", f'"$0" -c "$1" {closed}', sys.executable, code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)
