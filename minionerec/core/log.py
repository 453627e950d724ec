"""Logging and progress of long work, on the main process: bars on a terminal and in a notebook, else log lines."""

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
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
    every: float = 30.0,
) -> Iterator[T]:
    """Iterate with a progress bar, or, without a terminal, with log lines of the progress and the time left.

    Only the first process of a launch shows progress.

    Args:
        items: Items to iterate over.
        description: A few words shown before the bar.
        total: Number of items, if `items` has no length.
        unit: Plural name of the units in the rate, e.g. "examples".
        size: Function from an item to its number of units (the examples of a batch); 1 if None.
        delay: Seconds before the bar is shown, so that quick work shows none.
        every: Seconds between two log lines, and before the first.

    Returns:
        An iterator over `items`.
    """
    from tqdm import tqdm

    options: dict[str, Any] = {"desc": description, "unit": unit, "disable": not is_main_process(), "delay": delay}
    if not shows_bars():
        options |= {
            "file": SimpleNamespace(write=_log_line, flush=lambda: None),
            "delay": every,
            "mininterval": every,
            "maxinterval": max(every, 1.0),
        }
        options |= {"leave": False, "bar_format": f"{{desc}}: {{n_fmt}} of {{total_fmt}} {unit}, {TIMES}"}
    if size is None:
        return iter(tqdm(items, total=total, **options))
    items = list(items)
    return _counted(items, size, tqdm(total=sum(map(size, items)), **options))


def shows_bars() -> bool:
    """Whether progress is shown by bars, on a terminal or in a notebook, rather than by log lines."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


TIMES = "{elapsed} elapsed, {remaining} left"
"""The times of a line of progress, such as "01:30 elapsed, 12:00 left"."""


def _log_line(text: str) -> None:
    """Log the text with which tqdm would redraw a bar."""
    if line := re.sub(r"\x1b\[A", "", text).strip():
        get_logger(__name__).info("%s", line)


def _counted(items: Iterable[T], size: Callable[[T], int], bar: Any) -> Iterator[T]:
    with bar:
        for item in items:
            yield item
            bar.update(size(item))


class Clock:
    """Receiver of the progress of a long computation that records nothing; a running stage passes its `Work`."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count the time inside for a phase."""
        return nullcontext()

    def reached(self, step: int) -> None:
        """Note the number of saved steps: at the beginning, and after each save."""


NO_CLOCK = Clock()
