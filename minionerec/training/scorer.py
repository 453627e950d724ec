"""A trained sequential model as the scorer of a reward."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from minionerec.core.artefacts import input_record, read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.sequences import padded
from minionerec.decoding.decoder import decoding_device
from minionerec.rewards.items import Scorer
from minionerec.sequential.saved import load_sequential
from minionerec.sequential.seeds import MODEL_KIND


def sequential_scorer(path: str | Path, corpus: str | Path) -> Scorer:
    """Scores of all items after a history, by a model that `run_sequential` trained on this corpus.

    Args:
        path: The `model` folder of a seed.
        corpus: The corpus whose items are scored.

    Returns:
        Takes B histories (item indices from 0, the oldest first) and gives the model's logits, float32 (B, N).

    Raises:
        ArtefactError: If there is no such model, or it was trained on other data.
        ConfigError: If the model knows histories by their users.
    """
    trained_on = read_manifest(path, MODEL_KIND)["inputs"]["corpus"]
    if trained_on["sha256"] != input_record({"corpus": corpus})["corpus"]["sha256"]:
        raise ArtefactError(
            f"{path}: was trained on {trained_on['path']}, which is not the corpus {corpus}. Train it with --protocol "
            f"rows --corpus {corpus}."
        )
    device = decoding_device()
    model = load_sequential(path).to(device)
    if model.needs_users:
        raise ConfigError(f"{path}: {type(model).__name__} has a vector for each user of its data; take another model.")

    @torch.inference_mode()
    def score(histories: Sequence[Sequence[int]]) -> np.ndarray:
        kept = [list(history)[-model.max_len :] for history in histories]
        ends = np.cumsum([len(history) for history in kept])
        begins = ends - [len(history) for history in kept]
        flat = np.concatenate([np.asarray(history, dtype=np.int32) for history in kept]) + 1
        rows = torch.from_numpy(padded(flat, begins, ends, model.max_len, model.padding)).to(device, torch.int64)
        return model.logits(model.asked(model.user_vectors(rows), None))[:, 1:].float().cpu().numpy()

    return score
