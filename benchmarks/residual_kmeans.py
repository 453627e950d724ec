"""Residual k-means, plain and balanced, against faiss's ResidualQuantizer with a beam of one.

python benchmarks/residual_kmeans.py --threads 2 --json                  # one million vectors, 768 wide, 3 x 256 codes
python benchmarks/residual_kmeans.py --items 20000 --width 64 --codes 32 --threads 1

All train on the same sample of the same vectors (at most 256 per code) and then give every vector its codes; each runs
in a process of its own, which makes the vectors first, so that peak memory is its own. The vectors are clustered, with
a decaying spectrum, as text encoders' are. `ratio` is our plain time over faiss's, `balanced_ratio` our balanced time
over our plain one, `error_ratio` our plain mean squared error over faiss's, and `peak_gib` the largest memory of plain
and balanced beyond what the process held with the vectors.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

METHODS = ("faiss", "plain", "balanced")
SEED = 0
POINTS_PER_CODE = 256
BLOCK = 1 << 16


def make_vectors(items, width):
    """Vectors of 1,000 clusters of unequal size whose dimensions matter less and less: float32 (N, D)."""
    import numpy as np

    rng = np.random.default_rng(SEED)
    scale = (1 / np.sqrt(1 + np.arange(width))).astype(np.float32)
    centres = rng.standard_normal((1000, width), dtype=np.float32) * scale
    weights = 1 / np.arange(1, 1001) ** 0.5
    vectors = np.empty((items, width), dtype=np.float32)
    for start in range(0, items, BLOCK):
        block = vectors[start : start + BLOCK]
        rng.standard_normal(out=block, dtype=np.float32)
        block *= scale
        block += centres[rng.choice(1000, len(block), p=weights / weights.sum())]
    return vectors


def peak_gib():
    """Largest resident size of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def squared_error(vectors, decode):
    """Mean squared distance between vectors and what `decode` gives for some of their rows."""
    total = 0.0
    for start in range(0, len(vectors), BLOCK):
        rows = slice(start, start + BLOCK)
        total += float(((vectors[rows] - decode(rows)) ** 2).sum(dtype="float64"))
    return total / len(vectors)


def measure(method, args):
    """Seconds, mean squared error, and GiB beyond the vectors of one method."""
    import faiss
    import numpy as np
    from threadpoolctl import threadpool_limits

    from minionerec.sid.kmeans import reconstruct, residual_kmeans, training_rows

    sizes = (args.codes,) * args.levels
    vectors = make_vectors(args.items, args.width)
    from sklearn.cluster import kmeans_plusplus  # noqa: F401  imports are not what is timed

    before = peak_gib()
    with threadpool_limits(limits=args.threads):
        start, cpu = time.perf_counter(), time.process_time()
        if method == "faiss":
            if args.codes & (args.codes - 1):
                raise SystemExit(f"--codes is {args.codes}; faiss's ResidualQuantizer takes powers of two only.")
            quantizer = faiss.ResidualQuantizer(args.width, args.levels, args.codes.bit_length() - 1)
            quantizer.max_beam_size = 1
            quantizer.train(vectors[training_rows(args.items, args.codes * POINTS_PER_CODE, SEED)])
            codes = quantizer.compute_codes(vectors)
        else:
            codes, codebooks = residual_kmeans(
                vectors,
                sizes,
                SEED,
                args.iterations,
                balanced=method == "balanced",
                train_rows=args.codes * POINTS_PER_CODE,
                threads=args.threads,
            )
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        peak = peak_gib() - before
        if method == "faiss":
            error = squared_error(vectors, lambda rows: quantizer.decode(codes[rows]))
            return {"seconds": seconds, "cpu_seconds": cpu, "error": error, "peak_gib": peak}
        error = squared_error(vectors, lambda rows: reconstruct(codes[rows], codebooks))
        counts = [np.bincount(column, minlength=args.codes) for column in codes.T]
        return {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "error": error,
            "peak_gib": peak,
            "smallest": min(int(count.min()) for count in counts),
            "largest": max(int(count.max()) for count in counts),
        }


def main():
    """Measure all methods in processes of their own, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000, help="number of vectors")
    parser.add_argument("--width", type=int, default=768, help="width of the vectors")
    parser.add_argument("--codes", type=int, default=256, help="codes per level, a power of two")
    parser.add_argument("--levels", type=int, default=3, help="levels")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--iterations", type=int, default=25, help="k-means iterations per level")
    parser.add_argument("--only", choices=METHODS, help="measure one method in this process")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args.only, args)))
        return
    found = {}
    for method in METHODS:
        words = [
            f"--{name}={getattr(args, name)}" for name in ("items", "width", "codes", "levels", "threads", "iterations")
        ]
        done = subprocess.run(
            [sys.executable, __file__, *words, "--only", method],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": str(args.threads), "OPENBLAS_NUM_THREADS": str(args.threads)},
        )
        found[method] = json.loads(done.stdout)
    theirs, plain, balanced = (found[method] for method in METHODS)
    figures = {
        "ratio": round(plain["seconds"] / theirs["seconds"], 3),
        "balanced_ratio": round(balanced["seconds"] / plain["seconds"], 3),
        "error_ratio": round(plain["error"] / theirs["error"], 4),
        "peak_gib": round(max(plain["peak_gib"], balanced["peak_gib"]), 2),
        "cpu_ratio": round(plain["cpu_seconds"] / theirs["cpu_seconds"], 3),
        "balanced_cpu_ratio": round(balanced["cpu_seconds"] / plain["cpu_seconds"], 3),
        **{f"{method}_{name}": round(value, 4) for method in METHODS for name, value in found[method].items()},
    }
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:28} {value:,}")


if __name__ == "__main__":
    main()
