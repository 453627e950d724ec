"""Remote paths: `s3://`, `gs://`, `hdfs://` and whatever else fsspec knows, as local copies.

A URL may be given wherever settings name an input (`Settings.local` fetches it), and to `Recommender.load`. An artefact
is copied, file by file as its manifest lists them, into a cache, and each file is checked against its hash; a plain
file is copied whole, and a folder of plain files file by file where a setting reads such (`local_parts`): as Spark, a
warehouse or `split` writes the parts of one table. Everything else in this package deals with local paths alone.

    $MINIONEREC_CACHE (~/.cache/minionerec)
        artefacts/DIGEST OF THE MANIFEST/NAME/...
        files/KEY OF ITS CONTENT/NAME

A copy is renamed to its final path when it is complete. An interrupted one is kept beside it and resumed, file by file;
of several processes one copies and the others wait. Only what a user names is fetched, never what a manifest names.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout

from minionerec.core.artefacts import (
    MANIFEST,
    changed_file,
    digest_of,
    file_sha256,
    flaw,
    is_artefact,
    is_edited,
    parse_json,
)
from minionerec.core.errors import ArtefactError
from minionerec.core.log import get_logger, progress
from minionerec.core.processes import local_rank
from minionerec.core.urls import WEB, NotThere, RemotePath, is_remote, one_line_errors, without_query
from minionerec.core.web import BLOCK

logger = get_logger(__name__)

CACHE_VARIABLE = "MINIONEREC_CACHE"
_MARKS = (
    *("size", "ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "Digest", "crc32c", "generation", "VersionId"),
    *("LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "created", "blob_id", "sha256"),
)
"""Information of filesystems about a file that changes with its content."""

_seen: dict[str, Path] = {}
_seen_parts: dict[str, list[Path] | None] = {}


def cache_folder() -> Path:
    """Folder of the copies: `$MINIONEREC_CACHE`, or else `~/.cache/minionerec`."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given).expanduser() if given else Path.home() / ".cache" / "minionerec"


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path as given; of a URL the local copy, as it was when this run first read it.

    A run thus reads one state of it; `look_again` begins a new run.

    Raises:
        ArtefactError: As `fetched`.
        ConfigError: As `fetched`.
    """
    if not isinstance(path, str) or not is_remote(path):
        return Path(path)
    known = _seen.get(path)
    if known is None or not known.exists():
        known = _seen[path] = fetched(path)
    return known


def look_again() -> None:
    """Forget the copies that `local_path` returned: the next call checks the URL again."""
    _seen.clear()
    _seen_parts.clear()


def with_urls(text: str) -> str:
    """A message with the URLs of the copies whose paths it names."""
    copies = {str(path): url for url, path in _seen.items()}
    copies |= {
        str(path): f"{url.rstrip('/')}/{path.name}" for url, paths in _seen_parts.items() for path in paths or ()
    }
    for path, url in copies.items():
        text = text.replace(path, f"{without_query(url)} (copied to {path})", 1)
    return text


def local_parts(url: str) -> list[Path] | None:
    """Local copies of the files of a folder at a URL, as of this run's first read; None if it is not a folder.

    Every file is a copy of its own, so that only the new files of a folder are fetched.

    Raises:
        ArtefactError: As `fetched`, or if there is no file in it (`part_names`).
        ConfigError: As `fetched`.
    """
    known = _seen_parts.get(url)
    if url not in _seen_parts or (known is not None and not all(path.exists() for path in known)):
        known = _seen_parts[url] = _fetched_parts(RemotePath.at(url))
    return known


def part_names(entries: Mapping[str, bool], where: str) -> list[str]:
    """The parts among the entries of a folder, in order.

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
            f"{where}: is a folder without files to read (names that begin with . or _ do not count). Fix its path."
        )
    return names


def parts_of(folder: Path) -> list[Path]:
    """The parts of a local folder.

    Raises:
        ArtefactError: As `part_names`, or if the folder cannot be read.
    """
    try:
        entries = {each.name: each.is_dir() for each in folder.iterdir()}
    except OSError as error:
        raise ArtefactError(f"{folder}: cannot be read ({error.strerror}). Fix its permissions.") from None
    return [folder / name for name in part_names(entries, str(folder))]


def _fetched_parts(remote: RemotePath) -> list[Path] | None:
    if remote.is_local:
        folder = Path(remote.root)
        return parts_of(folder) if folder.is_dir() else None
    try:
        info = remote.info()
    except ArtefactError:  # reading a bucket's files does not imply listing it: then it is one file, or none
        return None
    if info is None or info.get("type") != "directory":
        return None
    children = remote.children()
    names = part_names({name: info.get("type") == "directory" for name, (_, info) in children.items()}, remote.url)
    with _keeping(remote.url):
        return [_fetch_file(*children[name], partial(_child_info, remote, name)) for name in names]


def _child_info(folder: RemotePath, name: str) -> dict[str, Any]:
    return folder.children().get(name, (folder, {}))[1]


def fetched(path: str | os.PathLike[str]) -> Path:
    """A path as given; of a URL the local path of its artefact or file: copied, unless the cache holds it already.

    Paths of `file://` are not copied.

    Args:
        path: Such as s3://bucket/runs/corpus; its manifest, or the filesystem's information about the file, is read
            every time.

    Raises:
        ConfigError: If the protocol is unknown, its package is not installed, or the URL holds a password.
        ArtefactError: If it does not exist, cannot be reached or differs from its manifest, or the cache cannot be
            written. An incomplete copy is never used.
    """
    if not isinstance(path, str) or not is_remote(path):
        return Path(path)
    remote = RemotePath.at(path)
    if remote.is_local:
        return Path(remote.root)
    logger.info("Asking for %s.", remote.url)
    raw, info = _found(remote)
    with _keeping(remote.url):
        return _fetch_file(remote, info, lambda: remote.info() or {}) if raw is None else _fetch_artefact(remote, raw)


@contextmanager
def _keeping(url: str) -> Iterator[None]:
    """Report a copy that cannot be written with the path of the cache."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ArtefactError(
            f"{cache_folder()}: the copy of {url} cannot be written ({reason}). Free some space, or name another "
            f"folder by ${CACHE_VARIABLE}."
        ) from None


def _found(remote: RemotePath) -> tuple[bytes | None, dict[str, Any]]:
    """The manifest of the artefact at a URL; None and the filesystem's information where it is a file.

    Raises:
        ArtefactError: If there is neither.
    """
    try:
        info, closed = remote.info(), None
    except ArtefactError as error:  # reading a bucket's files does not imply listing it
        info, closed = None, error
    is_file = info is not None and info.get("type") == "file"
    if is_file and remote.protocol not in WEB:
        return None, dict(info or {})
    raw = remote.read(MANIFEST)
    if raw is not None and (not is_file or _looks_like_manifest(raw)):  # some servers answer any name
        return raw, {}
    if is_file:
        return None, dict(info or {})
    if info is not None:
        raise ArtefactError(
            f"{remote.url}: has no {MANIFEST}, so it is not a finished artefact. Upload one: minionerec put FOLDER "
            f"{remote.url}"
        )
    raise closed or NotThere(f"{remote.url}: no such artefact or file. Fix the URL, or upload it: minionerec put.")


def _looks_like_manifest(raw: bytes) -> bool:
    try:
        return flaw(parse_json(raw, MANIFEST)) is None
    except ArtefactError:
        return False


def checked_manifest(url: str, raw: bytes) -> dict[str, Any]:
    """The manifest of a URL's artefact.

    Raises:
        ArtefactError: If it is malformed, was edited, or names files outside of the artefact's folder.
    """
    manifest: dict[str, Any] = parse_json(raw, f"{url}/{MANIFEST}")
    wrong = flaw(manifest)
    odd = None if wrong else next((name for name in manifest["files"] if is_odd(name)), None)
    if odd is not None:
        wrong = f"lists the file {odd!r} in a form that no stage writes"
    elif wrong is None and is_edited(manifest):
        wrong = "was edited by hand"
    if wrong is not None:
        raise ArtefactError(f"{url}/{MANIFEST}: {wrong}. Upload the artefact again: minionerec put.")
    return manifest


def is_odd(name: str) -> bool:
    """Whether a name in a manifest is not that of a file within the artefact, as stages write it."""
    path = PurePosixPath(name)
    return str(path) != name or path.is_absolute() or ".." in path.parts or "\\" in name or name in (".", MANIFEST)


def _fetch_artefact(remote: RemotePath, raw: bytes) -> Path:
    manifest = checked_manifest(remote.url, raw)
    target = cache_folder() / "artefacts" / digest_of(manifest) / remote.name
    if _is_whole(target):
        return target
    with _locked(target, remote.url):
        if _is_whole(target):
            return target
        fresh = target.with_name(f".{target.name}.fetching")
        if whole := target.exists():
            logger.warning("%s was changed since it was copied from %s: it is copied again.", target, remote.url)
            shutil.rmtree(fresh, ignore_errors=True)
            target.rename(fresh)
            (fresh / MANIFEST).unlink(missing_ok=True)
        logger.info("Fetching %s.", remote.url)
        for name, digest in manifest["files"].items():
            if not (fresh / name).is_file() or file_sha256(fresh / name) != digest:
                if whole:
                    (fresh / name).unlink(missing_ok=True)  # it was not interrupted, but changed
                _copy(remote, f"{remote.root}/{name}", fresh / name, digest)
        fresh.mkdir(exist_ok=True)
        (fresh / MANIFEST).write_bytes(raw)
        fresh.rename(target)
    return target


def _is_whole(target: Path) -> bool:
    """Whether a copy is complete and unchanged; one process of the machine checks the files."""
    try:
        return is_artefact(target) and (local_rank() != 0 or changed_file(target) is None)
    except ArtefactError:
        return False


def _marks(info: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(info[name]) for name in _MARKS if info.get(name) is not None}


def _fetch_file(remote: RemotePath, info: dict[str, Any], look: Callable[[], Mapping[str, Any]]) -> Path:
    """A local copy of a file.

    Args:
        remote: Its URL.
        info: The filesystem's information about it.
        look: Asks for that again, in the same form.

    Raises:
        ArtefactError: As `_copy`, or if it was changed while it was fetched.
    """
    marks = _marks(info)
    with one_line_errors(remote.url):
        key = json.dumps([remote.url, remote.root, remote.fs.ukey(remote.root), marks])
    target = cache_folder() / "files" / hashlib.sha256(key.encode()).hexdigest() / remote.name
    size = info.get("size")
    fixed = set(marks) - {"size"}  # else other content could not be distinguished

    def is_complete() -> bool:
        return bool(fixed) and target.is_file() and size in (None, target.stat().st_size)

    if is_complete():
        return target
    with _locked(target, remote.url):
        if not is_complete():
            fresh = target.with_name(f".{target.name}.fetching")
            logger.info("Fetching %s.", remote.url)
            if not fixed:
                fresh.unlink(missing_ok=True)  # earlier bytes may be of other content
            etag = str(info.get("ETag", "W/"))
            _copy(remote, remote.root, fresh, None, size, info.get("Last-Modified") if etag.startswith("W/") else etag)
            later = marks if remote.protocol in WEB else _marks(look())  # a web server is read by one request
            if any(later.get(name, mark) != mark for name, mark in marks.items()):
                fresh.unlink()
                raise ArtefactError(f"{remote.url}: was changed while it was fetched. Run the same command again.")
            fresh.replace(target)
    return target


def _copy(
    remote: RemotePath, path: str, target: Path, digest: str | None, size: int | None = None, mark: str | None = None
) -> None:
    """Copy one file, and check it against its hash or size; an interrupted copy is resumed.

    Raises:
        ArtefactError: If it cannot be read, or differs from its hash or size.
        OSError: If the copy cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    before = target.stat().st_size if target.is_file() else 0
    try:
        begin, blocks = remote.blocks(path, before if size is None or before < size else 0, mark)
    except NotThere:
        if digest is None:
            raise
        name = path[len(remote.root) + 1 :]
        raise ArtefactError(
            f"{remote.url}: its file {name} is missing. Upload the artefact again: minionerec put."
        ) from None
    total = None if size is None else -(-(size - begin) // BLOCK)
    with target.open("r+b" if begin else "wb") as copy:
        copy.seek(begin)
        copy.truncate()
        for block in progress(blocks, f"fetch {target.name}", total=total, unit="MiB"):
            copy.write(block)
    count = target.stat().st_size
    if begin and digest is not None and file_sha256(target) != digest:
        target.unlink()
        return _copy(remote, path, target, digest, size, mark)
    if digest is not None and file_sha256(target) != digest:
        raise ArtefactError(
            f"{remote.url}: its file {path[len(remote.root) + 1 :]} is not the one that {MANIFEST} lists, or is just "
            "being written. Run the same command again, or upload the artefact again: minionerec put --replace true."
        )
    if size is not None and count != size:
        target.unlink()
        raise ArtefactError(
            f"{remote.url}: only {count:,} of {size:,} bytes were received. Run the same command again."
        )


@contextmanager
def _locked(target: Path, url: str) -> Iterator[None]:
    """Lock a copy against other processes, which wait."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info("Another process is fetching %s; waiting for it.", url)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
