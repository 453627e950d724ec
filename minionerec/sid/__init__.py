"""Semantic IDs: the table that owns item ↔ codes ↔ token strings, and the quantisers that make it."""
