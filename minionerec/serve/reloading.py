"""Reloading the model in service: by a call, by a signal, or when its files change."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from minionerec.core.errors import MinioneRecError
from minionerec.core.log import get_logger
from minionerec.recommend.requests import name_shown
from minionerec.serve.metrics import Metrics
from minionerec.serve.models import Served, Shelf, Sources, below, fingerprint
from minionerec.serve.reading import Refusal, shown

logger = get_logger(__name__)

FIELDS = ("checkpoint", "corpus", "back")


class Reloader:
    """Loads models into service, one at a time, in its own thread.

    Args:
        shelf: The models in service.
        metrics: The metrics.
        sources: The sources of the first model.
        allowed: Whether callers may reload.
        root: Folder that their paths must be in; no paths allowed if None.
        look: Returns the state of the files of sources.
    """

    def __init__(
        self,
        shelf: Shelf,
        metrics: Metrics,
        sources: Sources,
        allowed: bool = False,
        root: Path | None = None,
        look: Callable[[Sources], Any] = fingerprint,
    ):
        self.sources = sources
        self._shelf, self._metrics, self._root = shelf, metrics, root
        self.allowed = allowed
        self._loading = self._blind = False
        self._fingerprint = look
        self._tried: Any = None  # state of the first model's files when they were last read
        # A single thread: libraries keep some state per thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="load")

    def read(self, value: Any) -> dict[str, Path] | None:
        """The paths that the body of a call asks for, by their names in `Sources`; None for the previous model.

        Raises:
            Refusal: 422, naming the field.
        """
        if not isinstance(value, dict):
            raise Refusal(422, 'the body is not an object; expected {}, {"back": true} or paths to load.')
        for name in value:
            if name not in FIELDS:
                raise Refusal(422, f"is unknown; expected {', '.join(FIELDS)}.", name_shown(name))
        back = value.get("back", False)
        if type(back) is not bool:
            raise Refusal(422, f"is {shown(back)}; expected true or false.", "back")
        if back and len(value) > 1:
            raise Refusal(422, "returns to the previous model and cannot be combined with paths.", "back")
        if back:
            return None
        return {name: self._path(value[name], name) for name in ("checkpoint", "corpus") if name in value}

    def _path(self, name: Any, field: str) -> Path:
        if type(name) is not str or not 0 < len(name) <= 1000:
            raise Refusal(422, f"is {shown(name)}; expected a path.", field)
        if self._root is None:
            raise Refusal(422, "is not allowed; start the server with --reload_root.", field)
        return below(self._root, name, field)

    def paths(self) -> list[Path | None]:
        """Paths that may occur in messages: those of the first model, of the current one, and the root folder."""
        current = self._shelf.current
        return [*self.sources.paths(), *(current.sources.paths() if current else ()), self._root]

    async def start(self) -> Served:
        """Load the first model.

        Raises:
            MinioneRecError: If it cannot be loaded.
        """
        return await self._load(self.sources)

    async def run(self, paths: dict[str, Path] | None) -> Served:
        """Reload as `read` returned; paths not given stay the same.

        Raises:
            MinioneRecError: If the inputs do not belong together; the model in service is unchanged.
            Refusal: 409, if there is no previous model, or another is being loaded.
        """
        if paths is None:
            served = self._shelf.back()
            self._record("back", served)
            return served
        current = self._shelf.current
        return await self._bring(replace(self.sources if current is None else current.sources, **paths))

    async def _bring(self, sources: Sources) -> Served:
        try:
            served = await self._load(sources)
        except MinioneRecError as error:
            self._metrics.reloads.labels("refused").inc()
            logger.error("reload refused, the model in service is unchanged: %s", error)
            raise
        self._record("done", served)
        return served

    async def _load(self, sources: Sources) -> Served:
        if self._loading:
            raise Refusal(409, "another model is being loaded; try again later.", retry_after=5)
        self._loading = True
        try:
            if sources == self.sources:
                self._tried = await self._look()
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._shelf.bring, sources)
        finally:
            self._loading = False

    def _record(self, outcome: str, served: Served) -> None:
        self._metrics.reloads.labels(outcome).inc()
        logger.info("in service: %s %s", served.recommender.name, served.recommender.version)

    async def reload_quietly(self) -> None:
        """Reload the first model's files after a signal; errors are logged."""
        try:
            await self._bring(self.sources)
        except (MinioneRecError, Refusal) as error:
            logger.warning("not reloaded: %s", error)

    async def watch(self, seconds: float) -> None:
        """Check the first model's files periodically; reload them when they have changed and are stable.

        Args:
            seconds: Seconds between checks.
        """
        seen = self._tried
        while True:
            await asyncio.sleep(seconds)
            now = await self._look()
            if now is None:
                continue
            if now == seen and now != self._tried and None not in now:
                await self.reload_quietly()
            seen = now

    async def _look(self) -> Any:
        """One check of the files; None if it fails, which is logged once."""
        try:
            state = await asyncio.to_thread(self._fingerprint, self.sources)
        except OSError as error:
            self._metrics.failed_looks.inc()
            if not self._blind:
                logger.error("the model's files cannot be checked; retrying: %s", error)
            self._blind = True
            return None
        if self._blind:
            logger.info("the model's files can be checked again")
        self._blind = False
        return state

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
