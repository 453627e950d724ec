"""How far our figures lie from published ones, and in which settings the two differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minionerec.metrics.ranking import Estimate
from minionerec.reports.reference import SETTINGS, UNKNOWN, ReferenceRow

Value = str | int | float


@dataclass(frozen=True)
class Gap:
    """One metric of ours beside the published one.

    Attributes:
        metric: Its name.
        paper: The published value.
        ours: Ours, with its 95 % interval.
        doubtful: Whether the published value cannot be right.
    """

    metric: str
    paper: float
    ours: Estimate
    doubtful: bool = False

    @property
    def gap(self) -> float:
        """Ours minus theirs."""
        return self.ours.mean - self.paper

    @property
    def relative(self) -> float | None:
        """By what share ours differs from theirs; None where theirs is 0."""
        return self.gap / self.paper if self.paper else None

    @property
    def inside(self) -> bool:
        """Whether the published value lies in our interval."""
        return self.ours.low <= self.paper <= self.ours.high

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object; numbers are not rounded."""
        found = {"metric": self.metric, "paper": self.paper, "ours": self.ours.mean, "gap": self.gap}
        return {**found, "relative": self.relative, "inside_interval": self.inside, "doubtful": self.doubtful}


def gaps_to(row: ReferenceRow, ours: Mapping[str, Estimate]) -> list[Gap]:
    """The metrics that a published row and our estimates share, in the order of ours."""
    return [
        Gap(name, row.metrics[name], estimate, name in row.doubtful)
        for name, estimate in ours.items()
        if name in row.metrics
    ]


@dataclass(frozen=True)
class SettingLine:
    """One setting, theirs beside ours."""

    name: str
    theirs: Value
    ours: Value

    @property
    def known(self) -> bool:
        """Whether both are told."""
        return UNKNOWN not in (self.theirs, self.ours)

    @property
    def differs(self) -> bool:
        """Whether both are told, and differ."""
        return self.known and shown_setting(self.theirs) != shown_setting(self.ours)


def setting_lines(theirs: Mapping[str, Value], ours: Mapping[str, Value]) -> list[SettingLine]:
    """All settings that either side tells, by the names that pages show."""
    lines = [SettingLine(said, theirs.get(key, UNKNOWN), ours.get(key, UNKNOWN)) for key, said in SETTINGS.items()]
    return [line for line in lines if line.theirs != UNKNOWN or line.ours != UNKNOWN]


def shown_setting(value: Any) -> str:
    """A setting as pages show it.

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


def spread(found: Sequence[Gap]) -> tuple[float, float] | None:
    """The smallest and the largest relative gap of figures that can be right; None without any."""
    known = [gap.relative for gap in found if gap.relative is not None and not gap.doubtful]
    return (min(known), max(known)) if known else None
