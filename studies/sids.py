"""Every way to make semantic IDs on Industrial and Beauty, judged before training; then, with --train, by training.

python studies/sids.py                                        # tables, pages and diagnostics: minutes
python studies/sids.py --train                                # and the small recipe on every Industrial table
python studies/sids.py --train --epochs 4 --seeds 42 43 --only published residual_kmeans
python studies/sids.py --train --markdown docs/results/sids.md

Needs the corpora of configs/industrial/language and configs/beauty/catalogue. What is done is not done again, so the
command can be repeated after an interruption, or with more seeds. `--epochs` shortens the recipe of
configs/industrial/labels/sft.yaml. The tables go to standard output and, with `--markdown`, between the two marks of
that file. `shuffled` is residual k-means with its SIDs dealt out to the items at random: the same shape, and no sense.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from marks import put_between_marks
from scipy.stats import spearmanr

from minionerec.core.artefacts import read_json
from minionerec.core.commands import run_command
from minionerec.core.places import find_path
from minionerec.core.settings import parse_settings
from minionerec.reports.config import SidReportConfig
from minionerec.reports.sid_report import run_sid_report
from minionerec.sid.build import run_build_sids
from minionerec.sid.config import SidConfig
from minionerec.sid.table import SidTable

VAE = {"epochs": 150, "train_batch": 256}
TABLES: dict[str, dict[str, Any]] = {
    "published": {"method": "published", "collisions": "keep"},
    "residual_kmeans": {"method": "residual_kmeans"},
    "balanced_kmeans": {"method": "balanced_kmeans"},
    "rq_vae": {"method": "rq_vae", **VAE},
    "rq_vae_plus": {"method": "rq_vae_plus", **VAE},
    "shuffled": {"method": "published", "collisions": "keep"},
}
DATASETS = {"industrial": list(TABLES), "beauty": [name for name in TABLES if name != "published"]}
SEED = 42
BEGIN, END = "<!-- tables of studies/sids.py -->", "<!-- end of the tables -->"
# What is held against NDCG: larger is better in each.
SIGNS = {
    "bits per item, fewer": lambda d: -d["bits_per_item"],
    "next SID in 10": lambda d: d["prefixes"][-1]["next_hits"],
    "next code 1 in 10, above popularity": lambda d: d["prefixes"][0]["next_hits"] - d["prefixes"][0]["popular_hits"],
    "word purity of two codes": lambda d: d["prefixes"][1]["word_purity"],
    "buyer purity of two codes": lambda d: d["prefixes"][1]["buyer_purity"],
    "variance left by code 1, less": lambda d: -d["prefixes"][0]["variance_left"],
    "perplexity of level 1": lambda d: d["levels"][0]["perplexity"],
    "items named alone": lambda d: d["collisions"]["identified_items"],
}


def build(dataset: str, output: Path) -> dict[str, Path]:
    """All tables of a data set: name to directory."""
    folders = {}
    for name in DATASETS[dataset]:
        folders[name] = output / dataset / name
        settings = dict(TABLES[name])
        if name == "shuffled":
            settings["index"] = str(shuffle(folders["residual_kmeans"], output / dataset / "shuffled.json"))
        run_build_sids(SidConfig(corpus=f"runs/{dataset}/corpus", output=str(folders[name]), seed=SEED, **settings))
    return folders


def shuffle(folder: Path, path: Path) -> Path:
    """An index.json with the SIDs of a table dealt out at random."""
    table = SidTable.load_index(folder)
    order = np.random.default_rng(SEED).permutation(len(table))
    SidTable(table.codes[order], table.item_ids).save_index(path)
    return path


def diagnose(dataset: str, folders: dict[str, Path], output: Path) -> dict[str, Any]:
    """The page of a data set, and its measures by table."""
    result = run_sid_report(
        SidReportConfig(
            corpus=f"runs/{dataset}/corpus",
            tables={name: str(folder) for name, folder in folders.items()},
            output=str(output / dataset / "report"),
            title=f"Semantic IDs of {dataset.title()}",
            seed=SEED,
        )
    )
    return dict(result.diagnostics)


def train(name: str, folder: Path, seed: int, epochs: float, mixed: bool, output: Path) -> dict[str, list[float]]:
    """Item-level metrics on the test rows, as [mean, low, high], of the small recipe on one table."""
    from minionerec.evaluation.config import EvalConfig
    from minionerec.evaluation.stage import run_eval
    from minionerec.training.config import SftConfig
    from minionerec.training.sft import run_sft

    checkpoint = output / "industrial" / f"sft_{name}_{seed}_{epochs:g}{'_bf16' if mixed else ''}"
    recipe = ["--config", str(find_path("configs/industrial/labels/sft.yaml")), "--sids", str(folder)]
    recipe += ["--output", str(checkpoint), "--seed", str(seed), "--epochs", str(epochs)]
    recipe += ["--mixed_bf16", str(mixed)]
    run_sft(parse_settings(SftConfig, recipe))
    config = EvalConfig(
        checkpoint=str(checkpoint), corpus="runs/industrial/corpus", sids=str(folder), output=f"{checkpoint}_eval"
    )
    return run_eval(config).metrics["recommenders"]["beam search"]["item"]


def markdown(headers: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = [headers, ["---", *("--:" for _ in headers[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(value: float) -> str:
    """A share with one digit."""
    return f"{100 * value:.1f} %"


def diagnostics_tables(dataset: str, folders: dict[str, Path], measures: dict[str, Any]) -> str:
    """What a reader needs of one data set's diagnostics."""
    shape, sense = [], []
    for name, found in measures.items():
        report = read_json(folders[name] / "report.json")
        before, after = (report["collisions"][when] for when in ("before", "after"))
        error = report["levels"][-1]["error"]
        shape.append(
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
        sense.append(
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
        "named alone",
        "sharing rate",
        "surplus rate",
    ]
    sense_headers = [
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
        [f"### {title}: shape", markdown(headers, shape), f"### {title}: sense", note, markdown(sense_headers, sense)]
    )


def training_tables(measures: dict[str, Any], trained: dict[str, list[dict[str, list[float]]]]) -> str:
    """Test metrics by table, and how well each diagnostic ranks the tables."""
    names = sorted(trained, key=lambda name: -np.mean([run["NDCG@10"][0] for run in trained[name]]))
    ndcg = {name: float(np.mean([run["NDCG@10"][0] for run in trained[name]])) for name in names}
    rows = []
    for name in names:
        first, values = trained[name][0], [run["NDCG@10"][0] for run in trained[name]]
        spread = f"{np.std(values, ddof=1):.4f}" if len(values) > 1 else "-"
        means = [f"{np.mean([run[key][0] for run in trained[name]]):.4f}" for key in ("HR@1", "HR@5", "HR@10", "HR@50")]
        rows.append(
            [
                name,
                *means,
                f"{ndcg[name]:.4f} [{first['NDCG@10'][1]:.4f}, {first['NDCG@10'][2]:.4f}]",
                spread,
                str(len(values)),
                f"{measures[name]['bits_per_item']:.3f}",
            ]
        )
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
    headers = [
        "test rows, by item",
        "HR@1",
        "HR@5",
        "HR@10",
        "HR@50",
        "NDCG@10 [interval of the first seed]",
        "sd over seeds",
        "seeds",
        "bits per item",
    ]
    signs = ["diagnostic", "Spearman with NDCG@10", "without shuffled", "its choice", "NDCG@10 lost by it"]
    return "\n\n".join(["### Industrial: trained", markdown(headers, rows), markdown(signs, agreement)])


def main() -> None:
    """Build, judge, train where asked, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="runs/sids_study", help="directory of all tables, pages and checkpoints")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--train", action="store_true", help="also train on the Industrial tables")
    parser.add_argument("--only", nargs="+", default=list(TABLES), choices=list(TABLES), help="tables to train on")
    parser.add_argument("--epochs", type=float, default=16, help="epochs of the recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[SEED], help="training seeds")
    parser.add_argument("--mixed_bf16", action="store_true", help="train in bfloat16 over float32 weights")
    parser.add_argument("--markdown", help="file whose marked part is replaced by the tables")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    args = parser.parse_args()
    output, texts, results = Path(args.output), [], {}
    for dataset in args.datasets:
        folders = build(dataset, output)
        results[dataset] = {"diagnostics": diagnose(dataset, folders, output)}
        texts.append(diagnostics_tables(dataset, folders, results[dataset]["diagnostics"]))
        if args.train and dataset == "industrial":
            trained = {
                name: [train(name, folders[name], seed, args.epochs, args.mixed_bf16, output) for seed in args.seeds]
                for name in args.only
            }
            results[dataset]["trained"] = trained
            texts.append(training_tables(results[dataset]["diagnostics"], trained))
    text = "\n\n".join(texts)
    if args.markdown:
        put_between_marks(Path(args.markdown), BEGIN, END, text)
    sys.stdout.write(f"{json.dumps(results) if args.json else text}\n")


if __name__ == "__main__":
    run_command(main)
