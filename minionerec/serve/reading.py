"""The body of a call: reading within limits, strict JSON parsing, validation as requests, and refusals."""

import asyncio
import functools
import json
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, cast

from pydantic import Discriminator, Field, Tag
from pydantic.dataclasses import dataclass as model

from minionerec.recommend.requests import (
    STRICT,
    Factor,
    Most,
    Request,
    RequestError,
    Time,
    expected,
    list_of,
    name_shown,
)
from minionerec.serve.config import Limits

if TYPE_CHECKING:
    from starlette.types import Receive

_DRAINED = 8  # multiple of the limit that is read and discarded, so that the caller gets the error
_MAX_LENGTH = 512  # characters of an id, and of a column's name and values
_MAX_CONDITIONS = 32
_FIELDS = frozenset(Request.names())
_DIGITS = 18  # maximum digits of a whole number, which fit into 64 bits


class Refusal(Exception):
    """A call that is not answered.

    Args:
        status: HTTP status.
        message: One line for the caller, without file paths or server internals.
        field: The invalid field, e.g. "history[3]"; None if it is not a single field.
        retry_after: Seconds after which to retry.
        close: Whether to close the connection, because the body was not read.
        allow: Methods that the path takes, as of the header Allow.
    """

    def __init__(
        self,
        status: int,
        message: str,
        field: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
        allow: str = "",
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field
        self.retry_after = retry_after
        self.close = close
        self.allow = allow

    def body(self) -> bytes:
        """The body of the response."""
        return json.dumps({"error": {"field": self.field, "message": self.message}}).encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the response."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.close:
            headers.append((b"connection", b"close"))
        if self.allow:
            headers.append((b"allow", self.allow.encode()))
        return headers


async def read_body(headers: Sequence[tuple[bytes, bytes]], receive: "Receive", limits: Limits) -> bytes:
    """The body of a call.

    Args:
        headers: Its headers, names in lower case.
        receive: The ASGI receive function.
        limits: The limits in bytes and seconds.

    Raises:
        Refusal: 415 if the content type is not JSON, 413 if it is too large, by its header or by its content,
            408 after the time limit.
        ClientDisconnect: If the client disconnects.
    """
    kind, length = b"", b""
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == b"content-length":
            length = value
    if kind.partition(b";")[0].strip().lower() != b"application/json":
        # A page of another site can send other types from a browser without a preflight, but not this one.
        raise Refusal(415, "Content-Type must be application/json.", close=True)
    limit = limits.max_body_bytes
    if len(length) > 18 or int(length or b"0") > limit * _DRAINED:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(limits.timeout_s):
            return await _read(receive, limit)
    except TimeoutError:
        raise Refusal(408, "timeout while receiving the body.", close=True) from None


async def _read(receive: "Receive", limit: int) -> bytes:
    from starlette.requests import ClientDisconnect

    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            pieces = []
            if size > limit * _DRAINED:
                raise _too_large(limit)
        else:
            pieces.append(piece)
        if not message.get("more_body", False):
            break
    if size > limit:
        raise _too_large(limit)
    return b"".join(pieces)


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the body is larger than {limit:,} bytes.", close=True)


def read_json(body: bytes) -> Any:
    """Parse a body as strict JSON.

    Raises:
        Refusal: 400 if it is not valid JSON, or has duplicate names, NaN or infinity, or too much nesting or too many
            digits.
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
        message = f"the body is not valid JSON: {error.msg}, line {error.lineno}, column {error.colno}."
        raise Refusal(400, message if body.strip() else "the body is empty; expected a JSON object.") from None
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not valid UTF-8: byte {error.start} is {body[error.start]:#04x}.") from None
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Refusal(400, "is given twice; give it once.", name_shown(name))
            seen.add(name)
    return content


def _constant(word: str) -> NoReturn:
    raise Refusal(400, f"the body is not valid JSON: {word} is not a number.")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Refusal(400, "the body has a number that is too large.")
    return number


def _int(text: str) -> int:
    if len(text) > _DIGITS + 1:
        raise Refusal(400, f"the body has an integer of more than {_DIGITS} digits.")
    return int(text)


def shown(value: Any) -> str:
    """A value as shown in messages: short and in ASCII."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@functools.cache
def limited(limits: Limits) -> type[Request]:
    """`Request` of a server: the same fields, from JSON, within its limits."""
    item_id: Any = Annotated[
        str,
        Field(min_length=1, max_length=_MAX_LENGTH),
        expected(f"an item id: a text of 1 to {_MAX_LENGTH} characters, in quotes"),
    ]
    text: Any = Annotated[str, Field(max_length=_MAX_LENGTH)]
    value: Any = Annotated[
        bool | int | float | text, expected(f"true, false, a number or a text of at most {_MAX_LENGTH} characters")
    ]
    bound: Any = Annotated[Literal["at_least", "at_most"], expected("at_least, at_most")]
    bounds: Any = Annotated[dict[bound, Annotated[int | float, expected("a number")]], Field(min_length=1)]
    values: Any = Annotated[list[value], Field(min_length=1, max_length=limits.max_list)]
    condition: Any = Annotated[
        Annotated[bounds, Tag("dict")] | Annotated[values, Tag("list")] | Annotated[value, Tag("value")],
        Discriminator(lambda given: type(given).__name__ if isinstance(given, dict | list) else "value"),
    ]
    name: Any = Annotated[text, expected("the name of a column")]
    event: Any = Annotated[text, expected("the name of an event")]
    code: Any = Annotated[text | int | float | None, expected("a name or a number")]
    columns: Any = dict[name, condition]
    factors: Any = Annotated[dict[text, Factor], Field(min_length=1, max_length=limits.max_list)]
    narrower: dict[str, Any] = {
        "history": Annotated[Collection[str], list_of(item_id, limits.max_history)],
        "k": Annotated[int, Field(ge=1, le=limits.max_k), expected(f"a whole number from 1 to {limits.max_k}")],
        "only": Annotated[Collection[str], list_of(item_id, limits.max_list)] | None,
        "without": Annotated[Collection[str], list_of(item_id, limits.max_list)],
        "where": Annotated[columns, Field(max_length=_MAX_CONDITIONS)] | None,
        "context": Annotated[dict[text, code], Field(max_length=_MAX_CONDITIONS)] | None,
        "times": Annotated[Collection[Any], list_of(Time | None, limits.max_history)] | None,
        "events": Annotated[Collection[Any], list_of(event | None, limits.max_history)] | None,
        "columns": Annotated[Collection[str], list_of(name, _MAX_CONDITIONS)],
        "boost": Annotated[dict[name, factors], Field(max_length=_MAX_CONDITIONS)] | None,
        "at_most": Annotated[dict[name, Most], Field(max_length=_MAX_CONDITIONS)] | None,
    }
    fields = cast(Any, Request).__pydantic_fields__
    body = {name: Field(default=fields[name].default, description=fields[name].description) for name in narrower}
    body["k"].default = min(10, limits.max_k)
    body |= {"__annotations__": narrower, "__doc__": "One request.", "shown": staticmethod(shown)}
    return cast(type[Request], model(frozen=True, config=STRICT)(type("Request", (Request,), body)))


def read_call(value: Any, limits: Limits) -> tuple[list[Request], bool]:
    """The requests of a call, and whether it was a single one.

    Raises:
        Refusal: 422, naming the field.
    """
    if not isinstance(value, dict) or "requests" not in value:
        return [read_request(value, limits)], True
    for name in value:
        if name != "requests":
            raise Refusal(422, "is unknown; expected requests.", name_shown(name))
    requests = value["requests"]
    if not isinstance(requests, list) or not requests:
        raise Refusal(422, f"is {shown(requests)}; expected a list of requests, not empty.", "requests")
    if len(requests) > limits.max_requests:
        raise Refusal(
            422, f"has {len(requests)} requests; at most {limits.max_requests} per call are allowed.", "requests"
        )
    return [read_request(entry, limits, f"requests[{i}]") for i, entry in enumerate(requests)], False


def read_request(value: Any, limits: Limits, where: str = "") -> Request:
    """One request.

    Args:
        value: The parsed JSON.
        limits: The limits.
        where: Its path in the body, e.g. "requests[3]".

    Raises:
        Refusal: 422, naming the field.
    """
    if not isinstance(value, dict):
        subject = "is" if where else "the body is"
        raise Refusal(422, f"{subject} {shown(value)}; expected an object with a history.", where or None)
    request = limited(limits)
    prefix = f"{where}." if where else ""
    if unknown := value.keys() - _FIELDS:
        first = next(name for name in value if name in unknown)
        raise Refusal(422, f"is unknown; expected {', '.join(Request.names())}.", f"{prefix}{name_shown(first)}")
    try:
        return request(**value)
    except RequestError as error:
        raise Refusal(422, error.message, f"{prefix}{error.field}") from None
