"""Faults of the machine in one line: a full disk, a folder that may not be read, a directory where a file should be.

`minionerec.core.commands.run_command` ends a command with such a line. Whatever is no fault of the machine is a defect
of this package, and keeps its traceback.
"""

import errno
import os
import re

_FULL = "Free some space, or raise the limit on file sizes, and run the same command again."
_DENIED = "Mend the permissions, or choose another place."
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EROFS: _DENIED,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENOENT: "Mend its path.",
    errno.EISDIR: "Give the path of a file.",
    errno.ENOTDIR: "A part of its path is a file; mend the path.",
    errno.ELOOP: "Its links lead in a circle; mend them.",
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


def fault(error: BaseException) -> str | None:
    """A fault of the machine in one line, with what to do; None where an error is none.

    Args:
        error: What was raised, by Python or by a library that writes files of its own.

    Example:
        >>> fault(PermissionError(13, "Permission denied", "items.csv"))
        'items.csv: Permission denied. Mend the permissions, or choose another place.'
        >>> fault(ZeroDivisionError()) is None
        True
    """
    if isinstance(error, BrokenPipeError):
        return "what reads the output went away before everything was written."
    if isinstance(error, OSError):
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | os.PathLike) else ""
        reason = " ".join((error.strerror or str(error) or type(error).__name__).split()).rstrip(".")
        return f"{place}{reason}. {_ADVICE.get(error.errno or 0, 'Run the same command again.')}"
    if isinstance(error, MemoryError):
        return f"the memory is used up ({error or 'MemoryError'}). Use smaller batches, or a machine with more."
    pattern = _OF_LIBRARIES.get(type(error).__module__.partition(".")[0])
    text = " ".join(str(error).split())
    if pattern is None or not isinstance(error, Exception) or not pattern.search(text):
        return None
    if "memory" in text:
        return f"the memory is used up ({text[:200]}). Use smaller batches, or a machine with more."
    number = _NUMBER.search(text)
    advice = _ADVICE.get(int(number[1]), _FULL) if number else _FULL
    return f"a file cannot be read or written ({text[:200]}). {advice}"


def is_about_writing(error: OSError) -> bool:
    """Whether an error says that a place cannot be written: it is full, or closed to us."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
