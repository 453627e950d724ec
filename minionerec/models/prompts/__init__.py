"""Prompt wording, tasks and the examples built from them: one wording for training, RL and evaluation."""
