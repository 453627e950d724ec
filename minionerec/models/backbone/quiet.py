"""Less noise from libraries: no progress bars off a terminal, no warnings about what this project cannot change."""

import logging
import os
import sys
import warnings

import torch
from transformers.utils import logging as transformers_logging

_TIED = (
    "['lm_head.weight']",
    "['encoder.embed_tokens.weight', 'decoder.embed_tokens.weight', 'lm_head.weight']",
)


class _TiedHead(logging.Filter):
    """Drops the warning that what is tied to the input embedding is not in a checkpoint."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        return not any(f"missing keys in the checkpoint model loaded: {names}." in said for names in _TIED)


def quiet_libraries() -> None:
    """Silence bars off a terminal, and messages about deprecated names between the libraries themselves."""
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=r".*is deprecated and will be removed in v6", category=FutureWarning)
    trainer_logger = logging.getLogger("transformers.trainer")
    if not any(isinstance(known, _TiedHead) for known in trainer_logger.filters):
        trainer_logger.addFilter(_TiedHead())
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
