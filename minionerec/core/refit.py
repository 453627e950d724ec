"""Models that were trained on all rows, those held out too: what was made from one, and that no figure may come of it.

Such a checkpoint says `refit` in its manifest's counts. Whatever measures, and whatever trains with held-out rows, asks
`require_held_out` of what it reads; manifests lead from there to everything that it was made from.
"""

import os
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import fingerprint, is_artefact, read_manifest
from minionerec.core.errors import ArtefactError


def refitted_behind(path: str | os.PathLike[str]) -> Path | None:
    """The artefact trained on all rows among one and all that it was made from; None where there is none.

    Args:
        path: An artefact, or anything else, behind which there is nothing. Of what an artefact was made from, that is
            followed which still lies where it lay, unchanged.
    """
    queue: list[tuple[Path, str | None]] = [(Path(path), None)]
    known: set[Path] = set()
    while queue:
        place, digest = queue.pop(0)
        if place in known or not is_artefact(place):
            continue
        known.add(place)
        manifest = read_manifest(place)
        if is_refit(manifest) and digest in (None, fingerprint(place)):
            return place
        queue += [(Path(record["path"]), record["sha256"]) for record in manifest["inputs"].values()]
    return None


def is_refit(manifest: dict[str, Any]) -> bool:
    """Whether a manifest says of its artefact that it was trained on all rows."""
    return bool(manifest["counts"].get("refit"))


def require_held_out(path: str | os.PathLike[str]) -> None:
    """Check that an artefact's makers never saw the rows that are held out.

    Raises:
        ArtefactError: If one of them was trained on all rows.
    """
    found = refitted_behind(path)
    if found is not None:
        what = "was" if found == Path(path) else f"was made with {found}, which was"
        chosen = read_manifest(found)["inputs"].get("refit", {}).get("path", "the checkpoint that validation chose")
        raise ArtefactError(
            f"{path}: {what} trained on all rows, those of valid and test too, so no figure of it means anything. It "
            f"is for service; measure {chosen} instead."
        )
