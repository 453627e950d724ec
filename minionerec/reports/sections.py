"""The sections of a report: each is a function of results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from minionerec.core.artefacts import artefact_fingerprint, file_sha256, source_manifests
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
    format_mean,
    format_percent,
    format_share,
    independent_rows,
    transition_label,
)
from minionerec.metrics.values import HR, VALUE
from minionerec.recommend.rankers.baselines import NAMES
from minionerec.reports import plots
from minionerec.reports.cells import MINUS, difference_cell, estimate_cell, percent, relative, shown_setting, signed
from minionerec.reports.page import Block, Cell, Details, Example, Figure, Section, Table, Tiles
from minionerec.reports.reference import DOUBTFUL, SETTINGS, UNKNOWN, Reference, ReferenceRow
from minionerec.reports.results import MANY, OWN_SIDS, TITLE, PageResults
from minionerec.reports.summary import summary
from minionerec.reports.trainings import NOT_RECORDED, Effort, Training, outcome, settings_changed
from minionerec.sid.report import REPORT_FILE, level_use, read_sid_report

TableRow = list[str | Cell]
NONE = "\N{EM DASH}"
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
    """The sentences of the summary, and one metric of all recommenders as tiles."""
    metric, level = results.headline, results.levels[0]
    tiles = [
        (name, format_mean(estimates[metric]), format_interval(estimates[metric]))
        for name, estimates in results.estimates(level).items()
    ]
    if metric in results.ceiling_of_sids:
        tiles.append(("ceiling", f"{results.ceiling[metric]:.4f}", "expected of the best possible ranking"))
    text = f"{metric} on the {results.split} examples, counted {_READING[level]}, with its 95 % bootstrap interval."
    text += f" {results.bootstrap.sentence()}"
    text += " ± is the standard deviation over seeds." if results.several_seeds else ""
    text += (
        " Differences are paired example by example; a recommender is ahead or behind where the 95 % interval of the "
        "difference excludes 0. It covers the sampling of test examples for these trained models, not the training "
        "seed."
    )
    blocks: list[Block] = [summary(results), Tiles(tiles), text, *_counting(results)]
    if not plots.available():
        blocks.append("Plots are left out: matplotlib is not installed (the extra 'plots').")
    return Section("Summary", blocks)


def _facts(results: PageResults) -> list[tuple[str, str]]:
    """Data, SIDs, candidates, seeds and baselines, as (name, value)."""
    recommenders = {name: results.recommenders[name] for name in results.without_baselines}
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
    counts = (
        f"{name} {'whole catalogue' if recommender.list_length is None else recommender.list_length}"
        for name, recommender in recommenders.items()
    )
    lines.append(
        ("Beams (candidates per example)" if table is not None else "Candidates per example", ", ".join(counts))
    )
    if results.several_seeds:
        lines.append(
            ("Seeds", ", ".join(f"{name} {len(recommender.runs)}" for name, recommender in recommenders.items()))
        )
    known = {
        name: count
        for name, recommender in recommenders.items()
        if isinstance(count := recommender.about.get("parameters"), int)
    }
    if known:
        lines.append(("Parameters", ", ".join(f"{name} {count:,}" for name, count in known.items())))
    for sentence in results.chosen.sentences() if results.chosen and results.baselines else ():
        topic, _, text = sentence.partition(": ")
        lines.append((f"Baseline {topic}" if topic.startswith(NAMES) else f"Baselines: {topic}", text))
    return lines


def measured(results: PageResults) -> Section:
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
    """A table for each reading of a hit, and HR@K as a plot."""
    blocks: list[Block] = [metrics_table(results, level) for level in _levels(results) if results.measured(level)]
    blocks += _by_item_too(results)
    if (
        plots.available()
        and all(f"HR@{k}" in results.metrics for k in results.ks)
        and len(results.without_baselines) <= MANY
    ):
        blocks.append(_hit_rates(results))
    return Section("Ranking metrics", blocks)


def _levels(results: PageResults) -> Sequence[str]:
    """The levels of a hit whose tables differ."""
    first, *others = results.levels
    return [
        first,
        *(level for level in others if results.ceiling or results.estimates(level) != results.estimates(first)),
    ]


def _by_item_too(results: PageResults) -> list[Block]:
    """Note in place of the omitted table by item, if any."""
    if len(_levels(results)) == len(results.levels):
        return []
    return ["Counted by item the figures are the same: no two candidates share a semantic ID."]


def metrics_table(results: PageResults, level: str) -> Table:
    """All metrics of all recommenders at one level, with the published values of counterparts."""
    estimates, names = results.estimates(level), results.metrics
    rows: dict[str, TableRow] = {}
    for name, recommender in results.recommenders.items():
        counterpart = results.own_counterpart(name) if results.split == "test" else None
        of_recommender = estimates.get(name, {})
        parameters = recommender.about.get("parameters")
        cells: TableRow = [
            f"{parameters:,}" if parameters else MISSING,
            str(len(recommender.runs)),
        ]
        for metric in names:
            note = f"; published {counterpart.shown(metric)}" if counterpart and metric in counterpart.metrics else ""
            cells.append(_value(of_recommender.get(metric), note))
        rows[name] = [_label(results, name), *cells]
    lines = _with_line_apart(results, rows)
    caption = (
        f"{results.split} examples, counted {READING[level]}; means over all examples, 95 % bootstrap intervals in "
    )
    caption += "brackets, ± the standard deviation over seeds."
    if level == "item" and results.ceiling:
        shown = [f"{results.ceiling[metric]:.4f}" if metric in results.ceiling else MISSING for metric in names]
        lines.append(["ceiling", MISSING, MISSING, *shown])
        caption += " The ceiling is what the best possible ranking of items may expect on these examples."
    return Table(["Recommender", "Parameters", "Seeds", *names], lines, caption)


def _value(estimate: Estimate | None, note: str = "") -> Cell:
    return Cell(NONE) if estimate is None else estimate_cell(estimate, note)


def _hit_rates(results: PageResults) -> Figure:
    level = results.levels[0]
    series = {
        name: {k: (of[f"HR@{k}"].mean, of[f"HR@{k}"].low, of[f"HR@{k}"].high) for k in results.ks}
        for name, of in results.estimates(level).items()
    }
    dashed = {}
    reachable = {k: results.ceiling_of_sids[f"HR@{k}"] for k in results.ks if f"HR@{k}" in results.ceiling_of_sids}
    if reachable:
        dashed["ceiling"] = reachable
    reference = results.reference
    for row in reference.rows if reference else ():
        points = {k: row.metrics[f"HR@{k}"] for k in results.ks if f"HR@{k}" in row.metrics}
        if reference and points and (row.compare or row.name == reference.headline):
            dashed[f"{row.name} ({row.group})"] = points
    caption = f"HR@K, counted {_READING[level]}; bands are 95 % intervals, dashed lines have none."
    return Figure(plots.hit_rate_curves(series, dashed), caption)


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
    trade_offs, drawn = results.trade_offs, results.bootstrap
    plain = {(name, metric): curve[0][metric] for name, curve in trade_offs.items() for metric in (HR, VALUE)}
    estimates = estimate(plain, drawn.seed, drawn.resamples, drawn.clusters)
    rows: list[TableRow] = [
        [_label(results, name), *(estimate_cell(estimates[name, metric]) for metric in (HR, VALUE))]
        for name in trade_offs
    ]
    caption = (
        f"Value of the target where the first ten find it, by {results.value_column}, in units of the mean item; of "
        "the first seed."
    )
    blocks: list[Block] = [Table(["Recommender", HR, VALUE], rows, caption)]
    compared: list[TableRow] = [
        [
            f"{name} minus {results.first}, re-ranked",
            f"{gap.hit:.4f}",
            f"{gap.value:.4f}",
            f"{gap.re_ranked:.4f}",
            difference_cell(gap.difference),
        ]
        for name, gap in results.value_gaps.items()
    ]
    if compared:
        headers = ["Difference", HR, VALUE, f"{VALUE} of {results.first}, re-ranked", "Difference"]
        note = (
            f"Re-ranked by log-probability + weight x log({results.value_column}), with the weights that give "
            f"{results.first} the HR@10 of the other recommender."
        )
        blocks.append(Table(headers, compared, note))
    if plots.available():
        means = {
            name: [(float(point[HR].mean()), float(point[VALUE].mean())) for point in curve]
            for name, curve in trade_offs.items()
            if name in results.without_baselines
        }
        blocks.append(Figure(plots.trade_offs(means), "Lists as they are (dots), and re-ranked by value (lines)."))
    return Section("Value of the lists", blocks)


def _slice_table(slices: Sequence[Slice], columns: Mapping[str, Sequence[Cell]], caption: str) -> Table:
    """One row per slice; with many recommenders one row per recommender."""
    rows: list[TableRow] = []
    for index, part in enumerate(slices):
        new = index == 0 or slices[index - 1].group != part.group
        label: TableRow = [f"{part.group}: {part.name}" if len(columns) > MANY or new else f"… {part.name}"]
        size = Cell(f"{part.size:,}", f"{100 * part.share:.0f} %")
        rows.append([*label, size, *(cells[index] for cells in columns.values())])
    table = Table(["", "examples", *columns], rows, caption)
    return table.transposed() if len(columns) > MANY else table


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
    blocks: list[Block] = [_level_bars(results, depth)] if plots.available() else []
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
    gains: list[TableRow] = []
    for name, other in results.pairs:
        later, earlier = analyses.get(name), analyses.get(other)
        if later and earlier and later.levels == earlier.levels == depth and later.ks[0] == earlier.ks[0] == 1:
            points = [100 * (a - b) for a, b in zip(later.cumulative[0], earlier.cumulative[0], strict=True)]
            gains.append([f"{name} minus {other}", *(f"{gain:+.2f}".replace("-", MINUS) for gain in points)])
    if gains:
        blocks.append(Table(["Cumulative at K = 1, points", *cumulative_rows(deepest)[0][1:]], gains))
    counts = "; ".join(
        f"{name}: {a.rows:,} examples, {a.excluded:,} excluded, {a.unparsable:,} of {a.looked_at:,} are not SIDs"
        for name, a in analyses.items()
    )
    return Section("Accuracy by level", [*blocks, f"{counts}."])


def _level_bars(results: PageResults, depth: int) -> Figure:
    labels = ["+".join(f"L{n}" for n in range(1, level + 1)) for level in range(1, depth + 1)]
    panels = {}
    for k in sorted({results.ks[0], 10 if 10 in results.ks else results.ks[-1]}):
        panels[f"K = {k}"] = {
            name: analysis.cumulative[analysis.ks.index(k)].tolist()
            for name, analysis in results.analyses.items()
            if analysis.levels == depth and k in analysis.ks
        }
    caption = "Cumulative accuracy: one of the first K predictions has the target's codes up to that level."
    return Figure(plots.level_bars({title: bars for title, bars in panels.items() if bars}, labels), caption)


def published(results: PageResults) -> Section | None:
    """Tables of published results and ours, and of our differences from counterparts."""
    reference, level = results.reference, results.levels[0]
    if reference is None:
        return None
    names = [name for name in results.metrics if any(name in row.metrics for row in reference.rows)]
    rows = [_published_row(reference, row, names) for row in reference.rows]
    ours: dict[str, TableRow] = {}
    for name, estimates in results.estimates(level).items():
        ours[name] = [_label(results, name), "this page", *(_value(estimates.get(metric)) for metric in names)]
    caption = f"{reference.title}: published results, the best in bold, and ours (counted {_READING[level]})."
    table = Table(["System", "Source", *names], [*rows, *_with_line_apart(results, ours)], caption, 2)
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


def codebooks(results: PageResults) -> Section | None:
    """Use of each level of the semantic IDs, and the number of items that share one."""
    table, examples = results.table, results.examples
    if table is None or examples.sids is None:
        return None
    built = read_sid_report(examples.sids) if (examples.sids / REPORT_FILE).is_file() else {}
    stored_levels, uses, rows = built.get("levels", []), level_use(table.codes), list[TableRow]()
    for index, use in enumerate(uses):
        extra = stored_levels[index] if index < len(stored_levels) else {}
        size = MISSING if extra.get("size") is None else f"{extra['size']:,}"
        counted = [f"{use.items:,}", f"{use.used:,}", size, f"{use.perplexity:.1f}", f"{use.largest:,}"]
        rows.append([use.level, *counted, percent(extra.get("error"))])
    headers = ["Level", "items", "codes used", "codebook", "perplexity", "largest code, items", "residual variance"]
    caption = (
        "Perplexity is the number of equally used codes with the same entropy; residual variance is the share that the "
        "levels so far leave unexplained."
    )
    blocks: list[Block] = [Table(headers, rows, caption)]
    if plots.available():
        counts = [np.asarray([n for n in use.use if n]) for use in uses]
        blocks.append(Figure(plots.codebook_use(counts), "Items per code at each level, most used code first."))
    groups = np.bincount(table.sid_numbers)
    crowded = groups[groups > 1]
    text = (
        f"{table.n_unique:,} distinct SIDs for {len(table):,} items; {len(crowded):,} SIDs are shared, by "
        f"{crowded.sum():,} items in total, at most {groups.max():,} per SID."
    )
    collisions = built.get("collisions", {})
    if before := collisions.get("before", {}):
        text += (
            f" Collision handling {collisions.get('method')!r}: {before.get('sharing_items')} items shared their SID "
            f"before, {collisions.get('after', {}).get('sharing_items')} after."
        )
    return Section("Use of the codebooks", [*blocks, text])


EXAMPLES = 6
"""Examples whose lists a page shows."""
_SHOWN, _HISTORY = 5, 20


def example_lists(results: PageResults) -> Section | None:
    """Seeded examples: half hits of the first recommender in its first five items, half misses; None without lists."""
    listed = {
        name: recommender.lists
        for name in results.without_baselines
        if (recommender := results.recommenders[name]).lists is not None
    }
    if not listed:
        return None
    first, first_lists = next(iter(listed.items()))
    ranks = item_ranks(first_lists)
    hits, misses = np.flatnonzero((ranks >= 1) & (ranks <= _SHOWN)), np.flatnonzero((ranks == 0) | (ranks > _SHOWN))
    rng = np.random.default_rng(results.bootstrap.seed)
    count = min(EXAMPLES, len(ranks))
    n_hits = min(max(count // 2, count - len(misses)), len(hits))
    selected = [*rng.choice(hits, n_hits, replace=False), *rng.choice(misses, count - n_hits, replace=False)]
    titles, rows = results.examples.titles(), results.examples.rows
    text = (
        f"Examples drawn at random: {n_hits} in which {first} has the target among its first five items, and "
        f"{count - n_hits} in which it has not ({len(hits):,} and {len(misses):,} of all examples). "
        "✓ marks the target."
    )
    blocks: list[Block] = [text]
    for row in (int(row) for row in selected):
        target, history = int(rows.targets[row]), [titles[item] for item in rows.histories[row]]
        shown = [
            (name, [(titles[item] if item >= 0 else "(no item)", item == target) for item in of.items[row][:_SHOWN]])
            for name, of in listed.items()
        ]
        omitted = len(history) - _HISTORY
        history = [f"({omitted:,} earlier items)", *history[omitted:]] if omitted > 0 else history
        blocks.append(Example(f"Example {row}", history, titles[target], shown))
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
    """Cost, settings, outcome and learning curves of the trainings; None if no predictions name a checkpoint."""
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
    for training in results.trainings:
        title = training.title if training.name == training.title else f"{training.name}: {training.title}"
        changed = [list(line) for line in settings_changed(training)]
        caption = f"{title}, settings that differ from the defaults."
        blocks.append(Table(["Setting", "Value"], changed, caption, text_columns=2))
        blocks.append(Table(["Outcome", "Value"], [list(line) for line in outcome(training)], f"{title}.", 2))
        blocks += _inputs(training, title)
    return Section("Training", blocks)


def _inputs(training: Training, title: str) -> list[Block]:
    """What each input beside the items is worth to a trained model, by its manifest; nothing where it has none."""
    gains = training.counts.get("inputs")
    if not gains:
        return []
    with_all = gains["NDCG@10"]
    lines: list[TableRow] = [["all inputs", f"{with_all:.4f}", NONE]]
    lines += [
        [f"without {name}", f"{value:.4f}", f"{value - with_all:+.4f}"] for name, value in gains["without"].items()
    ]
    caption = (
        f"{title}: inputs beside the items of a history, on {gains['examples']:,} validation examples. A column of the "
        "items is hidden from the trained model by giving every item the mean of all; a request feature and the events "
        "of history items are hidden as unknown."
    )
    return [Table(["Inputs", "NDCG@10", "Difference"], lines, caption)]


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


def sources(inputs: Mapping[str, Path]) -> Section:
    """All artefacts and files that the report depends on: kind, seed, hash, packages and configuration.

    Args:
        inputs: The inputs of the stage by name; unchanged inputs of artefacts are followed.
    """
    manifests = {str(path): manifest for path, manifest, _ in source_manifests(inputs.values())}
    rows: list[TableRow] = [
        [
            path,
            manifest["kind"],
            MISSING if manifest["seed"] is None else str(manifest["seed"]),
            artefact_fingerprint(manifest)[:16],
        ]
        for path, manifest in manifests.items()
    ]
    rows += [
        [str(path), "file", MISSING, file_sha256(path)[:16]]
        for name, path in inputs.items()
        if path.is_file() and name != "reference"  # of the package
    ]
    versions: dict[str, set[str]] = {}
    for manifest in manifests.values():
        for package, version in manifest["versions"].items():
            versions.setdefault(package, set()).add(version)
    packages = [[name, " and ".join(sorted(known))] for name, known in sorted(versions.items())]
    configurations: list[Block] = [
        Details(
            f"{manifest['kind']}: {path}",
            json.dumps(
                {key: manifest[key] for key in ("config", "inputs", "counts", "seed", "versions")},
                indent=1,
                sort_keys=True,
                ensure_ascii=False,
            ),
        )
        for path, manifest in manifests.items()
    ]
    tables = [
        Table(["Artefact", "Kind", "Seed", "SHA-256 (first 16)"], rows, text_columns=2),
        Table(["Package", "Version"], packages),
    ]
    return Section("Sources", [*tables, *configurations])
