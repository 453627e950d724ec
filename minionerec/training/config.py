"""Settings of the training stages; light to import, so that `--help` answers at once."""

from dataclasses import dataclass, field

from minionerec.core.errors import ConfigError
from minionerec.rewards.registry import parse_rewards

SELECT = ("loss", "ndcg")
ROLLOUTS = ("beams", "sampling")
# TRL's loss type and level of importance sampling.
LOSSES = {
    "grpo": ("grpo", "token"),
    "bnpo": ("bnpo", "token"),
    "dapo": ("dapo", "token"),
    "gspo": ("grpo", "sequence"),
}


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def parse_tasks(tasks: list[str]) -> dict[str, float]:
    """Task weights from "name=weight" words; a bare name has weight 1.

    Raises:
        ConfigError: If a weight is not a positive number, or a task is named twice.

    Example:
        >>> parse_tasks(["next_sid", "title_to_sid=0.5"])
        {'next_sid': 1.0, 'title_to_sid': 0.5}
    """
    weights: dict[str, float] = {}
    for word in tasks:
        name, _, weight = word.partition("=")
        try:
            value = float(weight or 1)
        except ValueError:
            value = -1.0
        if value <= 0 or name in weights:
            raise ConfigError(
                f"tasks: {word!r}; expected each task once, as name or name=weight with a weight above 0."
            )
        weights[name] = value
    if not weights:
        raise ConfigError("tasks is empty; name at least one task, e.g. next_sid.")
    return weights


@dataclass
class RunConfig:
    """What every training stage asks for."""

    corpus: str = field(default="runs/demo/corpus", metadata={"help": "corpus directory (scripts/prepare_data.py)"})
    output: str = field(default="", metadata={"help": "checkpoint directory to write"})
    epochs: float = field(default=1.0, metadata={"help": "passes over the examples"})
    learning_rate: float = field(default=1e-3, metadata={"help": "peak learning rate of AdamW"})
    schedule: str = field(
        default="cosine", metadata={"help": "learning rate after warm-up: cosine, linear or constant"}
    )
    warmup: float = field(default=0.0, metadata={"help": "warm-up: share of all steps if below 1, else steps"})
    weight_decay: float = field(default=0.0, metadata={"help": "AdamW weight decay"})
    max_grad_norm: float = field(default=1.0, metadata={"help": "gradients are clipped to this norm"})
    evals_per_epoch: float = field(default=1.0, metadata={"help": "validations (and saved checkpoints) an epoch"})
    eval_rows: int = field(
        default=1000, metadata={"help": "validation rows ranked at each validation; 0: none, -1: all"}
    )
    eval_beams: int = field(default=20, metadata={"help": "beam width of that ranking"})
    patience: int = field(
        default=0, metadata={"help": "stop after this many validations without a better one; 0: never"}
    )
    dtype: str = field(default="auto", metadata={"help": "dtype of the weights: auto, float32, bfloat16, float16"})
    mixed_bf16: bool = field(default=False, metadata={"help": "compute in bfloat16 over float32 weights"})
    max_prompt_length: int = field(default=512, metadata={"help": "prompts are cut to their last tokens, this many"})
    seed: int = field(default=42, metadata={"help": "seed of initialisation, order and dropout"})
    tensorboard: bool = field(
        default=False, metadata={"help": "write TensorBoard logs (needs the extra `tensorboard`)"}
    )
    restart: bool = field(default=False, metadata={"help": "throw an unfinished run of this output away"})
    keep_state: bool = field(
        default=True,
        metadata={
            "help": "keep the last checkpoint, with the optimiser's state, in OUTPUT.finished, so that the same "
            "command with more epochs goes on from there"
        },
    )

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        _check(bool(self.output), "output is empty; say where the checkpoint is to be written.")
        _check(self.epochs > 0, f"epochs is {self.epochs}; it must be above 0.")
        _check(self.learning_rate > 0, f"learning_rate is {self.learning_rate}; it must be above 0.")
        _check(
            self.schedule in ("cosine", "linear", "constant"),
            f"unknown schedule {self.schedule!r}; known: cosine, linear, constant.",
        )
        _check(self.evals_per_epoch > 0, f"evals_per_epoch is {self.evals_per_epoch}; it must be above 0.")
        _check(
            self.eval_rows == 0 or self.eval_beams >= 10,
            f"eval_beams is {self.eval_beams}; validation reports NDCG@10 and needs at least 10.",
        )


@dataclass
class CommonConfig(RunConfig):
    """What the stages that train language models ask for."""

    tasks: list[str] = field(
        default_factory=lambda: ["next_sid"],
        metadata={
            "help": "tasks with weights, e.g. next_sid title_to_sid=0.5: a weight is how often each example is seen "
            "in an epoch (0.5: a fixed random half)"
        },
    )
    gradient_checkpointing: bool = field(default=False, metadata={"help": "recompute activations to save memory"})

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        parse_tasks(self.tasks)


@dataclass
class SftConfig(CommonConfig):
    """Settings of supervised fine-tuning."""

    sids: str = field(default="runs/demo/sids", metadata={"help": "SID directory (scripts/build_sids.py)"})
    model: str = field(
        default="scratch", metadata={"help": "hub name or directory of a causal language model, or `scratch`"}
    )
    hidden_size: int = field(default=256, metadata={"help": "scratch: width"})
    layers: int = field(default=4, metadata={"help": "scratch: transformer blocks"})
    heads: int = field(default=4, metadata={"help": "scratch: attention heads"})
    kv_heads: int = field(default=4, metadata={"help": "scratch: key and value heads"})
    inner_size: int = field(default=768, metadata={"help": "scratch: width of the feed-forward layer"})
    text_vocabulary: int = field(default=1000, metadata={"help": "scratch: tokens trained on the corpus's texts"})
    tied: bool = field(default=True, metadata={"help": "scratch: output head shares the input embedding"})
    dropout: float = field(default=0.0, metadata={"help": "dropout behind embedding, attention and feed-forward"})
    wording: str = field(default="compact", metadata={"help": "prompt wording: compact, prose, or a YAML file"})
    all_positions: bool = field(
        default=False,
        metadata={
            "help": "next_sid: one row a user window with a loss at every item, instead of one row an interaction; "
            "needs a wording whose prompt is the bare history"
        },
    )
    lora_rank: int = field(
        default=0,
        metadata={
            "help": "LoRA: train updates of this rank to a pretrained model, and the rows of SID tokens, instead of "
            "all weights; 0: all weights"
        },
    )
    batch_size: int = field(default=64, metadata={"help": "examples an optimiser step, over all devices"})
    device_batch_size: int = field(default=64, metadata={"help": "examples a device computes at a time"})
    select_by: str = field(
        default="loss", metadata={"help": "best checkpoint: lowest validation loss, or highest ndcg"}
    )

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        _check(self.lora_rank >= 0, f"lora_rank is {self.lora_rank}; it must be 0 or above.")
        _check(
            not (self.lora_rank and self.model == "scratch"),
            f"lora_rank is {self.lora_rank}, but model is scratch: random weights cannot stay as they are. Name a "
            "pretrained model, or set lora_rank to 0.",
        )
        _check(self.select_by in SELECT, f"unknown select_by {self.select_by!r}; known: {', '.join(SELECT)}.")
        _check(
            self.select_by == "loss" or self.eval_rows != 0,
            "select_by is ndcg but eval_rows is 0; rank some validation rows, or select by loss.",
        )
        _check(
            not self.all_positions or "next_sid" in parse_tasks(self.tasks),
            f"all_positions is about the task next_sid, which is not among the tasks {self.tasks}.",
        )


@dataclass
class GrpoConfig(CommonConfig):
    """Settings of GRPO."""

    checkpoint: str = field(default="runs/demo/sft", metadata={"help": "checkpoint to start from (scripts/sft.py)"})
    rewards: list[str] = field(
        default_factory=lambda: ["ranking"],
        metadata={
            "help": "rewards with weights, e.g. rule ndcg semantic=0.5: rule (1 for a hit), ndcg (penalty of wrong "
            "ones by rank, where there is a hit), position (codes matched from the left), semantic (cosine of item "
            "vectors), collaborative (score of a sequential model); ranking is rule and ndcg, ranking_only is ndcg"
        },
    )
    reward_vectors: str = field(default="", metadata={"help": "item vectors for `semantic` (scripts/embed_items.py)"})
    reward_model: str = field(
        default="",
        metadata={"help": "model for `collaborative`: the folder `model` of a seed (scripts/train_sequential.py)"},
    )
    sibling_alpha: float = field(
        default=1.0,
        metadata={
            "help": "share of a completion's advantage in its group; the rest is its advantage among completions that "
            "share a prefix with it; 1: the group's alone"
        },
    )
    rollouts: str = field(
        default="beams",
        metadata={"help": "beams (the G best, as in evaluation) or sampling (G drawn without replacement)"},
    )
    generations: int = field(default=16, metadata={"help": "rollouts of each prompt (G), best first"})
    prompts_per_step: int = field(default=64, metadata={"help": "prompts an optimiser step, over all devices"})
    prompts_per_device: int = field(default=64, metadata={"help": "prompts a device computes at a time"})
    loss: str = field(
        default="grpo",
        metadata={
            "help": "grpo (mean over each completion, then over completions), bnpo or dapo (mean over tokens, of what "
            "a device computes at a time or of the whole step), gspo (one ratio a completion)"
        },
    )
    keep_zero_variance: bool = field(
        default=False,
        metadata={
            "help": "also compute groups whose rewards are all equal; they carry the KL term alone, and are left out "
            "otherwise"
        },
    )
    beta: float = field(default=1e-3, metadata={"help": "weight of the KL term; 0 does without a reference model"})
    reference: str = field(
        default="", metadata={"help": "checkpoint that the KL term is measured against; empty: the one to start from"}
    )
    sync_reference: bool = field(default=True, metadata={"help": "move the reference towards the policy"})
    sync_steps: int = field(default=512, metadata={"help": "optimiser steps between two such moves"})
    sync_share: float = field(default=0.6, metadata={"help": "share of the policy in the moved reference"})
    max_steps: int = field(default=-1, metadata={"help": "stop after this many optimiser steps; -1: after the epochs"})

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        weights = parse_rewards(self.rewards)
        for name, setting, what in (
            ("semantic", "reward_vectors", "the vectors that it compares (scripts/embed_items.py)"),
            ("collaborative", "reward_model", "the model that it asks (scripts/train_sequential.py)"),
        ):
            _check(
                (name in weights) == bool(getattr(self, setting)),
                f"rewards are {self.rewards} and {setting} is {getattr(self, setting)!r}; the reward {name} and {what} "
                "go together.",
            )
        _check(self.generations >= 2, f"generations is {self.generations}; a group needs at least 2.")
        _check(self.rollouts in ROLLOUTS, f"unknown rollouts {self.rollouts!r}; known: {', '.join(ROLLOUTS)}.")
        _check(self.loss in LOSSES, f"unknown loss {self.loss!r}; known: {', '.join(LOSSES)}.")
        _check(0 <= self.sibling_alpha <= 1, f"sibling_alpha is {self.sibling_alpha}; it must be in [0, 1].")
        _check(self.beta >= 0, f"beta is {self.beta}; it must be 0 or above.")
        _check(
            not (self.beta == 0 and self.sync_reference),
            "beta is 0, so there is no reference to sync, but sync_reference is true; set one of them otherwise.",
        )
        _check(
            not (self.beta == 0 and self.reference),
            f"beta is 0, so nothing is measured against the reference {self.reference!r}; set one of them otherwise.",
        )
        _check(self.eval_rows != 0, "eval_rows is 0; GRPO can hurt, so it must be watched on validation rows.")


OBJECTIVES = ("likelihood", "expected", "grpo")


@dataclass
class CatalogueTrainConfig(RunConfig):
    """Settings of the stage that trains a catalogue model (`minionerec.backbone.catalogue`)."""

    sids: str = field(default="runs/demo/sids", metadata={"help": "SID directory (scripts/build_sids.py)"})
    checkpoint: str = field(
        default="",
        metadata={
            "help": "checkpoint of a catalogue model to go on from, whose shape, vectors and counts stay; empty: "
            "random weights"
        },
    )
    vectors: str = field(
        default="tfidf",
        metadata={
            "help": "item text beside learned vectors: tfidf, the output of embed_items, a .npy or .parquet file; "
            "empty: none"
        },
    )
    vector_width: int = field(default=128, metadata={"help": "width of TF-IDF vectors"})
    hidden_size: int = field(default=128, metadata={"help": "width of a tower"})
    layers: int = field(default=2, metadata={"help": "layers of a tower"})
    heads: int = field(default=4, metadata={"help": "attention heads of a tower"})
    inner_size: int = field(default=512, metadata={"help": "width of a tower's position-wise networks"})
    towers: int = field(default=1, metadata={"help": "transformers trained side by side, their probabilities averaged"})
    dropout: float = field(default=0.4, metadata={"help": "dropout of item vectors, and behind each part of a layer"})
    learned_vectors: bool = field(default=True, metadata={"help": "give every SID a vector of its own"})
    code_vectors: bool = field(default=True, metadata={"help": "give codes vectors that their SIDs share"})
    pointer: bool = field(default=True, metadata={"help": "score SIDs of the history by how long ago they came"})
    transitions: bool = field(default=True, metadata={"help": "score SIDs by how often they followed the history's"})
    reach: int = field(default=10, metadata={"help": "items back that pairs are counted"})
    decay: float = field(default=0.6, metadata={"help": "weight of each further item back in the counts"})
    reverse: float = field(default=0.3, metadata={"help": "weight of a pair in the other direction"})
    recency: float = field(
        default=0.0,
        metadata={
            "help": "weigh a training target by exp(-recency x share of the training rows that came after it); only "
            "where the split is by time, else all weigh alike"
        },
    )
    objective: str = field(
        default="likelihood",
        metadata={
            "help": "likelihood; expected (reward that the model expects, over the whole catalogue: 1 for the target); "
            "grpo (advantages of the best SIDs as a group, ranking reward)"
        },
    )
    generations: int = field(default=16, metadata={"help": "grpo: SIDs of a group (G)"})
    beta: float = field(
        default=0.0, metadata={"help": "expected, grpo: weight of the KL divergence from the starting checkpoint"}
    )
    batch_size: int = field(default=128, metadata={"help": "windows an optimiser step, over all devices"})
    device_batch_size: int = field(default=128, metadata={"help": "windows a device computes at a time"})
    beta2: float = field(default=0.98, metadata={"help": "second beta of AdamW"})

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        _check(
            self.dtype in ("auto", "float32"),
            f"dtype is {self.dtype}, in which counts cannot leave a position's own answer out exactly; set float32 and "
            "mixed_bf16, to compute in bfloat16.",
        )
        _check(self.objective in OBJECTIVES, f"unknown objective {self.objective!r}; known: {', '.join(OBJECTIVES)}.")
        _check(
            self.objective == "likelihood" or bool(self.checkpoint),
            f"objective {self.objective} sharpens a model that has been trained; give --checkpoint.",
        )
        _check(
            self.beta == 0 or self.objective != "likelihood",
            f"beta is {self.beta}, but the objective likelihood has no KL term; set it to 0.",
        )
        _check(self.beta >= 0, f"beta is {self.beta}; it must be 0 or above.")
        _check(self.eval_rows != 0, "eval_rows is 0; the best checkpoint is chosen by ranking validation rows.")
        _check(self.generations >= 2, f"generations is {self.generations}; a group needs at least 2.")
        _check(self.towers >= 1, f"towers is {self.towers}; it must be at least 1.")
        _check(0 <= self.dropout < 1, f"dropout is {self.dropout}; it must be in [0, 1).")
        _check(self.reach >= 1, f"reach is {self.reach}; it must be at least 1.")
        _check(0 < self.decay <= 1, f"decay is {self.decay}; it must be above 0 and at most 1.")
        _check(self.recency >= 0, f"recency is {self.recency}; it must be 0 or above.")
        _check(self.reverse >= 0, f"reverse is {self.reverse}; it must be 0 or above.")
        _check(
            bool(self.vectors) or self.learned_vectors or self.code_vectors,
            "SIDs have no vector: give vectors, learned_vectors or code_vectors.",
        )
