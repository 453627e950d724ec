"""Directories that stages hand to one another: written beside their place, manifest last, renamed into place.

A stage that is killed leaves its old output or none. `manifest.json` holds the kind of artefact, the resolved
configuration, the fingerprints of all inputs, the hash of every file, the seed and the package versions, and nothing
that differs between two runs of the same thing: equal inputs make byte-equal artefacts.
"""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from minionerec.core.errors import ArtefactError

MANIFEST = "manifest.json"
_PACKAGES = ("minionerec", "torch", "transformers", "trl", "accelerate", "faiss-cpu", "scikit-learn", "numpy", "pandas")


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of one file, as 64 hex digits; a process reads a file once while its size and times stay the same."""
    place = Path(path).resolve()
    state = place.stat()
    return _hashed(str(place), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


@lru_cache(maxsize=4096)
def _hashed(path: str, *_state: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_artefact(path: str | os.PathLike[str]) -> bool:
    """Whether a finished artefact lies there."""
    return (Path(path) / MANIFEST).is_file()


def to_plain(value: Any) -> Any:
    """A JSON-ready copy of a configuration: dataclasses become dicts, paths strings, tuples lists."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return json.loads(json.dumps(value, default=str))


def read_json(path: str | os.PathLike[str]) -> Any:
    """Parse one JSON file.

    Raises:
        ArtefactError: If the file is missing or is not JSON; the message names file, line and column.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtefactError(f"{path}: no such file.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtefactError(f"{path}: not valid JSON ({error}). Write the file again.") from None


def fingerprint(path: str | os.PathLike[str]) -> str:
    """SHA-256 that stands for an input: a file's content, or an artefact's kind and file hashes.

    Two artefacts with the same files have the same fingerprint, wherever they lie and however they were made.

    Raises:
        ArtefactError: If nothing is there, or a directory has no manifest.
    """
    path = Path(path)
    if path.is_file():
        return file_sha256(path)
    manifest = read_manifest(path)
    return hashlib.sha256(json.dumps([manifest["kind"], manifest["files"]], sort_keys=True).encode()).hexdigest()


def read_manifest(path: str | os.PathLike[str], kind: str | None = None) -> dict[str, Any]:
    """The manifest of an artefact directory.

    Args:
        path: The directory.
        kind: What the directory must hold ("corpus", "sids", "checkpoint", "predictions"); any if None.

    Raises:
        ArtefactError: If there is no such directory, no manifest in it, or one of another kind.
    """
    path = Path(path)
    wanted = kind or "artefact"
    if not path.is_dir():
        raise ArtefactError(
            f"{path}: no such directory; expected the output of an earlier stage ({wanted}). Run it first."
        )
    if not (path / MANIFEST).is_file():
        raise ArtefactError(
            f"{path}: has no {MANIFEST}, so it is not a finished {wanted}. Run the stage that makes it."
        )
    manifest: dict[str, Any] = read_json(path / MANIFEST)
    if kind is not None and manifest.get("kind") != kind:
        raise ArtefactError(
            f"{path}: holds a {manifest.get('kind')!r}, expected a {kind!r}. Point the setting elsewhere."
        )
    return manifest


def changed_file(path: str | os.PathLike[str]) -> Path | None:
    """The first file of an artefact that is missing or differs from its manifest; None where all are as written."""
    path = Path(path)
    for name, digest in read_manifest(path)["files"].items():
        if not (path / name).is_file() or file_sha256(path / name) != digest:
            return Path(path, name)
    return None


def verify_files(path: str | os.PathLike[str]) -> None:
    """Check every file of an artefact against its manifest.

    Raises:
        ArtefactError: Naming the first file that is missing or changed.
    """
    changed = changed_file(path)
    if changed is not None:
        what = f"differs from {MANIFEST}" if changed.is_file() else f"listed in {MANIFEST} but missing"
        raise ArtefactError(f"{changed}: {what}. Run the stage that makes {path} again.")


def input_record(inputs: Mapping[str, str | os.PathLike[str]]) -> dict[str, dict[str, str]]:
    """Path and fingerprint of each named input, as the manifest keeps them."""
    return {name: {"path": str(path), "sha256": fingerprint(path)} for name, path in sorted(inputs.items())}


def require_writable(path: str | os.PathLike[str], kind: str | None = None) -> None:
    """Check, before long work, that an artefact can be written to a place later.

    Args:
        path: Its directory.
        kind: Kind of the artefact; one of another kind that lies there is not replaced. Any may be if None.

    Raises:
        ArtefactError: If the place cannot be written, or holds something else.
    """
    path = Path(path)
    if path.exists() and not is_artefact(path) and (not path.is_dir() or any(path.iterdir())):
        raise ArtefactError(
            f"{path}: exists and is not an output of this project; refusing to replace it. Choose another output."
        )
    if kind is not None and is_artefact(path) and (other := read_manifest(path)["kind"]) != kind:
        raise ArtefactError(
            f"{path}: holds a {other!r}, which a {kind!r} must not replace. Choose another output, or remove it."
        )
    _fresh_folder(path).rmdir()


def _fresh_folder(path: Path) -> Path:
    """An empty folder beside a place, to write into before renaming."""
    fresh = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
    except OSError as error:
        raise ArtefactError(
            f"{path}: cannot be written ({error.strerror}). Choose another output or mend its permissions."
        ) from None
    return fresh


@contextmanager
def write_artefact(
    path: str | os.PathLike[str],
    kind: str,
    *,
    config: Any,
    settings: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str | os.PathLike[str]] | None = None,
    recorded: Mapping[str, Mapping[str, str]] | None = None,
    seed: int | None = None,
    counts: Mapping[str, Any] | None = None,
) -> Iterator[Path]:
    """Write an artefact directory in one piece.

    Yields a fresh directory beside `path`; when the block ends without an error, `manifest.json` is written last and
    the directory takes the place of `path`. On any error the fresh directory is removed and `path` is untouched.

    Args:
        path: Where the artefact is to lie; an earlier artefact there is replaced.
        kind: Kind of artefact, checked by readers.
        config: Resolved configuration (dataclass or mapping).
        settings: The part of it that decides the result; all of it if None.
        inputs: Name to path of every file or artefact that was read.
        recorded: Their `input_record` from before they were read; taken now if None.
        seed: Random seed, if any was used.
        counts: Numbers worth showing (rows, items, dropped rows...). A mapping filled inside the block is fine.

    Yields:
        The directory to write files into.

    Raises:
        ArtefactError: If the place cannot be written, or holds something that is not an artefact.
    """
    path = Path(path)
    require_writable(path, kind)
    fresh, old = _fresh_folder(path), path.with_name(f".{path.name}.old")
    recorded = input_record(inputs or {}) if recorded is None else recorded
    try:
        yield fresh
        files = {str(file.relative_to(fresh)): file_sha256(file) for file in sorted(fresh.rglob("*")) if file.is_file()}
        manifest = {
            "kind": kind,
            "config": to_plain(config),
            "settings": to_plain(config if settings is None else dict(settings)),
            "inputs": dict(recorded),
            "seed": seed,
            "counts": to_plain(dict(counts or {})),
            "files": files,
            "versions": package_versions(),
        }
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    fresh.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write one text file beside its place and rename it, so that no reader ever sees half of it.

    Raises:
        ArtefactError: If the place cannot be written.
    """
    path = Path(path)
    fresh = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise ArtefactError(
            f"{path}: cannot be written ({error.strerror}). Choose another output or mend its permissions."
        ) from None


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
