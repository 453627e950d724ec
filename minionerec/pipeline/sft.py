"""The stage of supervised fine-tuning: a language model learns to generate semantic IDs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from datasets import Dataset
from trl.trainer.sft_config import SFTConfig

from minionerec.core.log import get_logger
from minionerec.data.contexts import chosen_features
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.build import check_pretrained, resolve_dtype
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.decoding.architectures import check_length
from minionerec.models.decoding.titles import Titles
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import (
    LONGEST_COMPLETION,
    LONGEST_TEXT,
    ExampleBuilder,
    encode_completion,
    special_texts,
)
from minionerec.models.prompts.wording import NEXT_SID, NEXT_TITLE, Wording, load_wording, task_of
from minionerec.pipeline.config.training import SftConfig
from minionerec.pipeline.stages import StageResult
from minionerec.pipeline.training_run import StepPlan, TrainingRun, load_teacher, log_truncated, training_stage
from minionerec.recommend.rankers.expert_fit import with_experts
from minionerec.sid.table import SidTable
from minionerec.training.examples import TrainingSet, training_set
from minionerec.training.packing import SetEpoch, TreeCollator, good_row_length
from minionerec.training.rows import SftExamples, tokenise_examples
from minionerec.training.sft import (
    SidSftTrainer,
    add_dropout,
    lora_config,
    pretrained_backbone,
    scratch_backbone,
    show_bias,
)
from minionerec.training.trainer import plain_model

logger = get_logger(__name__)

_VALIDATED_EXAMPLES = 64  # validation examples of a batch, where memory decides how many are computed at a time


def _check_lengths(bundle: Bundle, examples: TrainingSet, longest_completion: int) -> None:
    """Check that the model has a position for each token of a request and of an example.

    Raises:
        ConfigError: If it has not.
    """
    limit = bundle.max_prompt_length
    instead = f"Lower max_prompt_length (it is {limit:,}) by {{:,}}."
    check_length(bundle.model.config, limit + longest_completion, instead)
    trained = examples.longest("input_ids") + examples.longest("prompts")  # each may begin with the longest prompt
    instead = "Make them {:,} tokens shorter: lower max_prompt_length, or max_history of the corpus with all_positions."
    check_length(bundle.model.config, trained, instead)


def _load_model(config: SftConfig, corpus: Corpus, table: SidTable, wording: Wording, generates_sids: bool) -> Any:
    """The language model that is trained, and its tokenizer: a pretrained one, or one with random weights."""
    if config.model == "scratch":
        names = ("text_vocabulary", "seed", "hidden_size", "layers", "heads", "kv_heads", "inner_size")
        shape: dict[str, Any] = {name: getattr(config, name) for name in names}
        titles_only = list(config.tasks) == [NEXT_TITLE]
        model: Any
        model, tokenizer = scratch_backbone(corpus, table, wording, titles_only=titles_only, **shape)
        return model.to(resolve_dtype(config.dtype)), tokenizer
    if config.dropout:
        logger.warning(
            "dropout is %g, and %s is pretrained: a model that was trained without dropout loses most of what it "
            "knows under it. Set dropout to 0 unless this one was trained with it.",
            config.dropout,
            config.model,
        )
    return pretrained_backbone(
        config.model, corpus, table, wording, dtype=config.dtype, seed=config.seed, generated=generates_sids
    )


def _log_examples(bundle: Bundle, lora_rank: int, examples: TrainingSet, counts: Mapping[str, int]) -> None:
    logger.info(
        "Training %s%s parameters on %s, %s tokens of which %s have a loss.",
        f"adapters of rank {lora_rank} beside " if lora_rank else "",
        f"{bundle.model.num_parameters():,}",
        examples.described("examples"),
        f"{counts['tokens']:,}",
        f"{counts['losses']:,}",
    )
    log_truncated(counts["truncated_prompts"])
    if counts["truncated_completions"]:
        logger.info(
            "%s completions were too long and were truncated to their first %d tokens.",
            f"{counts['truncated_completions']:,}",
            LONGEST_COMPLETION,
        )


def _make_trainer(
    config: SftConfig, run: TrainingRun, bundle: Bundle, builder: ExampleBuilder, examples: TrainingSet, plan: StepPlan
) -> SidSftTrainer:
    """The trainer, with its order of examples, validation sets and teacher."""
    heldout = None
    if run.validates:
        held_out = builder.build(bundle.task, "valid")
        heldout = Dataset.from_dict(tokenise_examples(bundle.tokenizer, held_out, bundle.max_prompt_length)[0])
    args = SFTConfig(
        **run.arguments(plan, config.select_by),
        weight_decay=config.weight_decay,
        per_device_train_batch_size=plan.per_device,
        per_device_eval_batch_size=config.device_batch_size or _VALIDATED_EXAMPLES,
        logging_steps=plan.eval_steps,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
    )
    collator = TreeCollator(good_row_length(bundle.model), with_teacher=bool(config.teacher))
    trainer = SidSftTrainer(
        model=bundle.model,
        args=args,
        data_collator=collator,
        train_dataset=examples.rows,
        eval_dataset=heldout,
        processing_class=bundle.tokenizer,
        callbacks=[*run.early_stopping(), SetEpoch(collator)],
        peft_config=lora_config(bundle, config.lora_rank) if config.lora_rank else None,
    )
    trainer.order = run.block_order(len(examples), plan)
    trainer.by_process = trainer.order is not None
    show_bias(plain_model(trainer.model))
    add_dropout(plain_model(trainer.model), config.dropout)
    table = bundle.table
    trie, numbers = Trie.build(table.codes, bundle.code_ids), table.sid_numbers
    if bundle.task == NEXT_TITLE:
        titles = Titles.of(bundle.tokenizer, builder)
        trie, numbers = titles.trie, titles.sid_numbers
    completion = encode_completion(bundle.tokenizer, [builder.completion(bundle.task, 0)])[0]
    _check_lengths(bundle, examples, max(trie.levels, len(completion)))
    trainer.validation = run.validation_set(bundle, builder, trie, numbers)
    if config.teacher:
        trainer.teacher = load_teacher(config.teacher, table, trie, bundle.wording.events, bundle.wording.context)
        trainer.teacher_share = config.teacher_share
    trainer.compile_blocks(round(config.epochs * plan.steps_per_epoch))
    if not config.device_batch_size:
        trainer.data_collator = collator.share
        trainer.compute_in_parts(config.gradient_checkpointing)
    return trainer


@training_stage
def run_sft(config: SftConfig, run: TrainingRun) -> StageResult:
    """Train a checkpoint that generates the SIDs of a corpus."""
    if config.model != "scratch":
        check_pretrained(config.model)
    corpus = run.load_corpus()
    table = SidTable.load_index(config.sids, corpus.items["item_id"].tolist())
    task = task_of(config.tasks)
    wording = replace(load_wording(config.wording), context=chosen_features(corpus, config.context))
    if task == NEXT_SID:
        wording = replace(wording, events=tuple(corpus.event_names))
    model, tokenizer = _load_model(config, corpus, table, wording, generates_sids=task == NEXT_SID)
    builder = ExampleBuilder(corpus, table, wording, special_texts(tokenizer))
    bundle = Bundle(model, tokenizer, table, wording, config.max_prompt_length, task=task)
    maker = SftExamples(
        bundle.tokenizer,
        builder,
        corpus,
        config.tasks,
        config.seed,
        max_prompt_length=config.max_prompt_length,
        all_positions=config.all_positions,
        variants=config.variants,
        max_tokens=config.max_tokens,
        recency=config.recency,
        teacher=bool(config.teacher),
    )
    with run.work.phase("load"):
        examples = training_set(maker, run.rows)
    counts: dict[str, Any] = {
        "tokens": examples.total("tokens"),
        "losses": examples.total("losses"),
        "truncated_prompts": examples.total("truncated"),
        "truncated_completions": examples.total("truncated_completions")
        + sum(text.truncated for text in maker.texts.values()),
    }
    _log_examples(bundle, config.lora_rank, examples, counts)
    trainer = _make_trainer(config, run, bundle, builder, examples, run.plan_steps(len(examples), "rows"))
    run.train(trainer)
    if builder.truncated_texts:
        logger.info(
            "%d titles and descriptions were truncated to %d characters.", builder.truncated_texts, LONGEST_TEXT
        )
    counts |= {"rows": examples.counts, "truncated_texts": builder.truncated_texts}
    complete = None
    if config.experts and run.validates:
        complete = partial(with_experts, corpus=corpus, seed=config.seed)
    elif config.experts:
        logger.warning(
            "Experts are left out: the examples that their weights would be fitted on were trained on. Give --splits "
            "train."
        )
    return run.finish(trainer, bundle, counts, complete)
