"""Sampled softmax loss of a catalogue model, for catalogues that are too large for the full softmax.

The softmax's sum over all N SIDs is estimated from the C distinct SIDs of a step: the targets of all its windows, and
SIDs drawn uniformly. Each SID is weighted by the inverse of its probability pi of being
in the sample (Horvitz and Thompson, 1952):

    -log p(y) is estimated by  -s(y) + log( exp s(y) + sum over the other SIDs c of the step of exp(s(c) - log pi(c)) )

The sum's expectation is the softmax's own sum. This is importance sampling as in Bengio and Senecal, "Adaptive
Importance Sampling to Accelerate Training of a Neural Probabilistic Language Model" (2008), with the batch's own
targets among the sample and the correction by log pi of Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large
Corpus Item Recommendations" (RecSys 2019, section 3). The logarithm of the estimate is biased downwards, less for
larger C.

Deviations:

1. pi is the probability of being in the sample at all, since an SID that is drawn twice is in it once.
2. pi is computed for each window: it is 1 for the window's own targets, and targets of other windows are taken for
   independent draws from the training targets. So targets of other windows and drawn SIDs are negatives, except at
   positions whose target they are.
"""

import torch
from torch import nn

from minionerec.models.nn.rows import ColumnSubset

Sample = tuple[ColumnSubset, torch.Tensor]
"""The SIDs of a step, numbers from 0; and float32 (B, C), for each window the logarithm of each SID's probability of
being in the sample, 0 for the window's own targets."""


def sampled_losses(scores: torch.Tensor, sample: Sample, row: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Estimate of the negative log-probability at each position: float32 (P,).

    Args:
        scores: float (P, C), scores of the step's SIDs.
        sample: The step's SIDs, among them the targets.
        row: int64 (P,), window of each position.
        targets: int64 (P,), number from 0 of each position's target.
    """
    columns, log_shares = sample
    return nn.functional.cross_entropy(scores.float() - log_shares[row], columns.find(targets), reduction="none")
