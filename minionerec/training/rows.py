"""Examples of supervised fine-tuning: token ids, labels where there is a loss, and the inputs of a teacher."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.contexts import context_codes
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN
from minionerec.data.rows import ranges
from minionerec.data.windows import FlatWindows, recency_weights, varied_windows
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.context import HIDDEN_SHARE
from minionerec.models.prompts.examples import (
    LONGEST_COMPLETION,
    ExampleBuilder,
    PromptExample,
    encode_completion,
    encode_prompt,
)
from minionerec.models.prompts.wording import NEXT_SID, NEXT_TITLE
from minionerec.training.examples import (
    ExampleMaker,
    MadeColumns,
    Ragged,
    TaskExamples,
    choose_examples,
    ragged,
)
from minionerec.training.sampling import NO_LABEL
from minionerec.training.trainer import ValidationSet

COLUMNS = {
    "input_ids": "int32",
    "labels": "int32",
    "weights": "float32",
    "histories": "int32",
    "slots": "int32",
    "contexts": "int32",
    "events": "int32",
    "prompts": "int32",
}
"""Columns of tokenised examples, each a list:

input_ids: Token ids of each example.
labels: Its labels, as many: -100 where there is no loss.
weights: Weight of each label's loss, as many; 1 where there is no label.
histories: A teacher's history of each: SID numbers from 1, the oldest first; empty where it does not apply.
slots: For each SID among the example's labels, in their order, the index in the history of the item before it; -1 where
    there is none, and no teacher is queried; empty where no label is an SID of one.
contexts: For each of those SIDs the codes of the request features that the prompt gives; empty where there are none.
events: The event of each SID of such a history, from 1 by the wording's events, 0 where unknown; empty where none is
    given.
prompts: Token ids of each example's prompt by every template, which epochs take in turn from the first on; empty where
    there is one way. `input_ids` have the wording's first.
"""


def _counted(columns: Mapping[str, Ragged], truncated: int = 0, truncated_completions: int = 0) -> dict[str, int]:
    """How many examples, tokens, and tokens with a loss there are, and how many were truncated."""
    labels, lengths = columns["labels"]
    return {
        "rows": len(lengths),
        "tokens": len(labels),
        "losses": int((labels != NO_LABEL).sum()),
        "truncated": truncated,
        "truncated_completions": truncated_completions,
    }


def tokenise_examples(
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[PromptExample],
    max_prompt_length: int,
    seed: int | Sequence[int] = 0,
    positions: np.ndarray | None = None,
    count: int = 0,
) -> tuple[dict[str, list[list[Any]]], dict[str, int]]:
    """Token ids and labels (-100 at prompt tokens) of examples, without inputs of a teacher.

    Prompts are truncated to their last tokens, completions to their first `LONGEST_COMPLETION`. With several
    templates, the seed decides with which one each example begins.

    Args:
        tokenizer: The model's tokenizer.
        examples: R examples.
        max_prompt_length: Most tokens of a prompt.
        seed: Seed of the templates.
        positions: int64 (R,), which examples they are of the `count` that the seed is drawn for; all of them if None.
        count: See `positions`.

    Returns:
        The columns (`COLUMNS`); and how many prompts, by every template, and how many completions were truncated.
    """
    templates = list(zip(*((example.prompt, *example.others) for example in examples), strict=True)) or [()]
    ways = [encode_prompt(tokenizer, texts, max_prompt_length) for texts in templates]
    whole = encode_completion(tokenizer, [example.completion for example in examples])
    completions = [ids[:LONGEST_COMPLETION] for ids in whole]
    ids = [p + c for p, c in zip(ways[0][0], completions, strict=True)]
    drawn = np.random.default_rng(seed).integers(len(ways), size=len(ids) if positions is None else count)
    begins = (drawn if positions is None else drawn[positions]).tolist()
    turns = range(len(ways) if len(ways) > 1 else 0)
    columns: dict[str, list[list[Any]]] = {name: [[] for _ in ids] for name in COLUMNS}
    columns |= {
        "input_ids": ids,
        "labels": [[NO_LABEL] * len(p) + c for p, c in zip(ways[0][0], completions, strict=True)],
        "weights": [[1.0] * len(row) for row in ids],
        "prompts": [[ways[(begin + turn) % len(ways)][0][row] for turn in turns] for row, begin in enumerate(begins)],
    }
    truncated = {
        "truncated": sum(count for _, count in ways),
        "truncated_completions": sum(len(ids) > LONGEST_COMPLETION for ids in whole),
    }
    return columns, truncated


def check_all_positions(builder: ExampleBuilder, task: str = NEXT_SID) -> None:
    """Check that a history with its target is again a prompt, so that one row can hold a loss at every item.

    Raises:
        ConfigError: If the wording has several prompts, puts anything but the history into the prompt, or marks the
            end of completions.
    """
    ways = len(builder.wording.task(task).prompts)
    if ways > 1:
        raise ConfigError(
            f"all_positions needs a wording whose prompt is the bare history, but {builder.wording.name!r} has "
            f"{ways} prompts. Use wording compact."
        )
    if builder.wording.context:
        names = ", ".join(feature.name for feature in builder.wording.context)
        raise ConfigError(
            f"all_positions needs prompts that are the bare history, but context gives {names} behind it. Set "
            "all_positions to false, or leave context out."
        )
    first = builder.prompt(task, history=[])
    item, event, text = 0, [0] * bool(builder.wording.events), builder.event_texts[0] if task == NEXT_SID else ""
    grown = first + builder.completion(task, item) + text
    again = builder.prompt(task, history=[item], events=event or None)
    twice = builder.prompt(task, history=[item, item], events=2 * event or None)
    if grown != again or again + builder.completion(task, item) + text != twice:
        raise ConfigError(
            f"all_positions needs a wording whose prompt is the bare history, but in {builder.wording.name!r} the "
            f"prompt and completion of an item ({grown!r}) are not the next prompt ({again!r}). Use wording compact."
        )


# Windows of items as token ids with a loss at every target, without a loop over items.


@dataclass(frozen=True)
class WindowTexts:
    """Token ids of which windows are made.

    Attributes:
        values: int32, the token ids of all items one after another, after them what a window begins with, and what
            stands behind an item of each event.
        offsets: int64 (N + E + 3,), where each begins and the last ends: items, the beginning, E events, and an unknown
            event, which has no token.
        n_items: Number of items, N.
        scored: bool (N,), whether there is a loss at an item.
        numbers: int32 (N,), SID number of each item, from 1.
        truncated: How many items' texts were too long and lost their last tokens.
    """

    values: np.ndarray
    offsets: np.ndarray
    n_items: int
    scored: np.ndarray
    numbers: np.ndarray
    truncated: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder, task: str) -> "WindowTexts":
        """Tokenise all items once.

        Raises:
            ConfigError: If the wording's prompt is not the bare history (`check_all_positions`).
        """
        check_all_positions(builder, task)
        start = encode_prompt(tokenizer, [builder.prompt(task, history=[])], None)[0][0]
        whole = encode_completion(tokenizer, [builder.completion(task, item) for item in range(len(builder.titles))])
        event_texts = [*builder.event_texts[:-1], ""] if task == NEXT_SID else [""]
        event_ids = [encode_completion(tokenizer, [text])[0] if text else [] for text in event_texts]
        values, lengths = ragged([*(ids[:LONGEST_COMPLETION] for ids in whole), start, *event_ids])
        scored = np.array([task == NEXT_SID or bool(title.strip()) for title in builder.titles])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        truncated = sum(len(ids) > LONGEST_COMPLETION for ids in whole)
        return cls(values, offsets, len(whole), scored, (builder.table.sid_numbers + 1).astype(np.int32), truncated)

    def events_of(self, windows: FlatWindows) -> np.ndarray:
        """The entry of `offsets` that is the event of each item of windows: int64 (M,)."""
        unknown = len(self.offsets) - 2
        if windows.events is None or unknown == self.n_items + 1:
            return np.full(len(windows.items), unknown, dtype=np.int64)
        events = windows.events.astype(np.int64)
        return np.where(events < 0, unknown, self.n_items + 1 + events)


def window_tokens(texts: WindowTexts, windows: FlatWindows) -> np.ndarray:
    """Number of tokens of each window with all of its events: int64 (W,)."""
    lengths, events = np.diff(texts.offsets), texts.events_of(windows)
    before = np.concatenate([[0], np.cumsum(lengths[windows.items] + lengths[events])])
    last = lengths[events[windows.ends - 1]]
    tokens: np.ndarray = before[windows.ends] - before[windows.begins] + lengths[texts.n_items] - last
    return tokens


def window_columns(
    texts: WindowTexts,
    windows: FlatWindows,
    weigh: Callable[[np.ndarray], np.ndarray],
    teacher: bool,
    by_sid: bool,
    hidden: np.ndarray | None = None,
) -> MadeColumns:
    """Windows as examples with a loss at every target, weighed by age, and what is counted of them.

    An item's event stands behind it and has no loss. Of titles there is no loss at items that have none, and no teacher
    applies.

    Args:
        texts: Their token ids.
        windows: The windows.
        weigh: Gives weights for numbers of training examples.
        teacher: Whether there is a teacher.
        by_sid: Whether it applies.
        hidden: bool (W,), the windows whose events are left out; none if None.
    """
    sizes = windows.ends - windows.begins
    heads = np.cumsum(sizes) - sizes
    positions = ranges(windows.begins, windows.ends)
    items, numbers = windows.items[positions], windows.rows[positions]
    is_target = np.arange(len(items)) - np.repeat(heads, sizes) >= np.repeat(windows.firsts, sizes)
    weights = np.where(numbers >= 0, weigh(np.maximum(numbers, 0)), np.float32(1))
    unknown = len(texts.offsets) - 2
    events = texts.events_of(windows)[positions]
    if hidden is not None:
        events[np.repeat(hidden, sizes)] = unknown
    last = np.zeros(len(items), dtype=bool)
    last[(heads + sizes - 1)[sizes > 0]] = True
    # A window is its beginning, and each item with its event, the last without: one entry of the texts each.
    units = np.insert(np.stack([items, np.where(last, unknown, events)], 1).ravel(), 2 * heads, texts.n_items)
    lengths = np.diff(texts.offsets)[units]
    tokens = texts.values[ranges(texts.offsets[units], texts.offsets[units + 1])]
    ends = np.concatenate([[0], np.cumsum(lengths)])[np.cumsum(2 * sizes + 1)]
    has_loss = np.stack([is_target & texts.scored[items], np.zeros(len(items), bool)], 1).ravel()
    labelled = np.repeat(np.insert(has_loss, 2 * heads, False), lengths)
    of_tokens = np.repeat(np.insert(np.repeat(weights, 2), 2 * heads, np.float32(1)), lengths)
    counts = np.diff(ends, prepend=0)
    found = {
        "input_ids": (tokens, counts),
        "labels": (np.where(labelled, tokens, NO_LABEL), counts),
        "weights": (np.where(labelled, of_tokens, np.float32(1)), counts),
    }
    if teacher:
        used = sizes if by_sid else np.zeros_like(sizes)
        read = ranges(heads, np.maximum(heads, heads + used - 1))
        firsts = windows.firsts if by_sid else np.zeros_like(sizes)
        found["histories"] = texts.numbers[items[read]], np.maximum(used - 1, 0)
        found["slots"] = ranges(firsts - 1, used - 1).astype(np.int32), used - firsts
        if unknown > texts.n_items + 1:
            numbers = np.where(events == unknown, 0, events - texts.n_items).astype(np.int32)
            found["events"] = numbers[read], np.maximum(used - 1, 0)
    return found, _counted(found)


class SftExamples(ExampleMaker):
    """Makes the examples of all tasks: one an interaction or item, or one a window of a user's items.

    Args:
        tokenizer: The model's tokenizer.
        builder: See `ExampleMaker`.
        corpus: See `ExampleMaker`.
        tasks: See `ExampleMaker`.
        seed: See `ExampleMaker`.
        max_prompt_length: Most tokens of a prompt.
        all_positions: Whether the next item, or its title, is learned at every position of a user's window.
        variants: Further copies of each window, with items left out at random.
        max_tokens: Tokens that all windows may have, of each block as many, drawn by the seed; 0 for any number.
        recency: How fast the weight of a target falls with its age (`minionerec.data.windows.recency_weights`).
        teacher: Whether the inputs of a teacher are made.

    Raises:
        ConfigError: If the wording does not allow it.
    """

    lists = COLUMNS

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        builder: ExampleBuilder,
        corpus: Corpus,
        tasks: Mapping[str, float],
        seed: int,
        *,
        max_prompt_length: int = 512,
        all_positions: bool = False,
        variants: int = 0,
        max_tokens: int = 0,
        recency: float = 0.0,
        teacher: bool = False,
    ):
        super().__init__(builder, corpus, tasks, seed)
        self.tokenizer, self.max_prompt_length, self.teacher = tokenizer, max_prompt_length, teacher
        self.variants, self.max_tokens, self.fading = variants, max_tokens, recency
        if max_tokens:
            self.why_none = "max_tokens has no room for a single window. Give more tokens."
        windowed = (NEXT_SID, NEXT_TITLE) if all_positions else ()
        self.texts = {task: WindowTexts.of(tokenizer, builder, task) for task in tasks if task in windowed}

    @cached_property
    def recency(self) -> Callable[[np.ndarray], np.ndarray]:
        """How much training examples weigh by their age."""
        return recency_weights(self.corpus.split, self.corpus.sizes["train"], self.fading)

    def examples(self, requested: TaskExamples) -> MadeColumns:
        """Examples of one task, an interaction or an item each."""
        hidden, rows = None, requested.rows
        if rows is not None and self.builder.wording.events:
            hidden = np.random.default_rng(requested.seed).random(requested.count)[requested.positions] < HIDDEN_SHARE
        contexts = None
        if rows is not None and self.builder.wording.context:
            contexts = context_codes(self.builder.wording.context, rows)
            draws = np.random.default_rng([*requested.seed, 1]).random((requested.count, contexts.shape[1]))
            contexts[draws[requested.positions] < HIDDEN_SHARE] = UNKNOWN
        made = self.builder.some(requested.task, requested.items, rows, hidden=hidden, contexts=contexts)
        lists, truncated = tokenise_examples(
            self.tokenizer, made, self.max_prompt_length, requested.seed, requested.positions, requested.count
        )
        if requested.task == NEXT_SID and requested.rows is not None and len(made):
            weights = self.recency(requested.numbers).tolist()
            lists["weights"] = [[weight] * len(ids) for weight, ids in zip(weights, lists["input_ids"], strict=True)]
            numbers, kept = self.builder.table.sid_numbers + 1, self.corpus.max_history
            lists["histories"] = [numbers[np.asarray(past)[-kept:]].tolist() for past in requested.rows.histories]
            lists["slots"] = [[len(history) - 1] for history in lists["histories"]]
            if hidden is not None and requested.rows.events is not None:
                known = self.builder.event_numbers
                lists["events"] = [
                    (known[events[-kept:]] * (not hides)).tolist()
                    for events, hides in zip(requested.rows.history_events, hidden.tolist(), strict=True)
                ]
            if contexts is not None:
                lists["contexts"] = contexts.tolist()
        names = ["input_ids", "labels", "weights"]
        if self.teacher:
            names += ["histories", "slots", *(name for name in ("contexts", "events") if any(lists[name]))]
        if any(lists["prompts"]):
            lists["prompts"] = [prompt for prompts in lists["prompts"] for prompt in prompts]
            names.append("prompts")
        found = {name: ragged(lists[name], COLUMNS[name]) for name in names}
        return found, _counted(found, **truncated)

    def opened(self, task: str, number: int = 0) -> tuple[np.ndarray, Callable[[np.ndarray], MadeColumns]]:
        """See `ExampleMaker.opened`; of windows the examples are one each."""
        if task not in self.texts:
            return super().opened(task, number)
        texts, seed = self.texts[task], [self.seed, number]
        self.corpus.check_filled("train")
        windows = self.corpus.block_windows(self.corpus.block(number))
        if self.variants:
            windows = varied_windows(windows, self.corpus.partly_targets, self.variants, seed)
        chosen = choose_examples(len(windows), self.tasks[task], seed)
        if self.max_tokens:
            blocks = self.corpus.n_blocks
            most = self.max_tokens // blocks + (number < self.max_tokens % blocks)
            drawn = np.random.default_rng(seed).permutation(len(windows))
            tokens = np.cumsum(window_tokens(texts, windows.take(drawn)))
            chosen = np.sort(drawn[: np.searchsorted(tokens, most, side="right")])

        hidden = np.random.default_rng([*seed, 1]).random(len(windows)) < HIDDEN_SHARE

        def make(positions: np.ndarray) -> MadeColumns:
            some = windows.take(positions)
            return window_columns(texts, some, self.recency, self.teacher, task == NEXT_SID, hidden[positions])

        return chosen, make


def validation_set(
    bundle: Bundle,
    builder: ExampleBuilder,
    trie: Trie,
    *,
    count: int,
    beams: int,
    seed: int,
    numbers: np.ndarray | None = None,
) -> ValidationSet | None:
    """A fixed random sample of validation examples for ranking; None of no examples.

    Args:
        bundle: Tokenizer, SIDs and prompt length.
        builder: Makes the prompts.
        trie: SIDs, or titles, of the catalogue.
        count: Examples; -1 for all, 0 for none.
        beams: Beams of the search.
        seed: Seed of the sample.
        numbers: int64 (N,), number of each item in the trie; those of its SIDs if None.

    Raises:
        DataError: If there is no validation example of the task.
    """
    if count == 0:
        return None
    rows = builder.corpus.rows("valid")
    rows = rows.take(builder.answerable(bundle.task)[rows.targets])
    if not len(rows):
        raise DataError(f"task {bundle.task!r} has no validation example: no target has the text it needs.")
    chosen = np.arange(len(rows))
    if 0 < count < len(rows):
        chosen = np.sort(np.random.default_rng(seed).permutation(len(rows))[:count])
    examples = builder.some(bundle.task, split_examples=rows.take(chosen), training=False)
    prompts = encode_prompt(bundle.tokenizer, [example.prompt for example in examples], bundle.max_prompt_length)[0]
    numbers = bundle.table.sid_numbers if numbers is None else numbers
    targets = numbers[[example.target for example in examples]]
    return ValidationSet(prompts, targets, trie, beams, numbers=chosen)
