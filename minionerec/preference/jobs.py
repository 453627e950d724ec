"""The runs of a study: which there are, what each reads and writes, and whether they stand.

OUTPUT/worlds/WORLD-SEED                       synthetic data, one artefact each
OUTPUT/runs/WORLD/UNIT/seed-SEED/MODEL         one artefact a run
OUTPUT/runs/WORLD/UNIT/seed-SEED/against       how each of these models does against the floors
OUTPUT/reports                                 the study: a page for each model
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from minionerec.core.artefacts import file_sha256
from minionerec.core.stage import Stage
from minionerec.preference.config import FLOORS, PreferenceConfig, WorldConfig

RUN, AGAINST = "preference_run", "preference_against"
OWN = "data"


class Job(NamedTuple):
    """One run: a model on one split of one data set."""

    world: str
    unit: str
    seed: int
    model: str
    data: str

    def place(self, output: str | Path) -> Path:
        """Directory of the run."""
        return self.group(output) / self.model

    def group(self, output: str | Path) -> Path:
        """Directory of the runs with the same test rows."""
        return Path(output) / "runs" / self.world / self.unit / f"seed-{self.seed}"


def study_worlds(config: PreferenceConfig) -> list[WorldConfig]:
    """The synthetic data sets of a study; none where there are files of comparisons."""
    if config.comparisons:
        return []
    return [_world(config, number, seed) for number, seed in product(range(len(config.worlds)), config.seeds)]


def _world(config: PreferenceConfig, number: int, seed: int) -> WorldConfig:
    name = config.worlds[number]
    return WorldConfig(
        output=str(Path(config.output) / "worlds" / f"{name}-{seed}"),
        restart=config.restart,
        world=name,
        items=config.items if number == 0 else config.control_items or config.items,
        width=config.width,
        halo=config.halo,
        nonlinear=config.nonlinear,
        lapse=config.lapse,
        seed=seed,
    )


def study_jobs(config: PreferenceConfig) -> list[Job]:
    """All runs of a study, in order."""
    return list(_own_jobs(config) if config.comparisons else _synthetic_jobs(config))


def _with_floors(models: Sequence[str]) -> list[str]:
    return [*FLOORS, *(model for model in models if model not in FLOORS)]


def _own_jobs(config: PreferenceConfig) -> Iterator[Job]:
    for unit, seed, model in product(config.splits, config.seeds, _with_floors(config.models)):
        yield Job(OWN, unit, seed, model, "")


def _synthetic_jobs(config: PreferenceConfig) -> Iterator[Job]:
    for number, world in enumerate(config.worlds):
        first = number == 0
        models = _with_floors(config.models if first else config.control_models or config.models)
        units = config.splits if first or world == "no_halo" else config.splits[:1]
        for seed in config.seeds:
            data = _world(config, number, seed).output
            for unit, model in product(units, models):
                yield Job(world, unit, seed, model, data)


def job_stage(config: PreferenceConfig, job: Job) -> Stage:
    """The stage that is one run."""
    return Stage(
        config,
        kind=RUN,
        output=job.place(config.output),
        inputs={"world": Path(job.data)} if job.data else config.inputs(),
        settings={**config.settings(), "unit": job.unit, "seed": job.seed, "model": job.model},
    )


def standing(stage: Stage, say: bool = True) -> dict[str, Any] | None:
    """The manifest of one of the many artefacts of a study where it is up to date, else None.

    Args:
        stage: Makes the artefact.
        say: Whether to log which file was changed by hand. Of those that are up to date nothing is said.

    Raises:
        ArtefactError: If an input was changed since it was written.
    """
    manifest = stage.current(say=False)
    if manifest is None and say:
        stage.current()
    return manifest


def job_stands(config: PreferenceConfig, job: Job, say: bool = True) -> bool:
    """Whether a run need not be made; `say` as for `standing`."""
    stage = job_stage(config, job)
    return all(path.exists() for path in stage.inputs.values()) and standing(stage, say) is not None


def study_stage(config: PreferenceConfig) -> Stage:
    """The stage that is the whole study; it writes the reports, in which there are plots where they can be drawn."""
    settings = {**config.deciding(), "plots": find_spec("matplotlib") is not None}
    return Stage(config, output=Path(config.output) / "reports", settings=settings)


def study_stands(config: PreferenceConfig, say: bool = True) -> bool:
    """Whether every run stands and the reports, and the document if one is asked for, are of these runs.

    Args:
        config: The settings.
        say: As for `standing`.

    Raises:
        ArtefactError: If an input is missing or was changed since it was written.
    """
    stage = study_stage(config)
    if not all(path.exists() for path in stage.inputs.values()):
        return False
    manifest = standing(stage, say)
    return (
        manifest is not None
        and not stage.partial.exists()
        and manifest["counts"].get("document") == document_sha256(config)
        and all(standing(Stage(world), say) is not None for world in study_worlds(config))
        and all(job_stands(config, job, say) for job in study_jobs(config))
    )


def document_sha256(config: PreferenceConfig) -> str:
    """SHA-256 of the document that shows all runs; empty where none is asked for, or it is not there."""
    there = config.document and Path(config.document).is_file()
    return file_sha256(config.document) if there else ""
