"""Numbers, settings and names as table cells and sentences show them, the same on every page."""

from collections.abc import Mapping, Sequence
from typing import Any

from minionerec.metrics.statistics import Estimate, PairedDifference
from minionerec.metrics.tables import MISSING, format_interval, format_mean
from minionerec.reports.page import Cell

MINUS = "\N{MINUS SIGN}"


def estimate_cell(estimate: Estimate | None, note: str = "") -> Cell:
    """A mean (± sd over seeds) with its interval below, and a note after it; "-" where there is none."""
    if estimate is None:
        return Cell(MISSING)
    return Cell(format_mean(estimate), f"{format_interval(estimate)}{note}")


def signed(value: float) -> str:
    """A difference with its sign."""
    return f"{value:+.4f}".replace("-", MINUS)


def p_value(p: float) -> str:
    """A p-value.

    Example:
        >>> p_value(0.0123), p_value(0.0009)
        ('p = 0.012', 'p < 0.001')
    """
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def difference_cell(found: PairedDifference | None) -> Cell:
    """A paired difference with its interval and p-value below."""
    if found is None:
        return Cell(MISSING)
    return Cell(signed(found.difference), f"[{signed(found.low)}, {signed(found.high)}], {p_value(found.p)}")


def number(value: float | None, digits: int = 3) -> str:
    """A number with some digits; "-" where there is none."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent; "-" where there is none."""
    return MISSING if value is None else f"{100 * value:.1f} %"


def relative(ours: float, theirs: float) -> str:
    """By how many percent ours differs from theirs."""
    return signed_percent((ours - theirs) / theirs) if theirs else MISSING


def signed_percent(share: float) -> str:
    """A relative difference with its sign and one digit, which may be zero's."""
    return f"{100 * share:+.1f} %".replace("-", MINUS)


def with_interval(found: PairedDifference) -> str:
    """A paired difference with its interval, as text."""
    return f"{signed(found.difference)} [{signed(found.low)}, {signed(found.high)}]"


def quoted(name: str) -> str:
    """A name in a sentence: in quotes if it has more than one word."""
    return f'"{name}"' if len(name.split()) > 1 else name


def listed(words: Sequence[str]) -> str:
    """Words joined with commas and "and"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def shown_setting(value: Any) -> str:
    """A setting as displayed on pages.

    Example:
        >>> shown_setting(3e-4), shown_setting(1024), shown_setting({"ranking": 1.0, "rule": 0.5}), shown_setting(True)
        ('0.0003', '1,024', 'ranking, rule x 0.5', 'yes')
    """
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(str(key) if part == 1 else f"{key} x {shown_setting(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(shown_setting, value)) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
