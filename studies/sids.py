"""What the diagnostics of semantic IDs knew before training: tables of the study `sids`, and how they rank its cases.

minionerec run studies/sids
python studies/sids.py --markdown docs/results/sids.md

Reads what the study has made, and its table of the test examples where there is one. The tables go to standard output
and, with `--markdown`, between the two marks of that file.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from minionerec.core.artefacts import read_json
from minionerec.core.commands import run_command
from minionerec.reports.cells import percent
from minionerec.reports.document import Table
from minionerec.reports.markdown import table_markdown, write_part

DATASETS = ("industrial", "beauty")
# What is held against NDCG: larger is better in each.
SIGNS = {
    "bits per item, fewer": lambda d: -d["bits_per_item"],
    "next SID in 10": lambda d: d["prefixes"][-1]["next_hits"],
    "next code 1 in 10, above popularity": lambda d: d["prefixes"][0]["next_hits"] - d["prefixes"][0]["popular_hits"],
    "word purity of two codes": lambda d: d["prefixes"][1]["word_purity"],
    "buyer purity of two codes": lambda d: d["prefixes"][1]["buyer_purity"],
    "variance left by code 1, less": lambda d: -d["prefixes"][0]["variance_left"],
    "perplexity of level 1": lambda d: d["levels"][0]["perplexity"],
    "items with an SID of their own": lambda d: d["collisions"]["identified_items"],
}


def diagnostics_tables(dataset: str, prepared: Path, measures: dict[str, Any]) -> str:
    """What a reader needs of one data set's diagnostics."""
    use, prefixes = [], []
    for name, found in measures.items():
        report = read_json(prepared / name / "report.json")
        before, after = (report["collisions"][when] for when in ("before", "after"))
        error = report["levels"][-1]["error"]
        use.append(
            [
                name,
                "/".join(str(level["used"]) for level in found["levels"]),
                "/".join(f"{level['perplexity']:.0f}" for level in found["levels"]),
                "/".join(f"{level['gini']:.2f}" for level in found["levels"]),
                "" if error is None else percent(error),
                f"{before['unique']:,}",
                f"{before['largest_bucket']:,}",
                f"{after['unique']:,}",
                f"{after['items'] - after['sharing_items']:,}",
                percent(after["sharing_rate"]),
                percent(after["surplus_rate"]),
            ]
        )
        first, second, last = found["prefixes"][0], found["prefixes"][1], found["prefixes"][-1]
        prefixes.append(
            [
                name,
                percent(first["variance_left"]),
                percent(second["variance_left"]),
                *(f"{prefix['word_purity']:.3f}" for prefix in (first, second)),
                *(f"{prefix['buyer_purity']:.4f}" for prefix in (first, second)),
                f"{percent(first['next_hits'])} ({percent(first['popular_hits'])})",
                f"{percent(last['next_hits'])} ({percent(last['popular_hits'])})",
                f"{found['bits_per_item']:.3f}",
            ]
        )
    headers = [
        "",
        "codes used",
        "perplexity",
        "Gini",
        "error",
        "unique before",
        "largest bucket",
        "unique after",
        "with their own SID",
        "sharing rate",
        "surplus rate",
    ]
    prefix_headers = [
        "",
        "variance left, 1 code",
        "2 codes",
        "word purity, 1 code",
        "2 codes",
        "buyer purity, 1 code",
        "2 codes",
        "next code 1 in 10 (by popularity)",
        "next SID in 10",
        "bits per item",
    ]
    chance = next(iter(measures.values()))
    note = (
        f"Two random items: word purity {chance['word_chance']:.4f}, buyer purity {chance['buyer_chance']:.5f}. "
        f"Naming an item without any knowledge takes {np.log2(chance['collisions']['items']):.2f} bits."
    )
    title = dataset.title()
    return "\n\n".join(
        [
            f"### {title}: use of codes",
            table_markdown(Table(headers, use)),
            f"### {title}: items that share a prefix",
            note,
            table_markdown(Table(prefix_headers, prefixes)),
        ]
    )


def training_tables(measures: dict[str, Any], found: dict[str, dict[str, Any]]) -> str:
    """Test metrics by table, and how well each diagnostic ranks the tables."""
    by_name = {name: line["metrics"]["item"] for name, line in found.items()}
    ndcg = {name: metrics["NDCG@10"]["mean"] for name, metrics in by_name.items()}
    names = sorted(ndcg, key=lambda name: -ndcg[name])
    rows = []
    for name in names:
        metrics, seeds = by_name[name], found[name]["seeds"]
        means = [f"{metrics[key]['mean']:.4f}" for key in ("HR@1", "HR@5", "HR@10", "HR@50")]
        low, high = metrics["NDCG@10"]["interval"]
        spread = f"{metrics['NDCG@10']['sd']:.4f}" if seeds > 1 else "-"
        cells = [f"{ndcg[name]:.4f} [{low:.4f}, {high:.4f}]", spread, str(seeds)]
        rows.append([name, *means, *cells, f"{measures[name]['bits_per_item']:.3f}"])
    agreement = []
    for sign, value in SIGNS.items():
        scores = [value(measures[name]) for name in names]
        without = [name for name in names if name != "shuffled"]
        inner = [value(measures[name]) for name in without]
        chosen = names[int(np.argmax(scores))]
        agreement.append(
            [
                sign,
                f"{spearmanr(scores, [ndcg[name] for name in names]).statistic:+.2f}",
                f"{spearmanr(inner, [ndcg[name] for name in without]).statistic:+.2f}" if len(without) > 2 else "-",
                chosen,
                f"{ndcg[names[0]] - ndcg[chosen]:.4f}",
            ]
        )
    headers = ["test examples, by item", "HR@1", "HR@5", "HR@10", "HR@50", "NDCG@10 [95 %]", "sd over seeds", "seeds"]
    signs = ["diagnostic", "Spearman with NDCG@10", "without shuffled", "its choice", "NDCG@10 lost by it"]
    trained = table_markdown(Table([*headers, "bits per item"], rows))
    return "\n\n".join(["### Industrial: trained", trained, table_markdown(Table(signs, agreement))])


def main() -> None:
    """Read, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="runs/studies/sids", help="output of the study")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--markdown", help="file whose marked part is replaced by the tables")
    args = parser.parse_args()
    texts = []
    for dataset in args.datasets:
        folder = Path(args.study) / dataset
        measures = read_json(folder / "prepared" / "sid-report" / "diagnostics.json")
        texts.append(diagnostics_tables(dataset, folder / "prepared", measures))
        compared = folder / "compare" / "test" / "metrics.json"
        if compared.is_file():
            texts.append(training_tables(measures, read_json(compared)["splits"]["test"]["recommenders"]))
    text = "\n\n".join(texts)
    if args.markdown:
        write_part(Path(args.markdown), "studies/sids.py", text)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    run_command(main)
