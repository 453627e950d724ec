"""Supervised fine-tuning: the language model learns to speak semantic IDs (TRL's SFTTrainer, completion-only loss)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedTokenizerBase, set_seed
from trl import SFTConfig, SFTTrainer

from minionerec.backbone.build import ScratchShape, load_pretrained, resolve_dtype, scratch_model, train_tokenizer
from minionerec.backbone.bundle import Bundle
from minionerec.backbone.quiet import quiet_libraries
from minionerec.backbone.vocabulary import add_code_tokens, initialise_code_rows
from minionerec.core.artefacts import is_current, read_manifest, require_writable
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger, is_main_process
from minionerec.core.memory import keep_freed_memory
from minionerec.data.corpus import Corpus
from minionerec.data.windows import user_windows
from minionerec.decoding.trie import Trie
from minionerec.prompts.examples import Example, ExampleBuilder, encode_completion, encode_prompt, special_texts
from minionerec.prompts.wording import Wording, load_wording
from minionerec.sid.table import SidTable
from minionerec.training.common import (
    RankingEvaluation,
    TrainingResult,
    choose_examples,
    finish_run,
    plan_steps,
    replace_printer,
    result_settings,
    trainer_arguments,
    validation_set,
    work_folder,
)
from minionerec.training.config import SftConfig
from minionerec.training.lora import lora_config, plain_model
from minionerec.training.memory import estimate_memory, free_memory
from minionerec.training.packing import TreeCollator, good_row_length
from minionerec.training.regularise import add_dropout
from minionerec.training.shared_prefix import picked_hidden_states, tree_mask

logger = get_logger(__name__)

# Random micro-batches whose largest stands for the run's.
_MEASURED_BATCHES = 16


class SidSftTrainer(RankingEvaluation, SFTTrainer):
    """TRL's SFT trainer on the packed batches of `TreeCollator`, which also ranks validation rows at every evaluation.

    The loss is TRL's: the sum over labelled tokens, divided by their number in the whole step, over all devices.
    """

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean negative log-likelihood of the labelled tokens, with the head at their positions alone."""
        backbone = plain_model(self.accelerator.unwrap_model(model))
        labels = inputs["labels"][0]
        with picked_hidden_states(backbone, inputs["places"]):
            logits = model(
                input_ids=inputs["input_ids"],
                position_ids=inputs["position_ids"],
                attention_mask=tree_mask(inputs["ends"], backbone),
                use_cache=False,
            ).logits[0]
        loss = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
        if num_items_in_batch is None:
            return loss / len(labels)
        # Gradients are averaged over processes, and the number of items is that of all of them.
        return loss * self.accelerator.num_processes / num_items_in_batch


def tokenise_examples(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], max_prompt_length: int
) -> dict[str, list[list[int]]]:
    """Token ids, and labels that are -100 at prompt tokens, of examples.

    Returns:
        Columns `input_ids` and `labels`.
    """
    prompts = encode_prompt(tokenizer, [example.prompt for example in examples], max_prompt_length)
    completions = encode_completion(tokenizer, [example.completion for example in examples])
    return {
        "input_ids": [p + c for p, c in zip(prompts, completions, strict=True)],
        "labels": [[-100] * len(p) + c for p, c in zip(prompts, completions, strict=True)],
    }


def check_all_positions(builder: ExampleBuilder) -> None:
    """Check that a history with its target is again a prompt, so that one row can hold a loss at every item.

    Raises:
        ConfigError: If the wording puts anything but the history into the prompt, or marks the end of completions.
    """
    first = builder.prompt("next_sid", history=[])
    item = 0
    grown = first + builder.completion("next_sid", item)
    again = builder.prompt("next_sid", history=[item])
    if grown != again or again + builder.completion("next_sid", item) != builder.prompt(
        "next_sid", history=[item, item]
    ):
        raise ConfigError(
            f"all_positions needs a wording whose prompt is the bare history, but in {builder.wording.name!r} the "
            f"prompt and completion of an item ({grown!r}) are not the next prompt ({again!r}). Use wording compact."
        )


def tokenise_windows(
    tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder, corpus: Corpus
) -> dict[str, list[list[int]]]:
    """User windows as rows with a loss at every target item (`user_windows`).

    Returns:
        Columns `input_ids` and `labels`.
    """
    check_all_positions(builder)
    start = encode_prompt(tokenizer, [builder.prompt("next_sid", history=[])], None)[0]
    items = [tokenizer.convert_tokens_to_ids(list(tokens)) for tokens in builder.table.token_tuples]
    columns: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for window in user_windows(corpus):
        ids, labels = list(start), [-100] * len(start)
        for place, item in enumerate(window.items.tolist()):
            ids += items[item]
            labels += items[item] if place >= window.first_target else [-100] * len(items[item])
        columns["input_ids"].append(ids)
        columns["labels"].append(labels)
    return columns


def training_columns(
    tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder, corpus: Corpus, config: SftConfig
) -> tuple[dict[str, list[list[int]]], dict[str, int]]:
    """The training rows of all tasks by their weights, and the number of rows of each task."""
    columns: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    counts = {}
    for task, weight in config.tasks.items():
        if task == "next_sid" and config.all_positions:
            rows = tokenise_windows(tokenizer, builder, corpus)
        else:
            rows = tokenise_examples(tokenizer, builder.build(task, "train"), config.max_prompt_length)
        chosen = choose_examples(len(rows["input_ids"]), weight, config.seed)
        counts[task] = len(chosen)
        for name, values in rows.items():
            columns[name] += [values[place] for place in chosen]
    return columns, counts


def report_memory(trainer: SidSftTrainer, config: SftConfig) -> None:
    """Log what memory the run will need for each process, and warn where there is less."""
    rng = np.random.default_rng(config.seed)
    dataset: Any = trainer.train_dataset
    count = len(dataset)
    tokens = labels = 0
    for _ in range(_MEASURED_BATCHES):
        rows = rng.choice(count, min(config.device_batch_size, count), replace=False)
        batch = trainer.data_collator([dataset[int(row)] for row in rows])
        tokens, labels = max(tokens, batch["input_ids"].numel()), max(labels, batch["labels"].numel())
    plugin = trainer.args.deepspeed_plugin
    estimate = estimate_memory(
        plain_model(trainer.model),
        tokens=tokens,
        labels=labels,
        mixed_bf16=config.mixed_bf16,
        checkpointing=config.gradient_checkpointing,
        dropout=config.dropout > 0,
        processes=trainer.accelerator.num_processes,
        zero=plugin.deepspeed_config["zero_optimization"] if plugin is not None else None,
    )
    logger.info("A process needs about %s for micro-batches of %s tokens.", estimate, f"{tokens:,}")
    free = free_memory()
    if estimate.total > free:
        logger.warning(
            "That is more than the %.2f GB that are free: lower device_batch_size (%d), or give "
            "--gradient_checkpointing true.",
            free / 1e9,
            config.device_batch_size,
        )


def _backbone(config: SftConfig, corpus: Corpus, table: SidTable, wording: Wording) -> tuple[Any, Any]:
    titles = corpus.items["title"].tolist()
    if config.model == "scratch":
        words = [f"{text.prompt} {text.completion}" for text in wording.tasks.values()]
        tokenizer = train_tokenizer([*titles, *corpus.items["description"], *words], config.text_vocabulary)
        add_code_tokens(tokenizer, table)
        names = ("hidden_size", "layers", "heads", "kv_heads", "inner_size", "text_vocabulary", "tied")
        shape = ScratchShape(**{name: getattr(config, name) for name in names})
        scratch: Any = scratch_model(tokenizer, shape, config.seed)
        return scratch.to(resolve_dtype(config.dtype)), tokenizer
    set_seed(config.seed)  # rows that are neither the model's nor SIDs start at random
    model, pretrained_tokenizer = load_pretrained(config.model, resolve_dtype(config.dtype))
    add_code_tokens(pretrained_tokenizer, table)
    initialise_code_rows(model, pretrained_tokenizer, table, titles, config.seed)
    return model, pretrained_tokenizer


def run_sft(config: SftConfig) -> TrainingResult:
    """Train a checkpoint that speaks the SIDs of a corpus; resumes an unfinished run, does nothing if it is done.

    Args:
        config: Settings.

    Returns:
        Where the checkpoint lies.

    Raises:
        ArtefactError: If an input is missing or does not belong to the others.
        ConfigError: If settings contradict each other or the data.
    """
    inputs = {"corpus": config.corpus, "sids": config.sids}
    read_manifest(config.sids, "sids")
    quiet_libraries()
    keep_freed_memory()
    output = Path(config.output)
    settings = result_settings(config)
    if is_current(output, "checkpoint", settings, inputs):
        logger.info("%s is up to date.", output)
        return TrainingResult(output, read_manifest(output)["counts"], fresh=False)
    if is_main_process():
        require_writable(output)
    corpus = Corpus.load(config.corpus)
    table = SidTable.load_index(config.sids, corpus.items["item_id"].tolist())
    wording = load_wording(config.wording)
    model, tokenizer = _backbone(config, corpus, table, wording)
    builder = ExampleBuilder(corpus, table, wording, special_texts(tokenizer))
    bundle = Bundle(model, tokenizer, table, wording, config.max_prompt_length)
    trie = Trie.build(table.codes, bundle.code_ids)
    columns, task_counts = training_columns(tokenizer, builder, corpus, config)
    heldout = tokenise_examples(tokenizer, builder.build("next_sid", "valid"), config.max_prompt_length)

    count = len(columns["input_ids"])
    tokens = sum(map(len, columns["input_ids"]))
    losses = sum(sum(label >= 0 for label in row) for row in columns["labels"])
    logger.info(
        "Training %s parameters on %s rows (%s), %s tokens of which %s have a loss.",
        f"{model.num_parameters():,}",
        f"{count:,}",
        ", ".join(f"{task} {rows:,}" for task, rows in task_counts.items()),
        f"{tokens:,}",
        f"{losses:,}",
    )
    names = "batch_size and device_batch_size"
    plan = plan_steps(config, count, config.batch_size, config.device_batch_size, names, "rows")
    args = SFTConfig(
        **trainer_arguments(config, plan, config.select_by),
        per_device_train_batch_size=config.device_batch_size,
        per_device_eval_batch_size=config.device_batch_size,
        logging_steps=plan.eval_steps,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
    )
    with work_folder(config, inputs, args.should_save) as checkpoint:
        trainer = SidSftTrainer(
            model=model,
            args=args,
            data_collator=TreeCollator(good_row_length(model)),
            train_dataset=Dataset.from_dict(columns),
            eval_dataset=Dataset.from_dict(heldout),
            processing_class=tokenizer,
            callbacks=[EarlyStoppingCallback(config.patience)] if config.patience else [],
            peft_config=lora_config(bundle, config.lora_rank) if config.lora_rank else None,
        )
        add_dropout(plain_model(trainer.model), config.dropout)
        report_memory(trainer, config)
        trainer.validation = validation_set(
            tokenizer,
            builder,
            trie,
            table.sid_numbers,
            rows=config.eval_rows,
            num_beams=config.eval_beams,
            max_prompt_length=config.max_prompt_length,
            seed=config.seed,
        )
        replace_printer(trainer)
        trainer.train(resume_from_checkpoint=checkpoint)
        return finish_run(
            trainer, bundle, config, settings, inputs, {"rows": task_counts, "tokens": tokens, "losses": losses}
        )
