"""Items that a user already has in the lists of sequential recommenders, and the metrics with them struck out.

python studies/seen_items.py --corpus $MINIONEREC_DATA/sequential/Beauty.txt --protocol b \
  --runs baseline=runs/sequential/beauty_causal SASRec=runs/sequential/beauty_sasrec

Reads the lists that `minionerec train-sequential` wrote (50 items unless told otherwise); nothing is trained or ranked
again. Several seeds count as their mean for each row. The paired intervals, by user, compare each run with the first.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from minionerec.core.commands import run_command
from minionerec.core.errors import DataError
from minionerec.data.protocols import PROTOCOLS, read_examples
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranked import runs_at
from minionerec.metrics.ranking import item_ranks, ranking_metrics
from minionerec.metrics.statistics import paired_differences


def measure(lists: Predictions, had: Sequence[set[int]]) -> dict[str, np.ndarray]:
    """Each row's metrics, as ranked and with items struck out that its user has, and how many of those it lists."""
    kept = [[i for i in items if i not in own] for items, own in zip(lists.items, had, strict=True)]
    values = {}
    for kind, items in (("ranked", lists.items), ("struck", kept)):
        metrics = ranking_metrics(item_ranks(replace(lists, items=items)), [1, 10])
        values |= {f"{name}, {kind}": per_row for name, per_row in metrics.items()}
    tops = [[i in own for i in items[:10]] for items, own in zip(lists.items, had, strict=True)]
    values["first place"] = np.array([float(bool(top and top[0])) for top in tops])
    values["among ten"] = np.array([float(sum(top)) for top in tops])
    return values


def study(corpus: str, protocol: str, runs: Sequence[tuple[str, str]]) -> dict[str, dict]:
    """Figures of each run.

    Args:
        corpus: The file that the runs were trained on.
        protocol: Their protocol.
        runs: Name and output of each training.

    Raises:
        DataError: If lists are about other rows.
    """
    split = read_examples(corpus, PROTOCOLS[protocol])
    had = [set(history.tolist()) for history in split.test.histories]
    figures, first = {}, None
    for name, folder in runs:
        found = []
        for path in runs_at(folder):
            lists = Predictions.load(path)
            if lists.targets.tolist() != split.test.targets.tolist():
                raise DataError(f"{path}: its rows are not the test rows of {corpus} under protocol {protocol}.")
            found.append(measure(lists, had))
        values = {key: np.mean([each[key] for each in found], 0) for key in found[0]}
        first = first or values
        figures[name] = {"seeds": len(found), **{key: round(float(each.mean()), 4) for key, each in values.items()}}
        if values is not first:
            gaps = paired_differences(first, values, clusters=split.test.users.tolist())
            figures[name]["first minus this"] = {
                key: [round(x, 4) for x in gap] for key, gap in gaps.items() if key.startswith(("HR@10", "NDCG@10"))
            }
    return figures


def main() -> None:
    """Read the lists and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="'user item item ...' file that the runs were trained on")
    parser.add_argument("--protocol", default="b", choices=["a", "b"], help="their protocol")
    parser.add_argument("--runs", nargs="+", required=True, metavar="NAME=FOLDER", help="outputs of trainings")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    runs = [(name, folder) for name, _, folder in (run.partition("=") for run in args.runs)]
    figures = study(args.corpus, args.protocol, runs)
    if args.json:
        print(json.dumps(figures))
        return
    for name, found in figures.items():
        print(name)
        for key, value in found.items():
            print(f"  {key:<18} {value}")


if __name__ == "__main__":
    run_command(main)
