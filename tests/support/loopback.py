"""A server on this machine that answers as it is told: slowly, shortly, falsely, packed, or not at all."""

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Loopback:
    """Answers each connection with what `answer` gives for its request.

    Args:
        answer: Takes the request's path and headers (names in lower case), and gives the parts of the answer; a number
            among them is a pause in seconds. None says nothing until the server ends.

    Attributes:
        url: Where it listens.
        asked: (path, headers) of every request, in order.
    """

    def __init__(self, answer: Callable[[str, dict[str, str]], Iterator[bytes | float] | list | None]):
        self._answer, self._open = answer, threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.asked: list[tuple[str, dict[str, str]]] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._speak, args=(self._socket.accept()[0],), daemon=True).start()

    def _speak(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            head = b""
            while b"\r\n\r\n" not in head and (read := connection.recv(4096)):
                head += read
            first, *lines = head.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
            reported = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            self.asked.append((first.split(" ")[1], reported))
            parts = self._answer(first.split(" ")[1], reported)
            if parts is None:
                self._open.wait()
            for part in parts or ():
                time.sleep(part) if isinstance(part, int | float) else connection.sendall(part)

    def close(self) -> None:
        """End it."""
        self._open.set()
        self._socket.close()


@contextmanager
def loopback(answer: Callable) -> Iterator[Loopback]:
    """A server for the time of a block."""
    server = Loopback(answer)
    try:
        yield server
    finally:
        server.close()


def head(status: str = "200 OK", **reported: object) -> bytes:
    """The head of an answer; of names of headers "_" stands for "-"."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in reported.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "Connection: close", "", ""]).encode()


def of_file(content: bytes, reported: dict[str, str], *, ranges: bool = True, upto: int | None = None) -> list:
    """What an honest server answers for a file with a mark, the connection cut after `upto` bytes of it."""
    asked = reported.get("range", "") if ranges and reported.get("if-range", '"1"') == '"1"' else ""
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if not asked:
        return [head(Content_Length=len(content), ETag='"1"'), content[:upto]]
    if int(first) >= len(content):
        return [head("416 Range Not Satisfiable", Content_Range=f"bytes */{len(content)}", Content_Length=0)]
    part = content[int(first) : int(last) + 1 if last else None]
    position = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
    return [head("206 Partial Content", Content_Length=len(part), Content_Range=position, ETag='"1"'), part[:upto]]


def bomb(size: int) -> bytes:
    """Zeros, packed a thousand times."""
    return gzip.compress(bytes(size))
