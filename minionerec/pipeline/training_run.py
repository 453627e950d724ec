"""The frame of every training stage: freshness, folders, resuming, and writing the result.

@training_stage
def run_x(config: XConfig, run: TrainingRun) -> StageResult:
    ...                                                         # load
    args = XArguments(**run.arguments(plan, "ndcg"))
    trainer = XTrainer(...)                                     # build
    run.train(trainer)                                          # train, from the newest checkpoint on
    return run.finish(trainer, bundle, counts)                  # finish: all or nothing
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainingArguments,
)
from transformers.trainer_callback import TrainerState

from minionerec.core.artefacts import read_json, require_unseen, write_json
from minionerec.core.device import fix_order
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.core.log import get_logger, shows_bars
from minionerec.core.machine import keep_freed_memory
from minionerec.core.processes import (
    check_launcher,
    is_main_process,
    join_for_training,
    sharding,
    trainer_processes,
    uses_deepspeed,
    wait_for_everyone,
    world_size,
)
from minionerec.data.contexts import RequestFeature
from minionerec.data.corpus import Corpus
from minionerec.data.order import default_buffer
from minionerec.models.backbone.bundle import Bundle, bundle_counts, load_bundle, quiet_libraries, write_model_files
from minionerec.models.backbone.card import CARD_FILE, model_card
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.decoding.branches import BrokenScores, OpensBranches
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder
from minionerec.models.prompts.wording import NEXT_SID
from minionerec.pipeline.config.training import LanguageRunConfig, RunConfig
from minionerec.pipeline.stage import LAUNCH_FILE, Stage, Work, saved_launch
from minionerec.pipeline.stages import StageResult
from minionerec.sid.table import SidTable
from minionerec.training.distillation import SoftTargets, Teacher, soft_targets
from minionerec.training.rows import validation_set
from minionerec.training.sampling import EpochSampler, sample_blocks
from minionerec.training.trainer import (
    RankingEvaluation,
    StepInParts,
    ValidationSet,
    best_checkpoint,
    diverged,
    plain_model,
    replace_printer,
)

logger = get_logger(__name__)


@dataclass(frozen=True)
class StepPlan:
    """The arithmetic of batches: examples to optimiser steps.

    Attributes:
        accumulation: Micro-batches an optimiser step.
        steps_per_epoch: Optimiser steps an epoch; a last incomplete one counts.
        eval_steps: Optimiser steps between two validations.
        per_device: Examples (or prompts) of a trainer's batch on a device, computed together or in parts.
        total: Examples (or prompts) of an optimiser step, over all devices.
    """

    accumulation: int
    steps_per_epoch: int
    eval_steps: int
    per_device: int
    total: int


def batch_of(config: RunConfig) -> tuple[int, int]:
    """Examples (or prompts) of a trainer's batch on a device, and batches an optimiser step.

    Where the settings do not say how many a device computes at a time, the batch is its whole share of a step.

    Raises:
        ConfigError: If they do not divide by the number of processes of this launch.
    """
    total, at_a_time = config.batch_sizes
    per_device, processes = at_a_time or 1, world_size()
    if total % (per_device * processes):
        raise ConfigError(
            f"{' and '.join(config.batch)}: {total} is no multiple of {per_device} x {processes} device(s) = "
            f"{per_device * processes}; change one of them."
        )
    return (at_a_time, total // (at_a_time * processes)) if at_a_time else (total // processes, 1)


def log_truncated(prompts: int) -> None:
    """Log how many prompts lost their first tokens, if any."""
    if prompts:
        logger.info("%s prompts were too long and were truncated to their last tokens.", f"{prompts:,}")


def warn_of_rounding(trainer: Trainer) -> None:
    """Warn where the weights have no float32 copy, and so round most of a small step to nothing."""
    dtype = trainer.accelerator.unwrap_model(trainer.model).dtype
    if dtype != torch.float32 and not trainer.is_deepspeed_enabled:
        logger.warning(
            "The weights are %s without a float32 copy: at learning rate %g most of a step rounds to nothing. "
            "Give --dtype float32 (with --mixed_bf16 true to compute in bfloat16), or launch with ZeRO-2.",
            str(dtype).removeprefix("torch."),
            trainer.args.learning_rate,
        )


def check_trackers(names: Sequence[str]) -> None:
    """Check that transformers knows trackers, and finds their packages, before anything is loaded.

    Raises:
        ConfigError: With the library's own message about the first that is missing.
    """
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    try:
        for tracker in get_reporting_integration_callbacks(list(names)):
            tracker()
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"report_to is {' '.join(names)}: {error}") from None


def set_log_folder(trainer: Trainer, output: str) -> None:
    """Let TensorBoard write into `OUTPUT.tensorboard`, which outlives the run, unless its own variable names a folder.

    Args:
        trainer: The trainer.
        output: The stage's output.
    """
    from transformers.integrations.integration_utils import TensorBoardCallback

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and not os.environ.get("TENSORBOARD_LOGGING_DIR"):
            callback.logging_dir = f"{output}.tensorboard"


LOG_FILE = "training_log.json"
# `train_loss` is the mean since the process began, so it differs where a run was interrupted.
_VARYING = ("runtime", "per_second", "step_time", "flos", "num_tokens", "mfu", "train_loss")
EXTENDED = "extended"
"""In a manifest's counts: epochs that the run was first made for, and the steps that it made so."""
_BEST = ("eval_loss", "eval_ndcg@10", "eval_hr@10", "eval_hr@1", "eval_reward@10")
_METRICS = {"loss": "eval_loss", "ndcg": "eval_ndcg@10", "reward": "eval_reward@10"}


def _result(output: Path, counts: Mapping[str, Any], up_to_date: bool = False) -> StageResult:
    """The result of a training stage; its lines say which splits it cannot be evaluated on."""
    seen = [name for name in counts.get("splits", ()) if name != "train"]
    lines = [f"trained on {' and '.join(seen)} too: not for evaluation on these"] if seen else []
    return StageResult(output, [*lines, f"checkpoint: {output}"], counts, up_to_date=up_to_date)


def keep_start_if_better(run: "TrainingRun", trainer: RankingEvaluation, checkpoint: str | Path, *others: str) -> None:
    """Restore the starting weights where no later validation beat the one before the first step.

    Args:
        run: The running training.
        trainer: A trainer that has run, with a validation before its first step (`eval_on_start`).
        checkpoint: The checkpoint that it started from.
        *others: Changes that may help, besides a lower learning rate.

    Raises:
        ArtefactError: If an input was changed since the run began, and weights are to be restored.
    """
    state, name = trainer.state, str(trainer.args.metric_for_best_model)
    start = next(entry[name] for entry in state.log_history if entry["step"] == 0 and name in entry)
    later = [entry[name] for entry in state.log_history if entry["step"] > 0 and name in entry]
    if state.best_metric is None or start >= state.best_metric:
        logger.warning(
            "Training did not improve validation %s (%.4f before, %s at best after): the output holds the weights "
            "of %s. Try %s.",
            name.removeprefix("eval_").replace("ndcg", "NDCG"),
            start,
            f"{max(later):.4f}" if later else "not measured",
            checkpoint,
            " or ".join(["a lower learning rate", *others]),
        )
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.load_state_dict(load_bundle(checkpoint, dtype=model.dtype).model.state_dict())
        run.work.inputs_read()
        state.best_global_step, state.best_metric = 0, start


def newest_whole_checkpoint(folder: Path, draws: bool = True) -> str | None:
    """The newest `checkpoint-N` that was written to its end.

    Args:
        folder: The folder of the trainer's checkpoints.
        draws: Whether its steps draw random numbers, so that the random state of each process of this launch is needed.
    """
    steps = [int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*") if path.name.split("-")[1].isdigit()]
    for step in sorted(steps, reverse=True):
        directory = folder / f"checkpoint-{step}"
        torn = _torn_file(directory, draws)
        if torn is None:
            return str(directory)
        logger.info("%s is incomplete (%s) and is ignored.", directory, torn)
    return None


def _torn_file(checkpoint: Path, draws: bool) -> str | None:
    """The missing part of a checkpoint that a kill interrupted; None if it is whole."""
    processes = world_size()
    states = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    for name in ("scheduler.pt", *(states if draws else [])):
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
    shards = list(checkpoint.glob("*/*optim_states.pt"))  # of DeepSpeed, one for each process
    if not (checkpoint / "optimizer.pt").is_file() and len(shards) < processes:
        return "the optimiser's state is missing"
    if not list(checkpoint.glob("*.safetensors")):
        return "the weights are missing"
    try:
        state = read_json(checkpoint / "trainer_state.json")  # is written last
    except ArtefactError:
        state = None
    if not isinstance(state, dict) or "global_step" not in state:
        return "trainer_state.json is missing or damaged"
    best = best_checkpoint(checkpoint, state.get("best_model_checkpoint"))
    if best is not None and not list(best.glob("*.safetensors")):
        return f"its best, {best.name}, is missing"
    return None


C = TypeVar("C", bound=RunConfig)
_ROWS, _SCHEDULE_FILE = "rows", "schedule.json"


def launch_of_trainer() -> dict[str, Any]:
    """This launch, as far as a trainer's states depend on it, see `minionerec.pipeline.stage.launch_in_words`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {"processes": world_size(), "sharding": sharding(), "device": device}


def random_states() -> list[torch.Tensor]:
    """The states of torch's generators, of the CPU and of the GPU in use."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])]


def _check_unseen(stage: Stage[Any]) -> None:
    """Check that no input of a run, a pretrained model included, was trained on its validation examples.

    Raises:
        ArtefactError: If an input was.
    """
    for path in stage.inputs.values():
        try:
            require_unseen(path, "valid")
        except ArtefactError as error:
            raise ArtefactError(f"{error} Only a run that trains on them too can start from it.") from None


class TrainingRun(TrainerCallback):
    """A running training stage, which follows its trainer.

    Args:
        config: The stage's settings, with local paths.
        work: The stage's working state.

    Attributes:
        splits: Splits whose examples are trained on.
        validates: Whether validation examples are held out.
    """

    def __init__(self, config: RunConfig, work: Work):
        self.config, self.work = config, work
        self.splits = list(getattr(config, "splits", ["train"]))
        self.validates = "valid" not in self.splits
        self.extended: list[dict[str, Any]] = []
        self._launch: dict[str, Any] = {}
        self._random: list[torch.Tensor] | None = None

    @property
    def folder(self) -> Path:
        """Folder of the trainer's checkpoints; every process of a launch must read it."""
        return self.work.folder

    @property
    def rows(self) -> Path:
        """Folder of the training examples."""
        return self.folder / _ROWS

    @cached_property
    def checkpoint(self) -> str | None:
        """The newest whole checkpoint of an unfinished run, to continue from; None to begin."""
        launch = saved_launch(self.folder)
        checkpoint = newest_whole_checkpoint(self.folder, draws=not launch or "processes" in launch)
        if checkpoint is not None:
            logger.info("Resuming from %s.", checkpoint)
        self.work.reached(0 if checkpoint is None else int(checkpoint.rpartition("-")[2]))
        return checkpoint

    def load_corpus(self) -> Corpus:
        """The corpus, its training examples those of all splits that are trained on."""
        return Corpus.load(self.config.corpus).training_on(self.splits)

    def plan_steps(self, count: int, noun: str) -> StepPlan:
        """Derive and log the arithmetic of batches, for the number of processes of this launch.

        Args:
            count: Examples an epoch.
            noun: Name of an example.

        Raises:
            ConfigError: If the settings do not divide.
        """
        config = self.config
        in_parts = "" if config.batch_sizes[1] else ", in parts that fit its memory,"
        total, (per_device, accumulation) = config.batch_sizes[0], batch_of(config)
        steps = math.ceil(count / total)
        plan = StepPlan(accumulation, steps, max(1, math.ceil(steps / config.evals_per_epoch)), per_device, total)
        logger.info(
            "A step is %d %s = %d a device%s x %d device(s) x %d; %d steps an epoch, %g epochs, %s every %d steps.",
            total,
            noun,
            per_device,
            in_parts,
            world_size(),
            accumulation,
            steps,
            config.epochs,
            "validation" if self.validates else "a checkpoint",
            plan.eval_steps,
        )
        return plan

    def arguments(self, plan: StepPlan, select_by: str) -> dict[str, Any]:
        """Arguments of every trainer: optimisation, validation, the best checkpoint, seeds, quiet.

        Without validation it measures and chooses nothing.

        Args:
            plan: The arithmetic of batches.
            select_by: Best checkpoint: lowest "loss", or highest "ndcg" or "reward".
        """
        config = self.config
        self.work.log_batch(plan.per_device, plan.accumulation, plan.total)
        arguments = {
            "output_dir": str(self.folder),
            "num_train_epochs": config.epochs,
            "gradient_accumulation_steps": plan.accumulation,
            "learning_rate": config.learning_rate,
            "lr_scheduler_type": {"constant": "constant_with_warmup"}.get(config.schedule, config.schedule),
            "warmup_steps": config.warmup,
            "bf16": config.mixed_bf16,
            **trainer_processes(),
            "activation_checkpointing": isinstance(config, LanguageRunConfig) and config.gradient_checkpointing,
            "eval_strategy": "no",
            "save_strategy": "steps",
            "save_steps": plan.eval_steps,
            "save_total_limit": 2,  # with 1, the trainer ends by deleting the last one where another is the best
            "restore_callback_states_from_checkpoint": True,
            "seed": config.seed,
            "data_seed": config.seed,
            "disable_tqdm": not shows_bars(),
            "logging_nan_inf_filter": False,  # it would write the mean of earlier losses for one that is no number
            "report_to": list(config.report_to),
            "run_name": config.output,
            "project": "minionerec",
            "dataloader_pin_memory": torch.cuda.is_available(),
        }
        if self.validates:
            arguments |= {
                "eval_strategy": "steps",
                "eval_steps": plan.eval_steps,
                "load_best_model_at_end": True,
                "metric_for_best_model": _METRICS[select_by],
                "greater_is_better": select_by != "loss",
            }
        return arguments

    def block_order(self, count: int, plan: StepPlan) -> EpochSampler | None:
        """Order of as many examples where they are too many to be shuffled as a whole, else None."""
        size = default_buffer(count)
        return sample_blocks(count, size, world_size(), plan.per_device, self.config.seed) if size else None

    def early_stopping(self) -> list[TrainerCallback]:
        """The callback that ends the run after `patience` validations without a better one, where there is one."""
        return [EarlyStoppingCallback(self.config.patience)] if self.config.patience and self.validates else []

    def validation_set(
        self, bundle: Bundle, builder: ExampleBuilder, trie: Trie, numbers: np.ndarray | None = None
    ) -> ValidationSet | None:
        """The validation examples that are ranked; None where none is held out."""
        if not self.validates:
            return None
        count, beams = self.config.eval_examples, self.config.eval_beams
        return validation_set(bundle, builder, trie, count=count, beams=beams, seed=self.config.seed, numbers=numbers)

    def _keep_launch(self, trainer: RankingEvaluation) -> None:
        """Record the launch, as far as the states that are saved from here on depend on it.

        They do not on the number of processes where these share out the same steps, without drawing random numbers.
        """
        self._launch = launch_of_trainer()
        saved = None if self.checkpoint is None else saved_launch(self.folder)
        is_free = saved is None or (bool(saved) and "processes" not in saved)
        if is_free and not trainer.by_process and not self._launch["sharding"]:
            del self._launch["processes"]
        if is_main_process():
            write_json(self.folder / LAUNCH_FILE, self._launch)

    def _keep_schedule(self, args: TrainingArguments) -> None:
        """Record the number of epochs of the run, and whether it began with another.

        The weights then differ from those of as many epochs at once, unless the learning rate is the same.
        """
        file, epochs = self.folder / _SCHEDULE_FILE, self.config.epochs
        done = 0 if self.checkpoint is None else int(self.checkpoint.rpartition("-")[2])
        saved: dict[str, Any] = read_json(file) if done and file.is_file() else {"epochs": epochs, EXTENDED: []}
        parts = saved[EXTENDED]
        if saved["epochs"] != epochs:
            parts = [*parts, {"epochs": saved["epochs"], "steps": done}]
        parts = [{**part, "steps": min(part["steps"], done)} for part in parts]
        if is_main_process():
            write_json(file, {"epochs": epochs, EXTENDED: parts})
        is_rate_equal = self.config.schedule == "constant" and not 0 < self.config.warmup < 1
        is_aligned = all(part["steps"] % args.save_steps == 0 for part in parts)
        if args.max_steps > 0 or (is_rate_equal and is_aligned):
            return
        self.extended = parts
        for part in parts:
            logger.warning(
                "The first %d steps were made for %g epochs: the result is not that of %g epochs at once, and its "
                "manifest says so (extended).",
                part["steps"],
                part["epochs"],
                epochs,
            )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note the random state, until it is known that steps draw from it."""
        self._random = None if "processes" in self._launch else random_states()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record that steps draw random numbers."""
        if self._random is not None and not all(map(torch.equal, self._random, random_states())):
            self._launch["processes"] = world_size()
            if is_main_process():
                write_json(self.folder / LAUNCH_FILE, self._launch)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record that a checkpoint is whole."""
        self.work.reached(state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """End a run whose loss is no number with an error, instead of training on for nothing.

        Raises:
            ConfigError: If such a loss is logged.
        """
        for name in ("loss", "eval_loss"):
            value = (logs or {}).get(name)
            if value is not None and not math.isfinite(float(value)):
                raise diverged(args, state, f"its {name} is {float(value)}")

    def train(self, trainer: RankingEvaluation) -> None:
        """Train to the end, from the newest checkpoint on.

        Every process has its best weights when this returns: otherwise the first would move the folder from which the
        others still read.

        Raises:
            ConfigError: If the weights are no numbers any more.
            ArtefactError: If an input was changed while it was read.
        """
        self.work.inputs_read()
        trainer.add_callback(self)
        replace_printer(trainer)
        trainer.clock = self.work
        set_log_folder(trainer, self.config.output)
        self._keep_launch(trainer)
        self._keep_schedule(trainer.args)
        with self.work.phase("train"):
            try:
                trainer.train(resume_from_checkpoint=self.checkpoint)
            except BrokenScores as error:
                if not trainer.state.global_step:  # so were those that it began with
                    raise
                raise diverged(trainer.args, trainer.state, str(error).rstrip(".")) from None
            finally:
                if isinstance(trainer, StepInParts) and trainer.limit is not None:
                    self.work.log_tokens(trainer.limit.tokens)
            wait_for_everyone()

    def finish(
        self,
        trainer: RankingEvaluation,
        bundle: Bundle,
        counts: dict[str, Any],
        complete: Callable[[Bundle], tuple[Bundle, dict[str, Any]]] | None = None,
    ) -> StageResult:
        """Write the best model (without validation the last) as a checkpoint (first process), and keep the state.

        Args:
            trainer: A trainer that has run.
            bundle: The model with its tokenizer and tables.
            counts: Numbers of the stage's own, for the manifest.
            complete: What is still done with the trained checkpoint before it is written; returns it with further
                counts.
        """
        state, log = trainer.state, trainer.state.log_history
        counts = {**counts, "steps": state.global_step, **({EXTENDED: self.extended} if self.extended else {})}
        if self.splits != ["train"]:
            counts["splits"] = self.splits
        if self.validates:
            entries = (entry for entry in log if entry["step"] == state.best_global_step)
            # A resumed run reads them in this order.
            best = {name: value for entry in entries for name, value in sorted(entry.items()) if name in _BEST}
            counts |= {"best_step": state.best_global_step, "best": best}
        if not is_main_process():
            return _result(self.work.stage.output, counts)
        model = trainer.accelerator.unwrap_model(trainer.model)
        if plain_model(model) is not model:  # its low-rank updates are added to its weights
            model = model.merge_and_unload()
        trained = replace(bundle, model=model)
        if complete is not None:
            with self.work.phase("experts"):
                trained, further = complete(trained)
            counts |= further
        with self.work.finish(
            seed=self.config.seed,
            counts={**counts, **bundle_counts(trained)},
            keep_state=True,
        ) as folder:
            write_model_files(trained, folder)
            if trained.task == NEXT_SID and not isinstance(trained.model, OpensBranches):
                card = model_card(
                    trained, stage=str(self.work.stage.name), settings=self.work.stage.settings, counts=counts
                )
                (folder / CARD_FILE).write_text(card, encoding="utf-8")
            (folder / LOG_FILE).write_text(training_log(log), encoding="utf-8")
        shutil.rmtree(self.work.stage.finished / _ROWS, ignore_errors=True)  # the kept state stays small
        if self.validates:
            figures = ", ".join(f"{name.removeprefix('eval_')} {value:.4f}" for name, value in best.items())
            logger.info("Best step %d of %d: %s.", state.best_global_step, state.global_step, figures)
        return _result(self.work.stage.output, counts)


def training_stage(train: Callable[[C, TrainingRun], StageResult]) -> Callable[[C], StageResult]:
    """The function of a training stage: resumes an unfinished run, does nothing if it is done.

    Whether this launch can go on with what an unfinished run has saved is checked first, by each of its processes. A
    run that is refused before its first checkpoint leaves nothing. The function's result has the path of the best
    checkpoint, by validation NDCG@10 unless settings say otherwise, and it raises:

    - ArtefactError: If an input is missing or does not belong to the others, or has seen the examples held out.
    - ConfigError: If settings contradict each other, the data or the launch, an unfinished run was launched otherwise,
      or DeepSpeed is to compute in bfloat16 without a GPU.

    Args:
        train: Loads, builds, trains and finishes; its settings have local paths.
    """

    def run(config: C) -> StageResult:
        quiet_libraries()
        keep_freed_memory()
        fix_order()
        stage = Stage(config)
        if (manifest := stage.current()) is not None:
            return _result(stage.output, manifest["counts"], up_to_date=True)
        check_trackers(config.report_to)
        batch_of(config)
        check_launcher(config.mixed_bf16)
        stage.check_launch(launch_of_trainer())
        if uses_deepspeed() and config.mixed_bf16 and not torch.cuda.is_available():
            raise ConfigError(
                "mixed_bf16 is true, but DeepSpeed computes in bfloat16 on GPUs alone. Give --mixed_bf16 false --dtype "
                "float32, or launch without DeepSpeed."
            )
        join_for_training()
        with stage.work() as work:
            try:
                run = TrainingRun(stage.config, work)
                if run.validates:
                    _check_unseen(stage)
                return train(stage.config, run)
            except (ArtefactError, ConfigError, DataError):
                if is_main_process() and not any(stage.partial.glob("checkpoint-*")):
                    shutil.rmtree(stage.partial, ignore_errors=True)  # so that other settings are not refused
                raise

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):  # another process finds it by its name
        setattr(run, name, getattr(train, name))
    return run


def load_teacher(
    path: str | Path,
    table: SidTable,
    trie: Trie,
    events: tuple[str, ...] = (),
    context: tuple[RequestFeature, ...] = (),
) -> Teacher:
    """The catalogue model of a checkpoint as a teacher: `soft_targets` of a batch.

    Args:
        path: The checkpoint.
        table: SIDs of the student.
        trie: Trie of these SIDs in the student's tokens.
        events: Events that the student reads, by their numbers in a batch; none if it reads none.
        context: Request features whose codes a batch has; those of the teacher that are not among them are unknown.

    Raises:
        ArtefactError: If it was trained on other SIDs.
        ConfigError: If it holds another kind of model, or reads other events.
    """
    bundle = load_bundle(path, table=table)
    model = bundle.model
    if not isinstance(model, CatalogueModel):
        raise ConfigError(
            f"{path}: holds a {type(model).__name__}, but a teacher is a catalogue model (minionerec train-catalogue)."
        )
    if events and bundle.wording.events and bundle.wording.events != events:
        raise ConfigError(
            f"{path}: reads the events {', '.join(bundle.wording.events)}, but this training's corpus has "
            f"{', '.join(events)}. Train the teacher on the same corpus."
        )
    model.requires_grad_(False)
    columns = [context.index(of) if of in context else len(context) for of in bundle.wording.context]

    def query(batch: Mapping[str, torch.Tensor]) -> SoftTargets:
        codes = batch["contexts"]  # of no feature at all where no example has any
        codes = torch.nn.functional.pad(codes, (0, 1 + len(context) - codes.shape[1]))
        return soft_targets(model, trie, {**batch, "contexts": codes[:, columns]})

    return query


def training_log(history: Sequence[Mapping[str, Any]]) -> str:
    """The trainer's log as JSON text, without entries that differ between two equal runs, such as times."""
    log = [{key: entry[key] for key in entry if not any(word in key for word in _VARYING)} for entry in history]
    log = [entry for entry in log if entry.keys() > {"step", "epoch"}]
    return json.dumps(log, indent=1, sort_keys=True) + "\n"
