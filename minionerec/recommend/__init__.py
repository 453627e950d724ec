"""Recommendations: item ids and titles in and out, the rankers behind them, their evaluation, and a server."""
