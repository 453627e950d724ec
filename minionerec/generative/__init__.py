"""Generative recommenders other than language models."""
