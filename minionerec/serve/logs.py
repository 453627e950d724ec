"""Log lines of a server: one JSON object each, written by a separate thread without blocking."""

import json
import logging
import os
import queue
import sys
import time
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener
from typing import Any

REQUESTS = "minionerec.serve.requests"
_QUEUE_SIZE = 10_000  # lines
_LAST_SECONDS = 1.0


class Lines(QueueHandler):
    """Puts lines of JSON into a queue; while it is full, lines are dropped and counted.

    Args:
        lines: The queue.
        dropped: Called for every line that is dropped.
    """

    def __init__(self, lines: "queue.Queue[Any]", dropped: Callable[[], None]):
        super().__init__(lines)
        self._dropped = dropped

    def format(self, record: logging.LogRecord) -> str:
        """One line; the fields of `extra={"fields": {...}}` replace the message."""
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{timestamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        fields = getattr(record, "fields", None)
        line |= {"message": record.getMessage()} if fields is None else fields
        if record.exc_info:
            line["traceback"] = logging.Formatter().formatException(record.exc_info)
        return json.dumps(line)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put a line into the queue, or drop it."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped()


class Writer(QueueListener):
    """Writes lines to a file descriptor; a blocked reader blocks only this thread.

    Args:
        lines: The queue.
        descriptor: The file descriptor.
    """

    def __init__(self, lines: "queue.Queue[Any]", descriptor: int):
        super().__init__(lines)
        self._lines, self._descriptor = lines, descriptor

    def handle(self, record: logging.LogRecord) -> None:
        """Write one line; without a lock, so that the process can end."""
        remaining = f"{record.getMessage()}\n".encode()
        try:
            while remaining:
                remaining = remaining[os.write(self._descriptor, remaining) :]
        except OSError:  # the reader is closed
            return

    def finish(self) -> None:
        """Wait until all lines are written, a second at most; the thread ends with the process."""
        end = time.monotonic() + _LAST_SECONDS
        while not self._lines.empty() and time.monotonic() < end:
            time.sleep(0.01)


def log_json_lines(level: str, dropped: Callable[[], None]) -> Writer:
    """Write the log of the server to standard error, one JSON object per line.

    Args:
        level: "requests" for a line per call, "errors" only for those with internal errors.
        dropped: Called for every dropped line.

    Returns:
        The writer, which is started; finish it at the end.
    """
    lines: queue.Queue[Any] = queue.Queue(_QUEUE_SIZE)
    writer = Writer(lines, sys.stderr.fileno() if sys.stderr is not None else os.open(os.devnull, os.O_WRONLY))
    writer.start()
    handler = Lines(lines, dropped)
    for name in ("minionerec", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    logging.getLogger("minionerec.serve").setLevel(logging.INFO)
    logging.getLogger(REQUESTS).setLevel(logging.INFO if level == "requests" else logging.WARNING)
    return writer
