"""The stage: load a checkpoint, build its prompts, rewards and trainer, train, and keep the best weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig

from minionerec.core.artefacts import input_record, read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.core.paths import find_path
from minionerec.core.processes import world_size
from minionerec.data.columns import ColumnWriter
from minionerec.data.corpus import Corpus
from minionerec.data.sequences import padded
from minionerec.data.stored import StoredCorpus
from minionerec.models.backbone.build import resolve_dtype
from minionerec.models.backbone.bundle import Bundle, check_decoder_alone, load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.decoding.decoder import decoding_device
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import (
    ITEM_TASKS,
    ExampleBuilder,
    encode_completion,
    encode_prompt,
    special_texts,
)
from minionerec.models.sequential import MODEL_KIND
from minionerec.models.sequential.registry import load_sequential
from minionerec.sid.embed.stored import load_vector_artefact
from minionerec.training.config import GrpoConfig
from minionerec.training.grpo.rollouts import PromptRows, RollOut, Row, beams, check_task, grpo_rows, roller, samples
from minionerec.training.grpo.trainer import Objective, SidGrpoTrainer
from minionerec.training.packing import TellEpoch
from minionerec.training.rewards import (
    RewardSources,
    Scorer,
    WeightedRewards,
    check_histories,
    make_reward,
    reward_weights,
)
from minionerec.training.run import (
    TrainingResult,
    TrainingRun,
    keep_start_if_better,
    plan_steps,
    run_training,
    warn_of_rounding,
)
from minionerec.training.stream.disk import Numbered, Ragged, span
from minionerec.training.stream.jobs import (
    Chance,
    Made,
    WriterTask,
    Written,
    builder_of,
    count_tasks,
    plan_jobs,
    rows_of,
    write_jobs,
)
from minionerec.training.stream.sampler import BlockSampler
from minionerec.training.trainer import early_stopping, validation_set

# Prompts of a corpus that stays on disk, tokenised into files.

_ENDS = {"prompts": "prompt_ends", "tails": "tail_ends", "histories": "history_ends"}
KINDS = {
    "targets": "int32",
    **{name: kind for values, ends in _ENDS.items() for name, kind in ((values, "int32"), (ends, "int64"))},
}


@dataclass(frozen=True)
class FlatPrompts:
    """Prompts in a few arrays, as `minionerec.training.grpo.rollouts.Row` has them.

    Attributes:
        targets: int (R,), SID numbers.
        lists: `prompts`, `tails` and `histories`.
    """

    targets: np.ndarray
    lists: dict[str, Ragged]

    def write(self, writer: ColumnWriter) -> None:
        """Add the rows to columns of `KINDS`."""
        writer.append("targets", self.targets)
        for name, part in self.lists.items():
            writer.append(_ENDS[name], writer.size(name) + np.cumsum(part.lengths))
            writer.append(name, part.values)


class DiskPrompts(Sequence[Row]):
    """All prompts of a training, filled up to whole steps, read from disk when they are asked for.

    Args:
        written: Their parts.
        step: Prompts of a step.
        seed: Says which prompts fill up the last step.
    """

    def __init__(self, written: Sequence[Written], step: int, seed: int):
        self._rows = Numbered(written)
        self.distinct = len(self._rows)
        missing = -self.distinct % step
        self._again: list[int] = np.random.default_rng(seed).integers(self.distinct, size=missing).tolist()

    def __len__(self) -> int:
        """Number of rows of whole steps."""
        return self.distinct + len(self._again)

    def __getitem__(self, row: Any) -> Any:
        """One row."""
        part, number = self._rows.find(row if row < self.distinct else self._again[row - self.distinct])
        found = {
            name: part.arrays[name][slice(*span(part.arrays[ends], number))].tolist() for name, ends in _ENDS.items()
        }
        history = None if part.job.task in ITEM_TASKS else found["histories"]
        target = int(part.arrays["targets"][number])
        return Row(prompt=found["prompts"], target=target, tail=found["tails"], history=history)


def disk_prompts(
    builder: ExampleBuilder,
    tokenizer: PreTrainedTokenizerBase,
    stored: StoredCorpus,
    config: GrpoConfig,
    max_prompt_length: int,
    folder: Path,
) -> PromptRows:
    """The prompts of all tasks by their weights, on disk; written where they are not yet.

    Every process of a launch must ask for them: each writes its share.

    Args:
        builder: Makes the examples; its corpus has the items, and no training row.
        tokenizer: The model's tokenizer.
        stored: The corpus.
        config: Tasks, prompts of a step, seed.
        max_prompt_length: Prompts are cut to this many last tokens.
        folder: Where the rows lie, in the folder of the unfinished run.

    Raises:
        ConfigError: If a task's completion is not an SID.
        ArtefactError: If a file of the corpus cannot be read, or one of the rows is damaged.
    """
    for task in config.tasks:
        check_task(task)

    def make(job: WriterTask, batch: Any, chance: Chance, seed: int) -> Made:
        own, histories, items = builder, None, None
        if job.task in ITEM_TASKS:
            items = batch
        else:
            _, rows = rows_of(batch, stored, {"train": 0})
            own, histories = builder_of(builder, rows), rows.histories
        examples = own.some(job.task, "train", items) if histories is None or len(histories) else []
        chosen = [int(place) for place in chance(len(examples))]
        asked = encode_prompt(tokenizer, [examples[place].prompt for place in chosen], max_prompt_length)
        targets = [examples[place].target for place in chosen]
        tails = [examples[place].completion[len(own.table.sids[examples[place].target]) :] for place in chosen]
        lists = {
            "prompts": Ragged.of(asked.ids),
            "tails": Ragged.of(encode_completion(tokenizer, tails)),
            "histories": Ragged.of([[] if histories is None else histories[place].tolist() for place in chosen]),
        }
        flat = FlatPrompts(own.table.sid_numbers[np.array(targets, dtype=np.int64)], lists)
        return flat, {"rows": len(chosen), "cut": asked.cut}

    written = write_jobs(plan_jobs(stored.files, config.tasks, folder), stored, KINDS, config.seed, make)
    rows = DiskPrompts(written, config.prompts_per_step, config.seed)
    return PromptRows(rows, count_tasks(written), Numbered(written).total("cut"))


# A trained sequential model as the scorer of a reward.


def sequential_scorer(path: str | Path, corpus: str | Path) -> Scorer:
    """Scores of all items after a history, by a model that `run_sequential` trained on this corpus.

    Args:
        path: The folder `model` of `minionerec train-sequential`.
        corpus: The corpus whose items are scored.

    Returns:
        Takes B histories (item indices from 0, the oldest first) and gives the model's logits, float32 (B, N).

    Raises:
        ArtefactError: If there is no such model, or it was trained on other data.
        ConfigError: If the model knows histories by their users.
    """
    trained_on = read_manifest(path, MODEL_KIND)["inputs"]["corpus"]
    if trained_on["sha256"] != input_record({"corpus": corpus})["corpus"]["sha256"]:
        raise ArtefactError(
            f"{path}: was trained on {trained_on['path']}, which is not the corpus {corpus}. Train it with --protocol "
            f"rows --corpus {corpus}."
        )
    device = decoding_device()
    model = load_sequential(path).to(device)
    if model.needs_users:
        raise ConfigError(f"{path}: {type(model).__name__} has a vector for each user of its data; take another model.")

    @torch.inference_mode()
    def score(histories: Sequence[Sequence[int]]) -> np.ndarray:
        kept = [list(history)[-model.max_len :] for history in histories]
        ends = np.cumsum([len(history) for history in kept])
        begins = ends - [len(history) for history in kept]
        flat = np.concatenate([np.asarray(history, dtype=np.int32) for history in kept]) + 1
        rows = torch.from_numpy(padded(flat, begins, ends, model.max_len, model.padding)).to(device, torch.int64)
        return model.logits(model.asked(model.user_vectors(rows), None))[:, 1:].float().cpu().numpy()

    return score


logger = get_logger(__name__)


def run_grpo(config: GrpoConfig) -> TrainingResult:
    """Sharpen a checkpoint by GRPO; resumes an unfinished run, does nothing if it is done.

    Args:
        config: Settings.

    Returns:
        Where the best checkpoint (by validation NDCG@10) lies.

    Raises:
        ArtefactError: If an input is missing or does not belong to the others.
        ConfigError: If settings contradict each other or the data.
    """
    return run_training(config, _train)


def _train(config: GrpoConfig, run: TrainingRun) -> TrainingResult:
    bundle = load_policy(config)
    place = find_path(config.corpus)
    stored = StoredCorpus.open(place) if config.stream else None
    corpus = Corpus.load(place) if stored is None else run.sample_corpus(stored, config.eval_rows)
    reference = load_reference(config, bundle) if config.reference else None
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    prompts = _prompts(config, run, builder, bundle, stored)
    rewards = load_rewards(config, corpus, bundle, prompts)
    _say(config, prompts, rewards)
    trainer = build_trainer(config, grpo_arguments(config, run, prompts), bundle, builder, prompts, rewards)
    if reference is not None:
        trainer.set_reference(reference)
    warn_of_rounding(trainer, config)
    if config.sync_reference and run.checkpoint is not None:
        trainer.restore_reference(run.checkpoint)
    run.train(trainer)
    keep_start_if_better(trainer, config.checkpoint)
    result = run.finish(trainer, bundle, {"rows": prompts.counts, "cut_prompts": prompts.cut})
    run.drop_rows()
    return result


def _prompts(
    config: GrpoConfig, run: TrainingRun, builder: ExampleBuilder, bundle: Bundle, stored: StoredCorpus | None
) -> PromptRows:
    """The prompts to train on, in memory or on disk."""
    if stored is None:
        return grpo_rows(builder, bundle.tokenizer, config, bundle.max_prompt_length)
    with run.work.phase("load"):
        return disk_prompts(builder, bundle.tokenizer, stored, config, bundle.max_prompt_length, run.rows)


def load_policy(config: GrpoConfig) -> Bundle:
    """The checkpoint to sharpen.

    Raises:
        ConfigError: If it is a catalogue model, or has fewer SIDs than a group.
    """
    bundle = load_bundle(find_path(config.checkpoint), dtype=resolve_dtype(config.dtype))
    check_decoder_alone(bundle)
    if isinstance(bundle.model, CatalogueModel):
        raise ConfigError(
            f"{config.checkpoint}: is a catalogue model, whose rewards need no rollouts. Sharpen it with "
            "minionerec train-catalogue --objective expected or grpo."
        )
    if bundle.table.n_unique < config.generations:
        raise ConfigError(
            f"generations is {config.generations}, but the catalogue has {bundle.table.n_unique} distinct SIDs; ask "
            "for fewer."
        )
    return bundle


def load_reference(config: GrpoConfig, bundle: Bundle) -> Mapping[str, torch.Tensor]:
    """Weights of the checkpoint that the KL term is measured against.

    Raises:
        ArtefactError: If it was trained on other SIDs, or its weights have other shapes.
    """
    weights = load_bundle(find_path(config.reference), dtype=bundle.model.dtype, table=bundle.table).model.state_dict()
    own = bundle.model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        shapes = [tuple(part[name].shape) if name in part else None for part in (weights, own)]
        if shapes[0] != shapes[1]:
            raise ArtefactError(
                f"{config.reference}: its {name} has shape {shapes[0]}, that of {config.checkpoint} {shapes[1]}. Give "
                "a reference of the same shape."
            )
    return weights


def load_rewards(config: GrpoConfig, corpus: Corpus, bundle: Bundle, prompts: PromptRows) -> WeightedRewards:
    """The rewards with what they are made from."""
    weights = reward_weights(config.rewards)
    about: list[list[int] | None] = [None if task in ITEM_TASKS else [] for task in prompts.counts]
    check_histories(weights, about, list(prompts.counts))
    vectors = None
    if config.reward_vectors:
        vectors = load_vector_artefact(find_path(config.reward_vectors), corpus.items["item_id"].tolist())
    scorer = None
    if config.reward_model:
        scorer = sequential_scorer(find_path(config.reward_model), find_path(config.corpus))
    sources = RewardSources(bundle.table, vectors, scorer)
    return WeightedRewards({name: make_reward(name, sources) for name in weights}, weights)


def _say(config: GrpoConfig, prompts: PromptRows, rewards: WeightedRewards) -> None:
    logger.info(
        "GRPO on %s prompts (%s), %d filled up; %d rollouts each (%s); rewards %s.",
        f"{sum(prompts.counts.values()):,}",
        ", ".join(f"{task} {count:,}" for task, count in prompts.counts.items()),
        prompts.filled_up,
        config.generations,
        config.rollouts,
        ", ".join(f"{name} x {weight:g}" for name, weight in rewards.weights.items()),
    )
    if prompts.cut:
        logger.info("%s prompts were too long and were cut to their last tokens.", f"{prompts.cut:,}")


def grpo_arguments(config: GrpoConfig, run: TrainingRun, prompts: PromptRows) -> GRPOConfig:
    """What TRL's trainer is told."""
    names = "prompts_per_step and prompts_per_device"
    plan = plan_steps(config, len(prompts.rows), config.prompts_per_step, config.prompts_per_device, names, "prompts")
    return GRPOConfig(
        **run.arguments(plan, "ndcg"),
        max_steps=config.max_steps,
        per_device_train_batch_size=config.prompts_per_device * config.generations,
        per_device_eval_batch_size=config.generations,
        logging_steps=max(1, plan.eval_steps // 10),
        num_generations=config.generations,
        beta=config.beta,
        temperature=1.0,
        sync_ref_model=config.sync_reference,
        ref_model_sync_steps=config.sync_steps,
        ref_model_mixup_alpha=config.sync_share,
        remove_unused_columns=False,
        eval_on_start=run.checkpoint is None,
    )


def build_trainer(
    config: GrpoConfig,
    args: GRPOConfig,
    bundle: Bundle,
    builder: ExampleBuilder,
    prompts: PromptRows,
    rewards: WeightedRewards,
) -> SidGrpoTrainer:
    """The trainer with everything that a step needs."""
    table, vocabulary = bundle.table, bundle.tokenizer.get_vocab()
    trie = Trie.build(table.codes, bundle.code_ids)
    order = None
    if config.stream:
        size = config.prompts_per_device
        order = BlockSampler(len(prompts.rows), config.shuffle_rows, world_size(), size, config.seed)
    tokens = dict(zip(table.sid_numbers.tolist(), table.token_tuples, strict=True))
    return SidGrpoTrainer(
        bundle.model,
        args,
        prompts.rows,
        bundle.tokenizer,
        roll_out=roll_out_by(config, bundle, trie),
        objective=Objective(rewards, config.loss, config.sibling_alpha, config.keep_zero_variance),
        sid_tokens=[[vocabulary[token] for token in tokens[number]] for number in range(table.n_unique)],
        validation=validation_set(config, bundle, builder, trie),
        callbacks=[*early_stopping(config), *([TellEpoch(order)] if order else [])],
        order=order,
    )


def roll_out_by(config: GrpoConfig, bundle: Bundle, trie: Trie) -> RollOut:
    """How completions come about, by the setting `rollouts`."""
    if config.rollouts == "sampling":
        search = samples(trie, config.generations, bundle.tokenizer.eos_token_id)
    else:
        search = beams(trie, config.generations)
    return roller(search, bundle.table)
