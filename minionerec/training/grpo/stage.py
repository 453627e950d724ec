"""GRPO on ranked beams: a thin subclass of TRL's trainer through its overridable methods.

Rollouts are the project's own constrained beam search: G distinct SIDs of the catalogue for each prompt, best first.
They are not samples of the policy; the probability mass that the beam holds is logged, so that one can see how far the
two are apart. Source of the recipe: Kong et al., "MiniOneRec" (2025); GRPO: Shao et al., "DeepSeekMath" (2024), eq. 3.

Groups stay whole: a device computes whole groups at a time, in the order in which they were rolled out. A group whose
rewards are all equal has no advantage, and is left out of the reference and policy passes; its place in every mean is
kept, so that the gradient is that of the whole batch but for such groups' KL term.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_model, save_model
from transformers import PreTrainedModel
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler, split_tensor_dict

from minionerec.backbone.build import resolve_dtype
from minionerec.backbone.bundle import Bundle, load_bundle
from minionerec.backbone.catalogue import CatalogueModel
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.decoding.decoder import decode_prompts, length_batches
from minionerec.decoding.sampling import sample_search
from minionerec.decoding.trie import Trie
from minionerec.embed.ready import load_vector_artefact
from minionerec.prompts.examples import ITEM_TASKS, ExampleBuilder, encode_completion, encode_prompt, special_texts
from minionerec.prompts.wording import COMPLETION_FIELD
from minionerec.rewards.advantages import sibling_advantages
from minionerec.rewards.registry import RewardSources, check_columns, make_reward, parse_rewards
from minionerec.training.arguments import trainer_arguments
from minionerec.training.config import LOSSES, GrpoConfig
from minionerec.training.finish import TrainingResult, keep_start_if_better
from minionerec.training.plan import choose_examples, plan_steps
from minionerec.training.run import TrainingRun, run_training
from minionerec.training.scorer import sequential_scorer
from minionerec.training.shared_prefix import shared_prefix_logps
from minionerec.training.trainer import RankingEvaluation, early_stopping
from minionerec.training.validation import validation_set

logger = get_logger(__name__)

REFERENCE_FILE = "reference.safetensors"
_PROMPTS_AT_ONCE = 64  # prompts rolled out, and asked the reference about, at a time


class EpochSampler(RepeatSampler):
    """TRL's sampler, with an order that follows from seed and epoch alone: a resumed run has it too."""

    def set_epoch(self, epoch: int) -> None:
        """Take the order of an epoch, from 0."""
        self.generator.manual_seed((self.seed or 0) + epoch)


class SidGrpoTrainer(RankingEvaluation, GRPOTrainer):
    """TRL's GRPO trainer with beam rollouts, shared-prefix scoring and validation by ranking.

    Each row of its dataset has `prompt` (text), `target` (SID number in the trie), `tail` (token ids that follow the
    SID in a completion) and the columns that rewards read. The attributes below are set before training.

    Attributes:
        bundle: Tokenizer and prompt length.
        trie: SIDs of the catalogue.
        sid_tokens: Token ids of each SID number.
        rollouts: "beams" or "sampling".
        sibling_alpha: Share of the group's advantage, the rest is that among siblings.
        keep_zero_variance: Whether groups without advantage are computed.
    """

    args: GRPOConfig
    num_generations: int
    measures_loss = False
    bundle: Bundle
    trie: Trie
    sid_tokens: list[list[int]]
    rollouts: str = "beams"
    sibling_alpha: float = 1.0
    keep_zero_variance: bool = False
    _buffered_inputs: Any
    _rows: list[dict[str, Any]]  # of the newest rollouts: their dataset rows,
    _sids: np.ndarray  # SID numbers (groups, G),
    _rewards: torch.Tensor  # and rewards by function, of all processes
    _idle_slices: bool  # whether a slice without a scored group may leave the model alone
    _slice: dict[str, Any]  # the completions that the policy pass under way is about,
    _logps: torch.Tensor  # and what it finds, without gradient
    _entropies: torch.Tensor | None
    _tokens: dict[str, list[torch.Tensor]]  # KL and entropies of the step's slices so far

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._tokens = {}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the reference model too, which syncing changes during a run; before the checkpoint counts as whole."""
        super().save_model(output_dir, _internal_call)
        if self.args.sync_ref_model and output_dir is not None and self.args.should_save:
            save_model(self.accelerator.unwrap_model(self.ref_model), str(Path(output_dir) / REFERENCE_FILE))

    def restore_reference(self, checkpoint: str) -> None:
        """Take the reference model of the checkpoint that training goes on from.

        Raises:
            ArtefactError: If the checkpoint has none.
        """
        path = Path(checkpoint) / REFERENCE_FILE
        if not path.is_file():
            raise ArtefactError(
                f"{path}: the reference of the unfinished run is not there. Give --restart true to begin again."
            )
        reference = self.accelerator.unwrap_model(self.ref_model)
        load_model(reference, path, device=str(reference.device))

    def _get_train_sampler(self, dataset: Any = None) -> EpochSampler:
        rows: Any = self.train_dataset if dataset is None else dataset
        return EpochSampler(
            data_source=rows,
            mini_repeat_count=self.num_generations,
            batch_size=(self.args.generation_batch_size or 0) // self.num_generations,
            repeat_count=self.args.gradient_accumulation_steps,
            seed=self.args.seed,
        )

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        size = self.num_generations
        ids = encode_prompt(self.bundle.tokenizer, prompts[::size], self.bundle.max_prompt_length).ids
        return [prompt for prompt in ids for _ in range(size)], None, {}

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Roll out once a step, and give one slice of whole groups after the other.

        TRL's own method mixes the completions of all groups before it slices.
        """
        slices = self.args.gradient_accumulation_steps
        if self._step % slices == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(batch, slices)
        return self._buffered_inputs[self._step % slices]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Roll out and reward; then ask the reference about the groups that matter alone."""
        self._rows = inputs
        beta, self.beta = self.beta, 0.0  # TRL would ask the reference before there are rewards
        try:
            batch = super()._generate_and_score_completions(inputs)
        finally:
            self.beta = beta
        size = self.num_generations
        rewards = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(1).view(-1, size)
        signal = rewards.amax(1) > rewards.amin(1)  # (all groups,)
        self._metrics["train"]["zero_variance"].append(1 - float(signal.float().mean()))
        groups = len(inputs) // size
        mine = slice(self.accelerator.process_index * groups, (self.accelerator.process_index + 1) * groups)
        rewards, signal = rewards[mine], signal[mine]
        advantages = batch["advantages"].view(-1, size)
        if self.sibling_alpha < 1:
            codes = [[self.sid_tokens[sid] for sid in group] for group in self._sids.tolist()]
            siblings = torch.from_numpy(sibling_advantages(codes, rewards.cpu().numpy())).to(advantages)
            advantages = self.sibling_alpha * advantages + (1 - self.sibling_alpha) * siblings
        # The mean of equal rewards can differ from them in the last digit: such groups get an advantage of exactly 0.
        batch["advantages"] = advantages.masked_fill(~signal.unsqueeze(1), 0.0).flatten()
        scored = signal | self.keep_zero_variance
        batch["scored"] = scored.repeat_interleave(size)
        self._idle_slices = bool(scored.any())  # else the optimiser would miss most gradients
        if self.beta:  # without gradient there is room for more prompts at a time than in the policy pass
            at_once = size * max(_PROMPTS_AT_ONCE, groups // self.args.gradient_accumulation_steps)
            parts = (
                {name: values[start : start + at_once] for name, values in batch.items() if values.ndim}
                for start in range(0, len(inputs), at_once)
            )
            with torch.no_grad():
                logps = [self._completion_logps(self.ref_model, part)[0] for part in parts]
            batch["ref_per_token_logps"] = torch.cat(logps)
        return batch

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._rewards = super()._calculate_rewards(*args, **kwargs)
        return self._rewards

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], None]:
        """Each prompt comes G times in a row; decode it once and give G SIDs, the most probable first."""
        model = self.accelerator.unwrap_model(self.model)
        prompts = prompt_ids[::num_generations]
        with self.accelerator.autocast():
            if self.rollouts == "beams":
                self._sids, scores = decode_prompts(
                    model, prompts, self.trie, num_generations, batch_size=_PROMPTS_AT_ONCE
                )
            else:
                self._sids, scores = self._sample(model, prompts, num_generations)
        rows = self._rows[::num_generations]
        completions = [
            self.sid_tokens[sid] + row["tail"]
            for found, row in zip(self._sids.tolist(), rows, strict=True)
            for sid in found
        ]
        hits = (self._sids == np.array([row["target"] for row in rows])[:, None]).any(1)
        seen = torch.zeros(self.trie.n_sids + 2, device=self.accelerator.device)
        seen[torch.from_numpy(self._sids).flatten().to(seen.device)] = 1
        seen[-2:] = torch.tensor([hits.mean(), np.exp(scores).sum(1).mean()])
        total = self.accelerator.reduce(seen, "sum").cpu()
        figures = {
            "hit@g": float(total[-2]) / self.accelerator.num_processes,
            "beam_mass": float(total[-1]) / self.accelerator.num_processes,
            "distinct_items": int((total[:-2] > 0).sum()),
        }
        for name, value in figures.items():
            self._metrics["train"][name].append(value)
        return completions, None

    def _sample(self, model: PreTrainedModel, prompts: list[list[int]], count: int) -> tuple[np.ndarray, np.ndarray]:
        """SIDs drawn without replacement and their log-probabilities in the trie, both (prompts, count), best first."""
        sids = np.zeros((len(prompts), count), dtype=np.int64)
        scores = np.zeros((len(prompts), count), dtype=np.float32)
        training = model.training
        model.eval()
        try:
            for places in length_batches(prompts, _PROMPTS_AT_ONCE):
                found = sample_search(model, [prompts[place] for place in places], self.trie, count)
                log_probs, order = found.log_probs.sort(dim=1, descending=True)
                sids[places] = found.sids.gather(1, order).cpu().numpy()
                scores[places] = log_probs.float().cpu().numpy()
        finally:
            model.train(training)
        return sids, scores

    def _completion_logps(self, model: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities and entropies (R, C) of the scored completions of a batch, 0 elsewhere."""
        size = self.num_generations
        scored = batch["scored"][::size].nonzero().flatten().tolist()
        completion_mask = batch["completion_mask"].bool()
        if not scored and self._idle_slices and isinstance(model, PreTrainedModel):
            smallest = min(model.parameters(), key=torch.numel)  # something to go backwards to
            nothing = torch.zeros(completion_mask.shape, device=smallest.device) + 0.0 * smallest.sum().float()
            return nothing, nothing.detach()
        prompt_lists, completion_lists = [], []
        for group in scored or [0]:
            first = group * size
            prompt_lists.append(batch["prompt_ids"][first][batch["prompt_mask"][first].bool()].tolist())
            rows = slice(first, first + size)
            lengths = completion_mask[rows].sum(1).tolist()
            lists = batch["completion_ids"][rows].tolist()
            completion_lists.append([ids[:length] for ids, length in zip(lists, lengths, strict=True)])
        if not scored:  # a distributed model waits for every process: take part with a token of no weight
            prompt_lists, completion_lists = [prompt_lists[0][:1]], [[completion_lists[0][0][:1]]]
        with self.accelerator.autocast():
            logps, entropies = shared_prefix_logps(
                model, self.accelerator.unwrap_model(model), prompt_lists, completion_lists
            )
        if not scored:
            nothing = logps.sum() * 0.0 + torch.zeros(completion_mask.shape, device=logps.device)
            return nothing, None if entropies is None else nothing.detach()
        mask = completion_mask & batch["scored"].unsqueeze(1)
        empty = torch.zeros(mask.shape, device=logps.device)
        return empty.masked_scatter(mask, logps), (
            None if entropies is None else empty.masked_scatter(mask, entropies.detach())
        )

    def _get_per_token_logps_and_entropies(
        self, model: Any, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        logps, self._entropies = self._completion_logps(model, self._slice)
        self._logps = logps.detach()
        return logps, self._entropies, None

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's loss; where a group is not scored, both log-probabilities are 0, and so are its loss and KL."""
        self._slice = inputs
        loss = super()._compute_loss(model, inputs)
        mask = inputs["completion_mask"].bool() & inputs["scored"].unsqueeze(1)
        found = {} if self._entropies is None else {"entropy": self._entropies[mask]}
        if self.beta:
            difference = (inputs["ref_per_token_logps"] - self._logps)[mask]
            found["kl"] = difference.exp() - difference - 1
        self._log_tokens(found)
        return loss

    def _log_tokens(self, found: dict[str, torch.Tensor]) -> None:
        """Log means over all scored tokens of a step with its last slice, in the place of TRL's over all tokens."""
        metrics = self._metrics["train"]
        last = (self._step + 1) % self.args.gradient_accumulation_steps == 0
        for name, values in found.items():
            self._tokens.setdefault(name, []).append(values)
            metrics[name][-1] = float("nan")  # left out of what is logged
            if not last:
                continue
            values = torch.cat([*self._tokens.pop(name), values.new_full((1,), torch.nan)])  # there may be none
            values = self.accelerator.gather(self.accelerator.pad_across_processes(values, pad_index=torch.nan))
            metrics[name][-1] = values.nanmean().item()
            if name == "kl":
                metrics["kl_p99"].append(values.nanquantile(0.99).item())


def grpo_rows(
    builder: ExampleBuilder, tokenizer: Any, config: GrpoConfig
) -> tuple[dict[str, list[Any]], dict[str, int]]:
    """The prompts to train on, each with its own target as a column, and the number of prompts of each task.

    Rows are filled up to whole steps by repeating some of a fixed random order, so that none is dropped.

    Raises:
        ConfigError: If a task's completion is not an SID.
    """
    names = ("prompt", "target", "target_sid", "tail", "task", "history")
    rows: dict[str, list[Any]] = {name: [] for name in names}
    numbers = builder.table.sid_numbers
    counts = {}
    for task, weight in config.tasks.items():
        if COMPLETION_FIELD.get(task, "sid") != "sid":
            raise ConfigError(
                f"task {task!r} answers with a {COMPLETION_FIELD[task]}; GRPO needs tasks that answer with an SID."
            )
        examples = builder.build(task, "train")
        histories = None if task in ITEM_TASKS else builder.corpus.rows("train")["history"].tolist()
        chosen = choose_examples(len(examples), weight, config.seed)
        counts[task] = len(chosen)
        for place in chosen:
            example = examples[place]
            sid = builder.table.sids[example.target]
            rows["prompt"].append(example.prompt)
            rows["target"].append(int(numbers[example.target]))
            rows["target_sid"].append(sid)
            rows["tail"].append(encode_completion(tokenizer, [example.completion[len(sid) :]])[0])
            rows["task"].append(task)
            rows["history"].append(None if histories is None else histories[place].tolist())
    total = len(rows["prompt"])
    missing = -total % config.prompts_per_step
    again = np.random.default_rng(config.seed).permutation(total)
    extra = np.resize(again, missing)
    return {name: values + [values[place] for place in extra] for name, values in rows.items()}, counts


def load_reference(config: GrpoConfig, bundle: Bundle) -> dict[str, torch.Tensor]:
    """Weights of the checkpoint that the KL term is measured against.

    Raises:
        ArtefactError: If it was trained on other SIDs, or its weights have other shapes.
    """
    weights = load_bundle(config.reference, dtype=bundle.model.dtype, table=bundle.table).model.state_dict()
    own = bundle.model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        shapes = [tuple(part[name].shape) if name in part else None for part in (weights, own)]
        if shapes[0] != shapes[1]:
            raise ArtefactError(
                f"{config.reference}: its {name} has shape {shapes[0]}, that of {config.checkpoint} {shapes[1]}. Give "
                "a reference of the same shape."
            )
    return weights


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
    corpus = Corpus.load(config.corpus)
    bundle = load_bundle(config.checkpoint, dtype=resolve_dtype(config.dtype))
    if isinstance(bundle.model, CatalogueModel):
        raise ConfigError(
            f"{config.checkpoint}: is a catalogue model, whose rewards need no rollouts. Sharpen it with "
            "scripts/train_catalogue.py --objective expected or grpo."
        )
    table, tokenizer = bundle.table, bundle.tokenizer
    if table.n_unique < config.generations:
        raise ConfigError(
            f"generations is {config.generations}, but the catalogue has {table.n_unique} distinct SIDs; ask for fewer."
        )
    reference = load_reference(config, bundle) if config.reference else None
    builder = ExampleBuilder(corpus, table, bundle.wording, special_texts(tokenizer))
    rows, task_counts = grpo_rows(builder, tokenizer, config)
    weights = parse_rewards(config.rewards)
    check_columns(weights, rows, list(task_counts))
    vectors = None
    if config.reward_vectors:
        vectors = load_vector_artefact(config.reward_vectors, corpus.items["item_id"].tolist())
    scorer = sequential_scorer(config.reward_model, config.corpus) if config.reward_model else None
    sources = RewardSources(table, config.generations, vectors, scorer)
    rewards = [make_reward(name, sources) for name in weights]
    trie = Trie.build(table.codes, bundle.code_ids)
    longest_tail = max(map(len, rows["tail"]))

    total = len(rows["prompt"])
    logger.info(
        "GRPO on %s prompts (%s), %d filled up; %d rollouts each (%s); rewards %s.",
        f"{sum(task_counts.values()):,}",
        ", ".join(f"{task} {count:,}" for task, count in task_counts.items()),
        total - sum(task_counts.values()),
        config.generations,
        config.rollouts,
        ", ".join(f"{name} x {weight:g}" for name, weight in weights.items()),
    )
    names = "prompts_per_step and prompts_per_device"
    plan = plan_steps(config, total, config.prompts_per_step, config.prompts_per_device, names, "prompts")
    args = GRPOConfig(
        **trainer_arguments(config, plan, "ndcg", run.folder),
        max_steps=config.max_steps,
        per_device_train_batch_size=config.prompts_per_device * config.generations,
        per_device_eval_batch_size=config.generations,
        logging_steps=max(1, plan.eval_steps // 10),
        steps_per_generation=plan.accumulation,
        num_generations=config.generations,
        max_completion_length=table.levels + longest_tail,
        loss_type=LOSSES[config.loss][0],
        importance_sampling_level=LOSSES[config.loss][1],
        reward_weights=list(weights.values()),
        beta=config.beta,
        use_bias_correction_kl=False,
        scale_rewards="group",
        temperature=1.0,
        sync_ref_model=config.sync_reference,
        ref_model_sync_steps=config.sync_steps,
        ref_model_mixup_alpha=config.sync_share,
        remove_unused_columns=False,
    )
    args.eval_on_start = run.checkpoint is None
    trainer = SidGrpoTrainer(
        model=bundle.model,
        reward_funcs=[*rewards],
        args=args,
        train_dataset=Dataset.from_dict(rows),
        eval_dataset=Dataset.from_dict({"prompt": ["-"]}),
        processing_class=tokenizer,
        callbacks=early_stopping(config),
    )
    numbers = table.sid_numbers
    vocabulary = tokenizer.get_vocab()
    tokens = {int(n): [vocabulary[t] for t in sid] for n, sid in zip(numbers, table.token_tuples, strict=True)}
    # An SID that begins another has no probability of its own; with the end token behind it, it has.
    mixed = config.rollouts == "sampling" and trie.mixed_ends
    drawn = trie.with_tail([tokenizer.eos_token_id]) if mixed else trie
    trainer.bundle, trainer.trie = bundle, drawn.to(bundle.model.device)
    trainer.sid_tokens = [tokens[number] for number in range(table.n_unique)]
    trainer.rollouts, trainer.sibling_alpha = config.rollouts, config.sibling_alpha
    trainer.keep_zero_variance = config.keep_zero_variance
    if reference is not None:
        trainer.accelerator.unwrap_model(trainer.ref_model).load_state_dict(reference)
    trainer.validation = validation_set(config, bundle, builder, trie)
    if bundle.model.dtype != torch.float32 and not trainer.is_deepspeed_enabled:
        logger.warning(
            "The weights are %s without a float32 copy: at learning rate %g most of a step rounds to nothing. "
            "Give --dtype float32 (with --mixed_bf16 true to compute in bfloat16), or launch with ZeRO-2.",
            bundle.model.dtype,
            config.learning_rate,
        )
    if config.sync_reference and run.checkpoint is not None:
        trainer.restore_reference(run.checkpoint)
    run.train(trainer)
    keep_start_if_better(trainer, config.checkpoint)
    return run.finish(trainer, bundle, {"rows": task_counts})
