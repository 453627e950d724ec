"""What a call is told that is not answered: a status, the field that is wrong, and one line."""

import json


class Refusal(Exception):
    """A call is not answered.

    Args:
        status: HTTP status.
        message: One line for the caller: without paths of files, without anything of the server's inside.
        field: What is wrong, e.g. "history[3]"; None where it is no single field.
        retry_after: Seconds after which it is worth trying again.
        close: Whether the connection must not be used again, for the body was not read.
    """

    def __init__(
        self,
        status: int,
        message: str,
        field: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field
        self.retry_after = retry_after
        self.close = close

    def body(self) -> bytes:
        """The answer's body."""
        return json.dumps({"error": {"field": self.field, "message": self.message}}).encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The answer's headers."""
        found = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            found.append((b"retry-after", str(self.retry_after).encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        if self.close:
            found.append((b"connection", b"close"))
        return found
