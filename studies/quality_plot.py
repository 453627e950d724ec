"""Test NDCG@10 of systems over what their training cost, beside the published ones.

python studies/quality_plot.py docs/images/quality.svg \
    --points "catalogue model=0.058 0.1275 0.1190 0.1361"

`--points` gives for each of our systems the core-hours that a training took, the metric, and the ends of its interval,
as they stand on a page of docs/results; docs/results/cost.md has the whole command.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.commands import run_command
from minionerec.core.errors import ConfigError
from minionerec.reports import plots

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


def quality_against_cost(
    points: Mapping[str, tuple[float, float, float, float]],
    published: Mapping[str, tuple[float, float]],
    lines: Mapping[str, float],
    cost: str,
    quality: str,
) -> str:
    """One point for each system, the cheaper to the left, the better above.

    Args:
        points: Name to (cost, value, low, high) of our own systems, costs above 0.
        published: Name to (cost, value) of others' systems.
        lines: Name to value of systems whose cost is not known.
        cost: What the horizontal axis shows, in logarithmic steps.
        quality: What the vertical axis shows.

    Returns:
        An SVG image that stands by itself.
    """
    with plots.drawing(7.2, 4.2) as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda spent, _: f"{spent:g}")
        for name, (spent, value, low, high) in points.items():
            axes.errorbar(spent, value, [[value - low], [high - value]], fmt="o", capsize=4, color=plots.COLOURS[0])
            axes.annotate(name, (spent, value), textcoords="offset points", xytext=(8, 0), va="center")
        for name, (spent, value) in published.items():
            axes.scatter(spent, value, marker="s", color=plots.COLOURS[1])
            axes.annotate(name, (spent, value), textcoords="offset points", xytext=(0, -16), ha="center")
        for name, value in lines.items():
            axes.axhline(value, linestyle="--", color=plots.COLOURS[5])
            axes.annotate(
                name,
                (1, value),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                xytext=(0, 3),
                ha="right",
            )
        axes.margins(x=0.18, y=0.12)
        axes.set_xlabel(cost)
        axes.set_ylabel(quality)
        text = plots.svg(figure, "cost")
    return plots.alone(text)


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
