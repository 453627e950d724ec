"""Ranking and per-level metrics with intervals, all read from `Predictions`."""
