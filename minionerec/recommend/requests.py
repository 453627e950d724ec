"""Requests to a recommender and its answers, in the user's own item ids.

`Request` declares all fields of a request. Its annotations check the arguments of a Python call, the rows of
a file of histories and the bodies of the HTTP server, which adds its limits and derives its description from
them. A new field is one line there, and its use in `Recommender.understand`.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.dataclasses import dataclass as model
from pydantic_core.core_schema import custom_error_schema

from minionerec.core.errors import ConfigError, DataError, shown
from minionerec.data.filters import parse_time
from minionerec.data.units import SECOND, UNITS, looks_like, unit_numbers

STRICT = ConfigDict(strict=True, extra="forbid")


class RequestError(DataError):
    """An invalid request.

    Attributes:
        field: The invalid field, such as "k", "history[3]" or "where.price".
        message: The reason and what is expected, without the field's name.
    """

    def __init__(self, field: str, message: str):
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


def expected(words: str) -> GetPydanticSchema:
    """Annotation of a type: the expected value, for the one error message that takes the place of its own."""
    message = f"Input should be {words}"
    return GetPydanticSchema(
        lambda source, handler: custom_error_schema(handler(source), "expected", custom_error_message=message)
    )


def as_list(value: Any) -> Any:
    """A collection of ids as a list; anything else unchanged."""
    if isinstance(value, list | str | bytes | Mapping) or not isinstance(value, Collection):
        return value
    return list(value)


def as_ids(value: Any) -> Any:
    """Item ids as a list of texts: whole numbers, also of numpy and of a data frame's column, are converted."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return value
    return [str(each) if isinstance(each, Integral) and not isinstance(each, bool) else each for each in value]


def list_of(value: Any, most: int | None = None, before: Callable[[Any], Any] = as_list) -> GetPydanticSchema:
    """Annotation of a collection, which is kept as a list.

    Args:
        value: The type of one value.
        most: Maximum number of values; any if None.
        before: Makes the list.
    """
    return GetPydanticSchema(
        lambda _, handler: handler(Annotated[list[value], Field(max_length=most), BeforeValidator(before)])
    )


def plain_time(value: Any) -> Any:
    """A time as a request has it: dates of Python, pandas and numpy as text, numbers of numpy as those of Python."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, np.datetime64):
        return str(value)
    return value.item() if isinstance(value, np.integer | np.floating) else value


_ISO = re.compile(
    r"(19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
"""Dates that Python reads as columns are read, in a small part of the time."""


def _plain_dates(times: Sequence[Any]) -> list[int] | None:
    """Seconds since 1970 of dates of the usual form; None if one is not."""
    if not all(isinstance(time, str) and _ISO.fullmatch(time) for time in times):
        return None
    try:
        return [math.floor(parse_time(time)) for time in times]
    except ConfigError:
        return None


def name_shown(name: str) -> str:
    """A name from a caller, as shown in a field: short and in ASCII."""
    text = name if name.isascii() and name.isprintable() else ascii(name)
    return text if len(text) <= 60 else f"{text[:57]}..."


LONGER = 10
"""How many times as long as a list the one is that `boost`, `at_most` and `diversity` choose from."""
_ID = Annotated[str, expected("an item id: a text or a whole number")]
Ids = Annotated[Collection[str], list_of(_ID, before=as_ids)]
TIME = "an ISO date such as 2018-11-05T12:30:00, or a number of seconds since 1970"
Names = Annotated[Collection[str], list_of(Annotated[str, expected("the name of a column")])]
_Value = Annotated[str | int | float | None, expected("a name or a number")]
_Event = Annotated[str, expected("the name of an event")]
Factor = Annotated[float, Field(gt=0, le=1e6), expected("a number above 0, at most 1000000")]
Share = Annotated[float, Field(ge=0, le=1), expected("a number from 0 to 1")]
Most = Annotated[int, Field(ge=1), expected("a whole number from 1")]
Time = Annotated[Annotated[str, Field(max_length=64)] | int | float, expected(TIME)]


@model(frozen=True, config=STRICT)
class Request:
    """One question.

    Attributes:
        history: The items chosen so far by their ids, oldest first; may be empty.
        k: Length of the list.
        exclude_seen: Whether items of the history may not be listed.
        only: The items that may be listed; all if None.
        without: Items that may not.
        where: Conditions on columns of the items table, all of which must hold: a value ({"department": "Tea"}), a list
            of which one must hold ({"department": ["Tea", "Ink"]}), or bounds ({"price": {"at_least": 1, "at_most":
            20}}). An item without a value in the column meets none.
        unknown: "skip" ignores unknown ids and lists them in the answer; "refuse" raises.
        context: Values of request features by name, for models that were conditioned on them in training: of `gap` the
            time since the history's newest item, as a number of seconds or a name ("same"); of `hour` 0 to 23, in UTC;
            of `weekday` 0 (Monday) to 6, or a name ("Tuesday"). What it lacks, or has as "unknown", is derived from
            `times` and `now`, where these are given. Features that the model does not read are ignored, and with an
            empty history the gap.
        times: When the items of the history were chosen, one time for each, None where it is not known: all ISO dates,
            in UTC where they have no zone, or all numbers: seconds, milli-, micro- or nanoseconds since 1970. None
            where nothing is known.
        now: The time of the request, in the form of `times`; alone it gives hour and weekday.
        events: The event of each item of the history, such as "view", None where it is not known; an event that the
            model does not know is as one that is not known. None where nothing is known.
        columns: Columns of the items table that the answer has for each item.
        boost: Factors of probabilities by column and text: {"brand": {"Acme": 1.2}}. They reorder the `LONGER` · k best
            items; only models with probabilities take them.
        at_most: How many items of one value a list may have, by column: {"brand": 2}. The best that fit are taken from
            the `LONGER` · k best items; if these are too few, the best of the others follow, so that the list is full.
        diversity: How much a list is of unlike items, from 0 to 1: each next item of the `LONGER` · k best is the one
            with the largest (1 - diversity) · score - diversity · cosine to the most similar item before it, scores
            scaled to [0, 1] (maximal marginal relevance; Carbonell and Goldstein, "The Use of MMR", 1998), by the
            vectors of items in the model.

    Raises:
        RequestError: If a field is invalid, with its value and what is expected.
    """

    history: Annotated[Ids, Field(description="item ids, oldest first")] = ()
    k: Annotated[int, Field(ge=1, description="number of items"), expected("a whole number from 1")] = 10
    exclude_seen: Annotated[bool, Field(description="exclude the items of the history"), expected("true or false")] = (
        False
    )
    only: Annotated[Ids | None, Field(description="items that may be listed; all if null")] = None
    without: Annotated[Ids, Field(description="items that may not be listed")] = ()
    where: Annotated[
        Mapping[str, Any] | None,
        Field(
            description="conditions on columns, all of which must hold: a value, a list of which one must hold, or "
            "bounds; GET /v1/model names the columns"
        ),
    ] = None
    unknown: Annotated[
        Literal["skip", "refuse"],
        Field(description="whether unknown ids are skipped and reported, or refused"),
    ] = "skip"
    context: Annotated[
        Mapping[str, _Value] | None,
        Field(
            description="values of request features by name, see context of GET /v1/model: gap (seconds since the "
            "newest item, or a name), hour (0 to 23, UTC), weekday (0, Monday, to 6, or a name); what the model does "
            "not read is ignored"
        ),
    ] = None
    times: Annotated[
        Annotated[Collection[Any], list_of(Time | None)] | None,
        Field(
            description="when the items of the history were chosen, one time for each, null where it is not known: all "
            "ISO dates, or all numbers of seconds since 1970; with now, request features are derived from them where "
            "context lacks them"
        ),
    ] = None
    now: Annotated[
        Time | None, Field(description="the time of the request, in the form of times; alone it gives hour and weekday")
    ] = None
    events: Annotated[
        Annotated[Collection[Any], list_of(_Event | None)] | None,
        Field(description="the event of each item of the history, such as view, null where it is not known"),
    ] = None
    columns: Annotated[Names, Field(description="columns of the items that the answer has")] = ()
    boost: Annotated[
        Mapping[str, Mapping[str, Factor]] | None,
        Field(description="factors of probabilities by column and text, for models that have probabilities"),
    ] = None
    at_most: Annotated[
        Mapping[str, Most] | None,
        Field(description="how many items of one value a list may have, by column; the list stays full"),
    ] = None

    diversity: Annotated[
        Share, Field(description="0 to 1: how much unlike items are preferred, by the vectors of items in the model")
    ] = 0.0

    @property
    def is_rearranged(self) -> bool:
        """Whether its list is made of a longer one."""
        return bool(self.boost or self.at_most or self.diversity)

    @model_validator(mode="wrap")
    @classmethod
    def _as_request_error(cls, value: Any, handler: Any) -> Self:
        try:
            checked: Self = handler(value)
        except ValidationError as error:
            raise cls._error(error) from None
        if checked.times is not None and checked.now is None:
            raise RequestError("now", "is missing, but times is given; give it too, or leave times out.")
        if checked.times is not None and len(checked.times) != len(checked.history):
            raise RequestError(
                "times",
                f"has {len(checked.times)} times for {len(checked.history)} items of the history; give one for each, "
                "null where it is not known.",
            )
        if checked.events is not None and len(checked.events) != len(checked.history):
            raise RequestError(
                "events",
                f"has {len(checked.events)} events for {len(checked.history)} items of the history; give one for each, "
                "null where it is not known.",
            )
        return checked

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields' names."""
        return tuple(field.name for field in fields(cls))

    @staticmethod
    def shown(value: Any) -> str:
        """A value as shown in errors."""
        return shown(value)

    def seconds(self) -> tuple[list[int | None], int]:
        """`times` and `now`, which is given, read as `prepare-data` reads times.

        Returns:
            Seconds since 1970 of each item of the history, None where its time is not known; and of the request.

        Raises:
            RequestError: If they are no times, of several units or forms, or not in order.
        """
        named = [(f"times[{index}]", time) for index, time in enumerate(self.times or ()) if time is not None]
        fields, given = zip(*named, ("now", self.now), strict=True)
        seconds = _plain_dates(given) or self._read(fields, given)
        for row in range(1, len(seconds)):
            if seconds[row] < seconds[row - 1]:
                remedy = "the time of the request" if fields[row] == "now" else "times oldest first, as the history"
                before = f"{fields[row - 1]}, {self.shown(given[row - 1])}"
                raise RequestError(fields[row], f"is {self.shown(given[row])}, earlier than {before}. Give {remedy}.")
        found = iter(seconds)
        return [None if time is None else next(found) for time in self.times or ()], seconds[-1]

    def _read(self, fields: Sequence[str], given: Sequence[Any]) -> list[int]:
        """Times of any form, of the fields of these names, read as a column: seconds since 1970."""
        import pandas as pd  # here, for `--help` reads this file

        from minionerec.data.sources.times import parse_times

        read, right, ticks, _ = parse_times(pd.Series(list(given)))
        if not right.all():
            row = int(np.argmin(right))
            form = "a number" if ticks == SECOND else "an ISO date"
            wanted = f"{form}, as the others" if right.any() else TIME
            raise RequestError(fields[row], f"is {self.shown(given[row])}; expected {wanted}.")
        if ticks == SECOND:
            units = unit_numbers(read)
            unit = int(min(units.min(), 0) or units[-1])  # below 0: of no time; else all must have that of now
            wrong = np.flatnonzero(units == unit if unit < 0 else units != unit)
            if len(wrong):
                row = int(wrong[0])
                remedy = f"expected {TIME}." if unit < 0 else f"now looks like {UNITS[unit][0]}. Give all in one unit."
                looks = looks_like(float(read[row]))
                raise RequestError(fields[row], f"is {self.shown(given[row])}, which looks like {looks}; {remedy}")
            ticks = UNITS[unit][1]
        seconds: list[int] = (read // ticks).astype(np.int64).tolist()
        return seconds

    @classmethod
    def _error(cls, error: ValidationError) -> RequestError:
        """The first error as one line."""
        found = error.errors(include_url=False)[0]
        kind, given, context = found["type"], found["input"], found.get("ctx", {})
        first, *inner = found["loc"]
        if kind == "unexpected_keyword_argument":
            return RequestError(name_shown(str(first)), f"is unknown; expected {', '.join(cls.names())}.")
        if kind == "unexpected_positional_argument":
            return RequestError("request", f"has too many values; expected {', '.join(cls.names())}.")
        name = cls.names()[first] if isinstance(first, int) else first  # positional arguments have no name
        key = inner[-1:] == ["[key]"]
        inner = inner[: len(inner) - key]
        if name == "where":  # the tag of the union is not part of the path
            inner = inner[:1] + inner[2:]
        if key:
            inner[-1] = given
        path = [name, *(f"[{part}]" if isinstance(part, int) else f".{name_shown(part)}" for part in inner)]
        if kind == "too_long":
            noun = _NOUNS.get(name, "ids") if not inner else "values"
            message = f"has {len(given)} {noun}; at most {context['max_length']} are allowed."
        elif kind == "too_short":
            message = "is empty; expected at least one."
        else:
            words = found["msg"].removeprefix("Input should be ").replace("'", '"')
            if kind in ("list_type", "is_instance_of"):
                words = f"a list of {_NOUNS.get(name, 'item ids')}"
            elif kind in ("dict_type", "mapping_type"):
                words = f"an object of {'request features' if name == 'context' else 'columns'} and {_NOUNS.get(name)}"
            message = f"is {'unknown' if key else cls.shown(given)}; expected {words}."
        return RequestError("".join(path), message)


_NOUNS = {
    "context": "values",
    "where": "conditions",
    "times": "times",
    "events": "events",
    "columns": "names of columns",
} | dict.fromkeys(("boost", "at_most"), "conditions")


class Recommended(NamedTuple):
    """One item of a list.

    Attributes:
        item_id: Its id.
        title: Its title.
        sid: Its semantic ID; None where the model has none.
        score: The ranking score: the log-probability of its semantic ID (plus the lift of new items, if any); for other
            rankers their own score.
        probability: Of its semantic ID, which other items may share; None where scores are not log-probabilities.
        columns: Values of the columns that the request names; None where an item has none.
    """

    item_id: str
    title: str
    sid: Annotated[str | None, Field(description="semantic ID, of models that generate them")]
    score: Annotated[
        float, WithJsonSchema({"type": ["number", "null"], "description": "ranking score, higher is better"})
    ]
    probability: Annotated[float | None, Field(description="of the semantic ID, if the model has probabilities")]
    columns: Annotated[Mapping[str, Any], Field(description="values of the columns that the request names")]


@dataclass(frozen=True)
class Answer:
    """One list.

    Attributes:
        items: The best items that may be listed, best first: k of them, or all if fewer.
        unknown: Unknown ids of the history, `only` and `without`, in this order, without duplicates.
        context: Request features that the model was given, name → name of the value: those of the request, or derived
            from its times; "unknown" for those that it reads beside.
    """

    items: tuple[Recommended, ...]
    unknown: tuple[str, ...]
    context: Mapping[str, str]
