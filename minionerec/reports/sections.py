"""The sections of pages: each is a function of results."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minionerec.core.artefacts import read_json
from minionerec.core.records import duration
from minionerec.data.protocols import ROWS
from minionerec.metrics.ranking import item_ranks
from minionerec.metrics.results import FEWEST, Slice
from minionerec.metrics.statistics import Estimate
from minionerec.metrics.tables import (
    MANY,
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
from minionerec.recommend.rankers.baselines import NAMES
from minionerec.reports import plots
from minionerec.reports.cells import MINUS, difference_cell, estimate_cell, percent, relative, shown_setting, signed
from minionerec.reports.document import (
    Block,
    Bullets,
    Cell,
    ExampleBlock,
    Figure,
    Paragraph,
    Section,
    Table,
    Tiles,
    turned,
)
from minionerec.reports.findings import SHORT, findings
from minionerec.reports.reference import DOUBTFUL, Reference, ReferenceRow
from minionerec.reports.results import OWN_SIDS, TITLE, PageResults
from minionerec.reports.trainings import NOT_RECORDED, Effort
from minionerec.sid.report import level_use

Row = list[str | Cell]
PENDING = "—"
READING = {"sid": "by semantic ID, of models over titles by title", "item": "by item"}
_READING = {"sid": "by SID", "item": "by item"}
NOT_COMPARABLE = "given more than the history: not comparable with published rows"
"""The line that stands, beside published figures, above recommenders that were given what no published one was."""
_PAIRED = (
    "Both recommenders are resampled on the same examples: 95 % percentile interval of the difference, and two-sided "
    "bootstrap p. It is about the choice of test examples for these trained models, not about the training seed."
)


def _bullets(results: PageResults, *rules: str) -> list[Block]:
    """Sentences by rules; nothing without any."""
    said = [found.text for found in findings(results, *rules)]
    return [Bullets(said)] if said else []


def _with_line_apart(results: PageResults, rows: Mapping[str, Row]) -> list[Row]:
    """Rows by recommender: where published figures are shown, those that were given more follow under a line."""
    if results.reference is None or not set(results.conditioned) & rows.keys():
        return list(rows.values())
    beside = [row for name, row in rows.items() if name not in results.conditioned]
    line: Row = [NOT_COMPARABLE, *[""] * (len(next(iter(rows.values()))) - 1)]
    return [*beside, line, *(row for name, row in rows.items() if name in results.conditioned)]


def _label(results: PageResults, name: str) -> str:
    return f"baseline: {name}" if name in results.baselines else name


def short(results: PageResults) -> Section:
    """One metric of everyone, as tiles, and what it says."""
    metric, level = results.headline, results.levels[0]
    found = results.estimates(level)
    tiles = [(name, format_mean(of[metric]), format_interval(of[metric])) for name, of in found.items()]
    if metric in results.ceiling_of_sids:
        tiles.append(("ceiling", f"{results.ceiling[metric]:.4f}", "expected of the best possible ranking"))
    text = f"{metric} on the {results.split} rows, counted {_READING[level]}, with its 95 % bootstrap interval."
    text += f" {results.bootstrap.sentence()}"
    text += " ± is the standard deviation over seeds." if results.several_seeds else ""
    text += (
        " Differences are paired example by example; ahead and behind are said where the 95 % interval of the "
        "difference excludes 0. It is about the choice of test examples for these trained models, not about the "
        "training seed."
    )
    blocks: list[Block] = [*_bullets(results, *SHORT), Tiles(tiles), Paragraph(text)]
    if not plots.available():
        blocks.append(Paragraph("Plots are left out: matplotlib is not installed (the extra 'plots')."))
    return Section("In short", blocks)


def facts(results: PageResults) -> list[tuple[str, str]]:
    """Data, SIDs, candidates, seeds and baselines, as (name, value)."""
    own = {name: results.recommenders[name] for name in results.own}
    lines: list[tuple[str, str]] = []
    if (examples := results.examples) is not None:
        lines = [
            *([] if examples.protocol.name == ROWS else [("Protocol", examples.protocol.title)]),
            ("Split", f"{examples.title}; {results.split} rows"),
            ("Rows", ", ".join(f"{size:,} {split}" for split, size in examples.sizes.items())),
            ("Items", f"{examples.n_items:,}"),
            ("Longest history", f"{examples.max_history} items"),
        ]
    if (table := results.table) is not None and examples is not None:
        shared = np.bincount(table.sid_numbers)[table.sid_numbers] > 1
        hidden = int(shared[examples.rows.targets.astype(np.int64)].sum())
        lines += [
            ("Semantic IDs", f"{table.n_unique:,} distinct, {table.levels} levels"),
            ("SID table", table.fingerprint),
            ("Items that share their SID", f"{int(shared.sum()):,} of {len(table):,}"),
            ("Rows whose target shares its SID", f"{hidden:,} of {len(examples.rows):,}"),
        ]
    widths = (f"{name} {'whole catalogue' if who.width is None else who.width}" for name, who in own.items())
    lines.append(("Beams (candidates a row)" if table is not None else "Candidates a row", ", ".join(widths)))
    if results.several_seeds:
        lines.append(("Seeds", ", ".join(f"{name} {len(who.runs)}" for name, who in own.items())))
    known = {name: count for name, who in own.items() if isinstance(count := who.about.get("parameters"), int)}
    if known:
        lines.append(("Parameters", ", ".join(f"{name} {count:,}" for name, count in known.items())))
    for sentence in results.chosen.sentences() if results.chosen and results.baselines else ():
        what, _, text = sentence.partition(": ")
        lines.append((f"Baseline {what}" if what in NAMES else f"Baselines' {what}", text))
    return lines


def measured(results: PageResults) -> Section:
    """What was measured, and how a hit is counted."""
    note = "A hit is the target item itself."
    if results.table is not None:
        note = (
            "A SID-level hit is the target's semantic ID: items that share an ID count for one another. An item-level "
            "hit is the target itself; items that share an ID are ranked by popularity in training, then by item index."
        )
    lines = [list(line) for line in facts(results)]
    return Section("What was measured", [Table(["", ""], lines, text_columns=2), Paragraph(note)])


def metrics(results: PageResults) -> Section:
    """A table for each reading of a hit, and HR@K as a plot."""
    blocks: list[Block] = [metrics_table(results, level) for level in results.levels if results.measured(level)]
    if plots.available() and all(f"HR@{k}" in results.metrics for k in results.ks) and len(results.own) <= MANY:
        blocks.append(_hit_rates(results))
    return Section("Ranking metrics", blocks)


def metrics_table(results: PageResults, level: str) -> Table:
    """Every metric of everyone in one reading, with the published figure where one is the counterpart."""
    found, names = results.estimates(level), results.metrics
    rows: dict[str, Row] = {}
    for name, who in results.recommenders.items():
        theirs = results.own_counterpart(name) if results.split == "test" else None
        known = found.get(name, {})
        counted = who.about.get("parameters")
        cells: Row = [f"{counted:,}" if counted else MISSING, str(len(who.runs)) if who.runs else PENDING]
        for metric in names:
            note = f"; published {theirs.shown(metric)}" if theirs and metric in theirs.metrics else ""
            cells.append(_value(known.get(metric), note))
        rows[name] = [_label(results, name), *cells]
    lines = _with_line_apart(results, rows)
    caption = f"{results.split} rows, counted {READING[level]}; means over all examples, 95 % bootstrap intervals in "
    caption += "brackets, ± the standard deviation over seeds."
    if level == "item" and results.ceiling:
        shown = [f"{results.ceiling[metric]:.4f}" if metric in results.ceiling else MISSING for metric in names]
        lines.append(["ceiling", MISSING, MISSING, *shown])
        caption += " The ceiling is what the best possible ranking of items may expect on these examples."
    return Table(["Recommender", "Parameters", "Seeds", *names], lines, caption)


def _value(estimate: Estimate | None, note: str = "") -> Cell:
    return Cell(PENDING) if estimate is None else estimate_cell(estimate, note)


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
    for theirs in reference.rows if reference else ():
        points = {k: theirs.metrics[f"HR@{k}"] for k in results.ks if f"HR@{k}" in theirs.metrics}
        if reference and points and (theirs.compare or theirs.name == reference.headline):
            dashed[f"{theirs.name} ({theirs.group})"] = points
    caption = f"HR@K, counted {_READING[level]}; bands are 95 % intervals, dashed lines have none."
    return Figure(plots.hit_rate_curves(series, dashed), caption)


def differences(results: PageResults) -> Section | None:
    """How far everyone lies from the first, and of few each from the one before, example by example."""
    blocks: list[Block] = []
    for level in results.levels:
        pairs = [pair for pair in results.pairs if set(pair) <= set(results.measured(level))]
        if not pairs:
            continue
        results.differences(results.first, level)
        rows: list[Row] = []
        for name, other in pairs:
            found = results.differences(other, level, [name])[name]
            rows.append([f"{_label(results, name)} minus {other}", *map(difference_cell, found.values())])
        blocks.append(Table(["Difference", *results.metrics], rows, f"Differences counted {READING[level]}."))
    if results.first in results.pending:
        blocks.append(Paragraph(f"{results.first} is pending."))
    note = _PAIRED + (" Of several seeds each example's mean is taken first." if results.several_seeds else "")
    return Section(f"Differences from {results.first}", [Paragraph(note), *blocks]) if blocks else None


def slices(results: PageResults) -> Section | None:
    """Figures by slice, the differences from the first, and what they say."""
    if results.examples is None or not (results.slices or results.alike):
        return None
    metric, level, blocks = results.headline, results.levels[0], _bullets(results, "slices")
    columns: dict[str, list[Cell]] = {name: [] for name in results.measured(level)}
    gaps: dict[str, list[Cell]] = {name: [] for name in results.own if name != results.first}
    for _, found in results.by_slice:
        known = {} if found is None else found.estimates(level)
        beside = {} if found is None else found.differences(results.first, level)
        for name, cells in columns.items():
            cells.append(estimate_cell(known[name][metric] if name in known else None))
        for name, cells in gaps.items():
            cells.append(difference_cell(beside[name][metric] if name in beside else None))
    if results.slices:
        blocks.append(_slice_table(results.slices, columns, f"{metric} by kind of row."))
        if gaps:
            blocks.append(_slice_table(results.slices, gaps, f"{metric}, each minus {results.first} by kind of row."))
    return Section("By kind of row", [*blocks, Paragraph(_slice_note(results))])


def _slice_table(slices: Sequence[Slice], columns: Mapping[str, Sequence[Cell]], caption: str) -> Table:
    """A row a slice; with many recommenders a row a recommender."""
    rows: list[Row] = []
    for place, each in enumerate(slices):
        new = place == 0 or slices[place - 1].group != each.group
        label: Row = [f"{each.group}: {each.name}" if len(columns) > MANY or new else f"… {each.name}"]
        size = Cell(f"{each.size:,}", f"{100 * each.share:.0f} %")
        rows.append([*label, size, *(cells[place] for cells in columns.values())])
    table = Table(["", "rows", *columns], rows, caption)
    return turned(table) if len(columns) > MANY else table


def _slice_note(results: PageResults) -> str:
    """How to read the tables."""
    groups = {each.group for each in results.slices}
    notes = {
        "time": "Time: that of the target beside that of the newest item of the history, as the data give it.",
        "pair": "Pair and reverse: whether the newest item and the target stood next to each other in training.",
        "target": "A cold target is no target in training, a rare one in up to 5 rows.",
        "history": "History: the number of its items.",
    }
    said = ["Means with 95 % bootstrap intervals over the rows of each kind, drawn as above; differences are paired."]
    said += [note for group, note in notes.items() if group in groups]
    if results.slices:
        said.append("Of so many kinds one interval in twenty leaves out the truth by chance.")
    said += [f"All rows are of one kind in {group}: {name}." for group, name in results.alike.items()]
    if any(found is None for _, found in results.by_slice):
        said.append(f"{MISSING}: fewer than {FEWEST} rows, or users where these are drawn; nothing is said of them.")
    return " ".join(said)


def lists(results: PageResults) -> Section:
    """What the lists contain that is no item, and how much of the catalogue they show."""
    known = {name: (found, results.recommenders[name].lists) for name, found in results.evaluations.items()}
    headers, rows = ["Recommender", "Rows with an empty list", "Catalogue coverage"], []
    if results.table is not None:
        headers[1:1] = ["Predictions of no item's SID", "The same, up to the first hit of each row"]
    for name, (found, there) in known.items():
        row: Row = [name]
        if results.table is not None:
            row += [format_share(each, found.predictions) for each in (found.invalid, found.invalid_until_hit)]
        rows.append([*row, format_share(found.empty, found.rows) if there else MISSING, format_coverage(found)])
    note = "Coverage is the share of the catalogue that stands in the first K items of at least one row."
    if results.table is not None:
        note += " Counting invalid predictions only up to the first hit is how the published system counts."
    if results.several_seeds:
        note += " Of several seeds the first one's lists are looked at."
    title = "Validity and coverage" if results.table is not None else "Coverage"
    return Section(title, [Table(headers, rows), Paragraph(note)])


def levels(results: PageResults) -> Section | None:
    """Independent and cumulative hit rates and the drop-off of the user's recommenders, level by level."""
    found = {name: results.analyses[name] for name in results.own if name in results.analyses}
    if not found:
        return None
    depth = max(analysis.levels for analysis in found.values())
    blocks: list[Block] = [_level_bars(results, depth)] if plots.available() else []
    for name, analysis in found.items():
        text = f"{name}, independent: any of the first K predictions has the target's code at that level."
        blocks.append(Table(*independent_rows(analysis), text))
        text = f"{name}, cumulative: one prediction has the codes up to that level."
        blocks.append(Table(*cumulative_rows(analysis), text))
    deepest = next(analysis for analysis in found.values() if analysis.levels == depth)
    rows: list[Row] = [
        [
            transition_label(transition),
            *(format_percent(a.dropoff[place]) if place < a.levels else PENDING for a in found.values()),
        ]
        for place, transition in enumerate(deepest.transitions)
    ]
    blocks.append(Table(["Drop-off at K = 1", *found], rows))
    gains: list[Row] = []
    for name, before in results.pairs:
        now, then = found.get(name), found.get(before)
        if now and then and now.levels == then.levels == depth and now.ks[0] == then.ks[0] == 1:
            points = [100 * (a - b) for a, b in zip(now.cumulative[0], then.cumulative[0], strict=True)]
            gains.append([f"{name} minus {before}", *(f"{each:+.2f}".replace("-", MINUS) for each in points)])
    if gains:
        blocks.append(Table(["Cumulative at K = 1, points", *cumulative_rows(deepest)[0][1:]], gains))
    counts = "; ".join(
        f"{name}: {a.rows:,} rows, {a.excluded:,} left out, {a.unparsable:,} of {a.looked_at:,} predictions are no SID"
        for name, a in found.items()
    )
    return Section("Accuracy by level", [*blocks, *_bullets(results, "weakest level"), Paragraph(f"{counts}.")])


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
    """All published rows, the best in bold, ours below them, and each of ours beside its counterparts."""
    reference, level = results.reference, results.levels[0]
    if reference is None:
        return None
    names = [name for name in results.metrics if any(name in row.metrics for row in reference.rows)]
    rows = [_published_row(reference, row, names) for row in reference.rows]
    ours: dict[str, Row] = {}
    for name, found in results.estimates(level).items():
        ours[name] = [_label(results, name), "this page", *(_value(found.get(metric)) for metric in names)]
    caption = f"{reference.title}: published rows, the best in bold, and ours (counted {_READING[level]})."
    table = Table(["System", "Source", *names], [*rows, *_with_line_apart(results, ours)], caption, 2)
    blocks: list[Block] = [Paragraph(reference.source), table]
    if reference.doubtful:
        blocks.append(
            Paragraph(
                f"{DOUBTFUL} marks a published NDCG that cannot be right beside its hit rates: a row that is hit "
                "between two cut-offs k and K adds to NDCG between 1 / log2(K + 1) and 1 / log2(k + 2)."
            )
        )
    gaps = [_gap_row(results, name, row, names) for name in results.recommenders for row in results.counterparts(name)]
    if gaps:
        text = "Discrepancy: ours minus theirs, the relative difference, and whether the published figure lies in our "
        blocks.append(Table(["Recommender", "Counterpart", "Ours counted", *names], gaps, f"{text}95 % interval.", 3))
    for name in (name for name in results.own if name in results.analyses):
        for row in results.counterparts(name):
            blocks += _levels_beside(results, name, row)
    return Section(f"Beside the published numbers: {reference.title}", blocks)


def _published_row(reference: Reference, row: ReferenceRow, names: Sequence[str]) -> Row:
    cells = [
        Cell(row.shown(name), strong=name not in row.doubtful and row.metrics[name] == reference.best(name))
        if name in row.metrics
        else Cell(PENDING)
        for name in names
    ]
    return [row.name, row.group, *cells]


def _gap_row(results: PageResults, name: str, row: ReferenceRow, names: Sequence[str]) -> Row:
    """One recommender beside one published row."""
    label, cells = f"{row.name} ({row.group})", list[str | Cell]()
    if results.recommenders[name].pending:
        return [name, label, PENDING, *[PENDING] * len(names)]
    gaps = {gap.metric: gap for gap in results.gaps(name, row)}
    for metric in names:
        gap = gaps.get(metric)
        if gap is None:
            cells.append(PENDING)
            continue
        theirs = f"{gap.paper:.4f}" + (f" {DOUBTFUL}" if gap.doubtful else "")
        where = f"{'in' if gap.inside else 'out'}side {format_interval(gap.ours)}"
        note = f"{gap.ours.mean:.4f} against {theirs}, {relative(gap.ours.mean, gap.paper)}, {where}"
        cells.append(Cell(signed(gap.gap), note))
    return [name, label, _READING[results.reading_of(row, name)], *cells]


def _levels_beside(results: PageResults, name: str, row: ReferenceRow) -> list[Block]:
    """Per-level tables of ours with the published value and the difference under each number."""
    analysis, blocks = results.analyses[name], list[Block]()
    for kind, (headers, _), values, known in (
        ("independent", independent_rows(analysis), analysis.independent, row.independent),
        ("cumulative", cumulative_rows(analysis), analysis.cumulative, row.cumulative),
    ):
        rows: list[Row] = []
        for k, ours in zip(analysis.ks, values.tolist(), strict=True):
            if len(known.get(k, ())) == len(ours):
                cells = [Cell(f"{a:.4f}", f"{b:.4f}, {signed(a - b)}") for a, b in zip(ours, known[k], strict=True)]
                rows.append([str(k), *cells])
        if rows:
            text = f"{name} by level, {kind}; below each number the published one ({row.name}) and ours minus theirs."
            blocks.append(Table(headers, rows, text))
    if len(row.dropoff) == analysis.levels:
        lines: list[Row] = []
        for transition, ours, theirs in zip(analysis.transitions, analysis.dropoff, row.dropoff, strict=True):
            gap = MISSING if ours is None else f"{100 * (ours - theirs):+.2f}".replace("-", MINUS)
            lines.append([transition_label(transition), format_percent(theirs), format_percent(ours), gap])
        headers = ["Drop-off at K = 1", f"theirs: {row.name}", f"ours: {name}", "points"]
        blocks.append(Table(headers, lines))
    return blocks


def codebooks(results: PageResults) -> Section | None:
    """Use of each level of the semantic IDs, and how many items share one."""
    table, examples = results.table, results.examples
    if table is None or examples is None or examples.sids is None:
        return None
    path = examples.sids / "report.json"
    built: dict[str, Any] = read_json(path) if path.is_file() else {}
    known, uses, rows = built.get("levels", []), level_use(table.codes), list[Row]()
    for place, use in enumerate(uses):
        extra = known[place] if place < len(known) else {}
        size = MISSING if extra.get("size") is None else f"{extra['size']:,}"
        counted = [f"{use.items:,}", f"{use.used:,}", size, f"{use.perplexity:.1f}", f"{use.largest:,}"]
        rows.append([use.level, *counted, percent(extra.get("error"))])
    headers = ["Level", "items", "codes used", "codebook", "perplexity", "items on the largest", "variance left"]
    caption = (
        "Perplexity is the number of equally used codes with the same entropy; variance left is what the levels so "
        "far leave unexplained."
    )
    blocks: list[Block] = [Table(headers, rows, caption)]
    if plots.available():
        counts = [np.asarray([n for n in use.use if n]) for use in uses]
        blocks.append(Figure(plots.codebook_use(counts), "Items per code at each level, most used code first."))
    groups = np.bincount(table.sid_numbers)
    crowded = groups[groups > 1]
    text = (
        f"{table.n_unique:,} distinct SIDs for {len(table):,} items; {len(crowded):,} SIDs are shared, by "
        f"{crowded.sum():,} items in all, at most {groups.max():,} on one."
    )
    collisions = built.get("collisions", {})
    if before := collisions.get("before", {}):
        text += (
            f" Collision handling {collisions.get('method')!r}: {before.get('sharing_items')} items shared their SID "
            f"before, {collisions.get('after', {}).get('sharing_items')} after."
        )
    return Section("Use of the codebooks", [*blocks, Paragraph(text)])


_SHOWN, _HISTORY = 5, 20


def example_lists(results: PageResults, wanted: int) -> Section | None:
    """Seeded examples: half of them hits of the first recommender in its first five items, half misses.

    Args:
        results: The results.
        wanted: How many; None is returned for 0, and where no recommender has lists of these examples.
    """
    listed = {name: who.lists for name in results.own if (who := results.recommenders[name]).lists is not None}
    if not listed or not wanted or results.examples is None:
        return None
    first, made = next(iter(listed.items()))
    ranks = item_ranks(made)
    hits, misses = np.flatnonzero((ranks >= 1) & (ranks <= _SHOWN)), np.flatnonzero((ranks == 0) | (ranks > _SHOWN))
    rng = np.random.default_rng(results.bootstrap.seed)
    wanted = min(wanted, len(ranks))
    n_hits = min(max(wanted // 2, wanted - len(misses)), len(hits))
    chosen = [*rng.choice(hits, n_hits, replace=False), *rng.choice(misses, wanted - n_hits, replace=False)]
    titles, rows = results.examples.titles(), results.examples.rows
    text = (
        f"Rows drawn at random: {n_hits} in which {first} has the target among its first five items, and "
        f"{wanted - n_hits} in which it has not (over all rows that is {len(hits):,} against {len(misses):,}). "
        "✓ marks the target."
    )
    blocks: list[Block] = [Paragraph(text)]
    for row in (int(row) for row in chosen):
        target, history = int(rows.targets[row]), [titles[item] for item in rows.histories[row]]
        shown = [
            (name, [(titles[item] if item >= 0 else "(no item)", item == target) for item in of.items[row][:_SHOWN]])
            for name, of in listed.items()
        ]
        left = len(history) - _HISTORY
        history = [f"({left:,} earlier items)", *history[left:]] if left > 0 else history
        blocks.append(ExampleBlock(f"Row {row}", history, titles[target], shown))
    return Section("Examples", blocks)


def standings(results: PageResults) -> Section:
    """The head of a leaderboard: what it says, a line for each recommender, and how to read them."""
    first, second = results.levels[0], results.levels[-1]
    shown = [(first, metric) for metric in results.pair] + [(second, results.headline)] * (second != first)
    found = {level: results.estimates(level) for level in results.levels}
    rows: dict[str, Row] = {}
    for name, who in results.recommenders.items():
        known = [found[level].get(name, {}).get(metric) for level, metric in shown]
        best, effort = known[0], results.effort(name) if name not in results.baselines else None
        head = (
            Cell(format_mean(best), format_interval(best), name in results.level_with_best) if best else Cell(PENDING)
        )
        cells: Row = [head, *map(_value, known[1:]), *_published_cells(results, name)]
        cells += [_count(effort.parameters if effort else None), _seconds(effort, who.pending), _seeds(effort)]
        rows[name] = [_label(results, name), *cells]
    headers = ["Recommender", *(f"{metric}, {_READING[level]}" for level, metric in shown), "Published", "Gap"]
    caption = (
        f"{results.split} rows; 95 % bootstrap intervals in brackets, ± the standard deviation over seeds. Bold: "
        f"the highest {results.headline}, and those that the paired bootstrap cannot tell from it."
    )
    table = Table([*headers, "Parameters", "Training", "Seeds"], _with_line_apart(results, rows), caption)
    return Section("In short", [*_bullets(results, *SHORT), table, *map(Paragraph, _notes(results))])


def _published_cells(results: PageResults, name: str) -> Row:
    """The published figure and ours minus theirs, by the headline or, where that cannot be right, by its pair."""
    metric, rows = results.headline, results.counterparts(name)
    if not rows:
        return [PENDING, PENDING]
    shown = rows[0].shown(metric) if metric in rows[0].metrics else PENDING
    gaps = {} if results.recommenders[name].pending else {g.metric: g for g in results.gaps(name, rows[0])}
    gap = next((gaps[each] for each in results.pair if each in gaps and not gaps[each].doubtful), None)
    if gap is None:
        return [shown, PENDING]
    where = f"{'in' if gap.inside else 'out'}side our interval"
    return [shown, Cell(signed(gap.gap), where if gap.metric == metric else f"{gap.metric}, {where}")]


def _count(value: int | None) -> str:
    return PENDING if value is None else f"{value:,}"


def _seconds(effort: Effort | None, pending: bool = False) -> str:
    if effort is None:
        return PENDING
    return NOT_RECORDED if effort.seconds is None and not pending else duration(effort.seconds or 0)


def _seeds(effort: Effort | None) -> str | Cell:
    if effort is None:
        return PENDING
    if not effort.runs[0].trainings and not effort.runs[0].missing:
        return Cell(str(len(effort.runs)), "(no training named)")
    return Cell(str(len(effort.runs)), f"({', '.join(map(str, effort.seeds))})" if effort.seeds else "")


def _notes(results: PageResults) -> list[str]:
    """How to read a leaderboard."""
    notes = [
        "Recommenders are compared on the same rows; of several seeds each row's mean is taken first. "
        f"{results.bootstrap.sentence()} Every interval stands for itself: nothing is corrected for the number of "
        "recommenders."
    ]
    own = [name for name, who in results.recommenders.items() if who.counted_by == OWN_SIDS]
    titled = [name for name, who in results.recommenders.items() if who.counted_by == TITLE]
    if own:
        notes.append(
            f"With SIDs of their own, by which they are counted: {', '.join(own)}. Where fewer items share an SID a "
            "hit is harder, so these are fairly compared with the others by item alone."
        )
    if titled:
        notes.append(f"Counted by title: {', '.join(titled)}. A hit is any item with the target's title.")
    if results.chosen is not None and results.baselines:
        notes.append(f"{'; '.join(results.chosen.sentences())}.")
    efforts = {name: found for name in results.own if (found := results.effort(name)) is not None}
    for name, found in efforts.items():
        if found.unlike:
            told = "; ".join(f"{key} {', '.join(map(shown_setting, values))}" for key, values in found.unlike.items())
            notes.append(
                f"The runs of {name} were trained with different settings, so its mean and its standard deviation "
                f"are not over seeds alone: {told}."
            )
    missing = sorted({place for found in efforts.values() for run in found.runs for place in run.missing})
    if missing:
        notes.append(f"Not there any more as it was, so that what it took is not told: {', '.join(missing)}.")
    return notes


def effort(results: PageResults) -> Section:
    """What each took: search, choice of settings, size, examples, and time."""
    rows: list[Row] = []
    machines: dict[str, None] = {}
    for name, who in results.recommenders.items():
        if name in results.baselines:
            continue
        took, words = results.effort(name), [who.details.get(key) or PENDING for key in ("tuned", "note")]
        if took is None:
            rows.append([name, PENDING, *words, *[PENDING] * 5])
            continue
        machines |= dict.fromkeys(took.machines)
        parts = ""
        if len(took.parts) > 1 and any(seconds is not None for _, seconds in took.parts):
            shown = (f"{part} {NOT_RECORDED if s is None else duration(s)}" for part, s in took.parts)
            parts = f"({', '.join(shown)})"
        trained = Cell(_seconds(took), parts) if took.runs[0].trainings else PENDING
        evaluated = NOT_RECORDED if took.evaluation_seconds is None else duration(took.evaluation_seconds)
        examples = PENDING if took.examples is None else f"{took.examples[0]:,} x {took.examples[1]:.4g}"
        rows.append([name, took.search, *words, _seeds(took), _count(took.parameters), examples, trained, evaluated])
    headers = ["Recommender", "Search", "Tuned", "Note", "Seeds", "Parameters", "Rows x epochs", "Training"]
    caption = (
        "Parameters of the models that are asked for a row; rows (or windows of a user's items) of an epoch times the "
        "epochs taken; wall time of training, with all that was trained on the way, and of evaluation, a seed's mean."
    )
    told = f"Times were taken on: {'; '.join(machines) or NOT_RECORDED}."
    return Section("What each took", [Table([*headers, "Evaluation"], rows, caption, 4), Paragraph(told)])
