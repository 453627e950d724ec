"""Every stage on generated cities of growing size: seconds and memory by the stages' own run records, and their slopes.

python benchmarks/scale.py --sizes 1000000 10000000 --folder /large/disk/scale --out docs/results/scale.jsonl
python benchmarks/scale.py --out docs/results/scale.jsonl --picture docs/images/scale.svg

A city of n interactions has n / 100 items and n / 50 people. Stages run one after another, each in its own process, as
their commands do; a stage whose line is in `--out` is left out, so the same command may be given again. `--engines`
names those of `prepare-data`; their corpora are held against each other. Training is limited to `--windows` windows, so
that what grows with the city is reading, counting and each step's share of it. One JSON line a stage: size, seconds of
the run record by phase, its peak memory, settings, commit and machine.

It prints the table of slopes of all lines of `--out`: the power of the size with which seconds grow, from the smallest
to the largest size of a stage. `--picture` draws them, both axes in logarithmic steps.
"""

import argparse
import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from minionerec.core.artefacts import read_manifest, write_text_atomic
from minionerec.core.commands import run_command
from minionerec.core.errors import DataError
from minionerec.core.records import record_path
from minionerec.metrics.tables import markdown_table
from minionerec.reports import plots

MEAN, TARGETS_A_WINDOW = 50, 5


def stages(size: int, folder: Path, engines: list[str], windows: int) -> dict[str, dict[str, Any]]:
    """Name → settings, in the order of the pipeline."""
    city, corpus, vectors, sids, model = (str(folder / name) for name in ("city", "corpus", "vectors", "sids", "model"))
    items = max(200, size // 100 // 20 * 20)
    made: dict[str, dict[str, Any]] = {
        "make-city": {"items": items, "users": size // MEAN, "mean_interactions": MEAN, "seed": 42, "output": city}
    }
    tables = {"source": "tables", "interactions": f"{city}/interactions.parquet", "items": f"{city}/items.parquet"}
    for number, engine in enumerate(engines):
        output = corpus if number == 0 else f"{corpus}_{engine}"
        made[f"prepare-data, {engine}"] = {**tables, "engine": engine, "max_eval_examples": 1000, "output": output}
    made["embed-items"] = {"corpus": corpus, "encoder": "tfidf", "dimensions": 64, "output": vectors}
    made["build-sids"] = {"corpus": corpus, "encoder": vectors, "codebook_sizes": [256, 256, 256], "output": sids}
    given = {"corpus": corpus, "sids": sids}
    shape = {"hidden_size": 64, "layers": 1, "heads": 4, "inner_size": 128, "without": ["learned_vectors"], "reach": 2}
    loss = {"loss": "sampled", "negatives": 1024, "max_grad_norm": 0, "batch_size": 128, "device_batch_size": 128}
    epochs = min(1.0, windows * TARGETS_A_WINDOW / size)
    run = {"epochs": epochs, "evals_per_epoch": 1 / epochs, "eval_examples": 1000, "eval_beams": 20}
    made["train-catalogue"] = {**given, "vectors": vectors, **shape, **loss, **run, "output": model}
    search = {"checkpoint": model, "beams": 20, "ks": [1, 10, 20], "batch_size": 64}
    made["eval-beam"] = {**given, **search, "output": str(folder / "eval")}
    made["city-ceiling"] = {"city": city, "corpus": corpus, "output": str(folder / "ceiling")}
    return made


def run(name: str, settings: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Run a stage, and what its record says."""
    output = Path(settings["output"])
    stage, file = name.partition(",")[0], output.with_name(f"{output.name}.yaml")
    write_text_atomic(file, yaml.safe_dump(dict(settings), sort_keys=False))
    subprocess.run([sys.executable, "-m", "minionerec", stage, "--config", str(file)], check=True)
    record = json.loads(record_path(output).read_text(encoding="utf-8"))
    if record["parts"] != 1:
        raise DataError(f"{output}: was made in {record['parts']} parts, so its seconds are not one run's. Remove it.")
    kept = {key: record[key] for key in ("seconds", "peak_memory_bytes", "commit", "machine")}
    return {"stage": name, "size": size, **kept, "settings": dict(settings)}


def measure(args: argparse.Namespace) -> None:
    """Run what is missing; one line each."""
    known = {(line["stage"], line["size"]) for line in lines_of(args.out)}
    for size in args.sizes:
        folder = args.folder / str(size)
        folder.mkdir(parents=True, exist_ok=True)
        planned = stages(size, folder, args.engines, args.windows)
        for name, settings in planned.items():
            if (name, size) in known:
                continue
            found = run(name, settings, size)
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(found, sort_keys=True) + "\n")
        corpora = [settings["output"] for name, settings in planned.items() if name.startswith("prepare-data")]
        if len({json.dumps(read_manifest(corpus)["files"], sort_keys=True) for corpus in corpora}) > 1:
            raise DataError(f"{folder}: the engines' corpora differ.")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of measurements; none where there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def slope(points: Mapping[int, float]) -> float:
    """The power with which values grow, from the smallest to the largest size; NaN of one size."""
    low, high = min(points), max(points)
    return math.log(points[high] / points[low]) / math.log(high / low) if high > low else math.nan


def page_of(found: list[dict[str, Any]]) -> tuple[str, dict[str, dict[float, float]]]:
    """The table of slopes in Markdown, and seconds by stage and size."""
    seconds: dict[str, dict[float, float]] = defaultdict(dict)
    memory: dict[str, dict[float, float]] = defaultdict(dict)
    for line in found:
        seconds[line["stage"]][line["size"]] = line["seconds"]["all"]
        memory[line["stage"]][line["size"]] = line["peak_memory_bytes"] / 2**30
    sizes = sorted({line["size"] for line in found})
    head = ["stage", *(f"{size:,}: seconds" for size in sizes), "slope", *(f"{size:,}: GiB" for size in sizes)]
    rows = []
    for name, points in seconds.items():
        power = slope({int(size): value for size, value in points.items()})
        row = [name, *(f"{points[size]:,.1f}" if size in points else "—" for size in sizes)]
        row += ["—" if math.isnan(power) else f"{power:.2f}"]
        rows.append(row + [f"{memory[name][size]:.2f}" if size in points else "—" for size in sizes])
    return markdown_table(head, rows), seconds


def growth_lines(series: Mapping[str, Mapping[float, float]], across: str, up: str) -> str:
    """How something grows with something else: a line each, both axes in logarithmic steps, so that a slope is a power.

    Args:
        series: Name to size to value, all above 0.
        across: What the horizontal axis shows.
        up: What the vertical axis shows.

    Returns:
        An SVG image that stands by itself.
    """
    with plots.drawing(7.2, 4.6, {"axes.grid.axis": "both"}) as figure:
        axes = figure.add_subplot()
        for number, (name, points) in enumerate(series.items()):
            sizes = sorted(points)
            style = {
                "color": plots.COLOURS[number % len(plots.COLOURS)],
                "linestyle": ("-", "--", ":")[number // len(plots.COLOURS) % 3],
            }
            axes.plot(sizes, [points[size] for size in sizes], marker="o", markersize=4, label=name, **style)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value / 1e6:,g} M")
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        figure.legend(loc="outside right upper")
        text = plots.svg(figure, "growth")
    return plots.alone(text)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[], help="interactions of each city")
    parser.add_argument("--folder", type=Path, default=Path("runs/scale"), help="where cities and outputs lie")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, added to")
    parser.add_argument("--engines", nargs="+", default=["duckdb"], help="of prepare-data, the first is used")
    parser.add_argument("--windows", type=int, default=100_000, help="windows that a model is trained on")
    parser.add_argument("--picture", type=Path, help="SVG file to write")
    args = parser.parse_args()
    measure(args)
    table, seconds = page_of(lines_of(args.out))
    print(table)
    if args.picture:
        write_text_atomic(args.picture, growth_lines(seconds, "interactions", "seconds"))


if __name__ == "__main__":
    run_command(main)
