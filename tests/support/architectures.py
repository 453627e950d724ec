"""Small random language models of any architecture of transformers, and plain forward passes of them."""

import functools
from random import Random
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

KINDS = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCABULARY, POSITIONS = 96, 128
MOST_WEIGHTS = 5_000_000
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
# What a random configuration may have instead, where it has a setting of this name.
_CHOICES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias", "use_qkv_bias", "use_bias"), (False, True)),
    **dict.fromkeys(("qk_layernorm", "use_qk_norm", "multi_query", "parallel_attn", "bias", "alibi"), (False, True)),
    **dict.fromkeys(("use_parallel_residual", "new_decoder_architecture", "do_layer_norm_before"), (True, False)),
    **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "scale_attn_weights", "enable_bias"), (False, True)),
    **dict.fromkeys(("add_cross_attention", "use_bidirectional_attention"), (False, False, False, True)),
    **dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping"), (None, None, 5.0)),
    **dict.fromkeys(("logit_scale", "logits_scaling"), (1.0, 0.25)),
    **{"num_key_value_heads": (1, 2, 4), "head_dim": (8, 16), "sliding_window": (64, 8, None)},
    **{"use_sliding_window": (False, True), "max_window_layers": (0, 1), "word_embed_proj_dim": (32, 16)},
}
_ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
    {
        **{"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 64},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
)


def small_config(kind: str, rng: Random | None = None, **settings: Any) -> Any:
    """A small configuration of a kind; with `rng` some of its settings at random."""
    made = CONFIG_MAPPING[kind]
    default = made()
    names = set(default.to_dict()) | set(made.attribute_map)
    given = {name: size for name, size in _SIZES.items() if name in names and name not in made.attribute_map}
    for name in made.sub_configs:
        part = getattr(default, name, None)
        if getattr(part, "model_type", None) in CONFIG_MAPPING:
            given[name] = small_config(part.model_type, rng)
    for name, values in _CHOICES.items():
        if rng is not None and name in names and name not in made.attribute_map and rng.random() < 0.5:
            given[name] = rng.choice(values)
    ropes = getattr(default, "rope_parameters", None)
    if rng is not None and ropes and "rope_theta" in ropes and rng.random() < 0.5:
        given["rope_parameters"] = {"rope_theta": rng.choice([10_000.0, 1_000_000.0]), **rng.choice(_ROPES)}
    return made(**{**given, **settings})


def small_model(config: Any, seed: int = 0, spread: float = 0.3) -> Any:
    """A model of a small configuration whose weights, biases and norms are all random, in evaluation mode.

    Raises:
        ValueError: If it has too many weights to be small.
    """
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST_WEIGHTS:
        raise ValueError(f"{size:,} weights")
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
