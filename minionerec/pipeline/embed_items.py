"""The stage that turns item texts into vectors."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import to_plain, write_text_atomic
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.pipeline.config.encoder import EmbedConfig, EncoderConfig
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import StageResult
from minionerec.sid.embed.stored import ITEMS_FILE, VECTORS_FILE, save_vectors
from minionerec.sid.embed.texts import load_items
from minionerec.sid.embed.vectors import vectors_in_blocks

logger = get_logger(__name__)


def load_encoded(config: EncoderConfig, inputs: Mapping[str, Path]) -> Corpus:
    """The corpus that vectors are made of: its items, with texts where these are encoded, or with its interactions.

    Args:
        config: The stage's settings.
        inputs: The stage's inputs.

    Raises:
        ArtefactError: If the corpus is missing or was changed.
    """
    if config.vector_source.reads_interactions:
        return Corpus.load(config.corpus)
    return load_items(config.corpus, texts="vectors" not in inputs)


def run_embed(config: EmbedConfig) -> StageResult:
    """Encode the items of a corpus: an artefact of kind "vectors" with `vectors.npy` and `items.json`.

    `vectors.npy` is float32 (N, D), row i = item i of the corpus's items (float16 where those are copied from a large
    file of float16, see `minionerec.sid.embed.stored`); `items.json` lists the N item ids in that
    order, so that a later stage can check that the vectors are of its items.

    Args:
        config: The stage's settings.

    Returns:
        The path of the vectors and the counts.

    Raises:
        ArtefactError: If the corpus is missing or the output cannot be written.
        DataError: If there is no text, or ready vectors do not fit the corpus.
        ConfigError: If the encoder is unknown.
    """
    stage = Stage(config)
    if (manifest := stage.current()) is not None:
        return _result(stage.output, manifest["counts"], up_to_date=True)
    config = stage.config
    with stage.work() as work:
        with work.phase("load"):
            items = load_encoded(config, stage.inputs)
        counts: dict[str, Any] = {}
        # Not in the folder of the unfinished run: the next run, of a larger corpus, finds the vectors there.
        source = replace(config.vector_source, cache=f"{stage.output}.cache")
        with work.phase("embed"):
            vectors = vectors_in_blocks(items, source, counts)
        with work.finish(seed=config.seed, counts=counts) as folder:
            save_vectors(folder / VECTORS_FILE, vectors)
            write_text_atomic(folder / ITEMS_FILE, json.dumps(items.items["item_id"].astype(str).tolist()) + "\n")
    logger.info("Vectors of %d items, %d dimensions, are in %s.", *vectors.shape, stage.output)
    return _result(stage.output, to_plain(counts), up_to_date=False)


def _result(output: Path, counts: Mapping[str, Any], up_to_date: bool) -> StageResult:
    line = f"vectors of {counts['items']} items, {counts['dimensions']} dimensions: {output}"
    return StageResult(output, [line], counts, up_to_date=up_to_date)
