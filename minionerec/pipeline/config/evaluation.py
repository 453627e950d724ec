"""Settings of the evaluation stage; light to import, so that `--help` is fast."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from minionerec.core.functions import function_file
from minionerec.core.plugins import registered_path
from minionerec.core.values import in_words
from minionerec.models.decoding.names import (
    COMBINATIONS,
    SCORES,
    SEARCHES,
    check_length_penalty,
)
from minionerec.pipeline.settings import StageConfig, setting

SPLITS = ("test", "valid")
SEEN = ("keep", "mask")
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass
class EvaluationConfig(StageConfig):
    """Settings that stages share which recommend for the examples of a split and measure."""

    kind: ClassVar[str] = "predictions"

    corpus: str = setting("", "corpus directory (minionerec prepare-data)", required=True, input_kind="corpus")
    split: str = setting("test", "examples to evaluate", known=SPLITS)
    ks: list[int] = setting([1, 3, 5, 10, 20, 50], "cutoffs of the metrics, at most the length of the lists")
    dtype: str = setting("auto", "dtype of the weights; auto: on a GPU as stored, else float32", known=DTYPES)
    context: bool = setting(
        True,
        "give a model that was trained with request features (context of the training stages) those of each example, "
        "as far as they are known; false: give none",
    )
    resamples: int = setting(2000, "bootstrap resamples for the intervals", least=1)

    def wrong_ks(self, length: int, noun: str) -> Iterator[str]:
        """The problem of cutoffs that are none, or look further than lists of some length."""
        if not self.ks or any(k > length or k < 1 for k in self.ks):
            yield (
                f"ks {in_words(self.ks)} with {length} {noun}: each K must be from 1 to the number of {noun}. "
                f"Give fewer ks or more {noun}."
            )


@dataclass
class EvalConfig(EvaluationConfig):
    """Settings of evaluation."""

    checkpoint: str = setting(
        "",
        "model: a checkpoint (minionerec sft, grpo, train-catalogue) or the model of a seed "
        "(minionerec train-sequential)",
        input_kind="any",
    )
    ranker: str = setting(
        "",
        "instead of a checkpoint, your own ranker: dotted path of a function that takes the corpus and returns one, "
        "e.g. my_module.make, or a name that an installed package registers",
    )
    sids: str = setting(
        "",
        "SID directory: that a checkpoint must have been trained on (empty: its own table), or for SID-level metrics "
        "of another ranker",
        input_kind="sids",
    )
    search: str = setting(
        "beam",
        "search of a checkpoint: beam, or exact (the true best of the whole catalogue)",
        known=SEARCHES,
    )
    beams: int = setting(50, "number of beams, and length of the ranked lists", least=1)
    seen: str = setting(
        "keep",
        "items that the user of an example had before: keep (may be recommended again) or mask (excluded; the search "
        "has as many more beams)",
        known=SEEN,
    )
    scores: str = setting(
        "full",
        "full: log-softmax over the vocabulary, as beam search of transformers; renormalised: over children",
        known=SCORES,
    )
    length_penalty: float = setting(
        0.0,
        "scores are divided by the number of tokens to this power (beam search); 0: summed log-probabilities",
        least=0,
    )
    assistant: str = setting(
        "",
        "a second recommender mixed into a checkpoint's search: the folder `model` of a training (minionerec "
        "train-sequential), or another checkpoint; none if empty",
        input_kind="any",
    )
    share: float = setting(
        0.5,
        "with an assistant: weight of the checkpoint's log-probabilities; the rest is the assistant's",
        least=0,
        most=1,
        requires="assistant",
    )
    combine: str = setting(
        "steps",
        "with an assistant: steps (both score every step of the search) or rerank (the checkpoint searches alone, and "
        "its list is reranked by both)",
        known=COMBINATIONS,
        requires="assistant",
    )
    baselines: bool = setting(
        True,
        "evaluate the baselines, too; false: the model alone, where another evaluation of these examples has them",
    )
    experts: bool = setting(True, "use the experts of a checkpoint that was trained with them; false: the model alone")
    batch_size: int = setting(
        0, "prompts per batch; 0: as many as memory holds; lists are the same", least=0, affects_result=False
    )
    score_end: bool = setting(
        False,
        "also score the tokens after the SID in a completion (newline, end token), as `generate` does",
    )

    def __post_init__(self) -> None:
        """See `Settings`; with a ranker, a checkpoint of a recipe is ignored."""
        if self.ranker:
            self.checkpoint = ""
        super().__post_init__()

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if not self.ranker and not self.checkpoint:
            yield "checkpoint is empty; give --checkpoint a directory, or --ranker your own."
        yield from self.wrong_ks(self.beams, "beams")
        if self.assistant and self.ranker:
            yield f"assistant is {self.assistant!r}, but your own ranker is not searched; leave it out."
        check_length_penalty(self.search, self.length_penalty)

    def inputs(self) -> dict[str, Path]:
        """All inputs, with the source file of a user's own ranker."""
        found = super().inputs()
        file = function_file(registered_path("minionerec.rankers", self.ranker), "ranker") if self.ranker else None
        return found if file is None else {**found, "ranker": file}
