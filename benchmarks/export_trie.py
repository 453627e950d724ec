"""Cost of an exported trie for whoever reads it: disk, memory, time to load it, and the search's own part of a list.

python benchmarks/export_trie.py                  # a million SIDs, three levels of 256 codes
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path


def peak_mb() -> float:
    """Largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def seconds(call, times: int) -> float:
    """Mean seconds of a call."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000, help="rows of the code table")
    parser.add_argument("--levels", type=int, default=3, help="codes of an SID")
    parser.add_argument("--size", type=int, default=256, help="codes of a level")
    parser.add_argument("--beams", type=int, default=50, help="number of beams")
    parser.add_argument("--seed", type=int, default=0, help="seed of codes and scores")
    args = parser.parse_args()

    import numpy as np

    from minionerec.models.decoding.trie import Trie
    from minionerec.pipeline.export import write_trie
    from minionerec.recommend.sid_trie import SidTrie

    rng = np.random.default_rng(args.seed)
    codes = rng.integers(0, args.size, (args.items, args.levels))
    ids = np.arange(args.levels * args.size).reshape(args.levels, args.size)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trie.safetensors"
        write_trie(Trie.build(codes, ids), file)
        size = file.stat().st_size
        load = seconds(lambda: SidTrie(folder), 5)
        trie = SidTrie(folder)
    held = sum(array.nbytes for array in (trie.first_child, trie.token, trie.sid))

    def scores(sequences, tokens):
        return [np.log(rng.random(len(row))).tolist() for row in tokens]

    found = trie.search(scores, [0], args.beams)
    lookup = seconds(lambda: trie.allowed(found[0][0][:-1]), 1000)
    search = seconds(lambda: trie.search(scores, [0], args.beams), 20)
    print(f"{len(trie.token):,} nodes, {size / 1e6:.1f} MB on disk, {held / 1e6:.1f} MB in memory")
    print(f"load {1e3 * load:.1f} ms, tokens after a prefix {1e6 * lookup:.0f} us")
    print(f"search of {args.beams} without the model {1e3 * search:.1f} ms; peak of all of this {peak_mb():.0f} MB")


if __name__ == "__main__":
    main()
