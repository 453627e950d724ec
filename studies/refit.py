"""What a refit is worth: the chosen settings trained on train alone, and again on train and valid; both on test rows.

python studies/refit.py                       # the catalogue model of the recipe industrial/catalogue, three seeds

A refit on all rows can be measured on nothing. Here the last part of the data plays the future: the refit sees train
and valid, and the test rows, which neither run has seen, measure both. Differences are paired over rows, whose values
are means over seeds.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from minionerec.cli.plan import config_values
from minionerec.core.commands import run_command
from minionerec.data.corpus import Corpus
from minionerec.metrics.ranking import ranking_metrics, sid_ranks
from minionerec.metrics.statistics import paired_differences
from minionerec.recommend.rankers.lists import RankedSplit, rank_rows
from minionerec.recommend.rankers.load import load_ranker
from minionerec.training.catalogue import run_catalogue
from minionerec.training.config import CatalogueTrainConfig

METRICS = ("HR@10", "NDCG@10", "HR@50")


def without_test(corpus: Corpus) -> Corpus:
    """A corpus that ends with the validation rows, the last of which stands in for its test rows."""
    return replace(corpus, valid=corpus.valid.take(slice(-1)), test=corpus.valid.take(slice(-1, None)))


def measure(checkpoint: Path, known: Corpus, rows: RankedSplit) -> dict[str, np.ndarray]:
    """Each test row's metrics by SID, in lists of 50."""
    ranker = load_ranker(checkpoint, known)
    ranks = sid_ranks(rank_rows(ranker, rows, 50, table=ranker.table))
    values = ranking_metrics(ranks, (10, 50))
    return {name: values[name] for name in METRICS}


def study(config: CatalogueTrainConfig, seeds: list[int], output: Path) -> dict[str, dict]:
    """Train, refit and measure.

    Args:
        config: Settings of the chosen runs.
        seeds: Their seeds.
        output: Where checkpoints go.
    """
    corpus = Corpus.load(config.corpus)
    known, rows = without_test(corpus), RankedSplit.of(corpus, "test")
    if not (output / "known").is_dir():
        known.save(output / "known", config={"without": "test"}, inputs={"corpus": config.corpus})
    found: dict[str, list[dict[str, np.ndarray]]] = {"chosen": [], "refit": []}
    for seed in seeds:
        chosen = replace(config, seed=seed, output=str(output / f"chosen_{seed}"))
        run_catalogue(chosen)
        again = {"refit": chosen.output, "corpus": str(output / "known"), "output": str(output / f"refit_{seed}")}
        run_catalogue(replace(chosen, **again))
        found["chosen"].append(measure(Path(chosen.output), corpus, rows))
        found["refit"].append(measure(Path(again["output"]), known, rows))
    means = {name: {key: np.mean([run[key] for run in runs], 0) for key in METRICS} for name, runs in found.items()}
    gaps = paired_differences(means["refit"], means["chosen"], clusters=rows.users)
    return {
        **{name: {key: float(values.mean()) for key, values in part.items()} for name, part in means.items()},
        "difference": {key: list(gap) for key, gap in gaps.items()},
        "by seed": {
            name: [{k: float(v.mean()) for k, v in run.items()} for run in runs] for name, runs in found.items()
        },
    }


def main() -> None:
    """Run the study and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="industrial/catalogue#catalogue", help="settings of the model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44], help="seeds of the chosen runs")
    parser.add_argument("--output", default="runs/industrial/refit", help="where checkpoints go")
    args = parser.parse_args()
    config = CatalogueTrainConfig(**config_values(CatalogueTrainConfig, args.config))
    print(json.dumps(study(config, args.seeds, Path(args.output)), indent=1))


if __name__ == "__main__":
    run_command(main)
