"""Settings of `minionerec recommend` and `export`; light to import, so that `--help` is fast."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from minionerec.core.artefacts import own_corpus
from minionerec.core.functions import function_file
from minionerec.core.plugins import registered_path
from minionerec.pipeline.settings import StageConfig, setting

EXPORT_DTYPES = ("saved", "float32", "bfloat16", "float16")


@dataclass
class RecommendConfig(StageConfig):
    """Settings of `run_recommend`."""

    kind: ClassVar[str] = "recommendations"

    checkpoint: str = setting(
        "",
        "model: a checkpoint (minionerec sft, grpo, train-catalogue, extend) or the folder `model` of train-sequential",
        input_kind="any",
    )
    ranker: str = setting(
        "",
        "instead of a checkpoint, your own ranker: dotted path of a function that takes the corpus and returns one, "
        "or a name that an installed package registers",
    )
    corpus: str = setting(
        "",
        "corpus whose items are recommended; empty: the corpus that the checkpoint was trained on",
        input_kind="corpus",
    )
    histories: str = setting(
        "",
        "histories: parquet or .jsonl with a column `history` (a list of item ids, oldest first), optionally `user`, "
        "and `only` and `without` (lists of item ids), `context` (values of request features), `times` (of the "
        "history's items) and `now` for each row",
        required=True,
        input_kind="any",
    )
    k: int = setting(10, "length of the lists", least=1)
    exclude_seen: bool = setting(False, "exclude the items of the history")
    where: dict[str, Any] = setting(
        {}, "conditions on columns of the corpus's items, e.g. department=Tea price='{at_most: 20}' in_stock=true"
    )

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if bool(self.checkpoint) == bool(self.ranker):
            yield "give either --checkpoint, a directory, or --ranker, your own."
        if self.ranker and not self.corpus:
            yield "corpus is empty; your own ranker needs --corpus."

    def inputs(self) -> dict[str, Path]:
        """All inputs, with the corpus of a checkpoint and the source file of a user's own ranker."""
        found = super().inputs()
        if not self.corpus:
            found["corpus"] = own_corpus(found["checkpoint"])
        file = function_file(registered_path("minionerec.rankers", self.ranker), "ranker") if self.ranker else None
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
        "corpus that it was trained on; items that share an SID are listed by popularity",
        required=True,
        input_kind="corpus",
    )
    dtype: str = setting("saved", "dtype of the weights; saved: as in the checkpoint", known=EXPORT_DTYPES)
