"""GRPO from one SFT checkpoint with each reward, equal budget, several seeds: what did it do, and is it real?

python studies/rewards.py                                           # four rewards, three seeds, 80 steps of 64 prompts
python studies/rewards.py --cases ranking sampling fast slow strong_kl --output runs/industrial/rewards_why
python studies/rewards.py --markdown docs/results/rewards.md

Needs runs/industrial/sft and runs/industrial/corpus (`make industrial`). Each run trains, then ranks all validation and
test rows; what is done is not done again, so the command can be repeated after an interruption, or with more cases. A
seed draws its own prompts of the training rows, the same for all cases. The tables go to standard output and, with
`--markdown`, between the two marks of that file.

Differences to SFT are paired over rows: each row's metric is averaged over the seeds, and the rows are resampled.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import read_json
from minionerec.core.log import setup_logging
from minionerec.data.corpus import Corpus
from minionerec.evaluation.config import EvalConfig
from minionerec.evaluation.stage import run_eval
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import ranking_metrics, sid_ranks
from minionerec.metrics.statistics import paired_differences
from minionerec.training.grpo.config import GrpoConfig
from minionerec.training.grpo.stage import run_grpo

CASES: dict[str, dict[str, Any]] = {
    "rule": {"rewards": {"rule": 1.0}},
    "ranking": {"rewards": {"ranking": 1.0}},
    "position": {"rewards": {"position": 1.0}},
    "sibling": {"rewards": {"ranking": 1.0}, "sibling_alpha": 0.5},
    "sampling": {"rewards": {"ranking": 1.0}, "rollouts": "sampling"},
    "fast": {"rewards": {"ranking": 1.0}, "learning_rate": 1e-4},
    "slow": {"rewards": {"ranking": 1.0}, "learning_rate": 1e-5},
    "strong_kl": {"rewards": {"ranking": 1.0}, "beta": 0.1},
    "no_kl": {"rewards": {"ranking": 1.0}, "beta": 0.0, "sync_reference": False},
    "thirty_two": {"rewards": {"ranking": 1.0}, "generations": 32},
}
SPLITS = ("valid", "test")
METRICS = ("HR@1", "HR@3", "HR@5", "HR@10", "HR@50", "NDCG@10")
BEGIN, END = "<!-- tables of studies/rewards.py -->", "<!-- end of the tables -->"
Values = dict[str, np.ndarray]


def options(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="runs/industrial/sft", help="SFT checkpoint to start from")
    parser.add_argument("--corpus", default="runs/industrial/corpus", help="its corpus")
    parser.add_argument("--output", default="runs/industrial/rewards", help="directory of all runs")
    parser.add_argument("--cases", nargs="+", default=["rule", "ranking", "position", "sibling"], choices=list(CASES))
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each case")
    parser.add_argument("--steps", type=int, default=80, help="optimiser steps of a run")
    parser.add_argument("--prompts", type=int, default=64, help="prompts of a step")
    parser.add_argument("--learning-rate", type=float, default=3e-5, help="peak learning rate, where the case has none")
    parser.add_argument("--evals", type=int, default=4, help="validations of a run, beside that of the start")
    parser.add_argument("--eval-rows", type=int, default=1500, help="validation rows of each of them")
    parser.add_argument("--beams", type=int, default=50, help="beams of the final lists")
    parser.add_argument("--markdown", help="file whose tables are replaced; it is made if it is not there")
    return parser.parse_args(words)


def train(args: argparse.Namespace, case: str, seed: int) -> Path:
    """One run of GRPO; its rows are drawn so that they fill the steps exactly."""
    rows = len(Corpus.load(args.corpus).rows("train"))
    settings: dict[str, Any] = {
        "corpus": args.corpus,
        "checkpoint": args.checkpoint,
        "output": f"{args.output}/{case}-{seed}/grpo",
        "tasks": {"next_sid": float(f"{args.steps * args.prompts / rows:.6g}")},
        "prompts_per_step": args.prompts,
        "prompts_per_device": args.prompts,
        "max_steps": args.steps,
        "learning_rate": args.learning_rate,
        "schedule": "cosine",
        "warmup": 0.03,
        "max_grad_norm": 0.3,
        "evals_per_epoch": args.evals,
        "eval_rows": args.eval_rows,
        "seed": seed,
        "keep_state": False,
    }
    return run_grpo(GrpoConfig(**{**settings, **CASES[case]})).output


def rank(args: argparse.Namespace, checkpoint: str | Path, output: str, split: str) -> Values:
    """Per-row metrics of a checkpoint on all rows of a split, at SID level."""
    ks = [
        int(name.split("@")[1]) for name in METRICS if name.startswith("HR") and int(name.split("@")[1]) <= args.beams
    ]
    settings: dict[str, Any] = {"split": split, "beams": args.beams, "ks": ks, "resamples": 2}
    found = run_eval(EvalConfig(corpus=args.corpus, checkpoint=str(checkpoint), output=output, **settings))
    values = ranking_metrics(sid_ranks(Predictions.load(found.output)), ks)
    return {name: values[name] for name in METRICS if name in values}


def history(checkpoint: Path) -> dict[str, tuple[float, float]]:
    """First and last of what training logged: validation before the first and after the last step, and quarters."""
    log = read_json(checkpoint / "training_log.json")
    curve = [row["eval_ndcg@10"] for row in log if "eval_ndcg@10" in row]
    found = {"validation": (curve[0], curve[-1]), "best": (max(curve), max(curve))}
    rows = [row for row in log if "hit@g" in row]
    quarter = max(1, len(rows) // 4)
    for name in ("reward", "hit@g", "zero_variance", "beam_mass", "kl", "kl_p99", "entropy"):
        parts = [[row[name] for row in part if row.get(name) is not None] for part in (rows[:quarter], rows[-quarter:])]
        first, last = (float(np.mean(part)) if part else float("nan") for part in parts)
        found[name] = (first, last)
    return found


def table(headers: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---", *("---:" for _ in headers[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headers, rule, *rows])


def number(value: float, digits: int = 4) -> str:
    """A share without its leading zero, as the other result pages write it."""
    return f"{value:.{digits}f}".replace("0.", ".", 1)


def shown(case: dict[str, Any]) -> list[tuple[str, str]]:
    """The settings of a case as text; of rewards, all of weight 1, the names."""
    return [
        (name, " ".join(map(str, value)) if isinstance(value, dict) else str(value)) for name, value in case.items()
    ]


def metric_tables(base: dict[str, Values], found: dict[str, dict[str, list[Values]]]) -> list[str]:
    """Means over seeds with paired differences to SFT, for each split."""
    parts = []
    for split in SPLITS:
        names = list(base[split])
        means = [["SFT", *(number(base[split][name].mean()) for name in names), ""]]
        gaps = []
        for case, splits in found.items():
            seeds = splits[split]
            mean = {name: np.mean([values[name] for values in seeds], axis=0) for name in names}
            by_seed = [values["NDCG@10"].mean() for values in seeds]
            sd = number(np.std(by_seed, ddof=1)) if len(seeds) > 1 else "-"
            means.append([case, *(number(mean[name].mean()) for name in names), sd])
            differences = paired_differences(mean, base[split])
            gaps.append(
                [case]
                + [
                    f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
                    for gap in (differences[name] for name in names)
                ]
                + [f"{differences['NDCG@10'].p:.3f}"]
            )
        rows = len(base[split]["NDCG@10"])
        parts += [
            f"### {split} rows ({rows:,}), mean over seeds",
            table([split, *names, "sd of NDCG@10 over seeds"], means),
            f"### {split} rows, difference to SFT with 95 % intervals",
            table(["case", *names, "p (NDCG@10)"], gaps),
        ]
    return parts


def training_table(histories: dict[str, list[dict[str, tuple[float, float]]]]) -> list[str]:
    """What happened during training, mean over seeds: first and last quarter of the steps."""
    names = ("reward", "hit@g", "zero_variance", "beam_mass", "kl", "kl_p99", "entropy")
    rows = []
    for case, seeds in histories.items():
        curve = [[one["validation"][0], one["best"][0], one["validation"][1]] for one in seeds]
        cells = [" / ".join(number(value) for value in np.mean(curve, axis=0))]
        for name in names:
            first, last = np.mean([one[name] for one in seeds], axis=0)
            cells.append(f"{first:.3g} → {last:.3g}")
        rows.append([case, *cells])
    return [
        "### During training, mean over seeds: first → last quarter of the steps",
        table(["case", "validation NDCG@10: start / best / end", *names], rows),
    ]


def write(path: Path, text: str) -> None:
    """Put the tables between the marks of a file; what stands around them stays."""
    whole = path.read_text(encoding="utf-8") if path.is_file() else f"# Rewards\n\n{BEGIN}\n{END}\n"
    if BEGIN not in whole or END not in whole:
        sys.exit(f"{path}: has no lines {BEGIN!r} and {END!r} to put the tables between.")
    before, after = whole.split(BEGIN)[0], whole.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    """Run what is missing, and write the tables."""
    args = options(words)
    setup_logging()
    base = {split: rank(args, args.checkpoint, f"{args.output}/sft/{split}", split) for split in SPLITS}
    found: dict[str, dict[str, list[Values]]] = {}
    histories: dict[str, list[dict[str, tuple[float, float]]]] = {}
    for seed in range(args.seeds):  # so that an early stop leaves every case with a seed
        for case in args.cases:
            checkpoint = train(args, case, seed)
            histories.setdefault(case, []).append(history(checkpoint))
            for split in SPLITS:
                values = rank(args, checkpoint, f"{args.output}/{case}-{seed}/{split}", split)
                found.setdefault(case, {}).setdefault(split, []).append(values)
    what = (
        f"{args.seeds} seeds, {args.steps} steps of {args.prompts} prompts, learning rate {args.learning_rate:g} "
        f"unless the case says otherwise, {args.beams} beams, counted by SID."
    )
    settings = [f"- {case}: {', '.join(map(' '.join, shown(CASES[case])))}" for case in found]
    text = "\n\n".join([what, "\n".join(settings), *metric_tables(base, found), *training_table(histories)])
    print(text)
    if args.markdown:
        write(Path(args.markdown), text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
