"""Starting a stage as a process of its own: plain, or by `accelerate launch`."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from minionerec.core.paths import find_path, shown_path
from minionerec.core.processes import environment_of_a_new_launch
from minionerec.core.values import read_yaml

_LAUNCHER = ["-m", "accelerate.commands.launch", "--quiet"]
_COMMAND = ["-m", "minionerec"]
_PLAIN = re.compile(r"[\w@%+=:,./#-]+")  # words without a character that a shell takes otherwise; # within one is plain


def default_launch_file() -> Path | None:
    """The launch file for this machine: one GPU; without a GPU None, since one process on the CPU needs no launcher."""
    import torch

    return find_path("ds_configs") / "single_gpu.yaml" if torch.cuda.is_available() else None


def stage_words(
    name: str, config: str | Path, *, launched: bool, launch: Path | None = None, threads: int | None = None
) -> list[str]:
    """The words that run a stage, after the name of Python's interpreter.

    Args:
        name: The stage.
        config: Settings of the stage: a file, or RECIPE#STEP.
        launched: Whether `accelerate launch` starts it, where a launch file or a GPU exists.
        launch: File for `accelerate launch --config_file`; chosen by the machine if None.
        threads: CPU threads of its process; the library's own choice if None.
    """
    words = [*_COMMAND, name, "--config", str(config)]
    file = (launch or default_launch_file()) if launched else None
    if file is None:
        return words
    # --quiet: the stage has reported its error; the launcher's own traceback would only hide it.
    launcher = [*_LAUNCHER, "--config_file", str(file)]
    count = stage_environment(threads).get("OMP_NUM_THREADS")
    if count:
        launcher += ["--num_cpu_threads_per_process", count]
    return [*launcher, *words]


def stage_environment(threads: int | None) -> dict[str, str]:
    """The environment of a stage: this process's, without the variables of a distributed launcher.

    The stage's number of threads is added; an `OMP_NUM_THREADS` that is already set wins.
    """
    environment = environment_of_a_new_launch()
    if threads is not None:
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    return environment


def shown_command(words: Sequence[str]) -> str:
    """A stage's words as a user would type them in the current directory."""
    text = " ".join(_shown_word(words, position) for position in range(len(words)))
    if text.startswith(" ".join(_LAUNCHER)):
        return text.replace(" ".join(_LAUNCHER), "accelerate launch", 1)
    return text.replace(" ".join(_COMMAND), "minionerec", 1)


def _shown_word(words: Sequence[str], position: int) -> str:
    """A word, shortened where it is a path, quoted for a shell; the launcher takes its file only at the given path."""
    word = words[position]
    if os.sep in word:
        short = shown_path(word)
        word = word if words[position - 1] == "--config_file" and not Path(short).exists() else short
    return word if _PLAIN.fullmatch(word) else shlex.quote(word)


def run_words(words: Sequence[str], threads: int | None, stdout: Any = None) -> subprocess.CompletedProcess[str]:
    """Run a stage.

    Args:
        words: Words after the name of Python's interpreter.
        threads: CPU threads of its process.
        stdout: Target of its standard output, as in `subprocess.run`.
    """
    with _with_deepspeed_file(list(words)) as resolved:
        return subprocess.run(
            [sys.executable, *resolved], stdout=stdout, text=True, env=stage_environment(threads), check=False
        )


@contextmanager
def started_words(words: Sequence[str], threads: int | None, log: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A stage that was just started, as the head of a process group of its own, which receives none of our signals.

    Args:
        words: Words after the name of Python's interpreter.
        threads: CPU threads of its process.
        log: An open file for its output and messages; None for this process's own streams.
    """
    with _with_deepspeed_file(list(words)) as resolved:
        yield subprocess.Popen(
            [sys.executable, *resolved],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=None if log is None else subprocess.STDOUT,
            env=stage_environment(threads),
            start_new_session=True,
        )


@contextmanager
def _with_deepspeed_file(words: list[str]) -> Iterator[list[str]]:
    """Words whose launch file names DeepSpeed's file by its full path, where that is a shipped one."""
    if "--config_file" not in words:
        yield words
        return
    index = words.index("--config_file") + 1
    launch = read_yaml(words[index])
    deepspeed = launch.get("deepspeed_config") or {}
    name = deepspeed.get("deepspeed_config_file")
    if not name or Path(name).exists():
        yield words
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / Path(words[index]).name
        deepspeed = {**deepspeed, "deepspeed_config_file": str(find_path(name))}
        file.write_text(yaml.safe_dump({**launch, "deepspeed_config": deepspeed}), encoding="utf-8")
        yield [*words[:index], str(file), *words[index + 1 :]]
