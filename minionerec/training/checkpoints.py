"""Trainers' checkpoints: which of them a kill left whole."""

import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from minionerec.core.artefacts import read_json
from minionerec.core.errors import ArtefactError
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
        whole = isinstance(read_json(checkpoint / "trainer_state.json"), dict)  # is written last
    except ArtefactError:
        whole = False
    return None if whole else "trainer_state.json is missing or cut off"


def _is_whole_safetensors(path: Path) -> bool:
    """Whether the library takes a file's header, and the file is as long as that says."""
    with path.open("rb"):  # one that may not be read is not taken for one that is cut off
        pass
    try:
        with safe_open(path, framework="numpy"):
            return True
    except (SafetensorError, OSError, ValueError):
        return False
