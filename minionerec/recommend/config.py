"""Settings of `minionerec recommend` and `export`; light to import, so that `--help` answers at once."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

from minionerec.core.artefacts import read_manifest, unchanged_input
from minionerec.core.errors import ArtefactError
from minionerec.core.paths import function_file
from minionerec.core.settings import StageConfig, setting
from minionerec.recommend.evaluation.config import DTYPES
from minionerec.recommend.requests import Request

EXPORT_DTYPES = ("saved", "float32", "bfloat16", "float16")


def own_corpus(path: str | os.PathLike[str]) -> Path:
    """The corpus that a model was trained on, where its manifest says it lies.

    Args:
        path: A checkpoint, or a sequential model.

    Raises:
        ArtefactError: If it says nothing, or another one lies there now.
    """
    record = read_manifest(path)["inputs"].get("corpus")
    if record is None:
        raise ArtefactError(f"{path}: its manifest names no corpus. Give the corpus that it was trained on.")
    place = unchanged_input(path, "corpus")
    if place is None:
        raise ArtefactError(
            f"{path}: was trained on the corpus {record['path']}, which is not there as it was. Give its place, or "
            "make it anew."
        )
    return place


def _choices(field: str) -> tuple[str, ...]:
    """The words that a field of a request may be."""
    found: tuple[str, ...] = get_args(get_type_hints(Request)[field])
    return found


@dataclass
class RecommendConfig(StageConfig):
    """Settings of `run_recommend`."""

    kind: ClassVar[str] = "recommendations"

    checkpoint: str = setting(
        "",
        "what recommends: a checkpoint (minionerec sft, grpo, dpo, train-catalogue, train-tiger, extend) or the "
        "folder `model` of train-sequential",
        input_kind="any",
    )
    ranker: str = setting(
        "", "instead of a checkpoint, your own ranker: dotted path of a function that takes the corpus and gives one"
    )
    corpus: str = setting(
        "",
        "corpus whose items are recommended (empty: the one that the checkpoint was trained on)",
        input_kind="corpus",
    )
    items: str = setting(
        "", "table (csv, tsv, parquet) with item_id and further columns, for conditions on them", input_kind="any"
    )
    histories: str = setting(
        "",
        "histories: parquet or .jsonl with a column `history` (a list of item ids, oldest first), if wanted `user`, "
        "and `only` and `without` (lists of item ids) and `session_context` for each row",
        required=True,
        input_kind="any",
    )
    output: str = setting("", "directory to write", required=True, affects_result=False)
    k: int = setting(10, "length of the lists", least=1)
    exclude_seen: bool = setting(False, "leave the items of the history out")
    where: dict[str, Any] = setting(
        {}, "conditions on columns of the items table, e.g. department=Tea price='{at_most: 20}' in_stock=true"
    )
    unknown: str = setting(
        "skip", "ids that are of no item: skip (they are listed beside) or refuse", known=_choices("unknown")
    )
    session_context: str = setting(
        "unknown",
        "session context, for a model that was conditioned on it in training, where a row does not give it: "
        "same (the visit goes on), later (somebody comes back) or unknown",
        known=_choices("session_context"),
        since="0.2",
    )
    beams: int = setting(50, "least width of a language model's beam search", least=1)
    batch_size: int = setting(
        64, "prompts decoded at a time; 0: as many as fit into half the free memory, in powers of two", least=0
    )
    rows_at_once: int = setting(4096, "rows read, answered and written at a time", least=1)
    dtype: str = setting(
        "auto", "dtype of a checkpoint's weights; auto: on a GPU as stored, else float32", known=DTYPES
    )

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if bool(self.checkpoint) == bool(self.ranker):
            yield "give either --checkpoint, a directory, or --ranker, your own."
        if self.ranker and not self.corpus:
            yield "corpus is empty; a ranker of your own needs --corpus."

    def inputs(self) -> dict[str, Path]:
        """Everything that is read: of a checkpoint its corpus too, of a user's own ranker the file it is written in."""
        found = super().inputs()
        if not self.corpus:
            found["corpus"] = own_corpus(found["checkpoint"])
        file = function_file(self.ranker, "ranker") if self.ranker else None
        return found if file is None else {**found, "ranker": file}


@dataclass
class ExportConfig(StageConfig):
    """Settings of `run_export`."""

    kind: ClassVar[str] = "export"

    checkpoint: str = setting(
        "",
        "checkpoint of a language model (minionerec sft, grpo)",
        required=True,
        input_kind="checkpoint",
    )
    corpus: str = setting(
        "",
        "corpus that it was trained on: of items that share an SID the more popular are named first",
        required=True,
        input_kind="corpus",
    )
    output: str = setting("", "directory to write", required=True, affects_result=False)
    dtype: str = setting("saved", "dtype of the weights; saved: as in the checkpoint", known=EXPORT_DTYPES)
    examples: int = setting(5, "prompts written down with the lists that are to be expected", least=1)
    beams: int = setting(10, "beam width of those lists, and their length", least=2)
    push: str = setting(
        "",
        "name of a repository of the Hugging Face hub, such as me/my-shop, that the export is uploaded to, made where "
        "there is none; with the credentials of `hf auth login` or HF_TOKEN",
        affects_result=False,
    )
    private: bool = setting(True, "whether a repository that is made is private", affects_result=False, requires="push")
