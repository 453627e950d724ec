"""The stage that trains a TIGER: likelihood of the target's codes, the best checkpoint by validation NDCG@10."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments
from transformers.optimization import Adafactor

from minionerec.contrib.generative_baselines.config import TigerTrainConfig
from minionerec.contrib.generative_baselines.tiger import TIGER_WORDING, build_tiger, sid_tokenizer
from minionerec.core.log import get_logger
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.layers import length_groups, replace_dropout
from minionerec.models.prompts.examples import ExampleBuilder, encode_completion, encode_prompt, special_texts
from minionerec.pipeline.stages import StageResult
from minionerec.pipeline.training_run import TrainingRun, log_truncated, training_stage
from minionerec.sid.table import SidTable
from minionerec.training.memory import collate_shares
from minionerec.training.trainer import RankingEvaluation, StepInParts

logger = get_logger(__name__)


ExampleColumns = dict[str, list[Any]]


def distinct_examples(
    builder: ExampleBuilder, tokenizer: PreTrainedTokenizerBase, split: str, max_prompt_length: int
) -> tuple[ExampleColumns, int]:
    """Token ids of the distinct examples of a split, in order of first occurrence.

    Weights are proportional to the number of occurrences, with mean 1.

    Returns:
        `input_ids` and `labels`, token ids of prompts and of targets, and `weights`, a float per example; and the
        number of truncated prompts.
    """
    examples = builder.build("next_sid", split)
    prompts, truncated = encode_prompt(tokenizer, [example.prompt for example in examples], max_prompt_length)
    targets = encode_completion(tokenizer, [example.completion for example in examples])
    times = Counter(zip(map(tuple, prompts), map(tuple, targets), strict=True))
    mean = len(examples) / len(times)
    return {
        "input_ids": [list(prompt) for prompt, _ in times],
        "labels": [list(target) for _, target in times],
        "weights": [count / mean for count in times.values()],
    }, truncated


def collate(examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """Collate examples into a batch, each column padded to its longest.

    Returns:
        `input_ids` int64 (B, T), padded with 0 on the right; `labels` int64 (B, L), padded with -100; `weights`
        float32 (B,).
    """
    padded = {
        name: torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(example[name]) for example in examples], batch_first=True, padding_value=filler
        )
        for name, filler in (("input_ids", 0), ("labels", -100))
    }
    return {**padded, "weights": torch.tensor([example["weights"] for example in examples], dtype=torch.float32)}


class TigerTrainer(RankingEvaluation, StepInParts, Trainer):
    """The trainer of transformers on the batches of `collate`, with validation by ranking."""

    smaller = "Lower max_prompt_length, or train a smaller model."

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean negative log-likelihood of all codes of the targets; computed in groups of similar length."""
        loss = sum(
            row_losses(model, inputs["input_ids"][group, columns], inputs["labels"][group]) @ inputs["weights"][group]
            for group, columns in length_groups(inputs["input_ids"], "right")
        )
        if num_items_in_batch is None:
            loss = loss / (inputs["labels"] >= 0).sum()
        else:  # those of all processes, over which gradients are averaged
            loss = loss * self.accelerator.num_processes / num_items_in_batch
        return (loss, {"loss": loss}) if return_outputs else loss


def row_tokens(row: Mapping[str, Any]) -> int:
    """Number of tokens of an example, of prompt and target."""
    return len(row["input_ids"]) + len(row["labels"])


def row_losses(model: Any, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Summed negative log-likelihood of each example's target.

    Args:
        model: An encoder-decoder.
        input_ids: int64 (B, T), 0 is padding.
        labels: int64 (B, L), -100 is padding.

    Returns:
        float32 (B,).
    """
    logits = model(input_ids=input_ids, attention_mask=(input_ids > 0).long(), labels=labels).logits.float()
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").sum(1)


def _new_bundle(config: TigerTrainConfig, table: SidTable) -> Bundle:
    """A bundle with a randomly initialised model."""
    tokenizer = sid_tokenizer(table)
    model = build_tiger(
        tokenizer,
        config.seed,
        d_model=config.hidden_size,
        num_layers=config.layers,
        num_heads=config.heads,
        d_kv=config.head_size,
        d_ff=config.inner_size,
        dropout_rate=config.dropout,
    )
    return Bundle(replace_dropout(model), tokenizer, table, TIGER_WORDING, config.max_prompt_length)


def adafactor(config: TigerTrainConfig, model: torch.nn.Module) -> Adafactor:
    """Adafactor (Shazeer and Stern, 2018) as in the training of T5: step sizes are relative to the scale of weights.

    T5 initialises embeddings a hundred times as large as the query maps, and does not scale attention scores. With
    equal step sizes, attention saturates before the embeddings have changed.
    """
    return Adafactor(
        model.parameters(),
        lr=config.learning_rate,
        scale_parameter=True,
        relative_step=False,
        warmup_init=False,
    )


def _trainer(
    run: TrainingRun, config: TigerTrainConfig, bundle: Bundle, examples: ExampleColumns, builder: ExampleBuilder
) -> TigerTrainer:
    """Create the trainer of training examples, which validates on the validation split."""
    plan = run.plan_steps(len(examples["labels"]), "rows")
    heldout, _ = distinct_examples(builder, bundle.tokenizer, "valid", config.max_prompt_length)
    trainer = TigerTrainer(
        model=bundle.model,
        args=TrainingArguments(
            **run.arguments(plan, "ndcg"),
            per_device_train_batch_size=plan.per_device,
            per_device_eval_batch_size=plan.per_device,
            logging_steps=plan.eval_steps,
            remove_unused_columns=False,
            ddp_find_unused_parameters=False,
        ),
        data_collator=collate,
        train_dataset=Dataset.from_dict(examples),
        eval_dataset=Dataset.from_dict(heldout),
        processing_class=bundle.tokenizer,
        callbacks=run.early_stopping(),
        optimizers=(adafactor(config, bundle.model), None),
    )
    if not config.device_batch_size:  # the model is small: as much as is faster, or what memory turns out to hold
        trainer.data_collator = partial(collate_shares, collate=collate, tokens=row_tokens)
        trainer.compute_in_parts(checkpointing=False)
    trie = Trie.build(bundle.table.codes, bundle.code_ids)
    trainer.validation = run.validation_set(bundle, builder, trie)
    return trainer


@training_stage
def run_tiger(config: TigerTrainConfig, run: TrainingRun) -> StageResult:
    """Train a TIGER."""
    corpus = run.load_corpus()
    table = SidTable.load_index(config.sids, corpus.items["item_id"].tolist())
    bundle = _new_bundle(config, table)
    builder = ExampleBuilder(corpus, table, bundle.wording, special_texts(bundle.tokenizer))
    examples, truncated = distinct_examples(builder, bundle.tokenizer, "train", config.max_prompt_length)
    counts = {"rows": len(corpus.train), "distinct_examples": len(examples["labels"]), "truncated_prompts": truncated}
    logger.info(
        "Training %s parameters on %s examples, %s of them distinct.",
        f"{bundle.model.num_parameters():,}",
        f"{counts['rows']:,}",
        f"{counts['distinct_examples']:,}",
    )
    log_truncated(truncated)
    trainer = _trainer(run, config, bundle, examples, builder)
    run.train(trainer)
    return run.finish(trainer, bundle, counts)
