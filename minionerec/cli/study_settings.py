"""What a study's file may say, as typed settings, and what was read of it; `minionerec.cli.study_file` reads it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.cli.stages import StageSpec
from minionerec.core.settings import Settings, StageConfig, setting


@dataclass
class StudySettings(Settings):
    """What a study's file says of the whole."""

    output: str = setting("", "folder of everything that the study makes", required=True)
    seeds: list[int] = setting([], "seeds of every case that names none of its own", required=True, least=0)
    jobs: int = setting(1, "steps that run at a time", least=1)
    threads: int | None = setting(None, "CPU threads of each step; the library's own choice if not given", least=1)
    launch: str | None = setting(None, "file for `accelerate launch`; chosen by the machine if not given")


@dataclass
class CaseSettings(Settings):
    """What a study's file says of one case, beside its steps and changes."""

    label: str = setting("", "name in the tables; that of the case if empty")
    like: str = setting("", "case whose steps it takes, changed by `set`")
    data: list[str] = setting([], "data sets that it is run on; all if empty")
    seeds: list[int] = setting([], "its own seeds; the study's if empty", least=0)


@dataclass
class StepSettings(Settings):
    """What a study's file says of one step, beside the settings that it changes."""

    name: str = setting("", "what it is called; its stage if empty")
    config: str = setting("", "file of settings; empty: none")
    once: bool = setting(False, "run once for all seeds of the case")


@dataclass
class SearchSettings(Settings):
    """What a study's file says of a search over settings, beside what is searched."""

    case: str = setting("", "case whose settings are searched", required=True)
    step: str = setting("", "its step whose settings they are", required=True)
    measure: str = setting("", "its step whose predictions of validation rows are measured", required=True)
    metric: str = setting("NDCG@10", "what is to be highest: HR@K, NDCG@K or MRR@K", required=True)
    level: str = setting("item", "which reading of a hit", known=("item", "sid"))
    trials: int = setting(20, "settings to try", least=1)
    data: str = setting("", "data set to search on; the first if empty")
    seeds: list[int] = setting([], "seeds of each trial, whose mean counts; the study's first if empty", least=0)
    seed: int = setting(0, "seed of the search itself", least=0)
    name: str = setting("best", "case that the winner becomes", required=True)


@dataclass(frozen=True)
class StudyStep:
    """One step, as the file says it.

    Attributes:
        name: What it is called.
        spec: Its stage.
        kind: Class of the stage's settings.
        config: File of settings, which may hold placeholders; "" for none.
        values: Settings that it changes, which may hold placeholders.
        once: Whether it is run once for all seeds.
        where: File and key, for messages.
        places: Setting that it changes to file and key, for messages.
    """

    name: str
    spec: StageSpec
    kind: type[StageConfig]
    config: str
    values: Mapping[str, Any]
    once: bool
    where: str
    places: Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: What it is called.
        label: What tables call it.
        data: Data sets that it is run on.
        seeds: Its seeds.
        steps: Its own steps, in order.
        base: Case whose steps it shares beside its own; None where it has all.
        where: File and key, for messages.
        own_seeds: Whether it names its seeds itself.
    """

    name: str
    label: str
    data: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: tuple[StudyStep, ...]
    base: str | None
    where: str
    own_seeds: bool


@dataclass(frozen=True)
class Study:
    """A study's file.

    Attributes:
        file: The file.
        settings: What it says of the whole.
        data: Data set to the steps that prepare it.
        cases: The cases, by name.
        compare: Table to its settings; `of` names the step whose predictions it compares.
        log: Settings of the experiment log; None for no log.
        search: The search; None for none.
        over: Setting to the values that are searched, as the file says them.
    """

    file: Path
    settings: StudySettings
    data: Mapping[str, tuple[StudyStep, ...]]
    cases: Mapping[str, Case]
    compare: Mapping[str, Mapping[str, Any]]
    log: Mapping[str, Any] | None
    search: SearchSettings | None
    over: Mapping[str, Any]

    @property
    def place(self) -> Path:
        """The folder of everything that it makes."""
        return Path(self.settings.output)
