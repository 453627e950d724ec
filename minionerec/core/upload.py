"""Upload of finished artefacts to URLs: files first, the manifest last, so that no half is taken for a whole."""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import MANIFEST, digest_of, flaw, open_artefact, parse_json
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger, progress
from minionerec.core.remote import is_odd, look_again
from minionerec.core.urls import WEB, NotThere, RemotePath, is_remote, one_line_errors

logger = get_logger(__name__)

UNFINISHED = "unfinished.json"
"""File beside those being uploaded: names the artefact that they belong to."""
_NO_FOLDERS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf")
_MB = 1 << 20


def put(folder: str | os.PathLike[str], url: str, *, replace: bool = False) -> tuple[int, int]:
    """Upload a finished artefact to a URL.

    An artefact of the same content there is kept, but for files that are missing or have another size, which are sent
    again. An interrupted upload is resumed with the missing files.

    Args:
        folder: The local artefact; every file of it is checked against its manifest first.
        url: Its URL, such as s3://bucket/runs/corpus.
        replace: Whether existing content there is replaced: an artefact, also one of the same content, or files of the
            same names.

    Returns:
        How many files were sent, 0 where the artefact was up to date, and how many it has, its manifest among them.

    Raises:
        ArtefactError: If the folder holds no finished artefact, something else is at the URL, or it cannot be written.
        ConfigError: If there is no such protocol, its package is not installed, or it can only be read.
    """
    folder = Path(folder)
    manifest = open_artefact(folder)
    odd = next((name for name in manifest["files"] if is_odd(name)), None)
    if odd is not None:
        raise ArtefactError(f"{folder / MANIFEST}: lists the file {odd!r} in a form that no stage writes.")
    if not is_remote(url):
        raise ConfigError(
            f"{url!r} is not a URL; expected one such as s3://bucket/corpus. Local folders are copied by cp."
        )
    if url.startswith(tuple(f"{protocol}://" for protocol in WEB)):
        raise ConfigError(f"{url}: can only be read. Choose another URL, such as s3://.")
    remote = RemotePath.at(url)
    names = list(manifest["files"])
    there = _manifest_there(remote)
    whole: set[str] | None = None
    if there is not None and digest_of(there) == digest_of(manifest) and not replace:
        whole = _whole(remote, folder, names)
        if len(whole) == len(names):
            return 0, len(names) + 1
    done = _begin(remote, folder, manifest, there, replace, whole)
    waiting = [name for name in names if name not in done]
    logger.info("Uploading %s to %s.", folder, url)
    size = {name: -(-(folder / name).stat().st_size // _MB) for name in waiting}
    for name in progress(waiting, f"put {folder.name}", unit="MB", size=size.__getitem__):
        _send(remote, folder, name)
    if open_artefact(folder) != manifest:
        raise ArtefactError(f"{folder}: was replaced while it was uploaded. Run the same command again.")
    _send(remote, folder, MANIFEST)
    _remove(remote, UNFINISHED)
    look_again()
    return len(waiting) + 1, len(names) + 1


def _manifest_there(remote: RemotePath) -> dict[str, Any] | None:
    """The manifest at a URL; an empty one where it is malformed, None where there is none."""
    with contextlib.suppress(NotThere), one_line_errors(remote.url):
        remote.fs.invalidate_cache(remote.root)
    return _object(remote.read(MANIFEST))


def _object(raw: bytes | None) -> dict[str, Any] | None:
    """A JSON object; an empty one where it is malformed, None where there is nothing."""
    if raw is None:
        return None
    try:
        found = parse_json(raw, MANIFEST)
    except ArtefactError:
        return {}
    return found if isinstance(found, dict) else {}


def _begin(
    remote: RemotePath,
    folder: Path,
    manifest: dict[str, Any],
    there: dict[str, Any] | None,
    replace: bool,
    whole: set[str] | None,
) -> set[str]:
    """Remove what is replaced, mark the URL as unfinished, and return the files that are there already.

    Args:
        remote: The URL.
        folder: The local artefact.
        manifest: Its manifest.
        there: The manifest at the URL.
        replace: As in `put`.
        whole: Files of this artefact that are there; None where all are sent.

    Raises:
        ArtefactError: If something else is there that is not to be replaced.
    """
    before = _object(remote.read(UNFINISHED))
    if there is not None and not replace and whole is None:
        raise ArtefactError(f"{remote.url}: holds another artefact. Choose another URL, or give --replace true.")
    if there is None and before is None and not replace and _holds_something(remote):
        raise ArtefactError(
            f"{remote.url}: holds something that is not an artefact. Choose another URL, or give --replace true to "
            "overwrite its files."
        )
    digest = digest_of(manifest)
    with one_line_errors(remote.url):
        folders: list[str] = []  # its own first
        if remote.protocol not in _NO_FOLDERS:
            folders = sorted({f"{remote.root}/{name}".rpartition("/")[0] for name in (MANIFEST, *manifest["files"])})
        for path in folders[:1]:
            remote.fs.makedirs(path, exist_ok=True)
        try:
            remote.fs.pipe_file(f"{remote.root}/{UNFINISHED}", json.dumps({"manifest": digest}).encode())
        except FileNotFoundError:
            raise ArtefactError(
                f"{remote.url}: its bucket or folder does not exist. Create it, or fix the URL."
            ) from None
        for path in folders[1:]:
            remote.fs.makedirs(path, exist_ok=True)
    if there is not None:
        _remove(remote, MANIFEST)
        if whole is None and flaw(there) is None:
            for name in there["files"]:
                if not is_odd(name):
                    _remove(remote, name)
        return whole or set()
    resumes = before is not None and before.get("manifest") == digest
    return _whole(remote, folder, list(manifest["files"])) if resumes else set()


def _whole(remote: RemotePath, folder: Path, names: Sequence[str]) -> set[str]:
    """The files that are at a URL with the sizes of the local ones."""
    return {name for name in names if _size(remote, name) == (folder / name).stat().st_size}


def _size(remote: RemotePath, name: str) -> int | None:
    try:
        with one_line_errors(remote.url):
            size: int | None = remote.fs.info(f"{remote.root}/{name}").get("size")
    except NotThere:
        return None
    return size


def _holds_something(remote: RemotePath) -> bool:
    info = remote.info()
    if info is None or info.get("type") != "directory":
        return info is not None
    with one_line_errors(remote.url):
        found = remote.fs.ls(remote.root, detail=False)
    return any(str(name).rstrip("/") != remote.root for name in found)


def _send(remote: RemotePath, folder: Path, name: str) -> None:
    with one_line_errors(remote.url):
        remote.fs.put_file(str(folder / name), f"{remote.root}/{name}")


def _remove(remote: RemotePath, name: str) -> None:
    with contextlib.suppress(NotThere), one_line_errors(remote.url):
        remote.fs.rm_file(f"{remote.root}/{name}")
