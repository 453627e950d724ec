"""Constrained decoding: the trie of all SIDs and the beam search over it, the same in training, evaluation, serving."""
