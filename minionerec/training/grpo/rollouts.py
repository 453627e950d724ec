"""First part of a step: the policy answers each prompt with G distinct SIDs of the catalogue, best first.

They are found by the evaluator's own beam search, or drawn without replacement. Beams are not samples of the policy;
`beam_mass` in the log shows how far the two are apart.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.session import UNKNOWN, row_contexts
from minionerec.models.decoding.beam import sample_search
from minionerec.models.decoding.branches import evaluating
from minionerec.models.decoding.decoder import decode_batches, decode_prompts, fitting_batch_size
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, encode_completion, encode_prompt
from minionerec.models.prompts.wording import COMPLETION_FIELDS
from minionerec.sid.table import SidTable
from minionerec.training.examples import Columns, ExampleMaker, Ragged, TaskExamples, TrainingSet, ragged, training_set
from minionerec.training.rewards import Rollouts

# Inputs of a step: prompts as token ids, each with the number of its own target.


class Row(TypedDict):
    """A prompt, and the data of its example.

    Attributes:
        prompt: Token ids.
        target: SID number of the target.
        tail: Token ids that follow the SID in a completion.
        history: Item indices, oldest first; None where the prompt is about an item, not a user.
        context: The session context that the prompt gives, an index into `SESSION_CONTEXTS`.
    """

    prompt: list[int]
    target: int
    tail: list[int]
    history: list[int] | None
    context: int


def check_task(task: str) -> None:
    """Check that a task answers with an SID.

    Raises:
        ConfigError: If it does not.
    """
    fields = COMPLETION_FIELDS.get(task, ("sid",))
    if fields != ("sid",):
        raise ConfigError(f"task {task!r} answers with a {' and a '.join(fields)}; take tasks that answer with an SID.")


class PromptExamples(ExampleMaker):
    """Makes prompts of all tasks, each with the number of its target.

    Args:
        tokenizer: The model's tokenizer.
        max_prompt_length: Prompts are truncated to this many last tokens.
        about: The other arguments are those of `ExampleMaker`.

    Raises:
        ConfigError: If a task's completion is not an SID.
    """

    lists: ClassVar[Mapping[str, str]] = {"prompt": "int32", "tail": "int32", "history": "int32"}
    scalars: ClassVar[Mapping[str, str]] = {"target": "int32", "context": "int32"}

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int, *about: Any, **more: Any):
        super().__init__(*about, **more)
        self.tokenizer, self.max_prompt_length = tokenizer, max_prompt_length
        for task in self.tasks:
            check_task(task)

    def examples(self, requested: TaskExamples) -> tuple[Columns, Mapping[str, int]]:
        """Prompts of one task."""
        builder = requested.builder(self.builder)
        made = builder.some(requested.task, "train", requested.items) if len(requested.numbers) else []
        prompts, truncated = encode_prompt(self.tokenizer, [example.prompt for example in made], self.max_prompt_length)
        targets = np.array([example.target for example in made], dtype=np.int64)
        tails = [example.completion[len(builder.table.sids[example.target]) :] for example in made]
        found: dict[str, Ragged | np.ndarray] = {
            "target": builder.table.sid_numbers[targets],
            "prompt": ragged(prompts),
            "tail": ragged(encode_completion(self.tokenizer, tails)),
            "context": np.full(len(made), UNKNOWN, dtype=np.int32),
        }
        if requested.rows is not None and builder.uses_session_context:
            found["context"] = row_contexts(requested.rows.times, len(made)).astype(np.int32)
        if requested.rows is not None:
            found["history"] = requested.rows.flat_histories()[0], requested.rows.lengths
        return found, {"rows": len(made), "truncated": truncated}


def grpo_examples(
    builder: ExampleBuilder,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Mapping[str, float],
    prompts_per_step: int,
    seed: int,
    max_prompt_length: int,
    folder: Path,
    corpus: Corpus | None = None,
) -> TrainingSet:
    """The prompts (`Row`) of all tasks by their weights.

    They are filled up to whole steps by repeating some in a fixed random order, so that none is dropped.

    Args:
        builder: Makes the examples.
        tokenizer: The model's tokenizer.
        tasks: Tasks with their weights.
        prompts_per_step: Prompts an optimiser step.
        seed: Seed of the draws.
        max_prompt_length: Prompts are truncated to this many last tokens.
        folder: Folder of the prompts, written where they do not exist yet.
        corpus: A corpus whose examples are read from its files; that of the builder if None.

    Raises:
        ConfigError: If a task's completion is not an SID.
    """
    about = (builder, corpus or builder.corpus, tasks, seed)
    found = training_set(PromptExamples(tokenizer, max_prompt_length, *about, by_shard=corpus is not None), folder)
    missing, rng = -len(found) % prompts_per_step, np.random.default_rng(seed)
    if corpus is None:
        again = np.resize(rng.permutation(len(found)), missing)
    else:
        again = rng.integers(len(found), size=missing)
    return replace(found, again=again)


PromptSearch = Callable[[PreTrainedModel, Sequence[Sequence[int]]], tuple[np.ndarray, np.ndarray]]
"""Takes a model and P prompts; gives SID numbers int64 and log-probabilities float32, both (P, G), best first."""
RollOut = Callable[[PreTrainedModel, Sequence[Row]], Rollouts]


def beams(trie: Trie, generations: int) -> PromptSearch:
    """The G best SIDs by beam search, as in evaluation.

    Args:
        trie: SIDs of the catalogue.
        generations: Group size G.
    """

    def search(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        return decode_prompts(model, prompts, trie, generations)

    return search


def samples(trie: Trie, generations: int, end_token: int) -> PromptSearch:
    """G SIDs drawn without replacement, with their log-probabilities in the trie.

    Args:
        trie: SIDs of the catalogue.
        generations: Group size G.
        end_token: Follows every SID where some SIDs begin others: those have no probability of their own before it.
    """
    drawn = trie.with_tail([end_token]) if trie.mixed_ends else trie

    def search(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        def decode(positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
            found = sample_search(model, [prompts[position] for position in positions], drawn, generations)
            log_probs, order = found.scores.sort(dim=1, descending=True)
            return found.sids.gather(1, order).cpu().numpy(), log_probs.float().cpu().numpy()

        with evaluating(model):
            return decode_batches(decode, prompts, generations, fitting_batch_size(model, drawn, prompts, generations))

    return search


def roller(search: PromptSearch, table: SidTable) -> RollOut:
    """The rollout function: prompts in, `Rollouts` out.

    Args:
        search: Finds the SIDs.
        table: The SIDs of the catalogue.
    """

    def roll_out(model: PreTrainedModel, rows: Sequence[Row]) -> Rollouts:
        sids, scores = search(model, [row["prompt"] for row in rows])
        targets = np.array([row["target"] for row in rows], dtype=np.int64)
        return Rollouts(sids, targets, scores, [row["history"] for row in rows], table)

    return roll_out
