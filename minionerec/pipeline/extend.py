"""The stage that extends a checkpoint to items added after its training, without training it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from minionerec.core.artefacts import trained_splits
from minionerec.core.errors import DataError
from minionerec.core.log import get_logger, progress
from minionerec.data.corpus import Corpus
from minionerec.data.roles import encode_columns
from minionerec.data.transitions import training_transitions
from minionerec.models.backbone.bundle import (
    Bundle,
    bundle_counts,
    check_decoder_alone,
    load_bundle,
    quiet_libraries,
    write_model_files,
)
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.backbone.catalogue.extend import (
    check_lengths,
    extended_catalogue,
    grown_experts,
    indices_among,
)
from minionerec.models.backbone.vocabulary import add_code_tokens, code_token_ids, extend_code_rows
from minionerec.pipeline.config.training import ExtendConfig
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import StageResult
from minionerec.sid.embed.texts import FittedTexts
from minionerec.sid.table import SidTable
from minionerec.training.neighbours import corpus_likeness, sid_likeness, sid_means, sid_text

logger = get_logger(__name__)

TEXT_TOLERANCE = 0.1  # share of their squared length by which text vectors of known SIDs may have moved


def run_extend(config: ExtendConfig) -> StageResult:
    """Write a checkpoint that generates the SIDs of a larger catalogue: the same weights, and rows for what is new.

    Language model: codes that no SID had before get rows (`minionerec.models.backbone.vocabulary.extend_code_rows`),
    and its experts, if it has some, grow like those of a catalogue model.
    Catalogue model: everything that belongs to an SID moves to its new number, new ones get text, vectors and biases
    (`minionerec.models.backbone.catalogue.extend`), and pairs are counted in the training examples of the new corpus.

    Args:
        config: Settings.

    Raises:
        ArtefactError: If an input is missing or of another kind.
        DataError: If an item of the checkpoint has no SID or another one, or text vectors are of another space.
        ConfigError: If new SIDs of a catalogue model differ in length from the others.
    """
    quiet_libraries()
    stage = Stage(config)
    if (manifest := stage.current()) is not None:
        return _result(stage.output, manifest["counts"])
    config = stage.config
    with stage.work() as work:
        steps = progress(("load", "extend", "write"), "extending", unit="steps")
        next(steps)
        folder = Path(config.checkpoint)
        seen = list(trained_splits(folder))
        corpus = Corpus.load(config.corpus).training_on(seen)
        table = SidTable.load_index(config.sids, corpus.items["item_id"].tolist())
        bundle = load_bundle(folder)
        check_decoder_alone(bundle)
        check_known_items(bundle.table, table, folder, config.sids)
        counts: dict[str, Any] = {
            "items": len(table),
            "items_new": len(table) - len(bundle.table),
            "sids_new": table.n_unique - bundle.table.n_unique,
            "lift": config.lift,
            **({"splits": ["train", *seen]} if seen else {}),
        }
        fitted = None
        if isinstance(bundle.model, CatalogueModel) and bundle.model.texts_width and config.vectors == "tfidf":
            fitted = FittedTexts.of(folder, bundle.table.item_ids, corpus)
        next(steps)
        extended = _extend(bundle, table, corpus, fitted, counts, config.checkpoint, config.vectors)
        counts |= bundle_counts(extended)
        next(steps)
        with work.finish(counts=counts) as path:
            write_model_files(extended, path)
            if fitted is not None:
                fitted.save(path)
        next(steps, None)
    logger.info("%s has %d items, %d of them new.", stage.output, counts["items"], counts["items_new"])
    return _result(stage.output, counts)


def _result(output: Path, counts: Mapping[str, Any]) -> StageResult:
    return StageResult(output, [f"{counts['items_new']} of {counts['items']} items are new: {output}"], counts)


def check_known_items(known: SidTable, table: SidTable, folder: Path, sids: str) -> None:
    """Check that every item of a checkpoint has the SID that it had.

    Args:
        known: The checkpoint's SIDs.
        table: The SIDs of the larger catalogue.
        folder: The checkpoint, for messages.
        sids: Path of the larger catalogue's SIDs, for messages.

    Raises:
        DataError: Naming the first item that has none, or another.
    """
    by_item = dict(zip(table.item_ids, table.sids, strict=True))
    remedy = "Append to the checkpoint's SIDs (minionerec build-sids --method append)"
    missing = [item for item in known.item_ids if item not in by_item]
    if missing:
        raise DataError(
            f"{sids}: {len(missing)} of the {len(known)} items of {folder}, such as {missing[0]!r}, are missing. "
            f"{remedy}, and keep its items in the corpus; an item that is sold no more is left out when recommending."
        )
    for item, sid in zip(known.item_ids, known.sids, strict=True):
        if by_item[item] != sid:
            raise DataError(f"{sids}: item {item!r} has the SID {by_item[item]}, but in {folder} {sid}. {remedy}.")


def _extend(
    bundle: Bundle,
    table: SidTable,
    corpus: Corpus,
    fitted: FittedTexts | None,
    counts: dict[str, Any],
    checkpoint: str,
    vectors: str,
) -> Bundle:
    """The checkpoint with the larger table; the number of its new tokens is added to the counts."""
    known, model = bundle.table, bundle.model
    if not isinstance(model, CatalogueModel):
        counts["tokens_new"] = extend_code_rows(model, bundle.tokenizer, known, table)
        experts = bundle.experts
        if experts is not None:
            likeness = corpus_likeness(corpus, table.sid_numbers)
            experts = grown_experts(experts, known.distinct_codes, table.distinct_codes, likeness)
        return replace(bundle, table=table, experts=experts)
    check_lengths(model, table.codes)
    add_code_tokens(bundle.tokenizer, table)
    counts["tokens_new"] = len(set(table.tokens) - set(known.tokens))
    text = vectors_given = None
    if model.texts_width:
        texts = None if fitted is None else fitted.texts
        vectors_given = text = sid_text(corpus, table.sid_numbers, vectors, model.texts_width, texts)
        _check_text(model, known, table, text, checkpoint, vectors)
    if columns := model.item_columns():
        column_codes = sid_means(encode_columns(corpus.items, columns), table.sid_numbers)
        vectors_given = column_codes if text is None else np.concatenate([text, column_codes], axis=1)
    transitions = None if model.pairs is None else _count_pairs(corpus, table, model)
    codes, tokens = table.codes, code_token_ids(bundle.tokenizer, table)
    alike = None if model.experts is None else sid_likeness(corpus, table.sid_numbers, vectors, text)
    vocab_size = len(bundle.tokenizer)
    extended = extended_catalogue(model, codes, tokens, vocab_size, vectors_given, transitions, alike)
    return replace(bundle, model=extended, table=table)


def _check_text(
    model: CatalogueModel, known: SidTable, table: SidTable, text: np.ndarray, checkpoint: str, vectors: str
) -> None:
    """Check that text vectors of known SIDs are those that the model was trained with.

    Raises:
        DataError: If they are of another width, or of another space.
    """
    if text.shape[1] != model.texts_width:
        raise DataError(
            f"vectors {vectors} are {text.shape[1]} wide, but {checkpoint} was trained with vectors "
            f"{model.texts_width} wide. Give --vectors from the encoder that it was trained with."
        )
    known_items = set(known.item_ids)
    joined = {sid for item, sid in zip(table.item_ids, table.sid_numbers, strict=True) if item not in known_items}
    numbers = indices_among(known.distinct_codes, table.distinct_codes)
    is_compared = (numbers >= 0) & ~np.isin(np.arange(table.n_unique), list(joined))
    trained = model.text[:, : model.texts_width].float().numpy()[numbers[is_compared]]
    moved, length = float(((text[is_compared] - trained) ** 2).sum()), float((trained**2).sum())
    if moved > TEXT_TOLERANCE * length:
        raise DataError(
            f"vectors {vectors}: those of the {len(trained)} SIDs that {checkpoint} knows differ from what "
            f"it was trained with by {moved / max(length, 1e-12):.0%} of their squared length: they are of another "
            "space, or of other texts. Give --vectors from the encoder that it was trained with."
        )


def _count_pairs(corpus: Corpus, table: SidTable, model: CatalogueModel) -> csr_array:
    """Counts of pairs in the training examples, as `train-catalogue` counts them.

    Raises:
        DataError: If there is no pair.
    """
    shape, numbers = model.config, table.sid_numbers
    pairs = training_transitions(corpus, corpus.max_history, shape.reach, shape.decay, shape.reverse, numbers=numbers)
    if not pairs.nnz:
        raise DataError(
            "the corpus has no training example with a history, so there is no pair to count. Keep the examples "
            "that the checkpoint was trained on in it."
        )
    return pairs
