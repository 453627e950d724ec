"""S-DPO (Chen et al., "On Softmax Direct Preference Optimization for Recommendation", 2024).

One slice, P prompts with a target and N negatives each:

    negatives             (seed, epoch, row) ─▶ N SIDs that are not the target's      (P, N)
                            │
    SidDpoTrainer           ▼   completions: the target's first, then the negatives'  (P, 1 + N)
                          one pass over each prompt for all of them, under the policy and under the frozen start
                            │
    softmax_preference_loss ▼   log-ratios of whole completions ─▶ loss               (P,)
"""

import copy
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.functional import softplus
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
)
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

from minionerec.contrib.generative_baselines.config import DpoConfig
from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.log import get_logger
from minionerec.core.processes import is_main_process
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.build import resolve_dtype
from minionerec.models.backbone.bundle import Bundle, load_language_model
from minionerec.models.decoding.branches import evaluating
from minionerec.models.decoding.decoder import decoding_device, fitting_batch_size, search_of
from minionerec.models.decoding.shards import decode_in_shards
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.pipeline.stages import StageResult
from minionerec.pipeline.training_run import (
    TrainingRun,
    keep_start_if_better,
    log_truncated,
    training_stage,
    warn_of_rounding,
)
from minionerec.training.examples import TrainingSet
from minionerec.training.grpo.figures import Figures
from minionerec.training.grpo.prompts import grpo_examples
from minionerec.training.memory import Share
from minionerec.training.packing import shared_prefix_scores
from minionerec.training.trainer import (
    RankingEvaluation,
    StepInParts,
    ValidationSet,
)

logger = get_logger(__name__)

# Negatives: distinct SIDs other than the target's. They depend only on seed, epoch and the example's index, so that a
# resumed run has the same ones on any number of devices.

NEGATIVES = "negatives"
"""Folder of searched negatives, in that of the unfinished run."""
NegativesOf = Callable[[int], np.ndarray]
"""Function from an epoch, from 0, to SID numbers int64 (R, N)."""


def draw_negatives(targets: np.ndarray, n_sids: int, count: int, key: Sequence[int]) -> np.ndarray:
    """Draw SIDs uniformly and without replacement.

    A draw of the target or of an earlier SID is repeated. Each draw has its own random stream, indexed by the example,
    so that examples do not depend on each other.

    Args:
        targets: int64 (R,), SID number of each example's target.
        n_sids: Number of SIDs, S.
        count: SIDs per example (N), fewer than S.
        key: Seed and epoch.

    Returns:
        int64 (R, N).
    """
    sids = np.empty((len(targets), 1 + count), dtype=np.int64)
    sids[:, 0] = targets
    for slot in range(1, 1 + count):
        pending = np.arange(len(targets))
        attempt = 0
        while len(pending):
            numbers = np.random.default_rng([*key, slot, attempt]).random(len(targets))[pending]
            sids[pending, slot] = numbers * n_sids
            pending = pending[(sids[pending, :slot] == sids[pending, slot, None]).any(1)]
            attempt += 1
    return sids[:, 1:]


def without_targets(lists: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Lists without their targets, or without their last SIDs where they lack them.

    Args:
        lists: int64 (R, N + 1), different SID numbers in each list, best first.
        targets: int64 (R,), SID number of each example's target.

    Returns:
        int64 (R, N).
    """
    is_kept = lists != targets[:, None]
    is_kept[is_kept.all(1), -1] = False
    negatives: np.ndarray = lists[is_kept].reshape(len(lists), -1)
    return negatives


# The loss of S-DPO (Chen et al., 2024).
#
# A log-ratio r is the log-probability of a whole completion, including the end token, under the policy minus that under
# the reference: a sum over tokens, not a mean.


def softmax_preference_loss(ratios: torch.Tensor, beta: float) -> torch.Tensor:
    """The loss of each prompt, log(1 + sum over negatives d of exp(beta (r_d - r_target))).

    This is the cross-entropy of a softmax over `beta * ratios` with the target as label. With one negative it is the
    loss of DPO; if policy and reference are equal it is log(1 + N).

    Args:
        ratios: float (P, 1 + N), log-ratios, the target's first.
        beta: Scale of the log-ratios.

    Returns:
        float (P,).

    Example:
        >>> softmax_preference_loss(torch.zeros(1, 4), 0.1).exp().item()
        4.0
    """
    return softplus((beta * (ratios[:, 1:] - ratios[:, :1])).logsumexp(1))


def ratio_figures(ratios: torch.Tensor) -> dict[str, torch.Tensor]:
    """Logged values of each prompt: float (P,) or (P, N) each.

    Args:
        ratios: float (P, 1 + N), log-ratios, the target's first.

    Returns:
        `accuracy`, 1 if the target's log-ratio is above that of every negative; `margin`, its difference from the
        highest; `log_ratio/target` and `log_ratio/negatives`; and `kl`, exp(-r) + r - 1 of the target, an estimate of
        the distance from the reference.
    """
    ratios = ratios.detach()
    target, negatives = ratios[:, 0], ratios[:, 1:]
    margin = target - negatives.amax(1)
    return {
        "accuracy": (margin > 0).float(),
        "margin": margin,
        "log_ratio/target": target,
        "log_ratio/negatives": negatives,
        "kl": (-target).exp() + target - 1,
    }


# Tolerances of the first loss from log(1 + N), in single and half precision.
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 0.05


def completion_sums(
    model: Any, backbone: PreTrainedModel, prompts: Sequence[list[int]], completions: Sequence[Sequence[list[int]]]
) -> torch.Tensor:
    """Log-probabilities of whole completions, with gradient: float32 (P, C).

    Args:
        model: Causal language model with TRL's fused head, or a distributed wrapper of one.
        backbone: The model itself, without wrapper.
        prompts: Token ids of P prompts.
        completions: Token ids of the C completions of each.
    """
    logps = shared_prefix_scores(model, backbone, prompts, completions)[0]
    lengths = torch.tensor([len(ids) for group in completions for ids in group], device=logps.device)
    mask = torch.arange(int(lengths.max()), device=logps.device) < lengths.unsqueeze(1)  # (P * C, T)
    return logps.new_zeros(mask.shape).masked_scatter(mask, logps).sum(1).view(len(prompts), -1)


class SidDpoTrainer(RankingEvaluation, StepInParts):
    """S-DPO: targets gain probability over negatives, relative to a frozen reference.

    Args:
        model: The policy.
        args: The trainer's settings; batch sizes count prompts.
        rows: Training prompts, in a number that fills whole steps.
        tokenizer: The model's tokenizer.
        reference: The reference; moved to the trainer's device and never trained.
        negatives: SID numbers of each prompt's negatives.
        beta: Scale of log-ratios.
        sid_tokens: Token ids of each SID number.
        steps_per_epoch: Optimiser steps per epoch.
        validation: Prompts ranked at each validation; none if None.
        callbacks: Callbacks besides the trainer's.
    """

    measures_loss = False
    at_a_time = "prompts_per_device"
    smaller = "Lower negatives, or train a smaller model."

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        rows: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        *,
        reference: PreTrainedModel,
        negatives: NegativesOf,
        beta: float,
        sid_tokens: Sequence[list[int]],
        steps_per_epoch: int,
        validation: ValidationSet | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ):
        for scored in (model, reference):
            disable_dropout_in_model(scored)
            add_fused_lm_head(scored)
        super().__init__(
            model=model,
            args=args,
            data_collator=lambda examples: {"rows": torch.tensor([example["row"] for example in examples])},
            train_dataset=Dataset.from_dict({"row": range(len(rows))}),
            eval_dataset=Dataset.from_dict({"row": [0]}),  # validation ranks rows of its own
            processing_class=tokenizer,
            callbacks=list(callbacks),
        )
        self.rows, self.negatives, self.beta, self.sid_tokens = rows, negatives, beta, sid_tokens
        self.steps_per_epoch, self.validation = steps_per_epoch, validation
        frozen: Any = reference.eval().requires_grad_(False)
        self.reference: PreTrainedModel = frozen.to(args.device)
        self.figures = Figures(self.accelerator)
        self._checked = False

    def completions(self, positions: Sequence[int], negatives: np.ndarray) -> list[list[list[int]]]:
        """Token ids of the 1 + N completions of prompts, the target's first.

        Args:
            positions: Indices of P prompts.
            negatives: int64 (P, N), SID numbers.
        """
        rows = [self.rows[position] for position in positions]
        return [
            [self.sid_tokens[sid] + row["tail"] for sid in (row["target"], *others)]
            for row, others in zip(rows, negatives.tolist(), strict=True)
        ]

    def log_ratios(self, model: Any, positions: Sequence[int]) -> torch.Tensor:
        """Log-ratios of targets and negatives in the current epoch: float32 (P, 1 + N), the target's first."""
        epoch = self.state.global_step // self.steps_per_epoch
        prompts = [self.rows[position]["prompt"] for position in positions]
        completions = self.completions(positions, self.negatives(epoch)[positions])
        with self.accelerator.autocast():
            policy = completion_sums(model, self.accelerator.unwrap_model(model), prompts, completions)
            with torch.no_grad():
                reference = completion_sums(self.reference, self.reference, prompts, completions)
        return policy - reference

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean loss of the prompts of one slice, weighted by their share of the step."""
        ratios = self.log_ratios(model, inputs["rows"].tolist())
        loss = softmax_preference_loss(ratios, self.beta).mean()
        if not self._checked and self.state.global_step == 0:
            self._check_start(loss.item(), ratios.shape[1])
        self._checked = True
        self.figures.add_tokens(ratio_figures(ratios))
        if self.accelerator.sync_gradients:  # the last slice
            self.figures.end_step()
        return loss * inputs.get("share", 1.0)

    def share_of(self, inputs: dict[str, Any]) -> Share:
        """The prompts of a step, in order."""
        positions = inputs["rows"].tolist()
        rows = [self.rows[position] for position in positions]
        sizes = [len(self.sid_tokens[row["target"]]) + len(row["tail"]) for row in rows]
        completions = 1 + self.negatives(0).shape[1]
        return Share(
            [len(row["prompt"]) + completions * size for row, size in zip(rows, sizes, strict=True)],
            lambda part: {"rows": inputs["rows"][part], "share": len(positions[part]) / len(positions)},
        )

    def forget_step(self) -> None:
        """Drop the figures of a step that is retried."""
        self.figures.forget_step()

    def _check_start(self, loss: float, completions: int) -> None:
        """Check that policy and reference, which are the same checkpoint, agree before the first step.

        Raises:
            MinioneRecError: If the loss is not that of equal log-ratios.
        """
        expected = math.log(completions)
        half = self.accelerator.mixed_precision != "no" or self.reference.dtype != torch.float32
        tolerance = _HALF_TOLERANCE if half else _TOLERANCE
        if not abs(loss - expected) <= tolerance:
            raise MinioneRecError(
                f"the first loss is {loss:.4f}, but policy and reference are one checkpoint, so it must be "
                f"log(1 + {completions - 1}) = {expected:.4f} within {tolerance:g}: the model computes otherwise in "
                "training than in evaluation (dropout in its config.json, or other precision). Set its dropout to 0, "
                "or dtype to float32."
            )

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Log the figures of the steps since the last log, besides the trainer's own."""
        logs.update(self.figures.take())
        super().log(logs, start_time)


@training_stage
def run_dpo(config: DpoConfig, run: TrainingRun) -> StageResult:
    """Train a checkpoint by S-DPO; its output is never below the start.

    Raises:
        MinioneRecError: If the first loss is not that of a policy that equals its reference.
    """
    bundle = load_start(config)
    corpus = Corpus.load(config.corpus)
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    with run.work.phase("load"):
        prompts = grpo_examples(
            builder,
            bundle.tokenizer,
            config.tasks,
            config.prompts_per_step,
            config.seed,
            bundle.max_prompt_length,
            run.rows,
        )
    logger.info(
        "S-DPO on %s, %d filled up; %d negatives each (%s), beta %g.",
        prompts.described("prompts"),
        len(prompts.again),
        config.negatives,
        config.negatives_from,
        config.beta,
    )
    log_truncated(prompts.total("truncated"))
    trainer = _trainer(config, run, bundle, builder, prompts)
    warn_of_rounding(trainer)
    if not config.prompts_per_device:
        trainer.compute_in_parts(config.gradient_checkpointing)
    run.train(trainer)
    keep_start_if_better(run, trainer, config.checkpoint, "a higher beta", "other negatives")
    return run.finish(trainer, bundle, {"rows": prompts.counts, "truncated_prompts": prompts.total("truncated")})


def load_start(config: DpoConfig) -> Bundle:
    """The checkpoint to start from.

    Raises:
        ConfigError: If it is a catalogue model, or has too few SIDs for so many negatives.
    """
    instead = (
        "whose softmax already compares a target with the whole catalogue. Train it with minionerec train-catalogue "
        "--objective expected or grpo."
    )
    bundle = load_language_model(config.checkpoint, resolve_dtype(config.dtype), instead)
    if bundle.table.n_unique <= config.negatives:
        raise ConfigError(
            f"negatives is {config.negatives}, but the catalogue has {bundle.table.n_unique} distinct SIDs; ask for "
            f"{bundle.table.n_unique - 1} at most."
        )
    return bundle


def _trainer(
    config: DpoConfig, run: TrainingRun, bundle: Bundle, builder: ExampleBuilder, prompts: TrainingSet
) -> SidDpoTrainer:
    """The trainer with everything that a step needs."""
    plan = run.plan_steps(len(prompts), "prompts")
    args = TrainingArguments(
        **run.arguments(plan, "ndcg"),
        max_grad_norm=config.max_grad_norm,
        per_device_train_batch_size=plan.per_device,
        per_device_eval_batch_size=1,
        logging_steps=max(1, plan.eval_steps // 10),
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        eval_on_start=run.checkpoint is None,
    )
    trie = Trie.build(bundle.table.codes, bundle.code_ids)
    with run.work.phase("negatives"):
        negatives = negatives_of(config, run, bundle, prompts, trie)
    return SidDpoTrainer(
        bundle.model,
        args,
        prompts.rows,
        bundle.tokenizer,
        reference=copy.deepcopy(bundle.model),
        negatives=negatives,
        beta=config.beta,
        sid_tokens=bundle.sid_tokens,
        steps_per_epoch=plan.steps_per_epoch,
        validation=run.validation_set(bundle, builder, trie),
        callbacks=run.early_stopping(),
    )


def negatives_of(config: DpoConfig, run: TrainingRun, bundle: Bundle, prompts: TrainingSet, trie: Trie) -> NegativesOf:
    """The examples' negatives, by the setting `negatives_from`."""
    targets = np.array([row["target"] for row in prompts.rows])
    if config.negatives_from == "beam":
        return searched_negatives(bundle, [row["prompt"] for row in prompts.rows], targets, config.negatives, trie, run)
    n_sids = bundle.table.n_unique
    return lru_cache(maxsize=1)(lambda epoch: draw_negatives(targets, n_sids, config.negatives, (config.seed, epoch)))


def searched_negatives(
    bundle: Bundle, prompts: Sequence[Sequence[int]], targets: np.ndarray, count: int, trie: Trie, run: TrainingRun
) -> NegativesOf:
    """The best SIDs of a search without the target, the same in every epoch; searched once and stored with the run.

    Args:
        bundle: The model that training begins with.
        prompts: Token ids of R prompts.
        targets: int64 (R,), SID number of each prompt's target.
        count: SIDs per prompt (N).
        trie: SIDs of the catalogue.
        run: The running stage.
    """
    model: Any = bundle.model
    model.to(decoding_device())
    folder, beams = run.folder / NEGATIVES, count + 1
    if is_main_process():
        folder.mkdir(exist_ok=True)
    search, fits = search_of(model, prompts, trie, beams), partial(fitting_batch_size, model, trie, prompts, beams)
    with evaluating(model):
        lists, _ = decode_in_shards(folder, prompts, beams, fits, search, model.device, "searching negatives")
    negatives = without_targets(lists, targets)
    return lambda epoch: negatives
