"""Registries of commands, stages, readers, engines, rankers and models, which packages extend by entry points.

A package names what it adds in its `pyproject.toml`; the optional parts of this one do the same:

    [project.entry-points."minionerec.stages"]
    train-mine = "my_package.stages:TRAIN_MINE"

| group | what the entry point names |
|---|---|
| `minionerec.commands` | a `Command` (`minionerec.core.commands`), which is no stage |
| `minionerec.stages` | a `StageSpec` (`minionerec.pipeline.stages`); the entry point has the stage's name |
| `minionerec.readers` | a function (settings, files, `BadRows`) → `InteractionSource`: a `source` of prepare-data |
| `minionerec.engines` | a subclass of `Engine` (`minionerec.data.engines.engine`): an `engine` of prepare-data |
| `minionerec.rankers` | a function (corpus) → `Ranker`: a value of the setting `ranker` |
| `minionerec.checkpoint_models` | a `PreTrainedModel` that opens `Branches`; the entry point has its `model_type` |
| `minionerec.sequential_models` | a subclass of `SequentialModel`: a value of the setting `model` |
"""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Generic, TypeVar

from minionerec.core.errors import ConfigError, one_line

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Built-in parts and those of installed packages, by name.

    Names are listed without an import; a part of another package is imported when it is first read.

    Args:
        group: Group of the entry points, such as `minionerec.stages`.
        built_in: Name → part.
    """

    def __init__(self, group: str, built_in: Mapping[str, T]) -> None:
        self.group = group
        self._loaded: dict[str, T] = dict(built_in)

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        """Name → entry point."""
        entries: dict[str, EntryPoint] = {}
        for entry in sorted(_select(group=self.group), key=lambda entry: entry.name):
            if entry.name in entries or entry.name in self._loaded:
                raise ConfigError(
                    f"{self.group}: the package {_package(entry)} registers {entry.name!r}, which exists already. "
                    "Uninstall one of the two packages."
                )
            entries[entry.name] = entry
        return entries

    def __iter__(self) -> Iterator[str]:
        entries = self._entries
        yield from (name for name in self._loaded if name not in entries)
        yield from entries

    def __len__(self) -> int:
        return len(self._entries.keys() | self._loaded.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self._entries

    def __getitem__(self, name: str) -> T:
        """The part of a name.

        Raises:
            KeyError: If there is none.
            ConfigError: If its package cannot be imported.
        """
        if name not in self._loaded:
            entry = self._entries[name]
            try:
                part: Any = entry.load()
            except Exception as error:
                raise ConfigError(
                    f"{self.group}: {name!r} of the package {_package(entry)} cannot be imported from {entry.value}: "
                    f"{one_line(error)} Update the package, or uninstall it."
                ) from error
            self._loaded[name] = part
        return self._loaded[name]


def registered_names(group: str) -> tuple[str, ...]:
    """Names of the entry points of a group, such as `minionerec.readers`, sorted."""
    return tuple(sorted({entry.name for entry in _select(group=group)}))


def registered_path(group: str, name: str) -> str:
    """Dotted path of what an entry point names, such as `my_package.rankers.make`; the name itself where there is none.

    Args:
        group: Group of the entry points, such as `minionerec.rankers`.
        name: The entry point's name, or a dotted path.
    """
    entry = next(iter(_select(group=group, name=name)), None)
    return name if entry is None else entry.value.replace(":", ".")


@cache
def _installed() -> Any:
    """The entry points of all installed packages, read once, as every reading opens the metadata of each package."""
    return entry_points()


def _select(**criteria: str) -> EntryPoints:
    """The entry points of a group, or of a name in it."""
    selected: EntryPoints = _installed().select(**criteria)
    return selected


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.module
