"""The application: paths to answers, on FastAPI, with the guard around it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from minionerec import __version__
from minionerec.core.log import get_logger
from minionerec.serve.batching import Batcher
from minionerec.serve.bodies import Gone
from minionerec.serve.config import Limits
from minionerec.serve.docs_page import STYLE, docs_page
from minionerec.serve.guard import GONE, Guard
from minionerec.serve.metrics import Metrics
from minionerec.serve.models import Served, Shelf
from minionerec.serve.openapi import operations, schemas
from minionerec.serve.refusal import Refusal
from minionerec.serve.reloading import Reloader
from minionerec.serve.service import Service
from minionerec.serve.static import INDEX, StaticFile, read_files

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

logger = get_logger(__name__)

TITLE = "minionerec"
DESCRIPTION = (
    "Recommends items of a catalogue for histories of its items. Every mistake is answered by "
    '{"error": {"field": ..., "message": ...}}, the message one line.'
)
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
    begun: Callable[[], Awaitable[None]] | None = None


def create_app(parts: Parts) -> Guard:
    """The application, for any ASGI server."""
    from fastapi import FastAPI

    parts.metrics.queue.set_function(lambda: parts.batcher.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        parts.batcher.start()
        beside = asyncio.ensure_future(parts.begun()) if parts.begun else None
        yield
        if beside is not None:
            beside.cancel()
        await asyncio.to_thread(parts.batcher.stop)
        parts.reloader.close()

    app = FastAPI(
        title=TITLE,
        description=DESCRIPTION,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    service = Service(parts.shelf, parts.batcher, parts.reloader, parts.limits, parts.metrics, parts.log_histories)
    for method, path in operations(None):
        if path != "/metrics":
            _add_json(app, method, path, getattr(service, path.rpartition("/")[2]), parts.metrics)
    _add_pages(app, parts)
    paths = [path for route in app.routes if "{" not in (path := str(getattr(route, "path", "{")))]
    return Guard(app, parts.batcher, parts.metrics, parts.keys, paths, parts.open_metrics)


def document(served: Served | None, limits: Limits) -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in operations(served).items():
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": __version__, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas(limits),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _add_json(app: "FastAPI", method: str, path: str, handler: Handler, metrics: Metrics) -> None:
    from fastapi import Request, Response

    async def endpoint(request: Request) -> Response:
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

    app.add_route(path, endpoint, methods=[method.upper()])


def _add_pages(app: "FastAPI", parts: Parts) -> None:
    """What is not JSON: metrics, the description, and the page."""
    from fastapi import Request, Response
    from fastapi.responses import JSONResponse

    files = read_files()

    def add(path: str, answer: Callable[[Request], Response]) -> None:
        async def endpoint(request: Request) -> Response:
            return answer(request)

        app.add_route(path, endpoint, methods=["GET"])

    def send(request: Request, file: StaticFile | None) -> Response:
        if file is None:
            raise Refusal(404, "there is no such file.")
        headers = {"etag": file.mark, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.mark:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.kind, headers=headers)

    def described() -> dict[str, Any]:
        return document(parts.shelf.current, parts.limits)

    add("/metrics", lambda request: Response(parts.metrics.text(), media_type="text/plain; version=0.0.4"))
    add("/openapi.json", lambda request: JSONResponse(described()))
    add("/docs", lambda request: Response(docs_page(described()), media_type="text/html"))
    add("/docs.css", lambda request: Response(STYLE, media_type="text/css"))
    add("/", lambda request: send(request, files.get(INDEX)))
    add("/page/{name}", lambda request: send(request, files.get(request.path_params["name"])))

    async def nowhere(request: Request, error: Exception) -> Response:
        return _refused(Refusal(404, "there is no such path; GET /docs shows those there are."))

    async def otherwise(request: Request, error: Exception) -> Response:
        return _refused(Refusal(405, f"this path does not take {request.method[:20]}."))

    async def refused(request: Request, error: Exception) -> Response:
        return _refused(cast(Refusal, error))

    app.add_exception_handler(404, nowhere)
    app.add_exception_handler(405, otherwise)
    app.add_exception_handler(Refusal, refused)


def _refused(refusal: Refusal) -> "Response":
    from fastapi import Response

    headers = {name.decode(): value.decode() for name, value in refusal.headers()}
    return Response(refusal.body(), refusal.status, headers=headers)
