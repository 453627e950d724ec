"""The corpus that a model was trained on."""

import os
from pathlib import Path

from minionerec.core.artefacts import read_manifest, unchanged_input
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
    place = unchanged_input(path, "corpus")
    if place is None:
        raise ArtefactError(
            f"{path}: was trained on the corpus {record['path']}, which is not there as it was. Give its place, or "
            "make it anew."
        )
    return place
