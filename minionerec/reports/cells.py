"""Numbers as table cells, the same in every report."""

from minionerec.metrics.ranking import Estimate
from minionerec.metrics.statistics import PairedDifference
from minionerec.metrics.tables import MISSING, format_interval, format_mean
from minionerec.reports.document import Cell

MINUS = "\N{MINUS SIGN}"


def estimate_cell(estimate: Estimate | None, note: str = "") -> Cell:
    """A mean (± sd over seeds) with its interval below, and a note after it; "-" where there is none."""
    if estimate is None:
        return Cell(MISSING)
    return Cell(format_mean(estimate), f"{format_interval(estimate)}{note}")


def signed(value: float) -> str:
    """A difference with its sign."""
    return f"{value:+.4f}".replace("-", MINUS)


def relative(ours: float, theirs: float) -> str:
    """By how many percent ours differs from theirs."""
    return f"{100 * (ours - theirs) / theirs:+.1f} %".replace("-", MINUS) if theirs else MISSING


def difference_cell(found: PairedDifference | None) -> Cell:
    """A paired difference with its interval and p-value below."""
    if found is None:
        return Cell(MISSING)
    return Cell(signed(found.difference), f"[{signed(found.low)}, {signed(found.high)}], p = {found.p:.3f}")


def number(value: float | None, digits: int = 3) -> str:
    """A number with some digits; "-" where there is none."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent; "-" where there is none."""
    return MISSING if value is None else f"{100 * value:.1f} %"
