"""Test NDCG@10 of systems over what their training cost, beside the published ones: the picture of the README.

python studies/quality_plot.py docs/images/quality.svg \
    --points "catalogue model=0.058 0.1275 0.1190 0.1361"

`--points` gives for each of our systems the core-hours that a training took, the metric, and the ends of its interval,
as they stand on a page of docs/results; docs/results/industrial_quality.md has the whole command.
"""

import argparse
from pathlib import Path

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.commands import run_command
from minionerec.core.errors import ConfigError
from minionerec.reports.plots import quality_against_cost

METRIC = "NDCG@10"
# Public replication log of MiniOneRec: four GPUs for 50 minutes of SFT, then 9.5 hours of RL. The papers give no cost.
PUBLISHED = {"1.5B, SFT (log)": (4 * 50 / 60, 0.0951), "1.5B, SFT + RL (log)": (4 * (50 / 60 + 9.5), 0.1007)}
LINES = {"MiniOneRec, paper": 0.1167, "V-STAR, paper": 0.1217}


def point(word: str) -> tuple[str, tuple[float, float, float, float]]:
    """Name, hours, metric and the ends of its interval.

    Example:
        >>> point("a model=0.5 0.12 0.11 0.13")
        ('a model', (0.5, 0.12, 0.11, 0.13))

    Raises:
        ConfigError: If the word is no name and four numbers in order.
    """
    name, _, rest = word.partition("=")
    try:
        hours, value, low, high = map(float, rest.split())
    except ValueError:
        raise ConfigError(f"--points {word!r}: expected NAME=HOURS VALUE LOW HIGH.") from None
    if not (hours > 0 and low <= value <= high):
        raise ConfigError(f"--points {word!r}: expected hours above 0, and a value within its interval.")
    return name, (hours, value, low, high)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="SVG file to write")
    parser.add_argument("--points", nargs="+", required=True, help="NAME=HOURS VALUE LOW HIGH of each of our systems")
    args = parser.parse_args()
    axis = "training: core-hours (ours), GPU-hours (published)"
    points = dict(map(point, args.points))
    write_text_atomic(Path(args.file), quality_against_cost(points, PUBLISHED, LINES, axis, f"test {METRIC}"))


if __name__ == "__main__":
    run_command(main)
