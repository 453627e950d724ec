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

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_callback import TrainerState

from minionerec.backbone.bundle import Bundle
from minionerec.backbone.quiet import quiet_libraries
from minionerec.core.log import get_logger
from minionerec.core.memory import keep_freed_memory
from minionerec.core.processes import is_main_process, join_for_training, uses_deepspeed, wait_for_everyone
from minionerec.core.stage import Stage, Work
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitRows
from minionerec.data.stored import StoredCorpus
from minionerec.data.stored_windows import sampled_rows
from minionerec.decoding.branches import BrokenScores
from minionerec.nn.order import fix_order
from minionerec.training.arguments import trainer_arguments
from minionerec.training.builds import check_builds
from minionerec.training.checkpoints import newest_whole_checkpoint
from minionerec.training.config import RunConfig
from minionerec.training.finish import TrainingResult, finish_refit, finish_run
from minionerec.training.plan import StepPlan
from minionerec.training.precision import check_deepspeed_precision
from minionerec.training.refit import Refit, StopAt, plan_refit, without_validation
from minionerec.training.trackers import check_trackers, place_logs
from minionerec.training.trainer import RankingEvaluation, StopWhereDiverged, diverged, early_stopping, replace_printer

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
