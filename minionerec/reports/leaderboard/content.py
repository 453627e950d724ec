"""The page as JSON: every number unrounded."""

from collections.abc import Mapping
from typing import Any

from minionerec.metrics.ranking import Estimate
from minionerec.reports.leaderboard.board import Board, Line
from minionerec.reports.leaderboard.effort import Effort
from minionerec.reports.leaderboard.said import sentences


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


def _line_json(line: Line, board: Board) -> dict[str, Any]:
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
