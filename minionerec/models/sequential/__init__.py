"""Sequential recommenders: models over item ids, their registry, and how a saved one ranks."""
