"""All methods of semantic IDs on Industrial and Beauty: diagnostics before training, and which of them foretells NDCG.

python studies/sids.py

Each table of Industrial is trained with the small recipe from labels. `shuffled` has the SIDs of residual k-means,
assigned to the items at random: the same shape without meaning. Prints the rank correlation of each diagnostic with
test NDCG@10 over the tables.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cases import compare_cases
from scipy.stats import spearmanr

import minionerec
from minionerec.core.artefacts import read_json
from minionerec.metrics.tables import text_table

CORPORA = {"industrial": "industrial#data", "beauty": "beauty/catalogue#data"}
QUANTISED = {"residual_kmeans": {}, "balanced_kmeans": {}, "rq_vae": {"epochs": 150}}
QUANTISED["rq_vae_plus"] = QUANTISED["rq_vae"]
SIGNS: dict[str, Callable[[dict[str, Any]], float]] = {
    "bits per item, fewer": lambda d: -d["bits_per_item"],
    "next SID in 10": lambda d: d["prefixes"][-1]["next_hits"],
    "next code 1 in 10, above popularity": lambda d: d["prefixes"][0]["next_hits"] - d["prefixes"][0]["popular_hits"],
    "word purity of two codes": lambda d: d["prefixes"][1]["word_purity"],
    "buyer purity of two codes": lambda d: d["prefixes"][1]["buyer_purity"],
    "variance left by code 1, less": lambda d: -d["prefixes"][0]["variance_left"],
    "perplexity of level 1": lambda d: d["levels"][0]["perplexity"],
    "items with an SID of their own": lambda d: d["collisions"]["identified_items"],
}
"""Diagnostic to its value; larger is better in each."""


def tables_of(dataset: str, home: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The corpus, the tables of semantic IDs by method, and their diagnostics."""
    corpus = minionerec.run_stage("prepare-data", CORPORA[dataset], output=home / "corpus")
    build = partial(minionerec.build_sids, corpus, seed=42)
    tables = {method: build(method=method, output=home / method, **settings) for method, settings in QUANTISED.items()}
    shuffled = {"method": "shuffled", "index": tables["residual_kmeans"], "collisions": "keep"}
    tables["shuffled"] = build(output=home / "shuffled", **shuffled)
    if dataset == "industrial":
        index = "$MINIONEREC_DATA/Amazon/index/Industrial_and_Scientific.index.json"
        published = build(method="published", index=index, collisions="keep", output=home / "published")
        tables = {"published": published, **tables}
    about = {"corpus": corpus, "tables": tables, "title": f"Semantic IDs of {dataset}"}
    return corpus, tables, minionerec.run_stage("sid-report", **about, output=home / "report").metrics


def main(home: Path = Path("runs/studies/sids"), seeds: tuple[int, ...] = (42,)) -> None:
    """Make and judge the tables, train on those of Industrial, and print the rank correlations."""
    tables_of("beauty", home / "beauty")
    folder = home / "industrial"
    corpus, tables, measures = tables_of("industrial", folder)

    def train(name: str, seed: int) -> Any:
        settings = {"corpus": corpus, "sids": tables[name], "seed": seed, "mixed_bf16": True}
        return minionerec.run_stage("sft", "industrial/labels#sft", output=folder / name / f"sft-{seed}", **settings)

    cases = {name: partial(train, name) for name in tables}
    search = {"beams": 50}
    compare_cases(
        folder, corpus, tables["published"], cases, seeds, splits=("test",), search=search
    )  # fmt: skip
    recommenders = read_json(folder / "report" / "test" / "metrics.json")["recommenders"]
    ndcg = {name: recommenders[name]["metrics"]["item"]["NDCG@10"]["mean"] for name in tables}
    rows = []
    for sign, value in SIGNS.items():
        values = [value(measures[name]) for name in tables]
        rows.append([sign, f"{spearmanr(values, list(ndcg.values())).statistic:+.2f}"])
    print(text_table(["diagnostic", "Spearman with NDCG@10"], rows))


if __name__ == "__main__":
    main()
