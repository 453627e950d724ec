"""The processes of a launch: who waits for whom, and what a waiting one says when another has ended."""

import json
import signal
import socket
import subprocess

from support.preloaded import python

from minionerec.core.processes import environment_of_a_new_launch, is_main_process, process_rank, world_size

CODE = """
import os, signal
from minionerec.core.commands import run_command
from minionerec.core.errors import ConfigError
from minionerec.core.processes import check_agreement, is_main_process, wait_for_everyone

def main():
    wait_for_everyone()
    %s

run_command(main)
"""
WAIT = """if is_main_process():
        raise ConfigError("the cups are broken. Mend them.")
    wait_for_everyone()"""
ENDED = """import torch
    if not is_main_process():
        os.kill(os.getpid(), signal.SIGTERM)
    torch.distributed.all_reduce(torch.ones(3))"""
AGREE = """check_agreement({"epochs": 2}, {"corpus": "0"})
    check_agreement({"epochs": 2 + int(os.environ["RANK"])}, {"corpus": "0"})"""


OTHER_ENDED = "error: another process of this launch has ended; its messages say why."


def launch(folder, code, processes, **changes):
    """What each process of a launch wrote, and its status."""
    script = folder / "alone.py"
    script.write_text(f"import json, os, sys\nos.environ.update(json.loads(sys.argv[1]))\n{CODE % code}")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in range(processes):
        names = {"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        words = [python(), str(script), json.dumps(names | changes)]
        started.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
    return [(each.communicate(timeout=120)[1], each.returncode) for each in started]


def test_a_refusal_of_the_first_process_is_no_traceback_in_the_others(tmp_path):
    (first, status), (second, other) = launch(tmp_path, WAIT, 2)
    assert (status, other) == (2, 2)
    assert first.splitlines()[-1] == "error: the cups are broken. Mend them."
    assert second.splitlines()[-1] == OTHER_ENDED
    assert "Traceback" not in second


def test_a_process_that_ends_while_others_compute_is_one_line_in_these(tmp_path):
    (first, status), (_, other) = launch(tmp_path, ENDED, 2)
    assert (status, other) == (2, -signal.SIGTERM)
    assert first.splitlines()[-1] == OTHER_ENDED
    assert "Traceback" not in first


def test_processes_with_other_settings_are_reported_in_each_of_them(tmp_path):
    for reported, status in launch(tmp_path, AGREE, 2):
        line = (
            "error: the processes of this launch differ in epochs: 3 in process 1, 2 in process 0. Start all with the"
        )
        assert status == 2 and reported.splitlines()[-1].startswith(line)


def test_a_launch_that_cannot_be_joined_is_one_line(tmp_path):
    with socket.create_server(("localhost", 0)) as taken:
        port = str(taken.getsockname()[1])
        for changes, message in (
            ({"MASTER_PORT": port}, "process 0 cannot join the 2 of its launch ("),
            ({"MASTER_PORT": "x"}, "process 0 cannot join the 2 of its launch ("),
            ({"WORLD_SIZE": "two"}, "the environment variable WORLD_SIZE is 'two'; launchers set a whole number."),
        ):
            ((reported, status),) = launch(tmp_path, WAIT, 1, **{"WORLD_SIZE": "2", **changes})
            assert status == 2 and reported.splitlines()[-1].startswith(f"error: {message}"), reported
            assert "Traceback" not in reported


def test_a_new_launch_begins_without_the_old_ones_variables(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("ACCELERATE_USE_CPU", "true"), ("CUP", "blue")):
        monkeypatch.setenv(name, value)
    assert (process_rank(), world_size(), is_main_process()) == (1, 2, False)
    found = environment_of_a_new_launch()
    assert "CUP" in found
    assert not {"RANK", "WORLD_SIZE", "ACCELERATE_USE_CPU"} & set(found)
