"""Inputs of a model and its training: examples, hyper-parameters, text vectors, counts, digits, SIDs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from minionerec.core.log import get_logger
from minionerec.data.contexts import RequestFeature, context_codes
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import Protocol
from minionerec.data.rows import SplitExamples
from minionerec.data.transitions import training_transitions
from minionerec.data.windows import window_bounds
from minionerec.models.sequential.model import ModelData, SequentialModel
from minionerec.models.sequential.registry import build_model, check_hyper, hyper_parameters, model_class
from minionerec.sid.table import SidTable

logger = get_logger(__name__)

MEASURED = ("valid", "test")


@dataclass(frozen=True)
class ModelInputs:
    """Inputs that every seed of a configuration shares.

    Attributes:
        corpus: Items and training examples.
        held_out: "valid" and "test" to the examples that are measured.
        users: User to number, of those with a training example; empty where the model has no vectors of users.
        counts: Numbers of examples, users, items and windows, for the manifest.
        hyper: Hyper-parameters of the model, with those that the data set.
        data: Fixed inputs of the model besides histories.
        table: SIDs of the items; None where nothing is measured at their level.
        context: Request features that the model is conditioned on.
    """

    corpus: Corpus
    held_out: Mapping[str, SplitExamples]
    users: Mapping[str, int]
    counts: Mapping[str, Any]
    hyper: Mapping[str, Any]
    data: ModelData
    table: SidTable | None
    context: Sequence[RequestFeature] = ()

    def build(self, model: str, max_len: int, seed: int) -> SequentialModel:
        """The model with weights drawn from a seed, and all that it reads besides histories."""
        torch.manual_seed(seed)
        built = build_model(model, num_items=self.corpus.n_items, max_len=max_len, **self.hyper)
        if self.data.vectors is not None:
            built.read_vectors(self.data.vectors.shape[1])
            built.set_vectors(self.data.vectors)
        if self.data.transitions is not None:
            built.set_transitions(self.data.transitions)
        if self.data.digits is not None:
            built.set_digits(self.data.digits)
        if self.context:
            built.condition_on(self.context)
        return built

    def user_numbers(self, rows: SplitExamples) -> np.ndarray:
        """The number of each row's user, one beyond all others for a user without a training example: int64 (R,)."""
        numbers = np.array([self.users.get(user, len(self.users)) for user in rows.user_ids], dtype=np.int64)
        row_numbers: np.ndarray = numbers[rows.user_numbers]
        return row_numbers

    def training_users(self) -> np.ndarray:
        """The number of each training example's user, block by block: int64 (R,)."""
        return np.concatenate([self.user_numbers(rows) for _, rows in self.corpus.batches("train")])

    def further_inputs(self, model: SequentialModel, rows: SplitExamples) -> dict[str, Any]:
        """Inputs of a model beside histories: `users` and `contexts`, as ranking takes them."""
        return {
            "users": self.user_numbers(rows) if model.needs_users else None,
            "contexts": context_codes(model.features, rows) if model.features else None,
        }


def make_inputs(
    model: str,
    hyper: Mapping[str, Any],
    corpus: Corpus,
    protocol: Protocol,
    *,
    vectors: torch.Tensor | None = None,
    digits: torch.Tensor | None = None,
    table: SidTable | None = None,
    context: Sequence[RequestFeature] = (),
) -> ModelInputs:
    """Put together the inputs of a model and its training.

    Args:
        model: Key of `minionerec.models.sequential.registry.MODELS`.
        hyper: Hyper-parameters that differ from their defaults.
        corpus: Items and examples, as the protocol splits them.
        protocol: The protocol.
        vectors: Given vectors of the items, float32 (N, F), row i of item i + 1, entries about 1.
        digits: Digits of the items, int32 (N, M), row i of item i + 1; for models that read them.
        table: SIDs of the items, to measure at their level too.
        context: Request features that the model is conditioned on.

    Raises:
        ConfigError: If the model or a hyper-parameter is unknown, or the model cannot be trained on the corpus.
    """
    hyper = check_hyper(model, hyper)
    chosen = {**hyper_parameters(model), **hyper}
    held_out = {split: corpus.sample(split, -1, protocol.seed) for split in MEASURED}
    users, sizes = _count_blocks(corpus, protocol, number=bool(chosen.get("personal")))
    data = ModelData(
        padding=protocol.padding,
        num_users=sizes["users"] + (not corpus.leaves_two_out),
        vectors=vectors,
        transitions=_count(chosen, corpus, protocol),
        digits=digits,
    )
    measured = {split: len(rows) for split, rows in held_out.items()}
    if corpus.leaves_two_out:
        counts = {**corpus.counts, **measured}
    else:
        items = {"items": corpus.n_items, "split": corpus.split}
        counts = {"train": corpus.sizes["train"], **measured, **sizes, **items}
    logger.info("%s: %s", protocol.title, "  ".join(f"{name} {value}" for name, value in counts.items()))
    return ModelInputs(
        corpus=corpus,
        held_out=held_out,
        users=users,
        counts=counts,
        hyper={**hyper, **model_class(model).data_hyper(data)},
        data=data,
        table=table,
        context=context,
    )


def _count_blocks(corpus: Corpus, protocol: Protocol, *, number: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Count the training windows and the users of a corpus.

    Args:
        corpus: The corpus; blocks have no user in common.
        protocol: The protocol, whose histories windows have.
        number: Whether users are numbered.

    Returns:
        The users in the order of each one's first example with their numbers, if wanted; and the counts.
    """
    known: dict[str, int] = {}
    windows = users = 0
    for block in corpus.blocks():
        found, rows = corpus.block_windows(block), block.rows["train"]
        windows += len(window_bounds(found.begins, found.ends, np.maximum(found.firsts, 1), protocol.max_len)[0])
        numbers, firsts = np.unique(rows.user_numbers, return_index=True)
        met = dict.fromkeys(rows.user_ids[numbers[np.argsort(firsts)]])
        users += len(met)
        for user in met if number else ():
            known[user] = len(known)
    return known, {"windows": windows, "users": users}


def _count(hyper: Mapping[str, Any], corpus: Corpus, protocol: Protocol) -> csr_array | None:
    """Item transitions in the training windows; None where the hyper-parameters ask for no counts."""
    if not hyper.get("reach"):
        return None
    constants = hyper["reach"], hyper["decay"], hyper["reverse"]
    return training_transitions(corpus, protocol.max_len, *constants, padding=protocol.padding)
