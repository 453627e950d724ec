"""The stage that writes the leaderboard."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json
from minionerec.core.records import duration
from minionerec.core.stage import Stage
from minionerec.metrics.ranking import Estimate
from minionerec.metrics.tables import format_interval, format_mean
from minionerec.reports.cells import difference_cell, estimate_cell, signed
from minionerec.reports.document import Block, Bullets, Cell, Paragraph, Section, Table
from minionerec.reports.experiment_log.gaps import shown_setting
from minionerec.reports.experiment_log.parts import PENDING, READING, published_rows
from minionerec.reports.experiment_log.trainings import NOT_RECORDED
from minionerec.reports.leaderboard.board import LEVELS, OWN_SIDS, SID, TITLE, Board, BoardLine, gather
from minionerec.reports.leaderboard.config import LeaderboardConfig
from minionerec.reports.leaderboard.effort import Effort
from minionerec.reports.leaderboard.said import compared, sentences
from minionerec.reports.page import write_page
from minionerec.reports.provenance import manifests, sources
from minionerec.reports.reference import DOUBTFUL, Reference
from minionerec.reports.systems import NOT_COMPARABLE

# The page: the standings at a glance, every metric in both readings, published figures, differences, what it took.

Row = list[str | Cell]
GROUPED = {
    SID: "the SIDs of this page",
    OWN_SIDS: "SIDs of its own",
    TITLE: "titles",
}
FIRST = "counted by semantic ID, of models over titles by title"


def sections(board: Board) -> list[Section]:
    """All parts of the page but for where its numbers come from."""
    found = [
        Section("In short", [Bullets([each.text for each in sentences(board)]), standings(board), *_notes(board)]),
        Section("Every metric", [metrics(board, level) for level in LEVELS if _has(board, level)]),
    ]
    if board.reference is not None:
        found.append(Section("Beside the published figures", published(board, board.reference)))
    if board.config.baseline:
        found.append(Section(f"Differences from {_baseline(board).name}", against(board)))
    return [*found, Section("What each took", effort(board))]


def _has(board: Board, level: str) -> bool:
    return any(level in line.estimates for line in board.lines)


def standings(board: Board) -> Table:
    """One line each: the headline in both readings, its pair, the published figure, size and time."""
    headline, other = board.pair
    first, second = board.config.level, next(level for level in LEVELS if level != board.config.level)
    tied = board.level_with_leader
    lines, apart = _apart(board)
    rows: list[Row] = [
        [
            line.name,
            _strong(line.found(first, headline), line.name in tied),
            _cell(line.found(first, other)),
            _cell(line.found(second, headline)),
            *_published_cells(board, line),
            _count(line.effort.parameters if line.effort else None),
            _seconds(line.effort.seconds if line.effort else None, line.pending),
            _seeds(line.effort),
        ]
        for line in [*lines, *apart]
    ]
    shown = ((first, headline), (first, other), (second, headline))
    baselines: list[Row] = [
        [f"baseline: {name}", *(_cell(found.get(level, {}).get(m)) for level, m in shown), *[PENDING] * 5]
        for name, found in (board.baselines.estimates if board.baselines else {}).items()
    ]
    between: list[Row] = [[NOT_COMPARABLE, *[""] * 8]] if apart else []
    rows[len(lines) :] = [*baselines, *between, *rows[len(lines) :]]
    headers = ["Recommender", f"{headline}, {_short(first)}", f"{other}, {_short(first)}"]
    headers += [f"{headline}, {_short(second)}", "Published", "Gap", "Parameters", "Training", "Seeds"]
    caption = (
        f"{board.config.split} rows; 95 % bootstrap intervals in brackets, ± the standard deviation over seeds. Bold: "
        f"the highest {headline}, and those that the paired bootstrap cannot tell from it."
    )
    return Table(headers, rows, caption)


def _apart(board: Board) -> tuple[list[BoardLine], list[BoardLine]]:
    """The recommenders that may stand beside published figures, and those that were given more; all without figures."""
    apart = [line for line in board.lines if line.given and board.reference is not None]
    return [line for line in board.lines if line not in apart], apart


def _short(level: str) -> str:
    return "by SID or title" if level == LEVELS[0] else "by item"


def _cell(estimate: Estimate | None) -> Cell:
    return Cell(PENDING) if estimate is None else estimate_cell(estimate)


def _strong(estimate: Estimate | None, strong: bool) -> Cell:
    if estimate is None:
        return Cell(PENDING)
    return Cell(format_mean(estimate), format_interval(estimate), strong)


def _published_cells(board: Board, line: BoardLine) -> list[str | Cell]:
    """The published figure and ours minus theirs, by the headline or, where that cannot be right, by its pair."""
    metric = board.config.headline
    shown = f"{line.row.shown(metric)}" if line.row and metric in line.row.metrics else PENDING
    gap = compared(board, line)
    if gap is None:
        return [shown, PENDING]
    where = f"{'in' if gap.inside else 'out'}side our interval"
    return [shown, Cell(signed(gap.gap), where if gap.metric == metric else f"{gap.metric}, {where}")]


def _count(value: int | None) -> str:
    return PENDING if value is None else f"{value:,}"


def _seconds(seconds: float | None, pending: bool = False) -> str:
    if seconds is None:
        return PENDING if pending else NOT_RECORDED
    return duration(seconds)


def _seeds(effort: Effort | None) -> str | Cell:
    if effort is None:
        return PENDING
    if not effort.runs[0].trainings and not effort.runs[0].missing:
        return Cell(str(len(effort.runs)), "(no training named)")
    return Cell(str(len(effort.runs)), f"({', '.join(map(str, effort.seeds))})" if effort.seeds else "")


def _notes(board: Board) -> list[Block]:
    notes = [
        "Recommenders are compared on the same rows; of several seeds each row's mean is taken first. "
        f"{board.bootstrap.said()} Every interval stands for itself: nothing is corrected for the number of "
        "recommenders."
    ]
    own = [line.name for line in board.lines if line.grouped == OWN_SIDS]
    titled = [line.name for line in board.lines if line.grouped == TITLE]
    if own:
        notes.append(
            f"With SIDs of their own, by which they are counted: {', '.join(own)}. Where fewer items share an SID a "
            "hit is harder, so these are fairly compared with the others by item alone."
        )
    if titled:
        notes.append(f"Counted by title: {', '.join(titled)}. A hit is any item with the target's title.")
    if board.baselines:
        notes.append(
            f"Baselines as the evaluation of {board.baselines.source} measured them; their intervals are its own, by "
            f"{board.baselines.resampled}."
        )
        if board.baselines.chosen is not None:
            notes.append(f"{'; '.join(board.baselines.chosen.sentences())}.")
    for line in board.lines:
        if line.effort and line.effort.unlike:
            told = "; ".join(
                f"{name} {', '.join(map(shown_setting, values))}" for name, values in line.effort.unlike.items()
            )
            notes.append(
                f"The runs of {line.name} were trained with different settings, so its mean and its standard deviation "
                f"are not over seeds alone: {told}."
            )
    missing = sorted(
        {place for line in board.lines if line.effort for run in line.effort.runs for place in run.missing}
    )
    if missing:
        notes.append(f"Not there any more as it was, so that what it took is not told: {', '.join(missing)}.")
    return [Paragraph(note) for note in notes]


def metrics(board: Board, level: str) -> Table:
    """Every metric of everyone in one reading."""
    first = level == LEVELS[0]
    rows: list[Row] = []
    for line in board.lines:
        counted = [GROUPED.get(line.grouped, PENDING)] if first else []
        rows.append([line.name, *counted, *(_cell(line.found(level, name)) for name in board.metrics)])
    for name, found in (board.baselines.estimates if board.baselines else {}).items():
        counted = [GROUPED[SID] if level in found else PENDING] if first else []
        rows.append([f"baseline: {name}", *counted, *(_cell(found.get(level, {}).get(m)) for m in board.metrics)])
    headers = ["Recommender", *(["Counted by"] if first else []), *board.metrics]
    reading = FIRST if first else READING[level]
    return Table(headers, rows, f"{board.config.split} rows, {reading}; 95 % bootstrap intervals.", 2 if first else 1)


def published(board: Board, reference: Reference) -> list[Block]:
    """All published rows, and how far each of ours lies from its counterpart."""
    names = [name for name in board.metrics if any(name in row.metrics for row in reference.rows)]
    blocks = published_rows(reference, names)
    rows: list[Row] = []
    for line in (line for line in board.lines if line.row is not None):
        gaps = {gap.metric: gap for gap in line.gaps}
        cells: list[str | Cell] = []
        for name in names:
            gap = gaps.get(name)
            if gap is None:
                cells.append(PENDING)
                continue
            where = "in" if gap.inside else "out"
            theirs = f"{gap.paper:.4f}" + (f" {DOUBTFUL}" if gap.doubtful else "")
            cells.append(Cell(signed(gap.gap), f"from {theirs}, {where}side [{gap.ours.low:.4f}, {gap.ours.high:.4f}]"))
        reading = PENDING if line.pending else _short(line.level)
        rows.append([line.name, f"{line.row.name} ({line.row.group})" if line.row else PENDING, reading, *cells])
    apart = _apart(board)[1]
    if apart:
        blocks.append(Paragraph(f"{', '.join(line.name for line in apart)}: {NOT_COMPARABLE}."))
    if rows:
        caption = "Ours minus theirs, and whether the published figure lies in our 95 % interval."
        blocks.append(Table(["Recommender", "Counterpart", "Ours counted", *names], rows, caption, 3))
    return blocks


def _baseline(board: Board) -> BoardLine:
    return next(line for line in board.lines if line.setting.name == board.config.baseline)


def against(board: Board) -> list[Block]:
    """Paired differences from the baseline, by the headline and its pair, in both readings."""
    base = _baseline(board)
    if base.pending:
        return [Paragraph(f"{base.name} is pending.")]
    columns = [(level, metric) for level in LEVELS for metric in board.pair if level in base.estimates]
    rows: list[Row] = []
    for line in board.lines:
        if line is not base:
            found = [line.against.get(level, {}).get(metric) for level, metric in columns]
            rows.append([line.name, *(Cell(PENDING) if each is None else difference_cell(each) for each in found)])
    headers = [f"minus {base.name}", *(f"{metric}, {_short(level)}" for level, metric in columns)]
    note = "Paired bootstrap: 95 % interval and two-sided p below each difference."
    return [Table(headers, rows, note)]


def effort(board: Board) -> list[Block]:
    """Search, choice of settings, size, rows, and time."""
    rows: list[Row] = []
    for line in board.lines:
        took = line.effort
        words = [line.setting.tuned or PENDING, line.setting.note or PENDING]
        if took is None:
            rows.append([line.name, PENDING, *words, *[PENDING] * 5])
            continue
        rows.append(
            [
                line.name,
                took.search,
                *words,
                _seeds(took),
                _count(took.parameters),
                _examples(took),
                Cell(_seconds(took.seconds), _parts(took)) if took.runs[0].trainings else PENDING,
                _seconds(took.evaluation_seconds),
            ]
        )
    headers = ["Recommender", "Search", "Tuned", "Note", "Seeds", "Parameters", "Rows x epochs", "Training"]
    caption = (
        "Parameters of the models that are asked for a row; rows (or windows of a user's items) of an epoch times the "
        "epochs taken; wall time of training, with all that was trained on the way, and of evaluation, a seed's mean."
    )
    blocks: list[Block] = [Table([*headers, "Evaluation"], rows, caption, 4)]
    machines = list(dict.fromkeys(name for line in board.lines if line.effort for name in line.effort.machines))
    told = "; ".join(machines) or NOT_RECORDED
    return [*blocks, Paragraph(f"Times were taken on: {told}.")]


def _examples(took: Effort) -> str:
    return PENDING if took.examples is None else f"{took.examples[0]:,} x {took.examples[1]:.4g}"


def _parts(took: Effort) -> str:
    """The trainings one by one, where there are several."""
    if len(took.parts) < 2 or all(seconds is None for _, seconds in took.parts):
        return ""
    return f"({', '.join(f'{name} {_seconds(seconds)}' for name, seconds in took.parts)})"


def lead(board: Board) -> str:
    """What was measured."""
    ground, pending = board.ground, sum(line.pending for line in board.lines)
    said = f"{len(board.lines)} recommenders on the {len(ground.rows):,} {board.config.split} rows of "
    said += f"{board.config.corpus} ({ground.title}), {ground.n_items:,} items"
    said += f"; {pending} pending" if pending else ""
    return f"{said}. Written from finished artefacts: nothing was trained or searched for it."


# The page as JSON: every number unrounded.


def board_json(board: Board) -> dict[str, Any]:
    """Everything that the page shows."""
    config, reference = board.config, board.reference
    return {
        "title": config.title,
        "split": config.split,
        "split_rule": board.ground.title,
        "rows": len(board.ground.rows),
        "items": board.ground.n_items,
        "sid_table": None if board.table is None else board.table.fingerprint,
        "ks": config.ks,
        "headline": config.headline,
        "level": config.level,
        "standing": [line.name for line in board.finished],
        "not_told_from_leader": board.level_with_leader,
        "baseline": config.baseline or None,
        "recommenders": {line.name: _line_json(line, board) for line in board.lines},
        "baselines": None
        if board.baselines is None
        else {
            "source": board.baselines.source,
            "chosen": None if board.baselines.chosen is None else board.baselines.chosen.to_json(),
            **{name: _estimates_json(each) for name, each in board.baselines.estimates.items()},
        },
        "published": []
        if reference is None
        else [{"name": row.name, "group": row.group, "metrics": dict(row.metrics)} for row in reference.rows],
        "doubtful": [] if reference is None else [[row.name, metric] for row, metric in reference.doubtful],
        "said": [each.to_json() for each in sentences(board)],
    }


def _line_json(line: BoardLine, board: Board) -> dict[str, Any]:
    setting = line.setting
    found: dict[str, Any] = {
        "pending": line.pending,
        "missing": [str(place) for place in setting.missing],
        "tuned": setting.tuned,
        "note": setting.note,
        "published": None if line.row is None else {"name": line.row.name, "group": line.row.group},
    }
    if line.effort is None:
        return found
    gap = board.to_leader.get(line.name)
    return found | {
        "predictions": [str(place) for place in setting.runs],
        "counted_by": line.grouped,
        "given": list(line.given),
        "metrics": _estimates_json(line.estimates),
        "by_seed": {key: table.mean(1).tolist() for key, table in line.values.items()},
        "beside_published": [each.to_json() for each in line.gaps],
        "minus_baseline": {
            level: {metric: list(each) for metric, each in by_metric.items()}
            for level, by_metric in line.against.items()
        },
        "minus_leader": None if gap is None else list(gap),
        "effort": _effort_json(line.effort),
    }


def _estimates_json(estimates: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
    return {
        level: {name: {"mean": e.mean, "sd": e.sd, "interval": [e.low, e.high]} for name, e in by_metric.items()}
        for level, by_metric in estimates.items()
    }


def _effort_json(effort: Effort) -> dict[str, Any]:
    return {
        "runs": len(effort.runs),
        "seeds": effort.seeds,
        "parameters": effort.parameters,
        "rows_and_epochs": None if effort.examples is None else list(effort.examples),
        "commits": effort.commits,
        "settings": effort.settings,
        "unlike_settings": effort.unlike,
        "search": effort.search,
        "training_seconds": effort.seconds,
        "trainings": [list(part) for part in effort.parts],
        "evaluation_seconds": effort.evaluation_seconds,
        "machines": effort.machines,
        "missing": [place for run in effort.runs for place in run.missing],
    }


NAME = "leaderboard"


@dataclass(frozen=True)
class LeaderboardResult:
    """What was written.

    Attributes:
        output: The directory.
        said: The sentences of the page.
        up_to_date: Whether an earlier page of the same inputs was kept.
    """

    output: Path
    said: Sequence[str]
    up_to_date: bool

    def lines(self) -> list[str]:
        """The sentences, and where the page lies."""
        return [*self.said, f"leaderboard: {self.output / NAME}.html (and .md, .json)"]


def run_leaderboard(config: LeaderboardConfig) -> LeaderboardResult:
    """Set recommenders side by side on the same rows, from finished predictions; nothing is recomputed but metrics.

    Writes an artefact of kind "leaderboard": `leaderboard.md`, `leaderboard.html` and `leaderboard.json` (unrounded).
    Equal inputs give equal bytes, but for what run records say.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If no row has predictions, or a K is larger than the lists of some recommender.
        DataError: If a file is malformed.
    """
    stage = Stage(config)
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            board = gather(config)
            found = manifests(stage.inputs)
            where = [Paragraph("Every artefact and file behind this page."), *sources(found, stage.inputs)]
            parts = [*sections(board), Section("Where the numbers come from", where)]
            pending = sum(line.pending for line in board.lines)
            counts = {"rows": len(board.ground.rows), "recommenders": len(board.lines), "pending": pending}
            with work.finish(seed=config.seed, counts=counts) as place:
                write_page(place, NAME, config.title, lead(board), parts)
                text = json.dumps(board_json(board), indent=1)
                (place / f"{NAME}.json").write_text(text + "\n", encoding="utf-8")
    said = [each["text"] for each in read_json(stage.output / f"{NAME}.json")["said"]]
    return LeaderboardResult(stage.output, said, up_to_date)
