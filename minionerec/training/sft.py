"""Supervised fine-tuning: a language model learns to generate semantic IDs (TRL's SFTTrainer, loss on completions)."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from trl.trainer.sft_trainer import SFTTrainer

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.build import (
    load_pretrained,
    resolve_dtype,
    scratch_model,
    train_tokenizer,
)
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.backbone.vocabulary import add_code_tokens, add_wording_tokens, initialise_code_rows
from minionerec.models.nn.layers import Dropout
from minionerec.models.prompts.wording import Wording
from minionerec.sid.table import SidTable
from minionerec.training.distillation import Teacher, soften
from minionerec.training.packing import picked_losses
from minionerec.training.trainer import (
    RankingEvaluation,
    StepInParts,
    plain_model,
)

# Dropout for models that have none, by forward hooks: the checkpoint stays an ordinary one.

BRANCHES = ("self_attn", "mlp")


def add_dropout(model: PreTrainedModel, probability: float) -> int:
    """Apply dropout after the embedding and after every attention and feed-forward block, in training mode only.

    Qwen2 and Llama have no residual dropout of their own; models trained from scratch on small corpora need it (Vaswani
    et al., 2017, section 5.4). Hooks are registered on the model's modules; returned is the number of these.

    Raises:
        ConfigError: If the probability is outside [0, 1), or the model has no such modules.
    """
    if not 0 <= probability < 1:
        raise ConfigError(f"dropout {probability} is outside [0, 1).")
    if probability == 0:
        return 0

    dropout = Dropout(probability)  # in training mode, as the modules it follows are only then

    def hook(module: nn.Module, args: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> object:
        if not module.training:
            return None
        if isinstance(output, tuple):
            return (dropout(output[0]), *output[1:])
        return dropout(output)

    modules = [module for name, module in model.named_modules() if name.rsplit(".", 1)[-1] in BRANCHES]
    if len(modules) != len(BRANCHES) * model.config.num_hidden_layers:
        raise ConfigError(
            f"the blocks of {type(model).__name__} have no modules named {' and '.join(BRANCHES)}; set dropout to 0."
        )
    modules.append(model.get_input_embeddings())
    for module in modules:
        module.register_forward_hook(hook)
    return len(modules)


logger = get_logger(__name__)


# LoRA: low-rank updates of a pretrained model's linear maps, and the rows of its new SID tokens in full.


def lora_config(bundle: Bundle, rank: int) -> Any:
    """Configuration of peft: every linear map but the head by updates of a rank, and the SID tokens' rows.

    The updates are scaled by 2 (`lora_alpha` is twice the rank; Hu et al., "LoRA", 2021, section 4.1).

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


def show_bias(model: PreTrainedModel) -> None:
    """Give peft's wrapper of a head whose rows are trained the head's bias, which it leaves out.

    TRL's fused head reads the attribute, and plain forward passes get the bias by a hook.
    """
    head: Any = model.get_output_embeddings()
    if hasattr(head, "bias"):
        return
    bias = getattr(head.original_module, "bias", None)
    head.bias = None if bias is None else bias.detach()  # no parameter of the wrapper: it would be saved again
    if bias is not None:
        nothing = torch.zeros(1, head.weight.shape[1], dtype=bias.dtype, device=bias.device)
        left_out = head.bias - head(nothing)[0].detach()
        head.register_forward_hook(lambda module, inputs, logits: logits + left_out.to(logits))


class SidSftTrainer(RankingEvaluation, StepInParts, SFTTrainer):
    """TRL's SFT trainer on the packed batches of `TreeCollator`, with ranking of validation examples.

    The loss is TRL's: the sum over labelled tokens, divided by their number in the whole step, over all devices.

    Attributes:
        teacher: Teacher that provides soft targets besides the labels, or None.
        teacher_share: Their share of the loss where there are some.
    """

    teacher: Teacher | None = None
    teacher_share: float = 0.0

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean negative log-likelihood of the labelled tokens, with the head at their positions alone."""
        backbone = plain_model(self.accelerator.unwrap_model(model))
        labels = inputs["labels"][0]
        losses, logits_of = picked_losses(model, backbone, inputs)
        if self.teacher is not None and model.training:
            losses = soften(losses, logits_of, labels, self.teacher(inputs), self.teacher_share)
        loss = (losses * inputs["weights"]).sum()
        if num_items_in_batch is None:
            return loss / len(labels)
        # Gradients are averaged over processes, and the number of items is that of all of them.
        return loss * self.accelerator.num_processes / num_items_in_batch


def scratch_backbone(
    corpus: Corpus,
    table: SidTable,
    wording: Wording,
    *,
    text_vocabulary: int,
    seed: int,
    titles_only: bool = False,
    **shape: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A small model with random weights, and its tokenizer, trained on the corpus's texts, with a token for each code.

    Args:
        corpus: The corpus.
        table: SIDs of its items.
        wording: The wording of prompts.
        text_vocabulary: Tokens trained on texts.
        seed: Seed of the weights.
        titles_only: Whether the model reads and writes titles alone.
        **shape: See `minionerec.models.backbone.build.scratch_model`.
    """
    titles = corpus.items["title"].tolist()
    words = [" ".join([*text.prompts, text.completion]) for text in wording.tasks.values()]
    texts = titles if titles_only else [*titles, *corpus.items["description"], *words]
    tokenizer = train_tokenizer(texts, text_vocabulary)
    add_code_tokens(tokenizer, table)
    add_wording_tokens(tokenizer, wording.tokens)
    return scratch_model(tokenizer, seed, **shape), tokenizer


def pretrained_backbone(
    name: str, corpus: Corpus, table: SidTable, wording: Wording, *, dtype: str, seed: int, generated: bool = True
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A pretrained model, of a hub name or a directory, and its tokenizer, with a token for each code.

    `dtype` is a setting's word; see `initialise_code_rows` for `generated`.
    """
    set_seed(seed)  # rows that are neither the model's nor SIDs start at random
    model, tokenizer = load_pretrained(name, resolve_dtype(dtype))
    add_code_tokens(tokenizer, table)
    add_wording_tokens(tokenizer, wording.tokens)
    initialise_code_rows(model, tokenizer, table, corpus.items["title"].tolist(), seed, generated)
    return model, tokenizer
