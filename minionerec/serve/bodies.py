"""The bodies of calls: their type, their size, the time that they take to come."""

import asyncio
from collections.abc import Sequence

from minionerec.serve.config import Limits
from minionerec.serve.guard import Receive
from minionerec.serve.refusal import Refusal

_DRAINED = 8  # times the limit that is read and thrown away, so that the caller hears why


class Gone(Exception):
    """The caller has hung up."""


async def read_body(headers: Sequence[tuple[bytes, bytes]], receive: Receive, limits: Limits) -> bytes:
    """The body of a call.

    Args:
        headers: Its headers, names in lower case.
        receive: Where it comes from.
        limits: Bytes and seconds that it may take.

    Raises:
        Refusal: 415 where it is not announced as JSON, 413 where it is too large, whether it says so beforehand or
            comes in pieces, 408 where it takes too long.
        Gone: If the caller hangs up.
    """
    kind, length = b"", b""
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == b"content-length":
            length = value
    if kind.partition(b";")[0].strip().lower() != b"application/json":
        # A page of another site can send other types from a browser without asking, but not this one.
        raise Refusal(415, "the body is not announced as JSON; send Content-Type: application/json.", close=True)
    most = limits.max_body_bytes
    if len(length) > 18 or int(length or b"0") > most * _DRAINED:
        raise _too_large(most)
    try:
        async with asyncio.timeout(limits.timeout_s):
            return await _read(receive, most)
    except TimeoutError:
        raise Refusal(408, "the body took too long to come.", close=True) from None


async def _read(receive: Receive, most: int) -> bytes:
    body = b""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            pieces = []
            if size > most * _DRAINED:
                raise _too_large(most)
        else:
            pieces.append(piece)
        if not message.get("more_body", False):
            break
    if size > most:
        raise _too_large(most)
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return bytes(body)


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"the body is larger than {most:,} bytes.", close=True)
