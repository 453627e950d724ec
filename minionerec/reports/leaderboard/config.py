"""Settings of the leaderboard; light to import, so that `--help` answers at once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from minionerec.core.errors import ArtefactError, ConfigError, shown
from minionerec.core.paths import find_path
from minionerec.core.settings import StageConfig, declared_inputs, setting
from minionerec.reports.config import PROTOCOLS, RESAMPLE, RESAMPLED, SPLITS, USERS, is_metric, nested

ORDERS = ("headline", "given", "parameters", "seconds")
_KEYS = ("predictions", "published", "tuned", "note")
_ROWS = (
    "recommenders, each NAME: {predictions, published, tuned, note}, or NAME: predictions alone; predictions are a "
    "directory, a list of them (one a seed), or an output of `minionerec train-sequential`; published is the name of "
    "the published row that it is the counterpart of; tuned says who chose what on which grid"
)


@dataclass(frozen=True)
class RowSetting:
    """One recommender.

    Attributes:
        name: Its name.
        places: What the settings name: predictions, one a seed, or a run of several seeds.
        published: Name of its published counterpart; empty without one.
        tuned: Who chose what on which grid.
        note: What else a reader should know.
    """

    name: str
    places: tuple[Path, ...]
    published: str = ""
    tuned: str = ""
    note: str = ""

    @property
    def missing(self) -> list[Path]:
        """The places at which nothing stands yet."""
        from minionerec.metrics.ranked import has_runs

        return [place for place in self.places if not has_runs(place)]

    @property
    def runs(self) -> list[Path]:
        """The predictions that stand, one a seed.

        Raises:
            ArtefactError: If something else lies there, or the rows held out were trained on.
        """
        from minionerec.metrics.ranked import has_runs, runs_at

        return [run for place in self.places if has_runs(place) for run in runs_at(place)]


@dataclass
class LeaderboardConfig(StageConfig):
    """Settings of `run_leaderboard`."""

    kind: ClassVar[str] = "leaderboard"

    corpus: str = setting(
        "",
        "corpus directory that the predictions are for; under protocol a or b a file of 'user item item ...' lines",
        required=True,
        reads="any",
    )
    items: str = setting("", "as in report", reads="any")
    protocol: str = setting("rows", "how rows are split: as in report", known=PROTOCOLS)
    sids: str = setting(
        "",
        "semantic IDs (from `minionerec build-sids`) by which recommenders without any are counted too; empty: those "
        "are counted by item alone",
        reads="sids",
    )
    rows: dict[str, Any] = setting({}, _ROWS, required=True, decides=False, path=True)
    output: str = setting(
        "",
        "directory to write leaderboard.md, leaderboard.html and leaderboard.json into",
        required=True,
        decides=False,
    )
    title: str = setting("Leaderboard", "heading of the page")
    split: str = setting("test", "rows that the predictions are for", known=SPLITS[1:])
    ks: list[int] = setting(
        [1, 3, 5, 10, 20, 50], "cut-offs K; none above the lists of any recommender", required=True, least=1
    )
    headline: str = setting("NDCG@10", "metric that ranks the recommenders: HR@K or NDCG@K")
    level: str = setting(
        "sid",
        "which reading of a hit ranks them: sid (the target's semantic ID; of models over titles, its title) or item",
        known=("sid", "item"),
    )
    order: str = setting(
        "headline",
        "order of the tables: headline (the best first), given (as in the settings), parameters or seconds (of "
        "training; the fewest first)",
        known=ORDERS,
    )
    baseline: str = setting("", "name of the recommender that all others are compared with row by row; empty: none")
    reference: str = setting("", "published numbers, by name (industrial, office, beauty, lastfm); empty: none")
    strict: bool = setting(False, "an error where predictions are missing, which otherwise are pending", decides=False)
    seed: int = setting(0, "seed of the bootstrap", least=0)
    resamples: int = setting(2000, "bootstrap resamples behind every interval", least=1)
    resample: str = setting(USERS, RESAMPLE, known=RESAMPLED)

    def __post_init__(self) -> None:
        """Check what can be checked without predictions."""
        super().__post_init__()
        self.ks = sorted(set(self.ks))
        kind, _, k = self.headline.partition("@")
        if not is_metric(self.headline) or kind == "MRR" or int(k) not in self.ks:
            raise ConfigError(
                f"headline is {shown(self.headline)}; expected HR@K or NDCG@K with a K of ks ({_listed(self.ks)})."
            )
        rows = self.parsed()
        names = [row.name for row in rows]
        if self.baseline and self.baseline not in names:
            raise ConfigError(f"baseline is {shown(self.baseline)}, which is no row; rows: {_listed(names)}.")
        _check_once(rows)
        self._check_published(rows)

    def parsed(self) -> list[RowSetting]:
        """The rows, read and checked, in the order of the settings."""
        return [_row(name, given) for name, given in self.rows.items()]

    def _check_published(self, rows: list[RowSetting]) -> None:
        from minionerec.reports.reference import load_reference

        wanted = [row for row in rows if row.published]
        if wanted and not self.reference:
            raise ConfigError(
                f"rows: {wanted[0].name}: published is {shown(wanted[0].published)}, but reference is empty. Give "
                "reference, or leave published out."
            )
        known = [row.name for row in load_reference(self.reference).rows] if self.reference else []
        for row in wanted:
            if row.published not in known:
                raise ConfigError(
                    f"rows: {row.name}: published is {shown(row.published)}, which is no row of {self.reference}; its "
                    f"rows: {_listed(known)}."
                )

    def deciding(self) -> dict[str, Any]:
        """What decides the page: the rows without their paths among it, and how many of their seeds stand."""
        rows = [
            {
                **{key: getattr(row, key) for key in ("name", "published", "tuned", "note")},
                "seeds": len(row.runs),
                "missing": len(row.missing),
            }
            for row in self.parsed()
        ]
        return {**super().deciding(), "rows": rows}

    def named_paths(self) -> list[Path]:
        """Data, SIDs and the predictions of all rows, finished or not."""
        return [*super().named_paths(), *(place for row in self.parsed() for place in row.places)]

    def inputs(self) -> dict[str, Path]:
        """Data, SIDs, the predictions of all seeds that stand, and the file of published numbers.

        Raises:
            ArtefactError: If `strict` is set and something is missing.
        """
        from minionerec.reports.reference import reference_path

        found = declared_inputs(self)
        for row in self.parsed():
            if self.strict and row.missing:
                raise ArtefactError(
                    f"{row.missing[0]}: no predictions there, but rows: {row.name} names them and strict is set. Make "
                    "them, or leave strict out."
                )
            found |= {f"{row.name} / {number}": run for number, run in enumerate(row.runs, start=1)}
        return found | ({"reference": reference_path(self.reference)} if self.reference else {})


def _row(name: str, given: Any) -> RowSetting:
    """One row as the settings say it."""
    where = f"rows: {name}"
    values = nested(given, where, _KEYS, ("predictions",)) if isinstance(given, Mapping) else {"predictions": given}
    named = values.pop("predictions")
    for key, value in values.items():
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {key} is {shown(value)}; expected a text.")
    places = named if isinstance(named, list) else [named]
    if not places or not all(isinstance(place, str) and place for place in places):
        raise ConfigError(f"{where}: predictions is {shown(named)}; expected a directory, or a list of them.")
    return RowSetting(name, tuple(find_path(place) for place in places), **values)


def _check_once(rows: list[RowSetting]) -> None:
    """Check that no place is named twice: a seed that counts twice would shrink the spread."""
    known: dict[str, str] = {}
    for row in rows:
        for place in row.places:
            spot = os.path.abspath(place)
            if spot in known:
                raise ConfigError(
                    f"rows: {row.name}: {place} is named twice, by {known[spot]} before. Name each run once."
                )
            known[spot] = row.name


def _listed(names: list[Any]) -> str:
    return ", ".join(map(str, names))
