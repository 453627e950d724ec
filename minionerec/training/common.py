"""What the training stages share: batch arithmetic, resumable work folders, validation by ranking, logging."""

import json
import math
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback, TrainerState
from transformers.trainer_utils import EvalLoopOutput

from minionerec.backbone.bundle import Bundle, load_bundle, save_bundle
from minionerec.core.artefacts import input_record, read_json, to_plain, write_text_atomic
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.decoding.decoder import decode_prompts, target_ranks
from minionerec.decoding.trie import Trie
from minionerec.prompts.examples import ExampleBuilder, encode_prompt
from minionerec.training.config import RunConfig
from minionerec.training.lora import merged_model, plain_model
from minionerec.training.processes import main_process_first, process_arguments

logger = get_logger(__name__)

RESUME_FILE = "resume.json"
LOG_FILE = "training_log.json"
# Settings that say how to go on, not what comes out.
_NOT_PART_OF_RESULT = ("restart", "tensorboard", "keep_state")
# `train_loss` is the mean since the process began, so it differs where a run was cut off.
_VARYING = ("runtime", "per_second", "step_time", "flos", "num_tokens", "mfu", "train_loss")


def accumulation_steps(total: int, per_device: int, processes: int, what: str) -> int:
    """Micro-batches an optimiser step.

    Args:
        total: Examples (or prompts) an optimiser step, over all devices.
        per_device: Those a device computes at a time.
        processes: Number of devices.
        what: The two settings' names, for the message.

    Raises:
        ConfigError: If they do not divide.
    """
    at_once = per_device * processes
    if total < 1 or per_device < 1 or total % at_once:
        raise ConfigError(
            f"{what}: {total} is no multiple of {per_device} x {processes} device(s) = {at_once}; change one of them."
        )
    return total // at_once


@dataclass(frozen=True)
class StepPlan:
    """How examples become optimiser steps.

    Attributes:
        accumulation: Micro-batches an optimiser step.
        steps_per_epoch: Optimiser steps an epoch; a last incomplete one counts.
        eval_steps: Optimiser steps between two validations.
    """

    accumulation: int
    steps_per_epoch: int
    eval_steps: int


def plan_steps(config: RunConfig, count: int, total: int, per_device: int, what: str, noun: str) -> StepPlan:
    """Derive and log the arithmetic of batches, for the number of processes of this launch.

    Args:
        config: The stage's settings.
        count: Examples an epoch.
        total: Examples an optimiser step, over all devices.
        per_device: Examples a device computes at a time.
        what: The names of these two settings.
        noun: What an example is called.

    Raises:
        ConfigError: If the settings do not divide.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    accumulation = accumulation_steps(total, per_device, processes, what)
    steps = math.ceil(count / total)
    plan = StepPlan(accumulation, steps, max(1, math.ceil(steps / config.evals_per_epoch)))
    logger.info(
        "A step is %d %s = %d a device x %d device(s) x %d; %d steps an epoch, %g epochs, validation every %d steps.",
        total,
        noun,
        per_device,
        processes,
        accumulation,
        steps,
        config.epochs,
        plan.eval_steps,
    )
    return plan


def trainer_arguments(config: RunConfig, plan: StepPlan, select_by: str) -> dict[str, Any]:
    """What all trainers are told alike: optimisation, validation, the best checkpoint, seeds, quiet.

    Args:
        config: The stage's settings.
        plan: The arithmetic of batches.
        select_by: Best checkpoint: lowest "loss" or highest "ndcg".
    """
    return {
        "output_dir": str(partial_folder(config)),
        "num_train_epochs": config.epochs,
        "gradient_accumulation_steps": plan.accumulation,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": {"constant": "constant_with_warmup"}.get(config.schedule, config.schedule),
        "warmup_steps": config.warmup,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "bf16": config.mixed_bf16,
        **process_arguments(),
        "activation_checkpointing": getattr(config, "gradient_checkpointing", False),
        "eval_strategy": "steps",
        "eval_steps": plan.eval_steps,
        "save_strategy": "steps",
        "save_steps": plan.eval_steps,
        "save_total_limit": 2,  # with 1, the trainer ends by deleting the last checkpoint where another is the best
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss" if select_by == "loss" else "eval_ndcg@10",
        "greater_is_better": select_by == "ndcg",
        "restore_callback_states_from_checkpoint": True,
        "seed": config.seed,
        "data_seed": config.seed,
        "disable_tqdm": not sys.stderr.isatty(),
        "report_to": ["tensorboard"] if config.tensorboard else [],
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def choose_examples(count: int, weight: float, seed: int) -> np.ndarray:
    """Which of a task's examples an epoch sees, for a task weight: each floor(weight) times, and a random rest.

    Returns:
        int64 indices, ascending.

    Example:
        >>> choose_examples(4, 1.0, 0).tolist(), len(choose_examples(4, 2.5, 0))
        ([0, 1, 2, 3], 10)
    """
    whole = np.tile(np.arange(count), int(weight))
    rest = round((weight - int(weight)) * count)
    drawn = np.random.default_rng(seed).permutation(count)[:rest]
    return np.sort(np.concatenate([whole, drawn]))


@dataclass(frozen=True)
class ValidationSet:
    """Prompts whose targets are ranked at each validation.

    Attributes:
        prompts: Token ids of each prompt.
        targets: int64 (R,), SID number of each target in the trie.
        trie: SIDs of the catalogue.
        num_beams: Beam width.
    """

    prompts: Sequence[Sequence[int]]
    targets: np.ndarray
    trie: Trie
    num_beams: int


def validation_set(
    tokenizer: PreTrainedTokenizerBase,
    builder: ExampleBuilder,
    trie: Trie,
    sid_numbers: np.ndarray,
    *,
    rows: int,
    num_beams: int,
    max_prompt_length: int,
    seed: int,
) -> ValidationSet | None:
    """A fixed random sample of validation rows for ranking.

    Args:
        tokenizer: The model's tokenizer.
        builder: Makes the prompts.
        trie: SIDs of the catalogue.
        sid_numbers: int64 (N,), number of each item's SID in the trie.
        rows: How many rows; -1 for all, 0 for none.
        num_beams: Beam width.
        max_prompt_length: Prompts are cut to their last tokens.
        seed: Seed of the sample.
    """
    if rows == 0:
        return None
    examples = builder.build("next_sid", "valid")
    if 0 < rows < len(examples):
        chosen = np.sort(np.random.default_rng(seed).permutation(len(examples))[:rows])
        examples = [examples[place] for place in chosen]
    prompts = encode_prompt(tokenizer, [example.prompt for example in examples], max_prompt_length).ids
    targets = sid_numbers[[example.target for example in examples]]
    return ValidationSet(prompts, targets, trie, num_beams)


def rank_validation(model: PreTrainedModel, validation: ValidationSet, accelerator: Any) -> dict[str, float]:
    """NDCG@10, HR@10 and HR@1 of the evaluator's own decoder on a validation set, its rows shared among processes."""
    mine = slice(accelerator.process_index, None, accelerator.num_processes)
    with accelerator.autocast():
        sids, _ = decode_prompts(model, validation.prompts[mine], validation.trie, validation.num_beams)
    ranks = target_ranks(sids, validation.targets[mine])
    hit = (ranks > 0) & (ranks <= 10)
    gains = np.where(hit, 1 / np.log2(1 + np.maximum(ranks, 1)), 0.0)
    sums = torch.tensor([gains.sum(), hit.sum(), (ranks == 1).sum(), len(ranks)], dtype=torch.float64)
    ndcg, hr, first, rows = accelerator.reduce(sums.to(torch.float32).to(accelerator.device), "sum").tolist()
    return {"ndcg@10": ndcg / rows, "hr@10": hr / rows, "hr@1": first / rows}


class RankingEvaluation(Trainer):
    """A mix-in for trainers: every evaluation also ranks a validation set with the evaluator's decoder."""

    validation: ValidationSet | None = None
    measures_loss = True

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> Any:
        """Train, or take the best weights of a run that had come to its end but for writing them down.

        The trainer's own `train` makes one more step from a checkpoint at which training had stopped.
        """
        if isinstance(resume_from_checkpoint, str):
            state = TrainerState.load_from_json(str(Path(resume_from_checkpoint) / "trainer_state.json"))
            if _has_ended(state, self.args):
                self.state = state
                self._load_from_checkpoint(state.best_model_checkpoint)
                return None
        return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run the trainer's own evaluation (where it measures a loss) and add the ranking metrics to it."""
        if self.measures_loss:
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        else:
            nothing = np.zeros(0)
            output = EvalLoopOutput(nothing, None, metrics={}, num_samples=len(dataloader.dataset))
        if self.validation is not None:
            model = plain_model(self.accelerator.unwrap_model(self.model))
            ranked = rank_validation(model, self.validation, self.accelerator)
            added = {f"{metric_key_prefix}_{name}": value for name, value in ranked.items()}
            output = output._replace(metrics={**(output.metrics or {}), **added})
        return output


def _has_ended(state: TrainerState, args: Any) -> bool:
    """Whether a run has made all steps that it is asked for, or stopped early."""
    callbacks: Any = state.stateful_callbacks
    early = callbacks.get("EarlyStoppingCallback")
    if early and early["attributes"]["early_stopping_patience_counter"] >= early["args"]["early_stopping_patience"]:
        return True
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    return (state.epoch or 0) >= args.num_train_epochs


class LogLines(TrainerCallback):
    """One log line for each validation, and for every tenth of the training."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Write the newest figures."""
        if not state.is_world_process_zero or not logs:
            return
        names = ("loss", "eval_loss", "eval_ndcg@10", "eval_hr@10", "reward", "kl", "zero_variance", "hit@g")
        shown = [f"{name} {float(logs[name]):.4f}" for name in names if logs.get(name) is not None]
        if shown and ("eval_runtime" in logs or state.global_step % max(1, state.max_steps // 10) == 0):
            logger.info(
                "step %d/%d  epoch %.2f  %s", state.global_step, state.max_steps, state.epoch or 0, "  ".join(shown)
            )


def replace_printer(trainer: Trainer) -> None:
    """Put `LogLines` in the place of the trainer's own printing of dictionaries."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(LogLines())


def training_log(history: Sequence[Mapping[str, Any]]) -> str:
    """The trainer's log as JSON text, without what differs between two runs of the same thing."""
    rows = [{key: value for key, value in row.items() if not any(word in key for word in _VARYING)} for row in history]
    rows = [row for row in rows if row.keys() > {"step", "epoch"}]
    return json.dumps(rows, indent=1, sort_keys=True) + "\n"


def result_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that decide a run's result, for manifests and for telling whether a run may be resumed."""
    return {name: value for name, value in to_plain(config).items() if name not in _NOT_PART_OF_RESULT}


def partial_folder(config: RunConfig) -> Path:
    """The folder of an unfinished run, beside its output."""
    output = Path(config.output)
    return output.with_name(f"{output.name}.partial")


def finished_folder(config: RunConfig) -> Path:
    """The folder that keeps the last checkpoint of a finished run, so that more epochs can follow."""
    output = Path(config.output)
    return output.with_name(f"{output.name}.finished")


@contextmanager
def work_folder(config: RunConfig, inputs: Mapping[str, str], main_process: bool) -> Iterator[str | None]:
    """Hold the folder for an unfinished run beside its output, against other runs, and find where to go on.

    A finished run goes on where it is asked for more epochs, and for nothing else.

    Args:
        config: The stage's settings.
        inputs: Name to path of the stage's inputs.
        main_process: Whether this process may write; the others wait for it.

    Yields:
        The newest whole checkpoint, to resume from; None to begin.

    Raises:
        ConfigError: If another run is at work there, or an unfinished run with other settings or inputs lies there.
    """
    output = Path(config.output)
    lock = FileLock(output.with_name(f".{output.name}.lock"), timeout=0)
    with main_process_first():
        if main_process:
            try:
                lock.acquire()
            except Timeout:
                raise ConfigError(
                    f"{output}: another run is writing it. Wait for it, or choose another output."
                ) from None
            _prepare_folder(config, inputs)
        checkpoint = newest_whole_checkpoint(partial_folder(config))
    if checkpoint is not None:
        logger.info("Going on from %s.", checkpoint)
    try:
        yield checkpoint
    finally:
        lock.release()


def _prepare_folder(config: RunConfig, inputs: Mapping[str, str]) -> None:
    """Leave a work folder of this run: its unfinished one, a finished one that is to go on, or a new one."""
    folder, finished = partial_folder(config), finished_folder(config)
    record = {
        "settings": result_settings(config),
        "inputs": {name: entry["sha256"] for name, entry in input_record(inputs).items()},
    }
    if config.restart:
        shutil.rmtree(folder, ignore_errors=True)
    elif (folder / RESUME_FILE).is_file():
        differences = _differences(folder, record)
        if differences:
            raise ConfigError(
                f"{folder}: holds an unfinished run that differs in {', '.join(differences)}. Go on with the old "
                "settings, choose another output, or give --restart true to throw it away."
            )
    elif (finished / RESUME_FILE).is_file() and not _differences(finished, record):
        shutil.rmtree(folder, ignore_errors=True)
        finished.rename(folder)
    write_text_atomic(folder / RESUME_FILE, json.dumps(record, indent=1) + "\n")


def _differences(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """In what a run differs from the one that left a folder, in words; more epochs are no difference."""
    before = read_json(folder / RESUME_FILE)
    then, now = before["settings"], record["settings"]
    names = [
        f"{name} (then {then.get(name)!r}, now {value!r})"
        for name, value in now.items()
        if then.get(name) != value and not (name == "epochs" and value > then[name])
    ]
    return names or (["the inputs' content"] if before["inputs"] != record["inputs"] else [])


def newest_whole_checkpoint(folder: Path) -> str | None:
    """The newest `checkpoint-N` of which every file is there to its end."""
    steps = [int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*") if path.name.split("-")[1].isdigit()]
    for step in sorted(steps, reverse=True):
        place = folder / f"checkpoint-{step}"
        torn = _torn_file(place)
        if torn is None:
            return str(place)
        logger.info("%s is incomplete (%s) and is left out.", place, torn)
    return None


def _torn_file(checkpoint: Path) -> str | None:
    """What is missing or cut off in a checkpoint; None where nothing is."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    random_states = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    for name in ("scheduler.pt", *random_states):
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
    shards = list(checkpoint.glob("*/*optim_states.pt"))  # of DeepSpeed, one for each process
    if not (checkpoint / "optimizer.pt").is_file() and len(shards) < processes:
        return "the optimiser's state is missing"
    if not list(checkpoint.glob("*.safetensors")):
        return "the weights are missing"
    for file in sorted(checkpoint.rglob("*")):
        if file.suffix in (".pt", ".pth") and not zipfile.is_zipfile(file):  # a zip's directory is at its end
            return f"{file.name} is cut off"
        if file.suffix == ".safetensors" and not _is_whole_safetensors(file):
            return f"{file.name} is cut off"
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))  # is written last
    except (OSError, json.JSONDecodeError):
        return "trainer_state.json is missing or cut off"
    return None


def _is_whole_safetensors(path: Path) -> bool:
    """Whether a file is as long as its header says: eight bytes of the header's length, the header, the tensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length))
        except (UnicodeDecodeError, json.JSONDecodeError):
            return False
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return path.stat().st_size == 8 + length + max(ends, default=0)


@dataclass(frozen=True)
class TrainingResult:
    """Where a run's checkpoint lies, and what it measured.

    Attributes:
        output: Checkpoint directory.
        counts: The manifest's counts: examples, steps, parameters, best validation figures.
        fresh: False where an earlier run with the same settings and inputs had already made it.
    """

    output: Path
    counts: dict[str, Any]
    fresh: bool


def keep_start_if_better(trainer: Any, checkpoint: str) -> None:
    """Go back to the starting weights where no later validation beat the one before the first step.

    Args:
        trainer: A trainer that has run, with a validation before its first step (`eval_on_start`).
        checkpoint: What it began with.
    """
    start = next(row["eval_ndcg@10"] for row in trainer.state.log_history if row["step"] == 0 and "eval_ndcg@10" in row)
    if trainer.state.best_metric is None or start >= trainer.state.best_metric:
        logger.warning(
            "Training did not improve validation NDCG@10 (%.4f before, %s at best after): the output holds the weights "
            "of %s. Try a lower learning rate, a higher beta or another reward.",
            start,
            trainer.state.best_metric,
            checkpoint,
        )
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.load_state_dict(load_bundle(checkpoint, dtype=model.dtype).model.state_dict())
        trainer.state.best_global_step, trainer.state.best_metric = 0, start


def finish_run(
    trainer: Any, bundle: Bundle, config: Any, settings: Any, inputs: Any, counts: dict[str, Any]
) -> TrainingResult:
    """Write the best model as a checkpoint artefact (first process) and lay the work folder aside."""
    state = trainer.state
    best = {
        key: value
        for row in state.log_history
        if row["step"] == state.best_global_step
        for key, value in row.items()
        if key in ("eval_loss", "eval_ndcg@10", "eval_hr@10", "eval_hr@1")
    }
    counts = {**counts, "steps": state.global_step, "best_step": state.best_global_step, "best": best}
    output = Path(config.output)
    if trainer.args.should_save:
        (Path(trainer.args.output_dir) / LOG_FILE).write_text(training_log(state.log_history), encoding="utf-8")
        model = merged_model(trainer.accelerator.unwrap_model(trainer.model))
        save_bundle(
            Bundle(model, bundle.tokenizer, bundle.table, bundle.wording, bundle.max_prompt_length),
            output,
            config=settings,
            inputs=inputs,
            seed=config.seed,
            counts=counts,
            extra_files={LOG_FILE: Path(trainer.args.output_dir) / LOG_FILE},
        )
        finished = finished_folder(config)
        shutil.rmtree(finished, ignore_errors=True)
        if config.keep_state:
            Path(trainer.args.output_dir).rename(finished)
        else:
            shutil.rmtree(trainer.args.output_dir, ignore_errors=True)
        logger.info("Best step %s of %d: %s", state.best_global_step, state.global_step, best)
    trainer.accelerator.wait_for_everyone()
    return TrainingResult(output, counts, fresh=True)
