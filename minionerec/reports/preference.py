"""The stage `preference-report`: runs of train-preference side by side over seeds, and a page of each run's first seed.

OUTPUT/report.html     every run: models, users, differences of models and of runs, over seeds
OUTPUT/NAME.html       the first seed of a run, under the published report's headings
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ConfigError
from minionerec.core.stage import Stage
from minionerec.core.stages import StageResult
from minionerec.preference.config import BASELINES, PreferenceReportConfig
from minionerec.reports import plots
from minionerec.reports.page import Block, Cell, Figure, Section, Table, render_page

JUDGEMENT = (
    "All answers are a rater's judgement of a picture. They say nothing about the person in it, neither the identity "
    "nor the character or abilities of that person."
)
LEAST_ROWS = 10
NONE = "n/a"
ModelResults = dict[str, Any]  # results.json of a model
Models = dict[str, ModelResults]
Run = dict[int, Models]  # seed to model to results
_MEASURES = {
    "accuracy": "Accuracy, pooled over answers",
    "accuracy_macro": "Accuracy, mean of targets",
    "ce": "Cross-entropy, nats",
    "brier": "Brier score",
    "auc": "AUC",
    "ece": "Expected calibration error, 15 bins",
    "swap_gap": "Swap gap, mean of |P(a,b) + P(b,a) - 1|",
    "contradictory": "Decisions changed by swapping the pair",
    "truth.realised": "Bayes accuracy on these answers",
    "truth.ce": "Bayes cross-entropy, nats",
    "truth.recovery": "Recovery",
    "truth.regret": "CE regret",
    "truth.p_error": "Error of P",
    "truth.spearman": "Rank correlation",
}
_SHARES = ("accuracy", "accuracy_macro", "contradictory", "truth.realised")
_TRUTH_COLUMNS = ("truth.recovery", "truth.regret", "truth.p_error", "truth.spearman")
_COLUMNS = ("accuracy", "ce", *_TRUTH_COLUMNS, "ece", "contradictory")
_BAYES = (("realised", "accuracy"), ("ce", "ce"))
_NOTES = (
    "Bayes: the accuracy given the true probabilities of the features, on the answers drawn. Knowing siblings: the "
    "same given also the user's other answers on the same pair in train, an upper bound of the effect of a leak.",
    "Recovery: (accuracy - 1/2) / (Bayes accuracy - 1/2). CE regret: cross-entropy minus Bayes cross-entropy, in nats. "
    "Error of P: mean distance to the true probability. Rank correlation: Spearman's, of true and estimated utility. "
    "Above the ceiling: users with at least 10 test answers whose accuracy is above Bayes accuracy on their "
    "answers, over all seeds.",
    "The generator of synthetic answers is mostly linear in the features, which favours the Bradley-Terry models. It "
    "shows how models behave where their assumptions hold, and the effect of leaks, not how real faces are judged.",
)


def run_preference_report(config: PreferenceReportConfig) -> StageResult:
    """Write the pages.

    Raises:
        ArtefactError: If a run is missing or was changed since it was written.
        ConfigError: If a run is called "report", or two runs of a name have one seed.
    """
    if "report" in config.runs:
        raise ConfigError("runs has 'report', which is the name of the page of all runs. Choose another.")
    stage = Stage(config, settings={**config.deciding(), "plots": find_spec("matplotlib") is not None})
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            runs = _read(config, stage.inputs)
            with work.finish(counts={"runs": sum(map(len, runs.values()))}) as folder:
                pages = {"report": study_page(runs)}
                for name, run in runs.items():
                    where = next(path for key, path in stage.inputs.items() if _name_of(key) == name)
                    pages[name.replace("/", "-")] = run_page(next(iter(run.values())), where)
                for name, page in pages.items():
                    (folder / f"{name}.html").write_text(render_page(*page), encoding="utf-8")
    lines = [f"report: {path}" for path in sorted(stage.output.glob("*.html"))]
    return StageResult(stage.output, lines, up_to_date=up_to_date)


def _name_of(key: str) -> str:
    return key.removeprefix("runs ").rpartition(" seed-")[0] or key.removeprefix("runs ")


def _read(config: PreferenceReportConfig, inputs: Mapping[str, Path]) -> dict[str, Run]:
    """Name to seed to the results of each model, requested ones first, and of its last epoch, where available."""
    runs: dict[str, Run] = {name: {} for name in config.runs}
    for key, path in inputs.items():
        manifest, run, models = read_manifest(path), runs[_name_of(key)], {}
        settings = manifest["settings"]
        data = [settings[name] for name in ("population", "items", "width", "targets")], manifest["inputs"]
        for name in dict.fromkeys((*settings["models"], *BASELINES)):
            models[name] = {**read_json(path / name / "results.json"), "data": str(data)}
            if models[name]["last"] is not None:
                last = f"{name}, last epoch"
                models[last] = {**models[name], "model": last, "overall": models[name]["last"]}
        if manifest["seed"] in run:
            raise ConfigError(f"{path}: another run of {_name_of(key)!r} has seed {manifest['seed']}. Give one a seed.")
        run[manifest["seed"]] = models
    return runs


def value_of(results: ModelResults, measure: str) -> float | None:
    """A measure of the test answers by name, such as "ce" or "truth.regret"; None where it is not known."""
    group, _, name = measure.rpartition(".")
    values: dict[str, float | None] = results["overall"].get(group, {}) if group else results["overall"]
    return values.get(name)


def show(value: float | None, measure: str = "") -> str:
    """A number as displayed: shares in percent, others with three digits."""
    if value is None:
        return NONE
    return f"{100 * value:.1f}%" if measure in _SHARES else f"{value:.3f}"


def spread(values: Sequence[float | None], measure: str = "") -> str:
    """Mean ± standard deviation over seeds."""
    real = [value for value in values if value is not None]
    if len(real) < 2:
        return show(real[0] if real else None, measure)
    return f"{show(float(np.mean(real)), measure)} ± {show(float(np.std(real, ddof=1)), measure).removesuffix('%')}"


def difference(first: Sequence[ModelResults], second: Sequence[ModelResults], measure: str) -> str:
    """Mean difference of two models or runs, paired by seed, with its 95 % interval by Student's t."""
    from scipy.stats import ttest_1samp

    theirs = {results["seed"]: value_of(results, measure) for results in second}
    both = [(value_of(results, measure), theirs.get(results["seed"])) for results in first]
    gap = np.array([mine - other for mine, other in both if mine is not None and other is not None])
    if len(gap) < 2:
        return f"{show(gap[0], measure)} (one seed)".replace("%", "") if len(gap) else NONE
    low, high = ttest_1samp(gap, 0.0).confidence_interval() if np.ptp(gap) > 0 else (gap[0], gap[0])
    return f"{show(gap.mean(), measure)} [{show(low, measure)}, {show(high, measure)}]".replace("%", "")


def _by_model(run: Run) -> dict[str, list[ModelResults]]:
    """Model to its results over seeds, by rising cross-entropy."""
    models: dict[str, list[ModelResults]] = {}
    for found in run.values():
        for name, results in found.items():
            models.setdefault(name, []).append(results)
    return dict(sorted(models.items(), key=lambda of: np.mean([value_of(results, "ce") for results in of[1]])))


def study_page(runs: Mapping[str, Run]) -> tuple[str, str, list[Section]]:
    """All runs side by side: title, lead and sections."""
    seeds = sorted({seed for run in runs.values() for seed in run})
    over = f"mean ± standard deviation over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else "one seed"
    lead = f"All models with the baselines and, where known, the ceiling; {over}. {JUDGEMENT}"
    sections = [Section(name, _run_blocks(run)) for name, run in runs.items()]
    sections.append(Section("Differences", _differences(runs)))
    return "Personal preference", lead, [*sections, Section("How to read this", _NOTES)]


def _run_blocks(run: Run) -> list[Block]:
    models = _by_model(run)
    first = next(iter(next(iter(run.values())).values()))
    split, truth = first["split"], "truth" in first["overall"]
    columns = [name for name in _COLUMNS if truth or not name.startswith("truth.")]
    rows = []
    for name, results in models.items():
        cells = [spread([value_of(one, column) for one in results], column) for column in columns]
        rows.append([name, str(len(results)), *cells, *([_above(results)] if truth else [])])
    if truth:
        every = next(iter(models.values()))
        for title, prefix in (("Bayes, features only", ""), ("Bayes, knowing siblings in train", "sibling_")):
            bayes = [spread([one["overall"]["truth"][f"{prefix}{key}"] for one in every], of) for key, of in _BAYES]
            rows.append([title, str(len(every)), *bayes, *([""] * (len(columns) - 1))])
    headers = ["Model", "Seeds", *(_MEASURES[column].partition(",")[0] for column in columns)]
    audit = split["audit"]
    note = (
        f"Split by {split['unit']}, {np.mean([one['overall']['n'] for one in next(iter(models.values()))]):,.0f} test "
        f"answers per seed. Train has another answer by the same user on the same pair for "
        f"{show(audit['same_user_pair'], 'accuracy')} of them, and another user's for "
        f"{show(audit['same_pair_other_user'], 'accuracy')}."
    )
    blocks: list[Block] = [split["warning"]] if split["warning"] else []
    blocks += [Table([*headers, *(["Above the ceiling"] if truth else [])], rows), note]
    return blocks + ([_user_table(models)] if truth else [])


def _users(results: Sequence[ModelResults]) -> list[dict[str, Any]]:
    """Accuracies of users with enough test answers, over all seeds."""
    every = (user for one in results for user in one["overall"]["truth"]["users"])
    return [user for user in every if user["n"] >= LEAST_ROWS]


def _above(results: Sequence[ModelResults]) -> str:
    users = _users(results)
    return f"{sum(user['accuracy'] > user['realised'] for user in users)} of {len(users)}"


def _user_table(models: Mapping[str, list[ModelResults]]) -> Table:
    """Each user's accuracy under every model except the baselines, with the ceiling."""
    shown = {name: _users(results) for name, results in models.items() if name not in BASELINES and "," not in name}
    shown = shown or {name: _users(results) for name, results in models.items()}
    first = next(iter(shown.values()))
    rows = []
    for user in sorted({cell["user"] for cell in first}):
        mine = {name: [cell for cell in cells if cell["user"] == user] for name, cells in shown.items()}
        ceiling = next(iter(mine.values()))
        cells = [spread([cell["accuracy"] for cell in cells], "accuracy") for cells in mine.values()]
        cells += [spread([cell[key] for cell in ceiling], "accuracy") for key in ("realised", "expected")]
        rows.append([user, f"{np.mean([cell['n'] for cell in ceiling]):.0f}", *cells])
    caption = f"Accuracy by user, over the seeds in which the user has at least {LEAST_ROWS} test answers."
    return Table(["User", "N", *shown, "Bayes, realised", "Bayes, expected"], rows, caption)


def _differences(runs: Mapping[str, Run]) -> list[Block]:
    """The first model of each run minus the others, and each run minus the first of the same data, model by model."""
    of_models, of_runs = [], []
    mains: dict[str, str] = {}  # data to the first run of them
    for name, run in runs.items():
        models, requested = _by_model(run), next(iter(run.values()))
        first = next(iter(requested))
        main = mains.setdefault(requested[first]["data"], name)
        for model in (model for model in models if model != first):
            cells = [difference(models[first], models[model], measure) for measure in ("accuracy", "ce")]
            of_models.append([name, f"{first} minus {model}", *cells])
        theirs = _by_model(runs[main])
        for model in (model for model in models if name != main and model in theirs and model not in BASELINES):
            cells = [difference(models[model], theirs[model], of) for of in ("accuracy", "ce", "truth.p_error")]
            of_runs.append([f"{name} minus {main}", model, *cells])
    caption = "Paired by seed, with 95% intervals by Student's t; accuracy in points."
    blocks: list[Block] = [Table(["Run", "Models", "Accuracy", "CE, nats"], of_models, caption, text_columns=2)]
    if of_runs:
        blocks.append(Table(["Runs", "Model", "Accuracy", "CE, nats", "Error of P"], of_runs, caption, text_columns=2))
    return blocks


def run_page(models: Models, folder: Path) -> tuple[str, str, list[Section]]:
    """One run with one seed under the published report's headings: title, lead and sections.

    Args:
        models: Its models by name.
        folder: Its directory.
    """
    models = {name: models[name] for name in sorted(models, key=lambda name: models[name]["overall"]["ce"])}
    first = next(iter(models.values()))
    fitted = {name: of for name, of in models.items() if name not in BASELINES and "," not in name} or models
    interval = first["overall"]["accuracy_interval"]
    lead = (
        f"{first['model']}: test accuracy {show(interval['mean'], 'accuracy')} of {first['overall']['n']} answers (95% "
        f"interval over pairs {show(interval['low'], 'accuracy')} to {show(interval['high'], 'accuracy')}), "
        f"cross-entropy {show(first['overall']['ce'])} nats, split by {first['split']['unit']}, seed {first['seed']}. "
        f"{JUDGEMENT}"
    )
    measures = [
        [title, *(show(value_of(of, name), name) for of in models.values())] for name, title in _MEASURES.items()
    ]
    targets = [
        [of, target.capitalize(), show(cell["accuracy"], "accuracy"), show(cell["ce_loss"]), str(cell["n_samples"])]
        for of, results in fitted.items()
        for target, cell in results["test"].items()
    ]
    configuration = [[name, f"{of['parameters']:,}", _settings_of(of)] for name, of in fitted.items()]
    sections = [
        Section("Model Configuration", [Table(["Model", "Parameters", "Settings"], configuration, text_columns=3)]),
        Section("Performance Summary", [Table(["Measure", *models], measures)]),
        Section(
            "Test Accuracy by Target", [Table(["Model", "Target", "Accuracy", "CE Loss", "N Samples"], targets, "", 2)]
        ),
        Section("Test Accuracy by User", [block for of in fitted.values() for block in user_blocks(of)]),
        *([_newcomers(fitted)] if first["shots"] is not None else []),
        Section("Calibration", _calibration(fitted)),
        Section("Key Findings", [[text for of in fitted.values() for text in findings(of)]]),
        Section("Experimental Details", [Table(["Detail", "Value"], _details(first), text_columns=2)]),
        Section("Agreement of Raters", [_agreement(first["agreement"])]),
        Section("File Locations", [Table(["What", "Where"], _files(folder), text_columns=2)]),
    ]
    return f"Preference models: {', '.join(fitted)}", lead, sections


def _settings_of(results: ModelResults) -> str:
    shown = {**results["settings"], **results["chosen"]}
    shown.pop("tried", None)
    if results["best_epoch"] is not None:
        shown |= {"best epoch from 0": results["best_epoch"], "last epoch": results["last_epoch"]}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())


def user_blocks(results: ModelResults) -> list[Block]:
    """The table of users, macro and pooled accuracy each in a column of its own, and how many are not shown."""
    table, targets = results["user_table"], results["targets"]
    headers = ["Idx", "User ID", "Total", "N", "Accuracy (macro)", "Accuracy (pooled)", "95% interval (Wilson)"]
    rows = []
    for row in table["users"]:
        interval = f"{show(row['low'], 'accuracy')} to {show(row['high'], 'accuracy')}"
        shares = [row["macro"], row["pooled"], *(row["targets"].get(of, {}).get("accuracy") for of in targets)]
        macro, pooled, *rest = (show(share, "accuracy") for share in shares)
        rows.append([*(str(row[key]) for key in ("index", "user", "total", "n")), macro, pooled, interval, *rest])
    note = (
        f"{results['model']}. Only users with ≥{LEAST_ROWS} test answers are shown; {table['hidden_users']} users with "
        f"{table['hidden_rows']} test answers are hidden. Macro: mean of the targets' accuracies, as the published "
        "report has it. Pooled: right answers over N; the interval is this one's. Total: comparisons in all the data. "
        "User ids are truncated to their last characters."
    )
    blocks: list[Block] = [Table([*headers, *(of.capitalize() for of in targets)], rows, text_columns=2)]
    blocks.append(note)
    if plots.available() and rows:
        truth = results["overall"].get("truth")
        ceilings = {user["user"]: user["expected"] for user in truth["users"]} if truth else {}
        points = [
            (row["user"], row["pooled"], row["low"], row["high"], ceilings.get(results["users"][row["index"]]))
            for row in table["users"]
        ]
        blocks.append(Figure(plots.user_points(points), "Accuracy by user with Wilson's 95% interval."))
    return blocks


def _newcomers(models: Models) -> Section:
    rows = [
        [name, k, show(cell["accuracy"], "accuracy"), show(cell["ce"]), str(cell["n"])]
        for name, results in models.items()
        for k, cell in results["shots"].items()
    ]
    return Section("New users", [Table(["Model", "Comparisons first given", "Accuracy", "CE", "N"], rows)])


def _calibration(models: Models) -> list[Block]:
    bins = {name: results["overall"]["calibration"] for name, results in models.items()}
    rows = [[name, show(row["predicted"]), show(row["observed"]), str(row["n"])] for name in bins for row in bins[name]]
    blocks: list[Block] = [Table(["Model", "Predicted", "Observed", "N"], rows)]
    return [*blocks, *([Figure(plots.reliability(bins), "Calibration on test.")] if plots.available() else [])]


def findings(results: ModelResults) -> list[str]:
    """Sentences that one run's intervals support; the others are reported as open."""
    name, texts = results["model"], [results["split"]["warning"]] if results["split"]["warning"] else []
    for baseline, gap in results["against"].items():
        low, high = 100 * gap["accuracy"]["low"], 100 * gap["accuracy"]["high"]
        by = f"{100 * gap['accuracy']['mean']:+.1f} points ({low:+.1f} to {high:+.1f} points, over pairs)."
        if low > 0 or high < 0:
            texts.append(f"{name} is right {'more' if low > 0 else 'less'} often than {baseline}: {by}")
        else:
            texts.append(f"Whether {name} beats {baseline} is open: {by}")
    cells = sorted((cell["accuracy"], cell["n_samples"]) for cell in results["test"].values())
    if len(cells) > 1:
        (low, low_n), (high, high_n) = cells[0], cells[-1]
        error = np.sqrt(low * (1 - low) / low_n + high * (1 - high) / high_n)
        relation = "more than" if high - low > 2 * error else "within"
        texts.append(
            f"Its targets differ by at most {100 * (high - low):.1f} points, {relation} twice the standard error."
        )
    return [*texts, "One seed is not enough to rank models; use five or more."]


def _details(results: ModelResults) -> list[list[str]]:
    split, audit = results["split"], results["split"]["audit"]
    return [
        ["Answers", ", ".join(f"{count} {fold}" for fold, count in split["rows"].items())],
        ["Data", ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["counts"].items())],
        *(
            [f"Test answers {where}", show(audit[key], "accuracy")]
            for key, where in (
                ("same_user_pair", "with another answer by the same user on the pair in train"),
                ("same_pair_other_user", "with another user's answer on the pair in train"),
                ("both_items_seen", "whose two items both occur in train"),
            )
        ),
        ["Answers discarded by the split", str(audit["discarded"])],
        ["Test answers by users not in train", str(results["unseen_user_rows"])],
        ["Random seed", str(results["seed"])],
        ["Packages", ", ".join(f"{name} {version}" for name, version in results["versions"].items())],
    ]


def _agreement(matrix: Mapping[str, Any]) -> Table:
    """The agreement of users on common answers; n/a where two users have none."""
    rows = [
        [name, *(Cell(show(share, "accuracy"), f"({n})") for share, n in zip(shares, counts, strict=True))]
        for name, shares, counts in zip(matrix["user"], matrix["share"], matrix["n"], strict=True)
    ]
    caption = "Share of common answers on which two users agree, and the number of common answers."
    return Table(["User", *matrix["user"]], rows, caption)


def _files(folder: Path) -> list[list[str]]:
    names = {"Config": "config.yaml", "Results": "MODEL/results.json", "Summary": "MODEL/summary.txt"}
    names |= {"Predictions": "MODEL/predictions.csv", "Model": "MODEL/model.safetensors"}
    return [[what, str(folder / name)] for what, name in names.items()]
