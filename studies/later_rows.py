"""What a row of the published Industrial split measures: its order audited, and every system by kind of row.

python studies/later_rows.py audit --sequences $MINIONEREC_DATA/sequential/Beauty.txt   # is the order people's?
python studies/later_models.py                                       # models for later days, three seeds
python studies/later_rows.py table --split valid --baselines --later runs/industrial/later  # baselines, models, mixture
python studies/later_rows.py table --split test --baselines --runs "catalogue model=runs/A_test" "SASRec=runs/B"

A row is of the same day where its target and the newest item of its history have one time, and later where the target's
is later; the times of the published rows are read from a file (data/README.md). `--runs NAME=FOLDER` names predictions,
or the output of a sequential training; a name may come again for another seed. A row's value is its mean over seeds.
`--markdown FILE` puts the tables between their marks in a page, `--plot FILE` draws `table`. The weights of the mixture
are fitted to the likelihood of later validation rows: for validation's own figures on the other four fifths of the
users, for test on all of them.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import torch
from later_models import FIRST, LATER, SAME, SidRows, baselines, days_by_order, log_probs
from marks import put_between_marks

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.commands import run_command
from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.kinds import row_kinds
from minionerec.data.times import RowTimes, row_times
from minionerec.metrics.ranked import Ranked, runs_at
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import bootstrap_interval, paired_bootstrap
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.recommend.rankers.baselines import make_baselines
from minionerec.recommend.rankers.lists import RankedSplit, rank_rows
from minionerec.reports.plots import interval_panels
from minionerec.sid.table import SidTable

CORPUS, SIDS = "runs/industrial/corpus", "runs/industrial/sids_published"
TIMES = os.path.join(os.environ.get("MINIONEREC_DATA", "data"), "Amazon/times/Industrial_and_Scientific.times.csv")
BEGIN, END = "<!-- tables of studies/later_rows.py: {} -->", "<!-- end of the tables: {} -->"
Values = tuple[np.ndarray, np.ndarray]  # NDCG@10 and HR@10 of each row, means over seeds
MIXED = ("linear", "popularity, later days")  # baselines that models are mixed with


def times_of(corpus: Corpus, split: str, times: str) -> RowTimes:
    """The times of a split's rows.

    Raises:
        ConfigError: If neither the corpus nor the file has them.
    """
    found = row_times(corpus, split, Path(times))
    if found is None:
        raise ConfigError(f"{times}: no times of the {split} rows; see data/README.md for where they come from.")
    return found


def later_of(corpus: Corpus, split: str, times: str) -> np.ndarray:
    """Which rows have a target that came on a later day than the newest item: bool (R,)."""
    return times_of(corpus, split, times).later


def ranks_of(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Rank of each target from 1; equal scores go by SID number: int64 (R,).

    Example:
        >>> ranks_of(np.array([[3, 1, 2], [5, 5, 5]]), np.array([2, 1])).tolist()
        [2, 2]
    """
    own = scores[np.arange(len(targets)), targets][:, None]
    before = np.arange(scores.shape[1]) < targets[:, None]
    return 1 + ((scores > own) | ((scores == own) & before)).sum(1)


def values_of(ranks: Sequence[np.ndarray]) -> Values:
    """NDCG@10 and HR@10 of rows, means over the seeds whose ranks are given."""
    found = [ranking_metrics(each, [10]) for each in ranks]
    ndcg, hits = (np.mean([each[name] for each in found], axis=0) for name in ("NDCG@10", "HR@10"))
    return ndcg, hits


def agreement(pairs: Iterable[tuple[int, int]]) -> tuple[float, int]:
    """How often two neighbouring pairs of the same two items have the same order, and how many such items there are.

    Over all twos of pairs, each from another place, of every unordered pair that is there twice or more; half of them
    agree by chance.

    Example:
        >>> agreement([(1, 2), (1, 2), (2, 1), (3, 4), (5, 5), (5, 5)])
        (0.3333333333333333, 1)
    """
    counts: dict[tuple[int, int], Counter[bool]] = {}
    for first, second in pairs:
        if first != second:
            counts.setdefault((min(first, second), max(first, second)), Counter())[first < second] += 1
    several = [tuple(count.values()) for count in counts.values() if count.total() > 1]
    same = sum(n * (n - 1) for count in several for n in count)
    return same / max(1, sum(sum(count) * (sum(count) - 1) for count in several)), len(several)


def audit_corpus(corpus: Corpus, times: str) -> list[str]:
    """What the rows of a corpus say of their order, as lines."""
    users, targets = corpus.rows("train").users.tolist(), corpus.rows("train").targets.tolist()
    newest = corpus.rows("train").newest.tolist()
    kinds = days_by_order(users)
    lines = []
    for name, kind in (("same day", SAME), ("later", LATER), ("first row of a user", FIRST)):
        # Of each user a pair counts once.
        found = {
            (a, b, user) for a, b, user, k in zip(newest, targets, users, kinds.tolist(), strict=True) if k == kind
        }
        share, count = agreement((a, b) for a, b, _ in found)
        lines.append(
            f"| train, {name} by the order of rows | {np.mean(kinds == kind):.1%} of {len(kinds):,} rows | "
            f"same two items in the same order: {share:.1%} ({count} pairs of items) |"
        )
    for split in ("valid", "test"):
        known, rows = times_of(corpus, split, times), corpus.rows(split)
        order = days_by_order(rows.users.tolist())
        beside, apart = order == SAME, order == LATER
        lines.append(
            f"| {split}, by times | {known.same.mean():.1%} of {len(rows):,} rows of the same day | rows beside "
            f"the user's last: {known.same[beside].mean():.2%} of {beside.sum():,} of the same day; others: "
            f"{known.same[apart].mean():.2%} of {apart.sum():,} |"
        )
        kinds_of = row_kinds(corpus, RankedSplit.of(corpus, split), split, known)
        followed, turned = (next(iter(kinds_of[group].values())) for group in ("pair", "reverse"))
        last = rows.newest == rows.targets
        for name, where in (("same day", known.same), ("later", known.later)):
            lines.append(
                f"| {split}, {name} | {where.sum():,} rows | newest item again {last[where].mean():.1%}; "
                f"another item, pair in training only forwards {(followed & ~turned & ~last)[where].mean():.1%}, only "
                f"backwards {(turned & ~followed & ~last)[where].mean():.1%}, both "
                f"{(followed & turned & ~last)[where].mean():.1%} |"
            )
    return lines


def audit_sequences(file: Path, titles: Path | None) -> list[str]:
    """What a file of sequences ("user item item …") says of its order, beside the same users' items shuffled."""
    users = [[int(word) for word in line.split()[1:]] for line in file.read_text(encoding="utf-8").splitlines()]
    asins = {}
    if titles is not None:
        asins = {int(item): entry["asin"] for item, entry in json.loads(titles.read_text(encoding="utf-8")).items()}
    rng = np.random.default_rng(0)
    lines = []
    for name, sequences in ((file.name, users), ("shuffled", [rng.permutation(items).tolist() for items in users])):
        pairs = [pair for items in sequences for pair in pairwise(items)]
        share, count = agreement(pairs)
        text = (
            f"| {name} | {len(pairs):,} neighbouring pairs | same two items in the same order: {share:.1%} "
            f"({count:,} pairs of items)"
        )
        if asins:
            text += f"; ASIN rises: {np.mean([asins[a] < asins[b] for a, b in pairs if a != b]):.1%}"
        lines.append(f"{text} |")
    return lines


def fit(features: Sequence[np.ndarray], targets: np.ndarray) -> np.ndarray:
    """Weights of features (K of float32 (R, N)) whose weighted sum makes the targets likeliest by softmax: (K,)."""
    given = torch.from_numpy(np.stack(features, axis=-1).astype(np.float32))
    weights = torch.zeros(len(features), requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=20, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(given @ weights, torch.from_numpy(targets))
        loss.backward()
        return loss

    optimiser.step(closure)
    return weights.detach().numpy()


def mixed(
    features: Mapping[str, np.ndarray],
    valid: Mapping[str, np.ndarray],
    rows: SidRows,
    known: SidRows,
    fit_on: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the log-linear mixture, float32 (R, N), and its weights (K,).

    Args:
        features: Scores of the rows asked about.
        valid: Scores of validation rows, where the weights are fitted. If they are `features`, then on other users'.
        rows: The rows asked about.
        known: Validation rows.
        fit_on: bool, which of these count.
    """
    names = list(features)
    if features is not valid:
        weights = fit([valid[name][fit_on] for name in names], known.targets[fit_on])
        return sum(weight * features[name] for weight, name in zip(weights, names, strict=True)), weights
    number = np.unique(rows.users, return_inverse=True)[1]
    folds = np.random.default_rng(0).integers(0, 5, number.max() + 1)[number]
    scores, found = np.zeros(features[names[0]].shape, dtype=np.float32), []
    for fold in range(5):
        others, own = fit_on & (folds != fold), folds == fold
        weights = fit([features[name][others] for name in names], rows.targets[others])
        scores[own] = sum(weight * features[name][own] for weight, name in zip(weights, names, strict=True))
        found.append(weights)
    return scores, np.mean(found, axis=0)


def run_systems(corpus: Corpus, split: str, runs: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """Ranks by SID of named runs: name to one int64 (R,) for each seed."""
    systems: dict[str, list[np.ndarray]] = {}
    targets = corpus.rows(split).targets
    for word in runs:
        name, _, folder = word.partition("=")
        for place in runs_at(folder):
            ranked = Ranked.load(place, split)
            if ranked.targets.tolist() != targets.tolist():
                raise ConfigError(f"{place}: its rows are not the {split} rows of the corpus.")
            systems.setdefault(name, []).append(ranked.ranks["sid"])
    return systems


def baseline_systems(corpus: Corpus, table: SidTable, split: str) -> dict[str, list[np.ndarray]]:
    """Ranks by SID of what needs no training, in lists of fifty."""
    rows, asked = RankedSplit.of(corpus, split), SidRows.of(corpus, table, split)
    found = {
        name: [Ranked.from_predictions(rank_rows(ranker, rows, 50, table=table)).ranks["sid"]]
        for name, ranker in make_baselines(corpus, table).items()
    }
    own = baselines(corpus, table, asked)
    names = ("popularity, newest tenth", "popularity, later days", "linear", "linear and popularity", "text")
    return found | {name: [ranks_of(own[name], asked.targets)] for name in names}


def model_scores(
    corpus: Corpus, table: SidTable, split: str, later: Path | None, seeds: Sequence[int], checkpoints: Sequence[str]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Name of each model, and its scores of validation rows and of those of a split: float32 (R, N) each.

    Args:
        corpus: The corpus.
        table: Its SIDs.
        split: "valid" or "test".
        later: Folder of `later_models.py`, if wanted.
        seeds: Which of its models.
        checkpoints: NAME=FOLDER of catalogue models.
    """
    splits = sorted({"valid", split})
    for seed in seeds if later else ():
        yield "later model", {name: np.load(f"{later}/later-{seed}/{name}.npy") for name in splits}
    histories = {name: SidRows.of(corpus, table, name).padded(corpus.max_history) for name in splits}
    for word in checkpoints:
        name, _, folder = word.partition("=")
        model = cast(CatalogueModel, load_bundle(folder).model)
        yield name, {part: log_probs(model, histories[part]) for part in splits}


def mixed_systems(
    corpus: Corpus,
    table: SidTable,
    split: str,
    later: np.ndarray,
    models: Iterable[tuple[str, dict[str, np.ndarray]]],
) -> dict[str, list[np.ndarray]]:
    """Ranks by SID of models and of their mixtures with two baselines; the weights are printed.

    Args:
        corpus: The corpus.
        table: Its SIDs.
        split: "valid" or "test".
        later: bool, validation rows of a later day.
        models: See `model_scores`.
    """
    rows = {name: SidRows.of(corpus, table, name) for name in {"valid", split}}
    given = {name: baselines(corpus, table, asked) for name, asked in rows.items()}
    systems: dict[str, list[np.ndarray]] = {}
    for name, scores in models:
        features = {
            part: {name: scores[part]} | {baseline: given[part][baseline] for baseline in MIXED} for part in rows
        }
        found, weights = mixed(features[split], features["valid"], rows[split], rows["valid"], later)
        said = ", ".join(f"{feature} {weight:.2f}" for feature, weight in zip(features[split], weights, strict=True))
        sys.stdout.write(f"mixture: {said}\n")
        systems.setdefault(name, []).append(ranks_of(scores[split], rows[split].targets))
        systems.setdefault(f"{name}, mixed", []).append(ranks_of(found, rows[split].targets))
    return systems


def cell(values: np.ndarray, users: np.ndarray) -> str:
    """A mean with its 95 % interval by user."""
    low, high = bootstrap_interval(values, clusters=users)
    return f"{values.mean():.4f} [{low:.4f}, {high:.4f}]"


def gap_cells(ours: np.ndarray, theirs: np.ndarray, users: np.ndarray, where: np.ndarray | None = None) -> list[str]:
    """A paired difference of means with its 95 % interval, and its p-value, both by user; of some rows, bool (R,)."""
    some = np.ones(len(users), dtype=bool) if where is None else where
    gap = paired_bootstrap(ours[some], theirs[some], clusters=users[some])
    return [f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]", f"{gap.p:.3f}"]


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text."""
    rows = [header, ["---", *("--:" for _ in header[1:])], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def tables(
    systems: Mapping[str, Sequence[np.ndarray]], times: RowTimes, users: np.ndarray, followed: np.ndarray, first: str
) -> str:
    """Every system by day, by whether the pair was in training, and less one of them, as three markdown tables.

    Args:
        systems: Name to ranks of seeds.
        times: Of the rows.
        users: The user of each row.
        followed: bool (R,), rows whose target stood right after the newest item in training.
        first: The system that the others are compared with.
    """
    values = {name: values_of(ranks) for name, ranks in systems.items()}
    later, same = times.later, times.same
    by_day, by_pair, less_first = [], [], []
    for name, (ndcg, hits) in values.items():
        cells = [name, str(len(systems[name])), cell(ndcg, users), f"{hits.mean():.4f}"]
        for where in (same, later):
            cells += [cell(ndcg[where], users[where]), f"{hits[where].mean():.4f}"]
        spread = [ranking_metrics(ranks, [10])["NDCG@10"][later].mean() for ranks in systems[name]]
        cells[-2] += f" ± {np.std(spread, ddof=1):.4f}" if len(spread) > 1 else ""
        if name == first:
            cells += ["", ""]
        else:
            cells += gap_cells(ndcg, values[first][0], users, later)
            gaps = [*gap_cells(ndcg, values[first][0], users), *gap_cells(hits, values[first][1], users)]
            less_first.append([name, *gaps, *gap_cells(ndcg, values[first][0], users, same)])
        by_day.append(cells)
        parts = (same & followed, same & ~followed, later & followed, later & ~followed)
        by_pair.append([name, *(f"{ndcg[where].mean():.4f}" for where in parts)])
    less = f"later NDCG@10 less {first} [95 %]"
    head = ["", "seeds", "all rows NDCG@10", "HR@10", "same day NDCG@10", "HR@10", "later NDCG@10", "HR@10", less, "p"]
    sizes = [f"{int(where.sum()):,} rows" for where in parts]
    kinds = ("same day, followed", "same day, did not", "later, followed", "later, did not")
    pair_head = ["NDCG@10", *(f"{kind} ({size})" for kind, size in zip(kinds, sizes, strict=True))]
    less_head = [f"less {first}", "all rows NDCG@10 [95 %]", "p", "HR@10 [95 %]", "p", "same day NDCG@10 [95 %]", "p"]
    return "\n\n".join((markdown(head, by_day), markdown(pair_head, by_pair), markdown(less_head, less_first)))


def draw(systems: Mapping[str, Sequence[np.ndarray]], times: RowTimes, users: np.ndarray) -> str:
    """NDCG@10 with intervals of every system on rows of the same day and on later ones, as an SVG image."""
    panels = {}
    for name, where in (("same day", times.same), ("later", times.later)):
        points = {}
        for system, ranks in systems.items():
            values = values_of(ranks)[0][where]
            ends = bootstrap_interval(values, clusters=users[where])
            points[system] = (float(values.mean()), *map(float, ends))
        panels[f"{name}: {where.mean():.0%} of the rows"] = points
    return interval_panels(panels, "NDCG@10 by SID")


def main() -> None:
    """Audit, or measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("audit", "table"))
    parser.add_argument("--corpus", default=CORPUS)
    parser.add_argument("--sids", default=SIDS)
    parser.add_argument("--times", default=TIMES, help="csv of the times of validation and test rows")
    parser.add_argument("--sequences", help="audit: a file of sequences too")
    parser.add_argument("--titles", help="audit: JSON of its items' titles and ASINs")
    parser.add_argument("--split", default="valid", choices=("valid", "test"))
    parser.add_argument("--runs", nargs="*", default=[], help="NAME=FOLDER of predictions or of a sequential training")
    parser.add_argument("--baselines", action="store_true", help="table: what needs no training too")
    parser.add_argument("--later", default="", help="table: folder of the later models")
    parser.add_argument("--mix", nargs="*", default=[], help="table: NAME=FOLDER of catalogue models, alone and mixed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--first", default="", help="system that the others are compared with (default: the first)")
    parser.add_argument("--plot", help="SVG file to draw into")
    parser.add_argument("--markdown", help="file whose marked part is replaced by the tables")
    args = parser.parse_args()
    corpus = Corpus.load(args.corpus)
    if args.what == "audit":
        lines = audit_corpus(corpus, args.times)
        if args.sequences:
            lines += audit_sequences(Path(args.sequences), Path(args.titles) if args.titles else None)
        text, name = "\n".join(["| rows | how many | what |", "|---|---|---|", *lines]), "audit"
    else:
        table = SidTable.load_index(args.sids, corpus.items["item_id"].tolist())
        systems = baseline_systems(corpus, table, args.split) if args.baselines else {}
        systems |= run_systems(corpus, args.split, args.runs)
        place = Path(args.later) if args.later else None
        models = model_scores(corpus, table, args.split, place, args.seeds, args.mix)
        systems |= mixed_systems(corpus, table, args.split, later_of(corpus, "valid", args.times), models)
        times, users = times_of(corpus, args.split, args.times), corpus.rows(args.split).users
        kinds = row_kinds(corpus, RankedSplit.of(corpus, args.split), args.split, times)
        first = args.first or next(iter(systems))
        text, name = tables(systems, times, users, next(iter(kinds["pair"].values())), first), args.split
        if args.plot:
            write_text_atomic(Path(args.plot), draw(systems, times, users))
    if args.markdown:
        put_between_marks(Path(args.markdown), BEGIN.format(name), END.format(name), text)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    run_command(main)
