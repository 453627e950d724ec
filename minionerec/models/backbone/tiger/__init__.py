"""TIGER: an encoder-decoder that reads the semantic IDs of a history and speaks that of the next item.

Rajput et al., "Recommender Systems with Generative Retrieval" (NeurIPS 2023), section 3.2: a T5 (Raffel et al., 2020)
whose vocabulary are the codes of the SIDs. The encoder reads the history in both directions, the decoder names the next
SID code by code behind a start token. The model is that of transformers; ours are the vocabulary, the wording, and the
branches that searches grow on.
"""

from minionerec.models.backbone.tiger.build import TIGER_WORDING, build_tiger, sid_tokenizer
from minionerec.models.backbone.tiger.config import TigerConfig
from minionerec.models.backbone.tiger.model import TigerModel

__all__ = ["TIGER_WORDING", "TigerConfig", "TigerModel", "build_tiger", "sid_tokenizer"]
