"""Middleware of all calls: API keys, early refusals, security headers, metrics and log lines."""

import hmac
import os
import time
from collections.abc import Callable, Collection, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.serve.batching import Batcher
from minionerec.serve.config import KEY_VARIABLE
from minionerec.serve.logs import REQUESTS
from minionerec.serve.metrics import Metrics
from minionerec.serve.reading import Refusal

if TYPE_CHECKING:
    from starlette.routing import Router
    from starlette.types import Message, Receive, Scope, Send

logger = get_logger(__name__)
requests_logger = get_logger(REQUESTS)

NOTES = "minionerec.notes"
GONE = 499  # client closed the connection; only in logs and metrics
QUEUED = ("/v1/recommend", "/v1/explain")
OPEN = ("/healthz", "/readyz", "/", "/page")
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),  # a browser asks whether its copy of the page's files is current
]
_MIN_KEY_LENGTH = 8
_UNKNOWN = "unknown path, or a method that it does not take; see GET /openapi.json."
_REASONS = {400: "request", 401: "key", 408: "body", 413: "body", 415: "body", 421: "host", 422: "request", 504: "time"}
"""Status of a refusal to the reason that it is counted under; a 503 has several and is counted where it is raised."""


def read_keys(file: str) -> list[bytes]:
    """The API keys: from a file, one per line, or else from the environment.

    Raises:
        ConfigError: If the file cannot be read, holds none, or one is too short.
    """
    if file:
        try:
            text = Path(file).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"api_key_file is {file!r}, which cannot be read as text. Check the path.") from None
        keys = [line.strip().encode() for line in text.splitlines() if line.strip()]
        if not keys:
            raise ConfigError(f"api_key_file is {file!r}, which has no key. Write one per line.")
    else:
        keys = [key.encode()] if (key := os.environ.get(KEY_VARIABLE, "").strip()) else []
    if any(len(key) < _MIN_KEY_LENGTH for key in keys):
        raise ConfigError(
            f"an API key has fewer than {_MIN_KEY_LENGTH} characters. Create one with `openssl rand -hex 32`."
        )
    return keys


def check_key(headers: Sequence[tuple[bytes, bytes]], keys: Collection[bytes]) -> None:
    """Check the key of a call, in constant time.

    Raises:
        Refusal: 401.
    """
    shown = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, token = shown.partition(b" ")
    matches = [hmac.compare_digest(token.strip(), key) for key in keys]
    if scheme.lower() != b"bearer" or not any(matches):
        raise Refusal(401, "an API key is required; send the header Authorization: Bearer KEY.")


def names_server(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this server: by one of its names, or by a numeric address.

    This prevents DNS rebinding, by which a page of another site makes a browser call this server under the page's own
    name.

    Example:
        >>> [names_server(host, {"localhost"}) for host in ("localhost:8000", "10.0.0.7", "[::1]:80", "evil.example")]
        [True, True, True, False]
    """
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    if name in names or "*" in names:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """An ASGI middleware.

    Args:
        app: The router.
        batcher: The batcher with the queue.
        metrics: The metrics.
        keys: API keys; none: no key required.
        open_metrics: Whether /metrics needs no key.
        hosts: Allowed Host names; "*" for any.
        crowded: Whether too many connections are open.
    """

    def __init__(
        self,
        app: "Router",
        batcher: Batcher,
        metrics: Metrics,
        keys: Sequence[bytes] = (),
        open_metrics: bool = False,
        hosts: Collection[str] = ("*",),
        crowded: Callable[[], bool] = lambda: False,
    ):
        self.app, self._batcher, self._metrics = app, batcher, metrics
        self._keys, self._hosts, self._crowded = list(keys), frozenset(map(str.lower, hosts)), crowded
        self._paths = frozenset(str(getattr(route, "path", "")) for route in app.routes)
        self._open = frozenset([*OPEN, "/metrics"] if open_metrics else OPEN)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one call, or refuse it."""
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect

        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        begin = time.perf_counter()
        notes: dict[str, Any] = {}
        scope[NOTES] = notes
        scope["app"] = self.app  # so that unknown paths and wrong methods are raised
        path = self._name(scope["path"])
        status = 0

        async def send_safely(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *SAFETY]
            await send(message)

        try:
            self._admit(scope, path)
            await self.app(scope, receive, send_safely)
        except ClientDisconnect:
            pass
        except Refusal as refusal:
            if refusal.status in _REASONS:
                self._metrics.refused.labels(_REASONS[refusal.status]).inc()
            await send_refusal(refusal, send_safely)
        except HTTPException as error:
            allow = (error.headers or {}).get("Allow", "")
            await send_refusal(Refusal(error.status_code, _UNKNOWN, allow=allow), send_safely)
        except Exception:
            if status:  # the response has started: the server closes the connection
                raise
            self._metrics.errors.inc()
            logger.exception("a call failed")
            await send_refusal(Refusal(500, "internal server error."), send_safely)
        finally:
            self._note(scope, path, status or GONE, time.perf_counter() - begin, notes)

    def _name(self, path: str) -> str:
        if path in self._paths:
            return path
        return "/page" if path.startswith("/page/") else "other"

    def _admit(self, scope: "Scope", path: str) -> None:
        if path != "/healthz" and self._crowded():
            self._metrics.refused.labels("connections").inc()
            raise Refusal(503, "too many connections are open; try again later.", retry_after=1, close=True)
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        if host and not names_server(host, self._hosts):
            raise Refusal(421, "the Host header is not allowed; start the server with --hosts NAME.", close=True)
        if self._keys and path not in self._open:
            check_key(scope["headers"], self._keys)
        if path in QUEUED and scope["method"] == "POST":
            self._batcher.check_room()  # before the body is read

    def _note(self, scope: "Scope", path: str, status: int, seconds: float, notes: dict[str, Any]) -> None:
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        fields = {"method": scope["method"], "path": path, "status": status, "ms": round(seconds * 1000, 2), **notes}
        requests_logger.log(40 if status == 500 else 20, "request", extra={"fields": fields})


async def send_refusal(refusal: Refusal, send: "Send") -> None:
    """Send the answer of a refusal."""
    body = refusal.body()
    headers = [*refusal.headers(), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
