"""Checkpoints: ordinary `from_pretrained` directories that also hold the SID table and the prompt wording."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

import minionerec.backbone.catalogue  # noqa: F401  (makes its class known by name)
from minionerec.backbone.quiet import quiet_libraries
from minionerec.backbone.vocabulary import code_token_ids, verify_code_tokens
from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError
from minionerec.nn.linear import replace_linear
from minionerec.prompts.wording import Wording, load_wording
from minionerec.sid.table import INDEX_FILE, SidTable

KIND = "checkpoint"
WORDING_FILE = "wording.yaml"


@dataclass(frozen=True)
class Bundle:
    """A model with everything it needs to recommend.

    Attributes:
        model: Causal language model.
        tokenizer: Its tokenizer, one token for each code.
        table: The SIDs it speaks.
        wording: The prompts it was trained with.
        max_prompt_length: Prompts are cut to this many last tokens.
        path: Where it was read from.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    table: SidTable
    wording: Wording
    max_prompt_length: int
    path: Path | None = None

    @cached_property
    def code_ids(self) -> np.ndarray:
        """Vocabulary ids of codes, int64 (L, C) (`code_token_ids`)."""
        return code_token_ids(self.tokenizer, self.table)


def clean_generation_config(tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """A generation config that says greedy, without penalty, and nothing else.

    `generate` fills fields that a caller leaves unset from this file, so the file itself must be harmless; the
    project's own beam search reads none of them.
    """
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def write_model_files(bundle: Bundle, place: str | os.PathLike[str]) -> None:
    """Write model, tokenizer, SID table, wording and a clean generation config into a directory."""
    bundle.model.generation_config = clean_generation_config(bundle.tokenizer)
    bundle.model.save_pretrained(place)
    bundle.tokenizer.save_pretrained(place)
    bundle.table.save_index(Path(place) / INDEX_FILE)
    bundle.wording.save(Path(place) / WORDING_FILE)


def bundle_counts(bundle: Bundle) -> dict[str, Any]:
    """What the manifest of a checkpoint must say of its model, beside what the stage counts."""
    return {
        "parameters": bundle.model.num_parameters(),
        "sid_table": bundle.table.fingerprint,
        "max_prompt_length": bundle.max_prompt_length,
    }


def load_bundle(
    path: str | os.PathLike[str], *, dtype: torch.dtype | None = None, table: SidTable | None = None
) -> Bundle:
    """Read a checkpoint.

    Args:
        path: A finished checkpoint: files of `write_model_files`, and `bundle_counts` in the manifest.
        dtype: Weights' dtype; as saved if None.
        table: SID table that the caller works with; must be the checkpoint's own.

    Raises:
        ArtefactError: If the directory is not a checkpoint, or was made with another SID table.
        DataError: If the tokenizer does not have one token for each code.
    """
    quiet_libraries()
    path = Path(path)
    counts = read_manifest(path, KIND)["counts"]
    own = SidTable.load_index(path / INDEX_FILE)
    if table is not None and table.fingerprint != own.fingerprint:
        raise ArtefactError(
            f"{path}: was trained on the SID table {own.fingerprint[:12]} ({own.n_unique} SIDs), but the "
            f"given table is {table.fingerprint[:12]} ({table.n_unique} SIDs). Give its own table, or train again."
        )
    try:
        # As it was saved: AutoTokenizer takes the class of the kind of model, which may split text otherwise.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype or "auto")
    except (OSError, ValueError) as error:
        raise ArtefactError(
            f"{path}: cannot be loaded ({' '.join(str(error).split())[:300]}). Train it again."
        ) from None
    model.generation_config = clean_generation_config(tokenizer)
    verify_code_tokens(tokenizer, own)
    return Bundle(
        replace_linear(model), tokenizer, own, load_wording(path / WORDING_FILE), counts["max_prompt_length"], path
    )
