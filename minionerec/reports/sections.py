"""The sections of a report: each is a function of results."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np

from minionerec.core.records import duration
from minionerec.data.protocols import ROWS
from minionerec.metrics.predictions import baselines_lack
from minionerec.metrics.ranking import item_ranks
from minionerec.metrics.results import FEWEST, Slice
from minionerec.metrics.statistics import Estimate, estimate
from minionerec.metrics.tables import (
    MISSING,
    cumulative_rows,
    format_coverage,
    format_interval,
    format_percent,
    format_share,
    independent_rows,
    transition_label,
)
from minionerec.metrics.values import HR, VALUE
from minionerec.recommend.rankers.baselines import NAMES
from minionerec.reports import plots
from minionerec.reports.cells import (
    MINUS,
    difference_cell,
    estimate_cell,
    relative,
    shown_setting,
    shown_title,
    signed,
)
from minionerec.reports.page import Block, Cell, Figure, Section, Table
from minionerec.reports.reference import DOUBTFUL, SETTINGS, UNKNOWN, Reference, ReferenceRow
from minionerec.reports.results import OWN_SIDS, TITLE, PageResults
from minionerec.reports.summary import summary
from minionerec.reports.trainings import Effort

TableRow = list[str | Cell]
NONE = "\N{EM DASH}"
NOT_RECORDED = "not recorded"
READING = {"sid": "by semantic ID, of models over titles by title", "item": "by item"}
_READING = {"sid": "by SID", "item": "by item"}
NOT_COMPARABLE = "given more than the history: not comparable with published rows"
"""The heading of the recommenders with more model inputs than the published ones, in tables with published figures."""
_PAIRED = (
    "Both recommenders are resampled on the same examples: 95 % percentile interval of the difference, and two-sided "
    "bootstrap p. It covers the sampling of test examples for these trained models, not the training seed."
)


def _with_line_apart(results: PageResults, rows: Mapping[str, TableRow]) -> list[TableRow]:
    """Table rows by recommender; with published results, conditioned recommenders follow under a heading."""
    if results.reference is None or not set(results.conditioned) & rows.keys():
        return list(rows.values())
    comparable = [row for name, row in rows.items() if name not in results.conditioned]
    line: TableRow = [NOT_COMPARABLE, *[""] * (len(next(iter(rows.values()))) - 1)]
    return [*comparable, line, *(row for name, row in rows.items() if name in results.conditioned)]


def _label(results: PageResults, name: str) -> str:
    return f"baseline: {name}" if name in results.baselines else name


def short(results: PageResults) -> Section:
    """The sentences of the summary, and how intervals and differences are computed."""
    text = (
        f"Sentences are on {results.headline} of the {results.split} examples, counted {_READING[results.levels[0]]}. "
        f"{results.bootstrap.sentence()} Differences are paired example by example; a recommender is ahead or behind "
        "where the 95 % interval of the difference excludes 0."
    )
    blocks: list[Block] = [summary(results), text, *_counting(results)]
    if not plots.available():
        blocks.append("Plots are left out: matplotlib is not installed (the extra 'plots').")
    return Section("Summary", blocks)


def _facts(results: PageResults) -> list[tuple[str, str]]:
    """Data, SIDs, candidates and baselines, as (name, value)."""
    examples, table = results.examples, results.table
    lines = [
        *([] if examples.protocol.name == ROWS else [("Protocol", examples.protocol.title)]),
        ("Split", f"{examples.data.split}; {results.split} examples"),
        ("Examples", ", ".join(f"{size:,} {split}" for split, size in examples.data.sizes.items())),
        ("Items", f"{examples.n_items:,}"),
        ("Longest history", f"{examples.data.max_history} items"),
    ]
    if table is not None:
        shared = np.bincount(table.sid_numbers)[table.sid_numbers] > 1
        hidden = int(shared[examples.rows.targets.astype(np.int64)].sum())
        lines += [
            ("Semantic IDs", f"{table.n_unique:,} distinct, {table.levels} levels"),
            ("SID table", table.fingerprint),
            ("Items that share their SID", f"{int(shared.sum()):,} of {len(table):,}"),
            ("Examples whose target shares its SID", f"{hidden:,} of {len(examples.rows):,}"),
        ]
    lengths = {name: results.recommenders[name].list_length for name in results.without_baselines}
    counts = (f"{name} {'whole catalogue' if length is None else length}" for name, length in lengths.items())
    lines.append(
        ("Beams (candidates per example)" if table is not None else "Candidates per example", ", ".join(counts))
    )
    for sentence in results.chosen.sentences() if results.chosen and results.baselines else ():
        topic, _, text = sentence.partition(": ")
        lines.append((f"Baseline {topic}" if topic.startswith(NAMES) else f"Baselines: {topic}", text))
    return lines


def setup(results: PageResults) -> Section:
    """The evaluation setup, and how a hit is counted."""
    note = "A hit is the target item itself."
    if results.table is not None:
        note = (
            "A SID-level hit is the target's semantic ID: items that share an ID count for one another. An item-level "
            "hit is the target itself; items that share an ID are ranked by popularity in training, then by item id."
        )
    given = dict.fromkeys(one for recommender in results.recommenders.values() for one in recommender.given)
    if given and results.baselines:
        note += f" {baselines_lack(list(given))}"
    lines = [list(line) for line in _facts(results)]
    return Section("Evaluation setup", [Table(["", ""], lines, text_columns=2), note])


def metrics(results: PageResults) -> Section:
    """A table for each reading of a hit."""
    levels = _levels(results)
    blocks: list[Block] = [metrics_table(results, level) for level in levels if results.measured(level)]
    if len(levels) < len(results.levels):
        blocks.append("Counted by item the figures are the same: no two candidates share a semantic ID.")
    return Section("Ranking metrics", blocks)


def _levels(results: PageResults) -> Sequence[str]:
    """The levels of a hit whose tables differ."""
    first, *others = results.levels
    return [
        first,
        *(level for level in others if results.ceiling or results.estimates(level) != results.estimates(first)),
    ]


def metrics_table(results: PageResults, level: str) -> Table:
    """All metrics of all recommenders at one level."""
    estimates, names = results.estimates(level), results.metrics
    rows: dict[str, TableRow] = {}
    for name, recommender in results.recommenders.items():
        parameters = recommender.about.get("parameters")
        size = f"{parameters:,}" if parameters else MISSING
        cells = [_value(estimates.get(name, {}).get(metric)) for metric in names]
        rows[name] = [_label(results, name), size, str(len(recommender.runs)), *cells]
    lines = _with_line_apart(results, rows)
    caption = (
        f"{results.split} examples, counted {READING[level]}; means over all examples, 95 % bootstrap intervals in "
        "brackets, ± the standard deviation over seeds."
    )
    if level == "item" and results.ceiling:
        shown = [f"{results.ceiling[metric]:.4f}" if metric in results.ceiling else MISSING for metric in names]
        lines.append(["ceiling", MISSING, MISSING, *shown])
        caption += " The ceiling is what the best possible ranking of items may expect on these examples."
    return Table(["Recommender", "Parameters", "Seeds", *names], lines, caption)


def _value(estimate: Estimate | None) -> Cell:
    return Cell(NONE) if estimate is None else estimate_cell(estimate)


def differences(results: PageResults) -> Section | None:
    """Paired differences from the first recommender and, where there are few, from the previous one."""
    blocks: list[Block] = []
    for level in _levels(results):
        pairs = [pair for pair in results.pairs if set(pair) <= set(results.measured(level))]
        if not pairs:
            continue
        results.differences(results.first, level)
        rows: list[TableRow] = []
        for name, other in pairs:
            of_metrics = results.differences(other, level, [name])[name]
            rows.append([f"{_label(results, name)} minus {other}", *map(difference_cell, of_metrics.values())])
        blocks.append(Table(["Difference", *results.metrics], rows, f"Differences counted {READING[level]}."))
    note = _PAIRED + (" With several seeds, each example is averaged over them first." if results.several_seeds else "")
    return Section(f"Differences from {results.first}", [note, *blocks]) if blocks else None


def slices(results: PageResults) -> Section | None:
    """Metrics by slice, and differences from the first recommender."""
    if not (results.slices or results.alike):
        return None
    metric, level, blocks = results.headline, results.levels[0], list[Block]()
    columns: dict[str, list[Cell]] = {name: [] for name in results.measured(level)}
    gaps: dict[str, list[Cell]] = {name: [] for name in results.without_baselines if name != results.first}
    for _, slice_results in results.by_slice:
        known = {} if slice_results is None else slice_results.estimates(level)
        gaps_here = {} if slice_results is None else slice_results.differences(results.first, level)
        for name, cells in columns.items():
            cells.append(estimate_cell(known[name][metric] if name in known else None))
        for name, cells in gaps.items():
            cells.append(difference_cell(gaps_here[name][metric] if name in gaps_here else None))
    if results.slices:
        blocks.append(_slice_table(results.slices, columns, f"{metric} by slice."))
        if gaps:
            blocks.append(_slice_table(results.slices, gaps, f"{metric}, each minus {results.first}, by slice."))
    return Section("Slices", [*blocks, _slice_note(results)])


def value(results: PageResults) -> Section | None:
    """Value of the purchases that lists find beside their hits, as they are and re-ranked by value."""
    if results.worth is None:
        return None
    curves, gaps, drawn = results.trade_offs, results.value_gaps, results.bootstrap
    as_ranked = {(name, metric): curve[0][metric] for name, curve in curves.items() for metric in (HR, VALUE)}
    estimates = estimate(as_ranked, drawn.seed, drawn.resamples, drawn.users)
    rows: list[TableRow] = []
    for name in curves:
        gap = gaps.get(name)
        compared = [NONE, NONE] if gap is None else [f"{gap.re_ranked:.4f}", difference_cell(gap.difference)]
        rows.append([_label(results, name), *(estimate_cell(estimates[name, m]) for m in (HR, VALUE)), *compared])
    headers = ["Recommender", HR, VALUE, f"{VALUE} of {results.first}, re-ranked", "Difference"]
    caption = (
        f"{VALUE} is the value of the target where the first ten find it, by {results.value_column}, in units of the "
        f"mean item; of the first seed. {results.first} is re-ranked by log-probability + weight x "
        f"log({results.value_column}), with the weights that give it the {HR} of the row."
    )
    blocks: list[Block] = [Table(headers, rows, caption)]
    if plots.available():
        means = {
            name: [(float(point[HR].mean()), float(point[VALUE].mean())) for point in curves[name]]
            for name in results.without_baselines
            if name in curves
        }
        blocks.append(Figure(plots.trade_offs(means), "Lists as they are (dots), and re-ranked by value (lines)."))
    return Section("Value of the lists", blocks)


def _slice_table(slices: Sequence[Slice], columns: Mapping[str, Sequence[Cell]], caption: str) -> Table:
    """One row per slice, one column per recommender."""
    rows: list[TableRow] = []
    for index, part in enumerate(slices):
        size = Cell(f"{part.size:,}", f"{100 * part.share:.0f} %")
        rows.append([f"{part.group}: {part.name}", size, *(cells[index] for cells in columns.values())])
    return Table(["", "examples", *columns], rows, caption)


def _slice_note(results: PageResults) -> str:
    """Explanation of the tables of slices."""
    groups = {part.group for part in results.slices}
    notes = {
        "time": "Time and session: the target compared with the newest item of the history, as dated in the data.",
        "pair": "Pair and reverse: whether the newest item and the target were adjacent in training.",
        "target": "A cold target is no target in training, a rare one in up to 5 examples.",
        "history": "History: the number of its items.",
    }
    texts = [
        "Means with 95 % bootstrap intervals over the examples of each slice, drawn as above; differences are paired."
    ]
    texts += [note for group, note in notes.items() if group in groups]
    if results.slices:
        texts.append("With many slices, one interval in twenty misses the true value by chance.")
    texts += [f"All examples are in one slice of {group}: {name}." for group, name in results.alike.items()]
    if any(slice_results is None for _, slice_results in results.by_slice):
        texts.append(f"{MISSING}: fewer than {FEWEST} examples (or users, where users are drawn); not reported.")
    return " ".join(texts)


def lists(results: PageResults) -> Section:
    """Invalid predictions in the lists, and their catalogue coverage."""
    headers, rows = ["Recommender", "Examples with an empty list", "Catalogue coverage"], []
    if results.table is not None:
        headers[1:1] = ["Invalid predictions", "Invalid up to the first hit of each example"]
    for name, evaluation in results.evaluations.items():
        row: TableRow = [name]
        if results.table is not None:
            counts = (evaluation.invalid, evaluation.invalid_until_hit)
            row += [format_share(count, evaluation.predictions) for count in counts]
        has_lists = bool(results.recommenders[name].lists)
        empty = format_share(evaluation.empty, evaluation.rows) if has_lists else MISSING
        rows.append([*row, empty, format_coverage(evaluation)])
    note = "Coverage is the share of the catalogue that is among the first K items of at least one example."
    if results.table is not None:
        note += " A prediction is invalid if it is no item's SID; the published system counts them up to the first hit."
    if results.several_seeds:
        note += " With several seeds, the lists of the first one are used."
    title = "Validity and coverage" if results.table is not None else "Coverage"
    return Section(title, [Table(headers, rows), note])


def levels(results: PageResults) -> Section | None:
    """Independent and cumulative hit rates and the drop-off of the user's recommenders, level by level."""
    analyses = {name: results.analyses[name] for name in results.without_baselines if name in results.analyses}
    if not analyses:
        return None
    depth = max(analysis.levels for analysis in analyses.values())
    blocks: list[Block] = []
    for name, analysis in analyses.items():
        text = f"{name}, independent: any of the first K predictions has the target's code at that level."
        blocks.append(Table(*independent_rows(analysis), text))
        text = f"{name}, cumulative: one prediction has the codes up to that level."
        blocks.append(Table(*cumulative_rows(analysis), text))
    deepest = next(analysis for analysis in analyses.values() if analysis.levels == depth)
    rows: list[TableRow] = [
        [
            transition_label(transition),
            *(format_percent(a.dropoff[index]) if index < a.levels else NONE for a in analyses.values()),
        ]
        for index, transition in enumerate(deepest.transitions)
    ]
    blocks.append(Table(["Drop-off at K = 1", *analyses], rows))
    counts = "; ".join(
        f"{name}: {a.rows:,} examples, {a.excluded:,} excluded, {a.unparsable:,} of {a.looked_at:,} are not SIDs"
        for name, a in analyses.items()
    )
    return Section("Accuracy by level", [*blocks, f"{counts}."])


def published(results: PageResults) -> Section | None:
    """Tables of published results, and of our differences from counterparts."""
    reference = results.reference
    if reference is None:
        return None
    names = [name for name in results.metrics if any(name in row.metrics for row in reference.rows)]
    rows = [_published_row(reference, row, names) for row in reference.rows]
    table = Table(["System", "Source", *names], rows, f"{reference.title}: published results, the best in bold.", 2)
    blocks: list[Block] = [reference.source, table]
    if reference.doubtful:
        blocks.append(
            f"{DOUBTFUL} marks a published NDCG that is inconsistent with its hit rates: an example whose hit lies "
            "between two cutoffs k and K adds to NDCG between 1 / log2(K + 1) and 1 / log2(k + 2)."
        )
    stated = [
        [label, *(shown_setting(values[key]) for values in reference.settings.values())]
        for key, label in SETTINGS.items()
        if any(values[key] != UNKNOWN for values in reference.settings.values())
    ]
    if stated:
        text = f"Settings of the published results; {UNKNOWN}: not stated by the source."
        blocks.append(Table(["Setting", *reference.settings], stated, text, 1 + len(reference.settings)))
    gaps = [_gap_row(results, name, row, names) for name in results.recommenders for row in results.counterparts(name)]
    if gaps:
        text = "Discrepancy: ours minus theirs, the relative difference, and whether the published figure is in our "
        blocks.append(Table(["Recommender", "Counterpart", "Ours counted", *names], gaps, f"{text}95 % interval.", 3))
    for name in (name for name in results.without_baselines if name in results.analyses):
        for row in results.counterparts(name):
            blocks += _levels_compared(results, name, row)
    return Section(f"Comparison with published results: {reference.title}", blocks)


def _published_row(reference: Reference, row: ReferenceRow, names: Sequence[str]) -> TableRow:
    cells = [
        Cell(row.shown(name), strong=name not in row.doubtful and row.metrics[name] == reference.best(name))
        if name in row.metrics
        else Cell(NONE)
        for name in names
    ]
    return [row.name, row.group, *cells]


def _gap_row(results: PageResults, name: str, row: ReferenceRow, names: Sequence[str]) -> TableRow:
    """One recommender compared with one published result."""
    label, cells = f"{row.name} ({row.group})", list[str | Cell]()
    gaps = {gap.metric: gap for gap in results.gaps(name, row)}
    for metric in names:
        gap = gaps.get(metric)
        if gap is None:
            cells.append(NONE)
            continue
        theirs = f"{gap.paper:.4f}" + (f" {DOUBTFUL}" if gap.doubtful else "")
        where = f"{'in' if gap.inside else 'out'}side {format_interval(gap.ours)}"
        note = f"{gap.ours.mean:.4f} against {theirs}, {relative(gap.ours.mean, gap.paper)}, {where}"
        cells.append(Cell(signed(gap.gap), note))
    return [name, label, _READING[results.reading_of(row, name)], *cells]


def _levels_compared(results: PageResults, name: str, row: ReferenceRow) -> list[Block]:
    """Per-level tables of ours with the published value and the difference under each number."""
    analysis, blocks = results.analyses[name], list[Block]()
    for kind, (headers, _), values, known in (
        ("independent", independent_rows(analysis), analysis.independent, row.independent),
        ("cumulative", cumulative_rows(analysis), analysis.cumulative, row.cumulative),
    ):
        rows: list[TableRow] = []
        for k, ours in zip(analysis.ks, values.tolist(), strict=True):
            if len(known.get(k, ())) == len(ours):
                cells = [Cell(f"{a:.4f}", f"{b:.4f}, {signed(a - b)}") for a, b in zip(ours, known[k], strict=True)]
                rows.append([str(k), *cells])
        if rows:
            text = f"{name} by level, {kind}; below each number the published one ({row.name}) and ours minus theirs."
            blocks.append(Table(headers, rows, text))
    if len(row.dropoff) == analysis.levels:
        lines: list[TableRow] = []
        for transition, ours, theirs in zip(analysis.transitions, analysis.dropoff, row.dropoff, strict=True):
            gap = MISSING if ours is None else f"{100 * (ours - theirs):+.2f}".replace("-", MINUS)
            lines.append([transition_label(transition), format_percent(theirs), format_percent(ours), gap])
        headers = ["Drop-off at K = 1", f"theirs: {row.name}", f"ours: {name}", "points"]
        blocks.append(Table(headers, lines))
    return blocks


EXAMPLES = 3
"""Examples with a hit, and as many without one, whose lists a page shows."""
SHOWN, HISTORY = 5, 10
"""Items shown of a list, and of a history."""


def example_lists(results: PageResults) -> Section | None:
    """Lists with titles for random examples, half of them hits of the first recommender; None without lists."""
    lists = {
        name: recommender.lists
        for name in results.without_baselines
        if (recommender := results.recommenders[name]).lists is not None
    }
    if not lists:
        return None
    items, rows = results.examples.data.items, results.examples.rows
    ids, titles = items["item_id"].astype(str).tolist(), items["title"].fillna("").astype(str).tolist()

    def title_of(item: int) -> str:
        return "(no item)" if item < 0 else shown_title(titles[item]) or f"(no title, {ids[item]})"

    first, first_lists = next(iter(lists.items()))
    ranks = item_ranks(first_lists)
    is_hit = (ranks >= 1) & (ranks <= SHOWN)
    order = np.random.default_rng(results.bootstrap.seed).permutation(len(ranks))
    hits, misses = order[is_hit[order]], order[~is_hit[order]]
    blocks: list[Block] = [
        f"Examples drawn at random: up to {EXAMPLES} in which {first} has the target among its first {SHOWN} items, "
        f"and up to {EXAMPLES} in which it has not ({len(hits):,} and {len(misses):,} of all examples). ✓ marks the "
        "target."
    ]
    for row in (*hits[:EXAMPLES].tolist(), *misses[:EXAMPLES].tolist()):
        target, history = int(rows.targets[row]), rows.histories[row].tolist()
        newest = [title_of(item) for item in history[-HISTORY:]]
        columns = [
            [Cell(title_of(item) + " ✓" * (item == target), strong=item == target) for item in of.items[row][:SHOWN]]
            for of in lists.values()
        ]
        ranked: list[TableRow] = [
            [str(rank), *cells] for rank, cells in enumerate(zip_longest(*columns, fillvalue=Cell(NONE)), start=1)
        ]
        blocks += [
            f"Example {row}. Target: {title_of(target)}. History, the newest {len(newest)} of {len(history)} items:",
            newest,
            Table(["Rank", *lists], ranked, text_columns=1 + len(lists)),
        ]
    return Section("Examples", blocks)


def _counting(results: PageResults) -> list[str]:
    """Notes on recommenders whose hits are counted by their own semantic IDs or by titles."""
    notes = []
    with_own = [name for name, recommender in results.recommenders.items() if recommender.counted_by == OWN_SIDS]
    with_titles = [name for name, recommender in results.recommenders.items() if recommender.counted_by == TITLE]
    if with_own:
        notes.append(
            f"Counted by their own SIDs: {', '.join(with_own)}. Where fewer items share an SID, a hit is harder; "
            "compare these with the others by item only."
        )
    if with_titles:
        notes.append(f"Counted by title: {', '.join(with_titles)}. A hit is any item with the target's title.")
    return notes


def training(results: PageResults) -> Section | None:
    """Cost and learning curves of the trainings; None if no predictions name a checkpoint."""
    if not results.trainings:
        return None
    panels = [
        (f"{training.name}: {measure}", series)
        for training in results.trainings
        for measure, series in training.curves().items()
    ]
    blocks = _cost(results)
    if panels and plots.available():
        blocks.append(Figure(plots.learning_curves(panels), "Learning curves, from the training logs."))
    return Section("Training", blocks)


def _cost(results: PageResults) -> list[Block]:
    """The cost of each recommender: search, tuning, size, examples and time."""
    rows: list[TableRow] = []
    machines: dict[str, None] = {}
    notes = list[str]()
    details = [recommender.details for recommender in results.recommenders.values()]
    described = [key for key in ("tuned", "note") if any(of.get(key) for of in details)]
    for name in results.without_baselines:
        effort, words = results.effort(name), [results.recommenders[name].details.get(key) or NONE for key in described]
        machines |= dict.fromkeys(effort.machines)
        parts = ""
        if len(effort.parts) > 1 and any(seconds is not None for _, seconds in effort.parts):
            shown = (f"{part} {NOT_RECORDED if s is None else duration(s)}" for part, s in effort.parts)
            parts = f"({', '.join(shown)})"
        trained = Cell(_seconds(effort.seconds), parts) if effort.runs[0].trainings else NONE
        seeds = Cell(str(len(effort.runs)), f"({', '.join(map(str, effort.seeds))})" if effort.seeds else "")
        size = NONE if effort.parameters is None else f"{effort.parameters:,}"
        examples = NONE if effort.examples is None else f"{effort.examples[0]:,} x {effort.examples[1]:.4g}"
        evaluated = _seconds(effort.evaluation_seconds)
        rows.append([name, effort.search, *words, seeds, size, examples, trained, evaluated])
        notes += _cost_notes(name, effort)
    headers = ["Recommender", "Search", *map(str.capitalize, described)]
    headers += ["Seeds", "Parameters", "Examples x epochs", "Training", "Evaluation"]
    caption = (
        "Parameters of all models used in a query; examples (or windows of a user's items) per epoch times epochs "
        "trained; wall time of training, with all preceding trainings, and of evaluation, as means over seeds."
    )
    note = f"Times were measured on: {'; '.join(machines) or NOT_RECORDED}."
    return [Table(headers, rows, caption, 2 + len(described)), note, *notes]


def _seconds(seconds: float | None) -> str:
    return NOT_RECORDED if seconds is None else duration(seconds)


def _cost_notes(name: str, effort: Effort) -> list[str]:
    """Notes on settings in which the seeds of a recommender differ, and on missing inputs."""
    notes = []
    if effort.settings_that_differ:
        differing = "; ".join(
            f"{key} {', '.join(map(shown_setting, values))}" for key, values in effort.settings_that_differ.items()
        )
        notes.append(
            f"The runs of {name} were trained with different settings, so its mean and its standard deviation are not "
            f"over seeds alone: {differing}."
        )
    missing = sorted({path for run in effort.runs for path in run.missing})
    if missing:
        notes.append(f"{name}: missing or changed since, so the training cost is unknown: {', '.join(missing)}.")
    return notes
