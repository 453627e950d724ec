"""Dynamic batching: one thread owns the model, and queued requests are answered in batches.

While the model is busy, requests are queued. When it is free it takes the queued requests, up to a batch. If fewer wait
than in the previous batch, it waits for more, at most a window; a single caller never waits. The queue is bounded by
number, and by the expected time at the current speed: requests that would exceed their time limit are refused at once.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minionerec.core.log import get_logger
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Answer, Request
from minionerec.serve.metrics import Metrics
from minionerec.serve.models import Served
from minionerec.serve.reading import Refusal
from minionerec.serve.writing import answered, to_json

logger = get_logger(__name__)

CallOutcome = tuple[Served, list[bytes | Exception]]
"""The model of a call, the same for the whole of it; and for each of its requests the answer as JSON, or its error."""


@dataclass(slots=True, eq=False)
class QueuedCall:
    """A call in the queue.

    Attributes:
        requests: Its requests.
        future: The outcome; if already done, the caller no longer waits.
        deadline: `time.monotonic()` of the time limit.
        work: A function of the model to run instead, for calls that are not batched.
    """

    requests: Sequence[Request]
    future: "asyncio.Future[CallOutcome]"
    deadline: float
    work: Callable[[Served], bytes] | None = None


def answer_each(
    recommender: Recommender, requests: Sequence[Request], write: Callable[[Answer], bytes]
) -> list[bytes | Exception]:
    """Answer a batch; returns the serialised answer of each request, or its error.

    A failing batch is halved recursively, so that a few bad requests cost few additional passes.
    """
    try:
        return [write(answer) for answer in recommender.answer(requests)]
    except Exception as error:
        if len(requests) == 1:
            return [error]
    half = len(requests) // 2
    return answer_each(recommender, requests[:half], write) + answer_each(recommender, requests[half:], write)


class Batcher:
    """The queue, and the thread that processes it.

    Args:
        current: Returns the model in service.
        queue: Maximum requests in the queue.
        batch: Maximum requests per batch.
        window_s: Maximum seconds to wait for a batch as large as the last.
        timeout_s: Time limit of a call in seconds.
        metrics: The metrics.
    """

    def __init__(
        self,
        current: Callable[[], Served | None],
        *,
        queue: int,
        batch: int,
        window_s: float,
        timeout_s: float,
        metrics: Metrics,
    ):
        self._current = current
        self._capacity, self._batch, self._window, self._timeout = queue, batch, window_s, timeout_s
        self._metrics = metrics
        self._ready = threading.Condition()
        self._jobs: deque[QueuedCall] = deque()
        self._rows = 0
        self._wake_at = 1  # queued requests that wake the thread
        self._last = 1
        self._row_seconds = 0.0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop  # set by start
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Start the thread; outcomes are delivered on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Answer accepted calls, and stop the thread."""
        with self._ready:
            self._stopping = True
            self._ready.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._rows

    def check_room(self, count: int = 1) -> None:
        """Check that the queue has room for more requests.

        Raises:
            Refusal: 503, with the seconds after which to retry.
        """
        wait = self._rows * self._row_seconds
        if self._rows + count > self._capacity or (self._rows and wait > 0.8 * self._timeout):
            self._metrics.refused.labels("queue").inc()
            raise Refusal(503, "the queue is full; try again later.", retry_after=max(1, round(wait)))

    def submit(self, requests: Sequence[Request], work: Callable[[Served], bytes] | None = None) -> QueuedCall:
        """Add a call to the queue.

        Args:
            requests: Requests of the call.
            work: A function of the model to run instead of answering them; it counts as that many requests.

        Returns:
            The job; await its future.

        Raises:
            Refusal: 503 if the queue is full, the model is not ready, or the server is stopping.
        """
        if self._current() is None or self._stopping:
            raise Refusal(503, "the model is not ready.", retry_after=1)
        self.check_room(len(requests))
        job = QueuedCall(requests, self._loop.create_future(), time.monotonic() + self._timeout, work)
        with self._ready:
            self._jobs.append(job)
            self._rows += len(requests)
            if self._rows >= self._wake_at:
                self._ready.notify()
        return job

    def _run(self) -> None:
        while (jobs := self._take()) is not None:
            if not jobs:
                continue
            try:
                outcomes = self._work(jobs)
            except Exception as error:  # a bug: callers get the error, the thread continues
                logger.exception("the model's thread failed")
                outcomes = [(job, error) for job in jobs]
            self._loop.call_soon_threadsafe(_deliver, outcomes)

    def _take(self) -> list[QueuedCall] | None:
        """The next jobs, without abandoned ones; None at the end."""
        with self._ready:
            self._wait_for(1, None)
            if not self._jobs:
                return None
            if self._window:
                self._wait_for(min(self._last, self._batch), time.monotonic() + self._window)
            batch: list[QueuedCall] = []
            size, now = 0, time.monotonic()
            while self._jobs:
                job = self._jobs[0]
                if batch and (job.work or batch[0].work or size + len(job.requests) > self._batch):
                    break
                self._jobs.popleft()
                self._rows -= len(job.requests)
                if job.future.done() or now > job.deadline:
                    self._metrics.abandoned.inc()
                    continue
                batch.append(job)
                size += len(job.requests)
            self._last = max(size, 1)
            return batch

    def _wait_for(self, count: int, until: float | None) -> None:
        """Wait for a number of requests, the time limit or the stop."""
        self._wake_at = count
        while self._rows < count and not self._stopping:
            remaining = None if until is None else until - time.monotonic()
            if remaining is not None and remaining <= 0:
                break
            self._ready.wait(remaining)
        self._wake_at = 1

    def _write(self, answer: Answer) -> bytes:
        if answer.unknown:
            self._metrics.unknown.inc(len(answer.unknown))
        return to_json(answered(answer))

    def _work(self, jobs: list[QueuedCall]) -> list[tuple[QueuedCall, CallOutcome | Exception]]:
        served = self._current()
        if served is None:
            raise RuntimeError("calls were accepted without a model")
        if jobs[0].work is not None:
            return [(jobs[0], _try(served, jobs[0].work))]
        begin = time.perf_counter()
        requests = [request for job in jobs for request in job.requests]
        values: list[bytes | Exception] = []
        for start in range(0, len(requests), self._batch):  # a call of several batches uses one model
            values += answer_each(served.recommender, requests[start : start + self._batch], self._write)
        seconds = time.perf_counter() - begin
        self._metrics.batch_rows.observe(len(requests))
        self._metrics.batch_seconds.observe(seconds)
        share = seconds / len(requests)
        self._row_seconds = share if not self._row_seconds else 0.8 * self._row_seconds + 0.2 * share
        outcomes: list[tuple[QueuedCall, CallOutcome | Exception]] = []
        start = 0
        for job in jobs:
            outcomes.append((job, (served, values[start : start + len(job.requests)])))
            start += len(job.requests)
        return outcomes


def _try(served: Served, work: Callable[[Served], bytes]) -> CallOutcome:
    try:
        return served, [work(served)]
    except Exception as error:
        return served, [error]


def _deliver(outcomes: list[tuple[QueuedCall, CallOutcome | Exception]]) -> None:
    for job, outcome in outcomes:
        if job.future.done():
            continue
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
