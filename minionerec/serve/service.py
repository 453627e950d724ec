"""The handlers of the paths."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from minionerec.core.errors import MinioneRecError
from minionerec.recommend.requests import Request, RequestError, name_shown
from minionerec.serve.batching import Batcher, CallOutcome
from minionerec.serve.config import Limits
from minionerec.serve.explain import explain
from minionerec.serve.guard import NOTES
from minionerec.serve.metrics import Metrics
from minionerec.serve.models import Served, Shelf, without_paths
from minionerec.serve.reading import Refusal, read_body, read_call, read_json, read_request, shown
from minionerec.serve.reloading import Reloader
from minionerec.serve.writing import described, finite, to_json

if TYPE_CHECKING:
    from starlette.requests import Request as Call


_MAX_SEARCHES = 8
_MAX_ITEMS = 100
_MAX_QUERY_LENGTH = 200


@dataclass
class Service:
    """The parts of an application, and the handlers of calls; each handler returns a status and a JSON body.

    Attributes:
        shelf: The model in service.
        batcher: Queries the model.
        reloader: Replaces the model.
        metrics: The metrics.
        limits: The limits of one call.
        keys: API keys; none: no key required.
        open_metrics: Whether /metrics needs no key.
        log_histories: Whether histories are logged.
        hosts: Allowed Host names; "*" for any.
        connections: Maximum open connections.
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
    _searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_SEARCHES))

    async def recommend(self, call: "Call") -> tuple[int, bytes]:
        """`POST /v1/recommend`."""
        body = await read_body(call.scope["headers"], call.receive, self.limits)
        requests, single = read_call(read_json(body), self.limits)
        self._remember(call, requests)
        served, values = await self._submit(call, requests)
        lists: list[bytes] = []
        for index, value in enumerate(values):
            if isinstance(value, Exception):
                raise self._as_refusal(value, "" if single else f"requests[{index}].")
            lists.append(value)
        self.metrics.rows.inc(len(lists))
        model = to_json(served.model)
        if single:
            return 200, b'%b,"model":%b}' % (lists[0][:-1], model)
        return 200, b'{"results":[%b],"model":%b}' % (b",".join(lists), model)

    async def explain(self, call: "Call") -> tuple[int, bytes]:
        """`POST /v1/explain`."""
        body = await read_body(call.scope["headers"], call.receive, self.limits)
        request = read_request(read_json(body), self.limits)
        self._remember(call, [request])

        def work(served: Served) -> bytes:
            tree, reasons = explain(served.recommender, request)
            return to_json(finite({"tree": tree, "reasons": reasons}))

        served, (value,) = await self._submit(call, [request], work)
        if isinstance(value, Exception):
            raise self._as_refusal(value)
        return 200, b'%b,"model":%b}' % (value[:-1], to_json(served.model))

    async def items(self, call: "Call") -> tuple[int, bytes]:
        """`GET /v1/items`."""
        query, ids, limit = _read_search(call.query_params.multi_items())
        items = self._served().recommender.items
        if ids:
            indices = [items.index(item_id) for item_id in ids]
            unknown = [item_id for item_id, index in zip(ids, indices, strict=True) if index is None]
            matches = [index for index in indices if index is not None]
            return 200, to_json({"items": described(items, matches), "unknown": unknown})
        if self._searches.locked():
            self.metrics.refused.labels("queue").inc()
            raise Refusal(503, "too many searches at once; try again later.", retry_after=1)
        async with self._searches:
            matches = await asyncio.to_thread(items.search, query, limit)
        return 200, to_json({"items": described(items, matches), "unknown": []})

    async def model(self, call: "Call") -> tuple[int, bytes]:
        """`GET /v1/model`."""
        served = self._served()
        shown_model = {**served.model, "items": len(served.recommender.items), "filters": served.filters}
        context = [
            {"name": feature.name, "values": feature.values, "from_times": feature.unit > 0}
            for feature in served.recommender.features
        ]
        events = served.recommender.event_names if "events" in served.recommender.context else ()
        about = {
            "events": events,
            "context": context,
            "limits": asdict(self.limits),
        }
        return 200, to_json(shown_model | about)

    async def reload(self, call: "Call") -> tuple[int, bytes]:
        """`POST /v1/reload`."""
        if not self.reloader.allowed:
            raise Refusal(404, "reloading is disabled; start the server with --reload request.", close=True)
        body = await read_body(call.scope["headers"], call.receive, self.limits)
        paths = self.reloader.read(read_json(body))
        before = self.shelf.current
        known = [*self.reloader.paths(), *(paths or {}).values()]
        begin = time.perf_counter()
        try:
            served = await asyncio.shield(self.reloader.run(paths))
        except MinioneRecError as error:
            raise Refusal(
                409, f"refused; the model in service is unchanged: {without_paths(str(error), known)}"
            ) from None
        result = {
            "model": served.model,
            "before": None if before is None else before.model,
            "seconds": round(time.perf_counter() - begin, 3),
        }
        return 200, to_json(result)

    async def healthz(self, call: "Call") -> tuple[int, bytes]:
        """`GET /healthz`: liveness."""
        return 200, b'{"status":"ok"}'

    async def readyz(self, call: "Call") -> tuple[int, bytes]:
        """`GET /readyz`: a model is loaded and tested."""
        return 200, to_json({"status": "ready", "model": self._served().model})

    def _served(self) -> Served:
        served = self.shelf.current
        if served is None:
            raise Refusal(503, "the model is not ready.", retry_after=1)
        return served

    def _remember(self, call: "Call", requests: Sequence[Request]) -> None:
        notes: dict[str, Any] = call.scope[NOTES]
        notes["rows"] = len(requests)
        notes["k"] = max(request.k for request in requests)
        if self.log_histories:
            notes["histories"] = [list(request.history) for request in requests]

    async def _submit(self, call: "Call", requests: Sequence[Request], work: Any = None) -> CallOutcome:
        """Query the model, until the client disconnects or the time limit.

        Raises:
            Refusal: 503 or 504.
            ClientDisconnect: If the client disconnects.
        """
        from starlette.requests import ClientDisconnect

        job = self.batcher.submit(requests, work)
        disconnected = asyncio.ensure_future(call.receive())  # after the body, only a disconnect follows
        try:
            await asyncio.wait(
                (job.future, disconnected), timeout=self.limits.timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if job.future.done():
                return job.future.result()
            if disconnected.done():
                raise ClientDisconnect
            raise Refusal(504, f"no answer within {self.limits.timeout_s:g} seconds; try again later.")
        finally:
            disconnected.cancel()
            job.future.cancel()

    def _as_refusal(self, error: Exception, prefix: str = "") -> Exception:
        """An error of the model as a refusal; internal errors unchanged."""
        if isinstance(error, RequestError):
            return Refusal(422, error.message, f"{prefix}{error.field}")
        if isinstance(error, MinioneRecError):
            return Refusal(422, without_paths(str(error), self.reloader.paths()))
        return error


def _read_search(given: Sequence[tuple[str, str]]) -> tuple[str, list[str], int]:
    """Query, ids and limit of a search.

    Raises:
        Refusal: 422, naming the parameter.
    """
    query, ids, limit = "", [], 20
    for name, value in given:
        if name == "query":
            query = value
            if len(query) > _MAX_QUERY_LENGTH:
                raise Refusal(422, f"has {len(query)} characters; at most {_MAX_QUERY_LENGTH} are allowed.", "query")
        elif name == "ids":
            ids.append(value)
        elif name == "limit":
            if not (value.isascii() and value.isdigit() and len(value) < 6 and 1 <= int(value) <= _MAX_ITEMS):
                raise Refusal(422, f"is {shown(value)}; expected a whole number from 1 to {_MAX_ITEMS}.", "limit")
            limit = int(value)
        else:
            raise Refusal(422, "is unknown; expected query, ids or limit.", name_shown(name))
    if ids and query:
        raise Refusal(422, "are given together with a query; give one of them.", "ids")
    if len(ids) > _MAX_ITEMS:
        raise Refusal(422, f"has {len(ids)} ids; at most {_MAX_ITEMS} are allowed.", "ids")
    return query, ids, limit
