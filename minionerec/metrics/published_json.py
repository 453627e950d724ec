"""Predictions in the published system's format: a JSON list of {"input", "output", "predict"}."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minionerec.core.artefacts import read_json, write_text_atomic
from minionerec.core.errors import ArtefactError, DataError, shown
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import distinct_sids

KEYS = ("input", "output", "predict")


def _load(path: Path) -> list[object]:
    if not path.is_file():
        raise DataError(f"{path}: no such file. Give the path of a JSON file of predictions.")
    try:
        content = read_json(path)
    except ArtefactError as error:
        raise DataError(str(error)) from None
    if not isinstance(content, list):
        raise DataError(f"{path}: expected a list of entries with {', '.join(KEYS)}; got {type(content).__name__}.")
    if not content:
        raise DataError(f"{path}: the list is empty; expected at least one entry. Write the file again.")
    return content


def require_predictions(lists: Sequence[Sequence[str]], needed: int, where: str) -> None:
    """Check that every entry has at least as many predictions as the largest K.

    Raises:
        DataError: Naming the first entry (from 1) that has fewer.
    """
    for number, row in enumerate(lists, start=1):
        if len(row) < needed:
            raise DataError(
                f"{where}: entry {number} has {len(row)} predictions, fewer than the largest K, {needed}. "
                f"Predict with at least {needed} beams, or give a smaller K (--ks)."
            )


def read_published_json(path: str | os.PathLike[str]) -> Predictions:
    """Read predictions that the published system, or `write_published_json`, wrote.

    Lists include duplicates and unparsable strings; white space around strings is removed. The file has no items, so
    items and targets are -1, and no scores, so scores are negated positions. Users are named by entry number, from "1".

    Args:
        path: The JSON file.

    Raises:
        DataError: If the file is missing, is not JSON, is no list, or has an entry of another form; the message names
            file and entry (from 1).
    """
    path = Path(path)
    targets, lists = [], []
    for number, entry in enumerate(_load(path), start=1):
        target, predicted = (entry.get(key) if isinstance(entry, dict) else None for key in KEYS[1:])
        if not (
            isinstance(target, str) and isinstance(predicted, list) and all(isinstance(text, str) for text in predicted)
        ):
            raise DataError(
                f"{path}: entry {number} is {shown(entry)}; expected an object with a text as output and a list of "
                "texts as predict. Write the file again."
            )
        targets.append(target.strip())
        lists.append([text.strip() for text in predicted])
    return Predictions(
        users=[str(number) for number in range(1, len(targets) + 1)],
        targets=np.full(len(targets), -1, dtype=np.int32),
        target_sids=targets,
        items=[[-1] * len(row) for row in lists],
        sids=lists,
        scores=[[-float(position) for position in range(1, len(row) + 1)] for row in lists],
    )


def write_published_json(path: str | os.PathLike[str], predictions: Predictions, inputs: Sequence[str]) -> None:
    """Write predictions in the published form, indented by 4, atomically.

    Args:
        path: File to write.
        predictions: The ranked lists; items that share an SID become one prediction.
        inputs: The R prompts.

    Raises:
        DataError: If there is not one input per row.
        ArtefactError: If the path cannot be written.
    """
    if len(inputs) != len(predictions):
        raise DataError(f"{path}: {len(inputs)} inputs for {len(predictions)} rows of predictions; expected one each.")
    content = [
        {"input": text, "output": f"{target}\n", "predict": sids}
        for text, target, sids in zip(inputs, predictions.target_sids, distinct_sids(predictions), strict=True)
    ]
    write_text_atomic(path, json.dumps(content, indent=4))
