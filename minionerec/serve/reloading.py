"""Reloading the model in service: by a call, or by a signal."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from minionerec.core.errors import MinioneRecError
from minionerec.core.log import get_logger
from minionerec.recommend.requests import name_shown
from minionerec.serve.metrics import Metrics
from minionerec.serve.models import Served, Shelf, Sources, below
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
    """

    def __init__(
        self,
        shelf: Shelf,
        metrics: Metrics,
        sources: Sources,
        allowed: bool = False,
        root: Path | None = None,
    ):
        self.sources = sources
        self._shelf, self._metrics, self._root = shelf, metrics, root
        self.allowed = allowed
        self._loading = False
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

    async def load(self, sources: Sources) -> Served:
        """Load a model into service.

        Raises:
            MinioneRecError: If the inputs do not belong together; the model in service is unchanged.
            Refusal: 409, if another is being loaded.
        """
        return await self._alone(self._shelf.bring, sources)

    async def run(self, paths: dict[str, Path] | None) -> Served:
        """Reload, and count the outcome.

        Args:
            paths: As `read` returns them; paths that are not given stay the same.

        Raises:
            MinioneRecError: See `load`.
            Refusal: 409, if another model is being loaded, or there is no previous one.
        """
        try:
            if paths is None:
                served = await self._alone(self._shelf.back)
            else:
                current = self._shelf.current
                served = await self.load(replace(self.sources if current is None else current.sources, **paths))
        except MinioneRecError as error:
            self._metrics.reloads.labels("refused").inc()
            logger.error("reload refused, the model in service is unchanged: %s", error)
            raise
        self._metrics.reloads.labels("back" if paths is None else "done").inc()
        logger.info("in service: %s %s", served.recommender.name, served.recommender.version)
        return served

    async def reload_quietly(self) -> None:
        """Reload the first model's files after a signal; errors are logged."""
        try:
            await self.run(asdict(self.sources))
        except MinioneRecError:
            pass  # `run` has logged it
        except Refusal as refusal:
            logger.warning("not reloaded: %s", refusal)

    async def _alone(self, replaces: Callable[..., Served], *given: Any) -> Served:
        if self._loading:
            raise Refusal(409, "another model is being loaded; try again later.", retry_after=5)
        self._loading = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, replaces, *given)
        finally:
            self._loading = False

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
