"""A TIGER with random weights, and the language that it speaks: semantic IDs and nothing else."""

from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, set_seed

from minionerec.models.backbone.build import EOS, PAD
from minionerec.models.backbone.tiger.config import TigerConfig
from minionerec.models.backbone.tiger.model import TigerModel
from minionerec.models.backbone.vocabulary import add_code_tokens
from minionerec.models.nn.linear import replace_linear
from minionerec.models.prompts.wording import TaskWording, Wording
from minionerec.sid.table import SidTable

TIGER_WORDING = Wording("tiger", "", " ; ", {"next_sid": TaskWording(("{history}{eos}",), "{sid}")})
"""The encoder reads the SIDs of a history, the oldest first, and an end token; the decoder says the SID alone."""


def sid_tokenizer(table: SidTable) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary is the padding token (0), the end token (1) and one token for each code of a level.

    Example:
        >>> import numpy as np
        >>> tokenizer = sid_tokenizer(SidTable(np.array([[0, 1], [2, 1]]), ["x", "y"]))
        >>> tokenizer("<a_2><b_1><|eos|>")["input_ids"], len(tokenizer)
        ([3, 4, 1], 5)
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({PAD: 0, EOS: 1}, unk_token=PAD)),
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    add_code_tokens(tokenizer, table)
    return tokenizer


def build_tiger(tokenizer: PreTrainedTokenizerBase, seed: int, **shape: Any) -> TigerModel:
    """A TIGER with random weights, drawn as T5 draws them, whose vocabulary is exactly the tokenizer's.

    Args:
        tokenizer: Its tokenizer (`sid_tokenizer`).
        seed: Seed of the weights.
        shape: Settings of `TigerConfig`.
    """
    set_seed(seed)
    config = TigerConfig(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, **shape
    )
    return replace_linear(TigerModel(config))
