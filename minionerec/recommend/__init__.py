"""Recommendations by item ids: rankers, their evaluation, and a server."""
