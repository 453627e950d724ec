"""What a call's body says: JSON read strictly, every field checked by name, limits held.

Written by hand: it takes 15 microseconds a request of twenty ids, and its messages are ours.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from minionerec.data.moments import MOMENTS
from minionerec.recommend.requests import UNKNOWN, Request
from minionerec.serve.config import Limits
from minionerec.serve.refusal import Refusal

FIELDS = ("history", "k", "exclude_seen", "only", "without", "where", "unknown", "moment")
_LONGEST_ID = 512
_MOST_CONDITIONS = 32
_DIGITS = 18  # of a whole number: what fits into 64 bits
_BOUNDS = ("at_least", "at_most")


def read_json(body: bytes) -> Any:
    """Parse a body, as the standard of JSON has it and no wider.

    Raises:
        Refusal: 400 where it is no JSON or says something that no program agrees on: a name twice, a number that is
            none, more nesting or digits than any call needs.
    """
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except json.JSONDecodeError as error:
        said = f"the body is no JSON: {error.msg}, line {error.lineno}, column {error.colno}."
        raise Refusal(400, said if body.strip() else "the body is empty; expected a JSON object.") from None
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is no UTF-8 text: byte {error.start} is {body[error.start]:#04x}.") from None
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Refusal(400, "is given twice; give it once.", shown_name(name))
            seen.add(name)
    return found


def _constant(word: str) -> NoReturn:
    raise Refusal(400, f"the body is no JSON: {word} is no number.")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Refusal(400, "the body holds a number that is too large.")
    return number


def _int(text: str) -> int:
    if len(text) > _DIGITS + 1:
        raise Refusal(400, f"the body holds a whole number of more than {_DIGITS} digits.")
    return int(text)


def shown(value: Any) -> str:
    """A value as a message shows it: short, and of plain characters."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def shown_name(name: str) -> str:
    """A name that a caller made up, as a field shows it."""
    return shown(name)[1:-1] if name.isascii() and name.isprintable() else shown(name)


def read_call(value: Any, limits: Limits) -> tuple[list[Request], bool]:
    """The requests of a call, and whether it was one without a list around it.

    Raises:
        Refusal: 422, naming the field.
    """
    if isinstance(value, dict) and "requests" in value:
        _refuse_unknown(value, ("requests",), "")
        requests = value["requests"]
        if not isinstance(requests, list) or not requests:
            _wrong("requests", requests, "a list of requests, not empty")
        if len(requests) > limits.max_requests:
            raise Refusal(
                422, f"holds {len(requests)} requests; at most {limits.max_requests} a call are taken.", "requests"
            )
        return [read_request(entry, limits, f"requests[{i}]") for i, entry in enumerate(requests)], False
    return [read_request(value, limits)], True


def read_request(value: Any, limits: Limits, place: str = "") -> Request:
    """One request.

    Args:
        value: What the JSON holds.
        limits: What it may ask for.
        place: Where in the body it stands, e.g. "requests[3]".

    Raises:
        Refusal: 422, naming the field.
    """
    if not isinstance(value, dict):
        _wrong(place or None, value, "an object with a history")
    prefix = f"{place}." if place else ""
    if not value.keys() <= _KNOWN:
        _refuse_unknown(value, FIELDS, prefix)
    k = value.get("k", limits.usual_k)
    if type(k) is not int or not 1 <= k <= limits.max_k:
        _wrong(f"{prefix}k", k, f"a whole number from 1 to {limits.max_k}")
    seen = value.get("exclude_seen", False)
    if type(seen) is not bool:
        _wrong(f"{prefix}exclude_seen", seen, "true or false")
    unknown = value.get("unknown", "skip")
    if unknown not in UNKNOWN:
        _wrong(f"{prefix}unknown", unknown, '"skip" or "refuse"')
    moment = value.get("moment", "unknown")
    if moment not in MOMENTS:
        _wrong(f"{prefix}moment", moment, '"unknown", "same" or "later"')
    only = value.get("only")
    return Request(
        history=_ids(value.get("history", []), f"{prefix}history", limits.max_history),
        k=k,
        exclude_seen=seen,
        only=None if only is None else _ids(only, f"{prefix}only", limits.max_list),
        without=_ids(value.get("without", []), f"{prefix}without", limits.max_list),
        where=_where(value.get("where"), f"{prefix}where", limits),
        unknown=unknown,
        moment=moment,
    )


_KNOWN = frozenset(FIELDS)


def _wrong(field: str | None, value: Any, expected: str) -> NoReturn:
    said = "the body is" if field is None else "is"
    raise Refusal(422, f"{said} {_kind(value)}; expected {expected}.", field)


def _kind(value: Any) -> str:
    """What a value is, in few words."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shown(value)


def _refuse_unknown(value: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for name in value:
        if name not in known:
            raise Refusal(422, f"is unknown; expected {', '.join(known)}.", f"{prefix}{shown_name(name)}")


def _ids(value: Any, field: str, most: int) -> list[str]:
    if not isinstance(value, list):
        _wrong(field, value, "a list of item ids")
    if len(value) > most:
        raise Refusal(422, f"holds {len(value)} ids; at most {most} are taken.", field)
    for place, entry in enumerate(value):
        if type(entry) is not str or not 0 < len(entry) <= _LONGEST_ID or not (entry.isascii() or _whole(entry)):
            _wrong(f"{field}[{place}]", entry, f"an item id: a text of 1 to {_LONGEST_ID} characters")
    return value


def _whole(text: str) -> bool:
    """Whether a text holds whole characters: an escape in JSON may name half of one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _where(value: Any, field: str, limits: Limits) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        _wrong(field, value, "an object of columns and conditions")
    if len(value) > _MOST_CONDITIONS:
        raise Refusal(422, f"holds {len(value)} conditions; at most {_MOST_CONDITIONS} are taken.", field)
    for column, condition in value.items():
        place = f"{field}.{shown_name(column)}"
        if not _whole(column) or len(column) > _LONGEST_ID:
            _wrong(place, column, "the name of a column")
        _check_condition(condition, place, limits)
    return value


def _check_condition(condition: Any, place: str, limits: Limits) -> None:
    if isinstance(condition, dict):
        _refuse_unknown(condition, _BOUNDS, f"{place}.")
        if not condition:
            _wrong(place, condition, "at_least, at_most, or both")
        for name, bound in condition.items():
            if type(bound) not in (int, float):
                _wrong(f"{place}.{name}", bound, "a number")
    elif isinstance(condition, list):
        if not 0 < len(condition) <= limits.max_list:
            raise Refusal(422, f"holds {len(condition)} values; expected 1 to {limits.max_list}.", place)
        for number, entry in enumerate(condition):
            _check_scalar(entry, f"{place}[{number}]")
    else:
        _check_scalar(condition, place)


def _check_scalar(value: Any, place: str) -> None:
    if type(value) is str:
        if len(value) <= _LONGEST_ID and _whole(value):
            return
    elif type(value) in (bool, int, float):
        return
    _wrong(place, value, f"true, false, a number or a text of at most {_LONGEST_ID} characters")
