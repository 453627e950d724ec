"""The language model on Industrial: taught by a catalogue model, sharpened by GRPO, and beside its teacher, by seeds.

python studies/language_model.py --split valid          # train, and measure on validation
python studies/language_model.py --split test           # and, once, on test
python studies/language_model.py --split test --markdown docs/results/language_model.md

`catalogue`, `taught` and `grpo` are the recipe configs/industrial/language by seeds, `labels` is the SFT of
configs/industrial/labels. The teacher of a seed is the catalogue model of that seed, and GRPO goes on from `taught` of
that seed. What is done is not done again. Differences are paired over rows whose values are means over seeds.
"""

import argparse
import sys
from pathlib import Path

from marks import put_between_marks
from systems import evaluate, table, what_followed

from minionerec.core.commands import run_command
from minionerec.core.places import find_path
from minionerec.core.settings import parse_settings
from minionerec.training.catalogue import run_catalogue
from minionerec.training.config import CatalogueTrainConfig, SftConfig
from minionerec.training.grpo.config import GrpoConfig
from minionerec.training.grpo.stage import run_grpo
from minionerec.training.sft import run_sft

CONFIGS = find_path("configs/industrial/language")
LABELS = find_path("configs/industrial/labels")
SYSTEMS = ("taught", "grpo", "catalogue", "labels")
BEGIN, END = "<!-- tables of studies/language_model.py: {} -->", "<!-- end of the tables: {} -->"


def train(system: str, seed: int, output: Path) -> Path:
    """The checkpoint of a system, made where it is missing, after what it rests on."""
    place = output / f"{system}-{seed}"
    words = ["--seed", str(seed), "--output", str(place)]
    if system == "catalogue":
        run_catalogue(parse_settings(CatalogueTrainConfig, ["--config", str(CONFIGS / "catalogue.yaml"), *words]))
    elif system == "grpo":
        words += ["--checkpoint", str(train("taught", seed, output))]
        run_grpo(parse_settings(GrpoConfig, ["--config", str(CONFIGS / "grpo.yaml"), *words]))
    else:
        folder = CONFIGS if system == "taught" else LABELS
        if system == "taught":
            words += ["--teacher", str(train("catalogue", seed, output))]
        run_sft(parse_settings(SftConfig, ["--config", str(folder / "sft.yaml"), *words]))
    return place


def main() -> None:
    """Train, measure, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="runs/industrial/language_study", help="directory of checkpoints and lists")
    parser.add_argument("--split", default="valid", choices=("valid", "test"))
    parser.add_argument("--only", nargs="+", default=list(SYSTEMS), choices=SYSTEMS, help="systems")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--markdown", help="file whose marked part is replaced by the table")
    args = parser.parse_args()
    output = Path(args.output)
    systems = {
        system: [evaluate(train(system, seed, output), args.split) for seed in args.seeds] for system in args.only
    }
    systems["what_followed"] = [what_followed(args.split, output)]
    text = table(systems, args.only[0])
    if args.markdown:
        put_between_marks(Path(args.markdown), BEGIN.format(args.split), END.format(args.split), text)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    run_command(main)
