"""Supervised fine-tuning: a language model learns to generate semantic IDs (TRL's SFTTrainer, loss on completions)."""

from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.processes import world_size
from minionerec.core.stages import StageResult
from minionerec.data.corpus import Corpus
from minionerec.data.order import SHUFFLED
from minionerec.data.session import warn_without_times
from minionerec.models.backbone.build import (
    check_pretrained,
    load_pretrained,
    resolve_dtype,
    scratch_model,
    train_tokenizer,
)
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.backbone.vocabulary import add_code_tokens, add_session_tokens, initialise_code_rows
from minionerec.models.decoding.architectures import check_length
from minionerec.models.decoding.titles import Titles
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.layers import Dropout
from minionerec.models.prompts.examples import (
    LONGEST_COMPLETION,
    LONGEST_TEXT,
    ExampleBuilder,
    encode_completion,
    special_texts,
)
from minionerec.models.prompts.wording import NEXT_SID, NEXT_TITLE, Wording, load_wording, task_of
from minionerec.sid.table import SidTable
from minionerec.training.config import SftConfig
from minionerec.training.distillation import Teacher, load_teacher, soften
from minionerec.training.examples import TrainingSet, sample_blocks, training_set
from minionerec.training.packing import SetEpoch, TreeCollator, good_row_length, picked_losses
from minionerec.training.rows import SftExamples, tokenise_examples
from minionerec.training.run import TrainingRun, log_truncated, training_stage
from minionerec.training.trainer import (
    RankingEvaluation,
    StepInParts,
    lora_config,
    plain_model,
    show_bias,
)

# Dropout for models that have none, by forward hooks: the checkpoint stays an ordinary one.

BRANCHES = ("self_attn", "mlp")


def add_dropout(model: PreTrainedModel, probability: float) -> int:
    """Apply dropout after the embedding and after every attention and feed-forward block, in training mode only.

    Qwen2 and Llama have no residual dropout of their own; models trained from scratch on small corpora need it
    (Vaswani et al., 2017, section 5.4).

    Args:
        model: Causal language model, hooks are registered on its modules.
        probability: Share of activations set to zero, in [0, 1).

    Returns:
        Number of modules that got dropout.

    Raises:
        ConfigError: If the probability is out of range, or the model has no such modules.
    """
    if not 0 <= probability < 1:
        raise ConfigError(f"dropout {probability} is outside [0, 1).")
    if probability == 0:
        return 0

    dropout = Dropout(probability)  # in training mode, as the modules it follows are only then

    def hook(module: nn.Module, args: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> object:
        if not module.training:
            return None
        if isinstance(output, tuple):
            return (dropout(output[0]), *output[1:])
        return dropout(output)

    modules = [module for name, module in model.named_modules() if name.rsplit(".", 1)[-1] in BRANCHES]
    if len(modules) != len(BRANCHES) * model.config.num_hidden_layers:
        raise ConfigError(
            f"the blocks of {type(model).__name__} have no modules named {' and '.join(BRANCHES)}; set dropout to 0."
        )
    modules.append(model.get_input_embeddings())
    for module in modules:
        module.register_forward_hook(hook)
    return len(modules)


logger = get_logger(__name__)

_VALIDATED_EXAMPLES = 64  # validation examples of a batch, where memory decides how many are computed at a time


class SidSftTrainer(RankingEvaluation, StepInParts, SFTTrainer):
    """TRL's SFT trainer on the packed batches of `TreeCollator`, with ranking of validation examples.

    The loss is TRL's: the sum over labelled tokens, divided by their number in the whole step, over all devices.

    Attributes:
        teacher: Whose soft targets are learned besides the labels; none if None.
        teacher_share: Their share of the loss where there are some.
    """

    teacher: Teacher | None = None
    teacher_share: float = 0.0

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean negative log-likelihood of the labelled tokens, with the head at their positions alone."""
        backbone = plain_model(self.accelerator.unwrap_model(model))
        labels = inputs["labels"][0]
        losses, logits_of = picked_losses(model, backbone, inputs)
        if self.teacher is not None and model.training:
            losses = soften(losses, logits_of, labels, self.teacher(inputs), self.teacher_share)
        loss = (losses * inputs["weights"]).sum()
        if num_items_in_batch is None:
            return loss / len(labels)
        # Gradients are averaged over processes, and the number of items is that of all of them.
        return loss * self.accelerator.num_processes / num_items_in_batch


def scratch_backbone(
    corpus: Corpus,
    table: SidTable,
    wording: Wording,
    *,
    text_vocabulary: int,
    seed: int,
    titles_only: bool = False,
    **shape: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A small model with random weights, and its tokenizer with a token for each code.

    Args:
        corpus: The corpus whose texts the tokenizer is trained on.
        table: SIDs of its items.
        wording: The wording of prompts.
        text_vocabulary: Tokens trained on texts.
        seed: Seed of the weights.
        titles_only: Whether the model reads and writes titles alone.
        **shape: See `minionerec.models.backbone.build.scratch_model`.
    """
    titles = corpus.items["title"].tolist()
    words = [" ".join([*text.prompts, text.completion]) for text in wording.tasks.values()]
    texts = titles if titles_only else [*titles, *corpus.items["description"], *words]
    tokenizer = train_tokenizer(texts, text_vocabulary)
    add_code_tokens(tokenizer, table)
    add_session_tokens(tokenizer, wording.session_context)
    return scratch_model(tokenizer, seed, **shape), tokenizer


def pretrained_backbone(
    name: str, corpus: Corpus, table: SidTable, wording: Wording, *, dtype: str, seed: int, generated: bool = True
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A pretrained model, and its tokenizer, with a token for each code.

    Args:
        name: Hub name or directory.
        corpus: The corpus.
        table: SIDs of its items.
        wording: The wording of prompts.
        dtype: Dtype of the weights, a setting's word.
        seed: Seed of new rows.
        generated: Whether the model generates SIDs (`minionerec.models.backbone.vocabulary.initialise_code_rows`).
    """
    set_seed(seed)  # rows that are neither the model's nor SIDs start at random
    model, tokenizer = load_pretrained(name, resolve_dtype(dtype))
    add_code_tokens(tokenizer, table)
    add_session_tokens(tokenizer, wording.session_context)
    initialise_code_rows(model, tokenizer, table, corpus.items["title"].tolist(), seed, generated)
    return model, tokenizer


def _held_out(bundle: Bundle, builder: ExampleBuilder) -> Dataset:
    """The validation examples, tokenised."""
    examples = builder.build(bundle.task, "valid")
    columns, _ = tokenise_examples(bundle.tokenizer, examples, bundle.max_prompt_length)
    return Dataset.from_dict(columns)


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


def _say_examples(bundle: Bundle, lora_rank: int, examples: TrainingSet, counts: Mapping[str, int]) -> None:
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


@training_stage
def run_sft(config: SftConfig, run: TrainingRun) -> StageResult:
    """Train a checkpoint that generates the SIDs of a corpus."""
    if config.model != "scratch":
        check_pretrained(config.model)
    whole = Corpus.load(config.corpus)
    by_shard = whole.in_files or bool(config.max_tokens)
    whole = whole if by_shard else whole.training_on(run.splits)
    corpus = run.sample_corpus(whole, config.eval_examples) if by_shard else whole
    table = SidTable.load_index(config.sids, corpus.items["item_id"].tolist())
    wording, task = load_wording(config.wording), task_of(config.tasks)
    model: Any
    if config.model == "scratch":
        names = ("text_vocabulary", "seed", "hidden_size", "layers", "heads", "kv_heads", "inner_size", "tied")
        settings: dict[str, Any] = {name: getattr(config, name) for name in names}
        model, tokenizer = scratch_backbone(
            corpus, table, wording, titles_only=list(config.tasks) == [NEXT_TITLE], **settings
        )
        model = model.to(resolve_dtype(config.dtype))
    else:
        if config.dropout:
            logger.warning(
                "dropout is %g, and %s is pretrained: a model that was trained without dropout loses most of what it "
                "knows under it. Set dropout to 0 unless this one was trained with it.",
                config.dropout,
                config.model,
            )
        model, tokenizer = pretrained_backbone(
            config.model, corpus, table, wording, dtype=config.dtype, seed=config.seed, generated=task == NEXT_SID
        )
    builder = ExampleBuilder(corpus, table, wording, special_texts(tokenizer))
    if builder.uses_session_context and not whole.has_times:
        warn_without_times(config.corpus, f"the wording is {wording.name}", "take another wording")
    bundle = Bundle(model, tokenizer, table, wording, config.max_prompt_length, task=task)
    splits = run.splits if by_shard else ["train"]  # those in memory are joined
    maker = SftExamples(
        bundle.tokenizer,
        builder,
        whole,
        config.tasks,
        config.seed,
        splits,
        by_shard=by_shard,
        max_prompt_length=config.max_prompt_length,
        all_positions=config.all_positions,
        variants=config.variants,
        recency=config.recency,
        teacher=bool(config.teacher),
    )
    with run.work.phase("load"):
        examples = training_set(maker, run.rows, config.max_tokens)
    counts = {"tokens": examples.total("tokens"), "losses": examples.total("losses")}
    counts["truncated_prompts"] = examples.total("truncated")
    counts["truncated_completions"] = examples.total("truncated_completions") + sum(
        text.truncated for text in maker.texts.values()
    )
    _say_examples(bundle, config.lora_rank, examples, counts)
    plan = run.plan_steps(len(examples), "rows")
    heldout = _held_out(bundle, builder) if run.validates else None
    args = SFTConfig(
        **run.arguments(plan, config.select_by),
        per_device_train_batch_size=plan.per_device,
        per_device_eval_batch_size=config.device_batch_size or _VALIDATED_EXAMPLES,
        logging_steps=plan.eval_steps,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
    )
    collator = TreeCollator(good_row_length(model), with_teacher=bool(config.teacher))
    trainer = SidSftTrainer(
        model=model,
        args=args,
        data_collator=collator,
        train_dataset=examples.rows,
        eval_dataset=heldout,
        processing_class=tokenizer,
        callbacks=[*run.early_stopping(), SetEpoch(collator)],
        peft_config=lora_config(bundle, config.lora_rank) if config.lora_rank else None,
    )
    shuffled = config.shuffle_examples or (SHUFFLED if by_shard else 0)
    if shuffled:
        trainer.order = sample_blocks(len(examples), shuffled, world_size(), plan.per_device, config.seed)
    trainer.by_process = bool(shuffled)
    show_bias(plain_model(trainer.model))
    add_dropout(plain_model(trainer.model), config.dropout)
    trie, numbers = Trie.build(table.codes, bundle.code_ids), table.sid_numbers
    if task == NEXT_TITLE:
        titles = Titles.of(tokenizer, builder)
        trie, numbers = titles.trie, titles.sid_numbers
    completion = encode_completion(tokenizer, [builder.completion(task, 0)])[0]
    _check_lengths(bundle, examples, max(trie.levels, len(completion)))
    trainer.validation = run.validation_set(bundle, builder, trie, numbers)
    if config.teacher:
        trainer.teacher, trainer.teacher_share = load_teacher(config.teacher, table, trie), config.teacher_share
    trainer.compile_blocks(round(config.epochs * plan.steps_per_epoch))
    if not config.device_batch_size:
        trainer.data_collator = collator.share
        trainer.compute_in_parts(config.gradient_checkpointing)
    run.train(trainer)
    if builder.truncated_texts:
        logger.info(
            "%d titles and descriptions were truncated to %d characters.", builder.truncated_texts, LONGEST_TEXT
        )
    result = run.finish(
        trainer, bundle, {"rows": examples.counts, **counts, "truncated_texts": builder.truncated_texts}
    )
    run.drop_rows()
    return result
