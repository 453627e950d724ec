"""The shape of a TIGER."""

from collections.abc import Callable
from typing import Any

from transformers import T5Config


class TigerConfig(T5Config):
    """Shape of a `TigerModel`: that of a T5, whose decoder starts at the padding token.

    The defaults are the published ones: encoder and decoder of 4 layers, 128 wide, 6 heads of 64, 1,024 inside.

    Raises:
        ValueError: If the vocabulary has no padding token, or the buckets of relative positions do not fit.
    """

    model_type = "minionerec_tiger"
    attribute_map = T5Config.attribute_map | {"intermediate_size": "d_ff"}  # what language models call it

    d_model: int = 128
    d_ff: int = 1024
    num_layers: int = 4
    num_heads: int = 6

    def __post_init__(self, **kwargs: Any) -> None:
        """Check what no tensor's shape says."""
        prepare: Callable[..., None] = super().__post_init__
        prepare(**{**kwargs, "decoder_start_token_id": self.pad_token_id})
        if self.pad_token_id is None or not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id is {self.pad_token_id}, but there are {self.vocab_size} tokens")
        if not 4 <= self.relative_attention_num_buckets < 2 * self.relative_attention_max_distance:
            raise ValueError(
                f"relative_attention_num_buckets is {self.relative_attention_num_buckets}, expected from 4 to less "
                f"than twice relative_attention_max_distance {self.relative_attention_max_distance}"
            )
