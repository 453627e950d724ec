"""Log lines of a server: one JSON object each, on standard error."""

import json
import logging
import time
from typing import Any

REQUESTS = "minionerec.serve.requests"


class JsonLines(logging.Formatter):
    """Formats a record as a line of JSON; the fields of `extra={"fields": {...}}` replace the message."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{timestamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        fields = getattr(record, "fields", None)
        line |= {"message": record.getMessage()} if fields is None else fields
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_json_lines(level: str) -> None:
    """Write the log of the server to standard error, one JSON object per line.

    Args:
        level: "requests" for a line per call, "errors" only for those with internal errors.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in ("minionerec", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    logging.getLogger("minionerec.serve").setLevel(logging.INFO)
    logging.getLogger(REQUESTS).setLevel(logging.INFO if level == "requests" else logging.WARNING)
