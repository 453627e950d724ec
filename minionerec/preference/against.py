"""Each model against each floor, on the same test rows with the same pairs drawn."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from minionerec.core.artefacts import fingerprint, read_json
from minionerec.core.errors import ConfigError
from minionerec.core.stage import Stage
from minionerec.preference.config import FLOORS, PreferenceConfig
from minionerec.preference.jobs import AGAINST, Job, standing
from minionerec.preference.measures import correct, cross_entropy, pair_interval
from minionerec.preference.results import PREDICTIONS

_FILE = "against.json"


def compare_with_floors(config: PreferenceConfig, jobs: Sequence[Job]) -> None:
    """Hold each model against each floor, with pairs resampled together, and write it as an artefact.

    Args:
        config: The stage's settings.
        jobs: The runs of one split of one data set with one seed.

    Raises:
        ConfigError: If two runs have other test rows.
    """
    group, seed = jobs[0].group(config.output), jobs[0].seed
    stage = Stage(
        config,
        kind=AGAINST,
        output=group / "against",
        inputs={job.model: job.place(config.output) for job in jobs},
        settings={"seed": seed, "resamples": config.resamples},
    )
    if standing(stage) is not None:
        return
    with stage.work() as work:
        tables = {name: pd.read_csv(run / PREDICTIONS) for name, run in stage.inputs.items()}
        against: dict[str, dict[str, Any]] = {}
        for model, table in tables.items():
            for floor in (name for name in FLOORS if name != model):
                if not (tables[floor]["row"] == table["row"]).all():
                    raise ConfigError(f"{group}: {model} and {floor} have other test rows. Remove them and run again.")
                against.setdefault(model, {})[floor] = _gaps(table, tables[floor], seed, config.resamples)
        runs = {name: fingerprint(run) for name, run in stage.inputs.items()}
        with work.finish(seed=seed) as place:
            content = {"runs": runs, "against": against}
            (place / _FILE).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _gaps(table: pd.DataFrame, other: pd.DataFrame, seed: int, resamples: int) -> dict[str, dict[str, float]]:
    y, pair = table["y"].to_numpy(float), table["pair"].to_numpy()
    p, q = table["p"].to_numpy(), other["p"].to_numpy()
    return {
        "accuracy": pair_interval(correct(y, p) - correct(y, q), pair, seed, resamples),
        "ce": pair_interval(cross_entropy(y, p) - cross_entropy(y, q), pair, seed, resamples),
    }


def read_against(group: Path, model: str) -> dict[str, dict[str, dict[str, float]]]:
    """How a model does against each floor: floor to "accuracy" and "ce" to mean, low, high and p.

    Args:
        group: Directory of the runs, see `minionerec.preference.jobs.Job.group`.
        model: Its name.

    Raises:
        ArtefactError: If they were not compared.
    """
    found: dict[str, dict[str, dict[str, float]]] = read_json(group / "against" / _FILE)["against"][model]
    return found
