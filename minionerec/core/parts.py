"""Folders whose files are the parts of one thing, as Spark, a warehouse or `split` writes them.

Parts are read in the order of their names. Names that begin with a dot or an underscore are no parts: they are marks of
whoever wrote the folder (`_SUCCESS`, `.part-00000.crc`). A folder inside is refused rather than passed over.
"""

from collections.abc import Mapping
from pathlib import Path

from minionerec.core.errors import ArtefactError


def part_names(entries: Mapping[str, bool], where: str) -> list[str]:
    """The parts among what lies in a folder, in order.

    Args:
        entries: Name → whether it is a folder itself.
        where: The folder, for messages.

    Raises:
        ArtefactError: If there is none, or another folder.

    Example:
        >>> part_names({"part-1.csv": False, "part-0.csv": False, "_SUCCESS": False, ".crc": True}, "visits")
        ['part-0.csv', 'part-1.csv']
    """
    names = sorted(name for name in entries if not name.startswith((".", "_")))
    inner = next((name for name in names if entries[name]), None)
    if inner is not None:
        raise ArtefactError(
            f"{where}: holds the folder {inner!r}, but only the files of a folder are read, no folders in it. Put the "
            "files into one folder, or name the folder that holds them."
        )
    if not names:
        raise ArtefactError(
            f"{where}: is a folder without files to read (names that begin with . or _ do not count). Mend its path."
        )
    return names


def parts_of(folder: Path) -> list[Path]:
    """The parts of a folder here.

    Raises:
        ArtefactError: As `part_names`, or if the folder cannot be read.
    """
    try:
        entries = {each.name: each.is_dir() for each in folder.iterdir()}
    except OSError as error:
        raise ArtefactError(f"{folder}: cannot be read ({error.strerror}). Mend its permissions.") from None
    return [folder / name for name in part_names(entries, str(folder))]
