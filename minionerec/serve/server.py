"""The server process: socket, signals, the first model, and graceful shutdown."""

import asyncio
import hashlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.log import get_logger
from minionerec.recommend.recommender import Recommender
from minionerec.serve.batching import Batcher
from minionerec.serve.config import KEY_VARIABLE, LOOPBACK, ServeConfig
from minionerec.serve.guard import GONE, SAFETY, Guard, read_keys
from minionerec.serve.logs import log_json_lines
from minionerec.serve.metrics import Metrics
from minionerec.serve.models import Shelf, Sources
from minionerec.serve.openapi import STYLE, docs_page, document, operations
from minionerec.serve.reading import Refusal
from minionerec.serve.reloading import Reloader
from minionerec.serve.service import Service

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp

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


StaticFile = tuple[bytes, str, str]
"""One file: its content, its type, and its ETag."""


def read_files() -> dict[str, StaticFile]:
    """Files of known types of the page, by name; none without its folder."""
    files = {}
    for path in sorted(PAGE.iterdir()) if PAGE.is_dir() else []:
        if path.is_file() and path.suffix in _TYPES:
            content = path.read_bytes()
            files[path.name] = content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return files


def create_app(
    service: Service,
    crowded: Callable[[], bool] = lambda: False,
    begun: Callable[[], Awaitable[None]] | None = None,
) -> "ASGIApp":
    """The application, for any ASGI server.

    Args:
        service: Its parts.
        crowded: Whether more connections are open than allowed.
        begun: Coroutine function that is run at startup, concurrently with the server.
    """
    from starlette.applications import Starlette
    from starlette.middleware.cors import CORSMiddleware

    service.metrics.queue.set_function(lambda: service.batcher.waiting)

    @asynccontextmanager
    async def lifespan(app: "Starlette") -> AsyncIterator[None]:
        service.batcher.start()
        startup = asyncio.ensure_future(begun()) if begun else None
        yield
        if startup is not None:
            startup.cancel()
        await asyncio.to_thread(service.batcher.stop)
        service.reloader.close()

    routes = [
        _json(method, path, getattr(service, path.rpartition("/")[2]), service.metrics)
        for method, path in operations(None)
        if path != "/metrics"
    ]
    app = Starlette(
        routes=[*routes, *_pages(service)],
        lifespan=lifespan,
        exception_handlers={
            404: lambda call, _: _refused(Refusal(404, "unknown path; see GET /docs.")),
            405: _wrong_method,
            Refusal: lambda call, error: _refused(cast(Refusal, error)),
        },
    )
    app.router.redirect_slashes = False
    paths = [path for route in app.routes if "{" not in (path := str(getattr(route, "path", "{")))]
    guard = Guard(
        app, service.batcher, service.metrics, service.keys, paths, service.open_metrics, service.hosts, crowded
    )
    if not service.origins:
        return guard
    return CORSMiddleware(  # outside of the guard, since a browser's preflight request carries no key
        guard,
        allow_origins=service.origins,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type"],
        expose_headers=["Retry-After"],
    )


def _wrong_method(call: "Request", error: Exception) -> "Response":
    """The response to a method that a path does not support, with the header `Allow`, as HTTP requires."""
    answer = _refused(Refusal(405, f"method {call.method[:20]} is not allowed for this path."))
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer


def _json(method: str, path: str, handler: Handler, metrics: Metrics) -> "Route":
    from starlette.requests import ClientDisconnect
    from starlette.responses import Response
    from starlette.routing import Route

    async def endpoint(request: "Request") -> Response:
        try:
            status, body = await handler(request)
        except ClientDisconnect:
            return Response(status_code=GONE)
        except Refusal as refusal:
            if refusal.status in _COUNTED:
                metrics.refused.labels(_COUNTED[refusal.status]).inc()
            return _refused(refusal)
        except Exception:
            metrics.errors.inc()
            logger.exception("a call failed")
            return _refused(Refusal(500, "internal server error."))
        return Response(body, status, media_type="application/json")

    return Route(path, endpoint, methods=[method.upper()])


def _pages(service: Service) -> "list[Route]":
    """Routes other than JSON: metrics, the API description, and the page."""
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    files = read_files()

    def send(request: "Request", file: StaticFile | None) -> Response:
        if file is None:
            raise Refusal(404, "no such file.")
        content, kind, mark = file
        headers = {"etag": mark, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == mark:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    def described() -> dict[str, Any]:
        return document(service.shelf.current, service.limits)

    def page(path: str, answer: "Callable[[Request], Response]") -> Route:
        async def endpoint(request: "Request") -> Response:
            return answer(request)

        return Route(path, endpoint, methods=["GET"])

    return [
        page("/metrics", lambda request: Response(service.metrics.text(), media_type="text/plain; version=0.0.4")),
        page("/openapi.json", lambda request: JSONResponse(described())),
        page("/docs", lambda request: Response(docs_page(described()), media_type="text/html")),
        page("/docs.css", lambda request: Response(STYLE, media_type="text/css")),
        page("/", lambda request: send(request, files.get(INDEX))),
        page("/page/{name}", lambda request: send(request, files.get(request.path_params["name"]))),
    ]


def _refused(refusal: Refusal) -> "Response":
    from starlette.responses import Response

    headers = {name.decode(): value.decode() for name, value in refusal.headers()}
    return Response(refusal.body(), refusal.status, headers=headers)


_ABSENT = "minionerec serve needs {name!r}, which is not installed. Install it with: pip install 'minionerec[serve]'"


def check_extra() -> None:
    """Check that the libraries of the server are installed.

    Raises:
        ConfigError: If one is missing, with the install command.
    """
    try:
        for name in ("starlette", "uvicorn", "prometheus_client"):
            import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(_ABSENT.format(name=error.name)) from None


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address, before anything is loaded.

    Raises:
        ConfigError: If the address is not available.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(
            family, kind, protocol
        )  # asyncio sends at once (TCP_NODELAY) where it knows the protocol
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}). Give another --host or --port (0: any free one)."
        ) from None
    return listening


def address_of(listening: socket.socket) -> str:
    """The URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def loader_of(config: ServeConfig) -> Callable[[Sources], Recommender]:
    """The function that loads a model."""

    def load(sources: Sources) -> Recommender:
        return Recommender.load(sources.checkpoint, corpus=sources.corpus, dtype=config.dtype)

    return load


def make_service(config: ServeConfig, keys: list[bytes], load: Callable[[Sources], Recommender]) -> Service:
    """The parts of an application, from the settings."""
    metrics = Metrics()
    shelf = Shelf(load, config.batch, metrics.in_service)
    batcher = Batcher(
        lambda: shelf.current,
        queue=config.queue,
        batch=config.batch,
        window_s=config.window_ms / 1000,
        timeout_s=config.timeout_s,
        metrics=metrics,
    )
    corpus, root = (Path(path) if path else None for path in (config.corpus, config.reload_root))
    sources = Sources(Path(config.checkpoint), corpus)
    reloader = Reloader(shelf, metrics, sources, config.reload != "off", root)
    return Service(
        shelf,
        batcher,
        reloader,
        metrics,
        config.limits(),
        keys,
        config.open_metrics,
        config.log_histories,
        hosts=["localhost", config.host, *config.hosts],
        origins=config.cors_origins,
        connections=config.connections,
    )


def make_server(service: Service, begun: Callable[[], Awaitable[None]] | None = None) -> "uvicorn.Server":
    """The HTTP server of an application, with JSON errors also for requests that uvicorn refuses.

    Args:
        service: Its parts.
        begun: See `create_app`.
    """
    import uvicorn

    def crowded() -> bool:
        return len(server.server_state.connections) > service.connections

    server = uvicorn.Server(
        uvicorn.Config(
            create_app(service, crowded, begun),
            http=_protocol(service),
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            ws="none",
            lifespan="on",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(service.limits.timeout_s) + 5,
        )
    )
    return server


def _protocol(service: Service) -> type[asyncio.Protocol]:
    """Uvicorn's protocol with JSON errors."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    metrics = service.metrics
    base: Any = AutoHTTPProtocol

    class JsonErrorsProtocol(base):  # type: ignore[misc]
        """Answers invalid requests in JSON, and counts them."""

        def send_400_response(self, msg: str) -> None:
            refusal = Refusal(400, "invalid HTTP/1.1 request; see GET /docs.", close=True)
            metrics.requests.labels("other", "400").inc()
            metrics.refused.labels("request").inc()
            body = refusal.body()
            headers = [*refusal.headers(), *SAFETY, (b"content-length", str(len(body)).encode())]
            lines = [b"HTTP/1.1 400 Bad Request", *(b"%b: %b" % header for header in headers)]
            self.transport.write(b"\r\n".join([*lines, b"", body]))
            self.transport.close()

    return JsonErrorsProtocol


def serve(config: ServeConfig, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; then answer accepted calls.

    Args:
        config: The settings.
        announce: Called with one line once the model is loaded.

    Raises:
        ConfigError: If the settings, a key or the address cannot be used.
        MinioneRecError: If the model cannot be loaded.
    """
    if config.reload != "off" and hasattr(signal, "SIGHUP"):  # until the event loop handles it: nothing to reload yet
        signal.signal(signal.SIGHUP, _ignore)
    check_extra()
    if config.threads or not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(config.threads or 1)  # two threads of a small model wait for one another more than gain
    config = config.local()
    keys = read_keys(config.api_key_file)
    if config.reload != "off" and config.host not in LOOPBACK and not keys:
        raise ConfigError(
            f"reload is {config.reload!r} on {config.host} without a key: anyone could replace the model. Give "
            f"--api_key_file or {KEY_VARIABLE}."
        )
    if config.reload != "off" and config.cors_origins and not keys:
        raise ConfigError(
            f"reload is {config.reload!r} with cors_origins and without a key: their pages could replace the model. "
            f"Give --api_key_file or {KEY_VARIABLE}."
        )
    if config.reload_root and not Path(config.reload_root).is_dir():
        raise ConfigError(
            f"reload_root is {config.reload_root!r}, which is not a folder. Create it, or correct the path."
        )
    listening = bind(config.host, config.port)
    service = make_service(config, keys, loader_of(config))
    writer = log_json_lines(config.log, service.metrics.dropped_lines.inc)
    if not keys and config.host not in LOOPBACK:
        logger.warning("anyone who can reach %s may call; set --api_key_file to require a key", config.host)
    try:
        _run(config, service, listening, announce)
    finally:
        listening.close()
        writer.finish()


def _run(config: ServeConfig, service: Service, listening: socket.socket, announce: Callable[[str], None]) -> None:
    """One run of the server.

    Raises:
        MinioneRecError: If the first model cannot be loaded.
    """
    failed: list[MinioneRecError] = []
    tasks: set[asyncio.Task[Any]] = set()

    def reload() -> None:
        task = asyncio.ensure_future(service.reloader.reload_quietly())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def begin() -> None:
        """Load the first model, then watch its files; stop the server if it cannot be loaded."""
        if config.reload != "off" and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
        try:
            served = await service.reloader.start()
        except MinioneRecError as error:
            failed.append(error)
            server.should_exit = True
            return
        name, count = served.recommender.name, len(served.recommender.items)
        try:
            announce(f"{name}, {count:,} items: {address_of(listening)}")
        except (OSError, ValueError) as error:  # standard output is closed; serve anyway
            logger.warning("the address cannot be printed: %s", error)
        if config.reload == "watch":
            await service.reloader.watch(config.watch_s)

    server = make_server(service, begin)
    # uvicorn raises the signal again after shutdown; a requested shutdown is not a failure
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed:
        raise failed[0]


def _ignore(number: int, frame: object) -> None:
    """Ignore a signal."""
