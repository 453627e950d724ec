"""The provenance of a report: its inputs, and the inputs of these."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import artefact_fingerprint, file_sha256, source_manifests
from minionerec.metrics.tables import MISSING
from minionerec.reports.document import Block, Cell, Details, Section, Table

_KEPT = ("config", "inputs", "counts", "seed", "versions")


def manifests(inputs: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Path to manifest of the inputs and, recursively, of their inputs, where these still exist unchanged."""
    return {str(path): manifest for path, manifest, _ in source_manifests(inputs.values())}


def configuration(inputs: Mapping[str, Path]) -> Section:
    """All artefacts and files that a report was made from: kind, seed, hash, packages and configuration."""
    found = manifests(inputs)
    details: list[Block] = []
    for path, manifest in found.items():
        kept = {key: manifest[key] for key in _KEPT}
        details.append(
            Details(f"{manifest['kind']}: {path}", json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False))
        )
    return Section("Configuration", [*sources(found, inputs), *details])


def sources(found: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Path]) -> list[Block]:
    """Tables of the artefacts and files that a page was made from, and of package versions.

    Args:
        found: The manifests of the inputs (`manifests`).
        inputs: The inputs of a stage by name.
    """
    rows: list[list[str | Cell]] = []
    for path, manifest in found.items():
        seed = MISSING if manifest["seed"] is None else str(manifest["seed"])
        rows.append([path, manifest["kind"], seed, artefact_fingerprint(manifest)[:16]])
    rows += [
        [str(path), "file", MISSING, file_sha256(path)[:16]]
        for name, path in inputs.items()
        if path.is_file() and name.rpartition(" ")[2] != "reference"  # of the package; in a log after its entry's name
    ]
    versions: dict[str, set[str]] = {}
    for manifest in found.values():
        for package, version in manifest["versions"].items():
            versions.setdefault(package, set()).add(version)
    packages = [[name, " and ".join(sorted(known))] for name, known in sorted(versions.items())]
    return [
        Table(["Artefact", "Kind", "Seed", "SHA-256 (first 16)"], rows, text_columns=2),
        Table(["Package", "Version"], packages),
    ]
