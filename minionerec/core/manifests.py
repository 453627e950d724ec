"""What a manifest must look like, and its own hash: a manifest that was cut off or edited is no manifest."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DIGEST = "sha256"
"""Key of a manifest's own hash, over all that it says beside."""

_MAPPINGS = ("config", "inputs", "counts", "files", "versions")


def maker(kind: Any) -> str:
    """The commands that make artefacts of a kind, in brackets behind a message; empty where none is known.

    Example:
        >>> maker("sids")
        ' (minionerec build-sids)'
    """
    from minionerec.core.stages import makers  # which reads settings, whose inputs are artefacts

    *names, last = makers(kind) or [""]
    return f" (minionerec {', '.join(names)}{' or ' if names else ''}{last})" if last else ""


def digest_of(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of all that a manifest says, its own hash left out: 64 hex digits."""
    content = {name: value for name, value in manifest.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_edited(manifest: Mapping[str, Any]) -> bool:
    """Whether a manifest says something else than when it was written; earlier versions wrote no hash of their own."""
    return DIGEST in manifest and manifest[DIGEST] != digest_of(manifest)


def flaw(content: Any) -> str | None:
    """What is wrong with the content of a manifest, in words; None where nothing is.

    Args:
        content: What JSON made of it.

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
    for name, digest in content["files"].items():
        if not name or "\0" in name or name[0] == "/" or ".." in name.split("/") or not _is_digest(digest):
            return f"lists the file {name!r} in a form that no stage writes"
    for name, record in content["inputs"].items():
        path = record.get("path") if isinstance(record, dict) else None
        if not isinstance(path, str) or "\0" in path or not _is_digest(record.get("sha256")):
            return f"lists the input {name!r} in a form that no stage writes"
    return None


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64


def strays(path: Path, manifest: Mapping[str, Any], suffixes: tuple[str, ...]) -> list[str]:
    """Files of an artefact with certain endings that its manifest does not list, by name."""
    found = (str(file.relative_to(path)) for file in sorted(path.rglob("*")) if file.suffix in suffixes)
    return [name for name in found if name not in manifest["files"] and name != "manifest.json"]
