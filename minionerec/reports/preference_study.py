"""All runs of a preference study side by side: tables over seeds, what the leak does, which differences hold."""

import os
from collections.abc import Callable, Sequence

import numpy as np

from minionerec.core.machine import source_commit
from minionerec.core.places import shipped_root
from minionerec.preference.config import PreferenceConfig
from minionerec.preference.jobs import OWN, Job
from minionerec.reports.document import Block, Paragraph, Section, Table
from minionerec.reports.preference_measured import (
    LAST,
    Measured,
    Models,
    Value,
    gap,
    measured_runs,
    points,
    says,
    spread,
)
from minionerec.reports.preference_words import JUDGEMENT, number, percent

# What bt_hier must reach on the synthetic study, split by pair, as a mean over five seeds. Fitted to five seeds that
# gave 0.814 and 0.068, about two standard errors away; no linear score reaches the 15 % of utility that is not linear.
RECOVERY, REGRET = 0.78, 0.08
_LEAST_ROWS = 10
_SHORT = 7  # digits of a commit
_COLUMNS: list[tuple[str, Value, Callable[[float], str]]] = [
    ("Accuracy, %", lambda run: run.accuracy, points),
    ("CE, nats", lambda run: run.ce, number),
    ("Recovery", lambda run: run.recovery, number),
    ("CE regret", lambda run: run.regret, number),
    ("Error of P", lambda run: run.p_error, number),
    ("ECE", lambda run: run.ece, number),
    ("Contradictory, %", lambda run: run.contradictory, points),
    ("Rank corr.", lambda run: run.spearman, number),
]
_CEILINGS: list[tuple[str, Value, Value]] = [
    ("Bayes, features only", lambda run: run.realised, lambda run: run.bayes_ce),
    ("Bayes, knowing siblings in train", lambda run: run.sibling_realised, lambda run: run.sibling_ce),
]


def _model_table(models: Models) -> Table:
    ranked = sorted(models.items(), key=lambda item: np.mean([run.ce for run in item[1]]))
    rows = [
        [name, str(len(runs)), *(spread([value(run) for run in runs], show) for _, value, show in _COLUMNS)]
        for name, runs in ranked
    ]
    runs = max(models.values(), key=len)
    if runs[0].realised is not None:
        for name, accuracy, ce in _CEILINGS:
            cells = [spread([accuracy(run) for run in runs], points), spread([ce(run) for run in runs], number)]
            rows.append([name, str(len(runs)), *cells, *([""] * (len(_COLUMNS) - 2))])
    return Table(["Model", "Seeds", *(title for title, _, _ in _COLUMNS)], rows)


def _accuracy(run: Measured) -> float:
    return run.accuracy


def _ce(run: Measured) -> float:
    return run.ce


def _p_error(run: Measured) -> float | None:
    return run.p_error


def leak_findings(row: Models, pair: Models) -> list[str]:
    """The finding about leaks, in plain words with this study's numbers.

    Args:
        row: Model to its runs under the split by row.
        pair: The same under the split by pair.
    """
    first = next(iter(row.values()))[0]
    own, others = percent(first.audit["same_user_pair"]), percent(first.audit["same_pair_other_user"])
    texts = [
        f"Splitting single answers at random leaves {own} of the test answers with another answer by the same person "
        f"on the same pair in train, and {others} with another person's. The split by pair leaves none of either."
    ]
    for name in (LAST, "mlp_concat", "mlp_siamese", "bt_hier"):
        if name in row and name in pair:
            rise, worse = gap(row[name], pair[name], _accuracy), gap(row[name], pair[name], _p_error)
            text = f"{name}: accuracy is higher by {says(rise)} points under the row split"
            if len(worse):
                text += f", and the error against the true probability changes by {says(worse, number)}"
            texts.append(f"{text}.")
    if first.users and "mlp_concat" in row and "mlp_concat" in pair:
        texts.append(
            f"A person's accuracy lies above that person's own ceiling, the best that features allow on the answers "
            f"drawn, in {_above(row['mlp_concat'])} under the row split, and in {_above(pair['mlp_concat'])} under the "
            "split by pair (mlp_concat; people with at least 10 test answers, over all seeds)."
        )
    if LAST in row and LAST in pair and row[LAST][0].realised is not None:
        texts.append(_in_plain_words(row[LAST], pair[LAST]))
    return texts


def _in_plain_words(row: list[Measured], pair: list[Measured]) -> str:
    rise, worse = gap(row, pair, _accuracy), gap(row, pair, _p_error)
    if not ((rise > 0).all() and (worse > 0).all()):
        return "Not on every seed does the row split raise accuracy while the error of P grows."
    below = np.mean([run.realised - run.accuracy for run in row if run.realised is not None])
    return (
        "In plain words: on every seed the network, scored as published, looks better under the row split "
        f"while it knows the people's tastes less well. Its accuracy there lies {points(float(abs(below)))} points "
        f"{'below' if below > 0 else 'above'} the best that features alone allow. The rise is looked up, not "
        "learned: one answer on a pair tells the same person's other answers on it, through a mood that all "
        "targets share. The split by pair says what to expect on pairs that nobody has judged yet."
    )


def _above(runs: list[Measured]) -> str:
    shown = [user for run in runs for user in run.users or () if user["n"] >= _LEAST_ROWS]
    return f"{sum(user['accuracy'] > user['realised'] for user in shown)} of {len(shown)} cases"


def study_page(config: PreferenceConfig, jobs: Sequence[Job]) -> tuple[str, str, list[Section]]:
    """All runs side by side.

    Returns:
        Title, lead and sections.
    """
    table = measured_runs(config, jobs)
    seeds = len(config.seeds)
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed, which ranks no models"
    lead = f"Every model beside the floors and the ceiling; {over}. {JUDGEMENT}"
    sections = [Section("How it was made", [Table(["What", "Value"], _provenance(config), text_columns=2)])]
    main = OWN if config.comparisons else config.worlds[0]
    if {(main, "row"), (main, "pair")} <= set(table):
        texts = leak_findings(table[main, "row"], table[main, "pair"])
        sections.append(Section("What the leak does", [Paragraph(text) for text in texts]))
    for (world, unit), models in table.items():
        sections.append(_split_section(world, unit, models, main))
    sections.append(Section("Which differences hold", _differences(table, main)))
    sections.append(Section("How to read this", [Paragraph(text) for text in _GUIDE]))
    return "Personal preference: a study with a known ceiling", lead, sections


def _split_section(world: str, unit: str, models: Models, main: str) -> Section:
    """One split of one data set: its models and, of the main data, its users."""
    first = next(iter(models.values()))
    blocks: list[Block] = [Paragraph("Not generalisation: this split leaks.")] if unit == "row" else []
    blocks.append(_model_table(models))
    blocks.append(Paragraph(f"{np.mean([run.n for run in first]):,.0f} test answers a seed."))
    if world == main and first[0].users:
        blocks += _user_tables(models)
    name = f"Split by {unit}" if world == main else f"Control {world}, split by {unit}"
    return Section(name, blocks)


def _user_tables(models: Models) -> list[Table]:
    """Each user's accuracy under the main models, beside the ceiling; nothing where none of them ran."""
    shown = [name for name in ("bt_hier", "mlp_siamese", "mlp_concat") if name in models]
    if not shown:
        return []

    def cells(name: str, key: str, user: str) -> list[float]:
        return [
            cell[key]
            for run in models[name]
            for cell in run.users or ()
            if cell["user"] == user and cell["n"] >= _LEAST_ROWS
        ]

    every = (cell for run in models[shown[0]] for cell in run.users or ())
    users = sorted({cell["user"] for cell in every if cell["n"] >= _LEAST_ROWS})
    rows = [
        [
            user,
            f"{np.mean(cells(shown[0], 'n', user)):.0f}",
            *(spread(cells(name, "accuracy", user), points) for name in shown),
            *(spread(cells(shown[0], key, user), points) for key in ("realised", "expected")),
        ]
        for user in users
    ]
    caption = "Accuracy by user in percent, over the seeds in which the user has at least 10 test answers."
    return [Table(["User", "N", *shown, "Bayes, realised", "Bayes, expected"], rows, caption)]


def _differences(table: dict[tuple[str, str], Models], main: str) -> list[Block]:
    rows = []
    for (world, unit), models in table.items():
        others = ["bt_global", "bt_user", "bt_lowrank", "mlp_siamese", "mlp_concat"] if world == main else ["bt_global"]
        for name in others:
            if "bt_hier" in models and name in models:
                mine, theirs = models["bt_hier"], models[name]
                where = unit if world == main else f"{unit}, control {world}"
                accuracy, ce = says(gap(mine, theirs, _accuracy)), says(gap(mine, theirs, _ce), number)
                rows.append([where, name, accuracy, ce])
    headers = ["Split", "bt_hier minus", "Accuracy, points", "CE, nats"]
    blocks: list[Block] = [
        Table(headers, rows, "Paired over seeds, with 95% intervals by Student's t.", text_columns=2)
    ]
    for name in ("mlp_concat", LAST):
        if name in table.get(("no_halo", "row"), {}) and name in table.get(("no_halo", "pair"), {}):
            found = says(gap(table["no_halo", "row"][name], table["no_halo", "pair"][name], _accuracy))
            text = f"Without common noise (control no_halo) the row split changes the accuracy of {name} by {found}"
            blocks.append(Paragraph(f"{text} points."))
    best = table.get((main, "pair"), {}).get("bt_hier", [])
    if best and best[0].realised is not None:
        blocks.append(_acceptance(best))
    return blocks


def _acceptance(runs: list[Measured]) -> Paragraph:
    recovery, regret = spread([run.recovery for run in runs], number), spread([run.regret for run in runs], number)
    return Paragraph(
        f"Acceptance over these seeds, split by pair: bt_hier's recovery is {recovery} (at least {RECOVERY:.2f} is "
        f"asked) and its CE regret {regret} (at most {REGRET:.2f}), bounds fitted to seeds 1 to 5."
    )


_GUIDE = (
    "Bayes: what somebody reaches who knows the true probabilities of the features. Realised: on the answers drawn. "
    "Knowing siblings: the same for somebody who also saw the person's other answers on the same pair in train, which "
    "is how far a leak can carry.",
    "Recovery: (accuracy - 1/2) / (realised Bayes accuracy - 1/2). CE regret: cross-entropy minus Bayes cross-entropy, "
    "in nats. Error of P: mean distance to the true probability. ECE: expected calibration error. Contradictory: test "
    "pairs decided otherwise when shown the other way round. Rank corr.: Spearman's, of true and estimated utility.",
    "The generator is mostly linear in the features, which favours the Bradley-Terry models. It says how models behave "
    "where their assumptions hold and what leaks do, not how real faces are judged.",
    "mlp_concat is trained as the published report does; its last epoch is what that report evaluated, because its "
    "copy of the best weights went on changing. Two details are ours: an answer and its swapped copy share a dropout "
    "mask, and all weights are seeded.",
)


def _provenance(config: PreferenceConfig) -> list[list[str]]:
    """Command, commit, seeds and machine class; no times, for they differ between runs."""
    return [
        ["Command", f"minionerec train-preference --config {config_file(config)}"],
        ["Commit", (source_commit() or "unknown")[:_SHORT]],
        ["Seeds", ", ".join(map(str, config.seeds))],
        ["Machine", f"{os.cpu_count()} CPU cores, no GPU; {config.workers} processes of one thread"],
        ["Data", config.comparisons or f"synthetic, {config.items} items and pairs, {config.width} features"],
    ]


def config_file(config: PreferenceConfig) -> str:
    """The configuration file that made the document: the one that names it, if it lies where ours lie."""
    root = shipped_root()
    for path in sorted((root / "configs").rglob("*.yaml")):
        if config.document and f"document: {config.document}\n" in path.read_text(encoding="utf-8"):
            return str(path.relative_to(root))
    return "FILE"
