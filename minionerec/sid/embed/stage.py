"""The stage that turns item texts into vectors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import to_plain, write_text_atomic
from minionerec.core.log import get_logger
from minionerec.core.stage import Stage
from minionerec.sid.embed.config import EmbedConfig, encoder_inputs
from minionerec.sid.embed.items import ItemTexts
from minionerec.sid.embed.mapped import save_vectors
from minionerec.sid.embed.ready import ITEMS_FILE, VECTORS_FILE
from minionerec.sid.embed.vectors import vectors_in_blocks

logger = get_logger(__name__)


@dataclass(frozen=True)
class EmbedResult:
    """What `run_embed` made.

    Attributes:
        output: The artefact's directory.
        counts: Items, dimensions, and what the encoder counted (empty, duplicate and truncated texts...).
        up_to_date: Whether the output already stood, made from the same settings and inputs.
    """

    output: Path
    counts: Mapping[str, Any]
    up_to_date: bool

    def lines(self) -> list[str]:
        """How many vectors, how wide, and where they lie."""
        return [f"vectors of {self.counts['items']} items, {self.counts['dimensions']} wide: {self.output}"]


def run_embed(config: EmbedConfig) -> EmbedResult:
    """Encode the items of a corpus: an artefact of kind "vectors" with `vectors.npy` and `items.json`.

    `vectors.npy` is float32 (N, D), row i = item i of the corpus's items (float16 where those are copied from a large
    file of float16, see `minionerec.sid.embed.mapped`); `items.json` lists the N item ids in that
    order, so that a later stage can tell whether the vectors are of its items.

    Args:
        config: The stage's settings.

    Returns:
        Where the vectors lie and what was counted.

    Raises:
        ArtefactError: If the corpus is missing or the output cannot be written.
        DataError: If there is no text, or ready vectors do not fit the corpus.
        ConfigError: If the encoder is unknown.
    """
    stage = Stage(config)
    if (manifest := stage.current()) is not None:
        return EmbedResult(stage.output, manifest["counts"], up_to_date=True)
    with stage.work() as work:
        with work.phase("load"):
            items = ItemTexts.load(stage.inputs["corpus"], texts="vectors" not in encoder_inputs(config.encoder))
        counts: dict[str, Any] = {}
        # Not in the folder of the unfinished run: the next run, of a larger corpus, finds the vectors there.
        cache = config.cache or f"{stage.output}.cache"
        with work.phase("embed"):
            vectors = vectors_in_blocks(items, replace(config, cache=cache), counts)
        with work.finish(seed=config.seed, counts=counts) as place:
            save_vectors(place / VECTORS_FILE, vectors)
            write_text_atomic(place / ITEMS_FILE, json.dumps(items.items["item_id"].astype(str).tolist()) + "\n")
    logger.info("Vectors of %d items, %d wide, are in %s.", *vectors.shape, stage.output)
    return EmbedResult(stage.output, to_plain(counts), up_to_date=False)
