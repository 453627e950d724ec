"""Prometheus metrics of a server."""

from typing import TYPE_CHECKING

from minionerec import __version__

if TYPE_CHECKING:
    from minionerec.serve.models import Served

_LATENCIES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server, in their own registry."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("minionerec_requests", "Calls answered", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "minionerec_request_seconds",
            "Seconds from a call to its answer",
            ["path"],
            buckets=_LATENCIES,
            registry=registry,
        )
        self.rows = Counter("minionerec_recommendations", "Lists returned", registry=registry)
        self.unknown = Counter("minionerec_unknown_items", "Unknown item ids in requests", registry=registry)
        self.refused = Counter("minionerec_refused", "Calls refused, by reason", ["reason"], registry=registry)
        self.abandoned = Counter(
            "minionerec_abandoned", "Calls abandoned by their callers before computation", registry=registry
        )
        self.errors = Counter("minionerec_errors", "Calls that failed with an internal error", registry=registry)
        self.queue = Gauge("minionerec_queue_requests", "Requests in the queue", registry=registry)
        self.batch_rows = Histogram(
            "minionerec_batch_requests", "Requests per batch", buckets=_SIZES, registry=registry
        )
        self.batch_seconds = Histogram(
            "minionerec_batch_seconds", "Seconds per batch", buckets=_LATENCIES, registry=registry
        )
        self.reloads = Counter("minionerec_reloads", "Reloads of models, by outcome", ["outcome"], registry=registry)
        self.model = Gauge("minionerec_model_info", "The model in service", ["name", "version"], registry=registry)
        self.loaded = Gauge(
            "minionerec_model_loaded_timestamp_seconds", "When the model in service was loaded", registry=registry
        )
        self.items = Gauge("minionerec_model_items", "Items of the model in service", registry=registry)
        Gauge("minionerec_info", "Version of minionerec", ["version"], registry=registry).labels(__version__).set(1)
        for reason in ("queue", "time", "key", "body", "request", "connections", "host"):
            self.refused.labels(reason)
        for outcome in ("done", "refused", "back"):
            self.reloads.labels(outcome)

    def in_service(self, served: "Served") -> None:
        """Record the model in service."""
        self.model.clear()
        self.model.labels(served.recommender.name, served.recommender.version).set(1)
        self.loaded.set(served.loaded)
        self.items.set(len(served.recommender.items))

    def text(self) -> bytes:
        """All metrics in Prometheus format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
