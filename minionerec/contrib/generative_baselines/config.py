"""Settings of the stages of this part; light to import."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from minionerec.core.settings import setting
from minionerec.training.config import FITTING, LanguageRunConfig, RunConfig

TIGER_OPTIMIZERS = ("adafactor", "adamw")


@dataclass
class TigerTrainConfig(RunConfig):
    """Settings of the stage that trains a TIGER (`minionerec.contrib.generative_baselines.tiger`)."""

    sids: str = setting("", "SID directory (minionerec build-sids)", required=True, input_kind="sids")
    optimizer: str = setting(
        "adafactor",
        "adafactor, whose steps are relative to the size of what they move, as T5 is scaled for; or adamw",
        known=TIGER_OPTIMIZERS,
    )
    learning_rate: float = setting(1e-2, "peak learning rate; about 1e-2 for adafactor, 1e-3 for adamw", above=0)
    hidden_size: int = setting(128, "width", least=1)
    layers: int = setting(4, "layers of the encoder, and as many of the decoder", least=1)
    heads: int = setting(6, "attention heads", least=1)
    head_size: int = setting(64, "width of a head", least=1)
    inner_size: int = setting(1024, "width of the feed-forward layers", least=1)
    dropout: float = setting(
        0.1, "dropout of embeddings, attention weights and after each part of a layer", least=0, below=1
    )
    batch_size: int = setting(256, "examples an optimiser step, over all devices", least=1)
    device_batch_size: int = setting(0, f"examples a device computes at a time; {FITTING}", least=0)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.dtype not in ("auto", "float32"):
            yield (
                f"dtype is {self.dtype}, in which steps from random weights round to nothing; set float32 and "
                "mixed_bf16, to compute in bfloat16."
            )
        if self.eval_examples == 0:
            yield "eval_examples is 0; the best checkpoint is chosen by ranking validation examples."


DPO_NEGATIVES = ("uniform", "popularity", "beam")


@dataclass
class DpoConfig(LanguageRunConfig):
    """Settings of softmax direct preference optimisation."""

    batch: ClassVar[tuple[str, str]] = ("prompts_per_step", "prompts_per_device")

    checkpoint: str = setting(
        "",
        "checkpoint to start from (minionerec sft); it is also the frozen reference",
        required=True,
        input_kind="checkpoint",
    )
    negatives: int = setting(3, "negatives of each target (N); 1 is plain DPO", least=1)
    negatives_from: str = setting(
        "uniform",
        "source of negatives: uniform (any other SID), popularity (as often as they are training targets), both "
        "redrawn in every epoch, or beam (the best of the checkpoint's own search, the same in every epoch)",
        known=DPO_NEGATIVES,
    )
    beta: float = setting(1.0, "scale of log-ratios in the loss; the higher, the closer to the checkpoint", above=0)
    prompts_per_step: int = setting(128, "prompts an optimiser step, over all devices", least=1)
    prompts_per_device: int = setting(0, f"prompts a device computes at a time; {FITTING}", least=0)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.eval_examples == 0:
            yield "eval_examples is 0; S-DPO can hurt, so it must be watched on validation examples."
