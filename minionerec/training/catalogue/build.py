"""A catalogue model with random weights, from a corpus, its SIDs and the text of its items."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from transformers import set_seed

from minionerec.data.contexts import RequestFeature
from minionerec.data.corpus import Corpus
from minionerec.data.roles import ColumnCode, encode_columns
from minionerec.models.backbone.build import train_tokenizer
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.backbone.catalogue import CatalogueConfig, build_catalogue
from minionerec.models.backbone.catalogue.blocks import SIDS_AT_ONCE
from minionerec.models.backbone.vocabulary import add_code_tokens, add_wording_tokens, code_token_ids
from minionerec.models.prompts.wording import load_wording
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.windows import SidWindows, window_parts, window_transitions
from minionerec.training.experts import count_experts
from minionerec.training.neighbours import sid_likeness, sid_means, sid_text

DECAY = 0.6
"""Weight of each further item back in the counts of transitions."""
REVERSE = 0.3
"""Weight of a transition in the other direction."""
_TEXT_TOKENS = 300  # the tokenizer reads SIDs; text is there for the wording alone


def new_bundle(
    corpus: Corpus,
    table: SidTable,
    windows: SidWindows,
    *,
    seed: int,
    vectors: str = "tfidf",
    vector_width: int = 128,
    columns: Sequence[ColumnCode] = (),
    context: Sequence[RequestFeature] = (),
    reach: int = 10,
    experts: bool = False,
    recency: float = 0.0,
    max_prompt_length: int = 512,
    **shape: Any,
) -> Bundle:
    """A catalogue model with random weights, with all it needs to recommend.

    Args:
        corpus: The corpus.
        table: SIDs of its items.
        windows: Training windows, of which pairs are counted.
        seed: Seed of the weights.
        vectors: Where item vectors come from (`sid_text`); none if empty.
        vector_width: Width of vectors of TF-IDF or of interactions.
        columns: Columns of the items whose codes are added to item vectors (`minionerec.data.roles.fit_columns`).
        context: Request features that the model is conditioned on.
        reach: Items back that transitions are counted, by which SIDs are scored; 0: none.
        experts: Whether the model has experts, which are available up to `SIDS_AT_ONCE` SIDs.
        recency: How fast the weight of a training target falls with its age.
        max_prompt_length: Most tokens of a prompt.
        **shape: Further arguments of `minionerec.models.backbone.catalogue.CatalogueConfig`.
    """
    wording = replace(load_wording("compact"), context=tuple(context))
    if table.n_unique <= SIDS_AT_ONCE:
        wording = replace(wording, events=tuple(corpus.event_names))
    words = [f"{text.prompt} {text.completion}" for text in wording.tasks.values()]
    tokenizer = train_tokenizer([*corpus.items["title"], *words], _TEXT_TOKENS)
    add_code_tokens(tokenizer, table)
    add_wording_tokens(tokenizer, wording.tokens)
    text = sid_text(corpus, table.sid_numbers, vectors, vector_width) if vectors else None
    counts = window_transitions(windows, table.n_unique, reach, DECAY, REVERSE) if reach else None
    pooled = None
    if experts and table.n_unique <= SIDS_AT_ONCE:
        alike = sid_likeness(corpus, table.sid_numbers, vectors, text)
        pooled = count_experts(partial(window_parts, windows), table.n_unique, recency, alike)
    if columns:
        codes = sid_means(encode_columns(corpus.items, columns), table.sid_numbers)
        text = codes if text is None else np.concatenate([text, codes], axis=1)
    vocabulary = tokenizer.get_vocab()
    config = CatalogueConfig(
        item_columns=[column.stored() for column in columns],
        event_tokens=[vocabulary[text] for text in wording.event_tokens],
        vocab_size=len(tokenizer),
        max_history=corpus.max_history,
        reach=reach,
        decay=DECAY,
        reverse=REVERSE,
        context_tokens=[[vocabulary[text] for text in tokens] for tokens in wording.context_tokens],
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **shape,
    )
    set_seed(seed)
    model = build_catalogue(config, table.codes, code_token_ids(tokenizer, table), text, counts, pooled)
    return Bundle(model, tokenizer, table, wording, max_prompt_length)
