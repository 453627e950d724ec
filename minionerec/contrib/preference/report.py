"""The stage `preference-report`: runs of train-preference side by side over seeds, and a page of each run's first seed.

OUTPUT/report.html     every run: models, and differences of models and of runs, over seeds
OUTPUT/NAME.html       the first seed of a run, under the published report's headings
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.contrib.preference.config import BASELINES, PreferenceReportConfig
from minionerec.contrib.preference.measures import LEAST_ROWS
from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ConfigError
from minionerec.metrics.statistics import Estimate, PairedDifference
from minionerec.metrics.tables import MISSING, format_interval, format_mean
from minionerec.pipeline.config.reports import with_plots
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import StageResult
from minionerec.reports import plots
from minionerec.reports.cells import difference_cell, number, percent, shown_setting, signed
from minionerec.reports.page import Block, Cell, Figure, Section, Table, Tiles, render_page

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
    """Write the pages.

    Raises:
        ArtefactError: If a run is missing or was changed since it was written.
        ConfigError: If two runs of a name have one seed.
    """
    stage = Stage(config, settings=with_plots(config.deciding()))
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            folders = stage.config.folders()
            runs = {name: _read(paths) for name, paths in folders.items()}
            with work.finish(counts={"runs": sum(map(len, runs.values()))}) as output:
                pages = {"report": study_page(runs)}
                for name, run in runs.items():
                    pages[name.replace("/", "-")] = run_page(next(iter(run.values())), folders[name][0])
                for name, page in pages.items():
                    (output / f"{name}.html").write_text(render_page(*page), encoding="utf-8")
    lines = [f"report: {path}" for path in sorted(stage.output.glob("*.html"))]
    return StageResult(stage.output, lines, up_to_date=up_to_date)


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
    sections = [Section(name, _performance(run)) for name, run in runs.items()]
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
    return [*_warning(split), Table(headers, rows), note]


def _warning(split: Mapping[str, Any]) -> list[Block]:
    return [split["warning"]] if split["warning"] else []


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


def run_page(models: Models, folder: Path) -> tuple[str, str, list[Section]]:
    """Build the page of one run with one seed under the published report's headings: title, lead and sections.

    Args:
        models: Its models by name.
        folder: Its directory.
    """
    first = next(iter(models.values()))
    split, overall = first["split"], first["overall"]
    fitted = {name: of for name, of in models.items() if name not in BASELINES and "," not in name} or models
    tiles = []
    for name, of in fitted.items():
        estimate = Estimate(*(of["overall"]["accuracy_interval"][key] for key in ("mean", "low", "high")))
        tiles.append((name, format_mean(estimate), f"accuracy, {format_interval(estimate)}"))
    lead = f"{overall['n']} test answers, split by {split['unit']}, seed {first['seed']}. {JUDGEMENT}"
    sections = [
        Section("Model Configuration", [_configuration(fitted)]),
        Section("Performance Summary", [Tiles(tiles), *_performance({first["seed"]: models})]),
        Section("Test Accuracy by Target", [_targets(fitted)]),
        Section("Test Accuracy by User", [block for of in fitted.values() for block in user_blocks(of)]),
        *([Section("New users", [_newcomers(fitted)])] if first["shots"] is not None else []),
        Section("Calibration", _calibration(fitted)),
        Section(
            "Key Findings", [*_warning(split), findings(fitted), "One seed is not enough to rank models; use five."]
        ),
        Section("Experimental Details", [Table(["Detail", "Value"], _details(first), text_columns=2)]),
        Section("Agreement of Raters", [_agreement(first["agreement"])]),
        Section("File Locations", [Table(["What", "Where"], _files(folder), text_columns=2)]),
        Section("How to read this", _NOTES),
    ]
    return f"Preference models: {', '.join(fitted)}", lead, sections


def _configuration(models: Models) -> Table:
    rows = []
    for name, of in models.items():
        settings = {key: value for key, value in {**of["settings"], **of["chosen"]}.items() if key != "tried"}
        if of["best_epoch"] is not None:
            settings |= {"best epoch from 0": of["best_epoch"], "last epoch": of["last_epoch"]}
        shown = ", ".join(f"{key.replace('_', ' ')} {shown_setting(value)}" for key, value in settings.items())
        rows.append([name, f"{of['parameters']:,}", shown])
    return Table(["Model", "Parameters", "Settings"], rows, text_columns=3)


def _targets(models: Models) -> Table:
    rows = [
        [name, target.capitalize(), percent(cell["accuracy"]), number(cell["ce_loss"]), str(cell["n_samples"])]
        for name, of in models.items()
        for target, cell in of["test"].items()
    ]
    return Table(["Model", "Target", "Accuracy", "CE Loss", "N Samples"], rows, text_columns=2)


def user_blocks(results: ModelResults) -> list[Block]:
    """The table of users, macro and pooled accuracy each in a column of its own, and how many are not shown."""
    table, targets = results["user_table"], results["targets"]
    truth = results["overall"].get("truth", {"users": []})
    ceilings = {user["user"]: percent(user["expected"]) for user in truth["users"]}
    headers = ["Idx", "User ID", "Total", "N", "Accuracy (macro)", "Accuracy (pooled)", "95% interval (Wilson)"]
    headers += [*(["Bayes accuracy"] if ceilings else []), *(target.capitalize() for target in targets)]
    rows = []
    for row in table["users"]:
        cells = [str(row[key]) for key in ("index", "user", "total", "n")]
        cells += [percent(row["macro"]), percent(row["pooled"]), f"{percent(row['low'])} to {percent(row['high'])}"]
        cells += [ceilings[results["users"][row["index"]]]] if ceilings else []
        rows.append([*cells, *(percent(row["targets"].get(target, {}).get("accuracy")) for target in targets)])
    note = (
        f"{results['model']}. Only users with ≥{LEAST_ROWS} test answers are shown; {table['hidden_users']} users with "
        f"{table['hidden_rows']} test answers are hidden. Macro: mean of the targets' accuracies, as the published "
        "report has it. Pooled: right answers over N; the interval is this one's. Total: comparisons in all the data. "
        "User ids are truncated to their last characters."
    )
    return [Table(headers, rows, text_columns=2), note]


def _newcomers(models: Models) -> Table:
    rows = [
        [name, k, percent(cell["accuracy"]), number(cell["ce"]), str(cell["n"])]
        for name, results in models.items()
        for k, cell in results["shots"].items()
    ]
    return Table(["Model", "Comparisons first given", "Accuracy", "CE", "N"], rows)


def _calibration(models: Models) -> list[Block]:
    bins = {name: results["overall"]["calibration"] for name, results in models.items()}
    rows = [
        [name, number(row["predicted"]), number(row["observed"]), str(row["n"])] for name in bins for row in bins[name]
    ]
    blocks: list[Block] = [Table(["Model", "Predicted", "Observed", "N"], rows)]
    return [*blocks, *([Figure(reliability(bins), "Calibration on test.")] if plots.available() else [])]


def findings(models: Models) -> Table:
    """Differences of each model from each baseline; a model is ahead or behind where the interval excludes 0."""
    rows: list[list[str | Cell]] = []
    for name, of in models.items():
        for baseline, gaps in of["against"].items():
            accuracy, ce = (
                PairedDifference(*(gaps[measure][key] for key in ("mean", "low", "high", "p")))
                for measure in ("accuracy", "ce")
            )
            verdict = {1: "ahead", -1: "behind", 0: "open"}[accuracy.verdict]
            rows.append([f"{name} minus {baseline}", verdict, difference_cell(accuracy), difference_cell(ce)])
    caption = "Pairs are resampled with all their answers: 95 % intervals and p-values. Ahead, behind: by accuracy."
    return Table(["Models", "Verdict", "Accuracy", "CE, nats"], rows, caption, text_columns=2)


def _details(results: ModelResults) -> list[list[str]]:
    split, audit = results["split"], results["split"]["audit"]
    return [
        ["Answers", ", ".join(f"{count} {fold}" for fold, count in split["rows"].items())],
        ["Data", ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["counts"].items())],
        ["Test answers whose two items both occur in train", percent(audit["both_items_seen"])],
        ["Answers discarded by the split", str(audit["discarded"])],
        ["Test answers by users not in train", str(results["unseen_user_rows"])],
        ["Random seed", str(results["seed"])],
        ["Packages", ", ".join(f"{name} {version}" for name, version in results["versions"].items())],
    ]


def _agreement(matrix: Mapping[str, Any]) -> Table:
    """The agreement of users on common answers; missing where two users have none."""
    rows = [
        [name, *(Cell(percent(share), f"({n})") for share, n in zip(shares, counts, strict=True))]
        for name, shares, counts in zip(matrix["user"], matrix["share"], matrix["n"], strict=True)
    ]
    caption = "Share of common answers on which two users agree, and the number of common answers."
    return Table(["User", *matrix["user"]], rows, caption)


def _files(folder: Path) -> list[list[str]]:
    names = {"Config": "config.yaml", "Results": "MODEL/results.json", "Summary": "MODEL/summary.txt"}
    names |= {"Predictions": "MODEL/predictions.csv", "Model": "MODEL/model.safetensors"}
    return [[what, str(folder / name)] for what, name in names.items()]


def reliability(series: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Observed share over predicted probability, with the diagonal of perfect calibration.

    Args:
        series: Display name to bins, each with `predicted` and `observed`.

    Returns:
        An SVG element.
    """
    with plots.drawing(4.6, 4.0) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], linestyle="--", color=plots.COLOURS[5], label="perfect")
        for number, (name, bins) in enumerate(series.items()):
            x, y = [row["predicted"] for row in bins], [row["observed"] for row in bins]
            axes.plot(x, y, marker="o", markersize=4, color=plots.COLOURS[number % len(plots.COLOURS)], label=name)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_xlabel("predicted probability")
        axes.set_ylabel("observed share")
        axes.legend(loc="upper left")
        return plots.svg(figure, "calibration")
