"""A load generator for HTTP/1.1 on loopback: some connections that are kept open, one request at a time on each.

It is small, for it shares the machine with what it measures: bytes are prepared beforehand, of an answer
only the status and the length are read, and no connection or request goes beyond what was asked for.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np


def request_bytes(body: bytes, path: str = "/v1/recommend", method: str = "POST", key: str = "") -> bytes:
    """A request as it goes over the wire."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    if key:
        head += f"Authorization: Bearer {key}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def recommend_bytes(histories: Sequence[Sequence[str]], k: int, **more: object) -> list[bytes]:
    """A request for each history."""
    return [request_bytes(json.dumps({"history": list(history), "k": k, **more}).encode()) for history in histories]


@dataclass
class Load:
    """What came of some traffic.

    Attributes:
        seconds: How long it lasted.
        statuses: Status of each request; 0 or -1 where the connection broke, see `Connection.send`.
        times: Seconds of each request, parallel to `statuses`.
        positions: Number of the request that was sent, parallel to `statuses`.
        bodies: Body of each answer where they were kept, parallel to `statuses`.
    """

    seconds: float = 0.0
    statuses: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Requests, requests a second, and milliseconds: median, 99th percentile and the longest."""
        times = np.array(self.times) * 1000
        return {
            "requests": len(times),
            "a_second": round(len(times) / self.seconds, 1),
            "p50_ms": round(float(np.median(times)), 2),
            "p99_ms": round(float(np.percentile(times, 99)), 2),
            "most_ms": round(float(times.max()), 2),
        }


class Connection:
    """One connection; opened again where the server closed it."""

    def __init__(self, host: str, port: int):
        self._address = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send one request and read its answer.

        Returns:
            Status and body; status 0 where the connection was not there or ended before an answer began, -1 where it
            broke amid one.
        """
        amid = False
        try:
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(*self._address)
            assert self._reader is not None
            self._writer.write(request)
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            start = head.find(b"content-length:")
            amid = True
            length = int(head[start + 15 : head.index(b"\r\n", start)]) if start >= 0 else 0
            body = await self._reader.readexactly(length)
            if b"connection: close" in head:
                self.close()
            return int(head[9:12]), body
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            return -1 if amid or getattr(error, "partial", b"") else 0, b""

    def close(self) -> None:
        """Close it."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def drive(
    port: int,
    requests: Sequence[bytes],
    connections: int,
    *,
    most: int | None = None,
    seconds: float | None = None,
    keep: bool = False,
    pause: Callable[[int], float] = lambda status: 0.0,
    host: str = "127.0.0.1",
) -> Load:
    """Send requests in turn over some connections, each the next as soon as it has its answer.

    Args:
        port: Where the server listens.
        requests: What is sent, again from the start when it is through.
        connections: Connections, and so the most requests under way.
        most: Requests in all; every one of `requests` once if None and no seconds are given.
        seconds: Time after which no more are sent.
        keep: Whether bodies are kept.
        pause: Seconds that a connection waits after an answer of a status.
        host: Address of the server.
    """
    load = Load()
    if most is None and seconds is None:
        most = len(requests)
    sent = 0
    begin = time.perf_counter()

    async def connection() -> None:
        nonlocal sent
        line = Connection(host, port)
        while (most is None or sent < most) and (seconds is None or time.perf_counter() - begin < seconds):
            position = sent % len(requests)
            sent += 1
            start = time.perf_counter()
            status, body = await line.send(requests[position])
            load.times.append(time.perf_counter() - start)
            load.statuses.append(status)
            load.positions.append(position)
            if keep:
                load.bodies.append(body)
            if wait := pause(status):
                await asyncio.sleep(wait)
        line.close()

    await asyncio.gather(*(connection() for _ in range(connections)))
    load.seconds = time.perf_counter() - begin
    return load


async def arrive(
    port: int, requests: Sequence[bytes], rate: float, seconds: float, connections: int, host: str = "127.0.0.1"
) -> tuple[Load, int]:
    """Send requests at a fixed rate, whether the server keeps up or not.

    Args:
        port: Where the server listens.
        requests: What is sent, again from the start when it is through.
        rate: Requests a second.
        seconds: How long.
        connections: Most requests under way; those that come while so many are, are not sent.
        host: Address of the server.

    Returns:
        What came of it, and how many were not sent.
    """
    load, left_out, number = Load(), 0, 0
    idle = [Connection(host, port) for _ in range(connections)]
    under_way: set[asyncio.Task[None]] = set()

    async def one(line: Connection, position: int) -> None:
        start = time.perf_counter()
        status, _ = await line.send(requests[position])
        load.times.append(time.perf_counter() - start)
        load.statuses.append(status)
        load.positions.append(position)
        idle.append(line)

    begin = time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        for _ in range(int(passed * rate) - number):
            number += 1
            if not idle:
                left_out += 1
                continue
            task = asyncio.create_task(one(idle.pop(), number % len(requests)))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.sleep(0.002)
    await asyncio.gather(*under_way)
    load.seconds = time.perf_counter() - begin
    for line in idle:
        line.close()
    return load, left_out


_WORDS = [b"null", b"true", b"1e999", b"NaN", b"-1", b'"\\ud800"', b"[]", b"{}", b'"k"', b"[[[[", b"\xff", b'"']
_WORDS += [b",", b"9" * 20, b'"history"', b":"]


def mutated(body: bytes, rng: random.Random) -> bytes:
    """A body in which one to three characters were exchanged for something that does not belong there."""
    for _ in range(rng.randrange(1, 4)):
        start = rng.randrange(len(body) + 1)
        end = min(len(body), start + rng.choice([0, 0, 1, 2, 5, 20]))
        body = body[:start] + rng.choice(_WORDS) + body[end:]
    return body
