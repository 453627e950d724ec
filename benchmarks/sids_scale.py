"""Semantic IDs of any number of items, from vectors that stay in their file: seconds, memory, error, collisions.

python benchmarks/sids_scale.py --items 100000 --width 128 --fit_rows 0 20000 --folder /tmp/sids --out sids.jsonl
python benchmarks/sids_scale.py --items 1000000 --fit_rows 0 65536 262144 --folder /tmp/sids --out sids.jsonl
python benchmarks/sids_scale.py --items 10000000 --fit_rows 262144 --codes 512 --folder /tmp/sids --out sids.jsonl
python benchmarks/sids_scale.py --items 1000000 --fit_rows 0 65536 --device cuda --folder /tmp/sids --out sids.jsonl

Makes a `.npy` file of clustered vectors (ten million of 768 numbers in float16 take 15.4 GB, in float32 30.7 GB) and a
corpus that has as many items, and runs `build-sids` on them, for each of `--fit_rows` (0: fitted on all) in a process
of its own. A file that was interrupted is resumed; a run whose line is in `--out` already is left out, so that
the same command may be given again. A line of JSON a run:

- `seconds`: of the stage by phase (its run record); `items_per_second` over all of it; `processor_seconds` of all its
  threads, which say less of what else the machine does.
- `peak_anonymous_gib`: most memory of the process that is no file's, /proc/self/status RssAnon, sampled every 20 ms;
  `imports_anonymous_gib` of it before the stage began. The vectors are read, not mapped: they are never part of it.
- `error`: mean squared distance of vectors and the nearest codes, before collisions, over the mean squared distance to
  the mean vector; of `--error_rows` vectors (0: all). `error_to_all` is that over the error of the run fitted on all.
- `before`, `after`: items that share an SID, and the share of items that would have to move.
- `gemm_gflops`: what matrix products (16,384 x D) (D x C) reach on so many threads; `assign_limit`: seconds that the
  multiply-adds of assignment, N x D x (sum of C), need at that speed; `assign_to_limit`: how often that it took.

With `--device cuda` the card fits, assigns and measures the error, the products are timed on it, and `peak_card_gib` is
the most memory that tensors took there. Reading, starting centroids and collisions remain on the CPU.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from card import clock, forget_peak, peak_gib

BLOCK = 1 << 15
SEED = 0
CLUSTERS = 1000


def make_vectors(path, items, width, dtype, threads):
    """Write vectors of 1,000 clusters of unequal size whose dimensions matter less and less; each block has a seed."""
    import numpy as np

    if path.is_file():
        return
    rng = np.random.default_rng(SEED)
    scale = (1 / np.sqrt(1 + np.arange(width))).astype(np.float32)
    centres = rng.standard_normal((CLUSTERS, width), dtype=np.float32) * scale
    weights = 1 / np.arange(1, CLUSTERS + 1) ** 0.5
    shares = weights / weights.sum()

    def make(block):
        rng = np.random.default_rng([SEED, block])
        vectors = rng.standard_normal((min(BLOCK, items - block * BLOCK), width), dtype=np.float32)
        vectors *= scale
        vectors += centres[rng.choice(CLUSTERS, len(vectors), p=shares)]
        return vectors.astype(dtype, copy=False)

    unfinished = path.with_suffix(".part")
    with open(unfinished, "ab") as file:
        if not file.tell():
            reported = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (items, width)}
            np.lib.format.write_array_header_1_0(file, reported)
            file.flush()
        start = 128  # bytes of the header
        row_bytes = width * np.dtype(dtype).itemsize
        done = (file.tell() - start) // (row_bytes * BLOCK)
        file.truncate(start + done * row_bytes * BLOCK)
        positions = range(done, -(-items // BLOCK))
        with ThreadPoolExecutor(threads) as pool:
            for first in range(0, len(positions), threads):
                for made in pool.map(make, positions[first : first + threads]):
                    file.write(made.tobytes())
    unfinished.rename(path)


def make_items(path, items):
    """Write a corpus that has items and no rows: of a corpus `build-sids` reads nothing else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from minionerec.core.artefacts import is_artefact, write_artefact

    if is_artefact(path):
        return
    schema = pa.schema([(name, pa.string()) for name in ("item_id", "title", "description")])
    with (
        write_artefact(path, "corpus", config={"items": items}, counts={"items": items}) as folder,
        pq.ParquetWriter(folder / "items.parquet", schema) as writer,
    ):
        for start in range(0, items, BLOCK):
            ids = [f"B{item:09d}" for item in range(start, min(start + BLOCK, items))]
            writer.write_table(pa.table([ids, [""] * len(ids), [""] * len(ids)], schema=schema))


class Peak(threading.Thread):
    """The most anonymous memory that this process was seen to have, in GiB."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.over = 0.0, threading.Event()

    def run(self):
        """Look every 20 milliseconds."""
        while not self.over.wait(0.02):
            self.most = max(self.most, anonymous_gib())


def anonymous_gib():
    """RssAnon of this process in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 2**20


def gemm_gflops(width, codes, threads, device):
    """Speed of the products that assignment is made of."""
    import numpy as np
    import torch
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(0)
    points = rng.standard_normal((1 << 14, width), dtype=np.float32)
    book = rng.standard_normal((codes, width), dtype=np.float32)
    if device != "cpu":
        points, book = (torch.from_numpy(array).to(device) for array in (points, book))
    best = 0.0
    with threadpool_limits(limits=threads):
        for _ in range(10):
            start = clock(device)
            points @ book.T
            best = max(best, 2 * (1 << 14) * width * codes / (clock(device) - start) / 1e9)
    return best


def relative_error(file, codebooks, rows, threads, device):
    """Share of the variance that the nearest codes leave, over some rows."""
    import numpy as np

    from minionerec.pipeline.build_sids import assign
    from minionerec.sid.embed.stored import VectorFile, blocks

    vectors = VectorFile(file)
    chosen = (
        np.arange(len(vectors)) if not rows else np.linspace(0, len(vectors) - 1, min(rows, len(vectors))).astype(int)
    )

    class Chosen:
        shape = (len(chosen), vectors.shape[1])

        def __len__(self):
            return len(chosen)

        def __getitem__(self, positions):
            return vectors[chosen[positions]]

    _, left = assign(Chosen(), codebooks, threads, device)
    sums, squares = np.zeros(vectors.shape[1]), 0.0
    for _, block in blocks(Chosen()):
        sums += block.sum(axis=0, dtype=np.float64)
        squares += float(np.einsum("nd,nd->", block, block, dtype=np.float64))
    variance = squares - float((sums**2).sum()) / len(chosen)
    return float(left.sum(dtype=np.float64)) / variance


def measure(args, fit_rows):
    """One run of the stage in this process: what is printed."""
    import faiss  # noqa: F401  imports are not what is measured
    from sklearn.cluster import kmeans_plusplus  # noqa: F401

    from minionerec.core.artefacts import read_json
    from minionerec.pipeline.build_sids import run_build_sids
    from minionerec.pipeline.config.sids import SidConfig
    from minionerec.sid.embed import stored
    from minionerec.sid.quantiser import Quantiser

    if args.device != "cpu":
        forget_peak(args.device)  # the first that asks the card for anything begins to use it
    stored.STREAMED_FROM = 0  # small files, too: one way at all sizes
    output = args.folder / f"sids_{args.items}_{args.width}_{args.codes}_{args.levels}_{args.method}_{fit_rows}"
    config = SidConfig(
        corpus=str(args.folder / f"corpus_{args.items}"),
        output=str(output),
        encoder=str(vector_file(args)),
        method=args.method,
        codebook_sizes=[args.codes] * args.levels,
        fit_rows=fit_rows or args.items,
        iterations=args.iterations,
        collisions=args.collisions,
        threads=args.threads,
        device=args.device,
        seed=SEED,
    )
    imports, peak, start, worked = anonymous_gib(), Peak(), time.perf_counter(), time.process_time()
    peak.start()
    report = run_build_sids(config).metrics
    worked = time.process_time() - worked
    peak.over.set()
    whole = time.perf_counter() - start
    peak.join()
    seconds = read_json(Path(f"{output}.record.json"))["seconds"]
    found = {
        "seconds": seconds,
        "items_per_second": args.items / whole,
        "processor_seconds": worked,
        "imports_anonymous_gib": imports,
        "peak_anonymous_gib": peak.most,
        **({} if args.device == "cpu" else {"peak_card_gib": peak_gib(args.device)}),
        "moved": report["collisions"]["moved"],
        "before": {name: report["collisions"]["before"][name] for name in ("unique", "sharing_rate", "surplus_rate")},
        "after": {name: report["collisions"]["after"][name] for name in ("unique", "sharing_rate", "surplus_rate")},
        "final_error": report["levels"][args.levels - 1]["error"],
    }
    books = Quantiser.load(output).codebooks
    found["error"] = relative_error(vector_file(args), books, args.error_rows, args.threads, args.device)
    if "assign" in seconds:
        gflops = gemm_gflops(args.width, args.codes, args.threads, args.device)
        limit = 2 * args.items * args.width * args.codes * args.levels / gflops / 1e9
        found |= {"gemm_gflops": gflops, "assign_limit": limit, "assign_to_limit": seconds["assign"] / limit}
    return found


def vector_file(args):
    """Where the vectors lie."""
    return args.folder / f"vectors_{args.items}_{args.width}_{args.dtype}.npy"


def key_of(args, fit_rows):
    """What tells a run from others."""
    names = ("items", "width", "dtype", "codes", "levels", "method", "collisions", "threads", "iterations")
    card = {} if args.device == "cpu" else {"device": args.device}
    return {**{name: getattr(args, name) for name in names}, "fit_rows": fit_rows or args.items, **card}


def main():
    """Make the files, run what is missing, print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000, help="number of vectors")
    parser.add_argument("--width", type=int, default=768, help="width of the vectors")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16", help="type of the file")
    parser.add_argument("--codes", type=int, default=256, help="codes per level")
    parser.add_argument("--levels", type=int, default=3, help="levels")
    parser.add_argument("--fit_rows", type=int, nargs="+", default=[65536], help="samples to fit on; 0: all items")
    parser.add_argument("--method", default="residual_kmeans", help="of build-sids")
    parser.add_argument("--collisions", default="relocate", help="of build-sids")
    parser.add_argument("--iterations", type=int, default=25, help="of k-means")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of fit, assignment and error")
    parser.add_argument("--error_rows", type=int, default=1_000_000, help="vectors that the error is of; 0: all")
    parser.add_argument("--folder", type=Path, required=True, help="where vectors, items and SIDs lie")
    parser.add_argument("--out", type=Path, required=True, help="file that lines are added to")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only is not None:
        print(json.dumps(measure(args, args.only)))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    make_vectors(vector_file(args), args.items, args.width, args.dtype, args.threads)
    make_items(args.folder / f"corpus_{args.items}", args.items)
    lines = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.is_file() else []
    done = {json.dumps(line["run"], sort_keys=True): line for line in lines}
    threads = {name: str(args.threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    all_of_it = None
    for fit_rows in sorted(args.fit_rows):  # that on all items first
        key = json.dumps(key_of(args, fit_rows), sort_keys=True)
        if key not in done:
            words = [sys.executable, __file__, *sys.argv[1:], "--only", str(fit_rows)]
            made = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **threads})
            line = {"run": key_of(args, fit_rows), **json.loads(made.stdout.splitlines()[-1])}
            all_of_it = line["error"] if fit_rows == 0 else all_of_it
            if all_of_it:
                line["error_to_all"] = line["error"] / all_of_it
            with open(args.out, "a") as file:
                file.write(json.dumps(line) + "\n")
            done[key] = line
        elif fit_rows == 0:
            all_of_it = done[key]["error"]
        print(json.dumps(done[key]), flush=True)


if __name__ == "__main__":
    main()
