"""The processes of a launch: who waits for whom, and what a waiting one says when another has ended."""

import os
import socket
import subprocess
import sys

from minionerec.core.processes import environment_of_a_new_launch, is_main_process, process_rank, world_size

WAIT = """
from minionerec.core.commands import run_command
from minionerec.core.errors import ConfigError
from minionerec.core.processes import is_main_process, wait_for_everyone

def main():
    wait_for_everyone()
    if is_main_process():
        raise ConfigError("the cups are broken. Mend them.")
    wait_for_everyone()

run_command(main)
"""


def launch(code, processes):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in range(processes):
        names = {"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        words = [sys.executable, "-c", code]
        started.append(subprocess.Popen(words, env={**os.environ, **names}, stderr=subprocess.PIPE, text=True))
    return [(each.communicate(timeout=120)[1], each.returncode) for each in started]


def test_a_refusal_of_the_first_process_is_no_traceback_in_the_others():
    (first, status), (second, other) = launch(WAIT, 2)
    assert (status, other) == (2, 2)
    assert first.splitlines()[-1] == "error: the cups are broken. Mend them."
    assert second.splitlines()[-1] == "error: another process of this launch has ended; its messages say why."
    assert "Traceback" not in second


def test_a_new_launch_begins_without_the_old_ones_variables(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("ACCELERATE_USE_CPU", "true"), ("CUP", "blue")):
        monkeypatch.setenv(name, value)
    assert (process_rank(), world_size(), is_main_process()) == (1, 2, False)
    found = environment_of_a_new_launch()
    assert "CUP" in found
    assert not {"RANK", "WORLD_SIZE", "ACCELERATE_USE_CPU"} & set(found)
