"""Request features: columns that describe the moment of a target and are known when a request is made."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from minionerec.core.errors import ArtefactError, ConfigError, shown
from minionerec.data.names import UNKNOWN
from minionerec.data.times import NO_TIME
from minionerec.data.units import unit_numbers

if TYPE_CHECKING:
    from minionerec.data.corpus import Corpus
    from minionerec.data.rows import SplitExamples

UNKNOWN_NAME = "unknown"
GAP, HOUR, WEEKDAY = "gap", "hour", "weekday"
OF_TIMES = (GAP, HOUR, WEEKDAY)
"""Features that follow from times: the time since the newest item of the history; hour and weekday, in UTC. All others
are columns of the interactions, of which an example has the value in the row of its target."""
_HOUR, _DAY = 3_600, 86_400
SESSION = 1_800
"""Largest gap within a session, seconds."""
GAP_EDGES = {
    0: "same",
    SESSION: "up to 30 minutes",
    _DAY: "up to 1 day",
    7 * _DAY: "up to 7 days",
    30 * _DAY: "up to 30 days",
}
"""Largest gap of each bucket in seconds, and the bucket's name."""
LATER = "later"
"""Name of the bucket of gaps beyond all edges."""
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_THURSDAY = 3  # 1970-01-01
_UNITS = (_DAY, _HOUR, 60, 1)
_SMALLEST = {HOUR: (24, _HOUR), WEEKDAY: (len(WEEKDAYS), _DAY)}  # number of values, and seconds that each lasts


@dataclass(frozen=True)
class RequestFeature:
    """A column of examples and requests, as codes: `UNKNOWN`, or the number of one of its values from 1.

    Times are compared in the unit of the corpus: where it has whole days, a request of the same day has gap 0, whatever
    its hour.

    Attributes:
        name: Its name.
        values: Name of each code from 1.
        edges: Of the gap, the largest gap of each bucket but the last, seconds, ascending.
        unit: Seconds of the unit of times; 0 where a request's times tell nothing: their order alone is known, or the
            feature does not follow from times.
        start: Seconds since 1970 at which one of the units begins, such as midnight in the zone of the corpus.

    Example:
        >>> gap = RequestFeature("gap", ("same", "up to 1 day", "later"), (0, 86_400))
        >>> gap.size, gap.of_times(np.array([50, 50, 200_000, 50]), np.array([50, 40, 0, NO_TIME])).tolist()
        (4, [1, 2, 3, 0])
    """

    name: str
    values: tuple[str, ...]
    edges: tuple[int, ...] = ()
    unit: int = 1
    start: int = 0

    @classmethod
    def read(cls, stored: Any, where: str) -> "RequestFeature":
        """The feature that `stored` gave.

        Args:
            stored: From JSON or YAML.
            where: What holds it, with which the message begins.

        Raises:
            ArtefactError: If it describes no feature.
        """
        try:
            feature = cls(**{**stored, "values": tuple(stored["values"]), "edges": tuple(stored["edges"])})
            fits = all(isinstance(text, str) and text for text in (feature.name, *feature.values))
            numbers = (*feature.edges, feature.unit, feature.start)
            fits = fits and all(type(number) is int for number in numbers) and min(feature.unit, feature.start) >= 0
            fits = fits and list(feature.edges) == sorted(set(feature.edges))
            sizes = {GAP: 1 + len(feature.edges), **{name: size for name, (size, _) in _SMALLEST.items()}}
            size = sizes.get(feature.name, max(1, len(feature.values)))
            fits = fits and len(feature.values) == len(set(feature.values)) == size
            fits = fits and (feature.name == GAP or not feature.edges)
            fits = fits and (feature.name in OF_TIMES or not (feature.unit or UNKNOWN_NAME in feature.values))
        except (TypeError, KeyError, ValueError):
            fits = False
        if not fits:
            raise ArtefactError(f"{where}: {shown(stored)} describes no request feature")
        return feature

    def stored(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def size(self) -> int:
        """Number of codes, `UNKNOWN` among them."""
        return 1 + len(self.values)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every code."""
        return (UNKNOWN_NAME, *self.values)

    def of_times(self, time: np.ndarray, previous: np.ndarray) -> np.ndarray:
        """The codes of times of requests, of one of `OF_TIMES`.

        Args:
            time: int64 (R,), seconds since 1970 of each request; `NO_TIME` where unknown.
            previous: int64 (R,), of the newest item of the history before it; `NO_TIME` where unknown.

        Returns:
            int16 (R,); unknown where a time is unknown, or the newest item is later than the request.
        """
        codes = np.full(len(time), UNKNOWN, dtype=np.int16)
        known = time != NO_TIME
        if self.name == GAP:
            known &= (previous != NO_TIME) & (time >= previous)
            gaps = self._floor(time[known]) - self._floor(previous[known])
            codes[known] = 1 + np.searchsorted(self.edges, gaps)
        else:
            size, seconds = _SMALLEST[self.name]
            periods = self._floor(time[known]) // seconds + (_THURSDAY if self.name == WEEKDAY else 0)
            codes[known] = 1 + periods % size
        return codes

    def of_examples(self, rows: "SplitExamples") -> np.ndarray:
        """The codes of examples: int16 (R,), unknown where they lack the times or the column.

        Those of `OF_TIMES` follow from the times of the targets and the histories before them; others are stored, and
        a value that the feature does not have is unknown.
        """
        if self.name in rows.contexts and self.name not in OF_TIMES:
            stored = rows.contexts[self.name]
            of_values: np.ndarray = np.array([UNKNOWN, *(self.code(value) for value in stored.values)], dtype=np.int16)
            return of_values.take(stored.codes)
        if rows.times is None or self.name not in OF_TIMES:
            return np.full(len(rows), UNKNOWN, dtype=np.int16)
        return self.of_times(rows.times.time, rows.times.previous)

    def of_request(self, newest: int | None, now: int) -> int:
        """The code of a request.

        Args:
            newest: Time of the history's newest item, seconds since 1970; None where it is not known.
            now: Time of the request.
        """
        if not self.unit:
            return UNKNOWN
        return int(self.of_times(np.array([now]), np.array([NO_TIME if newest is None else newest]))[0])

    def code(self, value: Any) -> int:
        """The code of a value as people give it.

        Args:
            value: The name of a code; or a number: seconds of a gap, an hour from 0 to 23, a weekday from 0 (Monday).
                Of a column of interactions any text or number, which is unknown where the feature does not have it.

        Raises:
            ValueError: If it has no code, with what is expected.

        Example:
            >>> RequestFeature("weekday", WEEKDAYS).code("Tuesday"), RequestFeature("weekday", WEEKDAYS).code(1)
            (2, 2)
        """
        if isinstance(value, str) and value in self.names:
            return self.names.index(value)
        if self.name not in OF_TIMES:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ValueError(f"expected a text, such as {self.values[0]}")
            return UNKNOWN if isinstance(value, str) else self.code(str(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.name == GAP and 0 <= value < math.inf:  # False of nan
                unit = max(1, self.unit)
                return 1 + int(np.searchsorted(self.edges, value // unit * unit))
            if self.name != GAP and value in range(len(self.values)):
                return 1 + int(value)
        number = "a number of seconds from 0" if self.name == GAP else f"a number from 0 to {len(self.values) - 1}"
        raise ValueError(f"expected {number}, or one of {', '.join(self.names)}")

    def _floor(self, times: np.ndarray) -> np.ndarray:
        """Times rounded down to the unit."""
        unit = max(1, self.unit)
        floored: np.ndarray = (times - self.start) // unit * unit + self.start
        return floored


def corpus_features(corpus: "Corpus") -> list[RequestFeature]:
    """The request features of a corpus: by the times of its training examples, and columns of the interactions.

    The gap has the buckets of `GAP_EDGES`, of which those are merged into the next that no training example is in;
    where the order of times alone is known, whether it is 0. Hour and weekday are there where times are seconds since
    1970, the hour where they are not whole days.

    Args:
        corpus: A corpus; of a large one the examples are read a part at a time.
    """
    start, newest, step = 0, NO_TIME, -1
    edges = np.array(list(GAP_EDGES))
    counts = np.zeros(len(edges) + 1, dtype=np.int64)
    for _, rows in corpus.batches("train") if corpus.has_times else ():
        if rows.times is None:
            continue
        times = np.concatenate([rows.times.time, rows.times.previous])
        times = times[times != NO_TIME]
        if not len(times):
            continue
        if step < 0:
            start, step = int(times[0]), 0
        step, newest = int(np.gcd.reduce(times - start, initial=step)), max(newest, int(times.max()))
        known = rows.times.known & (rows.times.time >= rows.times.previous)
        gaps = rows.times.time[known] - rows.times.previous[known]
        counts += np.bincount(np.searchsorted(edges, gaps), minlength=len(counts))
    unit = _unit_of(newest, step)
    clock = (unit, start % unit if unit else 0)
    features = []
    if counts.any():
        if not unit:
            counts, edges = np.array([counts[0], counts[1:].sum()]), edges[:1]
        last = int(np.flatnonzero(counts)[-1])
        kept = tuple(int(edge) for edge in edges[:last][counts[:last] > 0])
        features.append(RequestFeature(GAP, (*(GAP_EDGES[edge] for edge in kept), LATER), kept, *clock))
    if unit:
        if unit <= _HOUR:
            features.append(RequestFeature(HOUR, tuple(map(str, range(24))), (), *clock))
        features.append(RequestFeature(WEEKDAY, WEEKDAYS, (), *clock))
    stored = [RequestFeature(name, tuple(values), unit=0) for name, values in corpus.context_values.items()]
    return features + stored


def _unit_of(newest: int, step: int) -> int:
    """Seconds of the unit of times, by the newest of them and a divisor of all distances; 0 where they are an order."""
    return next(seconds for seconds in _UNITS if step % seconds == 0) if int(unit_numbers(np.array(newest))) == 0 else 0


def share_in_session(time: np.ndarray, previous: np.ndarray) -> float | None:
    """Share of examples whose target is at most `SESSION` seconds after the newest item of the history.

    Args:
        time: int64 (R,), of the targets, as in `RequestFeature.of_times`.
        previous: int64 (R,), of the newest items.

    Returns:
        The share; None where times do not tell it: none is known, they are whole days or coarser than a session, or a
        mere order.

    Example:
        >>> days = np.array([20, 20, 22, 25]) * 86_400 + 1_600_000_000
        >>> share_in_session(days[1:], days[:-1]), share_in_session(days[1:] + 60, days[:-1])
        (None, 0.3333333333333333)
    """
    known = (time != NO_TIME) & (previous != NO_TIME) & (time >= previous)
    if not known.any():
        return None
    times = np.concatenate([time[known], previous[known]])
    unit = _unit_of(int(times.max()), int(np.gcd.reduce(times - times[0])))
    return float(np.mean(time[known] - previous[known] <= SESSION)) if 0 < unit <= SESSION else None


def chosen_features(corpus: "Corpus", names: Sequence[str]) -> tuple[RequestFeature, ...]:
    """Some request features of a corpus by name, in the order of `names`.

    Raises:
        ConfigError: If it does not have one of them.
    """
    if not names:
        return ()
    known = {feature.name: feature for feature in corpus_features(corpus)}
    for name in names:
        if name not in known:
            has = ", ".join(known) or (
                "none, as no training example has a time; prepare it from a source with times (of the published data "
                "with --times_by_order true)"
            )
            raise ConfigError(f"context names {shown(name)}, which the corpus does not have. It has {has}.")
    return tuple(known[name] for name in names)


def context_codes(features: Sequence[RequestFeature], rows: "SplitExamples") -> np.ndarray:
    """The codes of examples, known when their targets are requested: int16 (R, F), `UNKNOWN` where unknown."""
    codes = [feature.of_examples(rows) for feature in features]
    return np.stack(codes, axis=1) if codes else np.zeros((len(rows), 0), dtype=np.int16)


def corpus_codes(corpus: "Corpus", features: Sequence[RequestFeature], split: str = "train") -> np.ndarray:
    """The codes of all examples of a split, in their order: int16 (R, F); see `context_codes`."""
    codes = np.zeros((corpus.sizes[split], len(features)), dtype=np.int16)
    for numbers, rows in corpus.batches(split):
        codes[numbers] = context_codes(features, rows)
    return codes


def value_names(features: Sequence[RequestFeature], codes: Sequence[int]) -> dict[str, str]:
    """Feature → name of its value, for those whose code is known.

    Args:
        features: F features.
        codes: A code of each.
    """
    pairs = zip(features, codes, strict=True)
    return {feature.name: feature.names[code] for feature, code in pairs if code != UNKNOWN}
