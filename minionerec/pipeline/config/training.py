"""Settings of the training stages; light to import, so that `--help` answers at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from minionerec.core.artefacts import is_artefact
from minionerec.data.names import SPLITS
from minionerec.models.prompts.wording import BUILT_IN, NEXT_SID, NEXT_TITLE
from minionerec.pipeline.settings import StageConfig, setting
from minionerec.sid.embed.encoder import INTERACTIONS, encoder_inputs
from minionerec.training.rewards import COLUMN_REWARDS, OF_MODEL, reward_files, reward_weights

SCHEDULES = ("cosine", "linear", "constant", "inverse_sqrt")
SELECT = ("loss", "ndcg")
DTYPES = ("auto", "float32", "bfloat16", "float16")
OBJECTIVES = ("likelihood", "expected", "grpo")
LOSSES = ("exact", "sampled")
PARTS = ("learned_vectors", "code_vectors", "pointer")
FITTING = "0: as many tokens as its memory holds, of the same batch"
RECENCY = (
    "weigh a training target by exp(-recency x share of the training examples after it); only where the split is "
    "by time, else all weigh alike"
)
EXPERTS = (
    "pool transition counts, recent popularity, repeats and likeness of items with the model's probabilities, by "
    "weights that depend on the history, where that ranks validation examples better"
)
CONTEXT = (
    "request features that the model is conditioned on, of those that the corpus has: gap (time since the newest "
    "item), hour and weekday (UTC), and columns of the interactions (context_columns of prepare-data)"
)
TRAINED_SPLITS = (
    "splits whose examples are trained on: train, train valid, or train valid test; with valid among them nothing is "
    "validated, and the last weights are kept"
)


def _check_splits(splits: list[str]) -> Iterator[str]:
    if tuple(splits) != SPLITS[: len(splits)]:
        yield (
            f"splits are {' '.join(splits)}; a user's examples are one history in the order {' '.join(SPLITS)}. Give "
            "train, train valid, or all three."
        )


@dataclass
class RunConfig(StageConfig):
    """Settings of every training stage."""

    kind: ClassVar[str] = "checkpoint"
    batch: ClassVar[tuple[str, str]] = ("batch_size", "device_batch_size")
    """Settings of the examples of a step, over all devices, and of those that a device computes at a time."""

    @property
    def batch_sizes(self) -> tuple[int, int]:
        """The values of the settings that `batch` names."""
        total, per_device = (getattr(self, name) for name in self.batch)
        return total, per_device

    corpus: str = setting("", "corpus directory (minionerec prepare-data)", required=True, input_kind="corpus")
    epochs: float = setting(1.0, "passes over the examples", above=0, resumable=True)
    learning_rate: float = setting(1e-3, "peak learning rate of AdamW", above=0)
    schedule: str = setting("cosine", "learning rate after warm-up", known=SCHEDULES)
    warmup: float = setting(0.0, "warm-up: share of all steps if below 1, else steps", least=0)
    evals_per_epoch: float = setting(1.0, "validations (and saved checkpoints) an epoch", above=0)
    eval_examples: int = setting(1000, "validation examples ranked at each validation; 0: none, -1: all", least=-1)
    eval_beams: int = setting(20, "number of beams of that ranking", least=1)
    patience: int = setting(0, "stop after this many validations without a better one; 0: never", least=0)
    mixed_bf16: bool = setting(False, "compute in bfloat16 over float32 weights")
    seed: int = setting(42, "seed of initialisation, order and dropout", least=0)
    report_to: list[str] = setting(
        [],
        "trackers that losses and validations are sent to while it trains, such as tensorboard (which writes into "
        "OUTPUT.tensorboard); empty: none",
        affects_result=False,
    )

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.eval_examples != 0 and self.eval_beams < 10:
            yield f"eval_beams is {self.eval_beams}; validation reports NDCG@10 and needs at least 10."


@dataclass
class LanguageRunConfig(RunConfig):
    """Settings of the stages that train language models."""

    tasks: dict[str, float] = setting(
        {"next_sid": 1.0},
        "tasks with weights, e.g. next_sid title_to_sid=0.5: a weight is how often each example is seen in an epoch "
        "(0.5: a fixed random half)",
        above=0,
        required=True,
    )
    gradient_checkpointing: bool = setting(False, "recompute activations to save memory")
    dtype: str = setting("auto", "dtype of the weights; auto: float32", known=DTYPES)


@dataclass
class SftConfig(LanguageRunConfig):
    """Settings of supervised fine-tuning."""

    splits: list[str] = setting(["train"], TRAINED_SPLITS, known=SPLITS, required=True)
    sids: str = setting("", "SID directory (minionerec build-sids)", required=True, input_kind="sids")
    model: str = setting(
        "scratch", "hub name or directory of a causal language model, or `scratch`", required=True, path=True
    )
    hidden_size: int = setting(256, "scratch: width", least=1)
    layers: int = setting(4, "scratch: transformer blocks", least=1)
    heads: int = setting(4, "scratch: attention heads", least=1)
    kv_heads: int = setting(4, "scratch: key and value heads", least=1)
    inner_size: int = setting(768, "scratch: width of the feed-forward layer", least=1)
    text_vocabulary: int = setting(1000, "scratch: tokens trained on the corpus's texts", least=1)
    dropout: float = setting(0.0, "dropout after embedding, attention and feed-forward", least=0, below=1)
    max_prompt_length: int = setting(512, "prompts are truncated to their last tokens, this many", least=1)
    weight_decay: float = setting(0.0, "AdamW weight decay", least=0)
    wording: str = setting("compact", "prompt wording: compact, prose, lcrec, or a YAML file", required=True, path=True)
    context: list[str] = setting([], f"next_sid: {CONTEXT}, as tokens behind the history")
    all_positions: bool = setting(
        False,
        "next_sid, title_history_to_title: one example a user window with a loss at every item, instead of one an "
        "interaction; needs a wording whose prompt is the bare history",
    )
    teacher: str = setting(
        "",
        "next_sid: catalogue model to distill from; its next-code probabilities join the true codes (minionerec "
        "train-catalogue); empty: none",
        input_kind="checkpoint",
    )
    teacher_share: float = setting(0.7, "share of the teacher's probabilities in that loss", above=0, most=1)
    recency: float = setting(0.0, RECENCY, least=0)
    variants: int = setting(
        0,
        "all_positions: further copies of each window, with items left out at random; a teacher scores "
        "them like any history",
        least=0,
    )
    max_tokens: int = setting(
        0,
        "all_positions, one task of weight 1: tokens of an epoch; of each block of the corpus as many, as whole "
        "windows drawn by seed, and no others are tokenised; 0: all",
        least=0,
    )
    lora_rank: int = setting(
        0,
        "LoRA: train updates of this rank to a pretrained model, and the rows of SID tokens, instead of all weights; "
        "0: all weights",
        least=0,
    )
    batch_size: int = setting(64, "examples an optimiser step, over all devices", least=1)
    device_batch_size: int = setting(0, f"examples a device computes at a time; {FITTING}", least=0)
    select_by: str = setting("loss", "best checkpoint: lowest validation loss, or highest ndcg", known=SELECT)
    experts: bool = setting(False, EXPERTS)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        yield from _check_splits(self.splits)
        if self.experts and NEXT_SID not in self.tasks:
            yield (
                f"experts is true, but they rank SIDs, and the tasks are {', '.join(self.tasks)}; add {NEXT_SID}, or "
                "set experts to false."
            )
        if self.lora_rank and self.model == "scratch":
            yield (
                f"lora_rank is {self.lora_rank}, but model is scratch: random weights cannot stay as they are. Name a "
                "pretrained model, or set lora_rank to 0."
            )
        if self.select_by != "loss" and self.eval_examples == 0:
            yield "select_by is ndcg but eval_examples is 0; rank some validation examples, or select by loss."
        if self.all_positions and not ({NEXT_SID, NEXT_TITLE} & set(self.tasks)):
            yield (
                f"all_positions applies to the tasks {NEXT_SID} and {NEXT_TITLE}, neither of which is among the tasks "
                f"{', '.join(self.tasks)}."
            )
        if self.variants and not self.all_positions:
            yield (
                f"variants is {self.variants}, but they are variants of windows; set all_positions to true, or it to 0."
            )
        if self.max_tokens and (not self.all_positions or list(self.tasks.values()) != [1]):
            yield (
                f"max_tokens is {self.max_tokens}, which applies to windows; set all_positions to true, and give one "
                "task of weight 1."
            )
        if self.teacher and "next_sid" not in self.tasks:
            yield f"a teacher applies to the task next_sid, which is not among the tasks {', '.join(self.tasks)}."

    def inputs(self) -> dict[str, Path]:
        """Inputs: also the wording where it is the user's own file, and the model where it is ours."""
        own = self.wording not in BUILT_IN and Path(self.wording).is_file()
        ours = self.model != "scratch" and is_artefact(self.model)
        found = {name: Path(getattr(self, name)) for name, is_input in (("wording", own), ("model", ours)) if is_input}
        return super().inputs() | found


@dataclass
class CatalogueTrainConfig(RunConfig):
    """Settings of the stage that trains a catalogue model (`minionerec.models.backbone.catalogue`)."""

    splits: list[str] = setting(["train"], TRAINED_SPLITS, known=SPLITS, required=True)
    sids: str = setting("", "SID directory (minionerec build-sids)", required=True, input_kind="sids")
    checkpoint: str = setting(
        "",
        "checkpoint of a catalogue model to continue from, whose shape, vectors and counts stay; empty: random weights",
        input_kind="checkpoint",
    )
    weight_decay: float = setting(0.0, "AdamW weight decay", least=0)
    max_grad_norm: float = setting(1.0, "gradients are clipped to this norm", least=0)
    vectors: str = setting(
        "tfidf",
        "item vectors, besides learned ones: tfidf or wordllama (of texts), interactions (of training interactions), "
        "the output of embed-items, a .npy or .parquet file; experts compare them too, beside words and "
        "interactions; empty: none",
        path=True,
    )
    vector_width: int = setting(128, "width of vectors of TF-IDF or of interactions", least=1)
    item_columns: list[str] = setting(
        [],
        "columns of the items, such as [brand, category, price], that are added to item vectors: categories, tags, "
        "numbers and times (roles of prepare-data)",
    )
    hidden_size: int = setting(128, "width of a tower", least=1)
    layers: int = setting(2, "layers of a tower", least=0)
    heads: int = setting(4, "attention heads of a tower", least=1)
    inner_size: int = setting(512, "width of a tower's position-wise networks", least=1)
    towers: int = setting(1, "transformers trained side by side, their probabilities averaged", least=1)
    dropout: float = setting(0.4, "dropout of item vectors, and after each part of a layer", least=0, below=1)
    without: list[str] = setting(
        [],
        "parts left out: learned_vectors (one of each SID), code_vectors (shared by the SIDs of a code), pointer "
        "(scores SIDs of the history by how long ago they occurred)",
        known=PARTS,
    )
    reach: int = setting(
        10, "items back that transitions are counted, by which SIDs are scored; 0: none are counted", least=0
    )
    experts: bool = setting(False, EXPERTS)
    fitted_weights: str = setting(
        "",
        "checkpoint of this stage whose weights of experts and of popularity, which were fitted on its validation "
        "examples, are used; empty: they are fitted, or left out where the validation examples are trained on",
        input_kind="checkpoint",
    )
    recency: float = setting(0.0, RECENCY, least=0)
    context: list[str] = setting([], f"{CONTEXT}; popularity by them is weighted on validation examples")
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
    )
    negatives: int = setting(256, "sampled: SIDs drawn uniformly each step", least=1, requires="loss")
    loss_examples: int = setting(
        -1,
        "validation examples whose loss is measured, a seeded sample; -1: all",
        least=-1,
    )
    generations: int = setting(16, "grpo: SIDs of a group (G)", least=2)
    beta: float = setting(0.0, "expected, grpo: weight of the KL divergence from the starting checkpoint", least=0)
    batch_size: int = setting(128, "windows an optimiser step, over all devices", least=1)
    device_batch_size: int = setting(0, f"windows a device computes at a time; {FITTING}", least=0)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        yield from _check_splits(self.splits)
        if self.objective != "likelihood" and not self.checkpoint:
            yield f"objective {self.objective} continues from a trained model; give --checkpoint."
        if self.beta != 0 and self.objective == "likelihood":
            yield f"beta is {self.beta}, but the objective likelihood has no KL term; set it to 0."
        if self.eval_examples == 0:
            yield "eval_examples is 0; the best checkpoint is chosen by ranking validation examples."
        if self.loss_examples == 0:
            yield "loss_examples is 0; say how many, or -1 for all."
        if self.loss == "sampled" and self.objective != "likelihood":
            yield (
                f"the loss is sampled, but the objective {self.objective} needs the probability of every SID; set loss "
                "to exact."
            )
        if self.loss == "sampled" and self.max_grad_norm != 0:
            yield (
                f"max_grad_norm is {self.max_grad_norm:g}, but the sampled loss has gradients of some rows alone, "
                "whose norm is not that of a step; set max_grad_norm to 0."
            )
        if not self.vectors and {"learned_vectors", "code_vectors"} <= set(self.without):
            yield (
                f"SIDs have no vector: vectors is empty, and without is {' '.join(self.without)}. Give vectors, or "
                "leave out less."
            )

    def inputs(self) -> dict[str, Path]:
        """The settings that name inputs, and the vectors where they are read from somewhere."""
        read = encoder_inputs(self.vectors) if self.vectors and not self.checkpoint else {}
        return super().inputs() | read


GRPO_ROLLOUTS = ("beams", "sampling")
GRPO_LOSSES = ("grpo", "bnpo", "dapo", "gspo")
GRPO_SCALES = ("group", "none")
GRPO_SELECT = ("ndcg", "reward")
GRPO_TERMS = ("policy", "likelihood")
# Rewards that need a file of their own, the setting that names it, and both in words.
_SOURCES = (
    (("semantic",), "reward_vectors", "the reward semantic and the vectors that it compares (minionerec embed-items)"),
    (OF_MODEL, "reward_model", f"the rewards {', '.join(OF_MODEL)} and the model that they ask"),
)


@dataclass
class GrpoConfig(LanguageRunConfig):
    """Settings of GRPO."""

    batch: ClassVar[tuple[str, str]] = ("prompts_per_step", "prompts_per_device")

    checkpoint: str = setting("", "checkpoint to start from (minionerec sft)", required=True, input_kind="checkpoint")
    max_grad_norm: float = setting(1.0, "gradients are clipped to this norm", least=0)
    rewards: dict[str, float] = setting(
        {"ranking": 1.0},
        "rewards with weights, e.g. rule ndcg semantic=0.5: rule (1 for a hit), ndcg (penalty of wrong ones by rank, "
        "where there is a hit), position (codes matched from the left), semantic (cosine of item vectors), "
        "collaborative (score of another model), expected_hits and expected_value (probability by that model, and that "
        "times a number of the items table), value (a number of the items table for a hit), rare (1 for an "
        "item with few training purchases), diversity (1 where no better-ranked one has the same label), or the dotted "
        "path of a function of your own; ranking is rule and ndcg, ranking_only is ndcg",
        required=True,
    )
    reward_vectors: str = setting("", "item vectors for `semantic` (minionerec embed-items)", input_kind="vectors")
    reward_model: str = setting(
        "",
        "model for `collaborative`, `expected_hits` and `expected_value`: a checkpoint, with its experts, or the "
        "folder `model` of a training (minionerec train-sequential)",
        input_kind="any",
    )
    reward_columns: dict[str, str] = setting(
        {},
        "columns of the corpus's items, e.g. value=price diversity=brand: value and expected_value (numbers from 0) "
        "and diversity (labels; without a column the first code)",
        known=COLUMN_REWARDS,
    )
    scale_rewards: str = setting(
        "group",
        "group (advantages are divided by the standard deviation of their group) or none, which value and expected "
        "worths need: the deviation would divide out what a hit is worth",
        known=GRPO_SCALES,
    )
    select_by: str = setting(
        "ndcg",
        "best checkpoint: highest NDCG@10 of validation lists, or highest reward, summed over their first ten",
        known=GRPO_SELECT,
    )
    rollouts: str = setting(
        "beams", "beams (the G best, as in evaluation) or sampling (G drawn without replacement)", known=GRPO_ROLLOUTS
    )
    generations: int = setting(16, "rollouts of each prompt (G), best first", least=2)
    prompts_per_step: int = setting(64, "prompts an optimiser step, over all devices", least=1)
    prompts_per_device: int = setting(0, f"prompts a device computes at a time; {FITTING}", least=0)
    loss: str = setting(
        "grpo",
        "grpo (mean over each completion, then over completions), bnpo or dapo (mean over tokens, of "
        "prompts_per_device prompts, or of a device's prompts of the step where that is 0; or of the whole step), gspo "
        "(one ratio a completion)",
        known=GRPO_LOSSES,
    )
    loss_terms: dict[str, float] = setting(
        {"policy": 1.0},
        "terms of the loss with weights, e.g. policy=0.03 likelihood=1: policy (advantages and KL term), likelihood "
        "(next-token loss of the target, of sft; with a teacher the cross-entropy to its next codes)",
        known=GRPO_TERMS,
        above=0,
        required=True,
    )
    teacher: str = setting(
        "",
        "next_sid: catalogue model whose next codes the term likelihood learns in place of the labels (minionerec "
        "train-catalogue)",
        input_kind="checkpoint",
    )
    keep_zero_variance: bool = setting(
        False,
        "also compute groups whose rewards are all equal; they carry the KL term alone, and are left out otherwise",
    )
    beta: float = setting(1e-3, "weight of the KL term; 0: no reference model", least=0)
    reference: str = setting(
        "", "checkpoint that the KL term is measured against; empty: the one to start from", input_kind="checkpoint"
    )
    sync_steps: int = setting(
        512, "optimiser steps after which the reference moves to .6 of the policy and .4 of itself; 0: never", least=0
    )
    max_steps: int = setting(-1, "stop after this many optimiser steps; -1: after the epochs", least=-1)
    experts: bool = setting(False, f"{EXPERTS}; those of the checkpoint to start from are not kept")

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        weights = reward_weights(self.rewards)
        for names, source, what in _SOURCES:
            if bool(getattr(self, source)) != any(name in weights for name in names):
                yield (
                    f"rewards are {', '.join(self.rewards)} and {source} is {getattr(self, source)!r}; {what} go "
                    "together."
                )
        yield from self._column_contradictions(weights)
        if self.beta == 0 and self.reference:
            yield (
                f"beta is 0, so nothing is measured against the reference {self.reference!r}; set one of them "
                "otherwise."
            )
        if self.eval_examples == 0:
            yield "eval_examples is 0; GRPO can hurt, so it must be watched on validation examples."
        yield from self._term_contradictions()

    def _column_contradictions(self, weights: dict[str, float]) -> Iterator[str]:
        """Contradictions of the rewards that read columns."""
        for name in self.reward_columns:
            if name not in weights:
                yield (
                    f"reward_columns has a column of {name}, but rewards are {', '.join(self.rewards)}; add the "
                    "reward, or leave its column out."
                )
        for name in ("value", "expected_value"):
            if name in weights and name not in self.reward_columns:
                yield (
                    f"rewards are {', '.join(self.rewards)}, but reward_columns names no column of {name}; give one, "
                    f"e.g. {name}=price."
                )

    def _term_contradictions(self) -> Iterator[str]:
        """Contradictions of the terms of the loss, and of what they read."""
        terms = ", ".join(self.loss_terms)
        if "policy" not in self.loss_terms and self.beta != 0:
            yield (
                f"beta is {self.beta}, but loss_terms are {terms}: the KL term is part of policy. Set beta to 0, "
                "or add policy."
            )
        if self.teacher and "likelihood" not in self.loss_terms:
            yield (
                f"teacher is {self.teacher!r}, but loss_terms are {terms}: the term likelihood learns from it. Add "
                "likelihood, or leave the teacher out."
            )
        if self.teacher and NEXT_SID not in self.tasks:
            yield f"a teacher applies to the task {NEXT_SID}, which is not among the tasks {', '.join(self.tasks)}."

    def inputs(self) -> dict[str, Path]:
        """The settings that name inputs, and the files of a user's own rewards."""
        return super().inputs() | reward_files(list(self.rewards))


@dataclass
class ExtendConfig(StageConfig):
    """Settings of `run_extend`."""

    kind: ClassVar[str] = "checkpoint"

    checkpoint: str = setting(
        "",
        "checkpoint to extend (sft, grpo, dpo, train-catalogue)",
        required=True,
        input_kind="checkpoint",
    )
    corpus: str = setting("", "corpus with the new items (minionerec prepare-data)", required=True, input_kind="corpus")
    sids: str = setting(
        "",
        "SIDs of its items, appended to those of the checkpoint (minionerec build-sids --method append)",
        required=True,
        input_kind="sids",
    )
    lift: float = setting(
        0.0,
        "added to the log-probability of items without a training example in the corpus when recommending, in "
        "natural logarithms (1: 2.7 times as probable); choose it on validation examples",
    )
    vectors: str = setting(
        "tfidf",
        "catalogue model: where the text of new items comes from, which must be what it was trained with: tfidf "
        "(fitted as it was then), wordllama, the output of embed-items, a .npy or .parquet file",
        required=True,
        path=True,
    )

    def inputs(self) -> dict[str, Path]:
        """The settings that name inputs, and the vectors where they are read from somewhere."""
        return super().inputs() | encoder_inputs(self.vectors)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.vectors == INTERACTIONS:
            yield (
                f"vectors is {INTERACTIONS!r}, but new items have no interactions, and those of a larger corpus give "
                "known items other vectors. Only a model that was trained with vectors of texts can be extended."
            )
