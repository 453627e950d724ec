"""The stage that trains a catalogue model: maximum likelihood at every item, then, if wanted, a reward.

Rewards need no rollouts here, for the model's distribution over the whole catalogue is at hand at every position:

- `expected`: the loss is minus the reward that the model expects, E[r] = sum over SIDs of p(s) r(s). With a reward of
  1 for the target that is minus the target's probability (the rule reward of MiniOneRec; Williams, 1992, without
  sampling);
- `grpo`: the G most probable SIDs are a group, rewarded by rule and rank (`minionerec.rewards.ranking`); each one's
  advantage is its reward less the group's mean, over the group's standard deviation (Shao et al., "DeepSeekMath",
  2024, section 4.1), and the loss is minus the mean of advantage times log-probability: one step a group, whose
  probability ratio is 1.

Both add `beta` times the exact KL divergence from the starting checkpoint.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments, set_seed

from minionerec.backbone.build import train_tokenizer
from minionerec.backbone.bundle import Bundle, load_bundle
from minionerec.backbone.catalogue import CatalogueConfig, CatalogueModel, build_catalogue
from minionerec.backbone.quiet import quiet_libraries
from minionerec.backbone.vocabulary import add_code_tokens
from minionerec.core.artefacts import input_record, is_current, read_manifest, require_writable
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger, is_main_process
from minionerec.core.memory import keep_freed_memory
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import PROTOCOLS
from minionerec.data.transitions import count_transitions
from minionerec.data.windows import user_windows
from minionerec.decoding.trie import Trie
from minionerec.embed.vectors import EncoderConfig, encoder_inputs, make_vectors
from minionerec.prompts.examples import ExampleBuilder, special_texts
from minionerec.prompts.wording import load_wording
from minionerec.rewards.advantages import EPSILON
from minionerec.rewards.ranking import ndcg_penalties
from minionerec.sid.table import SidTable
from minionerec.training.common import (
    RankingEvaluation,
    TrainingResult,
    finish_run,
    keep_start_if_better,
    plan_steps,
    replace_printer,
    result_settings,
    trainer_arguments,
    validation_set,
    work_folder,
)
from minionerec.training.config import CatalogueTrainConfig

logger = get_logger(__name__)

_TEXT_TOKENS = 300  # the tokenizer reads SIDs; text is there for the wording alone


def group_advantages(best: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Advantages of groups of ranked SIDs under the ranking reward: 1 for a hit, beside one a penalty by rank.

    Args:
        best: int64 (P, G), SIDs, the most probable first.
        wanted: int64 (P,), targets.

    Returns:
        float32 (P, G); 0 in groups without a hit.

    Example:
        >>> found = group_advantages(torch.tensor([[4, 2, 3], [1, 2, 3]]), torch.tensor([2, 9]))
        >>> [[round(value, 2) for value in row] for row in found.tolist()]
        [[-0.72, 1.14, -0.42], [0.0, 0.0, 0.0]]
    """
    hits = best == wanted[:, None]
    penalties = torch.tensor(ndcg_penalties(best.shape[1]), device=best.device)
    rewards = torch.where(hits, torch.ones_like(penalties), penalties)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + EPSILON)
    return advantages.masked_fill(~hits.any(1, keepdim=True), 0.0)


def reward_loss(log_probs: torch.Tensor, wanted: torch.Tensor, objective: str, generations: int) -> torch.Tensor:
    """Loss of each position under a reward: float32 (P,).

    Args:
        log_probs: float32 (P, N), of every SID.
        wanted: int64 (P,), targets from 0.
        objective: "expected" or "grpo".
        generations: Group size of "grpo".
    """
    own = log_probs.gather(1, wanted[:, None])[:, 0]
    if objective == "expected":
        return -own.exp()
    best = log_probs.detach().topk(generations, dim=1).indices
    advantages = group_advantages(best, wanted)
    return -(advantages * log_probs.gather(1, best)).mean(1)


class CatalogueTrainer(RankingEvaluation, Trainer):
    """The trainer of transformers on histories, with validation by ranking and, beside likelihood, rewards.

    Attributes:
        objective: "likelihood", "expected" or "grpo".
        generations: Group size of "grpo".
        beta: Weight of the KL divergence from the reference.
        reference: The starting model, where `beta` is above 0.
    """

    objective: str = "likelihood"
    generations: int = 16
    beta: float = 0.0
    reference: CatalogueModel | None = None

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The objective's loss; in evaluation the likelihood's."""
        inputs = {**inputs, "leave_out": model.training}
        if self.objective == "likelihood" or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        log_probs = model(**inputs, distribution=True).log_probs
        labelled = inputs["labels"] > 0
        wanted, weights = inputs["labels"][labelled] - 1, inputs["weights"][labelled]
        loss = reward_loss(log_probs, wanted, self.objective, self.generations)
        if self.reference is not None:
            with torch.no_grad():
                before = self.reference(**inputs, distribution=True).log_probs
            loss = loss + self.beta * (log_probs.exp() * (log_probs - before)).sum(1)
        loss = (weights * loss).sum()
        if num_items_in_batch is None:
            return loss / max(1, len(wanted))
        return loss * self.accelerator.num_processes / num_items_in_batch


def collate(rows: Sequence[dict[str, list[Any]]]) -> dict[str, torch.Tensor]:
    """A batch of windows, as wide as its longest: `histories` and `labels` int64, `weights` float32, all (B, T)."""
    columns = {name: torch.tensor([row[name] for row in rows]) for name in ("histories", "labels", "weights")}
    width = max(1, int((columns["histories"] > 0).sum(1).max()))
    return {name: values[:, :width] for name, values in columns.items()}


def sid_windows(corpus: Corpus, table: SidTable, recency: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Training windows and validation rows over SID numbers from 1.

    Args:
        corpus: The corpus.
        table: SIDs of its items.
        recency: How fast the weight of targets falls with their age: exp(-recency · age), where a target's age is the
            share of the training rows that came after its own. Only a split by global time has its rows in the order
            of time; with any other all targets weigh 1.

    Returns:
        Twice `histories` and `labels`, int64 (W, max_history), 0 padding on the right and -100 where there is no loss
        (a loss at every item of a window, and at the last one of a validation row), and `weights`, float32, of mean 1
        over the labels.
    """
    protocol = PROTOCOLS["rows"].with_changes(max_len=corpus.max_history)
    split = protocol.split(corpus)
    number = np.concatenate([[0], table.sid_numbers + 1])
    windows = {"histories": number[split.windows.histories], "labels": number[split.windows.targets]}
    histories = number[split.valid.histories]
    labels = np.zeros_like(histories)
    labels[np.arange(len(labels)), np.maximum((histories > 0).sum(1) - 1, 0)] = number[split.valid.targets]
    valid = {"histories": histories, "labels": labels}
    for part in (windows, valid):
        part["labels"][part["labels"] == 0] = -100
        part["weights"] = np.ones(part["labels"].shape, dtype=np.float32)
    if recency and "global time" in corpus.split:
        count = len(corpus.rows("train"))
        for weights, window in zip(windows["weights"], user_windows(corpus), strict=True):
            age = 1 - (window.rows[1:] + 1) / count
            weights[: len(age)] = np.exp(-recency * age)
        windows["weights"] /= windows["weights"][windows["labels"] > 0].mean()
    elif recency:
        logger.info("The split is %s: its rows are not in order of time, so all targets weigh alike.", corpus.split)
    return windows, valid


def sid_text(corpus: Corpus, table: SidTable, encoder: str, width: int) -> np.ndarray:
    """Text vectors of the distinct SIDs, means over their items, of length about the square root of their width.

    Args:
        corpus: The corpus.
        table: SIDs of its items.
        encoder: See `minionerec.embed.vectors.EncoderConfig`.
        width: Width of TF-IDF vectors.

    Returns:
        float32 (N, T).
    """
    vectors = make_vectors(corpus, EncoderConfig(encoder=encoder, dimensions=width), {})
    numbers = table.sid_numbers
    text = np.zeros((table.n_unique, vectors.shape[1]), dtype=np.float32)
    np.add.at(text, numbers, vectors)
    return text / np.bincount(numbers)[:, None].astype(np.float32) * np.sqrt(vectors.shape[1], dtype=np.float32)


def new_bundle(config: CatalogueTrainConfig, corpus: Corpus, table: SidTable, windows: dict[str, np.ndarray]) -> Bundle:
    """A model with random weights, with all it needs to recommend."""
    wording = load_wording("compact")
    words = [f"{text.prompt} {text.completion}" for text in wording.tasks.values()]
    tokenizer = train_tokenizer([*corpus.items["title"], *words], _TEXT_TOKENS)
    add_code_tokens(tokenizer, table)
    text = sid_text(corpus, table, config.vectors, config.vector_width) if config.vectors else None
    counts = None
    if config.transitions:
        targets = np.maximum(windows["labels"], 0)
        counts = count_transitions(
            windows["histories"], targets, table.n_unique, config.reach, config.decay, config.reverse
        )
    shape = CatalogueConfig(
        vocab_size=len(tokenizer),
        max_history=corpus.max_history,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.inner_size,
        towers=config.towers,
        learned_vectors=config.learned_vectors,
        code_vectors=config.code_vectors,
        pointer=config.pointer,
        reach=config.reach,
        decay=config.decay,
        reverse=config.reverse,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    set_seed(config.seed)
    empty = Bundle(None, tokenizer, table, wording, config.max_prompt_length)  # type: ignore[arg-type]
    model: Any = build_catalogue(shape, table.codes, empty.code_ids, text, counts)
    return Bundle(model, tokenizer, table, wording, config.max_prompt_length)


def run_catalogue(config: CatalogueTrainConfig) -> TrainingResult:
    """Train a catalogue model; resumes an unfinished run, does nothing if it is done.

    Args:
        config: Settings.

    Returns:
        Where the best checkpoint (by validation NDCG@10) lies.

    Raises:
        ArtefactError: If an input is missing or does not belong to the others.
        ConfigError: If settings contradict each other or the data.
    """
    inputs: dict[str, Any] = {"corpus": config.corpus, "sids": config.sids}
    read_manifest(config.sids, "sids")
    if config.checkpoint:
        inputs["checkpoint"] = config.checkpoint
        counted = read_manifest(config.checkpoint, "checkpoint")["inputs"].get("corpus", {})
        if counted.get("sha256") != input_record({"corpus": config.corpus})["corpus"]["sha256"]:
            raise ArtefactError(
                f"{config.checkpoint}: was trained on another corpus than {config.corpus}, whose pairs are not those "
                "of its counts. Give its own corpus."
            )
    elif config.vectors:
        inputs |= encoder_inputs(config.vectors)
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
    windows, heldout = sid_windows(corpus, table, config.recency)
    if config.checkpoint:
        bundle = load_bundle(config.checkpoint, table=table)
        if not isinstance(bundle.model, CatalogueModel):
            raise ConfigError(
                f"{config.checkpoint}: holds a {type(bundle.model).__name__}, not a catalogue model. "
                "Sharpen it with scripts/grpo.py."
            )
    else:
        bundle = new_bundle(config, corpus, table, windows)
    model: Any = bundle.model
    if config.objective == "grpo" and config.generations > table.n_unique:
        raise ConfigError(
            f"generations is {config.generations}, but the catalogue has {table.n_unique} distinct SIDs; ask for fewer."
        )
    count, labels = len(windows["histories"]), int((windows["labels"] > 0).sum())
    logger.info(
        "Training %s parameters in %d tower(s) on %s windows with %s targets; %s counts of pairs.",
        f"{model.num_parameters():,}",
        model.config.towers,
        f"{count:,}",
        f"{labels:,}",
        f"{model.config.num_transitions:,}",
    )
    plan = plan_steps(config, count, config.batch_size, config.device_batch_size, "batch_size and device_batch_size",
                      "windows")  # fmt: skip
    args = TrainingArguments(
        **trainer_arguments(config, plan, "ndcg"),
        per_device_train_batch_size=config.device_batch_size,
        per_device_eval_batch_size=4 * config.device_batch_size,
        logging_steps=plan.eval_steps,
        adam_beta2=config.beta2,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        eval_on_start=False,
    )
    with work_folder(config, inputs, args.should_save) as checkpoint:
        args.eval_on_start = config.objective != "likelihood" and checkpoint is None
        trainer = CatalogueTrainer(
            model=model,
            args=args,
            data_collator=collate,
            train_dataset=Dataset.from_dict(windows),
            eval_dataset=Dataset.from_dict(heldout),
            processing_class=bundle.tokenizer,
            callbacks=[EarlyStoppingCallback(config.patience)] if config.patience else [],
        )
        model.set_dropout(config.dropout)
        trainer.objective, trainer.generations, trainer.beta = config.objective, config.generations, config.beta
        if config.beta:
            trainer.reference = copy.deepcopy(model).eval().requires_grad_(False).to(args.device)
        trainer.validation = validation_set(
            bundle.tokenizer,
            ExampleBuilder(corpus, table, bundle.wording, special_texts(bundle.tokenizer)),
            Trie.build(table.codes, bundle.code_ids),
            table.sid_numbers,
            rows=config.eval_rows,
            num_beams=config.eval_beams,
            max_prompt_length=bundle.max_prompt_length,
            seed=config.seed,
        )
        replace_printer(trainer)
        trainer.train(resume_from_checkpoint=checkpoint)
        if config.objective != "likelihood":
            keep_start_if_better(trainer, config.checkpoint)
        return finish_run(trainer, bundle, config, settings, inputs, {"windows": count, "targets": labels})
