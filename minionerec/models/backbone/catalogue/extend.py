"""Extending a catalogue model to a larger catalogue: learned weights stay, new SIDs get initial values."""

import copy

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array

from minionerec.core.errors import ConfigError
from minionerec.models.backbone.catalogue.model import CatalogueModel, build_catalogue
from minionerec.models.nn.experts import NO_SALE, Experts, ItemLikeness, item_features


def indices_among(known: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Index of each of M rows of codes in a table of N distinct ones: int64 (M,), -1 for rows that it lacks.

    Example:
        >>> indices_among(np.array([[0, 1], [2, 0]]), np.array([[2, 0], [2, 1]])).tolist()
        [1, -1]
    """
    number = np.unique(np.concatenate([known, queries]), axis=0, return_inverse=True)[1].reshape(-1)
    position = np.full(int(number.max()) + 1, -1, dtype=np.int64)
    position[number[: len(known)]] = np.arange(len(known))
    return position[number[len(known) :]]


def grown_rows(values: torch.Tensor, known: np.ndarray, queries: np.ndarray) -> torch.Tensor:
    """Extend values of rows of codes to more rows.

    Args:
        values: float (N, ...), value of each known row.
        known: int (N, k), distinct rows of codes.
        queries: int (M, k), rows of the result.

    Returns:
        float (M, ...); values of known rows are copied, those of new rows are the mean over the known rows that share
        the longest prefix (over all, if none shares the first code).
    """
    position = indices_among(known, queries)
    grown = values.new_zeros(len(queries), *values.shape[1:])
    waiting = np.flatnonzero(position < 0)
    for depth in reversed(range(known.shape[1])):
        if not len(waiting):
            break
        prefixes = np.concatenate([known, queries[waiting]])[:, :depth]
        group = (
            np.unique(prefixes, axis=0, return_inverse=True)[1].reshape(-1)
            if depth
            else np.zeros(len(prefixes), np.int64)
        )
        known_groups, query_groups = torch.from_numpy(group[: len(known)]), torch.from_numpy(group[len(known) :])
        sums = values.new_zeros(int(group.max()) + 1, *values.shape[1:]).index_add(0, known_groups, values)
        sizes = torch.bincount(known_groups, minlength=len(sums))
        has_relatives = sizes[query_groups] > 0
        chosen = query_groups[has_relatives]
        shape = (-1, *[1] * (values.dim() - 1))
        grown[torch.from_numpy(waiting)[has_relatives]] = sums[chosen] / sizes[chosen].view(shape)
        waiting = waiting[~has_relatives.numpy()]
    is_known = position >= 0
    grown[torch.from_numpy(is_known)] = values[torch.from_numpy(position[is_known])]
    return grown


def check_lengths(model: CatalogueModel, codes: np.ndarray) -> None:
    """Check that SIDs, int (N, L), are as long as those of a model.

    Raises:
        ConfigError: If one has another length.
    """
    lengths = (codes >= 0).sum(1)
    if (lengths != model.config.levels).any():
        other = int(lengths[lengths != model.config.levels][0])
        raise ConfigError(
            f"the catalogue model has SIDs of {model.config.levels} codes, but one of the new table has {other}. "
            "Append with collisions relocate or keep."
        )


@torch.no_grad()
def extended_catalogue(
    model: CatalogueModel,
    codes: np.ndarray,
    code_tokens: np.ndarray,
    vocab_size: int,
    text: np.ndarray | None,
    transitions: csr_array | None,
    alike: ItemLikeness | None = None,
) -> CatalogueModel:
    """Extend a model to more SIDs.

    Parameters of known SIDs move to their new numbers. Their text, vectors, biases and popularity do not change, so
    the differences between their scores change only by counts. New SIDs get the given text and counts, and the vectors
    and biases of `grown_rows`. Their popularity is the geometric mean of their neighbours; other counts of the experts
    are those of items without interactions.

    Args:
        model: A trained model; not modified.
        codes: int (N', L), codes of items, including every SID of the model.
        code_tokens: int64 (L, C), vocabulary ids of codes; unchanged for the model's codes.
        vocab_size: Tokens of the vocabulary.
        text: float32 (N, T), text vectors of the distinct SIDs in the order of their numbers, of which only those of
            new SIDs are used; None if the model has no text.
        transitions: Counts between SID numbers; None if the model has none.
        alike: Similarities of all SIDs; required if the model has experts.

    Raises:
        ConfigError: If SIDs differ in length.
    """
    before, after = model.codes.cpu().numpy(), np.unique(codes, axis=0)
    check_lengths(model, codes)
    config = copy.deepcopy(model.config)
    config.vocab_size = vocab_size
    if text is not None:
        position = indices_among(before, after)
        text = text.copy()
        text[position >= 0] = model.text.cpu().numpy()[position[position >= 0]]
    experts = None
    if model.experts is not None and alike is not None:
        experts = grown_experts(model.experts, before, after, alike)
    extended = build_catalogue(config, codes, code_tokens, text, transitions, experts)
    for old, new in zip(model.each_tower(), extended.each_tower(), strict=True):
        weights = {name: value.cpu() for name, value in old.state_dict().items()}
        for name in ("items.weight", "bias"):
            if name in weights:
                weights[name] = grown_rows(weights[name], before, after)
        for level in range(len(old.codes)):
            name = f"codes.{level}.weight"
            if level < config.levels - 1:  # one row per prefix
                known, queries = (np.unique(sids[:, : level + 1], axis=0) for sids in (before, after))
                weights[name] = grown_rows(weights[name], known, queries)
            else:  # one row per code
                known, queries = (np.unique(sids[:, -1:], axis=0) for sids in (before, after))
                grown = torch.zeros_like(new.state_dict()[name])
                grown[queries[:, 0]] = grown_rows(weights[name][known[:, 0]], known, queries)
                weights[name] = grown
        new.load_state_dict(weights)
    if model.popularity is not None and extended.popularity is not None:
        logs = grown_rows(model.popularity.logs.cpu().T, before, after).T
        extended.popularity.set(logs, model.popularity.weights)
    torch.nn.Module.eval(extended)
    return extended


def grown_experts(experts: Experts, before: np.ndarray, after: np.ndarray, alike: ItemLikeness) -> Experts:
    """Extend experts to more SIDs.

    Args:
        experts: Experts of the known SIDs; not modified.
        before: int (S, L), the distinct known SIDs.
        after: int (N, L), the distinct SIDs, all known ones among them.
        alike: Similarities of all SIDs.
    """
    number, size = indices_among(after, before), len(after)
    state = {name: value.cpu() for name, value in experts.state_dict().items()}
    leaders = np.repeat(number, state["offsets"].diff().numpy())
    pairs = (leaders, number[state["followers"].numpy()])
    tables = [coo_array((counts, pairs), shape=(size, size)).tocsr() for counts in state["counts"].numpy()]
    for table in tables:
        table.sort_indices()
    kept = state["ease_items"].shape[1]
    ease = np.zeros((size, kept), dtype=np.int32), np.zeros((size, kept), dtype=np.float32)
    ease[0][number], ease[1][number] = number[state["ease_items"].numpy()], state["ease_weights"].numpy()
    logs = (state["popularity"] + NO_SALE).log().T
    popularity = (grown_rows(logs, before, after).exp() - NO_SALE).clamp(min=0).T.contiguous().numpy()
    popularity[:, number] = state["popularity"].numpy()
    repeats, items = np.zeros(size, dtype=np.float32), np.tile(item_features(*np.zeros((3, 1))), (size, 1))
    repeats[number], items[number] = state["repeats"].numpy(), state["items"].numpy()
    grown = Experts.of(tables, popularity, repeats, items, alike, ease)
    for name in ("weights", "least", "most"):
        getattr(grown, name).copy_(state[name])
    return grown
