"""Refitted models, trained on all examples, held-out ones too: they and what was made from them are not measured.

Such a checkpoint has `refit` in its manifest's counts. Every evaluation, and every training with held-out examples,
calls `require_held_out` for its inputs; manifests lead from there to everything that they were made from.
"""

import os
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_manifest, source_manifests
from minionerec.core.errors import ArtefactError


def refitted_ancestor(path: str | os.PathLike[str]) -> Path | None:
    """The refitted artefact among an artefact and everything that it was made from; None where there is none.

    Args:
        path: An artefact, or any other path, which has no inputs. Of the inputs of an artefact those are followed that
            are still at their paths; one that was changed is not itself taken for refitted.
    """
    sources = source_manifests([path], changed=True)
    return next((artefact for artefact, manifest, same in sources if same and is_refit(manifest)), None)


def is_refit(manifest: dict[str, Any]) -> bool:
    """Whether a manifest is that of an artefact trained on all examples."""
    return bool(manifest["counts"].get("refit"))


def require_held_out(path: str | os.PathLike[str]) -> None:
    """Check that an artefact was made without the held-out examples.

    Raises:
        ArtefactError: If it, or an artefact that it was made from, was trained on all examples.
    """
    found = refitted_ancestor(path)
    if found is not None:
        what = "was" if found == Path(path) else f"was made with {found}, which was"
        chosen = read_manifest(found)["inputs"].get("refit", {}).get("path", "the checkpoint that validation chose")
        raise ArtefactError(
            f"{path}: {what} trained on all examples, those of valid and test too, so its metrics would mean nothing. "
            f"It is for serving; measure {chosen} instead."
        )
