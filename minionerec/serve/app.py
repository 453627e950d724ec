"""The application: paths to answers, on Starlette, with the guard around it; the page and its files."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from minionerec.core.log import get_logger
from minionerec.serve.batching import Batcher
from minionerec.serve.config import Limits
from minionerec.serve.guard import GONE, Guard
from minionerec.serve.metrics import Metrics
from minionerec.serve.models import Shelf
from minionerec.serve.openapi import STYLE, docs_page, document, operations
from minionerec.serve.reading import Gone, Refusal
from minionerec.serve.reloading import Reloader
from minionerec.serve.service import Service

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

logger = get_logger(__name__)

PAGE = Path(__file__).parent / "page"
INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
_COUNTED = {400: "request", 408: "body", 413: "body", 415: "body", 422: "request"}
Handler = Callable[["Request"], Awaitable[tuple[int, bytes]]]


@dataclass
class Parts:
    """What an application is put together from.

    Attributes:
        shelf: The model in service.
        batcher: Through which it is asked.
        reloader: Through which it is exchanged.
        metrics: What is counted.
        limits: What one call may ask for.
        keys: API keys; none: everybody may call.
        open_metrics: Whether /metrics needs no key.
        log_histories: Whether the log may hold histories.
        hosts: Names that calls may come for; "*" for any.
        connections: Connections that may be open.
        crowded: Whether more are open.
        begun: What runs beside, once the event loop does.
    """

    shelf: Shelf
    batcher: Batcher
    reloader: Reloader
    metrics: Metrics
    limits: Limits
    keys: Sequence[bytes] = ()
    open_metrics: bool = False
    log_histories: bool = False
    hosts: Sequence[str] = ("*",)
    connections: int = 1000
    crowded: Callable[[], bool] = lambda: False
    begun: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True)
class StaticFile:
    """One file: its content, its type, and a mark that changes with the content."""

    content: bytes
    kind: str
    mark: str


def read_files(folder: Path = PAGE) -> dict[str, StaticFile]:
    """Name to file, of all files of a folder whose type is known; none where there is no folder."""
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_file() and path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.name] = StaticFile(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found


def create_app(parts: Parts) -> Guard:
    """The application, for any ASGI server."""
    from starlette.applications import Starlette

    parts.metrics.queue.set_function(lambda: parts.batcher.waiting)

    @asynccontextmanager
    async def lifespan(app: "Starlette") -> AsyncIterator[None]:
        parts.batcher.start()
        beside = asyncio.ensure_future(parts.begun()) if parts.begun else None
        yield
        if beside is not None:
            beside.cancel()
        await asyncio.to_thread(parts.batcher.stop)
        parts.reloader.close()

    service = Service(parts.shelf, parts.batcher, parts.reloader, parts.limits, parts.metrics, parts.log_histories)
    routes = [
        _json(method, path, getattr(service, path.rpartition("/")[2]), parts.metrics)
        for method, path in operations(None)
        if path != "/metrics"
    ]
    app = Starlette(
        routes=[*routes, *_pages(parts)],
        lifespan=lifespan,
        exception_handlers={404: _nowhere, 405: _otherwise, Refusal: _refusal},
    )
    app.router.redirect_slashes = False
    paths = [path for route in app.routes if "{" not in (path := str(getattr(route, "path", "{")))]
    return Guard(app, parts.batcher, parts.metrics, parts.keys, paths, parts.open_metrics, parts.hosts, parts.crowded)


def _json(method: str, path: str, handler: Handler, metrics: Metrics) -> "Route":
    from starlette.responses import Response
    from starlette.routing import Route

    async def endpoint(request: "Request") -> Response:
        try:
            status, body = await handler(request)
        except Gone:
            return Response(status_code=GONE)
        except Refusal as refusal:
            if refusal.status in _COUNTED:
                metrics.refused.labels(_COUNTED[refusal.status]).inc()
            return _refused(refusal)
        except Exception:
            metrics.errors.inc()
            logger.exception("a call failed")
            return _refused(Refusal(500, "something went wrong on the server."))
        return Response(body, status, media_type="application/json")

    return Route(path, endpoint, methods=[method.upper()])


def _pages(parts: Parts) -> "list[Route]":
    """What is not JSON: metrics, the description, and the page."""
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    files = read_files()

    def send(request: "Request", file: StaticFile | None) -> Response:
        if file is None:
            raise Refusal(404, "there is no such file.")
        headers = {"etag": file.mark, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.mark:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.kind, headers=headers)

    def described() -> dict[str, Any]:
        return document(parts.shelf.current, parts.limits)

    def page(path: str, answer: "Callable[[Request], Response]") -> Route:
        async def endpoint(request: "Request") -> Response:
            return answer(request)

        return Route(path, endpoint, methods=["GET"])

    return [
        page("/metrics", lambda request: Response(parts.metrics.text(), media_type="text/plain; version=0.0.4")),
        page("/openapi.json", lambda request: JSONResponse(described())),
        page("/docs", lambda request: Response(docs_page(described()), media_type="text/html")),
        page("/docs.css", lambda request: Response(STYLE, media_type="text/css")),
        page("/", lambda request: send(request, files.get(INDEX))),
        page("/page/{name}", lambda request: send(request, files.get(request.path_params["name"]))),
    ]


def _nowhere(request: "Request", error: Exception) -> "Response":
    return _refused(Refusal(404, "there is no such path; GET /docs shows those there are."))


def _otherwise(request: "Request", error: Exception) -> "Response":
    return _refused(Refusal(405, f"this path does not take {request.method[:20]}."))


def _refusal(request: "Request", error: Exception) -> "Response":
    return _refused(cast(Refusal, error))


def _refused(refusal: Refusal) -> "Response":
    from starlette.responses import Response

    headers = {name.decode(): value.decode() for name, value in refusal.headers()}
    return Response(refusal.body(), refusal.status, headers=headers)
