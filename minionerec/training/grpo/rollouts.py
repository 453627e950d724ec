"""First part of a step: the policy answers each prompt with G distinct SIDs of the catalogue, best first.

They are found by the evaluator's own beam search, or drawn without replacement. Beams are not samples of the policy;
`beam_mass` in the log says how far the two are apart.
"""

from collections.abc import Callable, Sequence

import numpy as np
from transformers import PreTrainedModel

from minionerec.models.decoding.beam import sample_search
from minionerec.models.decoding.branches import evaluating
from minionerec.models.decoding.decoder import decode_prompts, length_batches
from minionerec.models.decoding.trie import Trie
from minionerec.sid.table import SidTable
from minionerec.training.grpo.rows import Row
from minionerec.training.rewards.rollouts import Rollouts

PROMPTS_AT_ONCE = 64  # prompts rolled out, and asked the reference about, at a time

Search = Callable[[PreTrainedModel, Sequence[Sequence[int]]], tuple[np.ndarray, np.ndarray]]
"""Takes a model and P prompts; gives SID numbers int64 and log-probabilities float32, both (P, G), best first."""
RollOut = Callable[[PreTrainedModel, Sequence[Row]], Rollouts]


def beams(trie: Trie, generations: int) -> Search:
    """The G best SIDs by beam search, as in evaluation.

    Args:
        trie: SIDs of the catalogue.
        generations: Group size G.
    """

    def search(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        return decode_prompts(model, prompts, trie, generations, batch_size=PROMPTS_AT_ONCE)

    return search


def samples(trie: Trie, generations: int, end_token: int) -> Search:
    """G SIDs drawn without replacement, with their log-probabilities in the trie.

    Args:
        trie: SIDs of the catalogue.
        generations: Group size G.
        end_token: Follows every SID where some SIDs begin others: those have no probability of their own before it.
    """
    drawn = trie.with_tail([end_token]) if trie.mixed_ends else trie

    def search(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        sids = np.zeros((len(prompts), generations), dtype=np.int64)
        scores = np.zeros((len(prompts), generations), dtype=np.float32)
        with evaluating(model):
            for places in length_batches(prompts, PROMPTS_AT_ONCE):
                found = sample_search(model, [prompts[place] for place in places], drawn, generations)
                log_probs, order = found.log_probs.sort(dim=1, descending=True)
                sids[places] = found.sids.gather(1, order).cpu().numpy()
                scores[places] = log_probs.float().cpu().numpy()
        return sids, scores

    return search


def roller(search: Search, table: SidTable) -> RollOut:
    """What rolls rows out: prompts in, `Rollouts` out.

    Args:
        search: Finds the SIDs.
        table: The SIDs of the catalogue.
    """

    def roll_out(model: PreTrainedModel, rows: Sequence[Row]) -> Rollouts:
        sids, scores = search(model, [row["prompt"] for row in rows])
        targets = np.array([row["target"] for row in rows], dtype=np.int64)
        return Rollouts(sids, targets, scores, [row["history"] for row in rows], table)

    return roll_out
