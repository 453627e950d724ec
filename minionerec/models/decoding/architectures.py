"""Architectures of language models that are supported, declared in one place.

Losses and searches put several continuations of a prompt into one sequence and tell them apart by an attention mask
and by positions alone, and compute the head by itself. That is right for dense attention with rotary or learned
positions and a plain linear head, and silently wrong for much else: layers that mix neighbours of a sequence, positions
that are counted from the mask, logits that are scaled after the head. A model is therefore asked for before its weights
are read, and whatever is not declared here is refused. Each architecture is tested against the library's own forward
passes (`tests/stages/test_architectures.py`).
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
    """Name what of a language model's configuration is not supported.

    Args:
        config: Configuration of transformers.

    Returns:
        A part of a sentence; None of a supported one.
    """
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
    """Check that a language model is one whose losses and lists are right here.

    Args:
        config: Its configuration.
        model: Its name or path, for the message.
        error: Class of the error.

    Raises:
        error: Naming what is not supported, and what is.
    """
    flaw = unsupported(config)
    if flaw is not None:
        raise error(
            f"{model}: is a {config.model_type} model, {flaw}, which is not supported. Give a model with dense "
            f"attention, rotary or learned positions and a plain head: {', '.join(sorted(ARCHITECTURES))}."
        )


def longest_sequence(config: Any) -> int | None:
    """Find how many tokens a sequence may have, prompt and completion together, to be scored right.

    Learned positions end there, or a sliding window, or the length up to which rotary positions depend on the token
    alone (rope types dynamic and longrope choose others by the longest sequence of a batch).

    Args:
        config: Configuration of a supported architecture.

    Returns:
        The number; None without a bound.
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
    """Check that sequences are not longer than a model scores right.

    Args:
        config: Configuration of the model.
        tokens: Tokens of the longest sequence.
        remedy: What to change; "{}" stands for the tokens that are too many.

    Raises:
        ConfigError: If they are.
    """
    most = longest_sequence(config)
    if most is not None and tokens > most:
        raise ConfigError(
            f"sequences of {tokens:,} tokens, prompt and completion together, are too long for this "
            f"{config.model_type} model, whose positions or sliding window end at {most:,}. "
            + remedy.format(tokens - most)
        )


def inner_width(config: Any) -> int:
    """Width of the feed-forward layers of a configuration, which architectures name differently."""
    names = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    given = next((value for name in names if (value := getattr(config, name, None))), None)
    return int(given or 4 * config.hidden_size)
