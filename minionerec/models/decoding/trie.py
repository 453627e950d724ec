"""The trie of a catalogue's SIDs as flat arrays; the children of a batch of nodes are found by gathers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from minionerec.core.errors import ConfigError, DataError


@dataclass(frozen=True)
class Trie:
    """Trie of all SIDs of a catalogue; nodes are numbered level by level from the root, siblings consecutively.

    A node takes twelve bytes: ten million items of three levels take about 120 MB.

    Attributes:
        first_child: int32 (M + 1,); the children of node n are the nodes first_child[n] to first_child[n + 1] - 1.
        code: int32 (M,), code of each node, local to its level; -1 at the root.
        sid: int32 (M,), number of the SID that ends at the node, -1 for none.
        code_tokens: int64 (L, C), vocabulary id of each code of each level, -1 for none.
        level_start: L + 2 numbers: the nodes of depth d are level_start[d] to level_start[d + 1] - 1.
        n_sids: Number of distinct SIDs.
        levels: Number of codes of the longest SID, L.
    """

    first_child: torch.Tensor
    code: torch.Tensor
    sid: torch.Tensor
    code_tokens: torch.Tensor
    level_start: tuple[int, ...]
    n_sids: int
    levels: int

    @classmethod
    def build(cls, codes: np.ndarray, token_ids: np.ndarray) -> "Trie":
        """Build the trie of a code table.

        Args:
            codes: int (N, L), one row an item, -1 filling the end of shorter SIDs; rows may repeat.
            token_ids: int64 (L, C), vocabulary id of each code
                (`minionerec.models.backbone.vocabulary.code_token_ids`).

        Returns:
            The trie. Distinct SIDs are numbered in lexicographic order of their codes, as `numpy.unique` does.

        Raises:
            DataError: If there is no SID, a row has a gap, or a code has no vocabulary id.

        Example:
            >>> trie = Trie.build(np.array([[0, 1], [2, 0], [0, 1]]), np.array([[5, 6, 7], [8, 9, 10]]))
            >>> trie.n_sids, trie.children(torch.tensor([0]))[0].tolist(), trie.token.tolist()
            (2, [[1, 2]], [-1, 5, 7, 9, 8])
        """
        codes, token_ids = np.asarray(codes), np.asarray(token_ids)
        if codes.ndim != 2 or 0 in codes.shape:
            raise DataError(f"cannot build a trie over codes of shape {codes.shape}; it needs at least one SID.")
        columns = _sorted_distinct(codes)
        n, levels = len(columns[0]), len(columns)
        code_tokens = np.full((levels, token_ids.shape[1]), -1, dtype=np.int64)
        code_tokens[: len(token_ids)] = token_ids[:levels]
        deepest = np.zeros(n, dtype=np.int32)  # deepest node so far on each SID's path
        changed = np.zeros(n, dtype=bool)  # whether an SID's path so far differs from that of the preceding SID
        changed[0] = True
        level_codes, child_counts, level_start = [np.array([-1], np.int32)], [], [0, 1]
        for level, column in enumerate(columns):
            changed[1:] |= column[1:] != column[:-1]
            alive = column >= 0
            fresh = changed & alive  # the first SID of each node of this level
            _check_tokens(column[fresh], code_tokens[level], level)
            level_codes.append(column[fresh])
            parents = deepest[fresh] - level_start[-2]
            child_counts.append(np.bincount(parents, minlength=level_start[-1] - level_start[-2]))
            numbers = np.cumsum(fresh, dtype=np.int32)
            level_start.append(level_start[-1] + int(numbers[-1]))
            numbers += level_start[-2] - 1
            np.copyto(deepest, numbers, where=alive)
        total, inner = level_start[-1], level_start[-2]
        first_child = np.full(total + 1, total, dtype=np.int32)
        first_child[0] = 1
        np.cumsum(np.concatenate(child_counts), out=first_child[1 : inner + 1])
        first_child[1 : inner + 1] += 1
        sid = np.full(total, -1, dtype=np.int32)
        sid[deepest] = np.arange(n, dtype=np.int32)
        return cls(
            first_child=torch.from_numpy(first_child),
            code=torch.from_numpy(np.concatenate(level_codes)),
            sid=torch.from_numpy(sid),
            code_tokens=torch.from_numpy(code_tokens),
            level_start=tuple(level_start),
            n_sids=n,
            levels=levels,
        )

    @cached_property
    def depth(self) -> torch.Tensor:
        """Level of each node counted from 1, 0 at the root: int16 (M,)."""
        counts = torch.tensor(self.level_start).diff()
        return torch.arange(self.levels + 1, dtype=torch.int16).repeat_interleave(counts).to(self.code.device)

    @cached_property
    def token(self) -> torch.Tensor:
        """Vocabulary id of each node, -1 at the root: int64 (M,)."""
        levels = [torch.arange(a, b, device=self.code.device) for a, b in pairwise(self.level_start[1:])]
        return torch.cat([self.code[:1].long(), *(self.tokens(nodes, depth) for depth, nodes in enumerate(levels, 1))])

    @cached_property
    def max_token(self) -> int:
        """Largest vocabulary id in the trie."""
        return int(self.code_tokens.max())

    @cached_property
    def widths(self) -> list[int]:
        """Maximum number of children of a node of each depth, at least 1: L + 1 numbers, from the root."""
        counts = self.first_child.diff().split(np.diff(self.level_start).tolist())
        return torch.stack([level_counts.max() for level_counts in counts]).clamp(min=1).tolist()

    @cached_property
    def even(self) -> bool:
        """Whether all SIDs have L codes."""
        return bool((self.sid[: self.level_start[self.levels]] < 0).all())

    @cached_property
    def mixed_ends(self) -> bool:
        """Whether an SID is a prefix of another one."""
        return bool(((self.sid >= 0) & (self.first_child[1:] > self.first_child[:-1])).any())

    def check_vocabulary(self, size: int) -> None:
        """Check that a vocabulary of `size` tokens has one for every code; a `ConfigError` if it does not."""
        if self.max_token >= size:
            raise ConfigError(
                f"the trie has token {self.max_token}, but the model has {size} tokens (0 to {size - 1}): they "
                "belong to different vocabularies. Build the trie with the tokenizer of the model's own checkpoint."
            )

    def to(self, device: torch.device | str) -> "Trie":
        """The same trie on a device; copies are cached."""
        if self.code.device == torch.device(device):
            return self
        if str(device) not in self._copies:
            self._copies[str(device)] = replace(
                self,
                first_child=self.first_child.to(device),
                code=self.code.to(device),
                sid=self.sid.to(device),
                code_tokens=self.code_tokens.to(device),
            )
        return self._copies[str(device)]

    @cached_property
    def _copies(self) -> dict[str, "Trie"]:
        """Copies on other devices."""
        return {}

    def children(self, nodes: torch.Tensor, width: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Children of a batch of nodes.

        Args:
            nodes: int64 (...), node numbers; -1 for none.
            width: W, at least the largest number of children in the batch. If 0, that number is computed, which needs
                a GPU sync.

        Returns:
            Node numbers, int64 (..., W), 0 for entries without a child; and bool (..., W), False for these entries.
        """
        safe = nodes.clamp(min=0)
        first = self.first_child[safe]
        count = (self.first_child[safe + 1] - first).masked_fill(nodes < 0, 0)
        width = width or (max(1, int(count.max())) if count.numel() else 1)
        offsets = torch.arange(width, device=nodes.device)
        present = offsets < count.unsqueeze(-1)
        return (first.unsqueeze(-1) + offsets).masked_fill(~present, 0), present

    def tokens(self, nodes: torch.Tensor, depth: int | None = None) -> torch.Tensor:
        """Vocabulary ids of nodes.

        Args:
            nodes: int64 (...), node numbers, none negative.
            depth: Depth of all nodes, except for the root as a filler; looked up for each node if None.

        Returns:
            int64 (...); an arbitrary id for the root if `depth` is given, else -1.
        """
        code = self.code[nodes].long()
        if depth is not None:
            return self.code_tokens[depth - 1][code].clamp(min=0)
        bounds = torch.tensor(self.level_start[1:], device=nodes.device)
        level = torch.bucketize(nodes, bounds, right=True) - 1
        return self.code_tokens[level.clamp(min=0), code].masked_fill(level < 0, -1)

    @cached_property
    def parent(self) -> torch.Tensor:
        """Parent of each node, that of the root being the root: int64 (M,)."""
        nodes = torch.arange(len(self.code), device=self.code.device)
        return torch.cat([nodes[:1], nodes.repeat_interleave(self.first_child.diff().long())])

    @cached_property
    def node_of_sid(self) -> torch.Tensor:
        """The node at which each SID ends: int64 (n_sids,)."""
        nodes = (self.sid >= 0).nonzero()[:, 0]
        return torch.empty_like(nodes).index_copy_(0, self.sid[nodes].long(), nodes)

    @cached_property
    def paths(self) -> torch.Tensor:
        """Nodes from the root to the end of each SID: int64 (n_sids, L + 1), -1 after the end of shorter ones."""
        node, sids = self.node_of_sid, torch.arange(self.n_sids, device=self.code.device)
        paths = torch.full((self.n_sids, self.levels + 1), -1, device=self.code.device)
        for _ in range(self.levels + 1):
            paths[sids, self.depth[node].long()] = node
            node = self.parent[node]
        return paths

    @cached_property
    def below(self) -> torch.Tensor:
        """Number of codes between each node and the deepest leaf below it: int64 (M,)."""
        depths = torch.zeros(len(self.code), dtype=torch.long, device=self.code.device)
        for begin, end in reversed(list(pairwise(self.level_start[1:]))):
            depths.scatter_reduce_(0, self.parent[begin:end], depths[begin:end] + 1, "amax")
        return depths

    @cached_property
    def single(self) -> torch.Tensor:
        """Whether exactly one SID ends at or below a node, so that all further codes are forced: bool (M,)."""
        ends = (self.sid >= 0).long()
        for begin, end in reversed(list(pairwise(self.level_start[1:]))):
            ends.index_add_(0, self.parent[begin:end], ends[begin:end].clone())
        return ends == 1

    @cached_property
    def _edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sorted keys of parent and token of each node, and the nodes in that order; int64 (M - 1,)."""
        keys, order = (self.parent[1:] * (self.max_token + 1) + self.token[1:]).sort()
        return keys, order + 1

    def find(self, nodes: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The child that a token leads to.

        Args:
            nodes: int64 (...), node numbers, none negative.
            tokens: int64 (...), vocabulary ids, any number.

        Returns:
            int64 (...), -1 if the node has no such child.

        Example:
            >>> trie = Trie.build(np.array([[0, 1], [2, 0]]), np.array([[5, 6, 7], [8, 9, 10]]))
            >>> trie.find(torch.tensor([0, 0, 1, 1]), torch.tensor([7, 8, 9, -1])).tolist()
            [2, -1, 3, -1]
        """
        keys, order = self._edges
        in_range = (tokens >= 0) & (tokens <= self.max_token)
        queries = nodes * (self.max_token + 1) + tokens
        position = torch.searchsorted(keys, queries).clamp(max=len(keys) - 1)
        return torch.where(in_range & (keys[position] == queries), order[position], -1)

    def codes(self) -> np.ndarray:
        """Codes of every SID: int32 (n_sids, L), -1 filling the end of shorter ones, in the order of SID numbers."""
        parent, code = self.parent.cpu().numpy(), self.code.cpu().numpy()
        node = self.node_of_sid.cpu().numpy()
        codes = np.full((self.n_sids, self.levels), -1, dtype=np.int32)
        for level in reversed(range(self.levels)):
            here = node >= self.level_start[level + 1]  # as deep as this level
            codes[here, level] = code[node[here]]
            node = np.where(here, parent[node], node)
        return codes

    def with_tail(self, tail: Sequence[int]) -> "Trie":
        """The trie of the same SIDs, each followed by fixed tokens (a newline, an end token).

        Decoding over it also scores those tokens, as stock `generate` does if a completion continues after the SID.
        SIDs keep their numbers; codes are increased by `len(tail)`.
        """
        if not tail:
            return self
        size, codes = len(tail), self.codes()
        longer = np.full((len(codes), self.levels + size), -1, dtype=np.int32)
        longer[:, : self.levels] = np.where(codes >= 0, codes + size, -1)
        lengths = (codes >= 0).sum(1)
        for position in range(size):
            longer[np.arange(len(codes)), lengths + position] = position
        code_tokens = self.code_tokens.cpu().numpy()
        token_ids = np.full((self.levels + size, code_tokens.shape[1] + size), -1, dtype=np.int64)
        token_ids[:, :size] = np.asarray(tail)
        token_ids[: self.levels, size:] = code_tokens
        return Trie.build(longer, token_ids).to(self.code.device)


def _check_tokens(codes: np.ndarray, tokens: np.ndarray, level: int) -> None:
    """Raise an error if a code of a level has no vocabulary id."""
    known = np.zeros(max(len(tokens), int(codes.max()) + 1), dtype=bool)
    known[: len(tokens)] = tokens >= 0
    missing = ~known[codes]
    if missing.any():
        raise DataError(f"code {codes[missing][0]} of level {level + 1} has no token in the vocabulary.")


def _sorted_distinct(codes: np.ndarray) -> list[np.ndarray]:
    """The distinct rows in lexicographic order, as one int32 array per level, without empty levels.

    Rows are packed into as few 63-bit words as possible, which are sorted.
    """
    levels = codes.shape[1]
    if codes.min() < 0:
        codes = np.maximum(codes, -1)
        gap = codes[:, 0] < 0
        for level in range(1, levels):
            gap |= (codes[:, level] >= 0) & (codes[:, level - 1] < 0)
        if gap.any():
            row = int(np.flatnonzero(gap)[0])
            raise DataError(f"row {row} of the codes is {codes[row].tolist()}: a level is missing.")
    highest = codes.max(0)
    while highest[levels - 1] < 0:
        levels -= 1
    words: list[np.ndarray] = []
    members: list[list[int]] = []  # levels in each word
    room = 0
    for level in range(levels):
        radix = int(highest[level]) + 2
        if room < radix:
            words.append(np.zeros(len(codes), dtype=np.int64))
            members.append([])
            room = 2**63 - 1
        words[-1] *= radix
        words[-1] += codes[:, level]
        words[-1] += 1
        members[-1].append(level)
        room //= radix
    if len(words) == 1:
        words[0].sort()
    else:
        order = np.lexsort(words[::-1])
        words = [word[order] for word in words]
    keep = np.zeros(len(codes), dtype=bool)
    keep[0] = True
    for word in words:
        keep[1:] |= word[1:] != word[:-1]
    columns: dict[int, np.ndarray] = {}
    while words:
        word, inside = words.pop()[keep], members.pop()
        for level in reversed(inside):
            radix = int(highest[level]) + 2
            rest = word // radix
            columns[level] = (word - rest * radix - 1).astype(np.int32)
            word = rest
    return [columns[level] for level in range(levels)]
