"""Settings of the evaluation stage; light to import, so that `--help` answers at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from minionerec.core.paths import function_file
from minionerec.core.settings import StageConfig, setting
from minionerec.models.decoding.names import (
    COMBINATIONS,
    SCORES,
    SEARCHES,
    check_length_penalty,
)

SPLITS = ("test", "valid")
SEEN = ("keep", "mask")
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass
class EvalConfig(StageConfig):
    """Settings of evaluation."""

    kind: ClassVar[str] = "predictions"

    checkpoint: str = setting(
        "",
        "what recommends: a checkpoint (minionerec sft, grpo, dpo, train-catalogue, train-tiger) or the model of a "
        "seed (minionerec train-sequential)",
        input_kind="any",
    )
    ranker: str = setting(
        "",
        "instead of a checkpoint, your own ranker: dotted path of a function that takes the corpus and gives one, "
        "e.g. my_module.make",
    )
    corpus: str = setting("", "corpus directory (minionerec prepare-data)", required=True, input_kind="corpus")
    sids: str = setting(
        "",
        "SID directory: that a checkpoint must have been trained on (empty: its own table), or by whose SIDs the items "
        "of another ranker are measured too",
        input_kind="sids",
    )
    output: str = setting("", "predictions directory to write", required=True, affects_result=False)
    split: str = setting("test", "rows to recommend for", known=SPLITS)
    search: str = setting(
        "beam",
        "how a checkpoint searches: beam, or exact (the true best of the whole catalogue)",
        known=SEARCHES,
    )
    beams: int = setting(50, "beam width, and length of the ranked lists", least=1)
    ks: list[int] = setting([1, 3, 5, 10, 20, 50], "cut-offs of the metrics; none above the beams")
    seen: str = setting(
        "keep",
        "items of a row's own history: keep (they may be recommended again) or mask (left out; the search is wider by "
        "as many)",
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
        since="0.2",
    )
    assistant: str = setting(
        "",
        "a second recommender that has a say in a checkpoint's search: the folder `model` of a training (minionerec "
        "train-sequential), or another checkpoint; none if empty",
        input_kind="any",
    )
    share: float = setting(
        0.5,
        "with an assistant: weight of the checkpoint's log-probabilities, the assistant's having the rest",
        least=0,
        most=1,
        requires="assistant",
    )
    assistant_temperature: float = setting(
        1.0, "with an assistant: its scores are divided by it", above=0, requires="assistant"
    )
    combine: str = setting(
        "steps",
        "with an assistant: steps (both score every step of the search) or rerank (the checkpoint searches alone, and "
        "its list is put in the order of both)",
        known=COMBINATIONS,
        requires="assistant",
    )
    batch_size: int = setting(
        64, "prompts decoded at a time; 0: as many as fit into half the free memory, in powers of two", least=0
    )
    score_end: bool = setting(
        False,
        "also score the tokens behind the SID in a completion (newline, end token), as `generate` does",
    )
    dtype: str = setting("auto", "dtype of the weights; auto: on a GPU as stored, else float32", known=DTYPES)
    slices: bool = setting(
        False, "also show NDCG by kind of row, and write HR and NDCG by kind into metrics.json", since="0.2"
    )
    times: str | None = setting(
        None,
        "with slices: csv file of split, row, timestamp and previous_timestamp, where the corpus has no times of its "
        "own",
        input_kind="any",
        requires="slices",
    )
    session_context: bool = setting(
        True,
        "give a checkpoint that was trained with it the session context: whether the target is in the "
        "session of the newest item or in a later one, as far as times are known; false: give none",
    )
    resamples: int = setting(2000, "bootstrap resamples for the intervals", least=1)
    seed: int = setting(0, "seed of the bootstrap", least=0)

    def __post_init__(self) -> None:
        """See `Settings`; a checkpoint beside a ranker, which a recipe may name, is not read."""
        if self.ranker:
            self.checkpoint = ""
        super().__post_init__()

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if not self.ranker and not self.checkpoint:
            yield "checkpoint is empty; give --checkpoint a directory, or --ranker your own."
        too_large = [k for k in self.ks if k > self.beams or k < 1]
        if too_large or not self.ks:
            yield (
                f"ks {self.ks} with {self.beams} beams: each K must be from 1 to the number of beams. "
                "Give fewer ks or more beams."
            )
        if self.assistant and self.ranker:
            yield f"assistant is {self.assistant!r}, but a ranker of your own is not searched; leave it out."
        check_length_penalty(self.search, self.length_penalty)

    def inputs(self) -> dict[str, Path]:
        """Everything that is read; of a user's own ranker the file that it is written in."""
        found = super().inputs()
        file = function_file(self.ranker, "ranker") if self.ranker else None
        return found if file is None else {**found, "ranker": file}
