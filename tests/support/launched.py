"""A stage in a launch of several processes, of which some end by SIGKILL at a chosen moment.

launch(folder, "sft", 2)                                         # lives: each process's steps and writes
launch(folder, "sft", 2, Point("step", 2), rank=1)               # the second process dies there
launch(folder, "sft", 2, Point("step", 2), rank=1, whole=True)   # and with it the launcher and the others
launch(folder, "sft", 2, Point("step", 2), number=signal.SIGTERM)   # the first process is told to end
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from support.kill import Point, counted
from support.paths import ROOT

HERE = "LAUNCHED"


def launch(
    folder: Path,
    name: str,
    world: int,
    die: Point | None = None,
    *,
    rank: int = 0,
    whole: bool = False,
    number: int = signal.SIGKILL,
) -> list[dict[str, int]]:
    """Run a stage of a small shop as `torchrun` starts it, on CPUs with gloo.

    Args:
        folder: The shop.
        name: The stage.
        world: Number of processes.
        die: When one of them kills itself.
        rank: Which one.
        whole: Whether it kills the launcher and the other processes first, as a machine that stops does.
        number: The signal that it sends itself.

    Returns:
        Steps and writes of each process; empty where one died as it should.
    """
    notes = folder.parent / f"{folder.name}.processes"
    notes.mkdir(exist_ok=True)
    for note in notes.iterdir():
        note.unlink()
    conditioned = {"notes": str(notes), "die": die, "rank": rank, "whole": whole, "number": number}
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(world), "-m", "support.launched"]
    variables = {HERE: json.dumps(conditioned), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    variables |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *words, name, "--config", f"{name}.yaml"]
    about = {"cwd": folder, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(words, **about, env={**os.environ, **variables})
    if die is None:
        assert done.returncode == 0, done.stderr
        return [json.loads((notes / f"{number}.json").read_text()) for number in range(world)]
    assert done.returncode == (-signal.SIGKILL if whole else 1), done.stderr
    assert (notes / "died").exists(), done.stderr
    assert "in run_command" not in done.stderr, done.stderr  # a traceback of the others
    return []


def by_zero_2(script: str, config: Any) -> str:
    """Run a script as a user types it, by `accelerate launch` with DeepSpeed on two CPU processes; what it reported."""
    path = Path(f"{config.output}.yaml")
    path.write_text(yaml.safe_dump(asdict(config)))
    words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "ds_configs/zero2_cpu.yaml", script]
    about = {"cwd": ROOT, "capture_output": True, "text": True}
    done = subprocess.run([*words, "--config", path], **about, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "DeepSpeed" in done.stderr
    return done.stderr


def main() -> None:
    """One of the processes."""
    from minionerec.pipeline.cli.main import main as command

    conditioned, rank = json.loads(os.environ[HERE]), int(os.environ["RANK"])
    notes = Path(conditioned["notes"])
    (notes / f"{rank}.pid").write_text(str(os.getpid()))
    die = Point(*conditioned["die"]) if conditioned["die"] and conditioned["rank"] == rank else None

    def kill() -> None:
        (notes / "died").write_text("")
        if conditioned["whole"]:
            os.kill(os.getppid(), signal.SIGKILL)
            for file in notes.glob("*.pid"):
                if file.stem != str(rank):
                    os.kill(int(file.read_text()), signal.SIGKILL)
        os.kill(os.getpid(), conditioned["number"])

    counts = counted(Path.cwd(), die, kill)
    try:
        command()
    finally:
        (notes / f"{rank}.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
