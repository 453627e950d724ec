"""Decoding in shards: dealt to the processes of a launch, written one by one, merged in order, kept over a kill.

Batches are made from the prompts alone, before they are dealt to processes: a batch holds the same prompts however
many processes there are, so that the results are the same to the last bit. Works under whatever launcher sets `RANK`
and `WORLD_SIZE` (accelerate, torchrun) and without one.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedModel

from minionerec.core.artefacts import read_json, write_text_atomic
from minionerec.core.errors import ArtefactError
from minionerec.core.log import get_logger, progress
from minionerec.decoding.decoder import length_batches
from minionerec.decoding.trie import Trie

logger = get_logger(__name__)

RECORD_FILE = "record.json"
MOST_SHARDS = 256
_LARGEST_BATCH = {"cpu": 64, "cuda": 256}

# Decodes one batch of prompts: SID numbers int64 (B, K) and scores float32 (B, K).
Decode = Callable[[list[Sequence[int]]], tuple[np.ndarray, np.ndarray]]


def process_rank() -> tuple[int, int]:
    """This process's number in its launch, and how many there are."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_everyone() -> None:
    """Go on when every process of the launch has come here; nothing with one process."""
    if process_rank()[1] > 1:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo", timeout=timedelta(days=7))
        torch.distributed.barrier()


def free_memory(device: torch.device) -> int:
    """Bytes that this process may still take on a device; on a CPU its share among the processes of the machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def fitting_batch_size(model: PreTrainedModel, trie: Trie, longest_prompt: int, beams: int, memory: int) -> int:
    """How many prompts fit into half of a given memory, as a power of two.

    A prompt of P tokens with K beams over L levels is reckoned to take, in values of the weights' dtype,

        2 n h d S                       keys and values of its S = P + K (L - 1) positions in n layers
        + 4 H d S                       keys and values spread over all H heads, and their copies, in one layer
        + max(P, K) (6 D + 4 F)         activations of one layer, D wide and F inside
        + 4 max(P, K) S                 attention mask and weights
        + 12 K W                        candidates: K beams, W children each at most

    Args:
        model: The model, where it is to run.
        trie: SIDs of the catalogue.
        longest_prompt: P.
        beams: K.
        memory: Bytes.

    Returns:
        From 1 to 64 on a CPU, to 256 on a GPU: more would not be faster.
    """
    config = model.config
    heads = config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    span = longest_prompt + beams * (trie.levels - 1)
    tokens = max(longest_prompt, beams)
    fan = int(trie.first_child.diff().max())
    values = (
        2 * config.num_hidden_layers * kv_heads * head_width * span
        + 4 * heads * head_width * span
        + tokens * (6 * config.hidden_size + 4 * config.intermediate_size)
        + 4 * tokens * span
        + 12 * beams * fan
    )
    fitting = memory // 2 // (values * model.dtype.itemsize)
    return 2 ** int(np.log2(min(max(1, fitting), _LARGEST_BATCH.get(model.device.type, 256))))


def decode_in_shards(
    folder: Path,
    record: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    beams: int,
    batch_size: Callable[[], int],
    decode: Decode,
    description: str = "recommending",
) -> tuple[np.ndarray, np.ndarray]:
    """Decode prompts, each process its share, and merge the shards of all.

    Args:
        folder: Where finished shards lie until the caller has written its output; kept over a kill and taken up again
            if `record` is the same, thrown away if not.
        record: Whatever decides the result: settings and fingerprints of inputs.
        prompts: R token id lists, none twice.
        beams: Length of the lists, K.
        batch_size: Prompts decoded at a time, asked of the first process when it begins anew.
        decode: Decodes one batch.
        description: Label of the progress bar, which counts this process's prompts.

    Returns:
        SID numbers int64 (R, K) and scores float32 (R, K), in prompt order; the same in every process.

    Raises:
        ArtefactError: If the folder cannot be written.
    """
    rank, world = process_rank()
    if rank == 0:
        _open_folder(folder, record, batch_size)
    wait_for_everyone()
    size = read_json(folder / RECORD_FILE)["batch_size"]
    batches = length_batches(prompts, size)
    shards = [list(part) for part in np.array_split(np.arange(len(batches)), min(len(batches), MOST_SHARDS))]
    todo = [number for number in range(rank, len(shards), world) if not _shard(folder, number).is_file()]
    mine = [(number, batch) for number in todo for batch in shards[number]]
    left = {number: len(shards[number]) for number in todo}
    found: list[tuple[np.ndarray, np.ndarray]] = []
    done, start = 0, time.perf_counter()
    for number, batch in progress(mine, description, unit="rows", size=lambda pair: len(batches[pair[1]])):
        sids, scores = decode([prompts[place] for place in batches[batch]])
        found.append((_widened(sids, beams, -1), _widened(scores, beams, -np.inf)))
        done += len(sids)
        left[number] -= 1
        if left[number] == 0:
            _write_shard(_shard(folder, number), *(np.concatenate(part) for part in zip(*found, strict=True)))
            found = []
    if done:
        seconds = time.perf_counter() - start
        logger.info("Decoded %s distinct prompts in %.1f s: %.1f rows/s.", f"{done:,}", seconds, done / seconds)
    wait_for_everyone()
    all_sids = np.empty((len(prompts), beams), dtype=np.int64)
    all_scores = np.empty((len(prompts), beams), dtype=np.float32)
    for number, members in enumerate(shards):
        places = [place for batch in members for place in batches[batch]]
        part = load_file(_shard(folder, number))
        all_sids[places], all_scores[places] = part["sids"], part["scores"]
    return all_sids, all_scores


def _open_folder(folder: Path, record: Mapping[str, Any], batch_size: Callable[[], int]) -> None:
    """Make the folder of shards, or keep one whose record and shards are whole."""
    try:
        before = read_json(folder / RECORD_FILE) if (folder / RECORD_FILE).is_file() else None
    except ArtefactError:
        before = None
    if before is not None and {**before, "batch_size": None} == {**record, "batch_size": None}:
        for file in folder.glob("shard-*.safetensors"):
            try:
                load_file(file)
            except (OSError, SafetensorError):
                file.unlink()
        kept = len(list(folder.glob("shard-*.safetensors")))
        if kept:
            logger.info("Going on from %d finished shard(s) in %s.", kept, folder)
        return
    if before is not None:
        logger.info("%s holds shards of other settings or inputs; beginning anew.", folder)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        size = batch_size()
        write_text_atomic(folder / RECORD_FILE, json.dumps({**record, "batch_size": size}, indent=1) + "\n")
    except OSError as error:
        raise ArtefactError(f"{folder}: cannot be written ({error.strerror}). Choose another output.") from None


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def _write_shard(path: Path, sids: np.ndarray, scores: np.ndarray) -> None:
    fresh = path.with_name(f".{path.name}.writing")
    save_file({"sids": sids, "scores": scores}, fresh)
    fresh.replace(path)


def _widened(values: np.ndarray, width: int, filler: float) -> np.ndarray:
    """Rows filled up to a width."""
    filled = np.full((len(values), width), filler, dtype=values.dtype)
    filled[:, : values.shape[1]] = values
    return filled
