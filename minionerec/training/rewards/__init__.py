"""Rewards for rollouts, and the advantages that follow from them: array functions of `Rollouts`."""
