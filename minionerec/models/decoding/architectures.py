"""Supported architectures of language models.

Losses and searches put several continuations of a prompt into one sequence, separate them by attention mask and
positions, and compute the head themselves. This is correct for dense attention with rotary or learned positions and a
plain linear head, but not for layers that mix neighbouring tokens, positions computed from the mask, or logits scaled
after the head. So an architecture that is not listed here is refused before weights are read. Each is tested against
the library's forward pass (`tests/stages/test_architectures.py`).
"""

from typing import Any

from minionerec.core.errors import ConfigError

ROTARY, LEARNED = "rotary", "learned"
ARCHITECTURES: dict[str, str] = {
    **dict.fromkeys(("ernie4_5", "exaone4", "falcon", "gemma", "gemma3_text", "glm", "gpt_neox", "gptj"), ROTARY),
    **dict.fromkeys(("hunyuan_v1_dense", "llama", "mistral", "olmo", "olmo2", "olmo3", "phi", "phi3"), ROTARY),
    **dict.fromkeys(("qwen2", "qwen3", "smollm3", "stablelm", "starcoder2"), ROTARY),
    **dict.fromkeys(("gpt2", "opt"), LEARNED),
}
"""Value of `model_type` in a model's configuration to the kind of its positions."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")
_OTHER_LAYERS = (
    *("layers_block_type", "attention_types", "conv_L_cache"),
    *("mamba_d_state", "state_size", "ssm_state_size"),
)
_ATTENTION = {"full_attention", "sliding_attention"}
_SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier", "dim_model_base")
_SOFT_CAPS = {"final_logit_softcapping": "logits", "attn_logit_softcapping": "attention"}
_OPTIONS = {
    "alibi": "ALiBi positions",
    "add_cross_attention": "cross-attention",
    "is_encoder_decoder": "an encoder-decoder",
    "use_bidirectional_attention": "attention to later tokens",
    "quantization_config": "quantised weights",
}
_ALIBI = ("bloom", "mpt")


def unsupported(config: Any) -> str | None:
    """Describe the part of a language model's configuration that is not supported, in words; None if all is."""
    if config.model_type in _ALIBI:
        return _OPTIONS["alibi"]
    if config.sub_configs:
        return "a composite of several models"
    if any(getattr(config, name, None) for name in _EXPERTS):
        return "a mixture of experts"
    if other := sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION):
        return f"layers of the kind {', '.join(other)}"
    if any(getattr(config, name, None) for name in _OTHER_LAYERS):
        return "layers that are not dense attention"
    for name, words in _OPTIONS.items():
        if getattr(config, name, None):
            return f"{words} ({name})"
    for name in _SCALES:
        if getattr(config, name, None) not in (None, 1):
            return f"scaled logits ({name} {getattr(config, name)})"
    for name, words in _SOFT_CAPS.items():
        if getattr(config, name, None) is not None:
            return f"soft-capped {words} ({name} {getattr(config, name)})"
    return None if config.model_type in ARCHITECTURES else "an architecture that was never tested"


def check_architecture(config: Any, model: Any, error: type[Exception] = ConfigError) -> None:
    """Check that a language model's architecture is supported.

    Args:
        config: Configuration of the model.
        model: Name or path of the model, for the message.
        error: Class of the error.

    Raises:
        error: If it is not; the message lists the supported architectures.
    """
    flaw = unsupported(config)
    if flaw is not None:
        raise error(
            f"{model}: is a {config.model_type} model, {flaw}, which is not supported. Give a model with dense "
            f"attention, rotary or learned positions and a plain head: {', '.join(sorted(ARCHITECTURES))}."
        )


def longest_sequence(config: Any) -> int | None:
    """Maximum number of tokens, prompt and completion together, of a correctly scored sequence; None without one.

    The bound is the number of learned positions, a sliding window, or the length up to which rotary positions do not
    depend on the batch (rope types dynamic and longrope depend on its longest sequence beyond that).
    """
    bounds = [config.max_position_embeddings] if ARCHITECTURES.get(config.model_type) == LEARNED else []
    window, layers = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if window is not None and (layers is None or "sliding_attention" in layers):
        bounds.append(window)
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):
        if isinstance(parameters, dict) and parameters.get("rope_type") in ("dynamic", "longrope"):
            bounds.append(parameters.get("original_max_position_embeddings") or config.max_position_embeddings)
    return min(bounds, default=None)


def check_length(config: Any, tokens: int, remedy: str) -> None:
    """Check that sequences are not longer than `longest_sequence`.

    Args:
        config: Configuration of the model.
        tokens: Tokens of the longest sequence.
        remedy: Last sentence of the message; "{}" is replaced by the number of excess tokens.

    Raises:
        ConfigError: If they are longer.
    """
    limit = longest_sequence(config)
    if limit is not None and tokens > limit:
        raise ConfigError(
            f"sequences of {tokens:,} tokens, prompt and completion together, are too long for this "
            f"{config.model_type} model, whose positions or sliding window end at {limit:,}. "
            + remedy.format(tokens - limit)
        )


def inner_width(config: Any) -> int:
    """Width of the feed-forward layers of a configuration, which architectures name differently."""
    names = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    given = next((value for name in names if (value := getattr(config, name, None))), None)
    return int(given or 4 * config.hidden_size)
