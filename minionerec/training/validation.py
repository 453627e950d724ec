"""Validation by ranking: held-out prompts answered by the evaluator's own decoder during training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.decoding.decoder import decode_prompts, target_ranks
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, encode_prompt
from minionerec.training.config import RunConfig

_METRICS = ("NDCG@10", "HR@10", "HR@1")


@dataclass(frozen=True)
class ValidationSet:
    """Prompts whose targets are ranked at each validation.

    Attributes:
        prompts: Token ids of each prompt.
        targets: int64 (R,), number of each target in the trie.
        trie: SIDs, or titles, of the catalogue.
        num_beams: Beam width.
    """

    prompts: Sequence[Sequence[int]]
    targets: np.ndarray
    trie: Trie
    num_beams: int


def validation_set(
    config: RunConfig, bundle: Bundle, builder: ExampleBuilder, trie: Trie, numbers: np.ndarray | None = None
) -> ValidationSet | None:
    """A fixed random sample of validation rows for ranking.

    Args:
        config: How many rows (-1 for all, 0 for none), the beam width, and the seed of the sample.
        bundle: Tokenizer, SIDs and prompt length.
        builder: Makes the prompts.
        trie: SIDs, or titles, of the catalogue.
        numbers: int64 (N,), number of each item in the trie; those of its SIDs if None.
    """
    if config.eval_rows == 0:
        return None
    examples = builder.build(bundle.task, "valid")
    if 0 < config.eval_rows < len(examples):
        chosen = np.sort(np.random.default_rng(config.seed).permutation(len(examples))[: config.eval_rows])
        examples = [examples[place] for place in chosen]
    prompts = encode_prompt(bundle.tokenizer, [example.prompt for example in examples], bundle.max_prompt_length).ids
    numbers = bundle.table.sid_numbers if numbers is None else numbers
    targets = numbers[[example.target for example in examples]]
    return ValidationSet(prompts, targets, trie, config.eval_beams)


def rank_validation(model: PreTrainedModel, validation: ValidationSet, accelerator: Accelerator) -> dict[str, float]:
    """NDCG@10, HR@10 and HR@1 of the evaluator's own decoder on a validation set, its rows shared among processes."""
    mine = slice(accelerator.process_index, None, accelerator.num_processes)
    with accelerator.autocast():
        sids, _ = decode_prompts(model, validation.prompts[mine], validation.trie, validation.num_beams)
    ranks = target_ranks(sids, validation.targets[mine])
    values = ranking_metrics(ranks, (1, 10))
    sums = torch.tensor([*(values[name].sum() for name in _METRICS), len(ranks)], dtype=torch.float32)
    *totals, rows = accelerator.reduce(sums.to(accelerator.device), "sum").tolist()
    return {name.lower(): total / rows for name, total in zip(_METRICS, totals, strict=True)}
