"""First part of a step: the policy answers each prompt with G distinct SIDs of the catalogue, best first.

They are found by the evaluator's own beam search, or drawn without replacement. Beams are not samples of the policy;
`beam_mass` in the log shows how far the two are apart.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from transformers import PreTrainedModel

from minionerec.models.decoding.beam import sample_search
from minionerec.models.decoding.branches import evaluating
from minionerec.models.decoding.decoder import decode_batches, decode_prompts, fitting_batch_size
from minionerec.models.decoding.trie import Trie
from minionerec.training.rewards import Rollouts

if TYPE_CHECKING:
    from minionerec.sid.table import SidTable


class Row(TypedDict):
    """A prompt, and the data of its example.

    Attributes:
        prompt: Token ids.
        target: SID number of the target.
        tail: Token ids that follow the SID in a completion.
        history: Item indices, oldest first; None where the prompt is about an item, not a user.
        contexts: Codes of the request features that the prompt gives; None where it gives none.
    """

    prompt: list[int]
    target: int
    tail: list[int]
    history: list[int] | None
    contexts: list[int] | None


PromptSearch = Callable[[PreTrainedModel, Sequence[Sequence[int]]], tuple[np.ndarray, np.ndarray]]
"""Takes a model and P prompts; gives SID numbers int64 and log-probabilities float32, both (P, G), best first."""
RollOut = Callable[[PreTrainedModel, Sequence[Row]], Rollouts]


def beams(trie: Trie, generations: int) -> PromptSearch:
    """The G best SIDs of the trie by beam search, as in evaluation."""

    def search(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        return decode_prompts(model, prompts, trie, generations)

    return search


def samples(trie: Trie, generations: int, end_token: int) -> PromptSearch:
    """G SIDs drawn without replacement, with their log-probabilities in the trie.

    `end_token` follows every SID where some SIDs begin others: those have no probability of their own before it.
    """
    drawn = trie.with_tail([end_token]) if trie.mixed_ends else trie

    def search(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        def decode(positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
            found = sample_search(model, [prompts[position] for position in positions], drawn, generations)
            log_probs, order = found.scores.sort(dim=1, descending=True)
            return found.sids.gather(1, order).cpu().numpy(), log_probs.float().cpu().numpy()

        with evaluating(model):
            return decode_batches(decode, prompts, generations, fitting_batch_size(model, drawn, prompts, generations))

    return search


def roller(search: PromptSearch, table: "SidTable") -> RollOut:
    """The rollout function: prompts in, `Rollouts` out."""

    def roll_out(model: PreTrainedModel, rows: Sequence[Row]) -> Rollouts:
        sids, scores = search(model, [row["prompt"] for row in rows])
        targets = np.array([row["target"] for row in rows], dtype=np.int64)
        return Rollouts(sids, targets, scores, [row["history"] for row in rows], table)

    return roll_out
