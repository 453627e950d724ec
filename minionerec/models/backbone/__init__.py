"""Models that generate semantic IDs: language models, the catalogue model, and checkpoints."""
