"""Settings of the training stages; light to import, so that `--help` answers at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from minionerec.core.artefacts import is_artefact
from minionerec.core.errors import ConfigError
from minionerec.core.paths import name_or_copy
from minionerec.core.settings import StageConfig, setting
from minionerec.models.prompts.wording import BUILT_IN, NEXT_SID, NEXT_TITLE
from minionerec.sid.embed.config import encoder_inputs

SCHEDULES = ("cosine", "linear", "constant", "inverse_sqrt")
SELECT = ("loss", "ndcg")
DTYPES = ("auto", "float32", "bfloat16", "float16")
TRACKERS = (
    "tensorboard",
    "wandb",
    "mlflow",
    "trackio",
    "azure_ml",
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "flyte",
    "kubeflow",
    "neptune",
    "swanlab",
)
"""What transformers can report to."""
SHUFFLED = 65_536
OBJECTIVES = ("likelihood", "expected", "grpo")
LOSSES = ("exact", "sampled")
RECENCY = (
    "weigh a training target by exp(-recency x share of the training rows that came after it); only where the split is "
    "by time, else all weigh alike"
)


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass
class RunConfig(StageConfig):
    """What every training stage asks for."""

    kind: ClassVar[str] = "checkpoint"

    corpus: str = setting("", "corpus directory (minionerec prepare-data)", required=True, reads="corpus")
    output: str = setting("", "checkpoint directory to write", required=True, decides=False)
    epochs: float = setting(1.0, "passes over the examples", above=0, grows=True)
    learning_rate: float = setting(1e-3, "peak learning rate of AdamW", above=0)
    schedule: str = setting("cosine", "learning rate after warm-up", known=SCHEDULES)
    warmup: float = setting(0.0, "warm-up: share of all steps if below 1, else steps", least=0)
    weight_decay: float = setting(0.0, "AdamW weight decay", least=0)
    max_grad_norm: float = setting(1.0, "gradients are clipped to this norm", least=0)
    evals_per_epoch: float = setting(1.0, "validations (and saved checkpoints) an epoch", above=0)
    eval_rows: int = setting(1000, "validation rows ranked at each validation; 0: none, -1: all", least=-1)
    eval_beams: int = setting(20, "beam width of that ranking", least=1)
    patience: int = setting(0, "stop after this many validations without a better one; 0: never", least=0)
    dtype: str = setting("auto", "dtype of the weights; auto: float32", known=DTYPES)
    mixed_bf16: bool = setting(False, "compute in bfloat16 over float32 weights")
    max_prompt_length: int = setting(512, "prompts are cut to their last tokens, this many", least=1)
    seed: int = setting(42, "seed of initialisation, order and dropout", least=0)
    report_to: list[str] = setting(
        [],
        "trackers that losses and validations are sent to while it trains, such as tensorboard (which writes into "
        "OUTPUT.tensorboard); empty: none",
        known=TRACKERS,
        decides=False,
    )
    keep_state: bool = setting(
        True,
        "keep the last checkpoint, with the optimiser's state, in OUTPUT.finished, so that the same command with more "
        "epochs goes on from there",
        decides=False,
    )

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        _check(
            self.eval_rows == 0 or self.eval_beams >= 10,
            f"eval_beams is {self.eval_beams}; validation reports NDCG@10 and needs at least 10.",
        )


@dataclass
class RefittableConfig(RunConfig):
    """What a training stage asks for that can train on all rows, for service."""

    refit: str = setting(
        "",
        "checkpoint of this stage whose settings and best epoch are trained anew on all rows, those of valid and test "
        "too, and nothing is measured: for a model that goes into service; empty: train and validate",
        reads="checkpoint",
    )


@dataclass
class LanguageRunConfig(RunConfig):
    """What the stages that train language models ask for."""

    tasks: dict[str, float] = setting(
        {"next_sid": 1.0},
        "tasks with weights, e.g. next_sid title_to_sid=0.5: a weight is how often each example is seen in an epoch "
        "(0.5: a fixed random half)",
        above=0,
        required=True,
    )
    gradient_checkpointing: bool = setting(False, "recompute activations to save memory")


@dataclass
class StreamedConfig(LanguageRunConfig):
    """What the stages ask for that can train from rows on disk."""

    stream: bool = setting(
        False,
        "hold no more than a few thousand rows: those of the corpus are tokenised into files of OUTPUT.partial, and "
        "read from there in blocks; loss and ranking are then measured on eval_rows validation rows",
        came_later=True,
    )
    shuffle_rows: int = setting(
        SHUFFLED,
        "stream: rows that are shuffled together, of blocks that are read in random order",
        least=1,
        of="stream",
    )

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        _check(
            not self.stream or self.eval_rows > 0,
            f"eval_rows is {self.eval_rows}, but stream is true, where validation rows are a sample; say how many.",
        )


@dataclass
class SftConfig(StreamedConfig, RefittableConfig):
    """Settings of supervised fine-tuning."""

    sids: str = setting("", "SID directory (minionerec build-sids)", required=True, reads="sids")
    model: str = setting(
        "scratch", "hub name or directory of a causal language model, or `scratch`", required=True, path=True
    )
    hidden_size: int = setting(256, "scratch: width", least=1)
    layers: int = setting(4, "scratch: transformer blocks", least=1)
    heads: int = setting(4, "scratch: attention heads", least=1)
    kv_heads: int = setting(4, "scratch: key and value heads", least=1)
    inner_size: int = setting(768, "scratch: width of the feed-forward layer", least=1)
    text_vocabulary: int = setting(1000, "scratch: tokens trained on the corpus's texts", least=1)
    tied: bool = setting(True, "scratch: output head shares the input embedding")
    dropout: float = setting(0.0, "dropout behind embedding, attention and feed-forward", least=0, below=1)
    wording: str = setting("compact", "prompt wording: compact, prose, lcrec, or a YAML file", required=True, path=True)
    all_positions: bool = setting(
        False,
        "next_sid, title_history_to_title: one row a user window with a loss at every item, instead of one row an "
        "interaction; needs a wording whose prompt is the bare history",
    )
    teacher: str = setting(
        "",
        "next_sid: catalogue model whose probabilities of the next codes are learned beside the true codes (minionerec "
        "train-catalogue); empty: none",
        reads="checkpoint",
    )
    teacher_share: float = setting(0.7, "share of the teacher's probabilities in that loss", above=0, most=1)
    recency: float = setting(0.0, RECENCY, least=0)
    variants: int = setting(
        0,
        "all_positions: further rows of each window, of which items were left out at random; a teacher speaks about "
        "them as about any history",
        least=0,
    )
    max_tokens: int = setting(
        0,
        "stream and all_positions, one task of weight 1: tokens of an epoch; of each shard as many, as whole rows of "
        "users drawn by seed, and no others are tokenised; 0: all rows",
        least=0,
        came_later=True,
    )
    lora_rank: int = setting(
        0,
        "LoRA: train updates of this rank to a pretrained model, and the rows of SID tokens, instead of all weights; "
        "0: all weights",
        least=0,
    )
    batch_size: int = setting(64, "examples an optimiser step, over all devices", least=1)
    device_batch_size: int = setting(64, "examples a device computes at a time", least=1)
    select_by: str = setting("loss", "best checkpoint: lowest validation loss, or highest ndcg", known=SELECT)

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        _check(
            not (self.lora_rank and self.model == "scratch"),
            f"lora_rank is {self.lora_rank}, but model is scratch: random weights cannot stay as they are. Name a "
            "pretrained model, or set lora_rank to 0.",
        )
        _check(
            self.select_by == "loss" or self.eval_rows != 0,
            "select_by is ndcg but eval_rows is 0; rank some validation rows, or select by loss.",
        )
        _check(
            not self.all_positions or bool({NEXT_SID, NEXT_TITLE} & set(self.tasks)),
            f"all_positions is about the tasks {NEXT_SID} and {NEXT_TITLE}, neither of which is among the tasks "
            f"{', '.join(self.tasks)}.",
        )
        _check(
            not self.variants or self.all_positions,
            f"variants is {self.variants}, but they are variants of windows; set all_positions to true, or it to 0.",
        )
        _check(
            not self.max_tokens or (self.stream and self.all_positions and list(self.tasks.values()) == [1]),
            f"max_tokens is {self.max_tokens}, which is about windows that are streamed; set stream and all_positions "
            "to true, and give one task of weight 1.",
        )
        _check(
            not self.teacher or "next_sid" in self.tasks,
            f"a teacher speaks about the task next_sid, which is not among the tasks {', '.join(self.tasks)}.",
        )

    def inputs(self) -> dict[str, Path]:
        """What is read: also the wording where it is the user's own file, and the model where it is ours."""
        own = self.wording not in BUILT_IN and Path(self.wording).is_file()
        found = super().inputs() | ({"wording": Path(self.wording)} if own else {})
        model = name_or_copy(self.model)
        ours = model != "scratch" and is_artefact(model)
        return found | ({"model": Path(model)} if ours else {})


@dataclass
class CatalogueTrainConfig(RefittableConfig):
    """Settings of the stage that trains a catalogue model (`minionerec.models.backbone.catalogue`)."""

    sids: str = setting("", "SID directory (minionerec build-sids)", required=True, reads="sids")
    checkpoint: str = setting(
        "",
        "checkpoint of a catalogue model to go on from, whose shape, vectors and counts stay; empty: random weights",
        reads="checkpoint",
    )
    vectors: str = setting(
        "tfidf",
        "item text beside learned vectors: tfidf, the output of embed-items, a .npy or .parquet file; empty: none",
        path=True,
    )
    vector_width: int = setting(128, "width of TF-IDF vectors", least=1)
    hidden_size: int = setting(128, "width of a tower", least=1)
    layers: int = setting(2, "layers of a tower", least=0)
    heads: int = setting(4, "attention heads of a tower", least=1)
    inner_size: int = setting(512, "width of a tower's position-wise networks", least=1)
    towers: int = setting(1, "transformers trained side by side, their probabilities averaged", least=1)
    dropout: float = setting(0.4, "dropout of item vectors, and behind each part of a layer", least=0, below=1)
    learned_vectors: bool = setting(True, "give every SID a vector of its own")
    code_vectors: bool = setting(True, "give codes vectors that their SIDs share")
    pointer: bool = setting(True, "score SIDs of the history by how long ago they came")
    repeats: bool = setting(
        False,
        "give SIDs of the history the probability with which each was chosen again in training, where that ranks "
        "validation rows better",
        came_later=True,
    )
    popularity: bool = setting(
        False,
        "add recent popularity to scores, by the half-life and weight that rank validation rows best; a weight of 0 is "
        "among them",
        came_later=True,
    )
    transitions: bool = setting(True, "score SIDs by how often they followed the history's")
    reach: int = setting(10, "items back that pairs are counted", least=1)
    decay: float = setting(0.6, "weight of each further item back in the counts", above=0, most=1)
    reverse: float = setting(0.3, "weight of a pair in the other direction", least=0)
    recency: float = setting(0.0, RECENCY, least=0)
    moments: bool = setting(
        False,
        "tell the model whether the next item is of the newest one's moment or of a later one, where the corpus has "
        "times; prompts say it too, and popularity at that moment is weighed on validation rows",
        came_later=True,
    )
    objective: str = setting(
        "likelihood",
        "likelihood; expected (reward that the model expects, over the whole catalogue: 1 for the target); grpo "
        "(advantages of the best SIDs as a group, ranking reward)",
        known=OBJECTIVES,
    )
    loss: str = setting(
        "exact",
        "likelihood: exact (a score of every SID at every position), or sampled (of the SIDs that a step holds alone, "
        "for catalogues of very many; in one process)",
        known=LOSSES,
        came_later=True,
    )
    negatives: int = setting(256, "sampled: SIDs drawn from all alike, each step", least=1, of="loss")
    siblings: int = setting(0, "sampled: SIDs drawn beside each target in the trie", least=0, of="loss")
    unseen_negatives: bool = setting(
        True,
        "likelihood: whether SIDs that no training window holds count as wrong answers; false leaves them out of the "
        "training loss, so that their scores follow from text and codes, as those of items that come later should",
        came_later=True,
    )
    loss_rows: int = setting(
        -1,
        "validation rows whose loss is measured, a seeded sample; -1: all",
        least=-1,
        came_later=True,
    )
    generations: int = setting(16, "grpo: SIDs of a group (G)", least=2)
    beta: float = setting(0.0, "expected, grpo: weight of the KL divergence from the starting checkpoint", least=0)
    batch_size: int = setting(128, "windows an optimiser step, over all devices", least=1)
    device_batch_size: int = setting(128, "windows a device computes at a time", least=1)
    beta2: float = setting(0.98, "second beta of AdamW", least=0, below=1)

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        super().__post_init__()
        _check(
            self.dtype in ("auto", "float32"),
            f"dtype is {self.dtype}, in which counts cannot leave a position's own answer out exactly; set float32 and "
            "mixed_bf16, to compute in bfloat16.",
        )
        _check(
            self.objective == "likelihood" or bool(self.checkpoint),
            f"objective {self.objective} sharpens a model that has been trained; give --checkpoint.",
        )
        _check(
            self.beta == 0 or self.objective != "likelihood",
            f"beta is {self.beta}, but the objective likelihood has no KL term; set it to 0.",
        )
        _check(self.eval_rows != 0, "eval_rows is 0; the best checkpoint is chosen by ranking validation rows.")
        _check(self.loss_rows != 0, "loss_rows is 0; say how many, or -1 for all.")
        self._check_loss()
        _check(
            bool(self.vectors) or self.learned_vectors or self.code_vectors,
            "SIDs have no vector: give vectors, learned_vectors or code_vectors.",
        )

    def _check_loss(self) -> None:
        """Check that the sampled loss can work, and that what is left out of a loss is left out of an exact one."""
        exact = self.objective == "likelihood" and self.loss == "exact"
        _check(
            self.unseen_negatives or exact,
            f"unseen_negatives is false, but with objective {self.objective} and loss {self.loss} nothing can be left "
            "out of the loss; set it to true, or give objective likelihood and loss exact.",
        )
        if self.loss == "exact":
            return
        _check(
            self.objective == "likelihood",
            f"the loss is sampled, but the objective {self.objective} needs the probability of every SID; set loss to "
            "exact.",
        )
        _check(
            self.max_grad_norm == 0,
            f"max_grad_norm is {self.max_grad_norm:g}, but the sampled loss has gradients of some rows alone, whose "
            "norm is not that of a step; set max_grad_norm to 0.",
        )
        _check(
            self.beta2 > 0.81,
            f"beta2 is {self.beta2:g}; the sampled loss needs one above 0.81, the square of the first beta, so that "
            "rows can wait for their next gradient.",
        )

    def inputs(self) -> dict[str, Path]:
        """The settings that name inputs, and the vectors where they are read from somewhere."""
        read = encoder_inputs(self.vectors) if self.vectors and not self.checkpoint else {}
        return super().inputs() | read
