"""NDCG@10 of sequential recommenders where a target has followed the newest item in training, and where it has not.

python benchmarks/followed_targets.py --data $MINIONEREC_DATA/sequential/LastFM.txt --protocol a \
  --runs baseline=runs/sequential/lastfm_causal WEARec=runs/sequential/lastfm_wearec

Reads the ranks that `scripts/train_sequential.py` wrote. Several seeds count as their mean for each row. The paired
intervals compare each run with the first.
"""

import argparse
import json

from minionerec.core.config import run_command


def main() -> None:
    """Read the ranks and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="'user item item ...' file the runs were trained on")
    parser.add_argument("--protocol", default="a", choices=["a", "b"], help="their protocol")
    parser.add_argument("--runs", nargs="+", required=True, metavar="NAME=FOLDER", help="outputs of trainings")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()

    import numpy as np

    from minionerec.data.protocols import PROTOCOLS
    from minionerec.data.sequences import sequences_from_source
    from minionerec.data.sources.user_items import read_user_items
    from minionerec.metrics.statistics import paired_bootstrap
    from minionerec.reports.compare import load_system

    split = PROTOCOLS[args.protocol].split(sequences_from_source(read_user_items(args.data)))
    histories, targets = split.windows.histories.astype(np.int64), split.windows.targets.astype(np.int64)
    base = split.num_items + 1
    trained = np.unique((histories * base + targets)[targets > 0])
    systems = [load_system(*run.split("=", 1), "item") for run in args.runs]

    figures = {}
    for part, rows in (("valid", split.valid), ("test", split.test)):
        newest = rows.flat[rows.ends - 1].astype(np.int64)
        followed = np.isin(newest * base + rows.targets, trained)
        values = {}
        for system in systems:
            if system.rows[part]["target"].tolist() != (rows.targets - 1).tolist():
                parser.error(f"{system.name}: its rows are not those of {args.data} under protocol {args.protocol}.")
            values[system.name] = system.values(part, ["NDCG@10"])["NDCG@10"].mean(0)
        first = next(iter(values))
        for kind, where in (("all", np.full(len(rows), True)), ("followed", followed), ("new", ~followed)):
            found = {name: round(float(each[where].mean()), 4) for name, each in values.items()}
            for name in list(values)[1:]:
                gap = paired_bootstrap(values[first][where], values[name][where])
                found[f"{first} - {name}"] = [round(x, 4) for x in gap]
            figures[f"{part}, {kind}"] = {"rows": int(where.sum()), **found}
    if args.json:
        print(json.dumps(figures))
    else:
        for name, found in figures.items():
            print(f"{name:<16} {found}")


if __name__ == "__main__":
    run_command(main)
