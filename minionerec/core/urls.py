"""URLs of any filesystem that fsspec knows: reading, listing, and errors in one line."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minionerec.core.errors import ArtefactError, ConfigError, MinioneRecError
from minionerec.core.web import BLOCK, Web

LOCAL = ("file", "local")
WEB = ("http", "https")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+://[^\s?'\"]*)\?(?!sha256=[0-9a-f]{16}(?![^\s'\",)]))[^\s'\"]+")
_SECRET = re.compile(r"://[^/?#@]*:[^/?#@]*@")
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "adlfs"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    **{"hdfs": "pyarrow", "hf": "huggingface_hub"},
}


class NotThere(ArtefactError):
    """A URL does not exist."""


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL, such as s3://bucket/corpus.

    Example:
        >>> is_remote("s3://shop/corpus"), is_remote("file:///data/corpus"), is_remote("runs/corpus")
        (True, True, False)
    """
    return isinstance(path, str) and _URL.fullmatch(path) is not None


@dataclass(frozen=True)
class RemotePath:
    """A URL with its filesystem.

    Attributes:
        url: As given, but for its query (`without_query`); for messages and names.
        protocol: Such as "s3".
        fs: The filesystem, of fsspec.
        root: The path within it, without a trailing slash.
        name: Its last part, as a local file name.
    """

    url: str
    protocol: str
    fs: Any
    root: str
    name: str

    @classmethod
    def at(cls, url: str) -> "RemotePath":
        """Find the filesystem of a URL.

        Raises:
            ConfigError: As `fetched`.
        """
        given, url = url, without_query(url)
        match = _URL.fullmatch(given)
        if match is None:
            raise ConfigError(f"{url!r} is not a URL; expected one such as s3://bucket/corpus.")
        if _SECRET.search(given):
            raise ConfigError(
                f"{_SECRET.sub('://...@', url)}: holds a password, which manifests would show. Leave it out, and give "
                "it in the environment, as the package of the protocol says."
            )
        protocol = match[1]
        name = re.split("[?#]", match[2])[0] if protocol in WEB else match[2]
        name = _file_name(name)
        if name in ("", ".", ".."):
            raise ConfigError(f"{url}: its path has no name of its own at the end, such as .../corpus. Fix the URL.")
        fs, root = _filesystem(given, protocol)
        return cls(url, protocol, fs, root.rstrip("/"), name)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return self.protocol in LOCAL

    def blocks(self, path: str, begin: int = 0, mark: str | None = None) -> tuple[int, Iterator[bytes]]:
        """The content of a file from a byte on, or all of it where the source cannot seek.

        Args:
            path: The file.
            begin: The first byte that is wanted.
            mark: Version (such as an ETag) of the content of the earlier bytes, where it is known; sent to servers.

        Returns:
            The first byte that is returned, and the blocks, which raise as this does.

        Raises:
            ArtefactError: If it cannot be read.
        """
        with one_line_errors(self.url):
            if isinstance(self.fs, Web):
                begin, parts = self.fs.blocks(path, begin, mark)
                return begin, self._guarded(parts)
            source = self.fs.open(path, "rb")
            if begin and source.seekable():
                source.seek(begin)
        return (begin if source.seekable() else 0), self._guarded(_read(source))

    def _guarded(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        while True:
            with one_line_errors(self.url):
                block = next(parts, None)
            if block is None:
                return
            yield block

    def read(self, name: str) -> bytes | None:
        """A small file below; None where it is not there."""
        try:
            with one_line_errors(self.url):
                return bytes(self.fs.cat_file(f"{self.root}/{name}"))
        except NotThere:
            return None

    def children(self) -> dict[str, tuple["RemotePath", dict[str, Any]]]:
        """The entries of a folder: name → its URL, and the filesystem's information about it.

        Raises:
            ArtefactError: If it cannot be listed.
        """
        with one_line_errors(self.url):
            self.fs.invalidate_cache(self.root)
            listed = [(str(info["name"]).rstrip("/"), dict(info)) for info in self.fs.ls(self.root, detail=True)]
        found = {}
        for path, info in listed:
            name = path.rpartition("/")[2]
            if path.strip("/") != self.root.strip("/") and name:  # object stores list the folder itself
                url = f"{self.url.rstrip('/')}/{name}"
                found[name] = (RemotePath(url, self.protocol, self.fs, path, _file_name(name)), info)
        return found

    def info(self) -> dict[str, Any] | None:
        """The filesystem's information about the URL itself; None where it does not exist."""
        try:
            with one_line_errors(self.url):
                self.fs.invalidate_cache(self.root)
                return dict(self.fs.info(self.root))
        except NotThere:
            return None


def without_query(text: str) -> str:
    """A text in which every URL has the hash of its query in place of it: queries may hold signatures and tokens.

    Example:
        >>> without_query("--items https://shop.example/items.csv?token=1")
        '--items https://shop.example/items.csv?sha256=4a4df60fa44efba7'
        >>> without_query("https://shop.example/items.csv?sha256=4a4df60fa44efba7")
        'https://shop.example/items.csv?sha256=4a4df60fa44efba7'
    """
    return _QUERY.sub(lambda match: f"{match[1]}?sha256={hashlib.sha256(match[0].encode()).hexdigest()[:16]}", text)


def _read(source: Any) -> Iterator[bytes]:
    with source:
        while block := source.read(BLOCK):
            yield bytes(block)


def _file_name(path: str) -> str:
    """The last part of a path, as a name that a file here may have."""
    return re.sub(r"[^\w.+=@ -]", "_", path.rstrip("/").rpartition("/")[2])[-100:]


def _filesystem(url: str, protocol: str) -> tuple[Any, str]:
    if protocol in WEB:
        return Web(), url.partition("#")[0]
    import fsspec

    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        raise ConfigError(
            f"{url}: unknown protocol {protocol!r}. Use one that fsspec knows, such as s3, gs, hdfs, abfs or https."
        ) from None
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        remedy = f"Install it: pip install {package}" if package else f"{error}".rstrip(".") or "Install it"
        raise ConfigError(f"{url}: the package that reads {protocol}:// is not installed. {remedy}.") from None
    options = {"auto_mkdir": True} if protocol in LOCAL else {}
    try:
        with one_line_errors(without_query(url)):
            fs, root = fsspec.core.url_to_fs(url, **options)
    except ArtefactError as error:
        if any(f"({name}Error" in str(error) for name in ("Type", "Attribute", "Value")):
            raise ConfigError(f"{without_query(url)}: {protocol}:// needs more than a URL says. Use another.") from None
        raise
    return fs, str(root)


@contextmanager
def one_line_errors(url: str) -> Iterator[None]:
    """Turn any error of a filesystem into one line that names the URL and the remedy.

    Raises:
        ArtefactError: Instead of it; `NotThere` where the URL does not exist.
    """
    try:
        yield
    except (MinioneRecError, MemoryError):
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotThere(f"{url}: no such artefact or file. Fix the URL, or upload it: minionerec put.") from None
    except Exception as error:  # each filesystem has its own errors
        protocol = url.partition("://")[0]
        package = _PACKAGES.get(protocol, "fsspec")
        reason = f"{type(error).__name__}: {' '.join(without_query(str(error)).split())[:300]}".rstrip(" .:")
        if protocol in WEB and isinstance(error, PermissionError):
            raise ArtefactError(
                f"{url}: no permission ({error}). Fix the URL; a signed one may have expired."
            ) from None
        if isinstance(error, PermissionError) or "credential" in reason.lower():
            remedy = f"Check the credentials, which {package} takes from the environment"
            raise ArtefactError(f"{url}: no permission ({reason}). {remedy}.") from None
        if isinstance(error, NotImplementedError):
            raise ArtefactError(f"{url}: {protocol}:// cannot do this ({reason}). Choose another URL.") from None
        remedy = "Check the URL and the network, and run the same command again"
        if protocol == "hdfs":
            remedy += "; hdfs needs Java and Hadoop's libraries (JAVA_HOME, HADOOP_HOME, CLASSPATH)"
        raise ArtefactError(f"{url}: cannot be reached ({reason}). {remedy}.") from None
