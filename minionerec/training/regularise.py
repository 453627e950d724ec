"""Dropout for models that have none, by forward hooks: the checkpoint stays an ordinary one."""

import torch
from torch import nn
from transformers import PreTrainedModel

from minionerec.core.errors import ConfigError
from minionerec.nn.dropout import Dropout

BRANCHES = ("self_attn", "mlp")


def add_dropout(model: PreTrainedModel, probability: float) -> int:
    """Apply dropout behind the embedding and behind every attention and feed-forward block, in training mode only.

    Qwen2 and Llama have no residual dropout of their own; models trained from scratch on small corpora need it
    (Vaswani et al., 2017, section 5.4, places it so).

    Args:
        model: Causal language model, hooks are registered on its modules.
        probability: Share of activations set to zero, in [0, 1).

    Returns:
        Number of modules that got dropout.

    Raises:
        ConfigError: If the probability is out of range, or the model has no such modules.
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
    if not modules:
        raise ConfigError(f"{type(model).__name__} has no modules named {' or '.join(BRANCHES)}; set dropout to 0.")
    modules.append(model.get_input_embeddings())
    for module in modules:
        module.register_forward_hook(hook)
    return len(modules)
