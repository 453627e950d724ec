"""Items that a user already has in the lists of sequential recommenders, and the metrics with them struck out.

python benchmarks/seen_items.py --data $MINIONEREC_DATA/sequential/Beauty.txt --protocol b \
  --runs baseline=runs/sequential/beauty_causal SASRec=runs/sequential/beauty_sasrec

Reads the lists that `scripts/train_sequential.py` wrote (50 items unless told otherwise); nothing is trained or ranked
again. Several seeds count as their mean for each row. The paired intervals compare each run with the first.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path


def main() -> None:
    """Read the lists and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="'user item item ...' file the runs were trained on")
    parser.add_argument("--protocol", default="b", choices=["a", "b"], help="their protocol")
    parser.add_argument("--runs", nargs="+", required=True, metavar="NAME=FOLDER", help="outputs of trainings")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()

    import numpy as np

    from minionerec.data.protocols import PROTOCOLS
    from minionerec.data.sequences import sequences_from_source
    from minionerec.data.sources.user_items import read_user_items
    from minionerec.metrics.predictions import Predictions
    from minionerec.metrics.ranking import item_ranks, ranking_metrics
    from minionerec.metrics.statistics import paired_differences

    test = PROTOCOLS[args.protocol].split(sequences_from_source(read_user_items(args.data))).test
    owners, places = test.seen(slice(0, len(test)))
    had = [set() for _ in range(len(test))]
    for owner, place in zip(owners.tolist(), (places - 1).tolist(), strict=True):
        had[owner].add(place)

    def read(folder):
        """Means over seeds of each row's metrics, as ranked and struck, and of the counts of items it has."""
        found = []
        for path in sorted(Path(folder).glob("seed-*/predictions")):
            lists = Predictions.load(path)
            if lists.targets.tolist() != (test.targets - 1).tolist():
                parser.error(f"{path}: its rows are not the test rows of {args.data} under protocol {args.protocol}.")
            kept = [[i for i in items if i not in own] for items, own in zip(lists.items, had, strict=True)]
            values = {}
            for kind, items in (("ranked", lists.items), ("struck", kept)):
                metrics = ranking_metrics(item_ranks(replace(lists, items=items)), [1, 10])
                values |= {f"{name}, {kind}": per_row for name, per_row in metrics.items()}
            tops = [[i in own for i in items[:10]] for items, own in zip(lists.items, had, strict=True)]
            values["first place"] = np.array([float(bool(top and top[0])) for top in tops])
            values["among ten"] = np.array([float(sum(top)) for top in tops])
            found.append(values)
        if not found:
            parser.error(f"{folder}: holds no finished seed.")
        return len(found), {name: np.mean([values[name] for values in found], 0) for name in found[0]}

    figures, first = {}, None
    for name, folder in (run.split("=", 1) for run in args.runs):
        seeds, values = read(folder)
        first = first or values
        figures[name] = {"seeds": seeds, **{key: round(float(each.mean()), 4) for key, each in values.items()}}
        if values is not first:
            gaps = paired_differences(first, values)
            figures[name]["first minus this"] = {
                key: [round(x, 4) for x in gap] for key, gap in gaps.items() if key.startswith(("HR@10", "NDCG@10"))
            }
    if args.json:
        print(json.dumps(figures))
        return
    for name, found in figures.items():
        print(name)
        for key, value in found.items():
            print(f"  {key:<18} {value}")


if __name__ == "__main__":
    main()
