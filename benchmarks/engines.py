"""prepare-data by each of its engines: the same corpus to the byte, seconds, and the memory of the whole process tree.

python benchmarks/engines.py                                     # a million rows, DuckDB
python benchmarks/engines.py --rows 10000000 --engines duckdb spark --rounds 3 --engine_memory 4GB
python benchmarks/engines.py --rows 200000 --json

The interactions are generated with a seed and streamed to parquet, a million rows at a time, in the order of time: ten
rows a user and a hundred an item on average, both skewed, with some ties. Each engine prepares them (5-core, global
time) in processes of its own, the engines in turns, `--rounds` times; before anything is printed the files of all
outputs are held against each other. Seconds are those of the stage, from reading to the last file, the best and the
median round; processor seconds are those of all processes of the run from its start to its end, Python's and Java's
imports with them, in the median round: they say less of what else the machine does. Peak memory is the largest that the
processes of one run held at once (sum of their unique and proportional shares, twenty times a second), the worst round.
"""

import argparse
import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.data.names import ENGINES
from minionerec.metrics.tables import markdown_table

CHUNK = 1_000_000


def generate(folder: Path, n_rows: int, seed: int) -> None:
    """Write `interactions.parquet` and `items.parquet`; never more than `CHUNK` rows are held."""
    rng = np.random.default_rng(seed)
    n_users, n_items = max(n_rows // 10, 10), max(n_rows // 100, 10)
    numbers = pa.array(np.arange(n_items))
    names = pa.compute.binary_join_element_wise("item", numbers.cast(pa.string()), "")
    titles = pa.compute.binary_join_element_wise("Thing number", numbers.cast(pa.string()), " ")
    pq.write_table(pa.table({"item_id": names, "title": titles}), folder / "items.parquet")
    schema = pa.schema({"user_id": pa.string(), "item_id": pa.string(), "timestamp": pa.int64()})
    with pq.ParquetWriter(folder / "interactions.parquet", schema, compression="zstd") as writer:
        for start in range(0, n_rows, CHUNK):
            size = min(CHUNK, n_rows - start)
            users = (n_users * rng.random(size) ** 1.5).astype(np.int64) * 7_919 % 99_999_989
            items = (n_items * rng.random(size) ** 3).astype(np.int64)
            times = 1_400_000_000 + (start + np.arange(size)) * 100_000_000 // n_rows + rng.integers(0, 3_600, size)
            columns = [
                pa.compute.binary_join_element_wise("U", pa.array(users).cast(pa.string()), ""),
                names.take(pa.array(items)),
                pa.array(times // 60 * 60),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema), row_group_size=1 << 18)


def run_one(words: argparse.Namespace) -> None:
    """One run, in a process that does nothing else; prints its seconds."""
    from minionerec.pipeline.config.data import PrepareConfig
    from minionerec.pipeline.prepare_data import run_prepare

    folder = Path(words.folder)
    config = PrepareConfig(
        source="tables",
        interactions=str(folder / "interactions.parquet"),
        items=str(folder / "items.parquet"),
        core=5,
        engine=words.run,
        output=words.output,
        engine_memory=words.engine_memory,
        engine_folder=words.folder,
    )
    start = time.perf_counter()
    run_prepare(config)
    print(json.dumps({"seconds": time.perf_counter() - start}))


def held(process: psutil.Process, worked: dict[int, float]) -> int:
    """Bytes that a process and its children hold, what they share counted once; notes how long each has worked."""
    total = 0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
            worked[each.pid] = times.user + times.system
            total += each.memory_full_info().pss
        except psutil.Error:  # it has just ended
            continue
    return total


def measure(engine: str, folder: Path, output: Path, engine_memory: str) -> tuple[float, float, int]:
    """Seconds, processor seconds and peak bytes of one run."""
    words = [sys.executable, __file__, "--run", engine, "--folder", str(folder), "--output", str(output)]
    running = subprocess.Popen([*words, "--engine_memory", engine_memory], stdout=subprocess.PIPE, text=True)
    peak, worked, ended = 0, {}, threading.Event()

    def watch() -> None:
        nonlocal peak
        process = psutil.Process(running.pid)
        while not ended.wait(0.05):
            try:
                peak = max(peak, held(process, worked))
            except psutil.Error:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    reported, _ = running.communicate()
    ended.set()
    watcher.join()
    if running.returncode:
        raise SystemExit(f"{engine}: ended with status {running.returncode}")
    return json.loads(reported.splitlines()[-1])["seconds"], sum(worked.values()), peak


def fingerprint(output: Path) -> str:
    """SHA-256 of all files of a corpus, and of its counts."""
    digest = hashlib.sha256()
    for path in sorted(output.rglob("*.parquet")):
        with open(path, "rb") as file:
            digest.update(path.relative_to(output).as_posix().encode() + hashlib.file_digest(file, "sha256").digest())
    counts = json.loads((output / "manifest.json").read_text())["counts"]
    digest.update(json.dumps(counts, sort_keys=True).encode())
    return digest.hexdigest()


def main() -> None:
    """Generate, run, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="interactions")
    parser.add_argument("--engines", nargs="+", default=["duckdb"], choices=ENGINES)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each engine, in turns")
    parser.add_argument("--engine_memory", default="2GB", help="most memory of DuckDB, and of Spark's Java process")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated interactions")
    parser.add_argument("--folder", help="folder for the tables and the outputs; a temporary one if not given")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table in Markdown")
    parser.add_argument("--run", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.run:
        run_one(words)
        return
    with tempfile.TemporaryDirectory(dir=words.folder) as path:
        folder = Path(path)
        generate(folder, words.rows, words.seed)
        runs: dict[str, list[tuple[float, float, int]]] = {engine: [] for engine in words.engines}
        prints = {}
        for number in range(words.rounds):
            for engine in words.engines:
                output = folder / f"{engine}{number}"
                runs[engine].append(measure(engine, folder, output, words.engine_memory))
                prints[output.name] = fingerprint(output)
                shutil.rmtree(output)
    if len(set(prints.values())) != 1:
        raise SystemExit(f"the outputs differ: {prints}")
    figures = {
        engine: {
            "best_s": round(min(seconds for seconds, _, _ in found), 2),
            "median_s": round(statistics.median(seconds for seconds, _, _ in found), 2),
            "processor_s": round(statistics.median(worked for _, worked, _ in found), 1),
            "peak_mib": round(max(peak for _, _, peak in found) / 2**20),
        }
        for engine, found in runs.items()
    }
    if words.json:
        about = {"rows": words.rows, "rounds": words.rounds, "engine_memory": words.engine_memory}
        print(json.dumps({**about, "fingerprint": next(iter(prints.values())), "engines": figures}))
        return
    print(
        f"{words.rows:,} interactions, {words.rounds} rounds, engine_memory {words.engine_memory}; all outputs equal\n"
    )
    headers = ["engine", "best, s", "median, s", "rows a second", "processor, s", "peak memory, MiB"]
    lines = []
    for engine, found in figures.items():
        speed, peak = f"{words.rows / found['median_s']:,.0f}", f"{found['peak_mib']:,}"
        lines.append([engine, *map(str, (found["best_s"], found["median_s"], speed, found["processor_s"], peak))])
    print(markdown_table(headers, lines))


if __name__ == "__main__":
    main()
