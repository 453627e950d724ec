"""Rows that supervised fine-tuning trains on: token ids, labels where there is a loss, and what a teacher is asked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from minionerec.core.errors import ConfigError
from minionerec.data.moments import row_moments
from minionerec.data.rows import SplitRows
from minionerec.data.windows import Window, recency_weights, user_windows, varied_windows
from minionerec.models.prompts.examples import (
    LONGEST_COMPLETION,
    ExampleBuilder,
    PromptExample,
    encode_completion,
    encode_prompt,
)
from minionerec.models.prompts.wording import NEXT_SID, NEXT_TITLE
from minionerec.training.config import SftConfig
from minionerec.training.run import choose_examples


@dataclass
class TokenizedExamples:
    """Tokenised rows.

    Attributes:
        input_ids: Token ids of each row.
        labels: Its labels, as many: -100 where there is no loss.
        weights: Weight of each label's loss, as many; 1 where there is no label.
        histories: What a teacher reads of each row: SID numbers from 1, the oldest first; empty where it has no say.
        slots: For each SID among the row's labels, in their order, the place in the history of the item before it; -1
            where there is none, and no teacher is asked; empty where no label is an SID that one could speak about.
        moments: For each of those SIDs the moment that a teacher is told, a place in `minionerec.data.moments.MOMENTS`;
            empty where nothing is told.
        prompts: Token ids of each row's prompt in every way to ask, which epochs take in turn from the first on; empty
            where there is one way. `input_ids` have the wording's first.
        cut: How many prompts, in every way to ask, were too long and lost their first tokens.
        cut_completions: How many completions were too long and lost their last tokens.
    """

    input_ids: list[list[int]] = field(default_factory=list)
    labels: list[list[int]] = field(default_factory=list)
    weights: list[list[float]] = field(default_factory=list)
    histories: list[list[int]] = field(default_factory=list)
    slots: list[list[int]] = field(default_factory=list)
    moments: list[list[int]] = field(default_factory=list)
    prompts: list[list[list[int]]] = field(default_factory=list)
    cut: int = 0
    cut_completions: int = 0

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.input_ids)

    @property
    def columns(self) -> dict[str, list[list[Any]]]:
        """The rows as a data set has them."""
        return {name: getattr(self, name) for name in COLUMNS}

    def take(self, other: "TokenizedExamples", places: Sequence[int]) -> None:
        """Add some of another's rows."""
        for name in COLUMNS:
            own, theirs = getattr(self, name), getattr(other, name)
            own += [theirs[place] for place in places]
        self.cut += other.cut
        self.cut_completions += other.cut_completions

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(map(len, self.input_ids))

    @property
    def losses(self) -> int:
        """Tokens that have a loss."""
        return sum(label >= 0 for row in self.labels for label in row)


COLUMNS = ("input_ids", "labels", "weights", "histories", "slots", "moments", "prompts")


def tokenise_examples(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[PromptExample], max_prompt_length: int, seed: int = 0
) -> TokenizedExamples:
    """Token ids, and labels that are -100 at prompt tokens, of examples, about which a teacher has no say.

    Prompts are cut to their last tokens, completions to their first `LONGEST_COMPLETION`. Where there are several ways
    to ask, the seed says with which one each example begins.
    """
    asked = list(zip(*((example.prompt, *example.others) for example in examples), strict=True)) or [()]
    ways = [encode_prompt(tokenizer, texts, max_prompt_length) for texts in asked]
    whole = encode_completion(tokenizer, [example.completion for example in examples])
    completions = [ids[:LONGEST_COMPLETION] for ids in whole]
    ids = [p + c for p, c in zip(ways[0].ids, completions, strict=True)]
    begins = np.random.default_rng(seed).integers(len(ways), size=len(ids)).tolist()
    turns = range(len(ways) if len(ways) > 1 else 0)
    return TokenizedExamples(
        input_ids=ids,
        labels=[[-100] * len(p) + c for p, c in zip(ways[0].ids, completions, strict=True)],
        weights=[[1.0] * len(row) for row in ids],
        histories=[[] for _ in ids],
        slots=[[] for _ in ids],
        moments=[[] for _ in ids],
        prompts=[[ways[(begin + turn) % len(ways)].ids[row] for turn in turns] for row, begin in enumerate(begins)],
        cut=sum(way.cut for way in ways),
        cut_completions=sum(len(ids) > LONGEST_COMPLETION for ids in whole),
    )


def tokenise_rows(
    tokenizer: PreTrainedTokenizerBase,
    builder: ExampleBuilder,
    max_prompt_length: int,
    recency: float = 0.0,
    seed: int = 0,
) -> TokenizedExamples:
    """The training rows of the task next_sid, one an interaction, with their ages' weights and histories."""
    rows = tokenise_examples(tokenizer, builder.build("next_sid", "train"), max_prompt_length, seed)
    ages = recency_weights(builder.corpus, recency)
    with_histories(rows, builder, builder.corpus.rows("train"), ages / ages.mean())
    return rows


def with_histories(rows: TokenizedExamples, builder: ExampleBuilder, asked: SplitRows, weights: np.ndarray) -> None:
    """Give rows of the task next_sid the weights of their targets, and what a teacher reads.

    Args:
        rows: R rows.
        builder: What made them.
        asked: The same rows of the corpus.
        weights: float32 (R,).
    """
    rows.weights = [[weight] * len(ids) for weight, ids in zip(weights.tolist(), rows.input_ids, strict=True)]
    numbers = builder.table.sid_numbers + 1
    kept = builder.corpus.max_history
    rows.histories = [numbers[np.asarray(past)[-kept:]].tolist() for past in asked.histories]
    rows.slots = [[len(history) - 1] for history in rows.histories]
    if builder.tells_moments:
        rows.moments = [[moment] for moment in row_moments(asked.times, len(asked)).tolist()]


def check_all_positions(builder: ExampleBuilder, task: str = NEXT_SID) -> None:
    """Check that a history with its target is again a prompt, so that one row can hold a loss at every item.

    Raises:
        ConfigError: If the wording asks in several ways, puts anything but the history into the prompt, or marks the
            end of completions.
    """
    ways = len(builder.wording.task(task).prompts)
    if ways > 1:
        raise ConfigError(
            f"all_positions needs a wording whose prompt is the bare history, but {builder.wording.name!r} asks in "
            f"{ways} ways. Use wording compact."
        )
    if builder.tells_moments:
        raise ConfigError(
            f"all_positions needs a wording whose prompt is the bare history, but {builder.wording.name!r} says behind "
            "it when the next item comes. Set all_positions to false, or use wording compact."
        )
    first = builder.prompt(task, history=[])
    item = 0
    grown = first + builder.completion(task, item)
    again = builder.prompt(task, history=[item])
    if grown != again or again + builder.completion(task, item) != builder.prompt(task, history=[item, item]):
        raise ConfigError(
            f"all_positions needs a wording whose prompt is the bare history, but in {builder.wording.name!r} the "
            f"prompt and completion of an item ({grown!r}) are not the next prompt ({again!r}). Use wording compact."
        )


def tokenise_windows(
    tokenizer: PreTrainedTokenizerBase,
    builder: ExampleBuilder,
    windows: Sequence[Window],
    recency: float = 0.0,
    task: str = NEXT_SID,
) -> TokenizedExamples:
    """Windows of the training rows as rows with a loss at every target item, weighed by age.

    Of titles there is no loss at items that have none, and no teacher has a say.
    """
    start, items, cut = window_texts(tokenizer, builder, task)
    said = [task == NEXT_SID or bool(title.strip()) for title in builder.titles]
    numbers = (builder.table.sid_numbers + 1).tolist()
    ages = recency_weights(builder.corpus, recency)
    ages /= ages.mean()
    rows = TokenizedExamples()
    for window in windows:
        first = window.first_target
        ids, labels, weights = list(start), [-100] * len(start), [1.0] * len(start)
        for place, (item, row) in enumerate(zip(window.items.tolist(), window.rows.tolist(), strict=True)):
            ids += items[item]
            labels += items[item] if place >= first and said[item] else [-100] * len(items[item])
            weights += [float(ages[row]) if place >= first and row >= 0 else 1.0] * len(items[item])
        rows.input_ids.append(ids)
        rows.labels.append(labels)
        rows.weights.append(weights)
        by_sid = task == NEXT_SID
        rows.histories.append([numbers[item] for item in window.items[:-1].tolist()] if by_sid else [])
        rows.slots.append(list(range(first - 1, len(window.items) - 1)) if by_sid else [])
        rows.moments.append([])
        rows.prompts.append([])
    rows.cut_completions = cut
    return rows


def window_texts(
    tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder, task: str
) -> tuple[list[int], list[list[int]], int]:
    """What windows are made of: token ids of their beginning and of each item, and how many items were cut.

    Raises:
        ConfigError: See `check_all_positions`.
    """
    check_all_positions(builder, task)
    start = encode_prompt(tokenizer, [builder.prompt(task, history=[])], None).ids[0]
    whole = encode_completion(tokenizer, [builder.completion(task, item) for item in range(len(builder.titles))])
    return start, [ids[:LONGEST_COMPLETION] for ids in whole], sum(len(ids) > LONGEST_COMPLETION for ids in whole)


def training_rows(
    tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder, config: SftConfig
) -> tuple[TokenizedExamples, dict[str, int]]:
    """The training rows of all tasks by their weights, and the number of rows of each task."""
    chosen, counts = TokenizedExamples(), {}
    for task, weight in config.tasks.items():
        if task in (NEXT_SID, NEXT_TITLE) and config.all_positions:
            windows = user_windows(builder.corpus)
            windows += varied_windows(windows, config.variants, config.seed)
            rows = tokenise_windows(tokenizer, builder, windows, config.recency, task)
        elif task == NEXT_SID:
            rows = tokenise_rows(tokenizer, builder, config.max_prompt_length, config.recency, config.seed)
        else:
            examples = builder.build(task, "train")
            rows = tokenise_examples(tokenizer, examples, config.max_prompt_length, config.seed)
        places = choose_examples(len(rows), weight, config.seed)
        counts[task] = len(places)
        chosen.take(rows, places.tolist())
    return chosen, counts
