"""GRPO on ranked beams: a thin subclass of TRL's trainer through its overridable methods.

Rollouts are the project's own constrained beam search: G distinct SIDs of the catalogue for each prompt, best first.
They are not samples of the policy; the probability mass that the beam holds is logged, so that one can see how far the
two are apart. Source of the recipe: Kong et al., "MiniOneRec" (2025); GRPO: Shao et al., "DeepSeekMath" (2024), eq. 3.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_model, save_model
from transformers import EarlyStoppingCallback
from trl import GRPOConfig, GRPOTrainer

from minionerec.backbone.build import resolve_dtype
from minionerec.backbone.bundle import Bundle, load_bundle
from minionerec.backbone.quiet import quiet_libraries
from minionerec.core.artefacts import is_current, read_manifest, require_writable
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger, is_main_process
from minionerec.data.corpus import Corpus
from minionerec.decoding.decoder import decode_prompts
from minionerec.decoding.trie import Trie
from minionerec.prompts.examples import ExampleBuilder, encode_completion, encode_prompt, special_texts
from minionerec.prompts.wording import COMPLETION_FIELD
from minionerec.rewards.ranking import make_rewards
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
from minionerec.training.config import GrpoConfig, parse_tasks
from minionerec.training.shared_prefix import shared_prefix_logps

logger = get_logger(__name__)

REFERENCE_FILE = "reference.safetensors"


class SidGrpoTrainer(RankingEvaluation, GRPOTrainer):
    """TRL's GRPO trainer with beam rollouts, shared-prefix scoring and validation by ranking.

    Each row of its dataset has `prompt` (text), `target` (SID number in the trie), `tail` (token ids that follow the
    SID in a completion) and the columns that rewards read. `bundle`, `trie` and `sid_tokens` (token ids of each SID
    number) are set before training.
    """

    args: GRPOConfig
    measures_loss = False
    bundle: Bundle
    trie: Trie
    sid_tokens: list[list[int]]
    _rows: list[dict[str, Any]]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the reference model too, which syncing changes during a run; before the checkpoint counts as whole."""
        super().save_model(output_dir, _internal_call)
        if self.args.sync_ref_model and output_dir is not None and self.args.should_save:
            save_model(self.accelerator.unwrap_model(self.ref_model), str(Path(output_dir) / REFERENCE_FILE))

    def restore_reference(self, checkpoint: str) -> None:
        """Take the reference model of the checkpoint that training goes on from."""
        reference = self.accelerator.unwrap_model(self.ref_model)
        load_model(reference, Path(checkpoint) / REFERENCE_FILE, device=str(reference.device))

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return encode_prompt(self.bundle.tokenizer, prompts, self.bundle.max_prompt_length), None, {}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._rows = inputs
        return super()._generate_and_score_completions(inputs)

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], None]:
        """Each prompt comes G times in a row; decode it once and give its G best SIDs, best first."""
        model = self.accelerator.unwrap_model(self.model)
        with self.accelerator.autocast():
            sids, scores = decode_prompts(
                model, prompt_ids[::num_generations], self.trie, num_generations, batch_size=64
            )
        rows = self._rows[::num_generations]
        completions = [
            self.sid_tokens[sid] + row["tail"] for found, row in zip(sids.tolist(), rows, strict=True) for sid in found
        ]
        hits = (sids == np.array([row["target"] for row in rows])[:, None]).any(1)
        figures = torch.tensor([hits.mean(), np.exp(scores).sum(1).mean()], device=self.accelerator.device)
        hit, mass = self.accelerator.reduce(figures.float(), "mean").tolist()
        self._metrics["train"]["hit@g"].append(hit)
        self._metrics["train"]["beam_mass"].append(mass)
        return completions, None

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        with self.accelerator.autocast():
            backbone = self.accelerator.unwrap_model(self.model)
            logps, entropies = shared_prefix_logps(model, backbone, input_ids, attention_mask, logits_to_keep)
        return logps, entropies if compute_entropy else None, None


def grpo_rows(
    builder: ExampleBuilder, tokenizer: Any, config: GrpoConfig
) -> tuple[dict[str, list[Any]], dict[str, int]]:
    """The prompts to train on, each with its own target as a column, and the number of prompts of each task.

    Rows are filled up to whole steps by repeating some of a fixed random order, so that none is dropped.

    Raises:
        ConfigError: If a task's completion is not an SID.
    """
    rows: dict[str, list[Any]] = {"prompt": [], "target": [], "target_sid": [], "tail": [], "task": []}
    numbers = builder.table.sid_numbers
    counts = {}
    for task, weight in parse_tasks(config.tasks).items():
        if COMPLETION_FIELD.get(task, "sid") != "sid":
            raise ConfigError(
                f"task {task!r} answers with a {COMPLETION_FIELD[task]}; GRPO needs tasks that answer with an SID."
            )
        examples = builder.build(task, "train")
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
    total = len(rows["prompt"])
    missing = -total % config.prompts_per_step
    again = np.random.default_rng(config.seed).permutation(total)
    extra = np.resize(again, missing)
    return {name: values + [values[place] for place in extra] for name, values in rows.items()}, counts


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
    inputs = {"corpus": config.corpus, "checkpoint": config.checkpoint}
    quiet_libraries()
    output = Path(config.output)
    settings = result_settings(config)
    read_manifest(config.checkpoint, "checkpoint")
    if is_current(output, "checkpoint", settings, inputs):
        logger.info("%s is up to date.", output)
        return TrainingResult(output, read_manifest(output)["counts"], fresh=False)
    if is_main_process():
        require_writable(output)
    corpus = Corpus.load(config.corpus)
    bundle = load_bundle(config.checkpoint, dtype=resolve_dtype(config.dtype))
    table, tokenizer = bundle.table, bundle.tokenizer
    if table.n_unique < config.generations:
        raise ConfigError(
            f"generations is {config.generations}, but the catalogue has {table.n_unique} distinct SIDs; ask for fewer."
        )
    builder = ExampleBuilder(corpus, table, bundle.wording, special_texts(tokenizer))
    rows, task_counts = grpo_rows(builder, tokenizer, config)
    trie = Trie.build(table.codes, bundle.code_ids)
    longest_tail = max(map(len, rows["tail"]))

    total = len(rows["prompt"])
    logger.info(
        "GRPO on %s prompts (%s), %d filled up; %d rollouts each; reward %s.",
        f"{sum(task_counts.values()):,}",
        ", ".join(f"{task} {count:,}" for task, count in task_counts.items()),
        total - sum(task_counts.values()),
        config.generations,
        config.reward,
    )
    names = "prompts_per_step and prompts_per_device"
    plan = plan_steps(config, total, config.prompts_per_step, config.prompts_per_device, names, "prompts")
    args = GRPOConfig(
        **trainer_arguments(config, plan, "ndcg"),
        max_steps=config.max_steps,
        per_device_train_batch_size=config.prompts_per_device * config.generations,
        per_device_eval_batch_size=config.generations,
        logging_steps=max(1, plan.eval_steps // 10),
        steps_per_generation=1,
        num_generations=config.generations,
        max_completion_length=table.levels + longest_tail,
        loss_type="grpo",
        beta=config.beta,
        use_bias_correction_kl=False,
        scale_rewards="group",
        temperature=1.0,
        sync_ref_model=config.sync_reference,
        ref_model_sync_steps=config.sync_steps,
        ref_model_mixup_alpha=config.sync_share,
        remove_unused_columns=False,
    )
    with work_folder(config, inputs, args.should_save) as checkpoint:
        args.eval_on_start = checkpoint is None
        trainer = SidGrpoTrainer(
            model=bundle.model,
            reward_funcs=[*make_rewards(config.reward, config.generations)],
            args=args,
            train_dataset=Dataset.from_dict(rows),
            eval_dataset=Dataset.from_dict({"prompt": ["-"]}),
            processing_class=tokenizer,
            callbacks=[EarlyStoppingCallback(config.patience)] if config.patience else [],
        )
        numbers = table.sid_numbers
        vocabulary = tokenizer.get_vocab()
        tokens = {int(n): [vocabulary[t] for t in sid] for n, sid in zip(numbers, table.token_tuples, strict=True)}
        trainer.bundle, trainer.trie = bundle, trie.to(bundle.model.device)
        trainer.sid_tokens = [tokens[number] for number in range(table.n_unique)]
        trainer.validation = validation_set(
            tokenizer,
            builder,
            trie,
            numbers,
            rows=config.eval_rows,
            num_beams=config.eval_beams,
            max_prompt_length=bundle.max_prompt_length,
            seed=config.seed,
        )
        if bundle.model.dtype != torch.float32 and not trainer.is_deepspeed_enabled:
            logger.warning(
                "The weights are %s without a float32 copy: at learning rate %g most of a step rounds to nothing. "
                "Give --dtype float32 (with --mixed_bf16 true to compute in bfloat16), or launch with ZeRO-2.",
                bundle.model.dtype,
                config.learning_rate,
            )
        if config.sync_reference and checkpoint is not None:
            trainer.restore_reference(checkpoint)
        replace_printer(trainer)
        trainer.train(resume_from_checkpoint=checkpoint)
        keep_start_if_better(trainer, config)
        return finish_run(trainer, bundle, config, settings, inputs, {"rows": task_counts})


def keep_start_if_better(trainer: SidGrpoTrainer, config: GrpoConfig) -> None:
    """Go back to the starting weights where no later validation beat the one before the first step."""
    start = next(row["eval_ndcg@10"] for row in trainer.state.log_history if row["step"] == 0 and "eval_ndcg@10" in row)
    if trainer.state.best_metric is None or start >= trainer.state.best_metric:
        logger.warning(
            "GRPO did not improve validation NDCG@10 (%.4f before, %s at best after): the output holds the weights "
            "of %s. Try a lower learning rate, a higher beta or another reward.",
            start,
            trainer.state.best_metric,
            config.checkpoint,
        )
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.load_state_dict(load_bundle(config.checkpoint, dtype=model.dtype).model.state_dict())
        trainer.state.best_global_step, trainer.state.best_metric = 0, start
