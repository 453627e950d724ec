"""The page of one run of the preference stage, under the published report's headings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.preference.fit import ARRAYS
from minionerec.preference.results import CONFIG, PREDICTIONS, RESULTS, SUMMARY, RunResults
from minionerec.reports import plots
from minionerec.reports.document import Block, Cell, Figure, Paragraph, Section, Table
from minionerec.reports.preference_words import JUDGEMENT, number, percent


def run_page(results: RunResults, against: Mapping[str, Any], run: Path) -> tuple[str, str, list[Section]]:
    """One run as a document.

    Args:
        results: What it found.
        against: How it does against each floor, see `minionerec.preference.against.read_against`.
        run: Its directory.

    Returns:
        Title, lead and sections.
    """
    overall = results.overall
    interval = overall["accuracy_interval"]
    lead = (
        f"Test accuracy {percent(overall['accuracy'])} of {overall['n']} answers (95% interval over pairs "
        f"{percent(interval['low'])} to {percent(interval['high'])}), cross-entropy {number(overall['ce'])} nats, "
        f"split by {results.split.unit}, seed {results.seed}. {JUDGEMENT}"
    )
    findings = [Paragraph(text) for text in run_findings(results, against)]
    sections = [
        Section("Model Configuration", [Table(["Setting", "Value"], _model_rows(results), text_columns=2)]),
        Section("Performance Summary", [Table(["Measure", "Test"], _measure_rows(results))]),
        _target_section(results),
        _user_section(results),
        *([_newcomer_section(results.shots)] if results.shots else []),
        _calibration_section(results),
        Section("Key Findings", findings),
        Section("Experimental Details", [Table(["Detail", "Value"], _detail_rows(results), text_columns=2)]),
        Section("Agreement of Raters", [_agreement(results.agreement)]),
        Section("File Locations", [Table(["What", "Where"], _file_rows(run), text_columns=2)]),
    ]
    return f"Preference model {results.model}: performance", lead, sections


def _model_rows(results: RunResults) -> list[list[str]]:
    settings = results.settings or results.chosen
    rows = [["Model", results.model], ["Parameters", f"{results.parameters:,}"]]
    rows += [[name.replace("_", " "), str(value)] for name, value in sorted(settings.items()) if name != "tried"]
    if results.best_epoch is not None:
        rows.append(["epochs, from 0", f"best {results.best_epoch}, last {results.last_epoch}"])
    return rows


def _measure_rows(results: RunResults) -> list[list[str]]:
    overall, truth = results.overall, results.truth
    rows = [
        ["Accuracy, pooled over answers", percent(overall["accuracy"])],
        ["Accuracy, mean of targets", percent(overall["accuracy_macro"])],
        ["Cross-entropy, nats", number(overall["ce"])],
        ["Brier score", number(overall["brier"])],
        ["AUC", number(overall["auc"])],
        ["Expected calibration error, 15 bins", number(overall["ece"])],
        ["Swap gap, mean of |P(a,b) + P(b,a) - 1|", number(overall["swap_gap"])],
        ["Decided otherwise when shown swapped", percent(overall["contradictory"])],
    ]
    if truth:
        rows += [
            ["Bayes accuracy on these answers", percent(truth["realised"])],
            ["Bayes cross-entropy, nats", number(truth["ce"])],
            ["Error against the true probability", number(truth["p_error"])],
        ]
    return rows


def _target_section(results: RunResults) -> Section:
    rows = [
        [name.capitalize(), percent(cell["accuracy"]), number(cell["ce_loss"]), str(cell["n_samples"])]
        for name, cell in results.test.items()
    ]
    return Section("Test Accuracy by Target", [Table(["Target", "Accuracy", "CE Loss", "N Samples"], rows)])


def user_rows(table: Mapping[str, Any], targets: Sequence[str]) -> list[list[str]]:
    """Rows of "Test Accuracy by User": macro and pooled accuracy each in a column of its own."""
    return [
        [
            str(row["index"]),
            row["user"],
            str(row["total"]),
            str(row["n"]),
            percent(row["macro"]),
            percent(row["pooled"]),
            f"{percent(row['low'])} to {percent(row['high'])}",
            *(percent(row["targets"].get(name, {}).get("accuracy")) for name in targets),
        ]
        for row in table["users"]
    ]


def user_section(table: Mapping[str, Any], targets: Sequence[str]) -> Section:
    """The table of users, and how many are not shown."""
    headers = ["Idx", "User ID", "Total", "N", "Accuracy (macro)", "Accuracy (pooled)", "95% interval (Wilson)"]
    headers += [name.capitalize() for name in targets]
    note = (
        f"Only users with ≥{table['min_rows']} test answers are shown; {table['hidden_users']} users with "
        f"{table['hidden_rows']} test answers are hidden. Macro: mean of the targets' accuracies, as the published "
        "report has it. Pooled: right answers over N; the interval is this one's. Total: comparisons in all the data. "
        "User ids are cut to their last characters."
    )
    return Section(
        "Test Accuracy by User", [Table(headers, user_rows(table, targets), text_columns=2), Paragraph(note)]
    )


def _user_section(results: RunResults) -> Section:
    """The table of users and, where there is something to draw with, their points beside the ceilings."""
    section = user_section(results.user_table, results.targets)
    ceilings = {row["user"]: row["expected"] for row in results.truth["users"]} if results.truth else {}
    points = [
        (row["user"], row["pooled"], row["low"], row["high"], ceilings.get(results.users[row["index"]]))
        for row in results.user_table["users"]
    ]
    if not points or not plots.available():
        return section
    figure = Figure(plots.user_points(points), "Accuracy by user with Wilson's 95% interval.")
    return Section(section.title, [*section.blocks, figure])


def _newcomer_section(shots: Mapping[str, Any]) -> Section:
    rows = [[k, percent(cell["accuracy"]), number(cell["ce"]), str(cell["n"])] for k, cell in shots.items()]
    return Section("New users", [Table(["Comparisons first given", "Accuracy", "CE", "N"], rows)])


def _calibration_section(results: RunResults) -> Section:
    bins = results.overall["calibration"]
    rows = [[number(row["predicted"]), number(row["observed"]), str(row["n"])] for row in bins]
    blocks: list[Block] = [Table(["Predicted", "Observed", "N"], rows, text_columns=0)]
    if plots.available():
        blocks.append(Figure(plots.reliability({results.model: bins}), "Calibration on test."))
    return Section("Calibration", blocks)


def _detail_rows(results: RunResults) -> list[list[str]]:
    split = results.split
    audit = split.audit
    return [
        ["Answers", ", ".join(f"{count} {fold}" for fold, count in split.rows.items())],
        ["Data", ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results.counts.items())],
        ["Test answers with the same person's other answer on the pair in train", percent(audit["same_user_pair"])],
        ["Test answers with another person's answer on the pair in train", percent(audit["same_pair_other_user"])],
        ["Test answers whose two items both occur in train", percent(audit["both_items_seen"])],
        ["Answers discarded by the split", str(audit["discarded"])],
        ["Test answers by people unseen in train", str(results.unseen_user_rows)],
        ["Random seed", str(results.seed)],
        ["Packages", ", ".join(f"{name} {version}" for name, version in results.versions.items())],
    ]


def _agreement(matrix: Mapping[str, Any]) -> Table:
    """Who chooses alike how often, on how many common answers; n/a where two have judged nothing in common."""
    users = matrix["user"]
    rows = [
        [name, *(Cell(percent(share), f"({n})") for share, n in zip(shares, counts, strict=True))]
        for name, shares, counts in zip(users, matrix["share"], matrix["n"], strict=True)
    ]
    return Table(
        ["User", *users], rows, "Share of common answers on which two agree, and how many they have in common."
    )


def _file_rows(run: Path) -> list[list[str]]:
    files = {
        "Results": RESULTS,
        "Config": CONFIG,
        "Summary": SUMMARY,
        "Predictions": PREDICTIONS,
        "Model": ARRAYS,
    }
    return [[name, str(run / file)] for name, file in files.items()]


def run_findings(results: RunResults, against: Mapping[str, Any]) -> list[str]:
    """Sentences that one run's intervals support; what they do not support is said to be open."""
    texts = []
    if results.split.warning:
        texts.append(results.split.warning)
    for floor, gap in against.items():
        accuracy = gap["accuracy"]
        between = f"({100 * accuracy['low']:+.1f} to {100 * accuracy['high']:+.1f} points, over pairs)"
        by = f"{100 * accuracy['mean']:+.1f} points {between}."
        if accuracy["low"] > 0 or accuracy["high"] < 0:
            verdict = "more" if accuracy["low"] > 0 else "less"
            texts.append(f"{results.model} is right {verdict} often than {floor}: {by}")
        else:
            texts.append(f"Whether {results.model} beats {floor} is open: {by}")
    cells = sorted((cell["accuracy"], cell["n_samples"]) for cell in results.test.values())
    if len(cells) > 1:
        (low, low_n), (high, high_n) = cells[0], cells[-1]
        error = np.sqrt(low * (1 - low) / low_n + high * (1 - high) / high_n)
        says = "more than" if high - low > 2 * error else "within"
        texts.append(
            f"Targets differ by at most {100 * (high - low):.1f} points, {says} twice the standard error of that gap."
        )
    texts.append("One seed ranks no models; take five or more before one is said to beat another.")
    return texts
