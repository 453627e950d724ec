"""Settings of the stages that write or print for readers; light to import, so that `--help` answers at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from minionerec.core.errors import ConfigError, shown
from minionerec.core.settings import Settings, StageConfig, declared_inputs, setting
from minionerec.sid.embed.config import EncoderConfig

SPLITS = ("train", "valid", "test")
PROTOCOLS = ("rows", "a", "b")
LEVELS = ("item", "sid")
METRICS = ("HR", "NDCG", "MRR")
USERS, EXAMPLES = "users", "examples"
RESAMPLED = (USERS, EXAMPLES)
"""What a bootstrap may draw."""
RESAMPLE = (
    "what the bootstrap behind intervals and paired tests draws: users (each with all of its examples, which are not "
    "independent) or examples (each by itself)"
)
TIMES = "csv file of split, row, timestamp and previous_timestamp, where the corpus has no times of its own"


def _with_plots(settings: dict[str, Any]) -> dict[str, Any]:
    """What decides a page: its settings, and whether plots can be drawn."""
    from minionerec.reports import plots

    return {**settings, "plots": plots.available()}


def _with_seeds(inputs: dict[str, Path], name: str) -> dict[str, Path]:
    """Inputs in which a run of several seeds stands as one artefact a seed; `name` is the setting that names runs."""
    from minionerec.metrics.ranked import runs_at

    found: dict[str, Path] = {}
    for key, path in inputs.items():
        runs = runs_at(path) if key.partition(" ")[0] == name else [path]
        found |= {key: path} if runs == [path] else {f"{key} {run.parent.name}": run for run in runs}
    return found


def is_metric(name: str) -> bool:
    """Whether a text names a metric: HR@K, NDCG@K or MRR@K."""
    kind, _, k = name.partition("@")
    return kind in METRICS and k.isdecimal() and int(k) >= 1


def _check_ks(ks: list[int] | None) -> list[int] | None:
    """Cut-offs in ascending order, each once."""
    if ks is not None and not ks:
        raise ConfigError("ks is []; give at least one whole number from 1, such as 10, or leave it out.")
    return None if ks is None else sorted(set(ks))


def nested(given: Any, where: str, known: tuple[str, ...] = (), required: tuple[str, ...] = ()) -> dict[str, Any]:
    """A mapping within a setting, with texts as its keys.

    Args:
        given: What the settings say.
        where: The place in them, for messages.
        known: The keys that it may have; any if empty.
        required: Those that must be there and not empty.

    Raises:
        ConfigError: If it is no mapping or an empty one, or a key is unknown or missing.
    """
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{where} is {shown(given)}; expected a mapping{_of(known)}.")
    found = {str(key): value for key, value in given.items()}
    for key in found:
        if known and key not in known:
            raise ConfigError(f"{where}: unknown key {shown(key)}; known: {', '.join(known)}.")
    for key in required:
        if not found.get(key):
            raise ConfigError(f"{where}: {key} is missing; expected a mapping{_of(known)}.")
    return found


def _of(known: tuple[str, ...]) -> str:
    return f" with {', '.join(known)}" if known else " of label to directory"


@dataclass
class SidReportConfig(EncoderConfig):
    """Settings of the page about tables of semantic IDs; the encoder makes the vectors that all are judged by."""

    kind: ClassVar[str] = "sid_report"

    tables: dict[str, str] = setting(
        {},
        "tables to show, each as NAME=DIRECTORY of `minionerec build-sids`, in the order of the page",
        required=True,
        reads="sids",
    )
    output: str = setting(
        "",
        "directory to write sid_report.html, sid_report.md and diagnostics.json into",
        required=True,
        decides=False,
    )
    title: str = setting("Semantic IDs", "heading of the page")
    buckets: int = setting(4, "example buckets shown of each table", least=0)

    def deciding(self) -> dict[str, Any]:
        """What decides the page."""
        return _with_plots(super().deciding())


@dataclass
class LevelsConfig(Settings):
    """Settings of the per-level analysis, which prints and writes nothing."""

    predictions: str | None = setting(None, "directory of predictions, or its parquet file", reads="any")
    path: str | None = setting(
        None, "JSON file in the published form (input, output, predict); instead of --predictions", reads="any"
    )
    ks: list[int] | None = setting(
        None,
        "cut-offs K, in predictions; those of 1 3 5 10 20 50 that the lists can serve if not given",
        least=1,
    )
    levels: int | None = setting(None, "levels that a semantic ID has; what most targets have if not given", least=1)
    slices: bool = setting(False, "show the levels by kind of row too, at K = 1 and 10")
    corpus: str = setting("", "corpus that the predictions are for; with slices alone", reads="corpus", of="slices")
    split: str = setting("test", "rows of the corpus that they are for, where they do not say so", known=SPLITS)
    times: str | None = setting(None, f"with slices: {TIMES}", reads="any", of="slices")
    json: bool = setting(False, "print nothing but one JSON object of unrounded numbers")

    def __post_init__(self) -> None:
        """Check that exactly one input is given."""
        super().__post_init__()
        if (self.predictions is None) == (self.path is None):
            raise ConfigError(
                f"predictions is {self.predictions!r} and path is {self.path!r}: give exactly one of "
                "--predictions DIRECTORY and --path FILE.json."
            )
        _check_slices(self.slices, self.corpus)
        self.ks = _check_ks(self.ks)


@dataclass
class CompareConfig(StageConfig):
    """Settings of the comparison."""

    kind: ClassVar[str] = "comparison"

    runs: dict[str, str] = setting(
        {},
        "what to compare, each as NAME=DIRECTORY: outputs of `minionerec train-sequential`, or predictions of any "
        "recommender for the same rows; the others are compared with the first, row by row",
        required=True,
        reads="predictions",
    )
    metrics: list[str] = setting(
        ["HR@5", "NDCG@5", "HR@10", "NDCG@10"], "columns of the tables: HR@K, NDCG@K and MRR@K", required=True
    )
    level: str = setting("item", "which reading of a hit", known=LEVELS)
    reference: str = setting("", "published numbers to set beside ours: lastfm, beauty or industrial; empty: none")
    output: str = setting(
        "",
        "directory for comparison.md, comparison.html and comparison.json; empty: they are printed alone",
        decides=False,
    )
    slices: bool = setting(False, "show a metric by kind of row too; needs corpus")
    corpus: str = setting(
        "",
        "with slices, what the runs were made from: a corpus directory, or under protocol a or b the file of 'user "
        "item item ...' lines",
        reads="any",
        of="slices",
    )
    protocol: str = setting("rows", "with slices, how rows are split: as in report", known=PROTOCOLS)
    items: str = setting(
        "",
        "with slices, under protocol a or b: JSON file of item id to title, if the runs were given one",
        reads="any",
        of="slices",
    )
    times: str | None = setting(None, f"with slices: {TIMES}", reads="any", of="slices")
    seed: int = setting(0, "seed of the bootstrap", least=0)
    resamples: int = setting(2000, "bootstrap resamples", least=1)
    resample: str = setting(USERS, RESAMPLE, known=RESAMPLED)

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        _check_slices(self.slices, self.corpus)
        _check_items(self.protocol, self.items)
        for name in self.metrics:
            if not is_metric(name):
                raise ConfigError(f"unknown metric {name!r}; expected HR@K, NDCG@K or MRR@K, such as NDCG@10.")

    def inputs(self) -> dict[str, Path]:
        """The predictions of every run and seed, and the file of published numbers."""
        return _with_seeds(declared_inputs(self), "runs") | _reference_input(self.reference)


@dataclass
class ReportConfig(StageConfig):
    """Settings of the report."""

    kind: ClassVar[str] = "report"

    corpus: str = setting(
        "",
        "directory of the corpus (from `minionerec prepare-data`); under protocol a or b the file of 'user item item "
        "...' lines, which may begin with $MINIONEREC_DATA",
        required=True,
        reads="any",
    )
    items: str = setting("", "JSON file of item id to title, for protocol a or b; empty: no titles", reads="any")
    protocol: str = setting(
        "rows", "how rows are split: those of the corpus, or as protocol a or b says", known=PROTOCOLS
    )
    sids: str = setting(
        "", "directory of the semantic IDs (from `minionerec build-sids`); empty: item level alone", reads="sids"
    )
    predictions: dict[str, str] = setting(
        {},
        "predictions to show, each as NAME=DIRECTORY, an output of `minionerec train-sequential` with all its seeds "
        "among them, in the order of the tables; the others are compared with the first, row by row",
        required=True,
        reads="predictions",
    )
    output: str = setting("", "directory to write report.md and report.html into", required=True, decides=False)
    title: str = setting("Generative recommendation", "heading of the report")
    split: str = setting("test", "split that the predictions are for", known=SPLITS)
    ks: list[int] | None = setting(
        None, "cut-offs K, in candidates; those of the protocol within all lists if not given", least=1
    )
    reference: str | None = setting(
        None, "published numbers to set beside ours, by name (industrial, lastfm, beauty); none if not given"
    )
    ceiling: str | None = setting(
        None, "JSON file of what the best possible ranking may expect; left out if not given", reads="any"
    )
    slices: bool = setting(True, "show the headline metric by kind of row")
    times: str | None = setting(
        None, f"for kinds of rows: {TIMES}; left out, and said so, if there is no such file", reads="any"
    )
    examples: int = setting(6, "users whose recommendations are shown", least=0)
    seed: int = setting(0, "seed of the bootstrap and of the choice of examples", least=0)
    resamples: int = setting(2000, "bootstrap resamples behind every interval", least=1)
    resample: str = setting(USERS, RESAMPLE, known=RESAMPLED)

    def __post_init__(self) -> None:
        """Check what can be checked without files."""
        super().__post_init__()
        self.ks = _check_ks(self.ks)
        _check_items(self.protocol, self.items)
        if not self.slices and self.times:
            raise ConfigError(f"times is {self.times!r}, but slices is false; leave times out, or give --slices true.")
        if self.protocol != "rows" and self.sids:
            raise ConfigError(
                f"sids is {self.sids!r}, but protocol is {self.protocol!r}, whose items have no SIDs; leave sids out "
                "or take protocol rows."
            )

    def inputs(self) -> dict[str, Path]:
        """Data, SIDs, the predictions of every run and seed, and the files of published numbers and the ceiling."""
        found = _with_seeds(declared_inputs(self), "predictions") | _reference_input(self.reference)
        for name in ("ceiling", "times"):
            if name in found and not found[name].is_file():
                del found[name]  # the report says that it does without
        return found

    def deciding(self) -> dict[str, Any]:
        """What decides the page."""
        return _with_plots(super().deciding())


def _check_items(protocol: str, items: str) -> None:
    """Check that titles are named only where the data have none."""
    if protocol == "rows" and items:
        raise ConfigError(f"items is {items!r}, but a corpus has its own titles; leave items out.")


def _check_slices(slices: bool, corpus: str) -> None:
    """Check that data are named where rows are told apart by kind."""
    if slices and not corpus:
        raise ConfigError("slices is true, but corpus is empty; give --corpus what the rows were made from.")


def _reference_input(name: str | None) -> dict[str, Path]:
    from minionerec.reports.reference import reference_path

    return {"reference": reference_path(name)} if name else {}
