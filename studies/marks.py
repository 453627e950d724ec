"""Tables of a results page that a benchmark writes itself."""

from pathlib import Path

from minionerec.core.artefacts import write_text_atomic


def put_between_marks(path: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two lines of a file, each there once."""
    content = path.read_text(encoding="utf-8")
    if content.count(begin) != 1 or content.count(end) != 1:
        raise SystemExit(f"{path}: expected the lines {begin!r} and {end!r} once each.")
    head, _, rest = content.partition(begin)
    write_text_atomic(path, f"{head}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}")
