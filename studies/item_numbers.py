"""What the numbers of the published items give away: they count first appearances, those of test rows among them.

python studies/item_numbers.py --catalogue runs/industrial/best/catalogue
python studies/item_numbers.py --catalogue A/catalogue B/catalogue --json

Whoever walks through the users in the order of their numbers, and through all rows of each, test rows included, meets
the items in the order of theirs. So "the item whose number is one greater than the newest one's" knows of the future.
This script shows how far: in how many rows it is the target, and what a catalogue model gains when the log-probability
of that one item is raised. The bonus is chosen on validation rows; several checkpoints are seeds, a row's value is
their mean, and differences are paired, their intervals by user. With the days of the rows (`--times`) same-day and
later rows are shown apart. As a control the same is done after the items were numbered anew by chance.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from later_models import log_probs
from mixture import prompts_of

from minionerec.core.commands import run_command
from minionerec.core.paths import find_path
from minionerec.data.corpus import Corpus
from minionerec.data.times import row_times
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import paired_bootstrap
from minionerec.models.backbone.bundle import Bundle, load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel

SPLITS, BONUSES = ("valid", "test"), (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
TIMES = "$MINIONEREC_DATA/Amazon/times/Industrial_and_Scientific.times.csv"


def walked(corpus: Corpus) -> float:
    """Share of items whose number is their place among first appearances, users in the order of their numbers."""
    items: dict[str, list[int]] = {}
    for rows in corpus.splits().values():
        for user, history, target in rows:
            met = items.setdefault(user, [int(item) for item in history])
            met.append(int(target))
    users = sorted(items, key=lambda user: int(user[1:]))
    order = list(dict.fromkeys(item for user in users for item in items[user]))
    return float(np.mean(np.array(order) == np.arange(len(order))))


def following(corpus: Corpus, split: str, numbers: np.ndarray) -> np.ndarray:
    """The item whose number is one greater than that of each row's newest item: int64 (R,), -1 where there is none."""
    item_of = np.full(len(numbers) + 1, -1, dtype=np.int64)
    item_of[numbers] = np.arange(len(numbers))
    newest = corpus.rows(split).newest
    return np.where(newest < 0, -1, item_of[numbers[newest] + 1])


def exact_scores(bundle: Bundle, corpus: Corpus, split: str) -> tuple[torch.Tensor, np.ndarray]:
    """Log-probabilities of all SIDs behind each row's history, float32 (R, S), and the targets' SID numbers."""
    assert isinstance(bundle.model, CatalogueModel), f"{bundle.path} holds a {type(bundle.model).__name__}"
    prompts, targets = prompts_of(bundle, corpus, split)
    return torch.from_numpy(log_probs(bundle.model, bundle.model.histories_of(prompts))), targets


def metrics(scores: torch.Tensor, targets: np.ndarray) -> dict[str, np.ndarray]:
    """HR@1, HR@10 and NDCG@10 of each row, float64 (R,), by SID."""
    wanted = scores.gather(1, torch.from_numpy(targets)[:, None])
    ranks = (scores > wanted).sum(1).numpy() + 1
    return ranking_metrics(ranks, [1, 10])


def raised(scores: torch.Tensor, sids: np.ndarray, bonus: float) -> torch.Tensor:
    """The same scores with a bonus for one SID of each row, where it has one."""
    given = scores.clone()
    rows = np.flatnonzero(sids >= 0)
    given[rows, torch.from_numpy(sids[rows])] += bonus
    return given


def study(places: list[str], corpus: Corpus, times: Path | None, numbers: np.ndarray) -> dict[str, Any]:
    """The rule alone, and beside catalogue models with the bonus that is best on validation rows."""
    values: dict[str, dict[float, list[dict[str, np.ndarray]]]] = {s: {b: [] for b in BONUSES} for s in SPLITS}
    for place in places:
        bundle = load_bundle(find_path(place))
        for split in SPLITS:
            scores, targets = exact_scores(bundle, corpus, split)
            items = following(corpus, split, numbers)
            sids = np.where(items >= 0, bundle.table.sid_numbers[items], -1)
            for bonus in BONUSES:
                values[split][bonus].append(metrics(raised(scores, sids, bonus), targets))
    means = {split: {bonus: _mean(found) for bonus, found in each.items()} for split, each in values.items()}
    best = max(BONUSES, key=lambda bonus: float(means["valid"][bonus]["NDCG@10"].mean()))
    return {"bonus": best, **{split: _figures(corpus, split, times, numbers, means[split], best) for split in SPLITS}}


def _mean(found: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.mean([each[name] for each in found], axis=0) for name in found[0]}


def _figures(
    corpus: Corpus,
    split: str,
    times: Path | None,
    numbers: np.ndarray,
    means: dict[float, dict[str, np.ndarray]],
    best: float,
) -> dict[str, Any]:
    targets, users = corpus.rows(split).targets, corpus.rows(split).users
    hit = following(corpus, split, numbers) == targets
    known = row_times(corpus, split, times)
    kinds = {"all": np.full(len(targets), True)}
    if known is not None:
        kinds |= {"same day": known.same, "later": known.later}
    figures = {}
    for kind, rows in kinds.items():
        figures[kind] = {"rows": int(rows.sum()), "rule's HR@1": float(hit[rows].mean())}
        for name in ("HR@10", "NDCG@10"):
            before, after = (means[bonus][name][rows] for bonus in (0.0, best))
            gap = [round(number, 4) for number in paired_bootstrap(after, before, clusters=users[rows])]
            figures[kind][name] = {"without": float(before.mean()), "with": float(after.mean()), "gap": gap}
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="runs/industrial/corpus", help="the published corpus")
    parser.add_argument("--catalogue", nargs="+", required=True, help="catalogue models, one a seed")
    parser.add_argument("--times", default=TIMES, help="days of validation and test rows; '' for none")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    corpus = Corpus.load(find_path(args.corpus))
    times = find_path(args.times) if args.times else None
    own = np.arange(corpus.n_items)
    found = {
        "items whose number is their place": walked(corpus),
        "published numbers": study(args.catalogue, corpus, times, own),
        "numbers drawn by chance": study(args.catalogue, corpus, times, np.random.default_rng(0).permutation(own)),
    }
    if args.json:
        print(json.dumps(found))
        return
    print(f"{found['items whose number is their place']:.1%} of the items stand where their first appearance does.")
    for name in ("published numbers", "numbers drawn by chance"):
        print(f"\n{name}, bonus {found[name]['bonus']} by validation")
        for split in SPLITS:
            for kind, figures in found[name][split].items():
                print(f"  {split}, {kind:<9}{figures}")


if __name__ == "__main__":
    run_command(main)
