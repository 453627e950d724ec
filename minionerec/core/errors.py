"""Errors that a user can fix, and system errors, each in one line.

Every message names the problem (with value, file and line), what was expected, and what to do. Command-line entry
points print the message alone and exit with status 2 (`minionerec.core.commands.run_command`); anything else that
escapes is a defect of this package and keeps its traceback.
"""

import errno
import os
import re
import reprlib
from collections.abc import Collection
from difflib import get_close_matches

_LINE_LENGTH = 2_000
_LONG = re.compile(r"\S{400,}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2


class MinioneRecError(Exception):
    """Base class of every error that a user's input or settings can cause; its text is one line, whatever it quotes.

    Args:
        problems: One message for each problem.
    """

    def __init__(self, *problems: str):
        super().__init__(*problems)
        self.problems = problems

    def lines(self) -> list[str]:
        """A line for each problem: control characters as escapes, the middle left out where it is very long."""
        texts = (_CONTROL.sub(_escaped, problem) for problem in self.problems)
        return [truncate(_LONG.sub(lambda match: truncate(match[0], 200), text), _LINE_LENGTH) for text in texts]

    def __str__(self) -> str:
        """The lines of all problems as one."""
        return " ".join(self.lines())


class ConfigError(MinioneRecError):
    """A setting is unknown, malformed, or contradicts another setting."""


class DataError(MinioneRecError):
    """A data file is missing, malformed or inconsistent; the message names file and row."""


class ArtefactError(MinioneRecError):
    """A stage's input or output directory is missing, of another kind, incomplete, or does not belong to the rest."""


def _escaped(match: re.Match[str]) -> str:
    return " " if match[0] in "\n\t" else match[0].encode("unicode_escape").decode("ascii")


def truncate(text: str, most: int) -> str:
    """A text truncated to about `most` characters: the middle of a longer one is replaced by its length.

    Example:
        >>> truncate("abcdefghij", 4)
        'ab… (10 characters) …ij'
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}… ({len(text):,} characters) …{text[-half:]}"


def one_line(error: object, most: int | None = None) -> str:
    """The text of a library's exception on one line, truncated to `most` characters."""
    return " ".join(str(error).split())[:most]


def did_you_mean(name: object, known: Collection[str]) -> str:
    """A sentence that suggests the closest known name; empty where none is close.

    Example:
        >>> did_you_mean("bacth_size", ["batch_size", "seed"])
        ' Did you mean batch_size?'
    """
    close = get_close_matches(str(name), known, 1)
    return f" Did you mean {close[0]}?" if close else ""


def shown(value: object, most: int = 80) -> str:
    """A value for messages: its repr, truncated where it is long.

    Example:
        >>> shown("a"), shown([1, 2])
        ("'a'", '[1, 2]')
    """
    if isinstance(value, str):
        return repr(truncate(value, most))
    try:
        return truncate(_SHORT.repr(value), 2 * most)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return f"a {type(value).__name__} too large to show"


# System errors: a full disk, a folder without read permission, a directory where a file should be.

_FULL = "Free some space, or raise the limit on file sizes, and run the same command again."
_DENIED = "Fix the permissions, or choose another path."
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EROFS: _DENIED,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENOENT: "Fix its path.",
    errno.EISDIR: "Give the path of a file.",
    errno.ENOTDIR: "A part of its path is a file; fix the path.",
    errno.ELOOP: "Its links lead in a circle; fix them.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n).",
    errno.EIO: "Check the disk.",
}
_OF_LIBRARIES = {
    "safetensors": re.compile(r"I/O error|os error \d+", re.IGNORECASE),
    "builtins": re.compile(r"PytorchStreamWriter|inline_container|can't allocate memory|os error \d+", re.IGNORECASE),
    "torch": re.compile(r"out of memory", re.IGNORECASE),
}
_NUMBER = re.compile(r"os error (\d+)")
_LOST = re.compile(r"gloo/transport|ncclRemoteError")
PROCESS_ENDED = "another process of this launch has ended; its messages say why."


def fault(error: BaseException) -> str | None:
    """A system error in one line, with what to do; None for any other error.

    Args:
        error: An exception raised by Python or by a library that writes files.

    Example:
        >>> fault(PermissionError(13, "Permission denied", "items.csv"))
        'items.csv: Permission denied. Fix the permissions, or choose another path.'
        >>> fault(ZeroDivisionError()) is None
        True
    """
    if isinstance(error, BrokenPipeError):
        return "the output was closed before everything was written."
    if isinstance(error, OSError):
        path = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | os.PathLike) else ""
        reason = " ".join((error.strerror or str(error) or type(error).__name__).split()).rstrip(".")
        return f"{path}{reason}. {_ADVICE.get(error.errno or 0, 'Run the same command again.')}"
    if isinstance(error, MemoryError):
        return f"out of memory ({error or 'MemoryError'}). Use smaller batches, or a machine with more memory."
    pattern = _OF_LIBRARIES.get(type(error).__module__.partition(".")[0])
    text = " ".join(str(error).split())
    if isinstance(error, RuntimeError) and (_LOST.search(text) or type(error).__name__ == "DistNetworkError"):
        return PROCESS_ENDED
    if pattern is None or not isinstance(error, Exception) or not pattern.search(text):
        return None
    if "memory" in text:
        return f"out of memory ({text[:200]}). Use smaller batches, or a machine with more memory."
    number = _NUMBER.search(text)
    advice = _ADVICE.get(int(number[1]), _FULL) if number else _FULL
    return f"a file cannot be read or written ({text[:200]}). {advice}"


def is_about_writing(error: OSError) -> bool:
    """Whether an error means that nothing can be written: the disk is full or read-only."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
