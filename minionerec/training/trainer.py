"""Parts that trainers share: validation by ranking at every evaluation, and what they log."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainingArguments,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.trainer_callback import PrinterCallback, TrainerState
from transformers.trainer_utils import EvalLoopOutput
from transformers.utils.import_utils import is_peft_available

from minionerec.core.device import fitting_count, free_device, memory_ended
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import NO_CLOCK, TIMES, Clock, get_logger, progress
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.decoding.decoder import decode_prompts, target_ranks
from minionerec.models.decoding.trie import Trie
from minionerec.training.memory import MOST_TOKENS, Share, TokenLimit
from minionerec.training.packing import SetEpoch
from minionerec.training.sampling import NO_LABEL, DealtBatches, EpochSampler, shuffled_examples

logger = get_logger(__name__)

# Validation by ranking: held-out prompts answered by the evaluator's own decoder during training.

_METRICS = ("NDCG@10", "HR@10", "HR@1")


@dataclass(frozen=True)
class ValidationSet:
    """Prompts whose targets are ranked at each validation.

    Attributes:
        prompts: Token ids of each prompt.
        targets: int64 (R,), number of each target in the trie.
        trie: SIDs, or titles, of the catalogue.
        num_beams: Number of beams.
        numbers: int64 (R,), numbers of the prompts among the examples of their split.
        reward: Total reward of the first ten of each list, float (R',), reported as reward@10: takes SID numbers and
            scores (R', K) and which prompts they are; not measured if None.
    """

    prompts: Sequence[Sequence[int]]
    targets: np.ndarray
    trie: Trie
    num_beams: int
    numbers: np.ndarray | None = None
    reward: Callable[[np.ndarray, np.ndarray, slice], np.ndarray] | None = None


def summed(values: np.ndarray, accelerator: Accelerator) -> np.ndarray:
    """The sum of every process's array of one shape; with one process what is given."""
    if accelerator.num_processes == 1:
        return values
    total: torch.Tensor = accelerator.reduce(torch.from_numpy(values).to(accelerator.device), "sum")
    return total.cpu().numpy()


def rank_validation(model: PreTrainedModel, validation: ValidationSet, accelerator: Accelerator) -> dict[str, float]:
    """NDCG@10, HR@10, HR@1 and reward of the evaluator's decoder, a set's rows shared among processes.

    Every process measures all rows, in their order, so that the values are the same bits for any number of processes.
    """
    names = list(_METRICS)
    mine = slice(accelerator.process_index, None, accelerator.num_processes)
    ranks, rewards = np.zeros(len(validation.targets), np.int64), np.zeros(len(validation.targets))
    if prompts := validation.prompts[mine]:  # none where there are more processes than rows
        with accelerator.autocast():
            sids, scores = decode_prompts(model, prompts, validation.trie, validation.num_beams)
        ranks[mine] = target_ranks(sids, validation.targets[mine])
        if validation.reward is not None:
            rewards[mine] = validation.reward(sids[:, :10], scores[:, :10], mine)
    values = ranking_metrics(summed(ranks, accelerator), [1, 10])
    if validation.reward is not None:
        names.append("reward@10")
        values["reward@10"] = summed(rewards, accelerator)
    return {name.lower(): float(np.float32(values[name].sum())) / len(ranks) for name in names}


def plain_model(model: Any) -> PreTrainedModel:
    """The language model itself, with its low-rank updates (peft) in place where it has some."""
    plain: Any = model
    if is_peft_available():
        from peft import PeftModel

        plain = model.get_base_model() if isinstance(model, PeftModel) else model
    return cast(PreTrainedModel, plain)


# Compiled blocks: on a GPU a block's many small kernels become a few (docs/results/gpu.md).

# Steps of a run for which compiling, about twenty seconds, is worth it.
_WORTH_COMPILING = 200


def compile_blocks(model: PreTrainedModel, backend: str = "inductor") -> int:
    """Compile each block of a language model in place, once for all blocks and all sizes of a batch.

    The weights keep their names, and losses and gradients are the same up to rounding. The model has no distributed
    wrapper; `backend` is that of `torch.compile`.

    Returns:
        Number of blocks.
    """
    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for block in blocks:
        block.compile(dynamic=True, backend=backend)
    return len(blocks)


def _can_compile(device: torch.device) -> bool:
    """Whether torch compiles for a device here: it needs Triton and a C compiler, and says so only when it runs."""
    try:
        torch.compile(torch.nn.functional.silu)(torch.ones(8, device=device))
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        logger.warning("Blocks are not compiled, as torch.compile fails here: %s", reason)
        return False
    return True


def best_checkpoint(checkpoint: Path, best: str | None) -> Path | None:
    """The best checkpoint by the state of another, in the folder of that one, which may have been moved since."""
    return None if best is None else checkpoint.parent / Path(best).name


def load_weights(model: Any, checkpoint: str) -> None:
    """Load the weights of a trainer's checkpoint by the library's own conversion of their names.

    The trainer itself takes the names in files for those in memory, and skips tensors that it does not find.

    Raises:
        ArtefactError: If its tensors are not exactly those of the model.
    """
    from minionerec.models.backbone.pretrained import load_model  # to resume alone

    remedy = "Delete the folder of the unfinished run to begin again."
    saved = load_model(type(model), checkpoint, error=ArtefactError, remedy=remedy, dtype=model.dtype)
    model.load_state_dict(saved.state_dict())


class RankingEvaluation(Trainer):
    """A mix-in for trainers: every evaluation also ranks a validation set with the evaluator's decoder.

    Attributes:
        validation: Prompts to rank, set before training; none if None.
        measures_loss: Whether evaluations also measure the trainer's own loss.
        clock: Who counts the seconds of validation.
        by_process: Whether a step's examples, or their loss, depend on the number of processes.
    """

    validation: ValidationSet | None = None
    measures_loss = True
    clock: Clock = NO_CLOCK
    by_process = False
    compiled = False

    def compile_blocks(self, steps: int) -> None:
        """Compile the model's blocks, and those of a reference, where that makes a run of so many steps faster.

        That is on a GPU where all weights are trained, and not with deterministic kernels, as compiled ones may add up
        in another order in another process. Searches and validation run `as_written`.
        """
        if (
            self.args.device.type != "cuda"
            or steps < _WORTH_COMPILING
            or plain_model(self.model) is not self.model
            or torch.are_deterministic_algorithms_enabled()
            or not _can_compile(self.args.device)
        ):
            return
        models = (plain_model(self.model), getattr(self, "ref_model", None))
        self.compiled = sum(compile_blocks(model) for model in models if model is not None) > 0
        logger.info("Blocks are compiled for this GPU, so the first steps take longer.")

    def as_written(self) -> AbstractContextManager[Any]:
        """Where blocks are compiled for training: a context in which they run as they are written."""
        return torch.compiler.set_stance("force_eager") if self.compiled else nullcontext()

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> Any:
        """Train, or take the best weights, without validation the last, of a run that had ended but for writing them.

        The trainer's own `train` makes one more step from a checkpoint at which training had stopped.
        """
        if isinstance(resume_from_checkpoint, str):
            state = TrainerState.load_from_json(str(Path(resume_from_checkpoint) / "trainer_state.json"))
            if _has_ended(state, self.args) or self.stops_at(state):
                self.state = state
                best = best_checkpoint(Path(resume_from_checkpoint), state.best_model_checkpoint)
                self._load_from_checkpoint(str(best or resume_from_checkpoint))
                return None
        return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the weights of a checkpoint, whose names in files may be others than in memory."""
        model = self.model if model is None else model
        if plain_model(model) is not model:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            load_weights(model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint; see `_load_from_checkpoint`."""
        if self.is_deepspeed_enabled or plain_model(self.model) is not self.model:
            super()._load_best_model()
        else:
            load_weights(self.model, cast(str, self.state.best_model_checkpoint))

    def stops_at(self, state: TrainerState) -> bool:
        """Whether a run ends with this state before its last step, for a reason of the trainer's own."""
        return False

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Measure the loss (where the trainer measures one) and the ranking metrics."""
        metrics: dict[str, float] = {}
        with self.clock.phase("validate"), self.as_written():
            if self.measures_loss:
                metrics["loss"] = self.validation_loss(dataloader)
            if self.validation is not None:
                model = plain_model(self.accelerator.unwrap_model(self.model))
                metrics |= rank_validation(model, self.validation, self.accelerator)
        found = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(np.zeros(0), None, metrics=found, num_samples=len(dataloader.dataset))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """This process's share of the validation examples: every example is in one share, once."""
        dataset = cast(Any, self.eval_dataset if eval_dataset is None else eval_dataset)
        return DataLoader(
            dataset,
            batch_size=self.args.eval_batch_size,
            sampler=range(self.accelerator.process_index, len(dataset), self.accelerator.num_processes),
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def validation_loss(self, batches: Iterable[dict[str, Any]]) -> float:
        """The mean loss of all labels of the validation examples, the same in every process.

        `batches` are those of this process, of which there may be none.
        """
        cast(torch.nn.Module, self.model).eval()
        losses, counts = [], []
        for inputs in progress(batches, "validating", unit="batches"):
            losses.append(cast(torch.Tensor, self.prediction_step(cast(Any, self.model), inputs, True)[0]))
            counts.append(label_count(inputs))
        own = np.array([np.dot([loss.item() for loss in losses], counts), sum(counts)], np.float64)
        total, count = summed(own, self.accelerator)
        return float(total / count)


def label_count(inputs: Mapping[str, Any]) -> int:
    """Labels of a batch that have a loss."""
    return int((inputs["labels"] != NO_LABEL).sum())


def collate_or_fill(
    examples: Sequence[Any], collate: Callable[[Sequence[Any]], dict[str, Any]], dataset: Any
) -> dict[str, Any]:
    """Collate a batch; of an empty one the first example, as a filler without labels (see `StepInParts`)."""
    if examples:
        return collate(examples)
    inputs = collate([dataset[0]])
    return {**inputs, "shift_labels": torch.full_like(inputs["labels"], NO_LABEL), "filler": True}


class StepInParts(Trainer):
    """A mix-in for trainers: a step is shared out among devices, which compute their shares in parts that memory holds.

    Where the examples that are left at the end of an epoch are too few for all devices, some have none. These compute a
    filler, whose loss and gradient are 0 and whose labels are not counted, so that the step is the same for any number
    of devices.

    The trainer has one batch a step, whose inputs hold a `Share`; the losses of its parts, and their gradients, add up
    to those of the whole. So where memory ends, the step is computed again from its beginning, in
    smaller parts, or with blocks computed again in the backward pass, and its gradient is what it would have been.
    (`auto_find_batch_size` of transformers changes the examples of a step, and begins the training again.)

    Attributes:
        order: The order of examples; random if None.
        limit: Tokens at a time; None where the trainer's own batches are computed as they are.
        tried: Whether a part was computed with this limit (`try_parts`).
        at_a_time: The setting of how many examples a device computes at a time.
        smaller: Advice where not even a single example fits.
    """

    order: EpochSampler | None = None
    limit: TokenLimit | None = None
    tried: bool = False
    at_a_time = "device_batch_size"
    smaller = "Lower max_prompt_length, or train with --lora_rank, ZeRO-2 or a smaller model."

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of this process, of which the last may be a filler."""
        dataset = cast(Any, self.train_dataset)
        order = self.order
        if order is None:
            order = shuffled_examples(len(dataset), cast(int, self.args.data_seed))
        self.follow_epochs(order)
        size = self.args.per_device_train_batch_size
        loader: DataLoader[Any] = self.accelerator.prepare(
            DataLoader(
                dataset,
                batch_sampler=DealtBatches(order, size, self.accelerator.num_processes),
                collate_fn=partial(collate_or_fill, collate=cast(Any, self.data_collator), dataset=dataset),
                pin_memory=self.args.dataloader_pin_memory,
            )
        )
        return loader

    def follow_epochs(self, order: EpochSampler) -> None:
        """Give an order every epoch: in several processes accelerate does not find it in a resumed one."""
        epochs = cast(SetEpoch | None, self.pop_callback(SetEpoch)) or SetEpoch()
        epochs.receivers.append(order)
        self.add_callback(epochs)

    def compute_in_parts(self, checkpointing: bool | None, bytes_per_token: int = 0) -> None:
        """Compute as many tokens at a time as is worth it on this device, and fewer where memory ends.

        Args:
            checkpointing: Whether blocks are computed again in the backward pass; None of a model that cannot.
            bytes_per_token: Working memory of a token, of a model of which it is known to be large: the first parts
                take half of the free memory at most.
        """
        device = self.args.device
        tokens = MOST_TOKENS.get(device.type, MOST_TOKENS["cuda"])
        if bytes_per_token:
            tokens = fitting_count(bytes_per_token, device, tokens)
        self.set_limit(TokenLimit(tokens, checkpointing))

    def set_limit(self, limit: TokenLimit) -> None:
        """Compute in parts of so many tokens."""
        self.limit = limit
        if limit.checkpointing:
            plain_model(self.accelerator.unwrap_model(self.model)).activation_checkpointing_enable()
        logger.info(
            "At most %s tokens are computed at a time%s.",
            f"{limit.tokens:,}",
            ", activations again in the backward pass" if limit.checkpointing else "",
        )

    def share_of(self, inputs: dict[str, Any]) -> Share:
        """The share in the inputs of a step."""
        share: Share = inputs["share"]
        return share

    def forget_step(self) -> None:
        """Drop what was noted of a step that is computed again; nothing here."""

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward passes of a share; as the trainer's own without a limit."""
        step = super().training_step
        if "filler" in inputs:
            inputs = {name: values for name, values in inputs.items() if name not in ("filler", "shift_labels")}
            num_items_in_batch = torch.inf
        if self.limit is None:
            found: torch.Tensor = step(model, inputs, num_items_in_batch)
            return found

        model.train()  # what a share is made of may depend on it
        share = self.share_of(inputs)
        if not self.tried and (self.accelerator.num_processes > 1 or self.is_deepspeed_enabled):
            self.try_parts(share)
        self.tried = True

        def compute(parts: Iterable[dict[str, Any]], count: int) -> torch.Tensor:
            losses: list[torch.Tensor] = []

            def add(part: dict[str, Any], items: Any) -> None:
                last = len(losses) == count - 1
                self.accelerator.sync_gradients = last
                with nullcontext() if last else self.accelerator.no_sync(model):
                    losses.append(step(model, part, items))

            part: dict[str, Any] = {}
            for part in parts:
                add(part, num_items_in_batch)
            while len(losses) < count:  # another process has more parts
                add(part, torch.inf)
            return torch.stack(losses).sum()

        return self.in_parts(share, compute)

    def try_parts(self, share: Share) -> None:
        """Lower the limit until a part of a share fits beside the optimiser's state, by passes that change nothing.

        For launches of several processes, which cannot repeat a step once they have begun to add up its gradients. A
        pass takes the model without its distributed wrapper, and drops the gradients; random states stay.

        Args:
            share: The first step's. Its part has the limit's tokens at least, where the share has as many.
        """
        limit, model = cast(TokenLimit, self.limit), self.accelerator.unwrap_model(self.model)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        # Adam's two numbers a weight, and a copy of the gradients for other processes; DeepSpeed has its own already.
        copies = 0 if self.is_deepspeed_enabled else 3

        def pass_once(_parts: Iterable[dict[str, Any]], _count: int) -> torch.Tensor:
            held = [torch.empty_like(weight) for weight in weights for _ in range(copies)]
            count = max(1, min(len(share), int(share.borders[-1]) // limit.tokens))
            part = self._prepare_inputs(next(iter(share.split(count))))
            with self.compute_loss_context_manager():
                loss = cast(torch.Tensor, self.compute_loss(model, part, num_items_in_batch=1))
            torch.autograd.grad(loss, weights, allow_unused=True)
            del held
            return loss.detach()

        self.accelerator.sync_gradients = False  # nothing is reported to other processes
        with torch.random.fork_rng():
            self.in_parts(share, pass_once, gradients=False)
        self.forget_step()

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """The mean loss of the labels of a batch of validation, of this process alone, computed in parts too."""
        labels = label_count(inputs) * self.accelerator.num_processes  # by which losses are multiplied

        @torch.no_grad()
        def compute(parts: Iterable[dict[str, Any]], _count: int) -> torch.Tensor:
            with self.compute_loss_context_manager():
                losses: list[Any] = [
                    self.compute_loss(model, self._prepare_inputs(part), False, labels) for part in parts
                ]
            return torch.stack(losses).sum()

        if self.limit is None:
            return compute([inputs], 1), None, None
        return self.in_parts(self.share_of(inputs), compute, gradients=False), None, None

    def in_parts(
        self, share: Share, compute: Callable[[Iterable[dict[str, Any]], int], torch.Tensor], gradients: bool = True
    ) -> torch.Tensor:
        """Compute a share in parts that memory holds, again in smaller ones where it ends.

        Args:
            share: The share; there is a limit.
            compute: Computes all parts. Each is made when it is asked for: a GPU computes the one before meanwhile. It
                is also given their number, which is larger where another process has more and must be waited for.
            gradients: Whether it computes gradients, which the processes of a launch may add up.

        Raises:
            ConfigError: If memory ends with a single example at a time, or where processes must go in step.
        """
        limit = cast(TokenLimit, self.limit)
        while True:
            count = share.count(limit.tokens)
            if self.is_deepspeed_enabled and gradients:  # it adds them up after every part, in all processes together
                count = int(self.accelerator.gather(torch.tensor([count], device=self.args.device)).max())
            try:
                return compute(share.split(min(count, len(share))), count)
            except RuntimeError as error:
                if not memory_ended(error):
                    raise
            # Here nothing holds the tensors of the failed pass any more.
            self._lower(share, count, gradients)

    def _lower(self, share: Share, count: int, gradients: bool) -> None:
        """Forget a step whose memory ended with so many parts, and give it less to hold."""
        limit = cast(TokenLimit, self.limit)
        several = self.accelerator.num_processes > 1 and self.accelerator.sync_gradients
        if gradients and (self.is_deepspeed_enabled or several):
            raise ConfigError(
                f"memory ended at {limit.tokens:,} tokens at a time, where the processes of this launch add up their "
                f"gradients. Give a smaller number at a time, such as --{self.at_a_time} 1"
                + (", or --gradient_checkpointing true." if limit.checkpointing is False else ".")
            )
        lowered = limit.lower(indivisible=count == len(share))
        while count < len(share) and share.count(limit.tokens) == count:
            limit.lower(indivisible=False)
        if not lowered:
            again = ", though activations are computed again" if limit.checkpointing else ""
            raise ConfigError(f"memory ended with a single example at a time{again}. {self.smaller}")
        self.forget_step()
        cast(torch.nn.Module, self.model).zero_grad()
        free_device()
        logger.warning("Out of memory: retrying the step with smaller micro-batches; gradients are unchanged.")
        self.set_limit(limit)


def _has_ended(state: TrainerState, args: TrainingArguments) -> bool:
    """Whether a run has made all of its steps, or stopped early."""
    callbacks: Any = state.stateful_callbacks
    early = callbacks.get("EarlyStoppingCallback")
    if early and early["attributes"]["early_stopping_patience_counter"] >= early["args"]["early_stopping_patience"]:
        return True
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    return (state.epoch or 0) >= args.num_train_epochs


def diverged(args: TrainingArguments, state: TrainerState, sign: str) -> ConfigError:
    """The error of a training whose weights are no numbers any more, or about to be none; `sign` is the evidence."""
    return ConfigError(
        f"training diverged by step {state.global_step}: {sign}. Lower learning_rate (it is {args.learning_rate:g}), "
        f"raise warmup (it is {args.warmup_steps:g}), delete {args.output_dir}, if it is there, and begin again."
    )


class LogLines(TrainerCallback):
    """One log line for each validation and for every tenth of the training; off a terminal also every 30 seconds."""

    def __init__(self, every: float = 30.0):
        self.every = every
        self._begin = self._newest = time.monotonic()
        self._first = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to count seconds and steps."""
        self._begin = self._newest = time.monotonic()
        self._first = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write how many steps are done, where that was long ago."""
        now = time.monotonic()
        if args.disable_tqdm and state.is_world_process_zero and now - self._newest >= self.every:
            self._newest = now
            logger.info("step %d/%d  %s", state.global_step, state.max_steps, self._times(state))

    def _times(self, state: TrainerState) -> str:
        """The time since the training began or was resumed, and the time left at its pace, validations included."""
        elapsed, done = time.monotonic() - self._begin, state.global_step - self._first
        left = "?" if done < 1 else tqdm.format_interval(elapsed / done * (state.max_steps - state.global_step))
        return TIMES.format(elapsed=tqdm.format_interval(elapsed), remaining=left)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the newest figures."""
        if not state.is_world_process_zero or not logs:
            return
        names = (
            "loss",
            "eval_loss",
            "eval_ndcg@10",
            "eval_hr@10",
            "eval_reward@10",
            "reward",
            "kl",
            "zero_variance",
            "hit@g",
        )
        shown = [f"{name} {float(logs[name]):.4f}" for name in names if logs.get(name) is not None]
        if shown and ("eval_runtime" in logs or state.global_step % max(1, state.max_steps // 10) == 0):
            self._newest = time.monotonic()
            shown.append(self._times(state))
            logger.info(
                "step %d/%d  epoch %.2f  %s", state.global_step, state.max_steps, state.epoch or 0, "  ".join(shown)
            )


def replace_printer(trainer: Trainer) -> None:
    """Replace the trainer's printing of dictionaries by `LogLines`."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(LogLines())
