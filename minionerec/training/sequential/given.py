"""Inputs of a model and its training: examples, hyper-parameters, text vectors, counts, digits, SIDs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import ROWS, Protocol, read_examples
from minionerec.data.rows import SplitExamples
from minionerec.data.session import row_contexts, warn_without_times
from minionerec.data.transitions import training_transitions
from minionerec.data.windows import padded_windows
from minionerec.models.sequential.model import ModelData, SequentialModel
from minionerec.models.sequential.registry import build_model, check_hyper, hyper_parameters, model_class
from minionerec.sid.embed.config import EncoderSettings
from minionerec.sid.embed.vectors import make_vectors
from minionerec.sid.table import SidTable
from minionerec.training.sequential.config import SequentialConfig

logger = get_logger(__name__)


MEASURED = ("valid", "test")


@dataclass(frozen=True)
class ModelInputs:
    """Inputs that every seed of a configuration shares.

    Attributes:
        corpus: Items and training examples.
        held_out: "valid" and "test" to the examples that are measured.
        users: User to number, of those with a training example.
        counts: Numbers of examples, users, items and windows, for the manifest.
        hyper: Hyper-parameters of the model, with those that the data set.
        data: Fixed inputs of the model besides histories.
        table: SIDs of the items; None where nothing is measured at their level.
        session_context: Whether the model is conditioned on the session context of the next item.
    """

    corpus: Corpus
    held_out: Mapping[str, SplitExamples]
    users: Mapping[str, int]
    counts: Mapping[str, Any]
    hyper: Mapping[str, Any]
    data: ModelData
    table: SidTable | None
    session_context: bool = False

    def build(self, model: str, max_len: int, seed: int) -> SequentialModel:
        """The model with weights drawn from a seed, and all that it reads besides histories."""
        torch.manual_seed(seed)
        built = build_model(model, num_items=self.corpus.n_items, max_len=max_len, **self.hyper)
        if self.data.text is not None:
            built.set_text(self.data.text)
        if self.data.transitions is not None:
            built.set_transitions(self.data.transitions)
        if self.data.digits is not None:
            built.set_digits(self.data.digits)
        if self.session_context:
            built.condition_on_session()
        return built

    def user_numbers(self, rows: SplitExamples) -> np.ndarray:
        """The number of each row's user, one beyond all others for a user without a training example: int64 (R,)."""
        numbers = np.array([self.users.get(user, len(self.users)) for user in rows.user_ids], dtype=np.int64)
        found: np.ndarray = numbers[rows.user_numbers]
        return found

    def further_inputs(self, model: SequentialModel, rows: SplitExamples) -> dict[str, Any]:
        """Inputs of a model beside histories: `users` and `contexts`, as ranking takes them."""
        conditioned = model.session_states is not None and rows.times is not None
        return {
            "users": self.user_numbers(rows) if model.needs_users else None,
            "contexts": row_contexts(rows.times, len(rows)) if conditioned else None,
        }


def check_corpus(config: SequentialConfig) -> None:
    """Check that there is a corpus, or a file of sequences, as the protocol takes it.

    Raises:
        DataError: If there is no such file.
        ArtefactError: If there is no such corpus.
    """
    folder = Path(config.corpus)
    if config.protocol == ROWS or folder.is_dir():
        read_manifest(folder, "corpus")
    elif not folder.is_file():
        raise DataError(f"{folder}: no such file. Give --corpus a file of 'user item item ...' lines.")


def read_given(config: SequentialConfig, protocol: Protocol) -> ModelInputs:
    """Read the inputs of a configuration.

    Args:
        config: The settings.
        protocol: The protocol with what they change in it.

    Raises:
        ConfigError: If the model or a hyper-parameter is unknown, or the model takes none of what is given.
        DataError: If a file is malformed or too small.
        ArtefactError: If an input is missing.
    """
    kind, hyper = model_class(config.model), check_hyper(config.model, config.hyper)
    if config.vectors and not kind.reads_text:
        raise ConfigError(f"vectors is {config.vectors!r}, but model {config.model} reads no text; leave vectors out.")
    if bool(config.digits) != kind.reads_digits:
        raise ConfigError(
            f"model {config.model} reads the items' digits; give digits (minionerec build-sids --method opq)."
            if kind.reads_digits
            else f"digits is {config.digits!r}, but model {config.model} reads none; leave digits out."
        )
    chosen = {**hyper_parameters(config.model), **hyper}
    corpus = read_examples(config.corpus, protocol, config.items)
    if corpus.in_files and chosen.get("personal"):
        raise ConfigError(
            f"model {config.model} has a vector for each user, which a corpus that is too large for memory does not "
            "allow; give it personal=false."
        )
    if config.session_context and not corpus.has_times:
        warn_without_times(config.corpus)
    held_out = {split: corpus.sample(split, config.eval_examples, protocol.seed) for split in MEASURED}
    users = _number_users(list(held_out.values()) if corpus.in_files else [corpus.train])
    item_ids = corpus.items["item_id"].tolist()
    data = ModelData(
        padding=protocol.padding,
        num_users=len(users) + (not corpus.leaves_two_out),
        text=_read_text(config, corpus),
        transitions=_count(chosen, corpus, protocol),
        digits=_read_digits(config.digits, item_ids) if config.digits else None,
    )
    counts = _counts(corpus, held_out, users, protocol)
    logger.info("%s: %s", protocol.title, "  ".join(f"{name} {value}" for name, value in counts.items()))
    return ModelInputs(
        corpus=corpus,
        held_out=held_out,
        users=users,
        counts=counts,
        hyper=hyper | kind.data_hyper(data),
        data=data,
        table=SidTable.load_index(config.sids, item_ids) if config.sids else None,
        session_context=config.session_context,
    )


def _number_users(parts: Sequence[SplitExamples]) -> dict[str, int]:
    """The users of rows, in the order of each one's first row."""
    known: dict[str, int] = {}
    for rows in parts:
        numbers, firsts = np.unique(rows.user_numbers, return_index=True)
        for user in rows.user_ids[numbers[np.argsort(firsts)]]:
            known.setdefault(user, len(known))
    return known


def _counts(
    corpus: Corpus, held_out: Mapping[str, SplitExamples], users: Mapping[str, int], protocol: Protocol
) -> Mapping[str, Any]:
    """Numbers for the manifest."""
    if corpus.leaves_two_out:
        return {**corpus.counts, **{split: len(rows) for split, rows in held_out.items()}}
    sizes = {"train": corpus.sizes["train"], **{split: len(rows) for split, rows in held_out.items()}}
    if not corpus.in_files:
        windows = (padded_windows(part, protocol.max_len, protocol.padding) for part in corpus.windows("train"))
        sizes |= {"windows": sum(len(histories) for histories, _, _ in windows), "users": len(users)}
    return {**sizes, "items": corpus.n_items, "split": corpus.split}


def _read_text(config: SequentialConfig, corpus: Corpus) -> torch.Tensor | None:
    if not config.vectors:
        return None
    settings = EncoderSettings(encoder=config.vectors, dimensions=config.vector_width)
    return torch.from_numpy(make_vectors(corpus, settings, {}))


def _read_digits(path: str, item_ids: Sequence[str]) -> torch.Tensor:
    """Codes of the items, int32 (N, M), of which each must have all.

    Raises:
        DataError: If an item has no SID, or one of fewer levels than another.
    """
    codes = SidTable.load_index(path, item_ids).codes
    short = np.flatnonzero((codes < 0).any(axis=1))
    if len(short):
        raise DataError(
            f"{path}: item {item_ids[short[0]]!r} has {(codes[short[0]] >= 0).sum()} digits, others have "
            f"{codes.shape[1]}. Build SIDs with collisions keep."
        )
    return torch.from_numpy(codes)


def _count(hyper: Mapping[str, Any], corpus: Corpus, protocol: Protocol) -> csr_array | None:
    """Item transitions in the training windows; None where the hyper-parameters ask for no counts."""
    if not hyper.get("reach"):
        return None
    constants = hyper["reach"], hyper["decay"], hyper["reverse"]
    return training_transitions(corpus, protocol.max_len, *constants, padding=protocol.padding)
