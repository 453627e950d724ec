"""The corpus that a model was trained on."""

import os
from pathlib import Path

from minionerec.core.artefacts import fingerprint, read_manifest
from minionerec.core.errors import ArtefactError


def own_corpus(path: str | os.PathLike[str]) -> Path:
    """The corpus that a model was trained on, where its manifest says it lies.

    Args:
        path: A checkpoint, or the model of a seed.

    Raises:
        ArtefactError: If it says nothing, or another one lies there now.
    """
    record = read_manifest(path)["inputs"].get("corpus")
    if record is None:
        raise ArtefactError(f"{path}: its manifest names no corpus. Give the corpus that it was trained on.")
    place = Path(record["path"])
    if not place.is_dir() or fingerprint(place) != record["sha256"]:
        raise ArtefactError(
            f"{path}: was trained on the corpus {place}, which is not there as it was. Give its place, or make it anew."
        )
    return place
