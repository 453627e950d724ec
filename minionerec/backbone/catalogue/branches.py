"""What searches grow prefixes on, where a catalogue model has scored every SID."""

import torch

from minionerec.decoding.trie import Trie


class CatalogueBranches:
    """Prefixes behind a batch of prompts (`minionerec.decoding.branches.Branches`).

    Args:
        trie: The SIDs that the model speaks, M nodes.
        masses: float32 (B, M), log-probabilities of all nodes behind each prompt.

    Attributes:
        hidden: int64 (B, 1), the prefix that stands behind each prompt: the root.
        count: Branch tokens that have been run for each prompt.
    """

    def __init__(self, trie: Trie, masses: torch.Tensor):
        self.trie, self.masses = trie, masses
        self.hidden = torch.zeros(len(masses), 1, dtype=torch.int64, device=masses.device)
        self.count = 0
        self._nodes = self.hidden[:, :0]  # (B, slots)

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Put one more code behind each of K prefixes; see `minionerec.decoding.branches.Branches.run`.

        Returns:
            int64 (B, K, 1), the prefixes reached, 0 where there is none.
        """
        if self.count:
            before = self._nodes.gather(1, parents.clamp(min=0)).masked_fill(parents < 0, 0)
        else:
            before = torch.zeros_like(tokens)
        nodes = self.trie.find(before, tokens).clamp(min=0)
        self._nodes = torch.cat([self._nodes, nodes], 1)
        self.count += tokens.shape[1]
        return nodes.unsqueeze(-1)

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate codes; see `minionerec.decoding.branches.Branches.scores`.

        Only codes that exist have a probability, so both normalisers agree but where candidates are left out.
        """
        node = hidden.expand(tokens.shape)
        child = self.trie.find(node, tokens)
        present = present & (child >= 0)
        rows = torch.arange(len(tokens), device=tokens.device)[:, None, None]
        steps = (self.masses[rows, child.clamp(min=0)] - self.masses[rows, node]) / temperature
        steps = steps.masked_fill(~present, -torch.inf)
        if normaliser != "full" or temperature != 1:
            steps = (steps - steps.logsumexp(-1, keepdim=True)).masked_fill(~present, -torch.inf)
        return steps
