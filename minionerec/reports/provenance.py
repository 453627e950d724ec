"""The provenance of a report: its inputs, and the inputs of these."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import file_sha256, fingerprint, read_manifest
from minionerec.core.errors import MinioneRecError
from minionerec.metrics.tables import MISSING
from minionerec.reports.document import Block, Cell, Details, Section, Table

_KEPT = ("config", "inputs", "counts", "seed", "versions")


def manifests(inputs: Mapping[str, Path]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Manifests of the inputs and, recursively, of their inputs, where these still exist unchanged.

    Args:
        inputs: The inputs of a stage by name; plain files are skipped.

    Returns:
        Path to (fingerprint, manifest), inputs first.
    """
    queue = [str(path) for path in inputs.values()]
    wanted: dict[str, str | None] = dict.fromkeys(queue)
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    while queue:
        path = queue.pop(0)
        if path in found or not Path(path).is_dir():
            continue
        try:
            digest, manifest = fingerprint(path), read_manifest(path)
        except MinioneRecError:
            continue
        if wanted[path] not in (None, digest):
            continue
        found[path] = (digest, manifest)
        for record in manifest["inputs"].values():
            wanted.setdefault(record["path"], record["sha256"])
            queue.append(record["path"])
    return found


def configuration(inputs: Mapping[str, Path]) -> Section:
    """All artefacts and files that a report was made from: kind, seed, hash, packages and configuration."""
    found = manifests(inputs)
    details: list[Block] = []
    for path, (_, manifest) in found.items():
        kept = {key: manifest[key] for key in _KEPT}
        details.append(
            Details(f"{manifest['kind']}: {path}", json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False))
        )
    return Section("Configuration", [*sources(found, inputs), *details])


def sources(found: Mapping[str, tuple[str, dict[str, Any]]], inputs: Mapping[str, Path]) -> list[Block]:
    """Tables of the artefacts and files that a page was made from, and of package versions.

    Args:
        found: The manifests of the inputs (`manifests`).
        inputs: The inputs of a stage by name.
    """
    rows: list[list[str | Cell]] = [
        [path, str(manifest["kind"]), MISSING if manifest["seed"] is None else str(manifest["seed"]), digest[:16]]
        for path, (digest, manifest) in found.items()
    ]
    rows += [
        [str(path), "file", MISSING, file_sha256(path)[:16]]
        for name, path in inputs.items()
        if path.is_file() and name.rpartition(" ")[2] != "reference"  # of the package; in a log after its entry's name
    ]
    versions: dict[str, set[str]] = {}
    for _, manifest in found.values():
        for package, version in manifest["versions"].items():
            versions.setdefault(package, set()).add(version)
    packages = [[name, " and ".join(sorted(known))] for name, known in sorted(versions.items())]
    return [
        Table(["Artefact", "Kind", "Seed", "SHA-256 (first 16)"], rows, text_columns=2),
        Table(["Package", "Version"], packages),
    ]
