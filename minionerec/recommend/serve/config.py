"""Settings of `minionerec serve`."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from minionerec.core.settings import Settings, setting

LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEY_VARIABLE = "MINIONEREC_API_KEY"


@dataclass(frozen=True)
class Limits:
    """What one call may ask for; `GET /v1/model` shows it.

    Attributes:
        max_k: Items of one list.
        max_history: Ids of one history.
        max_list: Ids of `only`, and of `without`.
        max_requests: Requests of one call.
        max_body_bytes: Bytes of one body.
        timeout_s: Seconds until a call is answered or given up.
    """

    max_k: int = 100
    max_history: int = 500
    max_list: int = 10_000
    max_requests: int = 64
    max_body_bytes: int = 1 << 20
    timeout_s: float = 10.0

    @property
    def usual_k(self) -> int:
        """Items of a list where a request does not say."""
        return min(10, self.max_k)

    def shown(self) -> dict[str, float]:
        """As `GET /v1/model` says it."""
        return asdict(self)


@dataclass
class ServeConfig(Settings):
    """Settings of `minionerec serve`."""

    checkpoint: str = setting(
        "", "model to serve: a checkpoint, or a sequential model's seed", required=True, input_kind="any"
    )
    corpus: str = setting("", "its corpus; empty: the one that it was trained on", input_kind="any")
    items: str = setting("", "table (csv, tsv, parquet) with item_id and columns to filter by", input_kind="any")
    dtype: str = setting(
        "auto",
        "precision of the weights; auto: on a GPU as stored, else float32",
        known=("auto", "float32", "bfloat16", "float16"),
    )
    host: str = setting("127.0.0.1", "address to listen at; 0.0.0.0 for every one of this machine", required=True)
    port: int = setting(8000, "port to listen at; 0: any free one", least=0, most=65535)
    hosts: list[str] = setting(
        [],
        "names (of a Host header) that calls may come for, beside localhost, --host and any address in digits; "
        "'*': every name",
    )
    api_key_file: str = setting(
        "", f"file with keys, one a line; empty: the environment's {KEY_VARIABLE}, or none", input_kind="any"
    )
    open_metrics: bool = setting(False, "whether /metrics may be read without a key")
    max_k: int = setting(100, "items of one list", least=1)
    max_history: int = setting(500, "ids of one history", least=1)
    max_list: int = setting(10_000, "ids of only, and of without", least=1)
    max_requests: int = setting(64, "requests of one call", least=1)
    max_body_bytes: int = setting(1 << 20, "bytes of one body", least=1024)
    timeout_s: float = setting(10.0, "seconds until a call is answered or given up (504)", above=0)
    connections: int = setting(1000, "connections held open at once", least=1)
    queue: int = setting(256, "requests that may wait; over it calls are refused (503)", least=1)
    batch: int = setting(32, "requests that the model answers at once", least=1)
    window_ms: float = setting(3.0, "milliseconds to wait for as many requests as came last time", least=0)
    threads: int = setting(0, "CPU threads of the model; 0: OMP_NUM_THREADS, or 1, the best for small ones", least=0)
    reload: str = setting(
        "off",
        "how a new model comes in: not at all, by POST /v1/reload and SIGHUP, or also when the files change",
        known=("off", "request", "watch"),
    )
    reload_root: str = setting(
        "", "folder below which POST /v1/reload may name paths; empty: it may name none", path=True
    )
    watch_s: float = setting(2.0, "seconds between two looks at the files, where they are watched", above=0)
    log: str = setting("requests", "what is logged, one JSON line each", known=("requests", "errors"))
    log_histories: bool = setting(False, "whether the lines of requests hold the histories")

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.batch > self.queue:
            yield f"batch is {self.batch}, but queue {self.queue}; let the queue hold a batch at least."
        if self.max_requests > self.queue:
            yield f"max_requests is {self.max_requests}, but queue {self.queue}; a full call would never be taken."
        if self.reload_root and self.reload == "off":
            yield "reload_root is given, but reload is off. Give --reload request, or leave it out."

    def limits(self) -> Limits:
        """What one call may ask for."""
        return Limits(
            self.max_k, self.max_history, self.max_list, self.max_requests, self.max_body_bytes, self.timeout_s
        )
