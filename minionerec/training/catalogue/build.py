"""A catalogue model with random weights, from a corpus, its SIDs and the text of its items."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from transformers import set_seed

from minionerec.core.errors import DataError
from minionerec.data.corpus import Corpus
from minionerec.data.roles import ColumnCode, encode_columns
from minionerec.models.backbone.build import train_tokenizer
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.backbone.catalogue import CatalogueConfig, build_catalogue
from minionerec.models.backbone.catalogue.blocks import SIDS_AT_ONCE
from minionerec.models.backbone.vocabulary import add_code_tokens, add_wording_tokens, code_token_ids
from minionerec.models.prompts.wording import event_token, load_wording
from minionerec.sid.embed.encoder import INTERACTIONS, VectorSource
from minionerec.sid.embed.interactions import beside
from minionerec.sid.embed.texts import joined_texts, l2_normalise, nearest_texts_by_each
from minionerec.sid.embed.vectors import make_vectors
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.experts import count_experts
from minionerec.training.catalogue.windows import SidWindows, window_transitions

DECAY = 0.6
"""Weight of each further item back in the counts of transitions."""
REVERSE = 0.3
"""Weight of a transition in the other direction."""
_INTERACTION_WIDTH = 128  # of the vectors of interactions by which SIDs are compared
_TEXT_TOKENS = 300  # the tokenizer reads SIDs; text is there for the wording alone


def sid_text(
    corpus: Corpus, table: SidTable, encoder: str, width: int, fitted_on: Sequence[str] | None = None
) -> np.ndarray:
    """Text vectors of the distinct SIDs, means over their items, of length about the square root of their width.

    Args:
        corpus: The corpus.
        table: SIDs of its items.
        encoder: See `minionerec.sid.embed.encoder.VectorSource`.
        width: Width of TF-IDF vectors.
        fitted_on: Texts that TF-IDF is fitted on; those of the corpus if None.

    Returns:
        float32 (N, T).
    """
    vectors = make_vectors(corpus, VectorSource(encoder=encoder, dimensions=width), {}, fitted_on)
    text = _means_by_sid(vectors, table)
    text *= np.sqrt(vectors.shape[1], dtype=np.float32)
    return text


def sid_columns(corpus: Corpus, table: SidTable, columns: Sequence[ColumnCode]) -> np.ndarray:
    """Codes of columns of the distinct SIDs, means over their items: float32 (N, F)."""
    return _means_by_sid(encode_columns(corpus.items, columns), table)


def _means_by_sid(vectors: np.ndarray, table: SidTable) -> np.ndarray:
    numbers = table.sid_numbers
    means = np.zeros((table.n_unique, vectors.shape[1]), dtype=np.float32)
    np.add.at(means, numbers, vectors)
    means /= np.bincount(numbers)[:, None].astype(np.float32)
    return means


def sid_neighbours(
    corpus: Corpus, table: SidTable, encoder: str, text: np.ndarray | None
) -> tuple[csr_array, csr_array]:
    """The SIDs whose items are most alike, with their similarities; none where nothing is known of any item.

    The first similarity is the mean of two cosines: that of TF-IDF weights of texts, uncompressed, and that of the
    vectors of `encoder` beside those of training interactions (`minionerec.sid.embed.interactions.beside`). The second
    is that of texts alone. Both are of the same pairs, the nearest by either; where a pair is not among the nearest by
    one of them, it is 0 by that.

    Args:
        corpus: The corpus.
        table: SIDs of its items.
        encoder: Where `text` comes from.
        text: float32 (N, T), vectors of the distinct SIDs (`sid_text`); None where the model has none.
    """
    vectors = text
    if encoder != INTERACTIONS:
        try:
            together = l2_normalise(sid_text(corpus, table, INTERACTIONS, _INTERACTION_WIDTH))
            vectors = together if text is None else beside(text, together)
        except DataError:  # no two items have a user in common
            pass
    return _of_same_pairs(*nearest_texts_by_each(joined_texts(corpus, table.sid_numbers), [vectors, None]))


def _of_same_pairs(first: csr_array, second: csr_array) -> tuple[csr_array, csr_array]:
    """Two tables with the entries of either, 0 where one lacks the other's."""
    parts = [each.tocoo() for each in (first, second)]
    keys = [each.row.astype(np.int64) * each.shape[1] + each.col for each in parts]
    both = np.union1d(*keys)
    rows, columns = np.divmod(both, first.shape[1])
    offsets = np.concatenate([[0], np.bincount(rows, minlength=len(first.indptr) - 1).cumsum()]).astype(np.int32)
    found = []
    for own, each in zip(keys, (first, second), strict=True):
        values = np.zeros(len(both), dtype=np.float32)
        values[np.searchsorted(both, own)] = each.data
        found.append(csr_array((values, columns.astype(np.int32), offsets), shape=first.shape))
    return found[0], found[1]


def new_bundle(
    corpus: Corpus,
    table: SidTable,
    windows: SidWindows,
    *,
    seed: int,
    vectors: str = "tfidf",
    vector_width: int = 128,
    columns: Sequence[ColumnCode] = (),
    events: bool = False,
    session_context: bool = False,
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
        events: Whether the model reads the events of history items, where the corpus has them; up to `SIDS_AT_ONCE`
            SIDs.
        session_context: Whether the model is conditioned on the session context.
        reach: Items back that transitions are counted, by which SIDs are scored; 0: none.
        experts: Whether the model has experts, which are available up to `SIDS_AT_ONCE` SIDs.
        recency: How fast the weight of a training target falls with its age.
        max_prompt_length: Most tokens of a prompt.
        **shape: Further arguments of `minionerec.models.backbone.catalogue.CatalogueConfig`.
    """
    wording = load_wording("session_context" if session_context else "compact")
    if events and table.n_unique <= SIDS_AT_ONCE:
        wording = replace(wording, events=tuple(corpus.event_names))
    words = [f"{text.prompt} {text.completion}" for text in wording.tasks.values()]
    tokenizer = train_tokenizer([*corpus.items["title"], *words], _TEXT_TOKENS)
    add_code_tokens(tokenizer, table)
    add_wording_tokens(tokenizer, wording.tokens)
    text = sid_text(corpus, table, vectors, vector_width) if vectors else None
    counts = window_transitions(windows, table.n_unique, reach, DECAY, REVERSE) if reach else None
    pooled = None
    if experts and table.n_unique <= SIDS_AT_ONCE:
        pooled = count_experts(windows, table.n_unique, recency, sid_neighbours(corpus, table, vectors, text))
    if columns:
        codes = sid_columns(corpus, table, columns)
        text = codes if text is None else np.concatenate([text, codes], axis=1)
    vocabulary = tokenizer.get_vocab()
    config = CatalogueConfig(
        item_columns=[column.stored() for column in columns],
        event_tokens=[vocabulary[event_token(number)] for number in range(len(wording.events))],
        vocab_size=len(tokenizer),
        max_history=corpus.max_history,
        reach=reach,
        decay=DECAY,
        reverse=REVERSE,
        session_tokens=[vocabulary[text] for text in wording.session_context],
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **shape,
    )
    set_seed(seed)
    model = build_catalogue(config, table.codes, code_token_ids(tokenizer, table), text, counts, pooled)
    return Bundle(model, tokenizer, table, wording, max_prompt_length)
