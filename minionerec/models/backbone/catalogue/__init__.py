"""A generative recommender whose next-code probabilities come from one distribution over the whole catalogue.

A causal transformer reads a history item by item and gives every SID of the catalogue a score. The softmax of the
scores is a distribution over the leaves of the trie of SIDs; a prefix has the summed probability of the leaves below
it, and so every code has a probability given the codes before it:

    p(c | a, b) = sum of p(leaf) below (a, b, c)  /  sum of p(leaf) below (a, b)

So the model generates SIDs code by code like a language model (`forward` gives next-token logits; stock `generate` and
the project's searches decode it), while it is trained with one exact softmax over SIDs and never generates an SID that
does not exist. In a hierarchical softmax (Morin and Bengio, 2005), the probability of a leaf is the product of learned
steps; here the steps are derived from the leaves.

An SID's score has four optional sources:

1. the dot product of its vector and the transformer's state, with a bias. The vector is the sum of a learned one, a
   linear map of its text (which items without interactions have, too), and vectors of its codes (shared with its
   neighbours in the trie); input and output share it;
2. a pointer: SIDs of the history get an additional score that depends on the state and on their position, as in
   pointer networks (Vinyals et al., 2015), but added to the scores instead of mixed into the probabilities;
3. counts: g log(1 + e^b A), where A is the number of times that the SID followed the history's items in training,
   weighted by distance and by the frequency of the item; g and b depend on the state. In training, a position excludes
   the counts that its own target and later ones added, so that the answer does not leak;
4. several towers, trained together from different initial weights, whose probabilities are averaged: an ensemble
   (Lakshminarayanan et al., 2017) in one checkpoint and one search.
"""

from minionerec.models.backbone.catalogue.config import CatalogueConfig
from minionerec.models.backbone.catalogue.model import CatalogueModel, build_catalogue

__all__ = ["CatalogueConfig", "CatalogueModel", "build_catalogue"]
