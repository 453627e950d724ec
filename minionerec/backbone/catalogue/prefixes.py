"""What a text of tokens says in SIDs, and which prefix it has reached."""

from collections.abc import Sequence

import torch

from minionerec.decoding.trie import Trie


def read_tokens(trie: Trie, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Read tokens from the left; those that are no codes are passed over.

    Args:
        trie: SIDs of the catalogue.
        ids: int64 (B, T), token ids.
        mask: bool (B, T), False at padding.

    Returns:
        The SID that is complete at each token (-1 for none), and the prefix reached with it; both int64 (B, T).
    """
    tokens = ids.masked_fill(~mask, -1)
    sids, nodes = torch.full_like(ids, -1), torch.zeros_like(ids)
    # The prefix that began `depth` tokens before: one ends where the next token is none of its children, for another
    # can begin there but not go on.
    reached = torch.zeros_like(ids)
    for depth in range(min(trie.levels, ids.shape[1])):
        reached = trie.find(reached[:, : ids.shape[1] - depth].clamp(min=0), tokens[:, depth:]).where(
            (reached >= 0)[:, : ids.shape[1] - depth], -1
        )
        complete = torch.where(reached >= 0, trie.sid[reached.clamp(min=0)].long(), -1)
        sids[:, depth:] = torch.where(complete >= 0, complete, sids[:, depth:])
        reached = reached.masked_fill(complete >= 0, -1)
        nodes[:, depth:] = torch.where(reached >= 0, reached, nodes[:, depth:])
    return sids, nodes


def newest_items(sids: torch.Tensor, count: int) -> torch.Tensor:
    """The newest SIDs of rows with gaps.

    Args:
        sids: int64 (B, T), SID numbers, -1 in gaps.
        count: Most SIDs of a row.

    Returns:
        int64 (B, H), numbers from 1, 0 behind the end.
    """
    order = (sids < 0).long().argsort(dim=1, stable=True)
    kept = (sids.gather(1, order) + 1)[:, : max(1, int((sids >= 0).sum(1).max()))]
    lengths, width = (kept > 0).sum(1, keepdim=True), min(kept.shape[1], count)
    places = torch.arange(width, device=sids.device) + (lengths - width).clamp(min=0)
    return kept.gather(1, places)


def told_moments(ids: torch.Tensor, mask: torch.Tensor, sids: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """What texts say, up to each token, of the moment of the next item: the newest word on it since the newest SID.

    Args:
        ids: int64 (B, T), token ids.
        mask: bool (B, T), False at padding.
        sids: int64 (B, T), see `read_tokens`.
        tokens: Token ids of the moments that are no unknown ones, in the order of `minionerec.data.moments.MOMENTS`.

    Returns:
        int64 (B, T), places in `minionerec.data.moments.MOMENTS`.
    """
    said = torch.zeros_like(ids)
    for moment, token in enumerate(tokens, start=1):
        said = said.masked_fill((ids == token) & mask, moment)
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    newest = torch.where((said > 0) | (sids >= 0), place, -1).cummax(1).values
    return torch.where(newest >= 0, said.gather(1, newest.clamp(min=0)), 0)
