"""What a language model over titles writes in free words for the rows of splits: in parts, once for equal prompts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from minionerec.backbone.bundle import Bundle
from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError
from minionerec.core.log import get_logger
from minionerec.core.parquet import read_parquet
from minionerec.core.stage import Work
from minionerec.decoding.branches import evaluating
from minionerec.decoding.stock import write_freely
from minionerec.evaluation.grounding_config import GroundingConfig
from minionerec.evaluation.shards import decode_in_shards
from minionerec.prompts.examples import ExampleBuilder, encode_completion, encode_prompt
from minionerec.prompts.wording import NEXT_TITLE

logger = get_logger(__name__)

FILE = "texts.parquet"
_KINDS = {"split": "text", "row": "whole", "text": "text", "tokens": "whole"}


def prompt_texts(builder: ExampleBuilder, split: str, rows: Sequence[int]) -> list[str]:
    """The prompts of some rows of a split."""
    histories = builder.corpus.rows(split).histories
    return [builder.prompt(NEXT_TITLE, history=histories[row]) for row in rows]


def _end_tokens(bundle: Bundle, builder: ExampleBuilder) -> list[int]:
    """Token ids that follow a title in a completion."""
    template = bundle.wording.task(NEXT_TITLE).completion
    behind = template.partition("{title}")[2].format_map(builder.specials)
    return encode_completion(bundle.tokenizer, [behind])[0] if behind else []


def write_texts(
    bundle: Bundle, builder: ExampleBuilder, wanted: Mapping[str, np.ndarray], config: GroundingConfig, work: Work
) -> tuple[pd.DataFrame, int]:
    """The text that a model writes for each row, by beam search over the whole vocabulary.

    Under a distributed launch each process writes its share.

    Args:
        bundle: The checkpoint, its model where it is to run.
        builder: Makes the prompts.
        wanted: Split to the rows that texts are wanted for, int64.
        config: The search, and where earlier texts lie.
        work: The stage at work, in whose folder finished parts survive a kill.

    Returns:
        A table of split, row, text and tokens (how many, the end token included), and how many of the prompts were cut.

    Raises:
        ArtefactError: If the earlier texts are of another model, corpus or search.
    """
    keys = [(split, int(row)) for split, rows in wanted.items() for row in rows]
    asked = [text for split, rows in wanted.items() for text in prompt_texts(builder, split, rows.tolist())]
    encoded = encode_prompt(bundle.tokenizer, asked, bundle.max_prompt_length)
    written = _earlier(config, work)
    prompts = dict(zip(keys, map(tuple, encoded.ids), strict=True))
    distinct = sorted({ids for key, ids in prompts.items() if key not in written})
    if distinct:
        logger.info("%s distinct prompts; texts of %s rows are there.", f"{len(distinct):,}", f"{len(written):,}")
        made = dict(zip(distinct, _generate(bundle, distinct, _end_tokens(bundle, builder), config, work), strict=True))
        written = {key: written.get(key) or made[ids] for key, ids in prompts.items()}
    frame = pd.DataFrame(keys, columns=["split", "row"]).astype({"row": np.int32})
    texts = [written[key] for key in keys]
    frame["text"] = [text for text, _ in texts]
    frame["tokens"] = np.array([tokens for _, tokens in texts], dtype=np.int32)
    return frame, encoded.cut


def _generate(
    bundle: Bundle, prompts: Sequence[Sequence[int]], end: Sequence[int], config: GroundingConfig, work: Work
) -> list[tuple[str, int]]:
    """Texts for distinct prompts, and how many tokens each took."""
    last = end[-1] if end else None

    def decode(places: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        some = [prompts[place] for place in places]
        with evaluating(bundle.model):
            tokens = write_freely(
                bundle.model, some, config.text_beams, config.max_new_tokens, last, config.length_penalty
            )
        return tokens.cpu().numpy(), np.zeros((len(some), 0), dtype=np.float32)

    device = torch.device(bundle.model.device)
    found, _ = decode_in_shards(
        work.folder, prompts, config.max_new_tokens, lambda: config.batch_size, decode, device, "writing", work
    )
    texts = []
    for row in found:
        ids = [int(token) for token in row if token >= 0]
        words = [token for token in ids if token != last]
        text: Any = bundle.tokenizer.decode(words, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        texts.append((str(text), len(ids)))
    return texts


def _earlier(config: GroundingConfig, work: Work) -> dict[tuple[str, int], tuple[str, int]]:
    """What an earlier run wrote: (split, row) to text and tokens.

    Raises:
        ArtefactError: If it was another model, corpus or search.
    """
    if not config.texts:
        return {}
    place = Path(work.read["texts"]["path"])
    manifest = read_manifest(place)
    if FILE not in manifest["files"]:
        raise ArtefactError(
            f"{place}: holds no {FILE}, so ground-titles did not make it. Give an output of that stage."
        )
    settings = manifest["settings"]
    for name, value in config.writing().items():
        if settings.get(name) != value:
            raise ArtefactError(
                f"{place}: its texts were written with {name} {settings.get(name)!r}, now it is {value!r}. Give the "
                "same settings, or leave texts out."
            )
    for name in ("checkpoint", "corpus"):
        if manifest["inputs"][name]["sha256"] != work.read[name]["sha256"]:
            raise ArtefactError(f"{place}: its texts are of another {name}. Leave texts out.")
    frame = read_parquet(place / FILE, _KINDS)
    keys = zip(frame["split"].tolist(), frame["row"].tolist(), strict=True)
    return dict(zip(keys, zip(frame["text"].tolist(), frame["tokens"].tolist(), strict=True), strict=True))
