"""The stage that fits and measures preference models: one artefact per data set, split, seed and model, resumable."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from minionerec.core.artefacts import (
    fingerprint,
    is_current,
    package_versions,
    read_json,
    write_artefact,
    write_text_atomic,
)
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger, progress
from minionerec.preference.config import COMPAT, FLOORS, PreferenceConfig
from minionerec.preference.data import Comparisons, read_comparisons
from minionerec.preference.floors import agreeing_user, majority
from minionerec.preference.linear import LinearModel, fit_bradley_terry
from minionerec.preference.measures import (
    agreement,
    by_target,
    correct,
    cross_entropy,
    pair_interval,
    short_ids,
    summary,
    user_table,
)
from minionerec.preference.splits import LEAK_WARNING, TEST, TRAIN, VALID, audit_split, fold_hash, split_rows
from minionerec.preference.synthetic import probability, sibling_probability, write_world

logger = get_logger(__name__)
RESULTS, PREDICTIONS, AGAINST = "results.json", "predictions.csv", "against.json"
_MLP = ("activation", "dropout", "scale", "embedding_std", "learning_rate", "weight_decay", "batch_size", "full_batch",
        "monitor", "max_epochs", "patience", "min_delta", "position_bias")  # fmt: skip


class Job(NamedTuple):
    """One run: a model on one split of one data set."""

    world: str
    unit: str
    seed: int
    model: str
    data: str

    def place(self, output: str | Path) -> Path:
        """Directory of the run."""
        return Path(output) / "runs" / self.world / self.unit / f"seed-{self.seed}" / self.model


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


class Lookup:
    """A floor: probabilities made for every row of the data at once."""

    def __init__(self, p: np.ndarray) -> None:
        self.p = p


def run_preference(config: PreferenceConfig) -> PreferenceResult:
    """Fit and measure every model on every split, seed and data set; runs that stand already are kept.

    Raises:
        DataError: If the data or a split of them do not serve.
        ConfigError: If training fails.
        ArtefactError: If an output cannot be written.
    """
    jobs = list(_jobs(config))
    waiting = [job for job in jobs if not _stands(config, job)]
    logger.info("%d runs, of which %d stand already.", len(jobs), len(jobs) - len(waiting))
    if config.workers == 1 or len(waiting) < 2:
        for job in progress(waiting, "runs", unit="run"):
            _work(config, job)
    else:
        # The first world before the controls, and the longest runs first, so that no process ends up alone with one.
        waiting.sort(key=lambda job: (job.world != jobs[0].world, job.model != "mlp_concat", job.unit != jobs[0].unit))
        with ProcessPoolExecutor(config.workers, mp_context=get_context("spawn")) as pool:
            futures = [pool.submit(_work, config, job) for job in waiting]
            try:
                for future in progress(futures, "runs", unit="run"):
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    for group in dict.fromkeys((job.world, job.unit, job.seed) for job in jobs):
        _compare(config, [job for job in jobs if job[:3] == group])
    logger.info("%s: up to date." if not waiting else "%s: finished.", config.output)
    return PreferenceResult(Path(config.output), jobs, len(waiting))


def _jobs(config: PreferenceConfig) -> Iterator[Job]:
    def models(chosen: list[str]) -> list[str]:
        return [*FLOORS, *(model for model in chosen if model not in FLOORS)]

    if config.comparisons:
        for unit in config.splits:
            for seed in config.seeds:
                for model in models(config.models):
                    yield Job("data", unit, seed, model, "")
        return
    for number, world in enumerate(config.worlds):
        items = config.items if number == 0 else config.control_items or config.items
        chosen = config.models if number == 0 else config.control_models or config.models
        for seed in config.seeds:
            settings = {"items": items, "width": config.width, "halo": config.halo, "nonlinear": config.nonlinear,
                        "lapse": config.lapse}  # fmt: skip
            data = write_world(Path(config.output) / "worlds" / f"{world}-{seed}", world, settings, seed)
            for unit in config.splits if number == 0 or world == "no_halo" else config.splits[:1]:
                for model in models(chosen):
                    yield Job(world, unit, seed, model, str(data))


def _inputs(config: PreferenceConfig, job: Job) -> dict[str, Path]:
    if not job.data:
        return {"comparisons": Path(config.comparisons), "features": Path(config.features)}
    names = {"comparisons": "comparisons.parquet", "features": "features.npz", "truth": "truth.parquet"}
    return {name: Path(job.data) / file for name, file in names.items()} | {"utility": Path(job.data) / "utility.npz"}


def _settings(config: PreferenceConfig, job: Job) -> dict[str, Any]:
    return {**config.settings(), "unit": job.unit, "seed": job.seed, "model": job.model}


def _stands(config: PreferenceConfig, job: Job) -> bool:
    inputs = _inputs(config, job)
    if any(not path.is_file() for path in inputs.values()):
        return False
    return is_current(job.place(config.output), "preference_run", _settings(config, job), inputs)


def mlp_settings(config: PreferenceConfig, model: str) -> dict[str, Any]:
    """Arguments of `train_mlp`: those of the configuration, or the published report's for `mlp_concat` under compat."""
    chosen = {name: getattr(config, name) for name in _MLP}
    if config.compat == COMPAT and model == "mlp_concat":
        chosen |= {"scale": "none", "embedding_std": 1.0, "full_batch": True, "monitor": "macro_target"}
    return {**chosen, "siamese": model == "mlp_siamese"}


def fit_model(config: PreferenceConfig, model: str, data: Comparisons, folds: np.ndarray, seed: int) -> Any:
    """Fit one model by name; see `minionerec.preference.config.MODELS`."""
    if model == "majority":
        return Lookup(majority(data, folds))
    if model == "agreeing_user":
        return Lookup(agreeing_user(data, folds))
    if model.startswith("bt_"):
        return fit_bradley_terry(data, folds, model, config.position_bias)
    from minionerec.preference.mlp import train_mlp

    return train_mlp(data, folds, seed=seed, **mlp_settings(config, model))


def _predict(fitted: Any, data: Comparisons, rows: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, Any]:
    if isinstance(fitted, Lookup):
        return fitted.p[rows], None
    part = data.take(rows)
    user = np.where(known[part.user], part.user, -1)
    return fitted.predict(part, user), fitted.predict(part, user, swap=True)


def _work(config: PreferenceConfig, job: Job) -> None:
    """Fit and measure one model, on one thread, and write its artefact."""
    from threadpoolctl import threadpool_limits

    if job.model.startswith("mlp_"):
        import torch

        torch.set_num_threads(1)
    clock, cpu = time.perf_counter(), time.process_time()
    with threadpool_limits(1):
        _fit_and_write(config, job)
    spent = {"wall_s": round(time.perf_counter() - clock, 2), "cpu_s": round(time.process_time() - cpu, 2)}
    place = job.place(config.output).relative_to(config.output)
    write_text_atomic(Path(config.output) / "times" / f"{'_'.join(place.parts[1:])}.json", json.dumps(spent))


def _fit_and_write(config: PreferenceConfig, job: Job) -> None:
    inputs = _inputs(config, job)
    data = read_comparisons(inputs["comparisons"], inputs["features"], config.targets, config.answers)
    folds = split_rows(data, job.unit, job.seed)
    audit = audit_split(data, folds, job.unit)
    fitted = fit_model(config, job.model, data, folds, job.seed)
    known = np.isin(np.arange(len(data.users)), data.user[folds == TRAIN])
    valid, test = np.flatnonzero(folds == VALID), np.flatnonzero(folds == TEST)
    p, swapped = _predict(fitted, data, test, known)
    p_valid, _ = _predict(fitted, data, valid, known)
    part = data.take(test)
    hit, ce = correct(part.y, p), cross_entropy(part.y, p)
    total = np.bincount(data.user[np.unique(data.comparison, return_index=True)[1]], minlength=len(data.users))
    low = np.where(data.a < data.b, data.y, 1 - data.y)
    share, n = agreement(low, data.pair * len(data.targets) + data.target, data.user, len(data.users))
    arrays = {} if isinstance(fitted, Lookup) else fitted.arrays()
    results: dict[str, Any] = {
        "model": job.model,
        "seed": job.seed,
        "settings": mlp_settings(config, job.model) if job.model.startswith("mlp_") else {},
        "split": {
            "unit": job.unit,
            "sha256": fold_hash(folds),
            "rows": {"train": int((folds == TRAIN).sum()), "valid": len(valid), "test": len(test)},
            "audit": audit,
            "warning": LEAK_WARNING if job.unit == "row" else None,
        },
        "counts": data.counts,
        "users": list(data.users),
        "targets": list(data.targets),
        "unseen_user_rows": int((~known[part.user]).sum()),
        "best_epoch": getattr(fitted, "best_epoch", None),
        "last_epoch": getattr(fitted, "last_epoch", None),
        "epochs_counted_from": 0,
        "parameters": _parameters(fitted),
        "chosen": getattr(fitted, "chosen", {}),
        "validation": by_target(correct(data.y[valid], p_valid), cross_entropy(data.y[valid], p_valid),
                                data.target[valid], data.user[valid], data.targets, data.users),
        "test": by_target(hit, ce, part.target, part.user, data.targets, data.users),
        "overall": summary(part.y, p, part.target, part.pair, swapped, job.seed, config.resamples),
        "user_table": user_table(hit, part.target, part.user, total, data.targets, data.users, config.min_user_rows),
        "agreement": {"user": short_ids(data.users), "n": n.tolist(),
                      "share": [[None if np.isnan(v) else float(v) for v in row] for row in share]},
        "history": getattr(fitted, "history", {}),
        "versions": package_versions(),
    }  # fmt: skip
    table = pd.DataFrame({
        "row": test, "comparison_id": [data.ids[c] for c in part.comparison],
        "user_id": [data.users[u] for u in part.user], "pair": part.pair,
        "target": [data.targets[t] for t in part.target], "y": part.y.astype(int), "p": p,
    })  # fmt: skip
    if swapped is not None:
        table["p_swapped"] = swapped
    if job.model == "mlp_concat":
        table["p_last"] = fitted.at_last_epoch().predict(part, np.where(known[part.user], part.user, -1))
        last = table["p_last"].to_numpy()
        results["last"] = summary(part.y, last, part.target, part.pair, None, job.seed, config.resamples)
    if job.unit == "user":
        results["shots"] = few_shot(fitted, data, test, config.shots, job.seed)
    if job.data:
        results["truth"] = score_against_truth(Path(job.data), data, folds, table, fitted)
    settings = _settings(config, job)
    with write_artefact(
        job.place(config.output), "preference_run", config=settings, inputs=inputs, seed=job.seed, counts=data.counts
    ) as path:
        (path / RESULTS).write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        table.to_csv(path / PREDICTIONS, index=False, float_format="%.9g")
        pd.DataFrame({"fold": folds}).to_parquet(path / "folds.parquet")
        (path / "summary.txt").write_text(_summary_text(results), encoding="utf-8")
        _write_yaml(path / "config.yaml", settings)
        if arrays:
            from safetensors.numpy import save_file

            save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, path / "model.safetensors")
            about = {name: results[name] for name in ("model", "settings", "users", "targets", "seed")}
            about["basis_penalty"] = getattr(fitted, "basis_penalty", None)
            (path / "model.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _write_yaml(path: Path, settings: dict[str, Any]) -> None:
    import yaml

    path.write_text(yaml.safe_dump(settings, sort_keys=True), encoding="utf-8")


def _parameters(fitted: Any) -> int:
    if isinstance(fitted, Lookup):
        return 0
    if isinstance(fitted, LinearModel):
        return fitted.weights[:-1].size + fitted.bias[:-1].size
    return sum(value.numel() for value in fitted.network.parameters())


def _summary_text(results: dict[str, Any]) -> str:
    lines = [f"Model: {results['model']}", f"Task: pairwise comparison, {', '.join(results['targets'])}",
             f"Split: {results['split']['unit']}", f"Seed: {results['seed']}"]  # fmt: skip
    if results["split"]["warning"]:
        lines.append(results["split"]["warning"])
    if results["best_epoch"] is not None:
        lines.append(f"Best epoch: {results['best_epoch']} of 0 to {results['last_epoch']}")
    for name in ("validation", "test"):
        cells = results[name].values()
        accuracy, ce = (np.mean([cell[key] for cell in cells]) for key in ("accuracy", "ce_loss"))
        lines.append(f"{name.capitalize()}: mean over targets of accuracy {accuracy:.4f}, CE {ce:.4f} nats")
    return "\n".join(lines) + "\n"


def few_shot(fitted: Any, data: Comparisons, test: np.ndarray, shots: list[int], seed: int) -> dict[str, Any]:
    """Accuracy and CE on held-out users after k of their comparisons, all k measured on the same rows.

    Each user's comparisons are shuffled; the first max(shots) serve to adapt, the rest to measure. Users without a rest
    are left out. Only the Bradley-Terry models with a shared part adapt; an MLP stands at k = 0.
    """
    rng = np.random.default_rng([seed, 13])
    adapts = isinstance(fitted, LinearModel) and bool(fitted.weights[-1].any())
    if isinstance(fitted, Lookup):
        return {}
    out = {}
    users = np.unique(data.user[test])
    order = {u: rng.permutation(np.unique(data.comparison[test][data.user[test] == u])) for u in users}
    for k in shots if adapts else [0]:
        ys, ps = [], []
        for comparisons in order.values():
            rest = test[np.isin(data.comparison[test], comparisons[max(shots) :])]
            if len(rest):
                known = test[np.isin(data.comparison[test], comparisons[:k])]
                model = fitted.adapt(data, known) if k else fitted
                ys.append(data.y[rest])
                ps.append(model.predict(data.take(rest), np.full(len(rest), -1)))
        if ys:
            y, p = np.concatenate(ys), np.concatenate(ps)
            accuracy, ce = float(correct(y, p).mean()), float(cross_entropy(y, p).mean())
            out[str(k)] = {"accuracy": accuracy, "ce": ce, "n": len(y)}
    return out


def score_against_truth(
    world: Path, data: Comparisons, folds: np.ndarray, table: pd.DataFrame, fitted: Any
) -> dict[str, Any]:
    """Hold predictions against the true probabilities, which no trainer has seen.

    Args:
        world: Directory of the synthetic world.
        data: All rows.
        folds: int8 (R,).
        table: Test rows with `row`, `y` and `p`, and `p_last` for a network's last epoch.
        fitted: The model, for the utilities it gives items; anything without `utilities` is fine.

    Returns:
        The ceiling: `expected` (mean of max(p, 1 - p)) and `realised` (accuracy of p on the drawn answers) Bayes
        accuracy and `ce`; `sibling_*`: the same for who also knows the user's answers in train on the same pair.
        The model: `recovery` (accuracy - 1/2) / (realised - 1/2), `regret` (CE - Bayes CE), `p_error` mean
        |p_hat - p|, `last` (accuracy, ce and p_error of the last epoch), `spearman` (mean over users shown and targets
        of the rank correlation of true and estimated utility) and `users` (each one's accuracy and ceiling).
    """
    from scipy.stats import spearmanr

    truth = pd.read_parquet(world / "truth.parquet")
    halo, lapse = float(truth["halo"].iloc[0]), float(truth["lapse"].iloc[0])
    shape = (len(data.ids), len(data.targets))
    place = {name: number for number, name in enumerate(data.ids)}
    column = {name: number for number, name in enumerate(data.targets)}
    margin, y = np.zeros(shape), np.full(shape, np.nan)
    margin[truth["comparison_id"].map(place), truth["target"].map(column)] = truth["margin"]
    known = np.zeros(shape, dtype=bool)
    y[data.comparison, data.target] = data.y
    known[data.comparison, data.target] = folds == TRAIN
    rows = table["row"].to_numpy()
    at = (data.comparison[rows], data.target[rows])
    p, sibling = probability(margin, lapse)[at], sibling_probability(margin, y, known, halo, lapse)[at]
    answers, guess = data.y[rows], table["p"].to_numpy()
    realised, ce = float(correct(answers, p).mean()), float(cross_entropy(answers, p).mean())
    hit = correct(answers, guess)
    scores: dict[str, Any] = {
        "expected": float(np.maximum(p, 1 - p).mean()),
        "realised": realised,
        "ce": ce,
        "sibling_expected": float(np.maximum(sibling, 1 - sibling).mean()),
        "sibling_realised": float(correct(answers, sibling).mean()),
        "sibling_ce": float(cross_entropy(answers, sibling).mean()),
        "recovery": float((hit.mean() - 0.5) / (realised - 0.5)) if realised != 0.5 else None,
        "regret": float(cross_entropy(answers, guess).mean()) - ce,
        "p_error": float(np.abs(guess - p).mean()),
        "spearman": None,
    }
    if "p_last" in table:
        last = table["p_last"].to_numpy()
        scores["last"] = {"accuracy": float(correct(answers, last).mean()),
                          "ce": float(cross_entropy(answers, last).mean()),
                          "p_error": float(np.abs(last - p).mean())}  # fmt: skip
    scores["users"] = []
    for user in np.unique(data.user[rows]):
        mine = data.user[rows] == user
        scores["users"].append({
            "user": data.users[user], "n": int(mine.sum()), "accuracy": float(hit[mine].mean()),
            "expected": float(np.maximum(p, 1 - p)[mine].mean()), "realised": float(correct(answers, p)[mine].mean()),
            "p_error": float(np.abs(guess - p)[mine].mean()),
        })  # fmt: skip
    utilities = fitted.utilities(data.features) if hasattr(fitted, "utilities") else None
    if utilities is not None:
        with np.load(world / "utility.npz") as arrays:
            true = arrays["utility"]
        big = [u for u in np.unique(data.user[rows]) if (data.user[rows] == u).sum() >= 10]
        cells = [(u, t) for u in big for t in range(shape[1]) if np.ptp(utilities[u, t]) > 0]
        number = [int(name.rsplit("-", 1)[1]) for name in data.users]
        if cells:
            scores["spearman"] = float(np.mean([spearmanr(utilities[u, t], true[number[u], t])[0] for u, t in cells]))
    return scores


def _compare(config: PreferenceConfig, jobs: list[Job]) -> None:
    """Hold each model against each floor on the same test rows, with pairs resampled together."""
    place = jobs[0].place(config.output).parent / AGAINST
    record = {"runs": {job.model: fingerprint(job.place(config.output)) for job in jobs}}
    if place.is_file() and read_json(place).get("runs") == record["runs"]:
        return
    tables = {job.model: pd.read_csv(job.place(config.output) / PREDICTIONS) for job in jobs}
    against: dict[str, Any] = {}
    for model, table in tables.items():
        for floor in (name for name in FLOORS if name != model):
            other = tables[floor]
            if not (other["row"] == table["row"]).all():
                raise ConfigError(
                    f"{place.parent}: {model} and {floor} have other test rows. Remove them and run again."
                )
            y, pair = table["y"].to_numpy(float), table["pair"].to_numpy()
            p, q = table["p"].to_numpy(), other["p"].to_numpy()
            against.setdefault(model, {})[floor] = {
                "accuracy": pair_interval(correct(y, p) - correct(y, q), pair, jobs[0].seed, config.resamples),
                "ce": pair_interval(cross_entropy(y, p) - cross_entropy(y, q), pair, jobs[0].seed, config.resamples),
            }
    write_text_atomic(place, json.dumps({**record, "against": against}, indent=1, sort_keys=True) + "\n")


def load_model(path: str | Path) -> tuple[Any, list[str], list[str]]:
    """A fitted model from its run directory, with its users and targets.

    Returns:
        `LinearModel` or `MlpModel` (in evaluation mode), user ids, target names. A person not among the users is user
        -1 of `predict`, and gets what is common to all.

    Raises:
        ArtefactError: If there is no such run, or the run is one of a floor without a model.
    """
    from safetensors.numpy import load_file

    from minionerec.core.artefacts import read_manifest

    path = Path(path)
    read_manifest(path, "preference_run")
    about = read_json(path / "model.json")
    arrays = load_file(path / "model.safetensors")
    if about["model"].startswith("bt_"):
        linear = LinearModel(
            mean=arrays["mean"], scale=arrays["scale"], weights=arrays["weights"], bias=arrays["bias"],
            basis=arrays["basis"], basis_penalty=about["basis_penalty"],
        )  # fmt: skip
        return linear, about["users"], about["targets"]
    import torch

    from minionerec.preference.mlp import MlpModel, PairNetwork

    chosen = about["settings"]
    network = PairNetwork(
        len(arrays["mean"]), len(about["users"]), len(about["targets"]), siamese=chosen["siamese"],
        activation=chosen["activation"], position_bias=chosen["position_bias"],
    )  # fmt: skip
    state = {name[8:]: torch.from_numpy(value) for name, value in arrays.items() if name.startswith("network.")}
    network.load_state_dict(state)
    network.eval()
    return (
        MlpModel(network, arrays["mean"], arrays["spread"], chosen["scale"] == "l2"),
        about["users"],
        about["targets"],
    )
