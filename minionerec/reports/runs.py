"""Recommenders of a page in the settings: names, predictions and details."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minionerec.core.errors import ArtefactError, ConfigError, shown
from minionerec.core.paths import find_path

_RUN_KEYS = ("predictions", "published", "tuned", "note")


def _run_mapping(given: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Check a recommender that is given as a mapping.

    Raises:
        ConfigError: If a key is unknown, or predictions is missing.
    """
    expected = f"expected a mapping with {', '.join(_RUN_KEYS)}."
    for key in given:
        if key not in _RUN_KEYS:
            raise ConfigError(f"{where}: unknown key {shown(key)}; {expected}")
    if not given.get("predictions"):
        raise ConfigError(f"{where}: predictions is missing; {expected}")
    return dict(given)


@dataclass(frozen=True)
class RunSetting:
    """A recommender of a page, as given in the settings.

    Attributes:
        name: Name of the recommender.
        paths: Paths of predictions, one per seed, or of a run of several seeds.
        details: Further keys: `published` (its published counterpart), `tuned` (how its settings were tuned), `note`.
    """

    name: str
    paths: tuple[Path, ...]
    details: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, given: Any, where: str) -> "RunSetting":
        """Parse one recommender of the settings: predictions, or a mapping of predictions and details.

        Raises:
            ConfigError: If the value is neither.
        """
        values = _run_mapping(given, where) if isinstance(given, Mapping) else {"predictions": given}
        named = values.pop("predictions")
        for key, value in values.items():
            if not isinstance(value, str):
                raise ConfigError(f"{where}: {key} is {shown(value)}; expected a text.")
        named_paths = named if isinstance(named, list) else [named]
        if not named_paths or not all(isinstance(path, str) and path for path in named_paths):
            raise ConfigError(f"{where}: predictions is {shown(named)}; expected a directory, or a list of them.")
        return cls(name, tuple(find_path(path) for path in named_paths), values)

    @property
    def missing(self) -> list[Path]:
        """The paths without predictions."""
        from minionerec.metrics.ranked import has_runs

        return [path for path in self.paths if not has_runs(path)]

    @property
    def runs(self) -> list[Path]:
        """The existing predictions, one per seed.

        Raises:
            ArtefactError: If a path holds no predictions, or the held-out examples were used in training.
        """
        from minionerec.metrics.ranked import runs_at

        missing = self.missing
        return [run for path in self.paths if path not in missing for run in runs_at(path)]

    def check_finished(self) -> None:
        """Check that all of its predictions exist.

        Raises:
            ArtefactError: If a path has none.
        """
        from minionerec.metrics.ranked import runs_at

        for path in self.missing:
            runs_at(path)  # raises a specific error
            raise ArtefactError(f"{path}: no predictions found. Compute them first.")

    def inputs(self, prefix: str) -> dict[str, Path]:
        """Predictions by input name, numbered if there are several seeds."""
        runs = self.runs
        return {prefix if len(runs) == 1 else f"{prefix} {number}": run for number, run in enumerate(runs, 1)}

    def deciding(self) -> dict[str, Any]:
        """Settings that affect a page besides the content of the predictions."""
        return {"name": self.name, **self.details, "seeds": len(self.runs)}
