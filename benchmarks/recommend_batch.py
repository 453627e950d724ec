"""Rows a second of `minionerec recommend` beside those of `minionerec eval-beam`, on the same rows.

python benchmarks/recommend_batch.py --checkpoint runs/industrial/sft --corpus runs/industrial/corpus --output b.json

Both rank the test examples with the same width in the same process, in turns; their lists are compared first. A side's
rows a second are what its log says: the evaluator's for decoding alone, those of `recommend` with reading ids, making
prompts and writing the lists. The evaluator decodes equal prompts once and counts them so; here they count as rows.
"""

import argparse
import json
import logging
import re
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from minionerec.core.commands import run_command
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.pipeline.config.evaluation import EvalConfig
from minionerec.pipeline.config.recommend import RecommendConfig
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.recommend import FILE, run_recommend

_RATE = re.compile(r"(Decoded|Ranked) .*: ([\d.,]+) (?:prompts|histories)/s")


class Rates(logging.Handler):
    """Keeps the rates that the log speaks of."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[float]] = {"Decoded": [], "Ranked": []}

    def emit(self, record: logging.LogRecord) -> None:
        """Read one line of the log."""
        match = _RATE.search(record.getMessage())
        if match:
            self.found[match[1]].append(float(match[2].replace(",", "")))


def histories_of(corpus: Corpus, folder: Path) -> list[str]:
    """Write the histories of the test examples as a file, and say the item ids."""
    ids: list[str] = corpus.items["item_id"].astype(str).tolist()
    frame = corpus.rows("test")
    histories = [[ids[item] for item in history] for history in frame.histories]
    pd.DataFrame({"user": frame.users, "history": histories}).to_parquet(folder)
    return ids


def measure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Both sides in turns."""
    rates = Rates()
    logging.getLogger("minionerec").addHandler(rates)
    logging.getLogger("minionerec").setLevel(logging.INFO)
    whole = Corpus.load(args.corpus)
    corpus = replace(whole, test=whole.rows("test").take(slice(args.rows)))
    corpus.save(folder / "corpus", config={}, inputs={})
    rows = len(corpus.rows("test"))
    ids = histories_of(corpus, folder / "histories.parquet")
    distinct = len({tuple(history) for history in corpus.rows("test").histories})
    whole: dict[str, list[float]] = {"eval-beam": [], "recommend": []}
    for turn in range(args.repeats + 1):  # the first warms up, and is compared
        shared = {"checkpoint": args.checkpoint, "corpus": f"{folder}/corpus"}
        begin = time.perf_counter()
        evaluated = run_eval(
            EvalConfig(**shared, search=args.search, beams=args.k, ks=[args.k], resamples=1, output=f"{folder}/e{turn}")
        )
        middle = time.perf_counter()
        listed = run_recommend(
            RecommendConfig(**shared, histories=f"{folder}/histories.parquet", k=args.k, output=f"{folder}/r{turn}")
        )
        whole["eval-beam"].append(middle - begin)
        whole["recommend"].append(time.perf_counter() - middle)
        if turn == 0:
            wanted = [[ids[item] for item in row][: args.k] for row in Predictions.load(evaluated.output).items]
            found = pq.read_table(listed.output / FILE)["items"].to_pylist()
            equal = sum(one == other for one, other in zip(found, wanted, strict=True))
            rates.found = {"Decoded": [], "Ranked": []}
            whole = {name: [] for name in whole}
    evaluator = statistics.median(rates.found["Decoded"]) * rows / distinct
    recommend = statistics.median(rates.found["Ranked"])
    return {
        "rows": rows, "distinct_prompts": distinct, "k": args.k, "search": args.search, "equal_lists": equal,
        "evaluator_rows_a_second": evaluator, "recommend_rows_a_second": recommend,
        "ratio": recommend / evaluator, "repeats": args.repeats,
        "whole_stage_seconds": {name: statistics.median(seconds) for name, seconds in whole.items()},
    }  # fmt: skip


def main() -> None:
    """Read the flags, measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--search", default="beam", help="the evaluator's; exact for a catalogue model")
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--rows", type=int, default=5000, help="most test examples")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(args, Path(folder))
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    run_command(main)
