"""Small random language models of any architecture of transformers, and plain forward passes of them."""

import functools
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

VOCABULARY, POSITIONS = 96, 128
# Sizes by the names that configurations have for them.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_size", "dim_model"), 32),
    **dict.fromkeys(("word_embed_proj_dim",), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads", "num_key_value_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "rotary_dim"), 4),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "ffn_size", "dim_ff"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), POSITIONS),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim", "global_head_dim", "dim_head"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "linear_num_key_heads", "expansion_ratio"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **{"qk_head_dim": 16, "state_size": 8, "sliding_window": 64, "attention_types": [[["global"], 2]]},
    **{"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_n_groups": 1},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}


def small_config(kind: str, **settings: Any) -> Any:
    """A small configuration of a kind."""
    made = CONFIG_MAPPING[kind]
    default = made()
    names = set(default.to_dict()) | set(made.attribute_map)
    given = {name: size for name, size in _SIZES.items() if name in names and name not in made.attribute_map}
    for name in made.sub_configs:
        part = getattr(default, name, None)
        if getattr(part, "model_type", None) in CONFIG_MAPPING:
            given[name] = small_config(part.model_type)
    return made(**{**given, **settings})


def small_model(config: Any, seed: int = 0, spread: float = 0.3) -> Any:
    """A model of a small configuration whose weights, biases and norms are all random, in evaluation mode."""
    model: Any = AutoModelForCausalLM.from_config(config).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * spread
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
    return model.eval()


@torch.no_grad()
def plain_log_probs(model: Any, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Log-probabilities of a completion's tokens by one plain forward pass, float64."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.double().log_softmax(-1).gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)


@functools.cache
def supported_model(kind: str) -> Any:
    """The small model of a kind; it must not be changed."""
    return small_model(small_config(kind))
