"""Decoding in shards: distributed over processes, written one by one, merged in order, and resumable.

Batches are made from the prompts alone, before they are distributed: a batch has the same prompts for any number of
processes, so that the results are bit-identical. Works under any launcher that `minionerec.core.processes` knows, and
without one.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from minionerec.core.artefacts import atomic_write, package_versions, read_json, write_json
from minionerec.core.device import fitting_parts
from minionerec.core.errors import ArtefactError
from minionerec.core.log import NO_CLOCK, Clock, get_logger, progress
from minionerec.core.processes import is_main_process, process_rank, wait_for_everyone, world_size
from minionerec.models.decoding.decoder import Decode, length_batches, padded_lists

logger = get_logger(__name__)

BATCHES_FILE = "batches.json"
MOST_SHARDS = 256


def decode_in_shards(
    folder: Path,
    prompts: Sequence[Sequence[int]],
    k: int,
    batch_size: Callable[[], int],
    decode: Decode,
    device: torch.device,
    description: str = "recommending",
    clock: Clock = NO_CLOCK,
) -> tuple[np.ndarray, np.ndarray]:
    """Decode prompts, distributed over the processes of a launch, and merge all shards.

    Args:
        folder: Folder of the unfinished run with the same settings and inputs. Finished shards are reused unless they
            are from another device type or other library versions.
        prompts: R token id lists, without duplicates.
        k: List length, K.
        batch_size: Returns the prompts per batch, called in the first process of a new run.
        decode: Function that ranks SIDs for the prompts at given positions.
        device: The device of decoding.
        description: Label of the progress bar, which counts this process's prompts.
        clock: Receiver of the number of finished shards.

    Returns:
        SID numbers int64 (R, K) and scores float32 (R, K), in prompt order; the same in every process.
    """
    reused = _open_folder(folder, device, batch_size) if is_main_process() else 0
    clock.reached(reused)
    wait_for_everyone()
    batches = length_batches(prompts, read_json(folder / BATCHES_FILE)["batch_size"])
    shards = [list(part) for part in np.array_split(np.arange(len(batches)), min(len(batches), MOST_SHARDS))]
    mine = range(process_rank(), len(shards), world_size())
    todo = [number for number in mine if not _shard(folder, number).is_file()]
    pending = {number: shards[number] for number in todo}
    for written in _decode_shards(folder, k, batches, pending, decode, description):
        clock.reached(reused + written)
    wait_for_everyone()
    all_sids = np.empty((len(prompts), k), dtype=np.int64)
    all_scores = np.empty((len(prompts), k), dtype=np.float32)
    for number, members in enumerate(shards):
        positions = [position for batch in members for position in batches[batch]]
        part = load_file(_shard(folder, number))
        all_sids[positions], all_scores[positions] = part["sids"], part["scores"]
    return all_sids, all_scores


def _decode_shards(
    folder: Path,
    k: int,
    batches: Sequence[Sequence[int]],
    shards: dict[int, list[int]],
    decode: Decode,
    description: str,
) -> Iterator[int]:
    """Decode this process's shards, write each when its last batch is done, and yield the number written."""
    mine = [batches[batch] for members in shards.values() for batch in members]
    numbers = list(shards)
    ends = np.cumsum([sum(len(batches[batch]) for batch in members) for members in shards.values()])
    lists: list[tuple[np.ndarray, np.ndarray]] = []
    done, written, start = 0, 0, time.perf_counter()
    for part, (sids, scores) in fitting_parts(decode, progress(mine, description, unit="prompts", size=len)):
        lists.append((padded_lists(sids, k, -1), padded_lists(scores, k, -np.inf)))
        done += len(part)
        if done == ends[written]:
            shard = _shard(folder, numbers[written])
            _write_shard(shard, *(np.concatenate(lists) for lists in zip(*lists, strict=True)))
            lists = []
            written += 1
            yield written
    if done:
        seconds = time.perf_counter() - start
        logger.info("Decoded %s distinct prompts in %.1f s: %.1f prompts/s.", f"{done:,}", seconds, done / seconds)


def _open_folder(folder: Path, device: torch.device, batch_size: Callable[[], int]) -> int:
    """Keep reusable shards, record the batch size, and return the number of kept shards."""
    environment = {"device": device.type, "versions": package_versions()}
    try:
        earlier = read_json(folder / BATCHES_FILE) if (folder / BATCHES_FILE).is_file() else None
    except ArtefactError:
        earlier = None
    shards = sorted(folder.glob("shard-*.safetensors"))
    if earlier is not None and {**earlier, "batch_size": None} == {**environment, "batch_size": None}:
        reused = sum(_is_whole(file) for file in shards)
        if reused:
            logger.info("Resuming from %d finished shard(s) in %s.", reused, folder)
        return reused
    if shards:
        logger.info("%s has shards of another device or other library versions; starting again.", folder)
    for file in shards:
        file.unlink()
    write_json(folder / BATCHES_FILE, {**environment, "batch_size": batch_size()})
    return 0


def _is_whole(file: Path) -> bool:
    """Whether a shard can be read; an unreadable shard is removed."""
    try:
        load_file(file)
    except (OSError, SafetensorError):
        file.unlink()
        return False
    return True


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def _write_shard(path: Path, sids: np.ndarray, scores: np.ndarray) -> None:
    with atomic_write(path) as fresh:
        save_file({"sids": sids, "scores": scores}, fresh)
