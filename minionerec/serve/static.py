"""The page's files, read once: nothing but what lies in the folder can be asked for."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent / "page"
INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


@dataclass(frozen=True)
class StaticFile:
    """One file: its content, its type, and a mark that changes with the content."""

    content: bytes
    kind: str
    mark: str


def read_files(folder: Path = PAGE) -> dict[str, StaticFile]:
    """Name to file, of all files of a folder whose type is known; none where there is no folder."""
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_file() and path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.name] = StaticFile(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found
