"""How a training stage ends: the best weights as a checkpoint, with what was measured."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minionerec.core.log import get_logger
from minionerec.core.processes import is_main_process
from minionerec.core.stage import Work
from minionerec.models.backbone.bundle import Bundle, bundle_counts, load_bundle, write_model_files
from minionerec.models.backbone.card import CARD_FILE, model_card
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.backbone.tiger import TigerModel
from minionerec.models.prompts.wording import NEXT_SID
from minionerec.training.config import RunConfig
from minionerec.training.lora import merged_model
from minionerec.training.refit import LOG_FILE
from minionerec.training.trainer import RankingEvaluation, training_log

logger = get_logger(__name__)

_BEST = ("eval_loss", "eval_ndcg@10", "eval_hr@10", "eval_hr@1")


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

    def lines(self) -> list[str]:
        """Where the checkpoint lies, and of a refit what it is for."""
        said = ["trained on all rows: for service, and not to be measured"] if self.counts.get("refit") else []
        return [*said, f"checkpoint: {self.output}"]


def keep_start_if_better(trainer: RankingEvaluation, checkpoint: str | Path) -> None:
    """Go back to the starting weights where no later validation beat the one before the first step.

    Args:
        trainer: A trainer that has run, with a validation before its first step (`eval_on_start`).
        checkpoint: What it began with.
    """
    state = trainer.state
    start = next(row["eval_ndcg@10"] for row in state.log_history if row["step"] == 0 and "eval_ndcg@10" in row)
    if state.best_metric is None or start >= state.best_metric:
        logger.warning(
            "Training did not improve validation NDCG@10 (%.4f before, %s at best after): the output holds the weights "
            "of %s. Try a lower learning rate, a higher beta, or another reward or other negatives.",
            start,
            state.best_metric,
            checkpoint,
        )
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.load_state_dict(load_bundle(checkpoint, dtype=model.dtype).model.state_dict())
        state.best_global_step, state.best_metric = 0, start


def finish_run(
    trainer: RankingEvaluation, bundle: Bundle, config: RunConfig, work: Work, counts: dict[str, Any]
) -> TrainingResult:
    """Write the best model as a checkpoint artefact (first process) and lay the work folder aside.

    Args:
        trainer: A trainer that has run.
        bundle: What belongs to the model.
        config: The stage's settings.
        work: The stage at work.
        counts: Numbers of the stage's own, for the manifest.
    """
    state = trainer.state
    best = {
        key: value
        for row in state.log_history
        if row["step"] == state.best_global_step
        for key, value in sorted(row.items())  # a resumed run reads them in this order
        if key in _BEST
    }
    counts = {**counts, "steps": state.global_step, "best_step": state.best_global_step, "best": best}
    if is_main_process():
        _write(trainer, bundle, config, work, counts, keep_state=config.keep_state)
        logger.info("Best step %s of %d: %s", state.best_global_step, state.global_step, best)
    return TrainingResult(work.stage.output, counts, fresh=True)


def finish_refit(
    trainer: RankingEvaluation, bundle: Bundle, config: RunConfig, work: Work, counts: dict[str, Any]
) -> TrainingResult:
    """Write the last weights of a run that trained on all rows; the arguments are those of `finish_run`."""
    state = trainer.state
    counts = {**counts, "steps": state.global_step, "epochs": state.epoch, "refit": True}
    if is_main_process():
        _write(trainer, bundle, config, work, counts, keep_state=False)
        logger.info("Trained on all rows for %d steps, %.2f epochs.", state.global_step, state.epoch or 0)
    return TrainingResult(work.stage.output, counts, fresh=True)


def _write(
    trainer: RankingEvaluation, bundle: Bundle, config: RunConfig, work: Work, counts: dict[str, Any], keep_state: bool
) -> None:
    """Write the trainer's weights as a checkpoint artefact."""
    trained = replace(bundle, model=merged_model(trainer.accelerator.unwrap_model(trainer.model)))
    every = {**counts, **bundle_counts(trained)}
    with work.finish(seed=config.seed, counts=every, keep_state=keep_state) as place:
        write_model_files(trained, place)
        if trained.task == NEXT_SID and not isinstance(trained.model, CatalogueModel | TigerModel):
            card = model_card(trained, stage=str(work.stage.name), settings=config.deciding(), counts=counts)
            (place / CARD_FILE).write_text(card, encoding="utf-8")
        (place / LOG_FILE).write_text(training_log(trainer.state.log_history), encoding="utf-8")
