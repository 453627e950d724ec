"""The stage: load a checkpoint, build its prompts, rewards and trainer, train, and keep the best weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trl import GRPOConfig

from minionerec.core.cells import texts_of
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.data.contexts import RequestFeature
from minionerec.data.corpus import Corpus
from minionerec.metrics.values import item_values
from minionerec.models.backbone.build import resolve_dtype
from minionerec.models.backbone.bundle import Bundle, load_bundle, load_language_model
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import (
    ITEM_TASKS,
    ExampleBuilder,
    special_texts,
)
from minionerec.pipeline.config.training import GrpoConfig
from minionerec.pipeline.stages import StageResult
from minionerec.pipeline.training_run import (
    TrainingRun,
    keep_start_if_better,
    load_teacher,
    log_truncated,
    training_stage,
    warn_of_rounding,
)
from minionerec.recommend.rankers.expert_fit import with_experts
from minionerec.recommend.rankers.language import LanguageRanker, TitleRanker
from minionerec.recommend.rankers.load import checkpoint_assistant, load_ranker
from minionerec.recommend.rankers.protocol import Queries
from minionerec.recommend.rankers.sequential import SequentialRanker
from minionerec.sid.embed.stored import load_vectors, vector_file
from minionerec.sid.table import SidTable
from minionerec.training.distillation import SoftTargets
from minionerec.training.grpo.prompts import grpo_examples
from minionerec.training.grpo.rollouts import Row, beams, roller, samples
from minionerec.training.grpo.trainer import Objective, SidGrpoTrainer, TeacherQuery
from minionerec.training.packing import teacher_questions
from minionerec.training.rewards import (
    Rollouts,
    Scorer,
    WeightedRewards,
    check_histories,
    make_reward,
    reward_weights,
)
from minionerec.training.sampling import NO_LABEL
from minionerec.training.trainer import ValidationSet

logger = get_logger(__name__)

SYNC_SHARE = 0.6  # of the policy in the moved reference: TRL's


def model_scorer(path: str | Path, corpus: Corpus, corpus_path: str | Path, table: SidTable) -> Scorer:
    """Scores of all items after a history, by a trained model.

    Args:
        path: The folder `model` of `minionerec train-sequential`, or a checkpoint, with its experts.
        corpus: The corpus whose items are scored.
        corpus_path: Its path.
        table: SIDs of a checkpoint.

    Returns:
        Takes B histories (item indices from 0, the oldest first) and gives the logits of a sequential model, or the
        log-probabilities of a checkpoint, float32 (B, N).

    Raises:
        ArtefactError: If there is no such model, or it was trained on other data, or other SIDs.
        ConfigError: If the model knows histories by their users.
    """
    ranker = load_ranker(path, corpus, corpus_path=corpus_path, table=table)
    if isinstance(ranker, TitleRanker) or not isinstance(ranker, LanguageRanker | SequentialRanker):
        raise ConfigError(
            f"{path}: recommends titles, and rewards ask for the probabilities of SIDs; use another model."
        )
    scores_of: Callable[[Queries], torch.Tensor]
    if isinstance(ranker, SequentialRanker):
        scores_of, columns = ranker.scores, np.arange(corpus.n_items)
    else:
        scores_of, columns = checkpoint_assistant(ranker, str(path)).log_probs, table.sid_numbers

    @torch.inference_mode()
    def score(histories: Sequence[Sequence[int]]) -> np.ndarray:
        queries = Queries([np.asarray(history, dtype=np.int32) for history in histories])
        scores: np.ndarray = scores_of(queries).float().cpu().numpy()
        return scores[:, columns]

    return score


def target_teacher(
    path: str | Path,
    table: SidTable,
    trie: Trie,
    max_history: int,
    device: torch.device,
    context: tuple[RequestFeature, ...] = (),
) -> TeacherQuery:
    """A catalogue model as a teacher of targets, by the histories and request features of their rows.

    Args:
        path: Checkpoint of a catalogue model.
        table: SIDs of the policy.
        trie: The same SIDs in the policy's tokens.
        max_history: Items of a history that the teacher is given, the newest.
        device: Device of its answers.
        context: Request features that the policy reads.

    Raises:
        ArtefactError: If it was trained on other SIDs.
        ConfigError: If it holds another kind of model.
    """
    teacher, numbers = load_teacher(path, table, trie, context=context), table.sid_numbers + 1

    def query(rows: Sequence[Row], targets: Sequence[list[int]]) -> SoftTargets:
        examples = []
        for row, ids in zip(rows, targets, strict=True):
            past = numbers[(row["history"] or [])[-max_history:]].tolist()
            about = {"histories": past, "slots": [len(past) - 1] if past else [], "contexts": row["contexts"] or []}
            examples.append({"labels": [NO_LABEL, *ids], **about})
        labels = torch.tensor([[token for ids in targets for token in ids]])
        batch = {"labels": labels, **teacher_questions(examples)}
        return teacher({name: values.to(device) for name, values in batch.items()})

    return query


@training_stage
def run_grpo(config: GrpoConfig, run: TrainingRun) -> StageResult:
    """Train a checkpoint by GRPO."""
    bundle = load_policy(config.checkpoint, config.dtype, config.generations)
    corpus = Corpus.load(config.corpus)
    reference = load_reference(config.reference, bundle, config.checkpoint) if config.reference else None
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    with run.work.phase("load"):
        prompts = grpo_examples(
            builder,
            bundle.tokenizer,
            config.tasks,
            config.prompts_per_step,
            config.seed,
            bundle.max_prompt_length,
            run.rows,
        )
    rewards = load_rewards(
        config.rewards,
        bundle.table,
        list(prompts.counts),
        corpus,
        vectors=config.reward_vectors,
        scorer=model_scorer(config.reward_model, corpus, config.corpus, bundle.table) if config.reward_model else None,
        columns=config.reward_columns,
    )
    logger.info(
        "GRPO on %s, %d filled up; %d rollouts each (%s); rewards %s.",
        prompts.described("prompts"),
        len(prompts.again),
        config.generations,
        config.rollouts,
        ", ".join(f"{name} x {weight:g}" for name, weight in rewards.weights.items()),
    )
    log_truncated(prompts.total("truncated"))
    plan = run.plan_steps(len(prompts), "prompts")
    moves = config.beta > 0 and config.sync_steps > 0
    args = GRPOConfig(
        **run.arguments(plan, config.select_by),
        max_grad_norm=config.max_grad_norm,
        max_steps=config.max_steps,
        per_device_train_batch_size=plan.per_device * config.generations,
        per_device_eval_batch_size=config.generations,
        logging_steps=max(1, plan.eval_steps // 10),
        num_generations=config.generations,
        beta=config.beta,
        temperature=1.0,
        sync_ref_model=moves,
        ref_model_sync_steps=max(1, config.sync_steps),
        ref_model_mixup_alpha=SYNC_SHARE,
        remove_unused_columns=False,
        eval_on_start=run.checkpoint is None,
    )
    trie = Trie.build(bundle.table.codes, bundle.code_ids)
    validation = run.validation_set(bundle, builder, trie)
    if validation is not None and config.select_by == "reward":
        validation = replace(validation, reward=list_reward(rewards, validation, builder))
    teacher = None
    if config.teacher:
        teacher = target_teacher(
            config.teacher, bundle.table, trie, corpus.max_history, args.device, bundle.wording.context
        )
    search = beams(trie, config.generations)
    if config.rollouts == "sampling":
        search = samples(trie, config.generations, bundle.tokenizer.eos_token_id)
    trainer = SidGrpoTrainer(
        bundle.model,
        args,
        prompts.rows,
        bundle.tokenizer,
        roll_out=roller(search, bundle.table),
        objective=Objective(
            rewards,
            config.loss,
            config.keep_zero_variance,
            config.loss_terms,
            config.scale_rewards == "group",
        ),
        sid_tokens=bundle.sid_tokens,
        validation=validation,
        teacher=teacher,
        callbacks=run.early_stopping(),
        order=run.block_order(len(prompts), plan),
    )
    if reference is not None:
        trainer.set_reference(reference)
    warn_of_rounding(trainer)
    planned = round(config.epochs * len(prompts) / config.prompts_per_step)
    trainer.compile_blocks(planned if config.max_steps < 0 else config.max_steps)
    if not config.prompts_per_device:
        trainer.compute_in_parts(config.gradient_checkpointing)
    if moves and run.checkpoint is not None:
        trainer.restore_reference(run.checkpoint)
    run.train(trainer)
    keep_start_if_better(run, trainer, config.checkpoint, "a higher beta", "another reward")
    counts = {"rows": prompts.counts, "truncated_prompts": prompts.total("truncated")}
    complete = partial(with_experts, corpus=corpus, seed=config.seed) if config.experts else None
    return run.finish(trainer, bundle, counts, complete)


def load_policy(checkpoint: str, dtype: str, generations: int) -> Bundle:
    """The checkpoint to start from, without its experts, which were fitted to its weights.

    Args:
        checkpoint: The checkpoint.
        dtype: Dtype of its weights, a setting's word.
        generations: Rollouts of a group.

    Raises:
        ConfigError: If it is a catalogue model, or has fewer SIDs than a group.
    """
    instead = "whose rewards need no rollouts. Train it with minionerec train-catalogue --objective expected or grpo."
    bundle = load_language_model(checkpoint, resolve_dtype(dtype), instead)
    if bundle.table.n_unique < generations:
        raise ConfigError(
            f"generations is {generations}, but the catalogue has {bundle.table.n_unique} distinct SIDs; ask for fewer."
        )
    return replace(bundle, experts=None)


def load_reference(reference: str, bundle: Bundle, checkpoint: str) -> Mapping[str, torch.Tensor]:
    """Weights of the checkpoint that the KL term is measured against.

    Args:
        reference: That checkpoint.
        bundle: The policy.
        checkpoint: Where the policy is from, for the message.

    Raises:
        ArtefactError: If it was trained on other SIDs, or its weights have other shapes.
    """
    weights = load_bundle(reference, dtype=bundle.model.dtype, table=bundle.table).model.state_dict()
    own = bundle.model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        shapes = [tuple(part[name].shape) if name in part else None for part in (weights, own)]
        if shapes[0] != shapes[1]:
            raise ArtefactError(
                f"{reference}: its {name} has shape {shapes[0]}, that of {checkpoint} {shapes[1]}. Give "
                "a reference of the same shape."
            )
    return weights


def load_rewards(
    rewards: Mapping[str, float],
    table: SidTable,
    tasks: Sequence[str],
    corpus: Corpus,
    *,
    vectors: str = "",
    scorer: Scorer | None = None,
    columns: Mapping[str, str] | None = None,
) -> WeightedRewards:
    """The rewards and their sources.

    Args:
        rewards: Names with weights.
        table: SIDs of the catalogue.
        tasks: Tasks whose completions are rewarded.
        corpus: The corpus.
        vectors: Item vectors of `semantic`.
        scorer: Model of `collaborative` and of expected hits and values.
        columns: Reward to column of the items, of the rewards that read one.

    Raises:
        ConfigError: If there is no such column.
    """
    weights = reward_weights(rewards)
    about: list[list[int] | None] = [None if task in ITEM_TASKS else [] for task in tasks]
    check_histories(weights, about, list(tasks))
    sources: dict[str, Any] = {"collaborative": scorer, "expected_hits": scorer}
    if "rare" in weights:
        sources["rare"] = corpus.popularity()
    if vectors:
        file = vector_file(Path(vectors), corpus.items["item_id"].tolist())
        sources["semantic"] = load_vectors(file, corpus.n_items)
    items = corpus.items.set_index("item_id", drop=False)
    for reward, column in (columns or {}).items():
        if column not in items.columns:
            raise ConfigError(
                f"reward_columns: {reward} is {column!r}, but the corpus has no such column of items; it has "
                f"{', '.join(items.columns)}."
            )
        if reward == "diversity":
            sources[reward] = texts_of(items[column])[0].tolist()
        else:
            values = item_values(items[column])
            sources[reward] = (scorer, values) if reward == "expected_value" else values
    return WeightedRewards({name: make_reward(name, table, sources.get(name)) for name in weights}, weights)


def list_reward(
    rewards: WeightedRewards, validation: ValidationSet, builder: ExampleBuilder
) -> Callable[[np.ndarray, np.ndarray, slice], np.ndarray]:
    """The total reward of validation lists, see `ValidationSet.reward`; where none applies it is 0."""
    histories = builder.corpus.rows("valid").histories
    own = [histories[number].tolist() for number in np.asarray(validation.numbers).tolist()]

    def measure(sids: np.ndarray, scores: np.ndarray, mine: slice) -> np.ndarray:
        rollouts = Rollouts(sids, validation.targets[mine], scores, own[mine], builder.table)
        found: np.ndarray = np.nan_to_num(rewards.total(rewards.values(rollouts))).sum(1, dtype=np.float64)
        return found

    return measure
