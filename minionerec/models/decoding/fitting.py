"""How many prompts are searched at a time."""

import numpy as np
import torch
from transformers import PreTrainedModel

from minionerec.models.decoding.branches import OpensBranches
from minionerec.models.decoding.trie import Trie

_LARGEST_BATCH = {"cpu": 64, "cuda": 256}


def fitting_batch_size(model: PreTrainedModel, trie: Trie, longest_prompt: int, beams: int, memory: int) -> int:
    """How many prompts fit into half of a given memory, as a power of two.

    A prompt of P tokens with K beams over L levels is reckoned to take, in values of the weights' dtype,

        2 n h d S                       keys and values of its S = P + K (L - 1) positions in n layers
        + 4 H d S                       keys and values spread over all H heads, and their copies, in one layer
        + max(P, K) (6 D + 4 F)         activations of one layer, D wide and F inside
        + 4 max(P, K) S                 attention mask and weights
        + 12 K W                        candidates: K beams, W children each at most
        + what a model that scores all SIDs by itself holds of them

    Args:
        model: The model, where it is to run.
        trie: SIDs of the catalogue.
        longest_prompt: P.
        beams: K.
        memory: Bytes.

    Returns:
        From 1 to 64 on a CPU, to 256 on a GPU: more would not be faster.
    """
    config = model.config
    said = vars(config)
    heads: int = config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = said.get("num_key_value_heads") or heads
    span = longest_prompt + beams * (trie.levels - 1)
    tokens = max(longest_prompt, beams)
    fan = int(trie.first_child.diff().max())
    values = (
        2 * config.num_hidden_layers * kv_heads * head_width * span
        + 4 * heads * head_width * span
        + tokens * (6 * config.hidden_size + 4 * config.intermediate_size)
        + 4 * tokens * span
        + 12 * beams * fan
        + (model.values_at_once(trie) if isinstance(model, OpensBranches) else 0)
    )
    fitting = memory // 2 // (values * model.dtype.itemsize)
    largest = _LARGEST_BATCH.get(torch.device(model.device).type, 256)
    return int(2 ** int(np.log2(min(max(1, fitting), largest))))
