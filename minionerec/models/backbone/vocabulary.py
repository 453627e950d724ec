"""SID tokens in a tokenizer and a model: one token per code, and initialisation of their rows."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from minionerec.core.errors import DataError
from minionerec.models.decoding.architectures import longest_sequence
from minionerec.sid.table import SidTable, code_token

SHARE = 0.95  # total probability of codes after SIDs when training begins
_SEQUENCES, _SIDS = 8, 6


def add_code_tokens(tokenizer: PreTrainedTokenizerBase, table: SidTable) -> None:
    """Add every SID token of a table to a tokenizer, in string order, as ordinary (not special) tokens."""
    tokens = [AddedToken(token, normalized=False, special=False) for token in table.tokens]
    tokenizer.add_tokens(tokens)
    verify_code_tokens(tokenizer, table)


def add_wording_tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> None:
    """Add the texts for request features and events (`Wording.tokens`) to a tokenizer as ordinary tokens."""
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in texts])


def verify_code_tokens(tokenizer: PreTrainedTokenizerBase, table: SidTable) -> None:
    """Check that each SID token of a table is exactly one token and decodes back, alone and within SIDs.

    Raises:
        DataError: Naming the first token that the tokenizer splits or changes.
    """
    known = set(tokenizer.get_vocab())
    for token in table.tokens:
        ids = tokenizer(token, add_special_tokens=False)["input_ids"]
        if token not in known or len(ids) != 1 or tokenizer.decode(ids) != token:
            raise DataError(
                f"the tokenizer turns the SID token {token!r} into {len(ids)} tokens; expected 1 that decodes back. "
                "The checkpoint belongs to another SID table, or its vocabulary was not extended."
            )
    for tokens, sid in zip(table.token_tuples[:100], table.sids[:100], strict=True):
        if tokenizer(sid, add_special_tokens=False)["input_ids"] != tokenizer.convert_tokens_to_ids(list(tokens)):
            raise DataError(f"the tokenizer does not turn the SID {sid!r} into its {len(tokens)} tokens.")


def code_token_ids(tokenizer: PreTrainedTokenizerBase, table: SidTable) -> np.ndarray:
    """Vocabulary id of code c at level l, int64 (L, C), -1 for a code that the table does not use."""
    vocabulary = tokenizer.get_vocab()
    ids = np.full((table.levels, int(table.codes.max()) + 1), -1, dtype=np.int64)
    for level in range(table.levels):
        for code in np.unique(table.codes[:, level]):
            if code >= 0:
                ids[level, code] = vocabulary[code_token(level, int(code))]
    return ids


def initialise_code_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    table: SidTable,
    titles: Sequence[str],
    seed: int,
    generated: bool = True,
) -> None:
    """Grow the embedding to the tokenizer's size and initialise the rows of SID tokens.

    The row of a code is the mean embedding of the title tokens of all items with the code, plus Gaussian noise of a
    tenth of the embedding's standard deviation, so that codes whose items share their words differ. An untied output
    head is initialised in the same way from its own rows.

    Args:
        model: Causal language model, modified in place.
        tokenizer: Tokenizer with SID tokens already added (`add_code_tokens`).
        table: The SIDs.
        titles: Title of each item, in item order.
        seed: Seed of the noise, and of the sample of SIDs for `lift_code_rows`.
        generated: Whether the model generates SIDs rather than titles, so that output rows are lifted
            (`lift_code_rows`).
    """
    embedding: Any = model.get_input_embeddings()
    old_size, matrices = len(embedding.weight), _grown_matrices(model, len(tokenizer))
    ids = code_token_ids(tokenizer, table)
    new = {int(i) for i in ids[ids >= 0]}
    encoded = tokenizer(list(titles), add_special_tokens=False)["input_ids"]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in matrices:
            values = weight.detach().float().cpu()
            old = values[[i for i in range(min(old_size, len(values))) if i not in new]]
            mean, spread = old.mean(0), old.std().item()
            item_means = torch.stack(
                [values[words].mean(0) if (words := [w for w in row if w not in new]) else mean for row in encoded]
            )
            for level in range(table.levels):
                codes = torch.from_numpy(table.codes[:, level].astype(np.int64))
                for code in codes.unique().tolist():
                    if code >= 0:
                        noise = torch.randn(values.shape[1], generator=generator) * (0.1 * spread)
                        row = item_means[codes == code].mean(0) + noise
                        weight[int(ids[level, code])] = row.to(weight.dtype).to(weight.device)
    if model.get_output_embeddings() is not None and generated:
        lift_code_rows(model, tokenizer, table, seed)


def _grown_matrices(model: PreTrainedModel, size: int) -> list[Any]:
    """Grow the embedding to at least a row per token; returns its matrix, and that of an untied head."""
    embedding: Any = model.get_input_embeddings()
    if size > len(embedding.weight):
        model.resize_token_embeddings(size, mean_resizing=False)
        embedding = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    return [embedding.weight] if head is None or head.weight is embedding.weight else [embedding.weight, head.weight]


@torch.no_grad()
def extend_code_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, before: SidTable, table: SidTable
) -> int:
    """Add tokens and rows for the new codes of a table; returns their number. Other rows do not change.

    A new row is the mean of the rows of the model's codes of the same level (of all levels, if there are none), in the
    embedding and in an untied head. Its logit is then the mean of their logits, so its probability is below their mean.

    Args:
        model: Causal language model of the earlier table, modified in place.
        tokenizer: Tokenizer of the model, modified in place.
        before: The SIDs of the model.
        table: The SIDs of `before` and more.
    """
    new = sorted(set(table.tokens) - set(before.tokens))
    add_code_tokens(tokenizer, table)
    if not new:
        return 0
    matrices, vocabulary = _grown_matrices(model, len(tokenizer)), tokenizer.get_vocab()
    of_level: dict[str, list[int]] = {}
    for token in before.tokens:
        of_level.setdefault(token[1], []).append(vocabulary[token])
    known = [row for rows in of_level.values() for row in rows]
    for weight in matrices:
        for token in new:
            weight[vocabulary[token]] = weight[of_level.get(token[1], known)].float().mean(0).to(weight.dtype)
    return len(new)


def lift_code_rows(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, table: SidTable, seed: int) -> None:
    """Add one common vector to the output rows of all SID tokens, so that codes are probable after SIDs.

    A pretrained model gives new tokens almost no probability, and it takes many steps of fine-tuning to change that.
    The vector has the direction of the mean last hidden state after codes. This state is long, so a vector much shorter
    than a row raises the logits of all codes alike. Its length is chosen so that codes get the share `SHARE` of the
    probability (geometric mean of the odds over positions); it is zero if they have that already. If embedding and head
    are tied, its length is at most the mean distance of codes from their mean, so that they stay distinct as inputs.
    Hewitt (2021, Initializing New Word Embeddings for Pretrained Language Models) describes the opposite problem, new
    rows that take all probability.

    The model is modified in place; `seed` draws the SIDs after which hidden states are measured.
    """
    head: Any = model.get_output_embeddings()
    ids = code_token_ids(tokenizer, table)
    new = torch.from_numpy(np.unique(ids[ids >= 0]))
    start = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    known = tokenizer.get_vocab()
    rng = np.random.default_rng(seed)
    states, gaps = [], []

    def note(module: Any, args: tuple[torch.Tensor, ...], logits: torch.Tensor) -> None:
        scores = logits[0, len(start) :].float().cpu()
        words = scores.index_fill(1, new, -math.inf)
        states.append(args[0][0, len(start) :].float().cpu())
        gaps.append(words.logsumexp(1) - scores[:, new].logsumexp(1))

    handle, training = head.register_forward_hook(note), model.training
    model.eval()
    try:
        with torch.no_grad():
            for _ in range(_SEQUENCES):
                items = rng.integers(len(table.token_tuples), size=_SIDS)
                sequence = start + [known[token] for item in items for token in table.token_tuples[item]]
                sequence = sequence[: longest_sequence(model.config)]
                model(input_ids=torch.tensor([sequence], device=head.weight.device), use_cache=False)
    finally:
        handle.remove()
        model.train(training)
    state = torch.cat(states).mean(0)
    missing = float(torch.cat(gaps).mean()) + math.log(SHARE / (1 - SHARE))
    with torch.no_grad():
        rows = head.weight[new.to(head.weight.device)].float().cpu()
        length = max(0.0, missing) / float(state.norm())
        if head.weight is model.get_input_embeddings().weight:
            length = min(length, float((rows - rows.mean(0)).norm(dim=1).mean()))
        rows += torch.nn.functional.normalize(state, dim=0) * length
        head.weight[new.to(head.weight.device)] = rows.to(head.weight)
