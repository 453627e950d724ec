"""Artefact directories: written under another name, manifest last, then renamed.

A stage that is killed leaves its previous output or none. `manifest.json` holds the kind of artefact, the resolved
configuration, the fingerprints of all inputs, the hash of every file, the seed and the package versions, and nothing
that differs between two equal runs: equal inputs make byte-equal artefacts.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from minionerec.core.errors import ArtefactError, fault, is_about_writing
from minionerec.core.processes import is_main_process
from minionerec.core.urls import without_query

MANIFEST = "manifest.json"
DIGEST = "sha256"
"""Key of a manifest's own hash, over everything else in it."""

_MAPPINGS = ("config", "inputs", "counts", "files", "versions")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_CACHED_SIZE, _CLOCK_TICK = 1 << 20, 50_000_000  # bytes from which a file's hash is cached, nanoseconds
_hashes: dict[tuple[int, ...], str] = {}
_PACKAGES = ("minionerec", "torch", "transformers", "trl", "accelerate", "faiss-cpu", "scikit-learn", "numpy", "pandas")


def _no_makers(kind: Any) -> list[str]:
    return []


makers: Callable[[Any], list[str]] = _no_makers
"""Function from a kind of artefact to the names of the commands that make it; `minionerec.pipeline.stages` sets it."""


def maker(kind: Any) -> str:
    """The commands that make artefacts of a kind, in brackets, for the end of a message; "" where none is known.

    Example:
        >>> import minionerec.pipeline.stages
        >>> maker("sids")
        ' (minionerec build-sids)'
    """
    *names, last = makers(kind) or [""]
    return f" (minionerec {', '.join(names)}{' or ' if names else ''}{last})" if last else ""


def digest_of(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest without its own hash: 64 hex digits."""
    content = {name: value for name, value in manifest.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def flaw(content: Any) -> str | None:
    """The first problem in the content of a manifest, in words; None where there is none.

    Args:
        content: The parsed JSON.

    Example:
        >>> flaw([]), flaw({"kind": "sids"})
        ('is a list, expected an object', "has no 'config'")
    """
    if not isinstance(content, dict):
        return f"is a {type(content).__name__}, expected an object"
    if not isinstance(content.get("kind"), str):
        return "has no 'kind'"
    for name in _MAPPINGS:
        if not isinstance(content.get(name), dict):
            return f"has {name!r} of another form" if name in content else f"has no {name!r}"
    if not isinstance(content.get("settings", {}), dict) or type(content.get("seed", "")) not in (int, type(None)):
        return "has 'settings' or 'seed' of another form"
    if not all(isinstance(version, str) for version in content["versions"].values()):
        return "has 'versions' of another form"
    for name, digest in content["files"].items():
        if not _is_file_name(name) or not _is_digest(digest):
            return f"lists the file {name!r} in a form that no stage writes"
    for name, record in content["inputs"].items():
        path = record.get("path") if isinstance(record, dict) else None
        if not isinstance(path, str) or "\0" in path or not _is_digest(record.get("sha256")):
            return f"lists the input {name!r} in a form that no stage writes"
    return None


def _is_file_name(name: str) -> bool:
    """Whether a name is the normalised path of a file within an artefact, other than the manifest."""
    path = PurePosixPath(name)
    is_inside = not path.is_absolute() and ".." not in path.parts and not set("\\\0") & set(name)
    return is_inside and str(path) == name and name not in (".", MANIFEST)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of one file, as 64 hex digits.

    The hash of a large file is cached by device, inode, size and times, so a process reads an unchanged file once.
    """
    with open(path, "rb") as file:
        state = os.fstat(file.fileno())
        key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        digest = _hashes.get(key) or hashlib.file_digest(file, "sha256").hexdigest()
        # A file written just now may be written again within the same tick of the clock.
        if state.st_size >= _CACHED_SIZE and abs(time.time_ns() - state.st_ctime_ns) > _CLOCK_TICK:
            _hashes[key] = digest
    return digest


def is_artefact(path: str | os.PathLike[str]) -> bool:
    """Whether a path holds a finished artefact."""
    return (Path(path) / MANIFEST).is_file()


def seed_folders(path: str | os.PathLike[str], name: str) -> dict[int, Path]:
    """The folders `seed-N/NAME` below a path, by N in ascending order: the outputs of one stage for several seeds.

    Raises:
        ArtefactError: If such a folder is named otherwise, such as a copy `seed-1 (copy)`.
    """
    folders = {}
    for folder in Path(path).glob(f"seed-*/{name}"):
        number = folder.parent.name.removeprefix("seed-")
        if not (number.isascii() and number.isdecimal() and str(int(number[:19])) == number):
            raise ArtefactError(f"{folder.parent}: is not named by a seed, such as seed-42. Rename it or move it away.")
        if folder.is_dir():
            folders[int(number)] = folder
    return dict(sorted(folders.items()))


def to_plain(value: Any) -> Any:
    """A JSON-ready copy of a configuration: dataclasses become dicts, paths strings, tuples lists.

    Queries of URLs, which may hold signatures, are left out (`minionerec.core.urls.without_query`).
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return _without_queries(json.loads(json.dumps(value, default=str)))


def _without_queries(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_queries(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_queries(entry) for entry in value]
    return without_query(value) if isinstance(value, str) else value


def read_json(path: str | os.PathLike[str]) -> Any:
    """Parse one JSON file.

    Raises:
        ArtefactError: If the file cannot be read, is not JSON, or cannot be written as UTF-8 again; the message names
            file, line and column.
    """
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise ArtefactError(f"{path}: no such file.") from None
    except OSError as error:
        raise ArtefactError(str(fault(error))) from None
    except ValueError as error:  # a NUL in its name
        raise ArtefactError(f"{path}: no such file ({error}).") from None
    return parse_json(raw, path)


def parse_json(raw: bytes, where: str | os.PathLike[str]) -> Any:
    """Parse the content of one JSON file.

    Args:
        raw: The content.
        where: The file, for messages.

    Raises:
        ArtefactError: As `read_json`.
    """
    try:
        text = raw.decode("utf-8")
        content = json.loads(text, object_pairs_hook=_object)
        if _SURROGATE.search(text):
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ArtefactError(
            f"{where}: holds a lone surrogate (\\ud800 to \\udfff), which is no character. Fix it."
        ) from None
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else error
        raise ArtefactError(f"{where}: not valid JSON ({reason}). Write the file again.") from None
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different."""
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} is given twice")
    return content


def fingerprint(path: str | os.PathLike[str]) -> str:
    """SHA-256 of an input: of a file's content, or of an artefact's kind and file hashes.

    Two artefacts with the same files have the same fingerprint, whatever their paths and however they were made.

    Raises:
        ArtefactError: If the path does not exist, or a directory has no manifest.
    """
    path = Path(path)
    return file_sha256(path) if path.is_file() else artefact_fingerprint(read_manifest(path))


def artefact_fingerprint(manifest: Mapping[str, Any]) -> str:
    """The `fingerprint` of an artefact with this manifest."""
    return hashlib.sha256(json.dumps([manifest["kind"], manifest["files"]], sort_keys=True).encode()).hexdigest()


def read_manifest(path: str | os.PathLike[str], kind: str | None = None) -> dict[str, Any]:
    """The manifest of an artefact directory.

    Args:
        path: The directory.
        kind: Kind that the directory must hold ("corpus", "sids", "checkpoint", "predictions"); any if None.

    Raises:
        ArtefactError: If there is no such directory, no manifest in it, or one of another kind.
    """
    path = Path(path)
    expected = kind or "artefact"
    if not path.is_dir():
        raise ArtefactError(
            f"{path}: no such directory; expected the output of an earlier stage ({expected}). "
            f"Run it first{maker(kind)}."
        )
    if not (path / MANIFEST).is_file():
        raise ArtefactError(
            f"{path}: has no {MANIFEST}, so it is not a finished {expected}. Run the stage that makes it{maker(kind)}."
        )
    manifest: dict[str, Any] = read_json(path / MANIFEST)
    problem = flaw(manifest)
    if problem is not None:
        raise ArtefactError(
            f"{path / MANIFEST}: {problem}. Remove {path} and run the stage that makes it{maker(kind)}."
        )
    if kind is not None and manifest["kind"] != kind:
        raise ArtefactError(f"{path}: holds a {manifest['kind']!r}, expected a {kind!r}. Point the setting elsewhere.")
    return manifest


def changed_file(path: str | os.PathLike[str], manifest: Mapping[str, Any] | None = None) -> Path | None:
    """The first file of an artefact that is missing or differs from the manifest; None if all are unchanged.

    The manifest is checked first, against its own hash.

    Args:
        path: The artefact.
        manifest: The manifest of the artefact, if already read.
    """
    path = Path(path)
    manifest = read_manifest(path) if manifest is None else manifest
    digests: dict[str, str] = manifest["files"]
    if manifest.get(DIGEST) != digest_of(manifest):
        return path / MANIFEST
    for name, digest in digests.items():
        if not (path / name).is_file() or file_sha256(path / name) != digest:
            return path / name
    return None


def verify_files(path: str | os.PathLike[str], manifest: Mapping[str, Any] | None = None) -> None:
    """Check every file of an artefact against its manifest.

    Args:
        path: The artefact.
        manifest: As in `changed_file`.

    Raises:
        ArtefactError: Naming the first file that is missing or changed, and the command that rebuilds it.
    """
    manifest = read_manifest(path) if manifest is None else manifest
    changed = changed_file(path, manifest)
    if changed is not None:
        what = f"differs from {MANIFEST}" if changed.is_file() else f"listed in {MANIFEST} but missing"
        what = "was edited by hand" if changed.name == MANIFEST else what
        raise ArtefactError(f"{changed}: {what}. Run the stage that makes {path} again{maker(manifest['kind'])}.")


def open_artefact(
    path: str | os.PathLike[str], kind: str | None = None, *, strangers: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Check an artefact before it is read (kind, completeness, hashes), and return its manifest.

    In a distributed launch only the main process hashes the files.

    Args:
        path: The directory.
        kind: As in `read_manifest`.
        strangers: File suffixes that are refused unless the manifest lists the file, because a library would read
            such files, too.

    Raises:
        ArtefactError: As `read_manifest` and `verify_files`, or naming a file that no stage wrote.
    """
    manifest = read_manifest(path, kind)
    if is_main_process():
        verify_files(path, manifest)
    for file in sorted(Path(path).rglob("*")) if strangers else ():
        name = str(file.relative_to(path))
        if file.suffix in strangers and name not in manifest["files"] and name != MANIFEST:
            raise ArtefactError(f"{file}: is not listed in {MANIFEST}, and a library may read it. Remove it.")
    return manifest


def input_record(inputs: Mapping[str, str | os.PathLike[str]]) -> dict[str, dict[str, str]]:
    """Path and fingerprint of each named input, as the manifest keeps them."""
    return {name: {"path": str(path), "sha256": fingerprint(path)} for name, path in sorted(inputs.items())}


def unchanged_input(path: str | os.PathLike[str], name: str) -> Path | None:
    """Path of the named input artefact of an artefact; None if it is not recorded, missing or changed.

    Args:
        path: The artefact.
        name: Name of the input.
    """
    record = read_manifest(path)["inputs"].get(name)
    if record is None or not is_artefact(record["path"]) or fingerprint(record["path"]) != record["sha256"]:
        return None
    return Path(record["path"])


def trained_splits(path: str | os.PathLike[str]) -> dict[str, Path]:
    """The splits other than train that an artefact or one of its inputs was trained on.

    Args:
        path: An artefact. Manifests of models that were trained on more than train have `splits` in their counts.
            Inputs that have moved are not followed; an input that has changed does not count itself.

    Returns:
        Split → the artefact that was trained on it.
    """
    trained: dict[str, Path] = {}
    recorded: dict[Path, str | None] = {Path(path): None}
    queue = list(recorded)
    visited: set[Path] = set()
    while queue:
        artefact = queue.pop(0)
        if artefact in visited or not is_artefact(artefact):
            continue
        visited.add(artefact)
        manifest = read_manifest(artefact)
        if recorded[artefact] in (None, artefact_fingerprint(manifest)):
            for split in manifest["counts"].get("splits", ()):
                if split != "train":
                    trained.setdefault(split, artefact)
        for record in manifest["inputs"].values():
            recorded.setdefault(Path(record["path"]), record["sha256"])
            queue.append(Path(record["path"]))
    return trained


def require_unseen(path: str | os.PathLike[str], split: str | None = None) -> None:
    """Check that neither an artefact nor any of its inputs was trained on a split.

    Args:
        path: The artefact, or any other path.
        split: The split; if None, the split that the artefact's predictions are of.

    Raises:
        ArtefactError: If one of them was trained on the split.
    """
    seen = trained_splits(path)
    if seen and split is None:
        split = read_manifest(path)["counts"].get("split")
    for name, trained in seen.items():
        if split in (None, name):
            what = "was" if trained == Path(path) else f"was made with {trained}, which was"
            raise ArtefactError(
                f"{path}: {what} trained on the {name} examples (splits), so metrics on them would mean nothing. "
                "Evaluate a model that was trained without them."
            )


def own_corpus(path: str | os.PathLike[str]) -> Path:
    """The corpus that a model was trained on, from its manifest.

    Args:
        path: A checkpoint, or a sequential model.

    Raises:
        ArtefactError: If the manifest names none, or the corpus has changed.
    """
    manifest = read_manifest(path)
    record = manifest["inputs"].get("corpus")
    if record is None:
        raise ArtefactError(
            f"{path}: its manifest names no corpus, and its kind is {manifest['kind']!r}. Give a trained model; if its "
            "manifest names none, also the corpus that it was trained on."
        )
    corpus = unchanged_input(path, "corpus")
    if corpus is None:
        raise ArtefactError(
            f"{path}: was trained on the corpus {record['path']}, which is missing or has changed. Give its path, or "
            "rebuild it."
        )
    return corpus


def resolve_link(path: str | os.PathLike[str]) -> Path:
    """The target of a path that is a link, so that writing keeps the link; else the path."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def require_writable(path: str | os.PathLike[str], kind: str | None = None) -> None:
    """Check, before long work, that an artefact can be written to a path later.

    Args:
        path: Directory of the artefact, or a link to it.
        kind: Kind of the artefact; an existing artefact of another kind is refused. None accepts any.

    Raises:
        ArtefactError: If the path cannot be written, holds something else, or is inside another artefact.
    """
    path = resolve_link(path)
    if path.name in ("", ".."):
        raise ArtefactError(f"the output {path} has no name of its own. Choose another output, such as runs/mine.")
    if os.path.ismount(path):
        raise ArtefactError(f"{path}: a disk is mounted there, so it cannot be replaced. Choose a folder on it.")
    if os.path.lexists(path) and not is_artefact(path) and (not path.is_dir() or any(path.iterdir())):
        raise ArtefactError(
            f"{path}: exists and is not an output of this project; refusing to replace it. Choose another output."
        )
    if kind is not None and is_artefact(path) and (other := read_manifest(path)["kind"]) != kind:
        raise ArtefactError(
            f"{path}: holds a {other!r}, which a {kind!r} must not replace. Choose another output, or remove it."
        )
    enclosing = next((parent for parent in path.absolute().parents if _is_ours(parent)), None)
    if enclosing is not None:
        raise ArtefactError(f"{path}: is inside the artefact {enclosing}. Choose another output.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.rmdir(tempfile.mkdtemp(prefix=f".{path.name[:100]}.", dir=path.parent))
    except OSError as error:
        raise _cannot_write(path, error) from None


def _is_ours(folder: Path) -> bool:
    """Whether a folder is an artefact, and does not merely hold another program's manifest.json."""
    try:
        return is_artefact(folder) and bool(read_manifest(folder))
    except (ArtefactError, OSError):
        return False


def _cannot_write(path: Path, error: OSError) -> ArtefactError:
    remedy = "Free some space" if is_about_writing(error) else "Choose another output"
    return ArtefactError(f"{path}: cannot be written ({error.strerror or error}). {remedy} or fix its permissions.")


def remove_old(path: Path) -> Path:
    """Remove the replaced artefact that a killed run left, and return the path that replaced artefacts move to."""
    old = path.with_name(f".{path.name}.old")
    if old.is_symlink():
        old.unlink()
    elif old.is_dir():
        shutil.rmtree(old, ignore_errors=True)
    return old


@contextmanager
def write_artefact(
    path: str | os.PathLike[str],
    kind: str,
    *,
    config: Any,
    stage: str | None = None,
    settings: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str | os.PathLike[str]] | None = None,
    recorded: Mapping[str, Mapping[str, str]] | None = None,
    seed: int | None = None,
    counts: Mapping[str, Any] | None = None,
) -> Iterator[Path]:
    """Write an artefact directory in one piece.

    Yields a fresh directory beside `path`; when the block ends without an error, `manifest.json` is written last and
    the directory replaces `path`. On any error the fresh directory is removed and `path` is untouched.

    Args:
        path: Directory of the artefact, or a link to it; an earlier artefact there is replaced.
        kind: Kind of artefact, checked by readers.
        config: Resolved configuration (dataclass or mapping).
        stage: Name of the stage that makes the artefact.
        settings: The settings that affect the result; the whole configuration if None.
        inputs: Name → path of every file or artefact that was read.
        recorded: `input_record` of the inputs from before they were read; computed now if None.
        seed: Random seed, if any was used.
        counts: Counts to report (rows, items, dropped rows...). A mapping filled inside the block is fine.

    Yields:
        The directory to write files into.

    Raises:
        ArtefactError: If the path cannot be written, or holds something that is not an artefact.
    """
    path = resolve_link(path)
    require_writable(path, kind)
    fresh = path.with_name(f".{path.name}.writing")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    recorded = input_record(inputs or {}) if recorded is None else recorded
    try:
        yield fresh
        content = {
            "kind": kind,
            "stage": stage,
            "config": config,
            "settings": config if settings is None else dict(settings),
        }
        content |= {"inputs": dict(recorded), "seed": seed, "counts": dict(counts or {})}
        manifest = {name: to_plain(value) for name, value in content.items()}
        files = sorted(file for file in fresh.rglob("*") if file.is_file())
        manifest["files"] = {str(file.relative_to(fresh)): file_sha256(file) for file in files}
        manifest["versions"] = package_versions()
        manifest[DIGEST] = digest_of(manifest)
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if isinstance(error, OSError) and is_about_writing(error):
            raise _cannot_write(path, error) from None
        raise
    old = remove_old(path)
    if path.exists():
        path.rename(old)
    fresh.rename(path)
    remove_old(path)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Write a file under another name and rename it, so that no reader sees half of it.

    On any error the new file is removed and `path` is untouched.

    Yields:
        The path to write to, beside `path`.
    """
    fresh = path.with_name(f".{path.name}.writing")
    try:
        yield fresh
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file as `atomic_write` does; a link is kept and its target replaced.

    Raises:
        ArtefactError: If the path cannot be written.
    """
    path = resolve_link(path)
    if path.exists() and not path.is_file():
        raise ArtefactError(f"{path}: is not a regular file. Choose another path for the text.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as fresh:
            fresh.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _cannot_write(path, error) from None


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write an object as indented JSON, as `write_text_atomic` writes texts.

    Raises:
        ArtefactError: If the path cannot be written.
    """
    write_text_atomic(path, json.dumps(content, indent=1) + "\n")


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results."""
    versions = {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    return {"python": platform.python_version(), **versions}
