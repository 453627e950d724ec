"""The likelihood of a catalogue model by a sample of its SIDs, where a score of all of them is too much.

The softmax's sum over all N SIDs is estimated from the SIDs that a step happens to hold, C of them, each once: the
targets of all its windows, SIDs that were drawn at random, and SIDs that are siblings of targets in the trie. Each
counts as often as it represents others, the inverse of the probability pi that it is there (Horvitz and Thompson,
1952):

    -log p(y) is estimated by  -s(y) + log( exp s(y) + sum over the other SIDs c of the step of exp(s(c) - log pi(c)) )

The sum's expectation is the softmax's own sum. This is importance sampling as in Bengio and Senecal, "Adaptive
Importance Sampling to Accelerate Training of a Neural Probabilistic Language Model" (2008), with the batch's own
targets among the sample and the correction by log pi of Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large
Corpus Item Recommendations" (RecSys 2019, section 3). Its logarithm is too small on average, the less the larger C is.

Two things are other than there:

1. pi is the probability of being there at all, for a SID that was drawn twice is there once.
2. It is reckoned for each window by itself. The window's own targets are there for certain (pi is 1: the items of a
   history are no rare accident), and what the other windows bring is taken for independent draws from the training
   targets. So a target of another window, or one that was drawn, counts as a negative, but never against the position
   whose own target it is.
"""

import torch
from torch import nn

from minionerec.models.nn.rows import ColumnSubset

Sample = tuple[ColumnSubset, torch.Tensor]
"""The SIDs of a step, numbers from 0; and float32 (B, C), for each window the logarithm of the probability that each is
there, 0 for the window's own targets."""


def sampled_losses(scores: torch.Tensor, sample: Sample, row: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The estimate of the negative log-probability at each position: float32 (P,).

    Args:
        scores: float (P, C), of the step's SIDs.
        sample: The step's SIDs.
        row: int64 (P,), the window of each position.
        wanted: int64 (P,), number from 0 of each position's target, which is among the SIDs.
    """
    columns, log_shares = sample
    return nn.functional.cross_entropy(scores.float() - log_shares[row], columns.find(wanted), reduction="none")
