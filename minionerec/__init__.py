"""Generative recommendation with semantic IDs.

Items become short code sequences (semantic IDs), a language model learns to speak them, and constrained beam search
turns what it says into a ranked list of real items. `docs/how-it-works.md` shows the whole way of the data.
"""

__version__ = "0.1.0"
