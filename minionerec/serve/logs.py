"""Log lines of a server: one JSON object each."""

import json
import logging
import sys
import time
from typing import Any

REQUESTS = "minionerec.serve.requests"


class JsonLines(logging.Formatter):
    """A log record as one line of JSON; what `extra={"said": {...}}` holds stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        said = getattr(record, "said", None)
        line |= {"message": record.getMessage()} if said is None else said
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_json_lines(level: str) -> None:
    """Send what the server says to standard error, one JSON object a line.

    Args:
        level: "requests" for a line a call, "errors" for those alone that failed on the server's side.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("minionerec", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    for name in ("minionerec.serve", "minionerec.recommend"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger(REQUESTS).setLevel(logging.INFO if level == "requests" else logging.WARNING)
