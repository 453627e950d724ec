"""Corpora of a few items, for tests of stages that look at items alone."""

from pathlib import Path

import numpy as np
import pandas as pd

from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples


def make_corpus(titles: list[str], descriptions: list[str] | None = None, item_ids: list[str] | None = None) -> Corpus:
    """A corpus with these items and one row per split."""
    items = pd.DataFrame(
        {
            "item_id": item_ids or [f"i{position}" for position in range(len(titles))],
            "title": titles,
            "description": descriptions or [""] * len(titles),
        }
    )
    rows = SplitExamples.of(["u"], [np.array([0], dtype=np.int32)], np.array([0], np.int32))
    return Corpus(items=items, train=rows, valid=rows, test=rows, split="none", max_history=10)


def save_corpus(path: Path, titles: list[str], **columns: list[str]) -> Path:
    """Write such a corpus as an artefact."""
    make_corpus(titles, **columns).save(path, config={}, inputs={})
    return path


def shop_titles(n: int) -> list[str]:
    """Titles with families of words: colour x thing x size."""
    colours, things = ["red", "blue", "green", "white"], ["lamp", "table", "chair", "shelf", "clock"]
    return [f"{colours[i % 4]} {things[i % 5]} size {i % 7} model {i}" for i in range(n)]
