"""Rewards for rollouts: pure functions of completions and dataset columns."""
