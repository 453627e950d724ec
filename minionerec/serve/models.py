"""The model in service and the previous one, and replacing it: loading, testing and an atomic swap."""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minionerec.core.errors import ArtefactError, MinioneRecError
from minionerec.core.log import get_logger
from minionerec.core.values import in_words
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Answer, Request
from minionerec.serve.reading import Refusal
from minionerec.serve.writing import filters

logger = get_logger(__name__)

_PATH = re.compile(r"[^\s'\"(,;=]*/([^\s/'\"(),:;]+)")
_TRIED_HISTORY = 3


@dataclass(frozen=True)
class Sources:
    """The sources of a model.

    Attributes:
        checkpoint: The model.
        corpus: The corpus; that of the checkpoint's manifest if None.
    """

    checkpoint: Path
    corpus: Path | None = None

    def paths(self) -> tuple[Path | None, ...]:
        """The paths that may occur in messages about it."""
        return self.checkpoint, self.corpus


@dataclass(frozen=True)
class Served:
    """A loaded and tested model.

    Attributes:
        recommender: The model.
        sources: Its sources.
        filters: Columns for filters, as `GET /v1/model` shows them.
        example: A request and its answer.
        loaded: Load time, seconds since 1970.
    """

    recommender: Recommender
    sources: Sources
    filters: list[dict[str, Any]]
    example: tuple[Request, Answer]
    loaded: float

    @property
    def model(self) -> dict[str, str]:
        """Name and version, as in all answers."""
        return {"name": self.recommender.name, "version": self.recommender.version}


def without_paths(message: str, known: Iterable[Path | None] = ()) -> str:
    """A message for callers, with only the last part of paths.

    Args:
        message: The message.
        known: Paths that may occur; otherwise, folders with a space in their name are not recognised.

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
    """Test a model with one request and a batch, which also warms it up.

    Returns:
        A request and its answer, as an example.

    Raises:
        ArtefactError: If it returns no items, or items that are not in its catalogue.
    """
    ids = recommender.items.ids
    recommender.items.search(recommender.items.titles[0] if ids else "", 1)
    request = Request(history=list(ids[:_TRIED_HISTORY]), k=3, exclude_seen=True)
    answer = recommender.answer([request])[0]
    recommender.answer([Request(), *[replace(request, k=10)] * (batch - 1)])
    if not answer.items:
        raise ArtefactError(f"{recommender.name}: recommends nothing after the history {in_words(request.history)}.")
    strange = [item.item_id for item in answer.items if recommender.items.index(item.item_id) is None]
    if strange:
        raise ArtefactError(f"{recommender.name}: recommends {strange[0]!r}, which is not among its own items.")
    return request, answer


class Shelf:
    """The model in service and the previous one, which are replaced by one caller at a time.

    Args:
        load: Loads a model.
        batch: Batch size for testing a new model.
        changed: Called with every new model in service.
    """

    def __init__(
        self,
        load: Callable[[Sources], Recommender],
        batch: int = 1,
        changed: Callable[[Served], None] = lambda served: None,
    ):
        self._load, self._batch, self._changed = load, batch, changed
        self.current: Served | None = None
        self.previous: Served | None = None

    def bring(self, sources: Sources) -> Served:
        """Load and test a model, and put it into service; on errors nothing changes.

        Raises:
            MinioneRecError: If its inputs do not belong together or are being changed, or it cannot answer.
        """
        try:
            before = fingerprint(sources)
            recommender = self._load(sources)
            example = try_out(recommender, self._batch)
            if fingerprint(sources) != before:
                raise ArtefactError(
                    f"{sources.checkpoint}: files were changed while they were read. Load it again when complete."
                )
        except MinioneRecError:
            raise
        except Exception as error:
            logger.exception("a model could not be loaded")
            raise ArtefactError(f"{sources.checkpoint}: cannot be loaded ({type(error).__name__}).") from None
        return self._put(Served(recommender, sources, filters(recommender.items), example, time.time()))

    def back(self) -> Served:
        """Put the previous model into service again.

        Raises:
            Refusal: 409, if there is none.
        """
        if self.previous is None:
            raise Refusal(409, "there is no previous model.", "back")
        return self._put(self.previous)

    def _put(self, served: Served) -> Served:
        before, self.current = self.current, served  # one assignment: a batch reads it once
        self.previous = before
        self._changed(served)
        return served


def fingerprint(sources: Sources) -> list[tuple[Any, ...]]:
    """The state of a model's files: link, number, time and size of each file of its sources."""
    return [
        (file.resolve(), status.st_ino, status.st_mtime_ns, status.st_size)
        for path in sources.paths()
        if path is not None
        for file in sorted([path, *path.rglob("*")])
        if file.is_file() and (status := file.stat())
    ]


def below(root: Path, name: str, field: str) -> Path:
    """The path given by a caller, if it is below a folder.

    Raises:
        Refusal: 422 if it is elsewhere, is a link to elsewhere, or does not exist.
    """
    try:
        base = root.resolve(strict=True)
        path = (base / name).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        raise Refusal(422, "is not a path below the folder of --reload_root.", field) from None
    if path == base or not path.is_relative_to(base):
        raise Refusal(422, "is not a path below the folder of --reload_root.", field)
    return path
