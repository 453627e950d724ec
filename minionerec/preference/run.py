"""The runs of the preference stage: each fits and measures one model, and is an artefact of its own."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.log import get_logger, progress
from minionerec.core.stage import Work
from minionerec.preference.against import compare_with_floors
from minionerec.preference.config import PreferenceConfig
from minionerec.preference.data import Comparisons, read_comparisons
from minionerec.preference.files import require_files
from minionerec.preference.fit import fit_model, is_network, save_model
from minionerec.preference.jobs import Job, job_stage, job_stands, study_jobs, study_worlds
from minionerec.preference.model import PreferenceModel
from minionerec.preference.results import CONFIG, FOLDS, PREDICTIONS, RunResults
from minionerec.preference.scoring import score_run
from minionerec.preference.splits import split_rows
from minionerec.preference.synthetic import COMPARISONS, FEATURES, write_world

logger = get_logger(__name__)


@dataclass(frozen=True)
class PreferenceResult:
    """What `run_preference` made.

    Attributes:
        output: Where everything lies.
        jobs: All runs, in order.
        done: How many of them were run now; the others stood already.
    """

    output: Path
    jobs: list[Job]
    done: int


def run_preference(config: PreferenceConfig, on_run: Callable[[], object] | None = None) -> PreferenceResult:
    """Fit and measure every model on every split, seed and data set; runs that stand already are kept.

    Args:
        config: The settings.
        on_run: Called in this process whenever a run has been finished.

    Raises:
        DataError: If the data or a split of them do not serve.
        ConfigError: If training fails, or another process is at work on one of the runs.
        ArtefactError: If an output cannot be written.
    """
    check_files(config)
    for world in study_worlds(config):
        write_world(world)
    jobs = study_jobs(config)
    waiting = [job for job in jobs if not job_stands(config, job)]
    logger.info("%d runs, of which %d stand already.", len(jobs), len(jobs) - len(waiting))
    # The first world before the controls, and the longest runs first, so that no process ends up alone with one.
    first = (jobs[0].world, jobs[0].unit)
    order = sorted(waiting, key=lambda job: (job.world != first[0], job.model != "mlp_concat", job.unit != first[1]))
    begin = time.perf_counter()
    alone = config.workers == 1 or len(waiting) < 2
    for _ in _in_this_process(config, waiting) if alone else _in_several_processes(config, order):
        if on_run is not None:
            on_run()
    if waiting:  # said and not written: times differ between runs
        logger.info("%d runs took %.1f minutes.", len(waiting), (time.perf_counter() - begin) / 60)
    for group in dict.fromkeys((job.world, job.unit, job.seed) for job in jobs):
        compare_with_floors(config, [job for job in jobs if job[:3] == group])
    return PreferenceResult(Path(config.output), jobs, len(waiting))


def check_files(config: PreferenceConfig) -> None:
    """Check, before anything is locked, that the files of comparisons and features are there, if any are asked for.

    Raises:
        DataError: Naming the one that is not.
    """
    if config.comparisons:
        inputs = config.inputs()
        require_files(inputs["comparisons"], inputs["features"])


def _in_this_process(config: PreferenceConfig, jobs: Sequence[Job]) -> Iterator[None]:
    for job in progress(jobs, "runs", unit="run"):
        fit_and_measure(config, job)
        yield


def _in_several_processes(config: PreferenceConfig, jobs: Sequence[Job]) -> Iterator[None]:
    with ProcessPoolExecutor(config.workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(fit_and_measure, config, job) for job in jobs]
        try:
            for future in progress(futures, "runs", unit="run"):
                future.result()
                yield
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def fit_and_measure(config: PreferenceConfig, job: Job) -> None:
    """Fit and measure one model, on one thread, and write its artefact."""
    from threadpoolctl import threadpool_limits

    if is_network(job.model):
        import torch

        torch.set_num_threads(1)
    with threadpool_limits(1), job_stage(config, job).work() as work:
        with work.phase("load"):
            data = _read(config, work.stage.inputs)
        folds = split_rows(data, job.unit, job.seed)
        with work.phase("train"):
            fitted = fit_model(config, job.model, data, folds, job.seed)
        with work.phase("measure"):
            results, table = score_run(config, job, data, folds, fitted)
        _write(work, fitted, results, table, folds)


def _read(config: PreferenceConfig, inputs: Mapping[str, Path]) -> Comparisons:
    if "world" in inputs:
        comparisons, features = inputs["world"] / COMPARISONS, inputs["world"] / FEATURES
    else:
        comparisons, features = inputs["comparisons"], inputs["features"]
    return read_comparisons(comparisons, features, config.targets, config.label_map)


def _write(work: Work, fitted: PreferenceModel, results: RunResults, table: pd.DataFrame, folds: np.ndarray) -> None:
    about = {name: getattr(results, name) for name in ("model", "settings", "users", "targets", "seed")}
    with work.finish(seed=results.seed, counts=results.counts) as place:
        results.save(place)
        table.to_csv(place / PREDICTIONS, index=False, float_format="%.9g")
        pd.DataFrame({"fold": folds}).to_parquet(place / FOLDS)
        _write_yaml(place / CONFIG, work.stage.settings)
        save_model(place, fitted, about)


def _write_yaml(path: Path, settings: dict[str, Any]) -> None:
    import yaml

    path.write_text(yaml.safe_dump(settings, sort_keys=True), encoding="utf-8")
