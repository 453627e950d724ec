"""NDCG@10 of sequential recommenders where a target has followed the newest item in training, and where it has not.

python studies/followed_targets.py --corpus $MINIONEREC_DATA/sequential/LastFM.txt --protocol a \
  --runs baseline=runs/sequential/lastfm_causal WEARec=runs/sequential/lastfm_wearec

Reads the ranks that `minionerec train-sequential` wrote. Several seeds count as their mean for each row. The paired
intervals compare each run with the first.
"""

import argparse
import json
from collections.abc import Sequence

import numpy as np

from minionerec.core.commands import run_command
from minionerec.core.errors import DataError
from minionerec.data.protocols import PROTOCOLS, read_split
from minionerec.metrics.ranked import Ranked, runs_at
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import paired_bootstrap


def study(corpus: str, protocol: str, runs: Sequence[tuple[str, str]]) -> dict[str, dict]:
    """Figures of each part of validation and test rows.

    Args:
        corpus: The file that the runs were trained on.
        protocol: Their protocol.
        runs: Name and output of each training.

    Raises:
        DataError: If ranks are about other rows.
    """
    split = read_split(corpus, PROTOCOLS[protocol])
    histories, targets = split.windows.histories.astype(np.int64), split.windows.targets.astype(np.int64)
    base = split.num_items + 1
    trained = np.unique((histories * base + targets)[targets > 0])
    figures = {}
    for part in ("valid", "test"):
        rows = split.rows(part)
        newest = rows.flat[rows.ends - 1].astype(np.int64)
        followed = np.isin(newest * base + rows.targets, trained)
        values = {}
        for name, folder in runs:
            found = []
            for path in runs_at(folder):
                ranked = Ranked.load(path, part)
                if ranked.targets.tolist() != split.targets(part).tolist():
                    raise DataError(f"{path}: its rows are not those of {corpus} under protocol {protocol}.")
                found.append(ranking_metrics(ranked.ranks["item"], [10])["NDCG@10"])
            values[name] = np.stack(found).mean(0)
        first = next(iter(values))
        for kind, where in (("all", np.full(len(rows), True)), ("followed", followed), ("new", ~followed)):
            shown = {name: round(float(each[where].mean()), 4) for name, each in values.items()}
            for name in list(values)[1:]:
                gap = paired_bootstrap(values[first][where], values[name][where])
                shown[f"{first} - {name}"] = [round(x, 4) for x in gap]
            figures[f"{part}, {kind}"] = {"rows": int(where.sum()), **shown}
    return figures


def main() -> None:
    """Read the ranks and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="'user item item ...' file that the runs were trained on")
    parser.add_argument("--protocol", default="a", choices=["a", "b"], help="their protocol")
    parser.add_argument("--runs", nargs="+", required=True, metavar="NAME=FOLDER", help="outputs of trainings")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    runs = [(name, folder) for name, _, folder in (run.partition("=") for run in args.runs)]
    figures = study(args.corpus, args.protocol, runs)
    if args.json:
        print(json.dumps(figures))
    else:
        for name, found in figures.items():
            print(f"{name:<16} {found}")


if __name__ == "__main__":
    run_command(main)
