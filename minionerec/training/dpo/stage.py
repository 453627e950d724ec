"""The stage: load a checkpoint, find what targets are to be preferred to, train, and keep the best weights."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from transformers import TrainingArguments

from minionerec.backbone.build import resolve_dtype
from minionerec.backbone.bundle import Bundle, check_decoder_alone, load_bundle
from minionerec.backbone.catalogue import CatalogueModel
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.places import find_path
from minionerec.data.corpus import Corpus
from minionerec.decoding.decoder import decode_prompts, decoding_device
from minionerec.decoding.trie import Trie
from minionerec.prompts.examples import ExampleBuilder, special_texts
from minionerec.training.dpo import negatives as sources
from minionerec.training.dpo.config import DpoConfig
from minionerec.training.dpo.negatives import NegativesOf
from minionerec.training.dpo.trainer import SidDpoTrainer
from minionerec.training.finish import TrainingResult, keep_start_if_better
from minionerec.training.grpo.rows import PromptRows, grpo_rows
from minionerec.training.plan import plan_steps
from minionerec.training.precision import warn_of_rounding
from minionerec.training.run import TrainingRun, run_training
from minionerec.training.trainer import early_stopping
from minionerec.training.validation import validation_set

logger = get_logger(__name__)

_PROMPTS_AT_ONCE = 64  # prompts searched at a time


def run_dpo(config: DpoConfig) -> TrainingResult:
    """Sharpen a checkpoint by S-DPO; resumes an unfinished run, does nothing if it is done.

    Args:
        config: Settings.

    Returns:
        Where the best checkpoint (by validation NDCG@10) lies; never below the start.

    Raises:
        ArtefactError: If an input is missing or does not belong to the others.
        ConfigError: If settings contradict each other or the data.
        MinioneRecError: If the first loss is not that of a policy that equals its reference.
    """
    return run_training(config, _train)


def _train(config: DpoConfig, run: TrainingRun) -> TrainingResult:
    bundle = load_start(config)
    corpus = Corpus.load(find_path(config.corpus))
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    prompts = grpo_rows(builder, bundle.tokenizer, config, bundle.max_prompt_length)
    logger.info(
        "S-DPO on %s prompts (%s), %d filled up; %d negatives each (%s), beta %g.",
        f"{sum(prompts.counts.values()):,}",
        ", ".join(f"{task} {count:,}" for task, count in prompts.counts.items()),
        prompts.filled_up,
        config.negatives,
        config.negatives_from,
        config.beta,
    )
    if prompts.cut:
        logger.info("%s prompts were too long and were cut to their last tokens.", f"{prompts.cut:,}")
    trainer = _trainer(config, run, bundle, builder, prompts)
    warn_of_rounding(trainer, config)
    run.train(trainer)
    keep_start_if_better(trainer, config.checkpoint)
    return run.finish(trainer, bundle, {"rows": prompts.counts, "cut_prompts": prompts.cut})


def load_start(config: DpoConfig) -> Bundle:
    """The checkpoint to sharpen.

    Raises:
        ConfigError: If it is a catalogue model, or has too few SIDs for so many negatives.
    """
    bundle = load_bundle(find_path(config.checkpoint), dtype=resolve_dtype(config.dtype))
    check_decoder_alone(bundle)
    if isinstance(bundle.model, CatalogueModel):
        raise ConfigError(
            f"{config.checkpoint}: is a catalogue model, whose softmax already compares a target with the whole "
            "catalogue. Sharpen it with minionerec train-catalogue --objective expected or grpo."
        )
    if bundle.table.n_unique <= config.negatives:
        raise ConfigError(
            f"negatives is {config.negatives}, but the catalogue has {bundle.table.n_unique} distinct SIDs; ask for "
            f"{bundle.table.n_unique - 1} at most."
        )
    return bundle


def _trainer(
    config: DpoConfig, run: TrainingRun, bundle: Bundle, builder: ExampleBuilder, prompts: PromptRows
) -> SidDpoTrainer:
    """The trainer with everything that a step needs."""
    table, vocabulary = bundle.table, bundle.tokenizer.get_vocab()
    names = "prompts_per_step and prompts_per_device"
    plan = plan_steps(config, len(prompts.rows), config.prompts_per_step, config.prompts_per_device, names, "prompts")
    args = TrainingArguments(
        **run.arguments(plan, "ndcg"),
        per_device_train_batch_size=config.prompts_per_device,
        per_device_eval_batch_size=config.prompts_per_device,
        logging_steps=max(1, plan.eval_steps // 10),
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        eval_on_start=run.checkpoint is None,
    )
    trie = Trie.build(table.codes, bundle.code_ids)
    with run.work.phase("negatives"):
        negatives = negatives_of(config, run, bundle, builder.corpus, prompts, trie)
    tokens = dict(zip(table.sid_numbers.tolist(), table.token_tuples, strict=True))
    return SidDpoTrainer(
        bundle.model,
        args,
        prompts.rows,
        bundle.tokenizer,
        reference=copy.deepcopy(bundle.model),
        negatives=negatives,
        beta=config.beta,
        sid_tokens=[[vocabulary[token] for token in tokens[number]] for number in range(table.n_unique)],
        steps_per_epoch=plan.steps_per_epoch,
        validation=validation_set(config, bundle, builder, trie),
        callbacks=early_stopping(config),
    )


def negatives_of(
    config: DpoConfig, run: TrainingRun, bundle: Bundle, corpus: Corpus, prompts: PromptRows, trie: Trie
) -> NegativesOf:
    """What the rows' targets are to be preferred to, by the setting `negatives_from`."""
    targets = np.array([row["target"] for row in prompts.rows])
    if config.negatives_from == "beam":
        model: Any = bundle.model
        search = partial(_search, model.to(decoding_device()), trie)
        return sources.beams([row["prompt"] for row in prompts.rows], targets, config.negatives, search, run.folder)
    weights = np.ones(bundle.table.n_unique)
    if config.negatives_from == "popularity":
        chosen = bundle.table.sid_numbers[corpus.rows("train").targets]
        weights += np.bincount(chosen, minlength=len(weights))
    return sources.drawn(targets, weights, config.negatives, config.seed)


def _search(model: Any, trie: Trie, prompts: Sequence[Sequence[int]], width: int) -> np.ndarray:
    found, _ = decode_prompts(
        model, prompts, trie, width, batch_size=_PROMPTS_AT_ONCE, description="searching negatives"
    )
    return found
