"""Settings of S-DPO; light to import, so that `--help` answers at once."""

from dataclasses import dataclass

from minionerec.core.errors import ConfigError
from minionerec.core.settings import setting
from minionerec.training.config import LanguageRunConfig

SOURCES = ("uniform", "popularity", "beam")


@dataclass
class DpoConfig(LanguageRunConfig):
    """Settings of softmax direct preference optimisation."""

    checkpoint: str = setting(
        "",
        "checkpoint to start from (minionerec sft); it also stays as it is, as the reference",
        required=True,
        reads="checkpoint",
    )
    negatives: int = setting(3, "SIDs that each target is to be preferred to (N); 1 is plain DPO", least=1)
    negatives_from: str = setting(
        "uniform",
        "where they come from: uniform (any other SID), popularity (as often as they are training targets), both drawn "
        "anew in every epoch, or beam (the best of the checkpoint's own search, the same in every epoch)",
        known=SOURCES,
    )
    beta: float = setting(1.0, "scale of log-ratios in the loss; the higher, the closer to the checkpoint", above=0)
    prompts_per_step: int = setting(128, "prompts an optimiser step, over all devices", least=1)
    prompts_per_device: int = setting(64, "prompts a device computes at a time", least=1)

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        if self.eval_rows == 0:
            raise ConfigError("eval_rows is 0; S-DPO can hurt, so it must be watched on validation rows.")
