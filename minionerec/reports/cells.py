"""Numbers, settings and names as table cells and sentences show them, the same on every page."""

from collections.abc import Mapping
from html import unescape
from typing import Any

from minionerec.metrics.statistics import Estimate, PairedDifference
from minionerec.metrics.tables import MISSING, format_interval, format_mean
from minionerec.reports.page import Cell

MINUS = "\N{MINUS SIGN}"
_TITLE_LENGTH = 110


def estimate_cell(estimate: Estimate | None, note: str = "") -> Cell:
    """Format a mean (± sd over seeds) with its interval below, followed by a note; None becomes "-"."""
    if estimate is None:
        return Cell(MISSING)
    return Cell(format_mean(estimate), f"{format_interval(estimate)}{note}")


def signed(value: float) -> str:
    """Format a difference with its sign."""
    return f"{value:+.4f}".replace("-", MINUS)


def p_value(p: float) -> str:
    """Format a p-value.

    Example:
        >>> p_value(0.0123), p_value(0.0009)
        ('p = 0.012', 'p < 0.001')
    """
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def difference_cell(difference: PairedDifference | None) -> Cell:
    """Format a paired difference with its interval and p-value below."""
    if difference is None:
        return Cell(MISSING)
    return Cell(
        signed(difference.difference), f"[{signed(difference.low)}, {signed(difference.high)}], {p_value(difference.p)}"
    )


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with a given number of digits; None becomes "-"."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """Format a share in percent; None becomes "-"."""
    return MISSING if value is None else f"{100 * value:.1f} %"


def relative(value: float, reference: float) -> str:
    """Format the relative difference of a value from a reference in percent."""
    return signed_percent((value - reference) / reference) if reference else MISSING


def signed_percent(share: float) -> str:
    """Format a relative difference in percent with its sign and one digit."""
    return f"{100 * share:+.1f} %".replace("-", MINUS)


def with_interval(difference: PairedDifference) -> str:
    """Format a paired difference with its interval."""
    return f"{signed(difference.difference)} [{signed(difference.low)}, {signed(difference.high)}]"


def quoted(name: str) -> str:
    """Put a name in quotes if it has more than one word."""
    return f'"{name}"' if len(name.split()) > 1 else name


def shown_title(title: str) -> str:
    r"""Format an item's title: on one line, with HTML entities unescaped, cut to 110 characters.

    Example:
        >>> shown_title("Drill, 5&deg;\n  angled")
        'Drill, 5° angled'
    """
    title = " ".join(unescape(title).split())
    return title if len(title) <= _TITLE_LENGTH else title[: _TITLE_LENGTH - 1].rstrip() + "…"


def shown_setting(value: Any) -> str:
    """Format a setting for pages.

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
