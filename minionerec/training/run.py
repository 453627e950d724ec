"""The frame of every training stage: up to date or not, where it works, where it goes on from, how it ends.

def run_x(config: XConfig) -> TrainingResult:
    return run_training(config, _train)

def _train(config: XConfig, run: TrainingRun) -> TrainingResult:
    ...                                                         # load
    args = XArguments(**run.arguments(plan, "ndcg"))
    trainer = XTrainer(...)                                     # build
    run.train(trainer)                                          # train, from the newest checkpoint on
    return run.finish(trainer, bundle, counts)                  # finish: all or nothing
"""

import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from transformers import TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_callback import TrainerState

from minionerec.core.artefacts import read_json
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.core.machine import keep_freed_memory
from minionerec.core.processes import (
    is_main_process,
    join_for_training,
    trainer_processes,
    uses_deepspeed,
    wait_for_everyone,
    world_size,
)
from minionerec.core.stage import Stage, Work
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitRows
from minionerec.data.stored import StoredCorpus
from minionerec.data.stored_windows import sampled_rows
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.backbone.quiet import quiet_libraries
from minionerec.models.decoding.branches import BrokenScores
from minionerec.models.nn.order import fix_order
from minionerec.training.config import LanguageRunConfig, RunConfig
from minionerec.training.finish import TrainingResult, finish_refit, finish_run
from minionerec.training.plan import StepPlan
from minionerec.training.precision import check_deepspeed_precision
from minionerec.training.refit import Refit, StopAt, plan_refit, without_validation
from minionerec.training.trackers import check_trackers, place_logs, tracker_arguments
from minionerec.training.trainer import RankingEvaluation, StopWhereDiverged, diverged, early_stopping, replace_printer

# Trainers' checkpoints: which of them a kill left whole.


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
    processes = world_size()
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
        whole = isinstance(read_json(checkpoint / "trainer_state.json"), dict)  # is written last
    except ArtefactError:
        whole = False
    return None if whole else "trainer_state.json is missing or cut off"


def _is_whole_safetensors(path: Path) -> bool:
    """Whether the library takes a file's header, and the file is as long as that says."""
    with path.open("rb"):  # one that may not be read is not taken for one that is cut off
        pass
    try:
        with safe_open(path, framework="numpy"):
            return True
    except (SafetensorError, OSError, ValueError):
        return False


# Locks that a killed build of an extension left behind: whoever needs the extension would wait for ever.

_OLD = 600  # seconds, longer than DeepSpeed takes for an extension


def check_builds() -> None:
    """Check that DeepSpeed will not wait for a build that nobody is at work on.

    Torch builds extensions on first use, under a lock that is a mere file (torch.utils.file_baton). Its builder holds
    the file open; where none of the processes that can be looked at does, and it is older than ten minutes, the builder
    was killed.

    Raises:
        ConfigError: Naming the lock.
    """
    for lock in _locks():
        try:
            age = time.time() - lock.stat().st_mtime
        except OSError:  # was just released
            continue
        if age > _OLD and not _is_held(lock):
            raise ConfigError(
                f"{lock}: is {age / 60:.0f} minutes old and no living process holds it, so DeepSpeed would wait for "
                "ever for a build that was killed. Remove the file."
            )


def _locks() -> Iterator[Path]:
    """The locks of the builds that this process could wait for."""
    import torch
    from torch.utils.cpp_extension import get_default_build_root

    told = os.environ.get("TORCH_EXTENSIONS_DIR")
    if told is not None:
        yield from sorted(Path(told).glob("*/lock"))
        return
    version = torch.version.hip or torch.version.cuda
    kind = ("rocm" if torch.version.hip else "cu") + version.replace(".", "") if version else "cpu"
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    yield from sorted(Path(get_default_build_root()).glob(f"{python}*_{kind}/*/lock"))


def _is_held(lock: Path) -> bool:
    """Whether a process that can be looked at has the file open; where the system shows none, nobody has."""
    wanted = str(lock.resolve())
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(link) == wanted for link in folder.iterdir()):
                return True
        except OSError:  # another user's, or it has just ended
            continue
    return False


# What all trainers are told alike.


def trainer_arguments(config: RunConfig, plan: StepPlan, select_by: str, folder: Path) -> dict[str, Any]:
    """Arguments of every trainer: optimisation, validation, the best checkpoint, seeds, quiet.

    Args:
        config: The stage's settings.
        plan: The arithmetic of batches.
        select_by: Best checkpoint: lowest "loss" or highest "ndcg".
        folder: Where the trainer keeps its checkpoints.
    """
    return {
        "output_dir": str(folder),
        "num_train_epochs": config.epochs,
        "gradient_accumulation_steps": plan.accumulation,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": {"constant": "constant_with_warmup"}.get(config.schedule, config.schedule),
        "warmup_steps": config.warmup,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "bf16": config.mixed_bf16,
        **trainer_processes(),
        "activation_checkpointing": isinstance(config, LanguageRunConfig) and config.gradient_checkpointing,
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
        "logging_nan_inf_filter": False,  # it would write the mean of earlier losses for one that is no number
        **tracker_arguments(config),
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


C = TypeVar("C", bound=RunConfig)
logger = get_logger(__name__)
_ROWS = "rows"


class _Reached(TrainerCallback):
    """Tells the stage at work of every checkpoint."""

    def __init__(self, work: Work):
        self.work = work

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A checkpoint is whole."""
        self.work.reached(state.global_step)


class TrainingRun:
    """A training stage at work.

    Args:
        config: The stage's settings.
        work: What the stage works with.
        refit: How long to train on all rows; None for a run that validates.
    """

    def __init__(self, config: RunConfig, work: Work, refit: Refit | None = None):
        self.config, self.work, self.refit = config, work, refit

    @property
    def inputs(self) -> Mapping[str, Path]:
        """Name to path of everything that the stage reads."""
        return self.work.stage.inputs

    @property
    def folder(self) -> Path:
        """Where the trainer keeps its checkpoints; every process of a launch must ask for it."""
        return self.work.folder

    @property
    def rows(self) -> Path:
        """Where rows that are streamed lie."""
        return self.folder / _ROWS

    def drop_rows(self) -> None:
        """Remove the rows that were streamed from what is kept of a finished run, which is to be small."""
        if is_main_process():
            shutil.rmtree(self.work.stage.finished / _ROWS, ignore_errors=True)

    @cached_property
    def checkpoint(self) -> str | None:
        """The newest whole checkpoint of an unfinished run, to go on from; None to begin."""
        found = newest_whole_checkpoint(self.folder)
        if found is not None:
            logger.info("Going on from %s.", found)
        self.work.reached(0 if found is None else int(found.rpartition("-")[2]))
        return found

    def load_corpus(self) -> Corpus:
        """The corpus; of a refit with all rows as training rows."""
        corpus = Corpus.load(self.inputs["corpus"])
        return corpus if self.refit is None else corpus.with_every_row()

    def sample_corpus(self, stored: StoredCorpus, eval_rows: int) -> Corpus:
        """The items of a corpus on disk, a sample of its validation rows, and no training row; of a refit no row."""
        sample = SplitRows.none()
        if self.refit is None:
            sample = sampled_rows(stored, "valid", eval_rows, self.config.seed)
        return replace(stored.without_rows(), valid=sample)

    def arguments(self, plan: StepPlan, select_by: str) -> dict[str, Any]:
        """What the trainer is told (`trainer_arguments`); of a refit without validation."""
        self.work.tell_batch(plan.per_device, plan.accumulation, plan.total)
        found = trainer_arguments(self.config, plan, select_by, self.folder)
        return found if self.refit is None else without_validation(found)

    def callbacks(self, plan: StepPlan) -> list[TrainerCallback]:
        """What ends the run before its last step: early stopping, or the number of steps of a refit."""
        return early_stopping(self.config) if self.refit is None else [StopAt(self.refit.steps(plan.steps_per_epoch))]

    def train(self, trainer: RankingEvaluation) -> None:
        """Train to the end, from the newest checkpoint on.

        Every process has its best weights when this returns: the first would otherwise lay the folder aside in which
        the others still read.

        Raises:
            ConfigError: If the weights are no numbers any more.
        """
        trainer.add_callback(StopWhereDiverged())
        replace_printer(trainer)
        trainer.clock = self.work
        trainer.add_callback(_Reached(self.work))
        place_logs(trainer.callback_handler.callbacks, self.config)
        with self.work.phase("train"):
            try:
                trainer.train(resume_from_checkpoint=self.checkpoint)
            except BrokenScores as error:
                if not trainer.state.global_step:  # so were those that it began with
                    raise
                raise diverged(trainer.args, trainer.state, str(error).rstrip(".")) from None
            wait_for_everyone()

    def finish(self, trainer: RankingEvaluation, bundle: Bundle, counts: dict[str, Any]) -> TrainingResult:
        """Write the best model, see `finish_run`; of a refit the last one, see `finish_refit`."""
        if self.refit is not None:
            return finish_refit(trainer, bundle, self.config, self.work, counts)
        return finish_run(trainer, bundle, self.config, self.work, counts)


def run_training(config: C, train: Callable[[C, TrainingRun], TrainingResult]) -> TrainingResult:
    """Run a training stage: it goes on where an unfinished run was, and does nothing if it is done.

    Args:
        config: The stage's settings.
        train: Loads, builds, trains and finishes.

    Raises:
        ArtefactError: If an input is missing or does not belong to the others, or has seen the rows held out.
        ConfigError: If settings contradict each other or the data, DeepSpeed would wait for a build that was killed, or
            is to compute in bfloat16 without a GPU.
    """
    quiet_libraries()
    keep_freed_memory()
    fix_order()
    stage = Stage(config)
    if (manifest := stage.current()) is not None:
        return TrainingResult(stage.output, manifest["counts"], fresh=False)
    check_trackers(config.report_to)
    if uses_deepspeed():
        check_deepspeed_precision(config)
        check_builds()
    refit = plan_refit(config, stage.inputs)
    join_for_training()
    with stage.work() as work:
        return train(config, TrainingRun(config, work, refit))
