"""Settings of the report stages; light to import, so that `--help` is fast."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from minionerec.core.errors import ConfigError, shown
from minionerec.pipeline.settings import Settings, StageConfig, setting
from minionerec.reports.runs import RunSetting

SPLITS = ("train", "valid", "test")
PROTOCOLS = ("rows", "a", "b")


def with_plots(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings that affect a page, with the availability of plots."""
    from minionerec.reports import plots

    return {**settings, "plots": plots.available()}


def _check_ks(ks: list[int] | None) -> list[int] | None:
    """Cutoffs in ascending order, without duplicates."""
    if ks is not None and not ks:
        raise ConfigError("ks is []; give at least one whole number from 1, such as 10, or leave it out.")
    return None if ks is None else sorted(set(ks))


def _check_once(runs: Sequence[RunSetting]) -> None:
    """Check that no recommender names a path twice: a duplicate seed shrinks the deviation over seeds."""
    for run in runs:
        paths = [os.path.abspath(path) for path in run.paths]
        for path, absolute in zip(run.paths, paths, strict=True):
            if paths.count(absolute) > 1:
                raise ConfigError(f"predictions: {run.name}: {path} is given twice. Name each run once.")


@dataclass
class SidReportConfig(StageConfig):
    """Settings of the report on tables of semantic IDs."""

    kind: ClassVar[str] = "sid_report"

    corpus: str = setting("", "directory of the corpus whose items have the SIDs", required=True, input_kind="corpus")
    tables: dict[str, str] = setting(
        {},
        "tables of semantic IDs, each as NAME=DIRECTORY of `minionerec build-sids`, in the order of the page",
        required=True,
        input_kind="sids",
    )

    def deciding(self) -> dict[str, Any]:
        """Settings that affect the page."""
        return with_plots(super().deciding())


@dataclass
class LevelsConfig(Settings):
    """Settings of the per-level analysis, which prints and writes no files."""

    predictions: str = setting(
        "",
        "directory of predictions, its parquet file, or a JSON file in the published form (input, output, predict)",
        required=True,
        input_kind="any",
    )
    ks: list[int] | None = setting(
        None,
        "cutoffs K, in predictions; if not given, those of 1 3 5 10 20 50 within the list length",
        least=1,
    )
    json: bool = setting(False, "print only one JSON object of unrounded numbers")

    def __post_init__(self) -> None:
        """Check what can be checked without files."""
        super().__post_init__()
        self.ks = _check_ks(self.ks)


@dataclass
class ReportConfig(StageConfig):
    """Settings of the report."""

    kind: ClassVar[str] = "report"

    predictions: dict[str, Any] = setting(
        {},
        "recommenders to show, each as NAME=DIRECTORY: predictions, or an output of `minionerec train-sequential` with "
        "all its seeds; in a file also a list of directories, one per seed, or a mapping of predictions, published "
        "(the name of its published counterpart), tuned (how its settings were tuned) and note",
        required=True,
        affects_result=False,
        path=True,
    )
    corpus: str = setting(
        "",
        "directory of the corpus (from `minionerec prepare-data`); under protocol a or b the file of 'user item item "
        "...' lines, which may begin with $MINIONEREC_DATA",
        required=True,
        input_kind="any",
    )
    items: str = setting("", "JSON file of item id to title, for protocol a or b; empty: no titles", input_kind="any")
    protocol: str = setting(
        "rows", "split of the examples: rows (that of the corpus), or protocol a or b", known=PROTOCOLS
    )
    sids: str = setting(
        "", "directory of the semantic IDs (from `minionerec build-sids`); empty: item level only", input_kind="sids"
    )
    title: str = setting("Generative recommendation", "heading of the page")
    split: str = setting("test", "split of the predictions", known=SPLITS)
    ks: list[int] | None = setting(
        None, "cutoffs K, in candidates; if not given, those of the protocol within all lists", least=1
    )
    metrics: list[str] = setting(
        [], "HR@K, NDCG@K and MRR@K, as columns of the tables; if not given, HR and NDCG at every cutoff"
    )
    baseline: str = setting("", "recommender that all others are compared with in paired tests; the first if empty")
    reference: str | None = setting(
        None, "published results to compare with, by name (industrial, office, lastfm, beauty); none if not given"
    )
    ceiling: str | None = setting(
        None, "JSON file of the expected metrics of the best possible ranking", input_kind="any"
    )
    value_column: str = setting(
        "",
        "column of the corpus's items with what each is worth, such as price: the report compares the value that lists "
        "find, also re-ranked by it; none if empty",
    )
    allow_missing: bool = setting(
        False,
        "leave out recommenders without predictions, with a warning, instead of raising an error",
        affects_result=False,
    )
    resamples: int = setting(2000, "bootstrap resamples per interval", least=1)

    def __post_init__(self) -> None:
        """Check what can be checked without files."""
        super().__post_init__()
        self.ks = _check_ks(self.ks)
        runs = self.runs()
        names = [run.name for run in runs]
        if self.protocol == "rows" and self.items:
            raise ConfigError(f"items is {self.items!r}, but a corpus has its own titles; leave items out.")
        if self.protocol != "rows" and self.sids:
            raise ConfigError(
                f"sids is {self.sids!r}, but protocol is {self.protocol!r}, whose items have no SIDs; leave sids out "
                "or take protocol rows."
            )
        for name in self.metrics:
            if not re.fullmatch(r"(HR|NDCG|MRR)@0*[1-9]\d*", name, re.ASCII):
                raise ConfigError(f"unknown metric {name!r}; expected HR@K, NDCG@K or MRR@K, such as NDCG@10.")
        if self.baseline and self.baseline not in names:
            raise ConfigError(
                f"baseline is {shown(self.baseline)}, which is none of the predictions: {', '.join(names)}."
            )
        _check_once(runs)
        self._check_published(runs)

    def _check_published(self, runs: Sequence[RunSetting]) -> None:
        from minionerec.reports.reference import load_reference

        known = [row.name for row in load_reference(self.reference).rows] if self.reference else []
        for run in runs:
            name = run.details.get("published")
            if name and not self.reference:
                raise ConfigError(
                    f"predictions: {run.name}: published is {shown(name)}, but reference is empty. Give reference, or "
                    "leave published out."
                )
            if name and name not in known:
                raise ConfigError(
                    f"predictions: {run.name}: published is {shown(name)}, which is not in {self.reference}; "
                    f"known: {', '.join(known)}."
                )

    def runs(self) -> list[RunSetting]:
        """The recommenders, read and checked, in the order of the settings."""
        return [RunSetting.read(name, value, f"predictions: {name}") for name, value in self.predictions.items()]

    def finished(self) -> list[RunSetting]:
        """The recommenders that have predictions.

        Raises:
            ArtefactError: If one has none and `allow_missing` is false, or if none has any.
        """
        runs = self.runs()
        finished = [run for run in runs if run.runs]
        if not (self.allow_missing and finished):
            for run in runs:
                run.check_finished()
        return finished

    def inputs(self) -> dict[str, Path]:
        """Data, SIDs, the predictions of every run and seed, and the files of published numbers and the ceiling.

        Raises:
            ArtefactError: If required predictions are missing.
        """
        inputs = super().inputs()
        if "ceiling" in inputs and not inputs["ceiling"].is_file():
            del inputs["ceiling"]  # the report logs a warning
        for run in self.finished():
            inputs |= run.inputs(f"predictions {run.name}")
        return inputs | _reference_input(self.reference)

    def named_paths(self) -> list[Path]:
        """Data, SIDs and the predictions of all recommenders, finished or not."""
        return [*super().named_paths(), *(path for run in self.runs() for path in run.paths)]

    def deciding(self) -> dict[str, Any]:
        """Settings that affect the page, with the finished recommenders without paths, and their number of seeds."""
        return with_plots({**super().deciding(), "predictions": [run.deciding() for run in self.finished()]})


def _reference_input(name: str | None) -> dict[str, Path]:
    """The file of published numbers as an input."""
    from minionerec.reports.reference import reference_path

    return {"reference": reference_path(name)} if name else {}
