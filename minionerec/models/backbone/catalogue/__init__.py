"""A generative recommender whose next-code probabilities come from one distribution over the whole catalogue.

A causal transformer reads a history item by item and gives every SID of the catalogue a score. The softmax of the
scores is a distribution over the leaves of the trie of SIDs; a prefix has the summed probability of the leaves below
it, and so every code has a probability given the codes before it:

    p(c | a, b) = sum of p(leaf) below (a, b, c)  /  sum of p(leaf) below (a, b)

So the model generates SIDs code by code like a language model (`forward` gives next-token logits, stock `generate` and
the project's searches decode it), while it is trained with one exact softmax over SIDs and never names an SID that
does not exist. A hierarchical softmax (Morin and Bengio, 2005) has its probabilities the other way round: there the
leaf is the product of learned steps, here the steps follow from the leaf.

An SID's score has four sources, each of which can be left out:

1. its vector against the transformer's state, with a bias. The vector is the sum of a learned one, a linear map of
   text (shared by items that never sold), and vectors of its codes (shared by its neighbours in the trie); input and
   output share it;
2. a pointer: SIDs of the history get an additional score that depends on the state and on how long ago they were, as in
   pointer networks (Vinyals et al., 2015), added to the scores instead of mixed into the probabilities;
3. counts: g log(1 + e^b A), where A is how often the SID followed the history's items in training, weighted by distance
   and by how common the item is; g and b depend on the state. In training a position leaves out what its own target
   and later ones added to the counts, so that nothing is read off its own answer;
4. several towers, trained side by side from different starts, whose probabilities are averaged: an ensemble
   (Lakshminarayanan et al., 2017) in one checkpoint and one search.
"""

from minionerec.models.backbone.catalogue.config import CatalogueConfig
from minionerec.models.backbone.catalogue.model import CatalogueModel, build_catalogue

__all__ = ["CatalogueConfig", "CatalogueModel", "build_catalogue"]
