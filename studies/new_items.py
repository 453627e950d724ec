"""Items that came after training, on Industrial: held out at random, appended, and recommended without training.

python studies/new_items.py --corpus runs/industrial/corpus --split valid
python studies/new_items.py --corpus runs/industrial/corpus --split test --markdown docs/results/new_items.md

A share of the items, drawn by the seed, is left out of everything before training. Then they get SIDs (`build-sids
--method append`) and the checkpoint of before speaks them (`extend`). What is done is not done again.

The best 50 trained and the best 50 new items are searched apart and merged, new ones lifted, so that one search stands
for every lift: what exact search gives with the lift that an extended checkpoint names. The catalogue model is searched
exactly, the language model with 50 beams.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from held_out import Case, K, prepare, ranks_of_all
from marks import put_between_marks

from minionerec.core.commands import run_command
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import bootstrap_interval, paired_bootstrap

METRICS = ("HR@10", "HR@50", "NDCG@10")
SHORT = (
    ("new", "HR@10"),
    ("new", "HR@50"),
    ("new", "NDCG@10"),
    ("unseen", "NDCG@10"),
    ("all", "HR@10"),
    ("all", "NDCG@10"),
)
LONG = (*((group, name) for group in ("new", "all") for name in METRICS), ("unseen", "HR@10"), ("unseen", "NDCG@10"))
LIFTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
AFFORDED = 0.02  # share of validation NDCG@10 over all rows that the second lift may cost
SYSTEMS = ("catalogue", "language", "whole")  # the last one: the catalogue model that nothing was held out from
NAMES = {"catalogue": "catalogue model", "language": "language model"}
WHOLE = "catalogue model, trained with all items"
BEGIN, END = "<!-- tables of studies/new_items.py: {} -->", "<!-- end of the tables: {} -->"


@dataclass(frozen=True)
class Values:
    """What a system reaches on the rows of a split, with several seeds.

    Attributes:
        every: Metric name to float (S, R), all rows.
        groups: Name of a group to its rows for each seed, bool (S, R): "new" (the target was held out), "unseen" (and
            is not in the history), "all".
        names: The user of each row, (R,).
    """

    every: dict[str, np.ndarray]
    groups: dict[str, np.ndarray]
    names: np.ndarray

    @classmethod
    def of(cls, ranks: list[np.ndarray], cases: list[Case], split: str) -> "Values":
        """From ranks of each seed."""
        found = [ranking_metrics(np.where(each <= K, each, 0), [10, K]) for each in ranks]
        groups = {
            "new": np.stack([case.cold(split) for case in cases]),
            "unseen": np.stack([case.unseen(split) for case in cases]),
            "all": np.ones((len(cases), len(ranks[0])), dtype=bool),
        }
        users = cases[0].after.rows(split).users
        return cls({name: np.stack([each[name] for each in found]) for name in METRICS}, groups, users)

    def users(self, group: str) -> np.ndarray:
        """The user of each of `rows`, who is drawn with all of them, those of all seeds among them."""
        return self.names if group == "all" else np.concatenate([self.names[mask] for mask in self.groups[group]])

    def rows(self, name: str, group: str) -> np.ndarray:
        """A metric of each row that intervals are drawn from: means over seeds, or a group's rows of all seeds."""
        values = self.every[name]
        found: np.ndarray = values.mean(0) if group == "all" else values[self.groups[group]]
        return found

    def cell(self, name: str, group: str, interval: bool = False) -> str:
        """Mean over rows ± standard deviation of the seeds' means."""
        rows, masks = self.rows(name, group), self.groups[group]
        text = f"{rows.mean():.4f}"
        if len(masks) > 1:
            means = [values[mask].mean() for values, mask in zip(self.every[name], masks, strict=True)]
            text += f" ± {np.std(means, ddof=1):.4f}"
        if interval:
            low, high = bootstrap_interval(rows, clusters=self.users(group))
            text += f" [{low:.4f}, {high:.4f}]"
        return text


def lifted(cases: list[Case], system: str, split: str, lift: float, start: str = "neighbours") -> Values:
    """An extended checkpoint with a lift."""
    ranks = [case.lists(system, split, start).ranks(case.targets(split), lift) for case in cases]
    return Values.of(ranks, cases, split)


def chosen_lifts(cases: list[Case], system: str) -> tuple[float, float]:
    """The lift of the best validation NDCG@10 over all rows, and the largest that costs at most AFFORDED of it."""
    means = [float(lifted(cases, system, "valid", lift).rows("NDCG@10", "all").mean()) for lift in LIFTS]
    most = max(means)
    afforded = [lift for lift, mean in zip(LIFTS, means, strict=True) if mean >= (1 - AFFORDED) * most]
    return LIFTS[means.index(most)], max(afforded)


def markdown(lines: list[list[str]]) -> str:
    """A table whose first line is its head."""
    head, *body = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---", *["--:"] * (len(head) - 1)], *body))


def trade_off(cases: dict[str, list[Case]]) -> str:
    """What a lift gives cold validation rows, and takes from all."""
    lines = [["", *(f"{group} {name}" for group, name in SHORT)]]
    for system, of_system in cases.items():
        ways = [(f"lift {lift:g}", "neighbours", lift) for lift in LIFTS]
        if system == "catalogue":
            ways += [(f"start zero, lift {lift:g}", "zero", lift) for lift in LIFTS[:7]]
        for name, start, lift in ways:
            found = lifted(of_system, system, "valid", lift, start)
            lines.append([f"{NAMES[system]}, {name}", *(found.cell(metric, group) for group, metric in SHORT)])
    return f"{markdown(lines)}\n\n{starts(cases['catalogue'])}" if "catalogue" in cases else markdown(lines)


def starts(cases: list[Case]) -> str:
    """NDCG@10 over all validation rows by both ways to begin, each with the lift that is best for it."""
    best = {}
    for start in ("neighbours", "zero"):
        found = {lift: lifted(cases, "catalogue", "valid", lift, start).rows("NDCG@10", "all") for lift in LIFTS}
        lift = max(found, key=lambda lift: float(found[lift].mean()))
        best[f"{start} (lift {lift:g})"] = found[lift]
    (one, ours), (two, theirs) = best.items()
    gap = paired_bootstrap(ours, theirs, clusters=cases[0].after.rows("valid").users)
    return (
        f"All validation rows, NDCG@10: start {one} {ours.mean():.4f}, {two} {theirs.mean():.4f}, difference "
        f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}], p = {gap.p:.3f}."
    )


def compare(cases: dict[str, list[Case]], whole: list[np.ndarray]) -> str:
    """Systems on test rows, among them ranks of a model that nothing was held out from, and paired differences."""
    lines = [["", "seeds", *(f"{group} {name}" for group, name in LONG)]]
    found: dict[str, Values] = {}
    seeds: dict[str, int] = {}
    for system, of_system in cases.items():
        name = NAMES[system]
        best, afforded = chosen_lifts(of_system, system)
        before = [case.without_extending(system, "test") for case in of_system]
        found[f"{name}, not extended"] = Values.of(before, of_system, "test")
        for lift in sorted({0.0, best, afforded}):
            why = " (best)" * (lift == best) + " (afforded)" * (lift == afforded)
            found[f"{name}, lift {lift:g}{why}"] = lifted(of_system, system, "test", lift)
        seeds |= {each: len(of_system) for each in found if each.startswith(name)}
    most = max(cases.values(), key=len)
    if whole:
        found[WHOLE] = Values.of(whole, most, "test")
        seeds[WHOLE] = len(most)
    baselines = [case.baselines("test") for case in most]
    for name in baselines[0]:
        found[name] = Values.of([each[name] for each in baselines], most, "test")
        seeds[name] = len(most)
    for name, values in found.items():
        cells = [values.cell(metric, group, metric == "NDCG@10") for group, metric in LONG]
        lines.append([name, str(seeds[name]), *cells])
    return f"{markdown(lines)}\n\n{differences(found)}"


def differences(found: dict[str, Values]) -> str:
    """Paired differences in NDCG@10: each extended system from what stands beside it."""
    lines = [["NDCG@10", "rows", "difference [95 %]", "p"]]
    for system in NAMES.values():
        ours = next((name for name in found if name.startswith(system) and name.endswith("(afforded)")), None)
        if ours is None:
            continue
        plain = next(name for name in found if name.startswith(f"{system}, lift 0"))
        pairs = [("text neighbours", "new"), ("text neighbours", "unseen"), (plain, "new"), (plain, "all")]
        pairs += [(f"{system}, not extended", "all"), ("transition counts", "all")]
        pairs += [(WHOLE, group) for group in ("new", "all") if WHOLE in found]
        if system == NAMES["catalogue"]:
            pairs += [(name, "new") for name in found if name.startswith(NAMES["language"]) and "(afforded)" in name]
        for other, group in pairs:
            one, two = found[ours], found[other]
            if one is two or len(one.groups["all"]) != len(two.groups["all"]):
                continue
            gap = paired_bootstrap(one.rows("NDCG@10", group), two.rows("NDCG@10", group), clusters=one.users(group))
            cell = f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
            lines.append([f"{ours} less {other}", group, cell, f"{gap.p:.3f}"])
    return markdown(lines)


def main() -> None:
    """Train, extend, rank, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="runs/industrial/corpus", help="corpus to hold items out of")
    parser.add_argument("--output", default="runs/industrial/new_items", help="directory of everything that is made")
    parser.add_argument("--split", default="valid", choices=("valid", "test"))
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.05], help="shares of items held out")
    parser.add_argument("--only", nargs="+", default=list(SYSTEMS), choices=SYSTEMS, help="systems")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--language_seeds", type=int, nargs="+", help="seeds of the language model, where fewer")
    parser.add_argument("--markdown", help="file whose marked parts are replaced by the tables")
    args = parser.parse_args()
    for share in args.shares:
        cases: dict[str, list[Case]] = {}
        for system in [system for system in args.only if system != "whole"]:
            seeds = args.language_seeds if system == "language" and args.language_seeds else args.seeds
            for seed in seeds:
                place = Path(args.output) / f"{round(100 * share)}-{seed}"
                prepare(Path(args.corpus), place, share, seed)
                cases.setdefault(system, []).append(Case(place, seed))
        if args.split == "valid":
            text = trade_off(cases)
        else:
            most = max(cases.values(), key=len) if "whole" in args.only else []
            text = compare(cases, [ranks_of_all(Path(args.corpus), Path(args.output), case, "test") for case in most])
        mark = f"{args.split}, {share:.0%}"
        if args.markdown:
            put_between_marks(Path(args.markdown), BEGIN.format(mark), END.format(mark), text)
        sys.stdout.write(f"{mark}\n{text}\n\n")


if __name__ == "__main__":
    run_command(main)
