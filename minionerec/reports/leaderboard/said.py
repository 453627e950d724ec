"""What the table says, in sentences by rules: each has its numbers, and none a cause."""

from collections.abc import Sequence

from minionerec.metrics.statistics import PairedDifference
from minionerec.recommend.rankers.baselines import NAMES
from minionerec.reports.cells import signed
from minionerec.reports.experiment_log.gaps import Gap
from minionerec.reports.experiment_log.rules import Said
from minionerec.reports.leaderboard.board import Board, BoardLine
from minionerec.reports.sections.findings import Standing, beside, highest, quoted
from minionerec.reports.systems import opposite


def sentences(board: Board) -> list[Said]:
    """Who leads and who cannot be told from the leader, baselines, published figures, seeds, what is pending."""
    found = [*_leader(board), *_baselines(board), *_given_baseline(board), *_published(board), *_seeds(board)]
    pending = [line.name for line in board.lines if line.pending]
    if pending:
        found.append(Said("pending", f"Pending: {_names(pending)}.", {"names": pending}))
    return found


def _leader(board: Board) -> list[Said]:
    metric, ranked = board.config.headline, [line.name for line in board.finished]
    means = {line.name: board.score(line) for line in board.finished}

    def between(name: str, other: str) -> PairedDifference:
        return opposite(board.to_leader[other]) if name == ranked[0] else board.to_leader[name]

    standing = Standing(metric, means, (), None, None, between)
    said = [Said("leader", highest(standing, ranked), {"metric": metric, "means": means})]
    others = beside(standing, ranked[1:], ranked[0], "the leader", one_by_one=False) if len(ranked) > 2 else []
    numbers = {name: list(found) for name, found in board.to_leader.items()}
    return said + [Said("beside the leader", text, numbers) for text in others]


def _baselines(board: Board) -> list[Said]:
    """Who stays below the best of what needs no training."""
    level, metric = board.config.level, board.config.headline
    baselines = board.baselines.estimates if board.baselines else {}
    known = {name: each[level][metric].mean for name, each in baselines.items() if metric in each.get(level, {})}
    known |= {line.name: board.score(line) for line in board.finished if line.name in NAMES}
    if not known:
        return []
    chosen = board.baselines.chosen if board.baselines else None
    valid = chosen.strongest if chosen is not None and chosen.strongest in known else None
    best = valid or max(known, key=known.__getitem__)
    below = {line.name: board.score(line) for line in board.finished if board.score(line) < known[best]}
    where = "validation" if valid else "these rows, for validation is not known"
    text = f"The strongest baseline on {where}, {quoted(best)}, has {known[best]:.4f}; "
    text += f"below it: {_listed(below)}." if below else "nobody is below it."
    return [Said("strongest baseline", text, {"baseline": best, "value": known[best], "below": below})]


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{quoted(name)} ({value:.4f})" for name, value in values.items())


def _given_baseline(board: Board) -> list[Said]:
    level, metric, base = board.config.level, board.config.headline, board.config.baseline
    found = {line.name: line.against[level][metric] for line in board.finished if line.against}
    if not found or base == board.finished[0].setting.name:  # the leader has had its sentence
        return []
    means = {line.name: board.score(line) for line in board.finished}
    standing = Standing(metric, means, (), None, None, lambda name, other: found[name])
    base = next(line.name for line in board.lines if line.setting.name == base)
    text = beside(standing, list(found), base, "the baseline of this page", one_by_one=False)
    return [Said("baseline", each, {name: list(gap) for name, gap in found.items()}) for each in text]


def compared(board: Board, line: BoardLine) -> Gap | None:
    """The metric by which a line is set beside its published row: the headline, or where that cannot be right its pair.

    None where neither is published.
    """
    gaps = {gap.metric: gap for gap in line.gaps if not gap.doubtful}
    return next((gaps[metric] for metric in board.pair if metric in gaps), None)


def _published(board: Board) -> list[Said]:
    """Who lies above, at or below the published figure."""
    found = {line.name: gap for line in board.finished if (gap := compared(board, line)) is not None}
    said = []
    for rule, words, names in (
        ("above published", "Above their published", _those(found, inside=False, above=True)),
        ("inside", "With the published figure inside our 95 % interval, by", _those(found, inside=True)),
        ("below published", "Below their published", _those(found, inside=False, above=False)),
    ):
        if names:
            parts = [_gap(name, found[name], board.config.headline) for name in names]
            text = f"{words} {board.config.headline}: {'; '.join(parts)}."
            said.append(Said(rule, text, {name: found[name].to_json() for name in names}))
    return said


def _those(found: dict[str, Gap], *, inside: bool, above: bool | None = None) -> list[str]:
    return [name for name, gap in found.items() if gap.inside == inside and (above is None or (gap.gap > 0) == above)]


def _gap(name: str, gap: Gap, headline: str) -> str:
    other = "" if gap.metric == headline else f"{gap.metric} "
    return f"{quoted(name)} ({other}{gap.ours.mean:.4f}, published {gap.paper:.4f}, {signed(gap.gap)})"


def _seeds(board: Board) -> list[Said]:
    """Who was trained with one seed alone."""
    alone = [line.name for line in board.finished if line.effort and line.effort.single]
    text = f"Trained with a single seed, so with no spread over seeds: {_names(alone)}."
    return [Said("single seed", text, {"names": alone})] if alone else []


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
