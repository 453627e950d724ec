"""RPG: an item is a set of digits, and all digits of the next item are predicted at once."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from minionerec.core.errors import ConfigError
from minionerec.models.nn.layers import INIT_STD, CausalLayer, Dropout, Linear, check_heads, init_weights, slot_range
from minionerec.models.sequential.model import CausalEncoder, ModelData

_ITEMS_AT_ONCE = 1 << 16
_SHORTEST = 1e-12


class RPG(CausalEncoder):
    """Parallel prediction of long, unordered semantic IDs (Hou et al., arXiv 2506.05781, §3).

    Every item has M digits of C codes each (`minionerec build-sids --method opq`) and no vector of its own: it is read
    as the mean of its M code vectors. After a causal transformer of GPT-2's kind, digit m has a head s + SiLU(W_m s +
    b_m) of its own, and its codes are scored by the cosine of that and their vectors, divided by the temperature. The
    loss is the mean cross-entropy of the digits, as if they were independent, and an item's score the mean of
    its digits' log-probabilities. Items with the same digits have the same score. Where this departs from the paper
    and its code:

    1. Every item of the catalogue is scored, which the paper does to check its search (there a walk over a graph of
       similar items finds candidates).
    2. GELU is exact, not by tanh, and norms have an eps of 1e-5, not 1e-12.
    3. W_m and b_m start at 0, so that heads start as the identity; there b_m is drawn.
    4. Code vectors start √M times as wide as the vectors of slots, so that items, which are means of M, are not lost
       beside those; there both start alike, and a long warm-up makes up for it.

    Args:
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        inner_size: Width of the position-wise network.
        attention_dropout: Dropout of attention weights.
        dropout: Dropout of the input vectors.
        residual_dropout: Dropout after each part of a layer.
        temperature: Divisor of the cosines.
        num_digits: Digits of an item, M. `set_digits` gives them.
        num_codes: Codes of a digit, C.
    """

    reads_digits = True
    digits: torch.Tensor

    def __init__(
        self,
        *,
        hidden_size: int = 448,
        num_layers: int = 2,
        num_heads: int = 4,
        inner_size: int = 1024,
        attention_dropout: float = 0.5,
        dropout: float = 0.5,
        residual_dropout: float = 0.0,
        temperature: float = 0.03,
        num_digits: int = 32,
        num_codes: int = 256,
        **sizes: Any,
    ):
        super().__init__(hidden_size=hidden_size, **sizes)
        check_heads(hidden_size, num_heads)
        if temperature <= 0 or num_digits < 1 or num_codes < 1:
            raise ConfigError(
                f"temperature is {temperature}, num_digits {num_digits} and num_codes {num_codes}; they must be above "
                "0, and 1 or above."
            )
        self.temperature, self.num_digits, self.num_codes = temperature, num_digits, num_codes
        self.codes = nn.Embedding(num_digits * num_codes, hidden_size)
        self.slots = nn.Embedding(self.max_len, hidden_size)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(
            CausalLayer(hidden_size, num_heads, inner_size, residual_dropout, attention_dropout, rotary=False)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(hidden_size)
        self.heads = Linear(hidden_size, num_digits * hidden_size)
        self.register_buffer("digits", torch.zeros(self.num_items + 1, num_digits, dtype=torch.int32))
        self.apply(init_weights)
        self.scale_residual_maps()
        nn.init.normal_(self.codes.weight, std=INIT_STD * math.sqrt(num_digits))
        nn.init.zeros_(self.heads.weight)

    @classmethod
    def data_hyper(cls, data: ModelData) -> dict[str, Any]:
        """See `SequentialModel`; and the numbers of digits and of codes."""
        return {
            **super().data_hyper(data),
            "num_digits": 0 if data.digits is None else data.digits.shape[1],
            "num_codes": 0 if data.digits is None else int(data.digits.max()) + 1,
        }

    def set_digits(self, digits: torch.Tensor) -> None:
        """Give the items their digits.

        Args:
            digits: int (N, M) of codes from 0 to C - 1, row i of item i + 1.

        Raises:
            ConfigError: If the shape does not match, or a code is out of range.
        """
        expected_shape = (self.num_items, self.num_digits)
        if tuple(digits.shape) != expected_shape:
            raise ConfigError(
                f"digits have shape {tuple(digits.shape)}; expected {expected_shape} (num_items, num_digits)."
            )
        self.digits[1:] = digits
        if (flaw := self.flaw()) is not None:
            raise ConfigError(f"{flaw}.")

    def flaw(self) -> str | None:
        """See `SequentialModel`; of the digits."""
        wrong = ((self.digits < 0) | (self.digits >= self.num_codes)).any(1).nonzero()[:, 0]
        if not len(wrong):
            return None
        item = int(wrong[0])
        return f"item {item} has digits {self.digits[item].tolist()}, which must be from 0 to {self.num_codes - 1}"

    def _rows(self, digits: torch.Tensor) -> torch.Tensor:
        """Rows of the table of code vectors: digits, int32 (K, M), to int64 (K, M)."""
        return digits + self.num_codes * torch.arange(self.num_digits, device=digits.device)

    def item_vectors(self, items: torch.Tensor) -> torch.Tensor:
        """Input vectors of items: int64 (...) to float (..., D), zeros for padding."""
        flat = items.flatten()
        means = functional.embedding_bag(self._rows(self.digits[flat]), self.codes.weight, mode="mean")
        vectors: torch.Tensor = (means * (flat > 0)[:, None]).unflatten(0, items.shape)
        return vectors

    def embed(self, histories: torch.Tensor) -> torch.Tensor:
        """See `CausalEncoder`."""
        slots = self.slots.weight[slot_range(histories.shape[1], self.max_len, self.padding)]
        embedded: torch.Tensor = self.dropout(self.item_vectors(histories) + slots)
        return embedded

    def item_matrix(self) -> torch.Tensor:
        """Input vectors of all items: float (V, D)."""
        return self.item_vectors(torch.arange(self.num_items + 1, device=self.digits.device))

    def digit_log_probs(self, vectors: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the codes of each digit: float (K, D) to (M, K, C)."""
        states = vectors[:, None] + functional.silu(self.heads(vectors)).unflatten(1, (self.num_digits, -1))
        codes = functional.normalize(self.codes.weight, dim=-1) / self.temperature
        products = torch.bmm(states.transpose(0, 1), codes.unflatten(0, (self.num_digits, -1)).transpose(1, 2))
        lengths = states.norm(dim=-1).clamp_min(_SHORTEST).T  # dividing the products is less than dividing the states
        log_probs: torch.Tensor = (products * lengths.reciprocal()[..., None]).log_softmax(-1)  # (M, K, C)
        return log_probs

    def logits(self, vectors: torch.Tensor) -> torch.Tensor:
        """Mean log-probability of every item's digits, -inf for padding: float (..., D) to (..., V).

        The M gathered numbers of an item are summed as they are read, so that no (..., V, M) exists, and in the
        same order for every item, so that equal digits give equal scores.
        """
        log_probs = self.digit_log_probs(vectors.reshape(-1, vectors.shape[-1]))
        table = log_probs.transpose(1, 2).flatten(0, 1).contiguous()  # (M C, K)
        parts = [
            functional.embedding_bag(self._rows(part), table, mode="mean")
            for part in self.digits[1:].split(_ITEMS_AT_ONCE)
        ]  # (N, K)
        scores: torch.Tensor = torch.cat([table.new_full((1, table.shape[1]), -torch.inf), *parts]).T
        return scores.reshape(*vectors.shape[:-1], -1)

    def cross_entropy(self, vectors: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of the targets' digits: float (K, D) and int64 (K,) to a scalar."""
        codes = self.digits[targets].long().T[..., None]  # (M, K, 1)
        return -self.digit_log_probs(vectors).gather(2, codes).mean()
