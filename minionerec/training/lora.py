"""LoRA: low-rank updates of a pretrained model's linear maps, and the rows of its new SID tokens in full."""

from typing import Any

from transformers import PreTrainedModel
from transformers.utils.import_utils import is_peft_available

from minionerec.core.errors import ConfigError
from minionerec.models.backbone.bundle import Bundle


def lora_config(bundle: Bundle, rank: int) -> Any:
    """What peft is to train: every linear map but the head by updates of a rank, and the SID tokens' rows.

    The updates are scaled by 2 (`lora_alpha` is twice the rank; Hu et al., "LoRA", 2021, section 4.1).

    Args:
        bundle: The model, and the SID tokens it is to learn.
        rank: Rank of the updates.

    Raises:
        ConfigError: If peft is not installed.
    """
    try:
        from peft import LoraConfig
    except ImportError:
        raise ConfigError(
            f"lora_rank is {rank}, which needs peft: install minionerec[peft], or set lora_rank to 0."
        ) from None
    model: Any = bundle.model
    matrices = [model.get_input_embeddings()]
    if model.get_output_embeddings().weight is not matrices[0].weight:
        matrices.append(model.get_output_embeddings())
    names = [name.rsplit(".", 1)[-1] for name, module in model.named_modules() if any(module is m for m in matrices)]
    rows = sorted(int(i) for i in bundle.code_ids[bundle.code_ids >= 0])
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=2 * rank,
        target_modules="all-linear",
        trainable_token_indices=dict.fromkeys(names, rows),
    )


def plain_model(model: Any) -> PreTrainedModel:
    """The language model itself, with its updates in place where it has some."""
    plain: PreTrainedModel = model.get_base_model() if _has_updates(model) else model
    return plain


def merged_model(model: Any) -> PreTrainedModel:
    """The language model with its updates added to its weights, where it has some: an ordinary model again."""
    merged: PreTrainedModel = model.merge_and_unload() if _has_updates(model) else model
    return merged


def _has_updates(model: Any) -> bool:
    if not is_peft_available():
        return False
    from peft import PeftModel

    return isinstance(model, PeftModel)
