"""What a model is built from and learns from: rows, hyper-parameters, text vectors, counts, digits, SIDs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import get_logger
from minionerec.core.paths import find_path
from minionerec.data.corpus import Corpus
from minionerec.data.moments import warn_untold
from minionerec.data.protocols import ROWS, Protocol, read_split
from minionerec.data.rows import SplitRows
from minionerec.data.sequences import Split
from minionerec.data.stored import StoredCorpus
from minionerec.data.stored_split import stored_split
from minionerec.data.transitions import Transitions, count_transitions, count_transitions_in_parts
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.registry import build_model, check_hyper, hyper_parameters
from minionerec.sid.embed.config import EncoderSettings
from minionerec.sid.embed.vectors import make_vectors
from minionerec.sid.table import SidTable
from minionerec.training.sequential.config import SequentialConfig

logger = get_logger(__name__)
_WINDOWS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class ModelInputs:
    """What every seed of a configuration has in common.

    Attributes:
        split: The rows.
        hyper: Hyper-parameters of the model, with those that the data set.
        text: Text vectors of the items, float32 (N, T); None without.
        transitions: What followed what in the training windows; None without.
        digits: Digits of the items, int32 (N, M); None without.
        table: SIDs of the items; None where nothing is measured at their level.
        moments: Whether the model is told of what moment the next item is.
    """

    split: Split
    hyper: Mapping[str, Any]
    text: torch.Tensor | None
    transitions: Transitions | None
    digits: torch.Tensor | None
    table: SidTable | None
    moments: bool = False

    def build(self, model: str, max_len: int, seed: int) -> SequentialModel:
        """The model with weights drawn from a seed, and all that it reads beside histories."""
        torch.manual_seed(seed)
        built = build_model(model, num_items=self.split.num_items, max_len=max_len, **self.hyper)
        if self.text is not None:
            built.set_text(self.text)
        if self.transitions is not None:
            built.set_transitions(self.transitions)
        if self.digits is not None:
            built.set_digits(self.digits)
        if self.moments:
            built.tell_moments()
        return built


def check_corpus(config: SequentialConfig) -> None:
    """Check that there is a corpus, or a file of sequences, as the protocol takes it.

    Raises:
        DataError: If there is no such file.
        ArtefactError: If there is no such corpus.
    """
    place = find_path(config.corpus)
    if config.protocol == ROWS or place.is_dir():
        read_manifest(place, "corpus")
    elif not place.is_file():
        raise DataError(f"{place}: no such file. Give --corpus a file of 'user item item ...' lines.")


def read_given(config: SequentialConfig, protocol: Protocol, folder: Path | None = None) -> ModelInputs:
    """Read what a configuration names.

    Args:
        config: The settings.
        protocol: The protocol with what they change in it.
        folder: Where training rows that are streamed lie, in the folder of the unfinished run; None where none is
            needed.

    Raises:
        ConfigError: If the model or a hyper-parameter is unknown, or the model takes none of what is given.
        DataError: If a file is malformed or too small.
        ArtefactError: If an input is missing.
    """
    known = hyper_parameters(config.model)
    hyper = check_hyper(config.model, config.hyper)
    if config.vectors and "text_width" not in known:
        raise ConfigError(f"vectors is {config.vectors!r}, but model {config.model} reads no text; leave vectors out.")
    if bool(config.digits) != ("num_digits" in known):
        raise ConfigError(
            f"model {config.model} reads the items' digits; give digits (minionerec build-sids --method opq)."
            if "num_digits" in known
            else f"digits is {config.digits!r}, but model {config.model} reads none; leave digits out."
        )
    counted = {**known, **hyper}
    if config.stream and counted.get("personal"):
        raise ConfigError(
            f"model {config.model} has a vector for each user, which cannot be streamed; give it personal=false."
        )
    split = _stream(config, protocol, folder, bool(counted.get("reach"))) if config.stream else None
    split = split or read_split(config.corpus, protocol, config.items)
    if config.moments and split.times is None:
        warn_untold(config.corpus)
    text = _read_text(config, split)
    transitions = _count(counted, split, config.stream)
    item_ids = split.catalogue["item_id"].tolist()
    digits = _read_digits(config.digits, item_ids) if config.digits else None
    of_data = {
        "padding": protocol.padding,
        "num_users": len(split.user_names),
        "text_width": 0 if text is None else text.shape[1],
        "num_transitions": 0 if transitions is None else len(transitions.counts),
        "num_digits": 0 if digits is None else digits.shape[1],
        "num_codes": 0 if digits is None else int(digits.max()) + 1,
    }
    logger.info("%s: %s", protocol.title, "  ".join(f"{name} {value}" for name, value in split.counts.items()))
    return ModelInputs(
        split=split,
        hyper=hyper | {name: value for name, value in of_data.items() if name in known},
        text=text,
        transitions=transitions,
        digits=digits,
        table=SidTable.load_index(config.sids, item_ids) if config.sids else None,
        moments=config.moments,
    )


def _read_text(config: SequentialConfig, split: Split) -> torch.Tensor | None:
    if not config.vectors:
        return None
    none = SplitRows.none()
    items = Corpus(split.catalogue, none, none, none, split="", max_history=0)
    settings = EncoderSettings(encoder=config.vectors, dimensions=config.vector_width)
    return torch.from_numpy(make_vectors(items, settings, {}))


def _read_digits(path: str, item_ids: Sequence[str]) -> torch.Tensor:
    """Codes of the items, int32 (N, M), of which each must have all.

    Raises:
        DataError: If an item has no SID, or one of fewer levels than another.
    """
    codes = SidTable.load_index(find_path(path), item_ids).codes
    short = np.flatnonzero((codes < 0).any(axis=1))
    if len(short):
        raise DataError(
            f"{path}: item {item_ids[short[0]]!r} has {(codes[short[0]] >= 0).sum()} digits, others have "
            f"{codes.shape[1]}. Build SIDs with collisions keep."
        )
    return torch.from_numpy(codes)


def _stream(config: SequentialConfig, protocol: Protocol, folder: Path | None, counts: bool) -> Split:
    """The rows of a corpus that stays on disk; counts of pairs are taken from windows."""
    return stored_split(
        StoredCorpus.open(find_path(config.corpus)),
        protocol,
        config.eval_rows,
        protocol.seed,
        folder,
        samples=not config.all_positions,
        windows=config.all_positions or counts,
    )


def _count(hyper: Mapping[str, Any], split: Split, in_parts: bool) -> Transitions | None:
    """What followed what in the training windows; None where the hyper-parameters ask for no counts."""
    if not hyper.get("reach"):
        return None
    windows, how = split.windows, (split.num_items, hyper["reach"], hyper["decay"], hyper["reverse"])
    if not in_parts:
        return count_transitions(windows.histories, windows.targets, *how)
    parts = (slice(start, start + _WINDOWS_AT_ONCE) for start in range(0, len(windows), _WINDOWS_AT_ONCE))
    return count_transitions_in_parts(((windows.histories[part], windows.targets[part]) for part in parts), *how)
