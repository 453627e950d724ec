"""The server process: socket, signals, the first model, and graceful shutdown."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.log import get_logger
from minionerec.recommend.recommender import Recommender
from minionerec.serve.batching import Batcher
from minionerec.serve.config import KEY_VARIABLE, LOOPBACK, ServeConfig
from minionerec.serve.guard import Guard, read_keys
from minionerec.serve.logs import log_json_lines
from minionerec.serve.metrics import Metrics
from minionerec.serve.models import Shelf, Sources
from minionerec.serve.openapi import document
from minionerec.serve.reloading import Reloader
from minionerec.serve.service import Service

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

logger = get_logger(__name__)

PAGE = Path(__file__).parent / "page"
Handler = Callable[["Request"], Awaitable[tuple[int, bytes]]]


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
    from starlette.routing import Router

    service.metrics.queue.set_function(lambda: service.batcher.waiting)

    @asynccontextmanager
    async def lifespan(app: "Router") -> AsyncIterator[None]:
        service.batcher.start()
        startup = asyncio.ensure_future(begun()) if begun else None
        yield
        if startup is not None:
            startup.cancel()
        await asyncio.to_thread(service.batcher.stop)
        service.reloader.close()

    return Guard(
        Router(_routes(service), redirect_slashes=False, lifespan=lifespan),
        service.batcher,
        service.metrics,
        service.keys,
        service.open_metrics,
        service.hosts,
        crowded,
    )


def _routes(service: Service) -> "list[BaseRoute]":
    """The handlers of the service, its metrics, the description of the interface, and the page."""
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    files = StaticFiles(directory=PAGE)

    def answering(handler: Handler) -> "Callable[[Request], Awaitable[Response]]":
        async def endpoint(call: "Request") -> Response:
            status, body = await handler(call)
            return Response(body, status, media_type="application/json")

        return endpoint

    async def metrics(call: "Request") -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def description(call: "Request") -> Response:
        return JSONResponse(document(service.shelf.current, service.limits))

    async def index(call: "Request") -> Response:
        return await files.get_response("index.html", call.scope)

    return [
        Route("/v1/recommend", answering(service.recommend), methods=["POST"]),
        Route("/v1/explain", answering(service.explain), methods=["POST"]),
        Route("/v1/items", answering(service.items)),
        Route("/v1/model", answering(service.model)),
        Route("/v1/reload", answering(service.reload), methods=["POST"]),
        Route("/healthz", answering(service.healthz)),
        Route("/readyz", answering(service.readyz)),
        Route("/metrics", metrics),
        Route("/openapi.json", description),
        Route("/", index),
        Mount("/page", files),
    ]


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
        connections=config.connections,
    )


def make_server(service: Service, begun: Callable[[], Awaitable[None]] | None = None) -> "uvicorn.Server":
    """The HTTP server of an application.

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
    if config.reload_root and not Path(config.reload_root).is_dir():
        raise ConfigError(
            f"reload_root is {config.reload_root!r}, which is not a folder. Create it, or correct the path."
        )
    listening = bind(config.host, config.port)
    service = make_service(config, keys, loader_of(config))
    log_json_lines(config.log)
    if not keys and config.host not in LOOPBACK:
        logger.warning("anyone who can reach %s may call; set --api_key_file to require a key", config.host)
    try:
        _run(config, service, listening, announce)
    finally:
        listening.close()


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
        """Load the first model; stop the server if it cannot be loaded."""
        if config.reload != "off" and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
        try:
            served = await service.reloader.load(service.reloader.sources)
        except MinioneRecError as error:
            failed.append(error)
            server.should_exit = True
            return
        name, count = served.recommender.name, len(served.recommender.items)
        try:
            announce(f"{name}, {count:,} items: {address_of(listening)}")
        except (OSError, ValueError) as error:  # standard output is closed; serve anyway
            logger.warning("the address cannot be printed: %s", error)

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
