"""Trainers' checkpoints: which of them a kill left whole."""

import json
import zipfile
from pathlib import Path

from minionerec.core.log import get_logger
from minionerec.core.processes import world_size

logger = get_logger(__name__)


def newest_whole_checkpoint(folder: Path) -> str | None:
    """The newest `checkpoint-N` of which every file is there to its end."""
    steps = [int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*") if path.name.split("-")[1].isdigit()]
    for step in sorted(steps, reverse=True):
        place = folder / f"checkpoint-{step}"
        torn = _torn_file(place)
        if torn is None:
            return str(place)
        logger.info("%s is incomplete (%s) and is left out.", place, torn)
    return None


def _torn_file(checkpoint: Path) -> str | None:
    """What is missing or cut off in a checkpoint; None where nothing is."""
    processes = world_size()
    random_states = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    for name in ("scheduler.pt", *random_states):
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
    shards = list(checkpoint.glob("*/*optim_states.pt"))  # of DeepSpeed, one for each process
    if not (checkpoint / "optimizer.pt").is_file() and len(shards) < processes:
        return "the optimiser's state is missing"
    if not list(checkpoint.glob("*.safetensors")):
        return "the weights are missing"
    for file in sorted(checkpoint.rglob("*")):
        if file.suffix in (".pt", ".pth") and not zipfile.is_zipfile(file):  # a zip's directory is at its end
            return f"{file.name} is cut off"
        if file.suffix == ".safetensors" and not _is_whole_safetensors(file):
            return f"{file.name} is cut off"
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))  # is written last
    except (OSError, json.JSONDecodeError):
        return "trainer_state.json is missing or cut off"
    return None


def _is_whole_safetensors(path: Path) -> bool:
    """Whether a file is as long as its header says: eight bytes of the header's length, the header, the tensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length))
        except (UnicodeDecodeError, json.JSONDecodeError):
            return False
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return path.stat().st_size == 8 + length + max(ends, default=0)
