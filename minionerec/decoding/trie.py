"""The trie of a catalogue's SIDs as flat arrays; the children of a batch of nodes are found by gathers."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from minionerec.core.errors import DataError


@dataclass(frozen=True)
class Trie:
    """All SIDs of a catalogue; node 0 is the root, nodes are numbered level by level, siblings side by side.

    Attributes:
        first_child: int64 (M + 1,); the children of node n are the nodes first_child[n] to first_child[n + 1] - 1.
        code: int32 (M,), code of each node, local to its level; -1 at the root.
        token: int64 (M,), vocabulary id of each node; -1 at the root.
        depth: int16 (M,), level of each node counted from 1; 0 at the root.
        sid: int64 (M,), number of the SID that ends at the node, -1 where none does.
        n_sids: Number of distinct SIDs.
        levels: Most codes that an SID has, L.
    """

    first_child: torch.Tensor
    code: torch.Tensor
    token: torch.Tensor
    depth: torch.Tensor
    sid: torch.Tensor
    n_sids: int
    levels: int

    @classmethod
    def build(cls, codes: np.ndarray, token_ids: np.ndarray) -> "Trie":
        """Build the trie of a code table.

        Args:
            codes: int (N, L), one row an item, -1 filling the end of shorter SIDs; rows may repeat.
            token_ids: int64 (L, C), vocabulary id of each code (`minionerec.backbone.vocabulary.code_token_ids`).

        Returns:
            The trie. Distinct SIDs are numbered in lexicographic order of their codes, as `numpy.unique` does.

        Raises:
            DataError: If there is no SID, or a code has no vocabulary id.
        """
        codes = np.asarray(codes)
        if codes.ndim != 2 or 0 in codes.shape:
            raise DataError(f"cannot build a trie over codes of shape {codes.shape}; it needs at least one SID.")
        unique = np.unique(codes, axis=0)
        n, levels = unique.shape
        node_of = np.zeros(n, dtype=np.int64)
        parents: list[np.ndarray] = []
        code, token, depth = [np.array([-1])], [np.array([-1])], [np.array([0])]
        sid_nodes, total = np.full(n, -1, dtype=np.int64), 1
        for level in range(levels):
            alive = unique[:, level] >= 0
            rows = np.flatnonzero(alive)
            if len(rows) == 0:
                break
            changed = np.ones(len(rows), dtype=bool)
            changed[1:] = (node_of[rows[1:]] != node_of[rows[:-1]]) | (
                unique[rows[1:], level] != unique[rows[:-1], level]
            )
            heads = rows[changed]
            parents.append(node_of[heads])
            new = total + np.cumsum(changed) - 1
            level_codes = unique[heads, level]
            tokens = token_ids[level, level_codes] if level < len(token_ids) else np.full(len(heads), -1)
            if (tokens < 0).any():
                raise DataError(
                    f"code {level_codes[tokens < 0][0]} of level {level + 1} has no token in the vocabulary."
                )
            code.append(level_codes)
            token.append(tokens)
            depth.append(np.full(len(heads), level + 1))
            node_of[rows] = new
            total += len(heads)
            ends = rows if level + 1 == levels else rows[unique[rows, level + 1] < 0]
            sid_nodes[ends] = node_of[ends]
        # Nodes are numbered level by level in order of their parents, so all parents in a row are sorted.
        first_child = 1 + np.searchsorted(np.concatenate(parents), np.arange(total + 1))
        sid = np.full(total, -1, dtype=np.int64)
        sid[sid_nodes] = np.arange(n)
        return cls(
            first_child=torch.from_numpy(first_child),
            code=torch.from_numpy(np.concatenate(code).astype(np.int32)),
            token=torch.from_numpy(np.concatenate(token).astype(np.int64)),
            depth=torch.from_numpy(np.concatenate(depth).astype(np.int16)),
            sid=torch.from_numpy(sid),
            n_sids=n,
            levels=levels,
        )

    def to(self, device: torch.device | str) -> "Trie":
        """The same trie on a device."""
        names = ("first_child", "code", "token", "depth", "sid")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def children(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Children of a batch of nodes.

        Args:
            nodes: int64 (...), node numbers; -1 stands for no node.

        Returns:
            Node numbers int64 (..., W) and which of them exist, bool (..., W); W is the largest number of children
            in the batch, at least 1. Places without a child hold 0.
        """
        safe = nodes.clamp(min=0)
        first = self.first_child[safe]
        count = torch.where(nodes >= 0, self.first_child[safe + 1] - first, 0)
        width = max(1, int(count.max())) if count.numel() else 1
        offsets = torch.arange(width, device=nodes.device)
        present = offsets < count.unsqueeze(-1)
        return torch.where(present, first.unsqueeze(-1) + offsets, 0), present
