"""Settings of `minionerec serve`."""

from collections.abc import Iterator
from dataclasses import dataclass

from minionerec.pipeline.settings import Settings, setting

LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEY_VARIABLE = "MINIONEREC_API_KEY"


@dataclass(frozen=True)
class Limits:
    """Limits of one call, as shown by `GET /v1/model`.

    Attributes:
        max_k: Items of one list.
        max_history: Ids of one history.
        max_list: Ids of `only`, and of `without`.
        max_requests: Requests of one call.
        max_body_bytes: Bytes of one body.
        timeout_s: Time limit of a call in seconds.
    """

    max_k: int = 100
    max_history: int = 500
    max_list: int = 10_000
    max_requests: int = 64
    max_body_bytes: int = 1 << 20
    timeout_s: float = 10.0


@dataclass
class ServeConfig(Settings):
    """Settings of `minionerec serve`."""

    checkpoint: str = setting(
        "",
        "model to serve: a checkpoint, or the folder `model` of train-sequential",
        required=True,
        input_kind="any",
    )
    corpus: str = setting("", "its corpus; empty: the corpus that it was trained on", input_kind="any")
    dtype: str = setting(
        "auto",
        "precision of the weights; auto: on a GPU as stored, else float32",
        known=("auto", "float32", "bfloat16", "float16"),
    )
    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0: all addresses of this machine", required=True)
    port: int = setting(8000, "port to listen on; 0: any free one", least=0, most=65535)
    hosts: list[str] = setting(
        [],
        "allowed names in the Host header, in addition to localhost, --host and any numeric address; '*': all names",
    )
    api_key_file: str = setting(
        "", f"file of API keys, one per line; empty: the environment variable {KEY_VARIABLE}, or none", input_kind="any"
    )
    open_metrics: bool = setting(False, "allow /metrics without a key")
    max_k: int = setting(100, "maximum items per list", least=1)
    max_history: int = setting(500, "maximum ids per history", least=1)
    max_list: int = setting(10_000, "maximum ids of only, and of without", least=1)
    max_requests: int = setting(64, "maximum requests per call", least=1)
    max_body_bytes: int = setting(1 << 20, "maximum bytes of a body", least=1024)
    timeout_s: float = setting(10.0, "time limit of a call in seconds (504)", above=0)
    connections: int = setting(1000, "maximum open connections", least=1)
    queue: int = setting(256, "maximum requests in the queue; further calls are refused (503)", least=1)
    batch: int = setting(32, "maximum requests per batch", least=1)
    window_ms: float = setting(3.0, "maximum milliseconds to wait for a batch as large as the last", least=0)
    threads: int = setting(
        0, "CPU threads of the model; 0: OMP_NUM_THREADS, or 1, which is best for small models", least=0
    )
    reload: str = setting(
        "off",
        "how a new model is loaded: not at all, or by POST /v1/reload and SIGHUP",
        known=("off", "request"),
    )
    reload_root: str = setting(
        "", "folder that paths of POST /v1/reload must be in; empty: no paths allowed", path=True
    )
    log: str = setting("requests", "what to log, as JSON lines", known=("requests", "errors"))
    log_histories: bool = setting(False, "include histories in the log of requests")

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.batch > self.queue:
            yield f"batch is {self.batch}, but queue {self.queue}; the queue must hold at least one batch."
        if self.max_requests > self.queue:
            yield f"max_requests is {self.max_requests}, but queue {self.queue}; a full call could never be accepted."
        if self.reload_root and self.reload == "off":
            yield "reload_root is given, but reload is off. Give --reload request, or leave it out."

    def limits(self) -> Limits:
        """The limits of one call."""
        return Limits(
            self.max_k, self.max_history, self.max_list, self.max_requests, self.max_body_bytes, self.timeout_s
        )
