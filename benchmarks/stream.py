"""Supervised fine-tuning from a corpus of one block and from one of several: memory, and tokens a second.

python benchmarks/stream.py                                      # 100,000 interactions
python benchmarks/stream.py --interactions 1000000 10000000 --blocks 0 --folder /large/disk
python benchmarks/stream.py --interactions 1000000 --device cuda --width 512 --layers 8 --batch 256

Each corpus has users with fifty interactions and as many items as a hundredth of its interactions, at most 20,000. A
run trains on windows (`all_positions`) for `--steps` steps in a process of its own; blocks and rounds take turns. One
JSON line a run:

    anonymous_mb       most memory of the process that no file backs (RssAnon), looked at every 20 ms: what it must have
    resident_mb        the same with the pages of files that it had mapped, which the system may take back (VmHWM)
    tokens_per_second  tokens of the steps after the first `--warm-up` ones; no validation is in between
    per_processor_second   the same by seconds of the processor, which other work on the machine changes less
    ready_seconds      from the call until the first step: reading, tokenising, building the model

With `--device cpu` a process sees no GPU even where there is one.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from card import clock

LENGTH, HISTORY, HELD_OUT = 50, 10, 1000
CODES = 32


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interactions", type=int, nargs="+", default=[100_000], help="sizes of corpora")
    parser.add_argument("--blocks", type=int, nargs="+", default=[0], help="training examples of a block; 0: default")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each block and size")
    parser.add_argument("--steps", type=int, default=150, help="optimiser steps of a run")
    parser.add_argument("--warm-up", type=int, default=30, help="steps that are not timed")
    parser.add_argument("--width", type=int, default=128, help="hidden size of the model")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where to compute")
    parser.add_argument("--batch", type=int, default=64, help="windows a step")
    parser.add_argument("--folder", default="", help="where corpora are made and kept; empty: a temporary folder")
    return parser.parse_args()


def make_corpus(path: Path, interactions: int, seed: int = 0) -> None:
    """Write a corpus, a shard at a time, and SIDs for its items."""
    import numpy as np
    import pandas as pd

    from minionerec.core.artefacts import write_artefact
    from minionerec.data.corpus import write_items
    from minionerec.data.shards import count_shards
    from minionerec.sid.table import SidTable

    users, items = interactions // LENGTH, min(20_000, max(100, interactions // 100))
    names = [f"i{item:07d}" for item in range(items)]
    held_out = min(HELD_OUT, users // 4)
    sizes = {"train_rows": users * (LENGTH - 1) - 2 * held_out, "valid_rows": held_out, "test_rows": held_out}
    counts = {**sizes, "items": items, "split": "made", "max_history": HISTORY}
    with write_artefact(path / "corpus", "corpus", config={}, inputs={}, counts=counts) as folder:
        titles = [f"thing {item % 97} of kind {item % 31}" for item in range(items)]
        write_items(folder, pd.DataFrame({"item_id": names, "title": titles, "description": ""}))
        shards, row = count_shards(interactions), 0
        for shard in range(shards):
            row = write_shard(folder, shard, shards, users, items, held_out, row, seed)
    codes = np.stack(np.unravel_index(np.arange(items), (CODES, CODES, CODES)), axis=1)
    with write_artefact(path / "sids", "sids", config={}, inputs={"corpus": path / "corpus"}) as folder:
        SidTable(codes, names).save_index(folder / "index.json")


def write_shard(
    folder: Path, shard: int, shards: int, users: int, items: int, held_out: int, row: int, seed: int
) -> int:
    """Write the users of one shard; the last two rows of the first users are held out. The next training row."""
    import numpy as np

    from minionerec.data.chains import NO_INDEX, Chains
    from minionerec.data.shards import GROUP, ShardWriter, shard_of

    every = np.arange(users)
    own = every[shard_of((f"u{user:09d}" for user in range(users)), shards) == shard]
    rng = np.random.default_rng([seed, shard])
    with ShardWriter(folder, shard, timed=False) as writer:
        for start in range(0, len(own), GROUP):
            part = own[start : start + GROUP]
            shape = (len(part), LENGTH)
            # Steps of a walk: half of them to the next item, half to anywhere.
            jumps = np.where(rng.random(shape) < 0.5, 1, rng.integers(0, items, shape))
            splits = np.zeros(shape, dtype=np.int8)
            splits[:, 0] = NO_INDEX
            splits[part < held_out, -2], splits[part < held_out, -1] = 1, 2
            rows = np.full(shape, NO_INDEX, dtype=np.int32)
            training = splits == 0
            rows[training] = row + np.arange(training.sum())
            row += int(training.sum())
            for column in (-2, -1):
                rows[part < held_out, column] = part[part < held_out]
            writer.write(
                Chains(
                    np.array([f"u{user:09d}" for user in part.tolist()], dtype=object),
                    np.arange(len(part) + 1) * LENGTH,
                    (np.cumsum(jumps, axis=1) % items).astype(np.int32).ravel(),
                    None,
                    rows.ravel(),
                    splits.ravel(),
                )
            )
    return row


class Watch(threading.Thread):
    """Looks at this process's anonymous memory until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.over = 0.0, threading.Event()

    def run(self) -> None:
        """Look every 20 ms."""
        while not self.over.wait(0.02):
            self.peak = max(self.peak, memory("RssAnon"))


def memory(name: str) -> float:
    """A figure of this process's memory, in MB."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) / 1000


def train(args: argparse.Namespace, path: Path, interactions: int, block: int, answer: Any) -> None:
    """One run, in a process of its own."""
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import numpy as np
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from minionerec.data import corpus
    from minionerec.data.windows import window_bounds
    from minionerec.pipeline.config.training import SftConfig
    from minionerec.pipeline.sft import run_sft

    torch.set_num_threads(1)
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda, but torch finds no GPU.")
    corpus.BLOCK = block or corpus.BLOCK
    each = len(window_bounds(np.array([0]), np.array([LENGTH]), np.array([1]), HISTORY)[0])
    steps_per_epoch = interactions // LENGTH * each / args.batch
    times: list[float] = []
    processor: list[float] = []

    def stepped(*_: Any) -> None:
        times.append(clock(args.device))
        processor.append(time.process_time())

    register_optimizer_step_post_hook(stepped)
    watch, began = Watch(), time.perf_counter()
    watch.start()
    with tempfile.TemporaryDirectory(dir=path) as folder:
        result = run_sft(
            SftConfig(
                corpus=str(path / "corpus"),
                sids=str(path / "sids"),
                output=f"{folder}/sft",
                hidden_size=args.width,
                layers=args.layers,
                inner_size=2 * args.width,
                all_positions=True,
                epochs=args.steps / steps_per_epoch,
                evals_per_epoch=steps_per_epoch / args.steps,
                batch_size=args.batch,
                device_batch_size=args.batch,
                eval_examples=200,
            )
        )
    watch.over.set()
    counts = result.counts
    rows = sum(counts["rows"].values())
    timed, worked = (values[-1] - values[args.warm_up - 1] for values in (times, processor))
    tokens = counts["tokens"] / rows * args.batch * (len(times) - args.warm_up)
    answer.send(
        {
            "block": corpus.BLOCK,
            "device": args.device,
            "interactions": interactions,
            "rows": rows,
            "steps": len(times),
            "anonymous_mb": round(max(watch.peak, memory("RssAnon"))),
            "resident_mb": round(memory("VmHWM")),
            "tokens_per_second": round(tokens / timed),
            "per_processor_second": round(tokens / worked),
            "ready_seconds": round(times[0] - began, 1),
        }
    )


def runs(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """All runs, blocks taking turns, each size's corpus made once."""
    context = multiprocessing.get_context("spawn")
    for turn in range(args.rounds):
        for size in args.interactions:
            own = folder / str(size)
            if not (own / "sids").is_dir():
                maker = context.Process(target=make_corpus, args=(own, size))
                maker.start()
                maker.join()
            for block in args.blocks if turn % 2 == 0 else args.blocks[::-1]:
                receive, send = context.Pipe(duplex=False)
                child = context.Process(target=train, args=(args, own, size, block, send))
                child.start()
                send.close()
                try:
                    yield {"round": turn, **receive.recv()}
                except EOFError:
                    sys.exit(f"the run of {size:,} interactions in blocks of {block} ended without a result.")
                child.join()


def main() -> None:
    """Make corpora, run, print."""
    args = options()
    with tempfile.TemporaryDirectory() as folder:
        for run in runs(args, Path(args.folder or folder)):
            print(json.dumps(run), flush=True)


if __name__ == "__main__":
    main()
