"""Tables of several recommenders on the same rows: mean and sd over seeds, paired bootstrap, the published figure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.artefacts import MANIFEST, read_manifest, write_text_atomic
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import item_ranks, list_width, ranking_metrics, sid_ranks
from minionerec.metrics.statistics import PairedDifference, bootstrap_interval, paired_differences
from minionerec.metrics.tables import MISSING
from minionerec.reports.reference import Reference, load_reference

logger = get_logger(__name__)

LEVELS = ("item", "sid")
SPLITS = ("test", "valid")
KINDS = ("HR", "NDCG", "MRR")
JSON_FILE, MARKDOWN_FILE = "comparison.json", "comparison.md"


@dataclass
class CompareConfig:
    """Settings of `run_compare`."""

    runs: list[str] = field(
        default_factory=list,
        metadata={
            "help": "what to compare, each as NAME=DIRECTORY: outputs of scripts/train_sequential.py, or predictions "
            "of any recommender for the same rows; the others are compared with the first, row by row"
        },
    )
    metrics: list[str] = field(
        default_factory=lambda: ["HR@5", "NDCG@5", "HR@10", "NDCG@10"],
        metadata={"help": "columns of the tables: HR@K, NDCG@K and MRR@K"},
    )
    level: str = field(default="item", metadata={"help": "which reading of a hit: item or sid"})
    reference: str = field(
        default="", metadata={"help": "published numbers to set beside ours: lastfm, beauty or industrial; empty: none"}
    )
    output: str = field(default="", metadata={"help": "directory for comparison.md and comparison.json; empty: none"})
    seed: int = field(default=0, metadata={"help": "seed of the bootstrap"})
    resamples: int = field(default=2000, metadata={"help": "bootstrap resamples"})

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        if not self.runs or not all(part.strip() for run in self.runs for part in run.partition("=")[::2]):
            raise ConfigError(f"runs is {self.runs!r}; give NAME=DIRECTORY for at least one recommender.")
        names = [name for name, _ in self.named]
        if len(set(names)) < len(names):
            raise ConfigError(f"runs has a name twice: {', '.join(names)}. Give each its own name.")
        for name in self.metrics or [""]:
            kind, _, k = name.partition("@")
            if kind not in KINDS or not k.isdecimal() or int(k) < 1:
                raise ConfigError(f"unknown metric {name!r}; expected HR@K, NDCG@K or MRR@K, such as NDCG@10.")
        if self.level not in LEVELS:
            raise ConfigError(f"unknown level {self.level!r}; known: {', '.join(LEVELS)}.")
        if self.resamples < 1:
            raise ConfigError(f"resamples is {self.resamples}; it must be at least 1.")

    @property
    def named(self) -> list[tuple[str, str]]:
        """(name, directory) of each recommender."""
        return [(name.strip(), path.strip()) for name, _, path in (run.partition("=") for run in self.runs)]


@dataclass(frozen=True)
class System:
    """One recommender's ranks.

    Attributes:
        name: Display name.
        rows: Split to a table with `user` and `target`, one row a line.
        ranks: Split to int64 (S, R), one line a seed; 0 where the list does not hold the target.
        width: Length of the lists that the ranks were found in; None where all items were ranked.
        about: Parameters and recipe, where known.
    """

    name: str
    rows: Mapping[str, pd.DataFrame]
    ranks: Mapping[str, np.ndarray]
    width: int | None
    about: Mapping[str, Any]

    def values(self, split: str, metrics: list[str]) -> dict[str, np.ndarray]:
        """Metric name to float64 (S, R)."""
        found = {}
        for name in metrics:
            k = int(name.partition("@")[2])
            if self.width is not None and k > self.width:
                raise ConfigError(f"{name} needs lists of {k}, but those of {self.name} hold {self.width}.")
            found[name] = np.stack([ranking_metrics(ranks, [k])[name] for ranks in self.ranks[split]])
        return found


@dataclass(frozen=True)
class Line:
    """One recommender on one split.

    Attributes:
        name: Its name.
        seeds: Number of seeds.
        metrics: Metric to (mean over seeds, sample sd over seeds or None, low, high): the interval is the bootstrap's
            over rows, of each row's mean over seeds.
        published: Metric to the published figure of its counterpart.
        against: Metric to the paired difference from the first recommender; empty for the first.
        about: As in `System`.
    """

    name: str
    seeds: int
    metrics: Mapping[str, tuple[float, float | None, float, float]]
    published: Mapping[str, float]
    against: Mapping[str, PairedDifference]
    about: Mapping[str, Any]


@dataclass(frozen=True)
class CompareResult:
    """What `run_compare` found.

    Attributes:
        lines: Split to the recommenders' lines, in the order given.
        markdown: The tables.
    """

    lines: Mapping[str, list[Line]]
    markdown: str


def load_system(name: str, path: str, level: str) -> System:
    """Ranks of one recommender.

    Args:
        name: Display name.
        path: Output of `scripts/train_sequential.py`, or a predictions artefact (test rows).
        level: "item" or "sid".

    Raises:
        ArtefactError: If `path` is neither, or has no ranks at this level.
    """
    folders = sorted(Path(path).glob("seed-*/model"), key=lambda folder: int(folder.parent.name.partition("-")[2]))
    folders = [folder for folder in folders if (folder / MANIFEST).is_file()]
    if folders:
        return _trained(name, path, folders, level)
    manifest = read_manifest(path, "predictions")
    predictions = Predictions.load(path)
    if level == "sid" and not any(predictions.target_sids):
        raise ArtefactError(f"{path}: has no SIDs. Compare at level item, or predict with SIDs.")
    ranks = (sid_ranks if level == "sid" else item_ranks)(predictions)[None]
    split = str(manifest["counts"].get("split", "test"))
    rows = pd.DataFrame({"user": predictions.users, "target": predictions.targets})
    return System(name, {split: rows}, {split: ranks}, list_width(predictions, path), {})


def _trained(name: str, path: str, folders: list[Path], level: str) -> System:
    tables = [pd.read_parquet(folder / "ranks.parquet") for folder in folders]
    column = f"{level}_rank"
    if column not in tables[0]:
        raise ArtefactError(f"{path}: has no ranks at level {level}. Train with --sids, or compare at level item.")
    rows, ranks = {}, {}
    for split in SPLITS:
        found = [table[table["split"] == split] for table in tables]
        rows[split] = found[0][["user", "target"]].reset_index(drop=True)
        ranks[split] = np.stack([table[column].to_numpy(np.int64) for table in found])
    counts = read_manifest(folders[0])["counts"]
    return System(name, rows, ranks, None, {key: counts[key] for key in ("parameters", "recipe")})


def run_compare(config: CompareConfig) -> CompareResult:
    """Compare recommenders on the same rows.

    Raises:
        ArtefactError: If an input is missing, or is about other rows than the first.
        ConfigError: If a metric looks further than a list goes.
    """
    systems = [load_system(name, path, config.level) for name, path in config.named]
    reference = load_reference(config.reference) if config.reference else None
    lines = {}
    for split in SPLITS:
        present = [system for system in systems if split in system.ranks]
        if present:
            lines[split] = compare_systems(present, split, config, reference)
    markdown = "\n".join(_markdown(split, found, config) for split, found in lines.items())
    if config.output:
        output = Path(config.output)
        output.mkdir(parents=True, exist_ok=True)
        plain = {split: [asdict(line) for line in found] for split, found in lines.items()}
        write_text_atomic(output / JSON_FILE, json.dumps(plain, indent=1) + "\n")
        write_text_atomic(output / MARKDOWN_FILE, markdown)
    return CompareResult(lines, markdown)


def compare_systems(
    systems: list[System], split: str, config: CompareConfig, reference: Reference | None
) -> list[Line]:
    """The lines of one split; each row's value is its mean over a system's seeds before rows are resampled."""
    first = systems[0]
    values = {system.name: system.values(split, config.metrics) for system in systems}
    by_row = {name: {metric: table.mean(0) for metric, table in found.items()} for name, found in values.items()}
    lines = []
    for system in systems:
        mine, theirs = system.rows[split], first.rows[split]
        if len(mine) != len(theirs) or not (mine["target"].to_numpy() == theirs["target"].to_numpy()).all():
            raise ArtefactError(
                f"{system.name}: its {len(mine)} {split} rows are not the {len(theirs)} of {first.name}. "
                "Compare recommenders of the same data, protocol and split."
            )
        low, high = bootstrap_interval(np.stack(list(by_row[system.name].values()), 1), config.seed, config.resamples)
        metrics = {}
        for place, (metric, table) in enumerate(values[system.name].items()):
            means = table.mean(1)
            sd = float(means.std(ddof=1)) if len(means) > 1 else None
            metrics[metric] = (float(means.mean()), sd, float(low[place]), float(high[place]))
        against = {}
        if system is not first:
            against = paired_differences(by_row[system.name], by_row[first.name], config.seed, config.resamples)
        published = _published(system.name, reference)
        lines.append(Line(system.name, len(system.ranks[split]), metrics, published, against, system.about))
    return lines


def _published(name: str, reference: Reference | None) -> Mapping[str, float]:
    """Metrics of the published row of that name or alias."""
    for row in reference.rows if reference else ():
        if name.lower() in (alias.lower() for alias in (row.name, *row.compare)):
            return row.metrics
    return {}


def _markdown(split: str, lines: list[Line], config: CompareConfig) -> str:
    """The two tables of one split: metrics, and differences from the first recommender."""
    first = lines[0].name
    out = [f"## {split} rows, {config.level} level", ""]
    heads = ["recommender", "parameters", "seeds", *config.metrics]
    out += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for line in lines:
        parameters = line.about.get("parameters")
        cells = [line.name, f"{parameters:,}" if parameters else MISSING, str(line.seeds)]
        for metric in config.metrics:
            mean, sd, low, high = line.metrics[metric]
            spread = "" if sd is None else f" ± {sd:.4f}"
            theirs = f"; published {line.published[metric]:.4f}" if metric in line.published and split == "test" else ""
            cells.append(f"{mean:.4f}{spread} [{low:.4f}, {high:.4f}]{theirs}")
        out.append("| " + " | ".join(cells) + " |")
    note = "Mean ± sd over seeds; in brackets the 95 % interval over rows (bootstrap of each row's mean over seeds)."
    out += ["", note, ""]
    if len(lines) > 1:
        heads = [f"minus {first}", *config.metrics]
        out += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for line in lines[1:]:
            cells = [f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}], p {gap.p:.3f}"
                     for gap in (line.against[metric] for metric in config.metrics)]  # fmt: skip
            out.append("| " + " | ".join([line.name, *cells]) + " |")
        out += ["", "Paired bootstrap over rows.", ""]
    return "\n".join(out)
