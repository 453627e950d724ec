"""The stage `train-preference`: models and baselines of one data set, one split and one seed, fitted and measured.

OUTPUT/folds.parquet                        the fold of each row
OUTPUT/data                                 synthetic data and their truth, where no files were given
OUTPUT/MODEL/results.json                   results
OUTPUT/MODEL/predictions.csv                one row per test row
OUTPUT/MODEL/model.safetensors, model.json  the model, see `minionerec.contrib.preference.models.load_model`
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from minionerec.contrib.preference.config import BASELINES, COMPAT, PreferenceConfig
from minionerec.contrib.preference.data import (
    LEAK_WARNING,
    TEST,
    TRAIN,
    VALID,
    Comparisons,
    audit_split,
    fold_of_rows,
    read_comparisons,
)
from minionerec.contrib.preference.measures import (
    against_truth,
    by_target,
    correct,
    cross_entropy,
    pair_interval,
    summary,
)
from minionerec.contrib.preference.models import (
    Lookup,
    PreferenceModel,
    agreeing_user,
    fit_bradley_terry,
    majority,
    save_model,
    train_mlp,
)
from minionerec.contrib.preference.synthetic import COMPARISONS, FEATURES, make_population, write_population
from minionerec.core.artefacts import package_versions
from minionerec.core.log import get_logger
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import StageResult

logger = get_logger(__name__)

RESULTS, PREDICTIONS, DATA = "results.json", "predictions.csv", "data"


def run_preference(config: PreferenceConfig) -> StageResult:
    """Fit and measure the models and the baselines on one split with one seed; a finished model survives a kill.

    Raises:
        DataError: If the data or the split cannot be used.
        ConfigError: If training fails, or another process is writing the output.
        ArtefactError: If an input was changed since it was written, or the output cannot be written.
    """
    stage = Stage(config)
    if stage.current() is not None:
        return _result(stage.output, True)
    with stage.work() as work, _one_thread():
        with work.phase("load"):
            data = _read(stage.config, work.folder)
            work.inputs_read()
        folds = fold_of_rows(data, config.split, config.seed)
        hits: dict[str, pd.DataFrame] = {}
        for name in dict.fromkeys((*BASELINES, *config.models)):
            folder = work.folder / name
            if not (folder / RESULTS).is_file():
                shutil.rmtree(folder, ignore_errors=True)
                logger.info("%s: fitting.", name)
                with work.phase("train"):
                    fitted = fit_model(config, name, data, folds)
                with work.phase("measure"):
                    _measure(config, name, data, folds, fitted, work.folder, hits)
            hits[name] = pd.read_csv(folder / PREDICTIONS)
        with work.finish(seed=config.seed, counts=dict(data.counts)) as output:
            for path in work.folder.iterdir():
                if path.is_dir():
                    shutil.copytree(path, output / path.name)
            pd.DataFrame({"fold": folds}).to_parquet(output / "folds.parquet")
    return _result(stage.output, False)


def _result(output: Path, up_to_date: bool) -> StageResult:
    """The result; its lines are each model's accuracy and cross-entropy on test."""
    models = (json.loads(file.read_text(encoding="utf-8")) for file in sorted(output.glob(f"*/{RESULTS}")))
    ranked = sorted((of["overall"]["ce"], of["model"], of["overall"]["accuracy"]) for of in models)
    lines = [f"{model}: accuracy {accuracy:.4f}, cross-entropy {ce:.4f} nats" for ce, model, accuracy in ranked]
    return StageResult(output, [*lines, f"preference: {output}"], up_to_date=up_to_date)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread, so that sums have one order and results do not depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def _read(config: PreferenceConfig, folder: Path) -> Comparisons:
    comparisons, features = Path(config.comparisons), Path(config.features)
    if not config.comparisons:
        data_folder = folder / DATA
        shutil.rmtree(data_folder, ignore_errors=True)
        data_folder.mkdir()
        write_population(data_folder, *make_population(config.population, config.items, config.width, config.seed))
        comparisons, features = data_folder / COMPARISONS, data_folder / FEATURES
    return read_comparisons(comparisons, features, config.targets, config.label_map)


def fit_model(config: PreferenceConfig, name: str, data: Comparisons, folds: np.ndarray) -> PreferenceModel:
    """Fit one of `minionerec.contrib.preference.config.MODELS`."""
    if name == "majority":
        return Lookup(majority(data, folds))
    if name == "agreeing_user":
        return Lookup(agreeing_user(data, folds))
    if name.startswith("bt_"):
        return fit_bradley_terry(data, folds, name, config.position_bias)
    return train_mlp(
        data,
        folds,
        siamese=name == "mlp_siamese",
        seed=config.seed,
        published=config.compat == COMPAT and name == "mlp_concat",
        activation=config.activation,
        scale=config.scale,
        embedding_std=config.embedding_std,
        position_bias=config.position_bias,
        max_epochs=config.max_epochs,
    )


def _measure(
    config: PreferenceConfig,
    name: str,
    data: Comparisons,
    folds: np.ndarray,
    fitted: PreferenceModel,
    folder: Path,
    before: dict[str, pd.DataFrame],
) -> None:
    """Write predictions, the model and, last, the results of one model."""
    model_folder = folder / name
    model_folder.mkdir()
    valid, test = np.flatnonzero(folds == VALID), np.flatnonzero(folds == TEST)
    known = np.isin(data.user, data.user[folds == TRAIN])
    user = np.where(known, data.user, -1)
    answers, p = data.take(test), fitted.predict(data, test, user[test])
    columns = {"row": test, "comparison_id": [data.ids[c] for c in answers.comparison]}
    columns |= {"user_id": [data.users[u] for u in answers.user], "pair": answers.pair}
    columns |= {"target": [data.targets[t] for t in answers.target], "y": answers.y.astype(int), "p": p}
    swapped = fitted.predict_swapped(data, test, user[test])
    columns |= {} if swapped is None else {"p_swapped": swapped}
    late = fitted.last.predict(data, test, user[test]) if fitted.last is not None else None
    columns |= {} if late is None else {"p_last": late}
    pd.DataFrame(columns).to_csv(model_folder / PREDICTIONS, index=False, float_format="%.9g")
    save_model(model_folder, fitted, list(data.users), list(data.targets))

    def overall(guess: np.ndarray, other: np.ndarray | None) -> dict[str, Any]:
        measures = summary(answers, guess, other, config.seed, config.resamples)
        if not config.comparisons:
            utilities = fitted.utilities(data.features) if guess is p else None
            measures["truth"] = against_truth(folder / DATA, data, folds, test, guess, utilities)
        return measures

    results = {
        "model": name,
        "seed": config.seed,
        "split": _split_record(config, data, folds),
        "counts": dict(data.counts),
        "users": list(data.users),
        "targets": list(data.targets),
        "unseen_user_rows": int((user[test] < 0).sum()),
        "epochs_counted_from": 0,
        "best_epoch": fitted.best_epoch,
        "last_epoch": fitted.last_epoch,
        "parameters": fitted.parameters,
        "settings": dict(fitted.settings),
        "chosen": dict(fitted.chosen),
        "history": dict(fitted.history),
        "validation": by_target(data.take(valid), fitted.predict(data, valid, user[valid])),
        "test": by_target(answers, p),
        "overall": overall(p, swapped),
        "last": None if late is None else overall(late, None),
        "against": _against(before, answers, p, config),
        "shots": few_shot(fitted, data, test, config.shots, config.seed) if config.split == "user" else None,
        "versions": package_versions(),
    }
    (model_folder / RESULTS).write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _split_record(config: PreferenceConfig, data: Comparisons, folds: np.ndarray) -> dict[str, Any]:
    """The split: unit, rows of each fold, SHA-256 of the assignment, audit and warning."""
    names = {"train": TRAIN, "valid": VALID, "test": TEST}
    return {
        "unit": config.split,
        "sha256": hashlib.sha256(np.ascontiguousarray(folds, dtype=np.int8).tobytes()).hexdigest(),
        "rows": {name: int((folds == fold).sum()) for name, fold in names.items()},
        "audit": audit_split(data, folds, config.split),
        "warning": LEAK_WARNING if config.split == "row" else None,
    }


def _against(
    before: dict[str, pd.DataFrame], answers: Comparisons, p: np.ndarray, config: PreferenceConfig
) -> dict[str, dict[str, dict[str, float]]]:
    """Differences from each baseline that was fitted before, on the same rows, with pairs resampled together."""
    differences = {}
    for name in (name for name in BASELINES if name in before):
        q = before[name]["p"].to_numpy()
        differences[name] = {
            key: pair_interval(of(answers.y, p) - of(answers.y, q), answers.pair, config.seed, config.resamples)
            for key, of in (("accuracy", correct), ("ce", cross_entropy))
        }
    return differences


def few_shot(
    fitted: PreferenceModel, data: Comparisons, test: np.ndarray, shots: list[int], seed: int
) -> dict[str, dict[str, float]]:
    """Accuracy and CE on held-out users after k of their comparisons, all k measured on the same rows.

    Each user's comparisons are shuffled; the first max(shots) serve to adapt, the rest to measure. Users without a rest
    are left out. A model that does not adapt has k = 0 only; a lookup, which knows no unseen user, has no results.

    Returns:
        Each k of `shots`, as text, to accuracy, ce and n (rows of `test`, int64 (r,), those of the held-out users).
    """
    if isinstance(fitted, Lookup) or not shots:
        return {}
    rng = np.random.default_rng([seed, 13])
    measured: dict[int, list[pd.DataFrame]] = {k: [] for k in shots}
    for user in np.unique(data.user[test]):
        rows = test[data.user[test] == user]
        order = rng.permutation(np.unique(data.comparison[rows]))
        rest = rows[np.isin(data.comparison[rows], order[max(shots) :])]
        for k in shots:
            model = fitted.adapt(data, rows[np.isin(data.comparison[rows], order[:k])]) if k else fitted
            if model is not None and len(rest):
                y, p = data.y[rest], model.predict(data, rest, np.full(len(rest), -1))
                measured[k].append(pd.DataFrame({"accuracy": correct(y, p), "ce": cross_entropy(y, p)}))
    tables = {str(k): pd.concat(parts) for k, parts in measured.items() if parts}
    return {
        k: {"accuracy": float(table["accuracy"].mean()), "ce": float(table["ce"].mean()), "n": len(table)}
        for k, table in tables.items()
    }
