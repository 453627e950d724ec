"""The catalogue model on Industrial: what each of its parts is worth, and what a reward adds, over several seeds.

python studies/industrial_quality.py --split valid                  # train all variants, measure on validation
python studies/industrial_quality.py --split test                   # and, once, on test
python studies/industrial_quality.py --only full no_text --markdown docs/results/industrial_quality.md

A variant is configs/industrial/catalogue/catalogue.yaml with some settings changed; the rewards go on from `full` of
the same seed, as configs/industrial/catalogue/reward.yaml says. What is done is not done again. Differences are paired
over rows whose values are the means over seeds. `--against` names finished predictions (folders of eval-beam) of other
systems on the same split; `--plot FILE.svg` draws the means of `full`, `expected` and those systems over what their
training cost, by `--hours NAME=HOURS`, beside the published ones.
"""

import argparse
import sys
from pathlib import Path

from marks import put_between_marks
from systems import evaluate, mean_values, table, what_followed

from minionerec.core.artefacts import read_manifest, write_text_atomic
from minionerec.core.commands import run_command
from minionerec.core.places import find_path
from minionerec.core.settings import parse_settings
from minionerec.metrics.statistics import bootstrap_interval
from minionerec.reports.plots import quality_against_cost
from minionerec.training.catalogue import run_catalogue
from minionerec.training.config import CatalogueTrainConfig

CONFIGS = find_path("configs/industrial/catalogue")
OWN_SIDS = "runs/sids_study/industrial/rq_vae"
# What each variant changes.
VARIANTS: dict[str, dict[str, str]] = {
    "full": {},
    "no_counts": {"transitions": "false"},
    "no_pointer": {"pointer": "false"},
    "no_codes": {"code_vectors": "false"},
    "no_text": {"vectors": ""},
    "no_learned": {"learned_vectors": "false"},
    "no_recency": {"recency": "0"},
    "one_tower": {"towers": "1"},
    "own_sids": {"sids": OWN_SIDS},
    "expected": {},
    "grpo": {"objective": "grpo", "learning_rate": "3.0e-5"},
}
REWARDS = ("expected", "grpo")
# Public replication log of MiniOneRec: four GPUs for 50 minutes of SFT, then 9.5 hours of RL. The papers give no cost.
PUBLISHED = {"1.5B, SFT (log)": (4 * 50 / 60, 0.0951), "1.5B, SFT + RL (log)": (4 * (50 / 60 + 9.5), 0.1007)}
NAMES = {"full": "catalogue model", "what_followed": "counts of what followed"}  # in the plot
LINES = {"MiniOneRec, paper": 0.1167, "best known successor": 0.1217}
BEGIN, END = "<!-- tables of studies/industrial_quality.py: {} -->", "<!-- end of the tables: {} -->"


def train(variant: str, seed: int, output: Path) -> Path:
    """The checkpoint of a variant, made where it is missing."""
    place = output / f"{variant}-{seed}"
    words = [word for name, value in VARIANTS[variant].items() for word in (f"--{name}", value)]
    file = "reward.yaml" if variant in REWARDS else "catalogue.yaml"
    if variant in REWARDS:
        words += ["--checkpoint", str(train("full", seed, output))]
    words = ["--config", str(CONFIGS / file), *words, "--seed", str(seed), "--output", str(place)]
    run_catalogue(parse_settings(CatalogueTrainConfig, words))
    return place


def draw(systems: dict[str, list[Path]], hours: dict[str, float]) -> str:
    """Test NDCG@10 by SID over device-hours, as an SVG image: systems whose hours are given, and the published ones."""
    points = {}
    for name, spent in hours.items():
        values = mean_values(systems[name])[0]["sid NDCG@10"]
        points[NAMES.get(name, name)] = (spent, float(values.mean()), *bootstrap_interval(values))
    return quality_against_cost(
        points, PUBLISHED, LINES, "training: core-hours (ours), GPU-hours (published)", "test NDCG@10"
    )


def main() -> None:
    """Train, measure, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="runs/industrial/best/study", help="directory of checkpoints and lists")
    parser.add_argument("--split", default="valid", choices=("valid", "test"))
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), help="variants")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--against", nargs="*", default=[], help="NAME=FOLDER of other predictions; repeat for seeds")
    parser.add_argument("--hours", nargs="*", default=[], help="NAME=HOURS: device-hours that a system's training took")
    parser.add_argument("--plot", help="SVG file to draw into")
    parser.add_argument("--markdown", help="file whose marked part is replaced by the table")
    args = parser.parse_args()
    output = Path(args.output)
    systems: dict[str, list[Path]] = {}
    for variant in args.only:
        systems[variant] = [evaluate(train(variant, seed, output), args.split) for seed in args.seeds]
    systems["what_followed"] = [what_followed(args.split, output)]
    for word in args.against:
        name, _, folder = word.partition("=")
        read_manifest(folder, "predictions")
        systems.setdefault(name, []).append(Path(folder))
    text = table(systems, args.only[0])
    if args.markdown:
        put_between_marks(Path(args.markdown), BEGIN.format(args.split), END.format(args.split), text)
    if args.plot:
        hours = {name: float(spent) for name, _, spent in (word.partition("=") for word in args.hours)}
        write_text_atomic(Path(args.plot), draw(systems, hours))
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    run_command(main)
