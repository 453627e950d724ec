"""The stage that trains a catalogue model: maximum likelihood at every item, then, if wanted, a reward."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import StackDataset
from transformers import TrainingArguments

from minionerec.core.artefacts import fingerprint, read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.core.processes import is_main_process, uses_deepspeed, wait_for_everyone
from minionerec.data.contexts import RequestFeature, chosen_features
from minionerec.data.corpus import Corpus
from minionerec.data.roles import ColumnCode, fit_columns
from minionerec.models.backbone.bundle import Bundle, load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.backbone.catalogue.model import check_lengths
from minionerec.models.decoding.branches import evaluating
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.pipeline.config.training import PARTS, CatalogueTrainConfig
from minionerec.pipeline.stages import StageResult
from minionerec.pipeline.training_run import (
    TrainingRun,
    keep_start_if_better,
    training_stage,
)
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.build import new_bundle
from minionerec.training.catalogue.gains import input_gains
from minionerec.training.catalogue.objectives import CatalogueTrainer, Sampler, keep_from_torch
from minionerec.training.catalogue.popularity import fit_popularity, set_popularity
from minionerec.training.catalogue.windows import (
    SidWindows,
    collate,
    held_out_windows,
    older_sids,
    read_windows,
    some_rows,
    target_counts,
    window_items,
    write_windows,
)
from minionerec.training.experts import FittedExperts, fit_experts, set_weights
from minionerec.training.memory import collate_shares

logger = get_logger(__name__)
_BETA2 = 0.98  # second beta of AdamW


def _check_corpus(checkpoint: str, corpus: str, splits: Sequence[str]) -> None:
    """Check that a checkpoint to continue from counted its pairs in these splits of this corpus.

    Raises:
        ArtefactError: If it was another corpus, or in other splits.
    """
    manifest = read_manifest(checkpoint, "checkpoint")
    trained = manifest["counts"].get("splits", ["train"])
    if trained != splits:
        raise ArtefactError(
            f"{checkpoint}: was trained on {' '.join(trained)}, and this run is on {' '.join(splits)}; its transition "
            f"counts differ. Give --splits {' '.join(trained)}, or a checkpoint of these splits."
        )
    counted = manifest["inputs"].get("corpus", {})
    if counted.get("sha256") != fingerprint(corpus):
        raise ArtefactError(
            f"{checkpoint}: was trained on another corpus than {corpus}; its transition counts differ. "
            "Give its own corpus."
        )


def _load_start(checkpoint: str, table: SidTable, objective: str) -> Bundle:
    """The checkpoint that training continues from.

    The likelihood is learned without the popularity that was weighed after it, as in a first training; rewards are for
    what the model recommends, and that counts it. Experts follow every training, and are refitted.

    Raises:
        ConfigError: If it holds another kind of model.
    """
    bundle = load_bundle(checkpoint, table=table)
    if not isinstance(bundle.model, CatalogueModel):
        raise ConfigError(
            f"{checkpoint}: holds a {type(bundle.model).__name__}, not a catalogue model. Train it with minionerec "
            "grpo."
        )
    if objective == "likelihood" and bundle.model.popularity is not None:
        bundle.model.popularity.weights.zero_()
    if bundle.model.experts is not None:
        bundle.model.experts.turn_off()
    return bundle


def _features(corpus: Corpus, names: list[str], started: Bundle | None) -> tuple[RequestFeature, ...]:
    """The request features that the model is conditioned on, by the setting or the checkpoint to start from.

    Raises:
        ConfigError: If the corpus, or that checkpoint, does not have what the setting names.
    """
    if started is None:
        return chosen_features(corpus, names)
    known = [feature.name for feature in started.wording.context]
    if names and names != known:
        trained = f"with context {', '.join(known)}" if known else "without context"
        raise ConfigError(
            f"{started.path}: was trained {trained}, and context is {', '.join(names)}. Leave context out, or train "
            "it with that."
        )
    return started.wording.context


def _weigh(
    model: CatalogueModel,
    windows: SidWindows,
    heldout: SidWindows,
    features: Sequence[RequestFeature],
    chosen: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Fit popularity and experts, for the manifest, or take weights that were fitted before.

    Args:
        model: The trained model, changed in place.
        windows: Training windows.
        heldout: Validation examples.
        features: Request features that the model is conditioned on.
        chosen: The counts of a manifest that has such weights; where it has none, these parts are left out. None to
            fit them.
    """
    found: dict[str, Any] = {}
    if model.popularity is not None:
        if chosen is None:
            weights = fit_popularity(model, windows, heldout, features)
        else:
            weights = chosen.get("popularity", {})
            set_popularity(model, windows, features, weights)
        found["popularity"] = weights
    if model.experts is not None:
        if chosen is None:
            fitted = fit_catalogue_experts(model, heldout)
            experts = None if fitted is None else fitted.counts()
        else:
            experts = chosen.get("experts")
            set_weights(model.experts, experts)
        found |= {} if experts is None else {"experts": experts}
    return found


def fit_catalogue_experts(model: CatalogueModel, heldout: SidWindows) -> FittedExperts | None:
    """Fit the experts of a catalogue model, changed in place; see `minionerec.training.experts.fit_experts`."""
    if model.experts is None:
        return None

    def score(numbers: np.ndarray, contexts: np.ndarray) -> tuple[torch.Tensor, None]:
        histories, given = (
            torch.from_numpy(values.astype(np.int64)).to(model.device)
            for values in (heldout["histories"][numbers], contexts)
        )
        events = None
        if "events" in heldout:
            events = torch.from_numpy(heldout["events"][numbers].astype(np.int64)).to(model.device)
        return model.leaf_log_probs(histories, given, events=events), None

    with evaluating(model):
        return fit_experts(model.experts, heldout, score)


def bytes_of_scores(trainer: CatalogueTrainer, negatives: int) -> int:
    """Bytes that scores and their gradients take at each position of a window.

    Args:
        trainer: The trainer of the model.
        negatives: SIDs that a step of the sampled loss draws.
    """
    config = cast(CatalogueModel, trainer.model).config
    scored = int(config.num_sids)
    if trainer.sampler is not None:
        positions = trainer.args.per_device_train_batch_size * config.max_history
        scored = min(scored, positions + negatives)
    return 4 * scored * (2 * int(config.towers) + 2)


@training_stage
def run_catalogue(config: CatalogueTrainConfig, run: TrainingRun) -> StageResult:
    """Train a catalogue model."""
    if config.loss == "sampled" and uses_deepspeed():
        raise ConfigError(
            "the sampled loss has an optimiser of its own, but this launch uses DeepSpeed, which has another. "
            "Launch without DeepSpeed (accelerate launch --multi_gpu, or torchrun), or set loss to exact."
        )
    start = config.checkpoint or None
    if start is not None:
        _check_corpus(start, config.corpus, run.splits)
    corpus = run.load_corpus()
    table = SidTable.load_index(config.sids, corpus.items["item_id"].tolist())
    if config.objective == "grpo" and config.generations > table.n_unique:
        raise ConfigError(
            f"generations is {config.generations}, but the catalogue has {table.n_unique} distinct SIDs; ask for fewer."
        )
    started = None if start is None else _load_start(start, table, config.objective)
    features = _features(corpus, config.context, started)
    columns: list[ColumnCode] = []
    if started is None:  # before anything is written that an interrupted run would leave
        check_lengths(table.codes)
        columns = fit_columns(corpus.items, corpus.roles, config.item_columns, corpus.popularity() > 0)
    folder = run.rows
    with_events = bool(corpus.event_names if started is None else started.wording.events)
    if is_main_process():
        write_windows(corpus, table, config.recency, folder, features, with_events)
    wait_for_everyone()
    windows = read_windows(folder)
    wait_for_everyone()  # one that is refused from here on removes the folder
    rows = corpus.valid
    rows = rows.take(some_rows(len(rows), config.loss_examples, config.seed))
    heldout = held_out_windows(rows, table.sid_numbers, corpus.max_history, features, with_events)
    bundle = started or new_bundle(
        corpus,
        table,
        windows,
        seed=config.seed,
        vectors=config.vectors,
        vector_width=config.vector_width,
        columns=columns,
        context=features,
        reach=config.reach,
        experts=config.experts,
        recency=config.recency,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.inner_size,
        towers=config.towers,
        **{part: part not in config.without for part in PARTS},
    )
    counts: dict[str, Any] = {
        "windows": len(windows["histories"]),
        "targets": int(target_counts(windows, table.n_unique).sum()),
    }
    logger.info(
        "Training %s parameters in %d tower(s) on %s windows with %s targets; %s transition counts.",
        f"{bundle.model.num_parameters():,}",
        bundle.model.config.towers,
        f"{counts['windows']:,}",
        f"{counts['targets']:,}",
        f"{bundle.model.config.num_transitions:,}",
    )
    model = cast(CatalogueModel, bundle.model)
    plan = run.plan_steps(counts["windows"], "windows")
    args = TrainingArguments(
        **run.arguments(plan, "ndcg"),
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        per_device_train_batch_size=plan.per_device,
        per_device_eval_batch_size=4 * plan.per_device,
        logging_steps=plan.eval_steps,
        adam_beta2=_BETA2,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        eval_on_start=config.objective != "likelihood" and run.checkpoint is None and run.validates,
    )
    trainer = CatalogueTrainer(
        model=model,
        args=args,
        data_collator=collate,
        train_dataset=StackDataset(**cast(Any, windows)),
        eval_dataset=StackDataset(**cast(Any, heldout)) if run.validates else None,
        processing_class=bundle.tokenizer,
        callbacks=run.early_stopping(),
    )
    model.set_dropout(config.dropout)
    trainer.objective, trainer.generations, trainer.table = config.objective, config.generations, bundle.table
    if config.loss == "sampled":
        targets = target_counts(windows, bundle.table.n_unique)
        trainer.sampler = Sampler(targets, config.negatives)
        keep_from_torch(model)
    if config.beta:
        trainer.beta = config.beta
        reference: Any = copy.deepcopy(model)
        trainer.reference = reference.eval().requires_grad_(False).to(args.device)
    if not config.device_batch_size:
        trainer.data_collator = partial(collate_shares, collate=collate, tokens=window_items)
        trainer.compute_in_parts(None, bytes_of_scores(trainer, config.negatives))
    if run.validates:
        builder = ExampleBuilder(corpus, table, bundle.wording, special_texts(bundle.tokenizer))
        trainer.validation = run.validation_set(bundle, builder, Trie.build(table.codes, bundle.code_ids))
    run.train(trainer)
    if start is not None and config.objective != "likelihood" and run.validates:
        keep_start_if_better(run, trainer, start, "a higher beta", "another objective")
    trained = cast(CatalogueModel, trainer.accelerator.unwrap_model(trainer.model))
    chosen: Mapping[str, Any] | None = None if run.validates else {}
    if config.fitted_weights:
        chosen = read_manifest(run.work.stage.inputs["fitted_weights"])["counts"]
        run.work.inputs_read()
    elif not run.validates and (trained.experts is not None or trained.popularity is not None):
        logger.warning(
            "Experts and popularity are left out: the examples that their weights would be fitted on were trained on. "
            "Give --fitted_weights, a checkpoint of the same settings that was trained without them."
        )
    heldout["older"] = older_sids(rows, table.sid_numbers, corpus.max_history)
    counts |= _weigh(trained, windows, heldout, features, chosen)
    if run.validates and (gains := input_gains(trained, heldout, [feature.name for feature in features])):
        counts["inputs"] = gains
    return run.finish(trainer, bundle, counts)
