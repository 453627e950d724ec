"""Logging and progress bars: on a terminal both, off a terminal only log lines, and only on the main process."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from minionerec.core.processes import is_main_process

T = TypeVar("T")


def get_logger(name: str) -> logging.Logger:
    """The logger of one module; messages below warning level appear only after `setup_logging`."""
    return logging.getLogger(name)


def setup_logging() -> None:
    """Send this package's log lines to standard error: info on the main process, warnings on the others."""
    logger = logging.getLogger("minionerec")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(logging.INFO if is_main_process() else logging.WARNING)


def progress(
    items: Iterable[T],
    description: str,
    total: int | None = None,
    unit: str = "it",
    size: Callable[[T], int] | None = None,
    delay: float = 1.0,
) -> Iterator[T]:
    """Iterate with a progress bar, on a terminal and in the first process alone.

    Args:
        items: What to iterate over.
        description: A few words shown before the bar.
        total: Number of items, where `items` has no length.
        unit: Name of an item in the rate, e.g. "examples".
        size: How many units an item counts for (the examples of a batch); one each if None.
        delay: Seconds before the bar is shown, so that quick work shows none.

    Returns:
        An iterator over `items`.
    """
    from tqdm import tqdm

    silent = not sys.stderr.isatty() or not is_main_process()
    if size is None:
        return iter(tqdm(items, desc=description, total=total, unit=unit, disable=silent, delay=delay))
    items = list(items)
    bar = tqdm(desc=description, total=sum(map(size, items)), unit=unit, disable=silent, delay=delay)
    return _counted(items, size, bar)


def _counted(items: Iterable[T], size: Callable[[T], int], bar: Any) -> Iterator[T]:
    with bar:
        for item in items:
            yield item
            bar.update(size(item))
