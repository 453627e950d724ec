"""Tables of metrics as plain text, for terminals and logs."""

from collections.abc import Mapping, Sequence

from minionerec.metrics.levels import LevelAnalysis
from minionerec.metrics.results import Evaluation
from minionerec.metrics.statistics import Estimate

MISSING = "-"
SHOWN_AT = 10
"""Length of the lists whose metrics a terminal shows."""


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Table in plain text; the first column is aligned to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cells[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)),
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(headers), "  ".join("-" * width for width in widths), *(line(row) for row in rows)])


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """Table in Markdown; the first `text_columns` columns are aligned to the left, the others to the right.

    Example:
        >>> print(markdown_table(["model", "NDCG@10"], [["SFT", "0.1"]]))
        | model | NDCG@10 |
        | :-- | --: |
        | SFT | 0.1 |
    """
    rule = [":--" if column < text_columns else "--:" for column in range(len(headers))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [headers, rule, *rows])


def format_estimate(estimate: Estimate | None) -> str:
    """Format a mean with its interval, e.g. "0.1379 [0.1280, 0.1480]" or "0.1379 ± 0.0012 [0.1280, 0.1480]" over seeds.

    None becomes "-".
    """
    return MISSING if estimate is None else f"{format_mean(estimate)} {format_interval(estimate)}"


def format_mean(estimate: Estimate) -> str:
    """Format a mean with its standard deviation over several seeds."""
    return f"{estimate.mean:.4f}" + ("" if estimate.sd is None else f" ± {estimate.sd:.4f}")


def format_interval(estimate: Estimate) -> str:
    """Format the interval of a mean."""
    return f"[{estimate.low:.4f}, {estimate.high:.4f}]"


def short_metrics(evaluations: Mapping[str, Evaluation], level: str) -> list[str]:
    """Names of the few metrics that a terminal shows: HR and NDCG at 10 items, and HR at the longest list.

    Without a cutoff of 10 the largest below it is taken, or else the smallest.
    """
    names = {name for evaluation in evaluations.values() for name in evaluation.metrics(level)}
    cutoffs = sorted({int(name.removeprefix("HR@")) for name in names if name.startswith("HR@")})
    if not cutoffs:
        return []
    first = max((cutoff for cutoff in cutoffs if cutoff <= SHOWN_AT), default=cutoffs[0])
    shown = [f"HR@{first}", f"NDCG@{first}", f"HR@{cutoffs[-1]}"]
    return [name for name in dict.fromkeys(shown) if name in names]


def format_metrics_table(
    evaluations: Mapping[str, Evaluation], level: str = "sid", title: str = "", unit: str = "SID"
) -> str:
    """A few metrics of several recommenders (`short_metrics`), each mean with its 95 % interval: a row for each.

    Args:
        evaluations: Display name to evaluation; rows are in this order.
        level: "sid" or "item": which reading of a hit.
        title: A line above the table, e.g. naming the split.
        unit: Unit of level "sid": a hit is any item that shares it with the target ("SID", "title").
    """
    names = short_metrics(evaluations, level)
    rows = [
        [label, *(format_estimate(evaluation.metrics(level).get(name)) for name in names)]
        for label, evaluation in evaluations.items()
    ]
    reading = f"{unit}-level" if level == "sid" else "item-level"
    head = f"{title}\n" if title else ""
    return head + text_table([reading, *names], rows)


def format_share(count: int | None, total: int) -> str:
    """Format a count out of a total, e.g. "0 of 226,650"; None becomes "-"."""
    return MISSING if count is None else f"{count:,} of {total:,}"


def format_coverage(evaluation: Evaluation) -> str:
    """Format catalogue coverage at the largest K, e.g. "0.4312 @50"; "-" if it is unknown."""
    if not evaluation.coverage:
        return MISSING
    k = max(evaluation.coverage)
    return f"{evaluation.coverage[k]:.4f} @{k}"


def independent_rows(analysis: LevelAnalysis) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the independent hit rates."""
    headers = ["K", *(f"L{level}" for level in range(1, analysis.levels + 1)), "exact"]
    return headers, [
        [str(k), *(f"{value:.4f}" for value in values)]
        for k, values in zip(analysis.ks, analysis.independent, strict=True)
    ]


def cumulative_rows(analysis: LevelAnalysis) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the cumulative accuracy."""
    headers = ["K", *("+".join(f"L{n}" for n in range(1, level + 1)) for level in range(1, analysis.levels + 1))]
    return headers, [
        [str(k), *(f"{value:.4f}" for value in values)]
        for k, values in zip(analysis.ks, analysis.cumulative, strict=True)
    ]


def transition_label(name: str) -> str:
    """A readable name of one number of the drop-off, e.g. "L1 → L2 kept"."""
    levels = [part.upper() for part in name.split("_to_")]
    return f"{levels[0]} accuracy" if len(levels) == 1 else f"{levels[0]} → {levels[1]} kept"


def format_percent(value: float | None) -> str:
    """Format a share as a percentage with two digits; None becomes "-"."""
    return MISSING if value is None else f"{100 * value:.2f} %"


def format_level_tables(analysis: LevelAnalysis) -> str:
    """The three tables of a per-level analysis as text."""
    dropoff = [
        [transition_label(name), format_percent(value)]
        for name, value in zip(analysis.transitions, analysis.dropoff, strict=True)
    ]
    counts = f"{analysis.rows:,} examples"
    if analysis.excluded:
        counts += f"; {analysis.excluded:,} left out (their target is not a semantic ID of {analysis.levels} levels)"
    counts += f"; {analysis.unparsable:,} of {analysis.looked_at:,} predictions are no semantic ID"
    return "\n".join(
        [
            "Independent hit rate: any of the first K predictions has the target's code at that level",
            text_table(*independent_rows(analysis)),
            "",
            "Cumulative accuracy: one of the first K predictions has the target's codes up to that level",
            text_table(*cumulative_rows(analysis)),
            "",
            "Drop-off at K = 1",
            text_table(["level", "share"], dropoff),
            "",
            counts,
        ]
    )
