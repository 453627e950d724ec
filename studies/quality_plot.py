"""Test NDCG@10 of systems over what their training cost, beside the published ones: the picture of the README.

python studies/quality_plot.py docs/images/quality.svg \
    --runs "catalogue model=runs/studies/industrial_quality/industrial/full/test" \
    --hours "catalogue model=0.058"

`--runs` names predictions of test rows, of one seed or several (`minionerec study` lays them out so), `--hours` the
device-hours that a training took.
"""

import argparse
from pathlib import Path

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.commands import run_command
from minionerec.core.errors import ConfigError
from minionerec.metrics.statistics import bootstrap_interval
from minionerec.reports.plots import quality_against_cost
from minionerec.reports.systems import load_system

METRIC = "NDCG@10"
# Public replication log of MiniOneRec: four GPUs for 50 minutes of SFT, then 9.5 hours of RL. The papers give no cost.
PUBLISHED = {"1.5B, SFT (log)": (4 * 50 / 60, 0.0951), "1.5B, SFT + RL (log)": (4 * (50 / 60 + 9.5), 0.1007)}
LINES = {"MiniOneRec, paper": 0.1167, "best known successor": 0.1217}


def point(name: str, place: Path, hours: float) -> tuple[float, float, float, float]:
    """Hours, mean over rows and seeds of the metric by SID, and the ends of its interval."""
    rows = load_system(name, place, "test").values("sid", [METRIC])[METRIC].mean(axis=0)
    low, high = bootstrap_interval(rows)
    return hours, float(rows.mean()), low, high


def named(words: list[str], flag: str) -> dict[str, str]:
    """NAME=VALUE words as a mapping."""
    if any("=" not in word for word in words):
        raise ConfigError(f"{flag} takes NAME=VALUE.")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="SVG file to write")
    parser.add_argument("--runs", nargs="+", required=True, help="NAME=FOLDER of predictions")
    parser.add_argument("--hours", nargs="+", required=True, help="NAME=HOURS of each of them")
    args = parser.parse_args()
    runs, hours = named(args.runs, "--runs"), named(args.hours, "--hours")
    if set(runs) != set(hours):
        raise ConfigError(f"--runs names {', '.join(runs)}, --hours {', '.join(hours)}; name the same.")
    points = {name: point(name, Path(place), float(hours[name])) for name, place in runs.items()}
    axis = "training: core-hours (ours), GPU-hours (published)"
    write_text_atomic(Path(args.file), quality_against_cost(points, PUBLISHED, LINES, axis, f"test {METRIC}"))


if __name__ == "__main__":
    run_command(main)
