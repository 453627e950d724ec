"""One prompt, many branches: a prompt's keys and values are computed once and read by all its branches in place.

The branches of a prompt lie side by side in the sequence behind it, and a 4-D attention mask lets each token see the
prompt, its own ancestors and itself:

    position in the sequence:  [ pad pad p0 p1 p2 | a0 a1 a2 | b0 b1 b2 ]     b1's parent is a0
    b1 sees:                   [  .   .  x  x  x  | x  .  .  | .  x  .  ]

Rotary positions are given explicitly (every a has position 3, every b position 4), so that the scores are those of the
replicated sequences. Only public interfaces are used: `get_decoder`, cache classes, `position_ids`, 4-D masks.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from minionerec.core.errors import ConfigError
from minionerec.decoding.masks import attention_mask_4d
from minionerec.decoding.prefill import PromptState, prefill
from minionerec.decoding.scoring import candidate_scores

_HEAD_EXTRAS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def check_backbone(model: PreTrainedModel) -> None:
    """Check that logits are a plain linear map of hidden states, as the scores computed here assume.

    Raises:
        ConfigError: If the model caps or scales its logits, or sees only a window of its prompt.
    """
    settings = vars(model.config)
    if "sliding_attention" in (settings.get("layer_types") or ()):
        raise ConfigError(f"{type(model).__name__} uses sliding-window attention; set use_sliding_window to false.")
    for name in _HEAD_EXTRAS:
        if settings.get(name) not in (None, 1.0):
            raise ConfigError(
                f"{type(model).__name__} sets {name}, which this decoder does not apply. Use Qwen2/3 or Llama."
            )


class CausalBranches:
    """`Branches` of a causal language model: a batch of prompts and the tree of branch tokens behind each of them.

    Args:
        model: Causal language model.
        prompts: B token id lists, none empty; each is run once, here.
        levels: Most branch tokens on one path.

    Attributes:
        hidden: (B, D), last hidden state of each prompt's last token.
        count: Branch tokens that have been run for each prompt; the next to run get the slots from here on.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], levels: int):
        self.model = model
        self.state = prefill(model, prompts)
        self.hidden = self.state.hidden
        self.count = 0
        # Slots of the ancestors of each branch token, by depth; -1 where there is none.
        self.paths = torch.full((len(prompts), 0, levels), -1, dtype=torch.long, device=self.hidden.device)

    def run(
        self,
        tokens: torch.Tensor,
        parents: torch.Tensor,
        depth: int | torch.Tensor,
        sees: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run one more token behind each of K branches.

        Args:
            tokens: int64 (B, K).
            parents: int64 (B, K), slots of the tokens before them; -1 behind the prompt itself.
            depth: Branch tokens before them on their paths: one number, or int64 (B, K).
            sees: bool (B, K, K), which of these tokens see which of them, each itself at least; None if no other. A
                token that sees others has, as its parent, the slot before the first of them, and is never a parent.

        Returns:
            Hidden states (B, K, D).
        """
        if self.count:
            index = parents.clamp(min=0).unsqueeze(-1).expand(-1, -1, self.paths.shape[2])
            paths = self.paths.gather(1, index).masked_fill(parents.unsqueeze(-1) < 0, -1)
        else:
            paths = self.paths.new_full((*tokens.shape, self.paths.shape[2]), -1)
        place = (paths >= 0).sum(-1, keepdim=True).clamp(max=paths.shape[2] - 1)
        paths = paths.scatter(2, place, parents.unsqueeze(-1))
        seen = torch.zeros(*tokens.shape, self.count + 1, dtype=torch.bool, device=tokens.device)
        ancestors = seen.scatter_(2, paths.masked_fill(paths < 0, self.count), True)[..., :-1]
        if sees is None:
            sees = torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device).expand(len(tokens), -1, -1)
        hidden = _extend(self.model, self.state, tokens, torch.cat([ancestors, sees], -1), depth)
        self.paths = torch.cat([self.paths, paths], dim=1)
        self.count += tokens.shape[1]
        return hidden

    def compact(self, kept: torch.Tensor) -> torch.Tensor:
        """Forget branch tokens, so that later ones have fewer to look at.

        Args:
            kept: bool (B, count), the slots that stay, with every token the ancestors that it has.

        Returns:
            int64 (B, count), what each slot is called from now on, -1 if it is gone; `count` is what the fullest row
            has kept.
        """
        numbers = (kept.long().cumsum(1) - 1).masked_fill(~kept, -1)
        if kept.all():
            return numbers
        width = int(kept.sum(1).max())
        order = (~kept).byte().argsort(dim=1, stable=True)[:, :width]  # (B, width), the slots that stay first
        paths = self.paths.gather(1, order.unsqueeze(-1).expand(-1, -1, self.paths.shape[2]))
        named = numbers.gather(1, paths.clamp(min=0).flatten(1)).view_as(paths)
        self.paths = named.masked_fill(paths < 0, -1)
        self.state.keep(order)
        self.count = width
        return numbers

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens behind K branches, see `candidate_scores`.

        Args:
            hidden: (B, K, D), of `hidden` or `run`.
            tokens: int64 (B, K, W), vocabulary ids of the candidates.
            present: bool (B, K, W), which of them exist.
            normaliser: "full" or "renormalised".
            temperature: Logits are divided by it.

        Returns:
            float32 (B, K, W), minus infinity where there is no candidate.
        """
        states, ids, exist = (part.flatten(0, 1) for part in (hidden, tokens, present))
        return candidate_scores(self.model, states, ids, exist, normaliser, temperature).view(tokens.shape)


def _extend(
    model: PreTrainedModel, state: PromptState, tokens: torch.Tensor, sees: torch.Tensor, depth: int | torch.Tensor
) -> torch.Tensor:
    """Run one more token for each branch of each prompt, in place on the cache.

    Args:
        model: Causal language model.
        state: Prefilled prompts; its cache grows by K positions.
        tokens: int64 (B, K), one token a branch.
        sees: bool (B, K, E + K), which of the E branch positions added before, and of these, each token sees.
        depth: How many branch tokens lie between the prompt and these (0 for the first call); int64 (B, K) where they
            differ.

    Returns:
        Hidden states (B, K, D).
    """
    batch, beams = tokens.shape
    prompt = state.mask.unsqueeze(1).expand(batch, beams, -1)
    visible = torch.cat([prompt, sees], dim=-1)
    output = model.get_decoder()(
        input_ids=tokens,
        attention_mask=attention_mask_4d(visible, model),
        position_ids=(state.lengths.unsqueeze(1) + depth).expand(batch, beams),
        past_key_values=state.cache,
        use_cache=True,
    )
    hidden: torch.Tensor = output.last_hidden_state
    return hidden
