"""The model in service, the one before, and how another takes its place: loaded beside it, tried, swapped in whole."""

import re
import stat
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minionerec.core.errors import ArtefactError, MinioneRecError
from minionerec.core.log import get_logger
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Answer, Request
from minionerec.recommend.serve.reading import Refusal
from minionerec.recommend.serve.writing import filters

logger = get_logger(__name__)

_PATH = re.compile(r"[^\s'\"(,;=]*/([^\s/'\"(),:;]+)")
_TRIED_HISTORY = 3


@dataclass(frozen=True)
class Sources:
    """Where a model comes from.

    Attributes:
        checkpoint: The model.
        corpus: Its corpus; found through the checkpoint if None.
        items: Table of further columns of the items; none if None.
    """

    checkpoint: Path
    corpus: Path | None = None
    items: Path | None = None

    def paths(self) -> tuple[Path | None, ...]:
        """The paths that messages about it may name."""
        return self.checkpoint, self.corpus, self.items


@dataclass(frozen=True)
class Served:
    """A model that was tried and may serve.

    Attributes:
        recommender: The model.
        sources: Where it comes from.
        filters: Columns to filter by, as `GET /v1/model` shows them.
        example: A request and its answer.
        loaded: When it was loaded, seconds since 1970.
        seconds: How long loading and trying took.
    """

    recommender: Recommender
    sources: Sources
    filters: list[dict[str, Any]]
    example: tuple[Request, Answer]
    loaded: float
    seconds: float

    @property
    def model(self) -> dict[str, str]:
        """Name and version, as every answer holds them."""
        return {"name": self.recommender.name, "version": self.recommender.version}


def without_paths(message: str, known: Iterable[Path | None] = ()) -> str:
    """A message for callers: of every path its last part.

    Args:
        message: The message.
        known: Paths that it may name; without them, a folder whose name has a space cannot be told from other words.

    Example:
        >>> without_paths("/srv/models/new/manifest.json: no such file. Mend its path.")
        'manifest.json: no such file. Mend its path.'
        >>> without_paths("/home/John Smith/m: is gone.", [Path("/home/John Smith/m")])
        'm: is gone.'
    """
    folders = {
        str(form.parent) for path in known if path is not None for form in (path, path.absolute(), path.resolve())
    }
    for folder in sorted(folders - {".", "/"}, key=len, reverse=True):
        message = message.replace(f"{folder}/", "")
    return _PATH.sub(r"\1", " ".join(message.split()))


def try_out(recommender: Recommender, batch: int) -> tuple[Request, Answer]:
    """Let a model answer alone and a batch, so that the first caller finds it warm, and what cannot answer is found.

    Returns:
        A request and its answer, to be shown as an example.

    Raises:
        ArtefactError: If it gives no items, or items that are not in its catalogue.
    """
    ids = recommender.items.ids
    recommender.items.search(recommender.items.titles[0] if ids else "", 1)
    request = Request(history=list(ids[:_TRIED_HISTORY]), k=3, exclude_seen=True)
    answer = recommender.answer([request])[0]
    recommender.answer([Request(), *[replace(request, k=10)] * (batch - 1)])
    if not answer.items:
        raise ArtefactError(f"{recommender.name}: recommends nothing after the history {list(request.history)}.")
    strange = [item.item_id for item in answer.items if recommender.items.index(item.item_id) is None]
    if strange:
        raise ArtefactError(f"{recommender.name}: recommends {strange[0]!r}, which is not among its own items.")
    return request, answer


class Shelf:
    """The model in service and the one before it.

    Args:
        load: Loads a model.
        batch: Requests of a batch, with which a new model is tried.
        changed: Called with every model that comes into service.
    """

    def __init__(
        self,
        load: Callable[[Sources], Recommender],
        batch: int = 1,
        changed: Callable[[Served], None] = lambda served: None,
    ):
        self._load, self._batch, self._changed = load, batch, changed
        self._busy = threading.Lock()
        self.current: Served | None = None
        self.previous: Served | None = None

    def bring(self, sources: Sources) -> Served:
        """Load a model beside the one in service, try it, and put it into service; otherwise nothing changes.

        Raises:
            MinioneRecError: If it does not belong together or cannot answer.
            Refusal: 409, if another is being loaded.
        """
        with self._alone():
            begin = time.perf_counter()
            try:
                recommender = self._load(sources)
                example = try_out(recommender, self._batch)
            except MinioneRecError:
                raise
            except Exception as error:
                logger.exception("a model could not be loaded")
                raise ArtefactError(f"{sources.checkpoint}: cannot be loaded ({type(error).__name__}).") from None
            served = Served(
                recommender, sources, filters(recommender.items), example, time.time(), time.perf_counter() - begin
            )
            self._put(served)
            return served

    def back(self) -> Served:
        """Put the model before this one into service again.

        Raises:
            Refusal: 409, if there is none, or another is being loaded.
        """
        with self._alone():
            served = self.previous
            if served is None:
                raise Refusal(409, "there is no model before this one.", "back")
            self._put(served)
            return served

    def _put(self, served: Served) -> None:
        before, self.current = self.current, served  # one assignment: a batch reads it once
        self.previous = before
        self._changed(served)

    def _alone(self) -> "_Alone":
        return _Alone(self._busy)


class _Alone:
    """Holds a lock, or refuses where it is held."""

    def __init__(self, lock: threading.Lock):
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise Refusal(409, "another model is being loaded; try again when it is there.", retry_after=5)

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def fingerprint(sources: Sources) -> tuple[Any, ...]:
    """What changes where a model's files are exchanged: links, times and sizes of its manifest and of its items.

    Returns:
        A part for each of the two; None for a file that is not there.

    Raises:
        OSError: If a file cannot be looked at.
    """
    found: list[Any] = []
    for path in (sources.checkpoint, sources.items):
        if path is None:
            continue
        try:
            file = path / "manifest.json" if stat.S_ISDIR(path.stat().st_mode) else path
            known = file.stat()
            found.append((str(file.resolve()), known.st_ino, known.st_mtime_ns, known.st_size))
        except (FileNotFoundError, NotADirectoryError):
            found.append(None)
    return tuple(found)


def below(root: Path, name: str, field: str) -> Path:
    """The path that a caller names, if it lies below a folder.

    Raises:
        Refusal: 422 where it lies elsewhere, is a link that leads elsewhere, or is not there.
    """
    try:
        base = root.resolve(strict=True)
        place = (base / name).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        raise Refusal(422, "names nothing below the folder that the server may load from.", field) from None
    if place == base or not place.is_relative_to(base):
        raise Refusal(422, "names nothing below the folder that the server may load from.", field)
    return place
