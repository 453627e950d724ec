"""Settings of the stage that lets a checkpoint speak new items; light to import, so that `--help` answers at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from minionerec.core.settings import StageConfig, setting
from minionerec.sid.embed.config import encoder_inputs

STARTS = ("neighbours", "zero")


@dataclass
class ExtendConfig(StageConfig):
    """Settings of `run_extend`."""

    kind: ClassVar[str] = "checkpoint"

    checkpoint: str = setting(
        "",
        "checkpoint that is to speak more items (sft, grpo, dpo, train-catalogue)",
        required=True,
        reads="checkpoint",
    )
    corpus: str = setting("", "corpus with the new items (minionerec prepare-data)", required=True, reads="corpus")
    sids: str = setting(
        "",
        "SIDs of its items, appended to those that the checkpoint speaks (minionerec build-sids --method append)",
        required=True,
        reads="sids",
    )
    output: str = setting("", "checkpoint directory to write", required=True, decides=False)
    lift: float = setting(
        0.0,
        "added to the log-probability of items without a training row in the corpus when the checkpoint recommends, in "
        "natural logarithms (1: 2.7 times as probable); choose it on validation rows",
    )
    vectors: str = setting(
        "tfidf",
        "catalogue model: where the text of new items comes from, which must be what it was trained with: tfidf "
        "(fitted as it was then), the output of embed-items, a .npy or .parquet file",
        required=True,
        path=True,
    )
    start: str = setting(
        "neighbours",
        "catalogue model: learned vector and bias of a new SID, and vectors of codes that are new: neighbours (mean of "
        "the SIDs that share its longest prefix) or zero (text and the codes that it shares speak for it)",
        known=STARTS,
    )

    def inputs(self) -> dict[str, Path]:
        """The settings that name inputs, and the vectors where they are read from somewhere."""
        return super().inputs() | encoder_inputs(self.vectors)
