"""A catalogue model with random weights, for a catalogue."""

import numpy as np
import torch

from minionerec.core.errors import ConfigError
from minionerec.data.transitions import Transitions
from minionerec.models.backbone.catalogue.config import CatalogueConfig
from minionerec.models.backbone.catalogue.model import CatalogueModel
from minionerec.models.nn.experts import ExpertTables


def check_lengths(codes: np.ndarray) -> None:
    """Check that SIDs are of one length, as a catalogue model needs them.

    Args:
        codes: int (N, L), -1 after shorter SIDs.

    Raises:
        ConfigError: If one is shorter.
    """
    if codes.min() < 0:
        raise ConfigError("a catalogue model needs SIDs of one length; resolve collisions by relocation or keep them.")


def build_catalogue(
    config: CatalogueConfig,
    codes: np.ndarray,
    code_tokens: np.ndarray,
    text: np.ndarray | None = None,
    transitions: Transitions | None = None,
    experts: ExpertTables | None = None,
) -> CatalogueModel:
    """A model with random weights for a catalogue.

    Args:
        config: Shape; what follows from the other arguments is set here.
        codes: int (N', L), codes of items; equal rows are one SID.
        code_tokens: int64 (L, C), vocabulary ids of codes (`minionerec.models.backbone.vocabulary.code_token_ids`).
        text: float32 (N, T), text vectors of the distinct SIDs, in the order of SID numbers; None for none.
        transitions: Counts between SID numbers; None for none.
        experts: Counts of the experts, by SID numbers; None for none.

    Raises:
        ConfigError: If SIDs differ in length, or the text vectors do not fit.
    """
    distinct = np.unique(codes, axis=0)
    check_lengths(distinct)
    if text is not None and len(text) != len(distinct):
        raise ConfigError(f"there are {len(text)} text vectors for {len(distinct)} SIDs.")
    config.num_sids, config.levels, config.max_code = len(distinct), distinct.shape[1], code_tokens.shape[1] - 1
    config.text_width = 0 if text is None else text.shape[1]
    config.num_transitions = 0 if transitions is None else len(transitions.counts)
    config.experts = experts is not None
    config.num_expert_counts = 0 if experts is None else len(experts.transitions.counts)
    config.num_expert_neighbours = 0 if experts is None else len(experts.neighbours.counts)
    # A vector for each prefix but the whole SID, and for the last code by itself.
    rows = [np.unique(distinct[:, : level + 1], axis=0, return_inverse=True)[1] for level in range(config.levels - 1)]
    code_rows = np.stack([*(row.reshape(-1) for row in rows), distinct[:, -1].astype(np.int64)])
    config.code_sizes = (code_rows.max(1) + 1).tolist()
    model = CatalogueModel(config)
    with torch.no_grad():
        model.codes.copy_(torch.from_numpy(distinct))
        model.code_tokens.copy_(torch.from_numpy(code_tokens))
        if config.code_vectors:
            model.code_rows.copy_(torch.from_numpy(code_rows))
        if text is not None:
            model.text.copy_(torch.from_numpy(text))
        if experts is not None and model.experts is not None:
            model.experts.set(experts)
        if transitions is not None and model.pairs is not None:  # there are none of them where no pair was counted
            model.pairs.set(transitions)
            for tower in model.each_tower():
                tower.history.start_counts(config.decay)
    return model
