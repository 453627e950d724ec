"""Small catalogue models whose weights are all drawn at random, so that every part has a say."""

import numpy as np
import torch

from minionerec.models.backbone.catalogue import CatalogueConfig, CatalogueModel, build_catalogue

OFF = ("learned_vectors", "code_vectors", "vectors", "pointer", "transitions")
"""What a catalogue model can do without."""


def draw_weights(model: torch.nn.Module) -> None:
    """All weights at random, in place: those of context states last, so that a model without them has the others."""
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters(), key=lambda named: ".context_states." in named[0]):
            parameter.copy_(torch.randn_like(parameter) * 0.3)


def random_catalogue(codes, tokens, counts=None, off=(), seed=0, **changes) -> CatalogueModel:
    """Such a model in evaluation mode, which reads six items; one with context tokens has learned popularity too.

    Args:
        codes: Codes of the SIDs.
        tokens: Their tokens.
        counts: What followed what; None: nothing.
        off: Which of `OFF` are left out.
        seed: Seed of the weights.
        changes: Other settings of `CatalogueConfig`.
    """
    torch.manual_seed(seed)
    shape = {"vocab_size": int(tokens.max()) + 1, "max_history": 6, "hidden_size": 16, "num_attention_heads": 2}
    shape |= {"intermediate_size": 24, "reach": 4}
    shape |= {name: False for name in off if name not in ("vectors", "transitions")}
    text = None if "vectors" in off else np.random.default_rng(0).normal(size=(len(codes), 5)).astype(np.float32)
    config = CatalogueConfig(**{**shape, **changes})
    model = build_catalogue(config, codes, tokens, text, None if "transitions" in off else counts)
    draw_weights(model)
    if model.popularity is not None:
        model.popularity.set(torch.randn(3, model.config.num_sids), torch.tensor([0.3, 0.8, 1.5]))
    return model.eval()
