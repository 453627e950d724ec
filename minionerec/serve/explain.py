"""Explanations of a list: the tree of semantic IDs with the model's probabilities, and the effect of history items.

The probabilities of the tree are those of the search. The effect of a history item on a listed item is found by
leave-one-out: the ranker scores the listed items again without it, all histories in one batch, so scores are exact. The
effect is conditional on the rest of the history, effects do not add up, and two similar items mask each other. Counts
and vectors are the evidence that a catalogue model can use.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NotRequired, TypedDict

import numpy as np
import torch

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.decoding.branches import check_scores, check_search, evaluating, open_branches
from minionerec.models.decoding.guide import reached
from minionerec.models.decoding.trie import Trie
from minionerec.recommend.items import CatalogueItems
from minionerec.recommend.rankers.language import LanguageRanker
from minionerec.recommend.rankers.protocol import Allowed, Queries
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Recommended, Request

SOURCES = 10
"""The newest items of a history whose effect is computed."""


class Node(TypedDict):
    """A branch of the tree.

    Attributes:
        code: Code of the branch, "<a_12>"; None for the combined branches of a level that are not shown.
        probability: Probability of all SIDs at and below it, without filters and the lift of new items.
        allowed: Whether an item at or below it may be listed.
        children: Branches below it, the most probable first; empty without listed items below.
        items: Ids of the items at a leaf, the more popular first.
        titles: Titles of these items.
        branches: Number of combined branches, if `code` is None.
    """

    code: str | None
    probability: float
    allowed: bool
    children: "list[Node]"
    items: list[str]
    titles: list[str]
    branches: NotRequired[int]


class Reason(TypedDict):
    """The relation of a history item to a listed one.

    Attributes:
        kind: "history", "counts" or "vectors".
        item_id: The item of the history.
        title: Title of the item.
        change: For "history": the listed item's score with the item minus without it; for models that generate SIDs a
            difference of log-probabilities.
        probability: For "history": probability of the listed item's SID; None if scores are not probabilities.
        without: For "history": the probability without the item; None if scores are not probabilities.
        times: For "counts": number of training examples with the listed item as target and this one in the history.
        similarity: For "vectors": cosine of the two items' given vectors; absent for items without a vector.
    """

    kind: str
    item_id: str
    title: str
    change: NotRequired[float]
    probability: NotRequired[float | None]
    without: NotRequired[float | None]
    times: NotRequired[int]
    similarity: NotRequired[float]


def explain(
    recommender: Recommender, request: Request, *, branches: int = 8
) -> tuple[list[Node], dict[str, list[Reason]]]:
    """Explain the list of a request.

    Args:
        recommender: The recommender.
        request: The request.
        branches: Branches shown per prefix, in addition to those above listed items.

    Returns:
        The tree as branches of the first level of SIDs, empty if the model has no SIDs; and the id of each listed item
        → its reasons, newest item of the history first.

    Raises:
        RequestError: If the request is invalid, with the field.
        ConfigError: If `branches` is negative.

    Example:
        tree, reasons = explain(recommender, Request(["P001", "P004"], k=5))
        reasons["P017"][0]  # {"kind": "history", "item_id": "P004", "change": 1.6, …}
    """
    if branches < 0:
        raise ConfigError(f"branches is {branches}; it must be at least 0.")
    listed = recommender.answer([request])[0].items
    items, ranker = recommender.items, recommender.ranker
    query, mask, without, _ = recommender.understand(request)
    indices = [index for item in listed if (index := items.index(item.item_id)) is not None]
    sources = list(dict.fromkeys(query.histories[0][::-1].tolist()))[:SOURCES]
    reasons = _by_leaving_out(recommender, query, sources, listed, indices)
    tree: list[Node] = []
    if isinstance(ranker, LanguageRanker):
        allowed = Allowed.of_masks([mask], [without], len(items))
        open_items = None if allowed.unrestricted else allowed.row(0)
        tree = _PrefixSearch(ranker, query, indices).tree(items, open_items, branches)
        model = ranker.bundle.model
        if isinstance(model, CatalogueModel):
            counts = _counts(ranker.builder.corpus, sources, indices) if model.pairs is not None else None
            alike = _similarities(ranker, model, sources, indices) if model.texts_width else None
            _add_evidence(reasons, items, sources, indices, counts, alike)
    return tree, reasons


def _by_leaving_out(
    recommender: Recommender,
    query: Queries,
    sources: Sequence[int],
    listed: Sequence[Recommended],
    indices: Sequence[int],
) -> dict[str, list[Reason]]:
    """Changes of the scores of listed items when an item is removed from the history, all occurrences."""
    items = recommender.items
    reasons: dict[str, list[Reason]] = {item.item_id: [] for item in listed}
    if not sources or not indices:
        return reasons
    only = np.zeros(len(items), dtype=bool)
    only[indices] = True
    queries = query.without_items(sources)
    allowed = Allowed.of_masks([only] * len(queries), [()] * len(queries), len(items))
    ranking = recommender.ranker.rank(queries, len(indices), allowed)
    scores = [dict(zip(*row, strict=True)) for row in zip(ranking.items, ranking.scores, strict=True)]
    for item, index in zip(listed, indices, strict=True):
        for source, without in zip(sources, scores[1:], strict=True):
            if index not in scores[0] or index not in without:
                continue
            change = float(scores[0][index] - without[index])
            reasons[item.item_id].append(
                {
                    **_about("history", items, source),
                    "change": change,
                    "probability": item.probability,
                    "without": None
                    if item.probability is None
                    else min(1.0, item.probability * float(np.exp(-change))),
                }
            )
    return reasons


def _about(kind: str, items: CatalogueItems, source: int) -> Reason:
    return {"kind": kind, "item_id": items.ids[source], "title": items.titles[source]}


def _counts(corpus: Corpus, sources: Sequence[int], indices: Sequence[int]) -> Counter[tuple[int, int]]:
    """Counts of training examples by (target, history item), for some targets and items."""
    source_set, counts = set(sources), Counter[tuple[int, int]]()
    examples = np.flatnonzero(np.isin(corpus.train.targets, indices))
    histories, targets = corpus.train.histories, corpus.train.targets
    for example in examples.tolist():
        counts.update((int(targets[example]), item) for item in source_set.intersection(histories[example].tolist()))
    return counts


def _similarities(
    ranker: LanguageRanker, model: CatalogueModel, sources: Sequence[int], indices: Sequence[int]
) -> np.ndarray:
    """Cosines of given vectors: float (listed items, items of the history), NaN for items without a vector."""
    numbers = ranker.table.sid_numbers
    texts = model.text[:, : model.texts_width]
    one, other = (texts[torch.from_numpy(numbers[list(group)])].float() for group in (indices, sources))
    normal = torch.nn.functional.normalize
    cosines = normal(one, dim=1) @ normal(other, dim=1).T
    present = one.any(dim=1)[:, None] & other.any(dim=1)
    similarities: np.ndarray = cosines.masked_fill(~present, torch.nan).cpu().numpy()
    return similarities


def _add_evidence(
    reasons: dict[str, list[Reason]],
    items: CatalogueItems,
    sources: Sequence[int],
    indices: Sequence[int],
    counts: Counter[tuple[int, int]] | None,
    alike: np.ndarray | None,
) -> None:
    """Append counts and similarities to the reasons of each listed item."""
    for row, index in enumerate(indices):
        item_reasons = reasons[items.ids[index]]
        for column, source in enumerate(sources):
            if counts is not None:
                item_reasons.append({**_about("counts", items, source), "times": counts[index, source]})
            if alike is not None and not np.isnan(alike[row, column]):
                item_reasons.append({**_about("vectors", items, source), "similarity": float(alike[row, column])})


class _PrefixSearch:
    """Search of the prefixes of given items, with the probabilities of all their children.

    Args:
        ranker: The checkpoint.
        query: A single query.
        indices: Item indices.

    Attributes:
        expanded: Prefix → its children and their log-probabilities.
        above: Nodes of the items' SIDs and of their prefixes.
    """

    def __init__(self, ranker: LanguageRanker, query: Queries, indices: Sequence[int]):
        self.ranker = ranker
        self.expanded: dict[int, tuple[list[int], list[float]]] = {}
        model, (_, prompts, _) = ranker.bundle.model, ranker.prompts(query)
        self.trie = trie = check_search(model, prompts, ranker.trie)
        levels = _prefixes(trie, ranker.table.sid_numbers[list(indices)].tolist())
        self.above = set().union(*levels)
        with torch.no_grad(), evaluating(model):
            opened = open_branches(ranker.model_after(query, prompts), prompts, trie)
            hidden, nodes = opened.hidden.unsqueeze(1), [0]
            running = torch.zeros(1, 1, device=model.device)
            for depth in range(trie.levels):
                at = torch.tensor([nodes], device=model.device)
                children, present = trie.children(at)  # (1, K, W)
                tokens = trie.tokens(children, depth + 1)
                steps = opened.scores(hidden, tokens, present, ranker.search.scores)
                check_scores(steps)
                totals = running.unsqueeze(-1) + steps
                for index, node in enumerate(nodes):
                    exists = present[0, index]
                    self.expanded[node] = children[0, index][exists].tolist(), totals[0, index][exists].tolist()
                next_nodes = [
                    node for node in sorted(levels[depth]) if trie.first_child[node + 1] > trie.first_child[node]
                ]
                if depth + 1 == trie.levels or not next_nodes:
                    return
                parents = [nodes.index(int(trie.parent[node])) for node in next_nodes]
                offsets = [
                    node - int(trie.first_child[nodes[index]]) for node, index in zip(next_nodes, parents, strict=True)
                ]
                running = totals[:, parents, offsets]
                slots = torch.tensor([parents], device=model.device) + opened.count - len(nodes)
                slots = torch.full_like(slots, -1) if depth == 0 else slots
                nodes = next_nodes
                here = torch.tensor([nodes], device=model.device)
                hidden = opened.run(trie.tokens(here, depth + 1), slots, depth)

    def tree(self, items: CatalogueItems, allowed: np.ndarray | None, branches: int) -> list[Node]:
        """The branches of the first level, with `branches` others in addition to those above listed items.

        `allowed` are the items that may be listed, bool (N,); all if None.
        """
        open_nodes = None
        if allowed is not None:
            sids = torch.zeros(1, self.trie.n_sids, dtype=torch.bool, device=self.trie.code.device)
            sids[0, torch.from_numpy(self.ranker.table.sid_numbers[allowed])] = True
            open_nodes = reached(self.trie, sids)[0]
        return self._level(0, 0, items, open_nodes, branches)

    def _level(
        self, prefix: int, depth: int, items: CatalogueItems, open_nodes: torch.Tensor | None, branches: int
    ) -> list[Node]:
        """The children of a prefix, the most probable first, and those that are not shown."""
        ranked = sorted(zip(*self.expanded[prefix], strict=True), key=lambda child: (-child[1], child[0]))
        others = [node for node, _ in ranked if node not in self.above]
        hidden = set(others[branches:])
        nodes = [
            self._node(node, depth, float(np.exp(value)), items, open_nodes, branches)
            for node, value in ranked
            if node not in hidden
        ]
        if hidden:
            values = [value for node, value in ranked if node in hidden]
            may = open_nodes is None or bool(open_nodes[list(hidden)].any())
            together: Node = {
                "code": None,
                "probability": float(np.exp(values).sum()),
                "allowed": may,
                "children": [],
                "items": [],
                "titles": [],
                "branches": len(hidden),
            }
            nodes.append(together)
        return nodes

    def _node(
        self,
        node: int,
        depth: int,
        probability: float,
        items: CatalogueItems,
        open_nodes: torch.Tensor | None,
        branches: int,
    ) -> Node:
        sid = int(self.trie.sid[node])
        items_here = self.ranker.items_of[sid] if sid >= 0 else []
        return {
            "code": self.ranker.token_text(self.trie, node),
            "probability": probability,
            "allowed": open_nodes is None or bool(open_nodes[node]),
            "children": self._level(node, depth + 1, items, open_nodes, branches) if node in self.expanded else [],
            "items": [items.ids[item] for item in items_here],
            "titles": [items.titles[item] for item in items_here],
        }


def _prefixes(trie: Trie, sids: Sequence[int]) -> list[set[int]]:
    """Nodes at and above the ends of some SIDs, level by level, the root left out."""
    levels: list[set[int]] = [set() for _ in range(trie.levels)]
    for sid in sids:
        node = int(trie.node_of_sid[sid])
        while node:
            levels[int(trie.depth[node]) - 1].add(node)
            node = int(trie.parent[node])
    return levels
