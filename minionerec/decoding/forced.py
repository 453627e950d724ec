r"""Deep tries: what is forced is run at once, and nothing of it stays.

The trie of a catalogue's titles has dozens of levels, but a title stands alone after a few of them: from there on every
token is forced. Level by level such a tail would take one pass a token, and fill the cache with tokens that nobody else
ever sees. Here all forced tokens behind a prefix are run in one pass, packed behind their prompt, when the first of
their scores is asked for; the searches then get them level by level, so that prefixes compete as they would have done
anyway. Under renormalised scores a forced token scores 0 whatever the model says, and is never run.

    level      1    2    3    4    5           pass 1: a, x    pass 2: b, c    pass 3: d and e f together
               a -> b -> d -> e -> f           (e f are forced behind d, as d is behind nobody else)
                 \> c -> ...                   what stays in the cache: a, x, b, c, ...
"""

import torch

from minionerec.decoding.causal import CausalBranches
from minionerec.decoding.trie import Trie

# Tokens are copied to leave others out once no more than this share of them is of use.
_WORTH_KEEPING = 0.8


class ForcedBranches:
    """Prefixes behind a batch of prompts (`minionerec.decoding.branches.Branches`) in a deep trie.

    Args:
        inner: Branches of a causal language model, none run yet.
        trie: What is searched, on the model's device; tokens that lead out of it are never run.

    Attributes:
        hidden: int64 (B, 1), the slot of each prompt: -1.
        count: Branch tokens that have been asked for behind each prompt.
    """

    def __init__(self, inner: CausalBranches, trie: Trie):
        self.inner, self.trie = inner, trie
        self.hidden = torch.full((len(inner.hidden), 1), -1, dtype=torch.long, device=inner.hidden.device)
        self.count = 0
        # Of each slot: its node (-1 outside of the trie) and depth; the slot that its forced tokens begin with (its own
        # where it is not forced); the inner slot of the token before it; and, where they have been run, its own inner
        # slot and the place of its state.
        names = ("node", "depth", "begin", "parent", "inner", "place")
        self._slots = dict.fromkeys(names, self.hidden[:, :0])
        self._states = inner.hidden.unsqueeze(1)  # (B, T, D); the first is the prompt's
        self._live = self.hidden[:, :0].bool()  # (B, inner slots), those that hold a token

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Put one more token behind each of K branches; see `minionerec.decoding.branches.Branches.run`.

        Returns:
            int64 (B, K, 1), the slots themselves: the model is run when their scores are asked for.
        """
        slots = torch.arange(self.count, self.count + tokens.shape[1], device=tokens.device).expand_as(tokens)
        before = self._of("node", parents, 0)
        node = self.trie.find(before.clamp(min=0), tokens).masked_fill(before < 0, -1)
        forced = (parents >= 0) & (node >= 0) & self.trie.single[before.clamp(min=0)]
        new = {
            "node": node,
            "depth": torch.as_tensor(depth, device=tokens.device).expand_as(tokens),
            "begin": torch.where(forced, self._of("begin", parents, -1), slots),
            "parent": self._of("inner", parents, -1),
            "inner": torch.full_like(tokens, -1),
            "place": torch.full_like(tokens, -1),
        }
        self._slots = {name: torch.cat([values, new[name]], 1) for name, values in self._slots.items()}
        self.count += tokens.shape[1]
        return slots.unsqueeze(-1)

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens; see `minionerec.decoding.branches.Branches.scores`."""
        slots = hidden[..., 0]
        begin = self._of("begin", slots, -1)
        self._run_model(begin, normaliser == "full")
        place = self._of("place", begin, 0)
        further = self._of("depth", slots, 0) - self._of("depth", begin, 0)
        place = torch.where(place < 0, 0, place + further)  # what was not run needs no state: its one token scores 0
        index = place.unsqueeze(-1).expand(-1, -1, self._states.shape[-1])
        return self.inner.scores(self._states.gather(1, index), tokens, present, normaliser, temperature)

    def _of(self, name: str, slots: torch.Tensor, otherwise: int) -> torch.Tensor:
        """A column of the slots, int64 (B, K); something else for the prompt."""
        if not self.count:
            return torch.full_like(slots, otherwise)
        return self._slots[name].gather(1, slots.clamp(min=0)).masked_fill(slots < 0, otherwise)

    def _run_model(self, begin: torch.Tensor, forced_too: bool) -> None:
        """Run what has not been run yet of some slots: int64 (B, K), each with what is forced behind it."""
        node = self._of("node", begin, -1)
        single = self.trie.single[node.clamp(min=0)] & (node >= 0)
        wanted = (begin >= 0) & (node >= 0) & (self._of("place", begin, 0) < 0)
        if not forced_too:
            wanted &= ~single
        if not wanted.any():
            return
        counts = torch.where(single, self.trie.below[node.clamp(min=0)].clamp(min=1), 1).masked_fill(~wanted, 0)
        longest = int(counts.max())
        path = [node.clamp(min=0)]
        for _ in range(longest - 1):
            path.append(self.trie.first_child[path[-1]].long().clamp(max=len(self.trie.code) - 1))
        exist = (torch.arange(longest, device=node.device) < counts.unsqueeze(-1)).flatten(1)
        order = (~exist).byte().argsort(dim=1, stable=True)[:, : int(exist.sum(1).max())]  # (B, T)
        exist, branch, step = exist.gather(1, order), order // longest, order % longest
        slots = begin.gather(1, branch)
        sees = (branch.unsqueeze(2) == branch.unsqueeze(1)) & (step.unsqueeze(2) >= step.unsqueeze(1))
        states = self.inner.run(
            self.trie.tokens(torch.stack(path, -1).flatten(1).gather(1, order)).clamp(min=0),
            self._of("parent", slots, -1),
            self._of("depth", slots, 0) + step,
            sees & exist.unsqueeze(1) | torch.eye(order.shape[1], dtype=torch.bool, device=node.device),
        )
        row, place = (exist & (step == 0)).nonzero(as_tuple=True)
        self._slots["place"][row, slots[row, place]] = place + self._states.shape[1]
        self._slots["inner"][row, slots[row, place]] = place + self._live.shape[1]
        self._states = torch.cat([self._states, states], 1)
        self._live = torch.cat([self._live, exist & ~single.gather(1, branch)], 1)
        if int(self._live.sum(1).max()) < _WORTH_KEEPING * self.inner.count:
            self._compact()

    def _compact(self) -> None:
        """Leave what was forced, and padding, out of what later tokens look at."""
        numbers = torch.nn.functional.pad(self.inner.compact(self._live), (0, 1), value=-1)
        self._live = torch.arange(self.inner.count, device=numbers.device) < self._live.sum(1, keepdim=True)
        for name in ("inner", "parent"):
            self._slots[name] = numbers.gather(1, self._slots[name] % numbers.shape[1])
