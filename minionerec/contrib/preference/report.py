"""The stage `preference-report`: a page of runs of train-preference side by side, over seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.contrib.preference.config import BASELINES, PreferenceReportConfig
from minionerec.contrib.preference.measures import LEAST_ROWS
from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ConfigError
from minionerec.metrics.statistics import Estimate, PairedDifference
from minionerec.metrics.tables import MISSING, format_mean
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import StageResult
from minionerec.reports.cells import difference_cell, percent, signed
from minionerec.reports.page import Block, Cell, Section, Table, render_page

PAGE = "report.html"
JUDGEMENT = (
    "All answers are a rater's judgement of a picture. They say nothing about the person in it, neither the identity "
    "nor the character or abilities of that person."
)
ModelResults = dict[str, Any]  # results.json of a model
Models = dict[str, ModelResults]
Run = dict[int, Models]  # seed to model to results
_MEASURES = {
    "accuracy": "Accuracy",
    "accuracy_macro": "Accuracy, mean of targets",
    "ce": "CE, nats",
    "brier": "Brier score",
    "auc": "AUC",
    "ece": "ECE",
    "swap_gap": "Swap gap",
    "contradictory": "Contradictory",
}
_TRUTH = {
    "truth.recovery": "Recovery",
    "truth.regret": "CE regret",
    "truth.p_error": "Error of P",
    "truth.spearman": "Rank correlation",
}
_CEILINGS = {"Bayes, features only": "", "Bayes, knowing siblings in train": "sibling_"}
_NOTES = (
    "Accuracy and CE (cross-entropy): means over test answers. ECE: expected calibration error, 15 bins. Swap gap: "
    "mean of |P(a,b) + P(b,a) - 1|. Contradictory: share of decisions changed by swapping the pair.",
    "Bayes: the accuracy given the true probabilities of the features, on the answers drawn. Knowing siblings: the "
    "same given also the user's other answers on the same pair in train, an upper bound of the effect of a leak.",
    "Recovery: (accuracy - 1/2) / (Bayes accuracy - 1/2). CE regret: cross-entropy minus Bayes cross-entropy, in nats. "
    "Error of P: mean distance to the true probability. Rank correlation: Spearman's, of true and estimated utility. "
    f"Above the ceiling: users with at least {LEAST_ROWS} test answers whose accuracy is above Bayes accuracy on their "
    "answers, over all seeds.",
    "The generator of synthetic answers is mostly linear in the features, which favours the Bradley-Terry models. It "
    "shows how models behave where their assumptions hold, and the effect of leaks, not how real faces are judged.",
)


def run_preference_report(config: PreferenceReportConfig) -> StageResult:
    """Write the page.

    Raises:
        ArtefactError: If a run is missing or was changed since it was written.
        ConfigError: If two runs of a name have one seed.
    """
    stage = Stage(config)
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            runs = {name: _read(paths) for name, paths in stage.config.folders().items()}
            with work.finish(counts={"runs": sum(map(len, runs.values()))}) as output:
                (output / PAGE).write_text(render_page(*study_page(runs)), encoding="utf-8")
    return StageResult(stage.output, [f"report: {stage.output / PAGE}"], up_to_date=up_to_date)


def _read(folders: Sequence[Path]) -> Run:
    """The results of each model, requested ones first, and of its last epoch, where available."""
    run: Run = {}
    for folder in folders:
        manifest = read_manifest(folder)
        settings, seed, models = manifest["settings"], manifest["seed"], {}
        data = [settings[name] for name in ("population", "items", "width", "targets")], manifest["inputs"]
        for name in dict.fromkeys((*settings["models"], *BASELINES)):
            models[name] = {**read_json(folder / name / "results.json"), "data": str(data)}
            if models[name]["last"] is not None:
                last = f"{name}, last epoch"
                models[last] = {**models[name], "model": last, "overall": models[name]["last"]}
        if seed in run:
            raise ConfigError(f"{folder}: another run of the same name has seed {seed}. Give one another seed.")
        run[seed] = models
    return run


def value_of(results: ModelResults, measure: str) -> float | None:
    """A measure of the test answers by name, such as "ce" or "truth.regret"; None where it is not known."""
    group, _, name = measure.rpartition(".")
    values: dict[str, float | None] = results["overall"].get(group, {}) if group else results["overall"]
    return values.get(name)


def spread(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation over seeds."""
    known = [value for value in values if value is not None]
    if not known:
        return MISSING
    mean, sd = float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None
    return format_mean(Estimate(mean, mean, mean, sd))


def difference(first: Sequence[ModelResults], second: Sequence[ModelResults], measure: str) -> Cell:
    """Mean difference of two models or runs, paired by seed, with its 95 % interval and p-value by Student's t."""
    from scipy.stats import ttest_1samp

    of_seed = {results["seed"]: value_of(results, measure) for results in second}
    pairs = [(value_of(results, measure), of_seed.get(results["seed"])) for results in first]
    gaps = np.array([a - b for a, b in pairs if a is not None and b is not None])
    if len(gaps) < 2:
        return Cell(signed(gaps[0]), "one seed") if len(gaps) else Cell(MISSING)
    if np.ptp(gaps) == 0:
        return Cell(signed(gaps[0]), "the same for all seeds")
    test = ttest_1samp(gaps, 0.0)
    low, high = test.confidence_interval()
    return difference_cell(PairedDifference(float(gaps.mean()), float(low), float(high), float(test.pvalue)))


def _by_model(run: Run) -> dict[str, list[ModelResults]]:
    """Model to its results over seeds, by rising cross-entropy."""
    models: dict[str, list[ModelResults]] = {}
    for of_seed in run.values():
        for name, results in of_seed.items():
            models.setdefault(name, []).append(results)
    return dict(sorted(models.items(), key=lambda of: np.mean([value_of(results, "ce") for results in of[1]])))


def study_page(runs: Mapping[str, Run]) -> tuple[str, str, list[Section]]:
    """Build the page of all runs side by side: title, lead and sections."""
    seeds = sorted({seed for run in runs.values() for seed in run})
    over = f"mean ± standard deviation over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else "one seed"
    lead = f"All models with the baselines and, where known, the ceiling; {over}. {JUDGEMENT}"
    sections = [Section(name, [*_performance(run), *_targets(run), *_findings(run)]) for name, run in runs.items()]
    return (
        "Personal preference",
        lead,
        [*sections, Section("Differences", _differences(runs)), Section("How to read this", _NOTES)],
    )


def _performance(run: Run) -> list[Block]:
    """Tabulate all measures of all models over seeds, with the ceilings of synthetic data, and what the split leaks."""
    models = _by_model(run)
    first = next(iter(models.values()))
    split, overall = first[0]["split"], [results["overall"] for results in first]
    truth = "truth" in overall[0]
    measures = _MEASURES | (_TRUTH if truth else {})
    rows = []
    for name, over_seeds in models.items():
        cells = [spread([value_of(results, measure) for results in over_seeds]) for measure in measures]
        rows.append([name, str(len(over_seeds)), *cells, *([_above_ceiling(over_seeds)] if truth else [])])
    for name, prefix in _CEILINGS.items() if truth else ():
        known = {"accuracy": f"{prefix}realised", "ce": f"{prefix}ce"}
        cells = [spread([of["truth"].get(known.get(measure)) for of in overall]) for measure in measures]
        rows.append([name, str(len(overall)), *cells, MISSING])
    note = (
        f"Split by {split['unit']}, {np.mean([of['n'] for of in overall]):,.0f} test answers per seed. Train has "
        f"another answer by the same user on the same pair for {percent(split['audit']['same_user_pair'])} of them, "
        f"and another user's for {percent(split['audit']['same_pair_other_user'])}."
    )
    headers = ["Model", "Seeds", *measures.values(), *(["Above the ceiling"] if truth else [])]
    return [*filter(None, [split["warning"]]), Table(headers, rows), note]


def _targets(run: Run) -> list[Block]:
    """Accuracy and cross-entropy of each requested model for each target, over seeds."""
    rows = []
    for name, over_seeds in _requested(run).items():
        for target in over_seeds[0]["test"]:
            cells = [results["test"][target] for results in over_seeds if target in results["test"]]
            values = [spread([cell[measure] for cell in cells]) for measure in ("accuracy", "ce_loss")]
            rows.append([name, target.capitalize(), *values, f"{np.mean([cell['n_samples'] for cell in cells]):,.0f}"])
    return [Table(["Model", "Target", "Accuracy", "CE, nats", "Test answers"], rows, text_columns=2)]


def _findings(run: Run) -> list[Block]:
    """Differences of each requested model from each baseline on the answers of one seed; nothing for several."""
    return [findings({name: of[0] for name, of in _requested(run).items()})] if len(run) == 1 else []


def _requested(run: Run) -> dict[str, list[ModelResults]]:
    """The models that a run names, and not the baselines, each over seeds."""
    return {name: of for name, of in _by_model(run).items() if name not in BASELINES and "," not in name}


def _above_ceiling(over_seeds: Sequence[ModelResults]) -> str:
    """Count the users above their own ceiling, of those with enough test answers."""
    users = [user for results in over_seeds for user in results["overall"]["truth"]["users"]]
    above = [user["accuracy"] > user["realised"] for user in users if user["n"] >= LEAST_ROWS]
    return f"{sum(above)} of {len(above)}"


def _differences(runs: Mapping[str, Run]) -> list[Block]:
    """The first model of each run minus the others, and each run minus the first of the same data, model by model."""
    of_models: list[list[str | Cell]] = []
    of_runs: list[list[str | Cell]] = []
    mains: dict[str, str] = {}  # data to the first run of them
    for name, run in runs.items():
        models, requested = _by_model(run), next(iter(run.values()))
        first = next(iter(requested))
        main = mains.setdefault(requested[first]["data"], name)
        for model in (model for model in models if model != first):
            cells = [difference(models[first], models[model], measure) for measure in ("accuracy", "ce")]
            of_models.append([name, f"{first} minus {model}", *cells])
        others = _by_model(runs[main])
        for model in (model for model in models if name != main and model in others and model not in BASELINES):
            cells = [difference(models[model], others[model], of) for of in ("accuracy", "ce", "truth.p_error")]
            of_runs.append([f"{name} minus {main}", model, *cells])
    caption = "Paired by seed, with 95 % intervals and p-values by Student's t."
    blocks: list[Block] = [Table(["Run", "Models", "Accuracy", "CE, nats"], of_models, caption, text_columns=2)]
    if of_runs:
        blocks.append(Table(["Runs", "Model", "Accuracy", "CE, nats", "Error of P"], of_runs, caption, text_columns=2))
    return blocks


def findings(models: Models) -> Table:
    """Differences of each model from each baseline; a model is ahead or behind where the interval excludes 0."""
    rows: list[list[str | Cell]] = []
    for name, results in models.items():
        for baseline, gaps in results["against"].items():
            accuracy, ce = (
                PairedDifference(*(gaps[measure][key] for key in ("mean", "low", "high", "p")))
                for measure in ("accuracy", "ce")
            )
            verdict = {1: "ahead", -1: "behind", 0: "open"}[accuracy.verdict]
            rows.append([f"{name} minus {baseline}", verdict, difference_cell(accuracy), difference_cell(ce)])
    caption = "Pairs are resampled with all their answers: 95 % intervals and p-values. Ahead, behind: by accuracy."
    return Table(["Models", "Verdict", "Accuracy", "CE, nats"], rows, caption, text_columns=2)
