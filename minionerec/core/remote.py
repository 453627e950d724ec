"""Inputs at URLs (`s3://`, `gs://`, `https://`, `hf://` and whatever else fsspec reads) as files of this machine.

A URL may be given wherever settings name an input: `Settings.local` resolves it once, when a run begins, and all other
code reads local paths. Files of the Hugging Face hub are in the cache of `huggingface_hub`; other copies are in
`$MINIONEREC_CACHE/KEY/NAME`, where the key is the hash of the URL and the file's version (size, ETag, time), or of an
artefact's manifest. A copy is moved there once it is complete. One process fetches while the others wait.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from minionerec.core.artefacts import MANIFEST, changed_file, digest_of, flaw, parse_json
from minionerec.core.errors import ArtefactError, ConfigError, MinioneRecError, is_about_writing, one_line
from minionerec.core.log import get_logger
from minionerec.core.urls import is_remote, without_query

logger = get_logger(__name__)

CACHE_VARIABLE = "MINIONEREC_CACHE"
READ_TIMEOUT = 60.0
"""Seconds without data after which a web server is given up."""
_PASSWORD = re.compile(r"://[^/?#@]*:[^/?#@]*@")
_urls: dict[str, str] = {}
"""Path of a copy → its URL without a query, for messages."""


def cache_folder() -> Path:
    """Folder of the copies: `$MINIONEREC_CACHE`, or else `~/.cache/minionerec`."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/minionerec").expanduser()


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path as given; for a URL, its local copy, fetched when this run first reads it.

    Raises:
        ConfigError: If the protocol is unknown, its package is not installed, or the URL holds a password.
        ArtefactError: If the URL does not exist, cannot be read, or differs from its manifest.
    """
    return _copy(path) if isinstance(path, str) and is_remote(path) else Path(path)


def look_again() -> None:
    """Forget which URLs were resolved, so that a new run checks them again."""
    _copy.cache_clear()
    local_parts.cache_clear()


def with_urls(text: str) -> str:
    """A message in which paths of copies are followed by their URLs."""
    for path, url in _urls.items():
        text = text.replace(path, f"{url} (copied to {path})", 1)
    return text


@cache
def local_parts(url: str) -> list[Path] | None:
    """Local copies of the files of a folder at a URL; None if the URL is not a folder.

    Raises:
        ArtefactError: As `local_path` and `part_names`.
        ConfigError: As `local_path`.
    """
    if url.startswith(("file://", "hf://")):
        path = local_path(url)
        return parts_of(path) if path.is_dir() else None
    name = _checked_name(url)
    with _one_line_errors(name):
        fs, root = _filesystem(url)
        if fs.info(root)["type"] != "directory":
            return None
        infos = {info["name"].rstrip("/"): info for info in fs.ls(root, detail=True)}
        infos.pop(root.rstrip("/"), None)  # object stores list the folder itself
        paths = {path.rpartition("/")[2]: path for path in infos}
        names = part_names({part: infos[path]["type"] == "directory" for part, path in paths.items()}, name)
        return [_file(fs, paths[part], infos[paths[part]], f"{name}/{part}") for part in names]


def part_names(entries: Mapping[str, bool], where: str) -> list[str]:
    """The parts among the entries of a folder, in order.

    Args:
        entries: Name → whether the entry is a folder.
        where: The folder, for messages.

    Raises:
        ArtefactError: If there is no part, or a subfolder.

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
        entries = {entry.name: entry.is_dir() for entry in folder.iterdir()}
    except OSError as error:
        raise ArtefactError(f"{folder}: cannot be read ({error.strerror}). Fix its permissions.") from None
    return [folder / name for name in part_names(entries, str(folder))]


@cache
def _copy(url: str) -> Path:
    """The local file or folder of a URL."""
    name = _checked_name(url)
    with _one_line_errors(name):
        if url.startswith("hf://"):
            return _from_hub(url, name)
        fs, root = _filesystem(url)
        if url.startswith("file://"):
            return Path(root)
        info = fs.info(root)
        return _artefact(fs, root, name) if info["type"] == "directory" else _file(fs, root, info, name)


def _checked_name(url: str) -> str:
    """A URL without its query, for messages.

    Raises:
        ConfigError: If it holds a password.
    """
    if _PASSWORD.search(url):
        raise ConfigError(
            f"{_PASSWORD.sub('://...@', without_query(url))}: holds a password, which manifests would show. Leave it "
            "out, and give it in the environment, as the package of the protocol says."
        )
    return without_query(url).rstrip("/")


def _filesystem(url: str) -> tuple[Any, str]:
    """The filesystem of a URL, and the path in it.

    Raises:
        ConfigError: If its protocol is unknown, or its package is not installed.
    """
    import fsspec

    name, protocol = without_query(url), url.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        raise ConfigError(
            f"{name}: unknown protocol {protocol!r}. Use one of fsspec, such as s3, gs or https."
        ) from None
    except ImportError as error:  # which names the package
        raise ConfigError(
            f"{name}: the package that reads {protocol}:// is not installed. {one_line(error)}."
        ) from None
    options: dict[str, Any] = {}
    if protocol in ("http", "https"):
        from fsspec.implementations.http import aiohttp  # by which it reads

        # No limit on the total time. A URL is sent unchanged, since it may be signed.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=READ_TIMEOUT, sock_read=READ_TIMEOUT)
        client = {"timeout": timeout, "trust_env": True, "headers": {"Accept-Encoding": "identity"}}
        options = {"client_kwargs": client, "encoded": True}
    fs, root = fsspec.core.url_to_fs(url, **options)
    fs.invalidate_cache(root)
    logger.info("Requesting %s.", name)
    return fs, root


def _from_hub(url: str, name: str) -> Path:
    """A file, a folder or the whole of a repository of the Hugging Face hub."""
    from huggingface_hub import parse_hf_uri, snapshot_download

    address = parse_hf_uri(url.rstrip("/"))
    inner = address.path_in_repo
    patterns = [inner, f"{inner}/*"] if inner else None
    logger.info("Requesting %s.", name)
    snapshot = snapshot_download(address.id, repo_type=address.type, revision=address.revision, allow_patterns=patterns)
    path = Path(snapshot, inner)
    if not path.exists():
        raise FileNotFoundError(name)
    _urls[str(path)] = name
    return path


def _artefact(fs: Any, root: str, url: str) -> Path:
    """The copy of an artefact; every file is compared with the manifest."""
    again = "Copy the whole output of a stage there; if that is being done, run the same command again afterwards."
    try:
        raw = fs.cat_file(f"{root}/{MANIFEST}")
    except FileNotFoundError:
        raise ArtefactError(f"{url}: has no {MANIFEST}, so it is not a finished artefact. {again}") from None
    manifest = parse_json(raw, f"{url}/{MANIFEST}")
    wrong = flaw(manifest)
    if wrong is not None:
        raise ArtefactError(f"{url}/{MANIFEST}: {wrong}. {again}")

    def fetch(folder: Path) -> None:
        for name in manifest["files"]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                fs.get_file(f"{root}/{name}", str(folder / name))
        folder.mkdir(exist_ok=True)
        (folder / MANIFEST).write_bytes(raw)
        if (changed := changed_file(folder)) is not None:
            name = str(changed.relative_to(folder))
            raise ArtefactError(f"{url}: its file {name} is missing or differs from {MANIFEST}. {again}")

    return _cached(digest_of(manifest), url, fetch)


def _file(fs: Any, path: str, info: Mapping[str, Any], url: str) -> Path:
    """The copy of a file.

    Args:
        fs: The filesystem.
        path: Path of the file in it.
        info: Information of the filesystem about the file.
        url: The URL without a query.
    """
    version, size = str(info), info.get("size")
    if path.startswith(("http://", "https://")):  # other headers may change with every request
        version = str([info.get(name) for name in ("ETag", "Last-Modified", "Content-MD5", "Digest")])

    def fetch(copy: Path) -> None:
        fs.get_file(path, str(copy))
        received = copy.stat().st_size
        if size not in (None, received):
            raise ArtefactError(f"{url}: {received:,} of {size:,} bytes were received. Run the same command again.")

    return _cached(str((path, size, version)), url, fetch, always=version == str([None] * 4))


def _cached(key: str, url: str, fetch: Callable[[Path], None], always: bool = False) -> Path:
    """The copy of some content in the cache.

    Args:
        key: Identifies the content.
        url: The URL without a query.
        fetch: Writes the content to a path; if it raises, the next call removes the partial copy.
        always: Whether to fetch even if there is a copy.
    """
    folder = cache_folder() / hashlib.sha256(key.encode()).hexdigest()
    name = re.sub(r"[^\w.+=@ -]", "_", url.partition("?")[0].rpartition("/")[2]).lstrip(".")[-100:]
    copy, fresh = folder / (name or "input"), folder / ".fetching"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if always or not copy.exists():
            logger.info("Fetching %s.", url)
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            fetch(fresh / copy.name)
            (fresh / copy.name).replace(copy)
            fresh.rmdir()
    _urls[str(copy)] = url
    return copy


@contextmanager
def _one_line_errors(url: str) -> Iterator[None]:
    """Convert errors of a filesystem into an error of one line with the URL and the remedy.

    Raises:
        ArtefactError: Instead of the filesystem's error.
    """
    try:
        yield
    except (MinioneRecError, MemoryError):
        raise
    except Exception as error:  # each filesystem has its own
        cache = str(cache_folder())
        if isinstance(error, OSError) and (is_about_writing(error) or str(error.filename).startswith(cache)):
            raise ArtefactError(
                f"{cache}: the copy of {url} cannot be written ({error.strerror or error}). Free some space, or name "
                f"another folder by ${CACHE_VARIABLE}."
            ) from None
        # Web servers and the hub name the cause.
        cause = error.__cause__ or error if isinstance(error, FileNotFoundError) else error
        if isinstance(cause, FileNotFoundError | NotADirectoryError) or getattr(cause, "status", None) in (404, 410):
            raise ArtefactError(f"{url}: no such artefact or file. Fix the URL.") from None
        reason = f"{type(cause).__name__}: {one_line(without_query(str(cause)), 300)}".rstrip(" .:")
        raise ArtefactError(
            f"{url}: cannot be read ({reason}). Check the URL (a signed one may have expired), the network and the "
            "credentials in the environment, and run the same command again."
        ) from None
