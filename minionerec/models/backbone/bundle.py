"""Checkpoints: ordinary `from_pretrained` directories that also hold the SID table and the prompt wording."""

import os
import warnings
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from minionerec.core.artefacts import open_artefact
from minionerec.core.errors import ArtefactError, ConfigError, one_line
from minionerec.core.log import shows_bars
from minionerec.models.backbone.catalogue import CatalogueConfig, CatalogueModel
from minionerec.models.backbone.pretrained import CHECKPOINT_MODELS, load_model, load_tokenizer
from minionerec.models.backbone.vocabulary import code_token_ids, verify_code_tokens
from minionerec.models.decoding.architectures import check_architecture
from minionerec.models.decoding.branches import OpensBranches
from minionerec.models.nn.experts import Experts
from minionerec.models.nn.layers import replace_linear
from minionerec.models.prompts.wording import NEXT_SID, Wording, load_wording
from minionerec.sid.table import INDEX_FILE, SidTable

KIND = "checkpoint"
WORDING_FILE = "wording.yaml"
EXPERTS_FILE = "experts.safetensors"
_READ_BY_LIBRARIES = (
    ".json",
    ".safetensors",
    ".bin",
    ".pt",
    ".py",
    ".model",
    ".txt",
    ".jinja",
    ".h5",
    ".msgpack",
    ".gguf",
)
_REMEDY = "Train it again by the stage that its manifest names."


@dataclass(frozen=True)
class Bundle:
    """A model with everything it needs to recommend.

    Attributes:
        model: Causal language model.
        tokenizer: Tokenizer with one token for each code.
        table: The SIDs of the catalogue.
        wording: Wording of the prompts in training.
        max_prompt_length: Number of last tokens to which prompts are truncated.
        path: Directory that the checkpoint was read from.
        task: Task by which the model recommends: next_sid, or title_history_to_title for a model that generates titles.
        experts: Experts that are pooled with a language model (`minionerec.models.nn.experts`), by SID numbers; None
            without them. A catalogue model has its own.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    table: SidTable
    wording: Wording
    max_prompt_length: int
    path: Path | None = None
    task: str = NEXT_SID
    experts: Experts | None = None

    @cached_property
    def code_ids(self) -> np.ndarray:
        """Vocabulary ids of codes, int64 (L, C) (`code_token_ids`)."""
        return code_token_ids(self.tokenizer, self.table)

    @cached_property
    def sid_tokens(self) -> list[list[int]]:
        """Vocabulary ids of the codes of each SID, in the order of SID numbers."""
        vocabulary, tokens = self.tokenizer.get_vocab(), self.table.token_tuples
        _, items = np.unique(self.table.sid_numbers, return_index=True)
        return [[vocabulary[token] for token in tokens[item]] for item in items]


def clean_generation_config(tokenizer: PreTrainedTokenizerBase, start: int | None = None) -> GenerationConfig:
    """A generation config of greedy search without penalties; `start` is the decoder's start token, if it has one."""
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=start,
    )


def write_model_files(bundle: Bundle, folder: str | os.PathLike[str]) -> None:
    """Write model, tokenizer, SID table, wording, experts and a clean generation config into a directory."""
    start = getattr(bundle.model.config, "decoder_start_token_id", None)
    bundle.model.generation_config = clean_generation_config(bundle.tokenizer, start)
    bundle.model.save_pretrained(folder)
    bundle.tokenizer.save_pretrained(folder)
    bundle.table.save_index(Path(folder) / INDEX_FILE)
    bundle.wording.save(Path(folder) / WORDING_FILE)
    if bundle.experts is not None:
        state = {name: values.cpu().contiguous() for name, values in bundle.experts.state_dict().items()}
        save_file(state, Path(folder) / EXPERTS_FILE)


def bundle_counts(bundle: Bundle) -> dict[str, Any]:
    """Counts of a checkpoint's model for its manifest."""
    return {
        "parameters": bundle.model.num_parameters(),
        "sid_table": bundle.table.fingerprint,
        "max_prompt_length": bundle.max_prompt_length,
    } | ({} if bundle.task == NEXT_SID else {"task": bundle.task})


def check_decoder_alone(bundle: Bundle) -> None:
    """Check that a checkpoint is a decoder-only model, as stages require that modify or export language models.

    Raises:
        ConfigError: If it is an encoder-decoder.
    """
    if bundle.model.config.is_encoder_decoder:
        raise ConfigError(
            f"{bundle.path}: is an encoder-decoder, but a language model is needed here. Give one (minionerec sft)."
        )


def load_language_model(path: str | os.PathLike[str], dtype: torch.dtype | None, instead: str) -> Bundle:
    """Read a checkpoint of a language model over SIDs; `instead` ends the message for a catalogue model.

    Raises:
        ArtefactError: As of `load_bundle`.
        ConfigError: If it is an encoder-decoder or a catalogue model.
    """
    bundle = load_bundle(path, dtype=dtype)
    check_decoder_alone(bundle)
    if isinstance(bundle.model, CatalogueModel):
        raise ConfigError(f"{path}: is a catalogue model, {instead}")
    return bundle


def load_bundle(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    table: SidTable | None = None,
    titles: bool = False,
    in_memory: bool = False,
) -> Bundle:
    """Read a checkpoint.

    Args:
        path: A finished checkpoint: files of `write_model_files`, and `bundle_counts` in the manifest.
        dtype: Dtype of the weights; as saved if None.
        table: SID table that the caller uses, which must equal the checkpoint's; not checked if None.
        titles: Whether models that generate titles are accepted.
        in_memory: Whether weights are read into memory. Otherwise they are memory-mapped, which takes less memory, but
            truncating the files ends the process and overwriting them changes the model.

    Raises:
        ArtefactError: If the directory is not a checkpoint, a file was changed or does not belong to the others, the
            SID table differs from `table`, or the model generates titles and `titles` is False.
        DataError: If the tokenizer does not have one token for each code.
    """
    quiet_libraries()
    path = Path(path)
    counts = open_artefact(path, KIND, strangers=_READ_BY_LIBRARIES)["counts"]
    max_prompt_length = counts.get("max_prompt_length")
    if type(max_prompt_length) is not int or max_prompt_length < 1:
        raise ArtefactError(f"{path}: its manifest has no max_prompt_length. {_REMEDY}")
    task = str(counts.get("task", NEXT_SID))
    if task != NEXT_SID and not titles:
        raise ArtefactError(
            f"{path}: was trained on {task} and generates titles, but SIDs are needed here. Give a checkpoint that was "
            f"trained on {NEXT_SID}."
        )
    saved_table = SidTable.load_index(path / INDEX_FILE)
    if table is not None and table.fingerprint != saved_table.fingerprint:
        raise ArtefactError(
            f"{path}: was trained on the SID table {saved_table.fingerprint[:12]} ({saved_table.n_unique} SIDs), but "
            f"the given table is {table.fingerprint[:12]} ({table.n_unique} SIDs). Give its own table, or train again."
        )
    # Not AutoTokenizer, which takes the class by the type of model, and may split text differently.
    tokenizer = load_tokenizer(PreTrainedTokenizerFast, path, error=ArtefactError, remedy=_REMEDY)
    settings: dict[str, Any] = {"dtype": dtype or "auto", "disable_mmap": in_memory or None}
    model = load_model(
        AutoModelForCausalLM, path, error=ArtefactError, remedy=_REMEDY, check=partial(_check_kind, path), **settings
    )
    model.generation_config = clean_generation_config(tokenizer, getattr(model.config, "decoder_start_token_id", None))
    verify_code_tokens(tokenizer, saved_table)
    _check_vocabulary(model, len(tokenizer), code_token_ids(tokenizer, saved_table), path)
    if isinstance(model, CatalogueModel) and (problem := model.flaw(saved_table.distinct_codes)):
        raise ArtefactError(f"{path}: the model and {INDEX_FILE} are not of one training ({problem}). {_REMEDY}")
    wording = load_wording(path / WORDING_FILE)
    if isinstance(model, CatalogueModel):
        vocabulary = tokenizer.get_vocab()
        tokens = [[vocabulary.get(text) for text in texts] for texts in wording.context_tokens]
        if list(model.config.context_tokens) != tokens:
            raise ArtefactError(f"{path}: its context_tokens are not those of {WORDING_FILE}. {_REMEDY}")
        if list(model.config.event_tokens) != [vocabulary.get(text) for text in wording.event_tokens]:
            raise ArtefactError(f"{path}: its event_tokens are not those of {WORDING_FILE}. {_REMEDY}")
    experts = _load_experts(path, saved_table)
    return Bundle(replace_linear(model), tokenizer, saved_table, wording, max_prompt_length, path, task, experts)


def _load_experts(path: Path, table: SidTable) -> Experts | None:
    """Read the experts of a checkpoint; None if it has no such file, an `ArtefactError` if they are damaged."""
    file = path / EXPERTS_FILE
    if not file.is_file():
        return None
    try:
        experts = Experts.from_state(load_file(file))
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise ArtefactError(f"{file}: holds no experts ({one_line(error)}). {_REMEDY}") from None
    flaw = experts.flaw()
    if flaw is None and len(experts.repeats) != table.n_unique:
        flaw = f"it has {len(experts.repeats)} SIDs"
    if flaw is not None:
        raise ArtefactError(f"{file}: does not fit the {table.n_unique} SIDs of {INDEX_FILE}: {flaw}. {_REMEDY}")
    return experts


def _check_kind(path: Path, config: Any) -> None:
    """Check that a checkpoint is a catalogue model, a registered model, or a supported language model."""
    if not isinstance(config, CatalogueConfig) and config.model_type not in CHECKPOINT_MODELS:
        check_architecture(config, path, ArtefactError)


def _check_vocabulary(model: PreTrainedModel, tokens: int, code_ids: np.ndarray, path: Path) -> None:
    """Check that every code's token has a logit, and that a catalogue model has the codes of its table."""
    size = int(model.config.get_text_config().vocab_size)
    if code_ids.max() >= size:
        raise ArtefactError(
            f"{path}: its tokenizer numbers a code {code_ids.max()}, but the model has {size} tokens. {_REMEDY}"
        )
    only_codes = isinstance(model, OpensBranches)
    if (only_codes and size != tokens) or (
        isinstance(model, CatalogueModel) and not np.array_equal(model.code_tokens.cpu().numpy(), code_ids)
    ):
        raise ArtefactError(f"{path}: the model's codes are not those of {INDEX_FILE} and the tokenizer. {_REMEDY}")


def quiet_libraries() -> None:
    """Disable the libraries' progress bars off a terminal, and their warnings about each other's deprecated names."""
    if not shows_bars():
        transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=r".*is deprecated and will be removed in v6", category=FutureWarning)
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
