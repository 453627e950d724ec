"""Settings of GRPO; light to import, so that `--help` answers at once."""

from dataclasses import dataclass
from pathlib import Path

from minionerec.core.errors import ConfigError
from minionerec.core.settings import setting
from minionerec.training.config import StreamedConfig
from minionerec.training.rewards.registry import reward_files, reward_weights

ROLLOUTS = ("beams", "sampling")
LOSSES = ("grpo", "bnpo", "dapo", "gspo")
# Rewards that need a file of their own, the setting that names it, and what it is.
_SOURCES = (
    ("semantic", "reward_vectors", "the vectors that it compares (minionerec embed-items)"),
    ("collaborative", "reward_model", "the model that it asks (minionerec train-sequential)"),
)


@dataclass
class GrpoConfig(StreamedConfig):
    """Settings of GRPO."""

    checkpoint: str = setting("", "checkpoint to start from (minionerec sft)", required=True, reads="checkpoint")
    rewards: dict[str, float] = setting(
        {"ranking": 1.0},
        "rewards with weights, e.g. rule ndcg semantic=0.5: rule (1 for a hit), ndcg (penalty of wrong ones by rank, "
        "where there is a hit), position (codes matched from the left), semantic (cosine of item vectors), "
        "collaborative (score of a sequential model), or the dotted path of a function of your own; ranking is rule "
        "and ndcg, ranking_only is ndcg",
        required=True,
    )
    reward_vectors: str = setting("", "item vectors for `semantic` (minionerec embed-items)", reads="vectors")
    reward_model: str = setting(
        "",
        "model for `collaborative`: the folder `model` of a training (minionerec train-sequential)",
        reads="sequential_model",
    )
    sibling_alpha: float = setting(
        1.0,
        "share of a completion's advantage in its group; the rest is its advantage among completions that share a "
        "prefix with it; 1: the group's alone",
        least=0,
        most=1,
    )
    rollouts: str = setting(
        "beams", "beams (the G best, as in evaluation) or sampling (G drawn without replacement)", known=ROLLOUTS
    )
    generations: int = setting(16, "rollouts of each prompt (G), best first", least=2)
    prompts_per_step: int = setting(64, "prompts an optimiser step, over all devices", least=1)
    prompts_per_device: int = setting(64, "prompts a device computes at a time", least=1)
    loss: str = setting(
        "grpo",
        "grpo (mean over each completion, then over completions), bnpo or dapo (mean over tokens, of what a device "
        "computes at a time or of the whole step), gspo (one ratio a completion)",
        known=LOSSES,
    )
    keep_zero_variance: bool = setting(
        False,
        "also compute groups whose rewards are all equal; they carry the KL term alone, and are left out otherwise",
    )
    beta: float = setting(1e-3, "weight of the KL term; 0 does without a reference model", least=0)
    reference: str = setting(
        "", "checkpoint that the KL term is measured against; empty: the one to start from", reads="checkpoint"
    )
    sync_reference: bool = setting(True, "move the reference towards the policy")
    sync_steps: int = setting(512, "optimiser steps between two such moves", least=1)
    sync_share: float = setting(0.6, "share of the policy in the moved reference", least=0, most=1)
    max_steps: int = setting(-1, "stop after this many optimiser steps; -1: after the epochs", least=-1)

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        weights = reward_weights(self.rewards)
        for name, place, what in _SOURCES:
            if (name in weights) != bool(getattr(self, place)):
                raise ConfigError(
                    f"rewards are {', '.join(self.rewards)} and {place} is {getattr(self, place)!r}; the reward {name} "
                    f"and {what} go together."
                )
        if self.beta == 0 and self.sync_reference:
            raise ConfigError(
                "beta is 0, so there is no reference to sync, but sync_reference is true; set one of them otherwise."
            )
        if self.beta == 0 and self.reference:
            raise ConfigError(
                f"beta is 0, so nothing is measured against the reference {self.reference!r}; set one of them "
                "otherwise."
            )
        if self.eval_rows == 0:
            raise ConfigError("eval_rows is 0; GRPO can hurt, so it must be watched on validation rows.")

    def inputs(self) -> dict[str, Path]:
        """The settings that name inputs, and the files of a user's own rewards."""
        return super().inputs() | reward_files(list(self.rewards))
