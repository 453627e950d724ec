"""Log-probabilities of candidate tokens under a language model's head, without logits over the whole vocabulary."""

import torch
from transformers import PreTrainedModel

# Logits held at a time while the head's normaliser is summed up: 8 MiB in float32 stay in a CPU's cache.
_LOGITS_AT_ONCE = {"cpu": 2**21, "cuda": 2**26}


def candidate_scores(
    model: PreTrainedModel,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    present: torch.Tensor,
    normaliser: str = "full",
    temperature: float = 1.0,
) -> torch.Tensor:
    """Log-probabilities of candidate next tokens, without ever keeping logits over the vocabulary for all rows.

    The candidates' logits come from their own rows of the head. The normaliser over the whole vocabulary is summed up
    over slices of the head; over the candidates alone the rest of the head is not touched.

    Args:
        model: Causal language model.
        hidden: (R, D).
        tokens: int64 (R, W), vocabulary ids of the candidates.
        present: bool (R, W), which of them exist.
        normaliser: "full": log-softmax over the whole vocabulary, as stock beam search scores; "renormalised": over
            the row's candidates only.
        temperature: Logits are divided by it.

    Returns:
        float32 (R, W), minus infinity where there is no candidate.
    """
    head: torch.nn.Module = model.get_output_embeddings()
    size = model.config.vocab_size
    at_once = _LOGITS_AT_ONCE.get(hidden.device.type, 2**26)
    plain = head if isinstance(head, torch.nn.Linear) and head.weight.shape[0] == size else None
    if plain is None or (normaliser == "full" and hidden.shape[0] * size <= at_once):
        parts = []
        rows_at_once = max(1, at_once // size)
        for rows, ids in zip(hidden.split(rows_at_once), tokens.split(rows_at_once), strict=True):
            logits = head(rows).float() / temperature
            parts.append((logits.gather(1, ids), logits.logsumexp(-1, keepdim=True)))
        scores, total = (torch.cat(part) for part in zip(*parts, strict=True))
    else:
        weight, bias = plain.weight, plain.bias
        wanted = torch.zeros(size, dtype=torch.bool, device=tokens.device)
        wanted[tokens] = True
        ids = wanted.nonzero().squeeze(1)  # (I,) distinct candidates
        column = wanted.cumsum(0) - 1
        own = torch.nn.functional.linear(hidden, weight[ids], None if bias is None else bias[ids])
        scores = own.float().gather(1, column[tokens]) / temperature
        if normaliser == "full":
            total = _log_normaliser(hidden, weight, bias, temperature, at_once)
    scores = scores.masked_fill(~present, -torch.inf)
    if normaliser != "full":
        total = scores.logsumexp(-1, keepdim=True)
    return (scores - total).masked_fill(~present, -torch.inf)


def _log_normaliser(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float, at_once: int
) -> torch.Tensor:
    """Log of the summed exponentials of all logits of each row, float32 (R, 1), `at_once` logits at a time."""
    parts = []
    for rows in hidden.split(1024):
        total = torch.full((len(rows), 1), -torch.inf, device=hidden.device)
        step = max(256, at_once // len(rows))
        for start in range(0, len(weight), step):
            piece = slice(start, start + step)
            logits = torch.nn.functional.linear(rows, weight[piece], None if bias is None else bias[piece]).float()
            total = torch.logaddexp(total, (logits / temperature if temperature != 1 else logits).logsumexp(-1, True))
        parts.append(total)
    return torch.cat(parts)
