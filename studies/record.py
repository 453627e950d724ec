"""A record of figures that pages quote, from a report: docs/results/records/NAME.json.

python studies/record.py runs/demo_report docs/results/records/demo.json
python studies/record.py runs/steam_report docs/results/records/steam.json --slices time

A record holds the command, commit and machine of the report, and of each recommender the number of seeds and NDCG@10
with its interval, on all examples and by slice. Tests hold README.md and data/demo/README.md against records.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json, write_json
from minionerec.core.commands import run_command
from minionerec.core.errors import DataError
from minionerec.core.records import read_run_record

METRIC = "NDCG@10"


def record_of(report: Path, groups: list[str]) -> dict[str, Any]:
    """The content of a record.

    Args:
        report: Output of a report.
        groups: Groups of slices that are taken, such as "time".

    Returns:
        The origin, and {recommender: {"seeds", "all", slice: [mean, low, high]}}; a slice is named "group: kind".

    Raises:
        DataError: If the report has no run record, or no such metric.
    """
    run = read_run_record(report)
    if run is None:
        raise DataError(f"{report}: there is no run record beside it, so its command is not known. Make it again.")
    results = read_json(report / "metrics.json")
    if results["headline"] != METRIC:
        raise DataError(f"{report}: expected {METRIC} as the metric that ranks the recommenders.")
    level = results["levels"][0]
    figures = {}
    for name, recommender in results["recommenders"].items():
        whole = recommender["metrics"][level][METRIC]
        parts = {
            f"{part['group']}: {part['kind']}": [part["metrics"][METRIC][position] for position in (0, 2, 3)]
            for part in recommender["slices"]
            if part["group"] in groups and METRIC in part["metrics"]
        }
        figures[name] = {"seeds": recommender["seeds"], "all": [whole["mean"], *whole["interval"]], **parts}
    origin = {"command": list(run.command), "commit": run.commit, "ended": run.ended, "machine": asdict(run.machine)}
    return {"origin": origin, "split": results["split"], "rows": results["rows"], "level": level, METRIC: figures}


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="output of minionerec report")
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument("--slices", nargs="*", default=["time", "target"], help="groups of slices")
    args = parser.parse_args()
    write_json(args.file, record_of(args.report, args.slices))


if __name__ == "__main__":
    run_command(main)
