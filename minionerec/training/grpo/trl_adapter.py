"""The interface of GRPO to TRL: what is used of its trainer, what is replaced, and what is private.

TRL's `GRPOTrainer` makes the reference model (also for DeepSpeed), moves it towards the policy, and gives both a head
that computes log-probabilities of chosen tokens; as a `Trainer` of transformers it runs, logs, validates and saves. A
step of ours does not go through TRL's rollouts, rewards, advantages and loss (reasons in docs/decisions/trl.md).

An optimiser step takes its rows from the published `get_batch_samples`. They are turned into what the loss takes when
the first slice of the step is computed, for then the random state of an unfinished run is back:

    get_train_dataloader   rows of one slice after the other, in an order that follows from seed and epoch
    get_batch_samples      the rows of all slices of a step ─▶ a function that makes them into slices, once
    _prepare_inputs        the next of these slices; the first makes them all: `make_step`
    compute_loss           `slice_loss` of it

Where memory decides how much is computed at a time, a step is one slice, and `share_of` divides it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from minionerec.training.grpo.loss import RolloutGroups
from minionerec.training.grpo.rollouts import Row
from minionerec.training.memory import Share
from minionerec.training.sampling import EpochSampler
from minionerec.training.trainer import StepInParts

# Methods of TRL's trainer that ours overrides, with their parameters. The first is private; the others are published by
# `Trainer`. No other private method or attribute of TRL is overridden, called or read.
OVERRIDDEN: dict[str, tuple[str, ...]] = {
    "_prepare_inputs": ("self", "generation_batch"),
    "get_train_dataloader": ("self",),
    "get_batch_samples": ("self", "epoch_iterator", "num_batches", "device"),
    "compute_loss": ("self", "model", "inputs", "return_outputs", "num_items_in_batch"),
    "evaluate": ("self", "eval_dataset", "ignore_keys", "metric_key_prefix"),
    "log": ("self", "logs", "start_time"),
    "save_model": ("self", "output_dir", "_internal_call"),
}
# Attributes that TRL's trainer sets and ours reads.
READ = ("eos_token_ids", "num_generations", "ref_model")


def sample_steps(count: int, processes: int, slices: int, size: int, seed: int) -> EpochSampler:
    """Rows of whole steps, which `count` rows are filled up to.

    A step's rows are dealt out in blocks, one a device, and a device computes its block slice by slice. The trainer
    takes slices in the order of first slice of each device, second slice of each device, and so on:

        a step's rows     0 1 | 2 3 || 4 5 | 6 7      two devices, each with two slices of two rows
        as they are given 0 1   4 5    2 3   6 7
    """
    whole = count - count % (processes * slices * size)

    def order(epoch: int) -> Iterator[int]:
        shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
        yield from shuffled[:whole].view(-1, processes, slices, size).transpose(1, 2).flatten().tolist()

    return EpochSampler(whole, order)


class StepTrainer(StepInParts, GRPOTrainer):
    """TRL's trainer on steps: a subclass defines a step's slices and loss.

    Args:
        model: The policy.
        args: TRL's settings; batch sizes count completions there.
        rows: Training prompts.
        tokenizer: The model's tokenizer.
        callbacks: In addition to the trainer's own.
        order: The order of rows, by blocks; that of `sample_steps` if None.
    """

    args: GRPOConfig
    num_generations: int
    at_a_time = "prompts_per_device"
    smaller = "Lower generations, or train a smaller model."

    def __init__(
        self,
        model: PreTrainedModel,
        args: GRPOConfig,
        rows: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        callbacks: Sequence[TrainerCallback] = (),
        order: EpochSampler | None = None,
    ):
        super().__init__(
            model=model,
            args=args,
            reward_funcs=_no_reward,
            train_dataset=rows,
            eval_dataset=Dataset.from_dict({"prompt": ["-"]}),  # validation ranks rows of its own
            processing_class=tokenizer,
            callbacks=list(callbacks),
        )
        self.order = order

    @abstractmethod
    def make_step(self, rows: Sequence[Sequence[Row]]) -> list[RolloutGroups]:
        """Inputs of the loss, one slice after the other, from the rows of each slice of a step on this device."""

    @abstractmethod
    def slice_loss(self, model: Any, groups: RolloutGroups, whole: RolloutGroups | None) -> torch.Tensor:
        """The part that one slice, `groups`, has in the loss of a device's share of a step.

        `whole` is the share; None where it has as many slices as there are gradient accumulation steps.
        """

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Rows of one slice after the other; TRL would repeat each for each of its completions."""
        rows: Any = self.train_dataset
        args, processes = self.args, self.accelerator.num_processes
        size = args.per_device_train_batch_size // self.num_generations
        sampler = self.order
        if sampler is None:
            sampler = sample_steps(len(rows), processes, args.gradient_accumulation_steps, size, args.seed)
        self.follow_epochs(sampler)
        loader: DataLoader[Any] = self.accelerator.prepare(
            DataLoader(rows, batch_size=size, sampler=sampler, collate_fn=list)
        )
        return loader

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The slices of a step, which are made when the first is requested."""
        rows, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        slices = cache(lambda: self.make_step(rows))
        return [{"slices": slices, "group": position} for position in range(len(rows))], count

    def _prepare_inputs(self, generation_batch: dict[str, Any]) -> dict[str, Any]:
        """A slice, ready for the loss; TRL's own would roll out, and mix the completions of all groups."""
        if "groups" in generation_batch:  # a part of a share
            return generation_batch
        return {"groups": generation_batch["slices"]()[generation_batch["group"]]}

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The loss of a slice."""
        return self.slice_loss(model, inputs["groups"], inputs.get("whole"))

    def share_of(self, inputs: dict[str, Any]) -> Share:
        """The groups of a step, in order."""
        (whole,) = inputs["slices"]()
        return share_of_groups(whole)


def share_of_groups(whole: RolloutGroups) -> Share:
    """Groups as a share, in order: parts with `groups` and the `whole`."""

    def make(part: slice) -> dict[str, Any]:
        return {"groups": whole.part(part.start, part.stop), "whole": whole}

    return Share([sum(map(len, [prompt, *answers])) for prompt, answers in whole.branches()], make)


def _no_reward(*_: Any, **__: Any) -> list[float | None]:
    """TRL insists on a reward function; ours are functions of rollouts and are called in `make_step`."""
    raise NotImplementedError
