"""Pairwise preferences between items: data contract, splits without leaks, models, metrics, synthetic study."""
