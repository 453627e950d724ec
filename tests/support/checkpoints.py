"""Checkpoints without a stage."""

from pathlib import Path
from typing import Any

from minionerec.core.artefacts import write_artefact
from minionerec.models.backbone.bundle import Bundle, bundle_counts, write_model_files


def save_checkpoint(bundle: Bundle, path: Path, **counts: Any) -> None:
    """Write a model as a finished checkpoint, as if a stage had trained it."""
    with write_artefact(path, "checkpoint", config={}, seed=0, counts={**counts, **bundle_counts(bundle)}) as folder:
        write_model_files(bundle, folder)
