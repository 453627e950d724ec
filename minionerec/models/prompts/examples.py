"""Prompts and completions of corpus examples and items in one wording, and their tokenisation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.contexts import context_codes
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.models.prompts.wording import COMPLETION_FIELDS, NEXT_SID, PROMPT_FIELDS, TASKS, Wording
from minionerec.sid.table import SidTable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ITEM_TASKS = (
    "title_to_sid",
    "sid_to_title",
    "description_to_sid",
    "sid_to_description",
    "text_to_sid",
    "sid_to_text",
)
LONGEST_COMPLETION = 512
"""Number of first tokens to which completions are truncated."""

LONGEST_TEXT = 20_000
"""Characters to which titles and descriptions are truncated: the last of a prompt's, the first of a completion's."""


@dataclass(frozen=True)
class PromptExample:
    """One prompt with its completion.

    Attributes:
        prompt: Prompt text.
        completion: Completion text, end marks included.
        target: Index of the completion's item.
        others: Prompts of the wording's other templates, for training examples only.
    """

    prompt: str
    completion: str
    target: int
    others: tuple[str, ...] = ()


def special_texts(tokenizer: "PreTrainedTokenizerBase") -> dict[str, str]:
    """Texts of `{bos}` and `{eos}`: the tokenizer's special tokens, "" for one that it lacks.

    `{bos}` is also "" if the tokenizer adds BOS to every text.
    """
    adds_bos = bool(tokenizer.bos_token) and tokenizer("x")["input_ids"][:1] == [tokenizer.bos_token_id]
    return {"bos": "" if adds_bos else tokenizer.bos_token or "", "eos": tokenizer.eos_token or ""}


def _shortened(text: str, longest: int) -> str:
    """Truncate a text to its first characters at the end of a word; `longest` 0 does not truncate."""
    if not longest or len(text) <= longest:
        return text
    return text[: longest + 1].rpartition(" ")[0].rstrip() or text[:longest]


class ExampleBuilder:
    """Builds examples of every task from one corpus, one SID table and one wording.

    Args:
        corpus: Items and rows.
        table: SIDs of the same items.
        wording: Templates of the tasks.
        specials: Texts for `{bos}` and `{eos}` (`special_texts`).

    Attributes:
        event_texts: Text behind an item of a history for each event of the corpus, and for an unknown one.
        event_numbers: int64, the number in the wording of each event of the corpus, from 1, 0 where it is unknown.
        truncated_texts: Titles and descriptions that are longer than `LONGEST_TEXT`.

    Raises:
        DataError: If corpus and table have different items.
    """

    def __init__(self, corpus: Corpus, table: SidTable, wording: Wording, specials: Mapping[str, str]):
        table.check_items(corpus.items["item_id"].tolist(), "corpus")
        self.corpus, self.table, self.wording, self.specials = corpus, table, wording, dict(specials)
        self.titles = corpus.items["title"].tolist()
        self.descriptions = [
            _shortened(text, wording.longest_description) for text in corpus.items["description"].tolist()
        ]
        # Prompts are truncated to their last tokens, which depend only on the last characters.
        self._last = [[text[-LONGEST_TEXT:] for text in texts] for texts in (self.titles, self.descriptions)]
        tokens = dict(zip(wording.events, wording.event_tokens, strict=True))
        # The text of each event of the corpus, "" where the wording does not have it, and of unknown ones at the end.
        self.event_texts = [*(tokens.get(name, "") for name in corpus.event_names), ""]
        numbers = {name: number for number, name in enumerate(wording.events, start=1)}
        self.event_numbers = np.array([*(numbers.get(name, 0) for name in corpus.event_names), 0], dtype=np.int64)
        self._answerable: dict[str, np.ndarray] = {}
        self.truncated_texts = sum(len(text) > LONGEST_TEXT for text in [*self.titles, *self.descriptions])

    def history_text(
        self, history: Sequence[int] | np.ndarray, events: Sequence[int] | np.ndarray | None = None
    ) -> str:
        """The text of a history's SIDs, each with that of its event (a number of the corpus, -1 unknown) if given."""
        if events is None or not self.wording.events:
            return self.wording.separator.join(self.table.sids[item] for item in history)
        pairs = zip(history, events, strict=True)
        return self.wording.separator.join(self.table.sids[item] + self.event_texts[event] for item, event in pairs)

    def prompt(
        self,
        task: str,
        history: Sequence[int] | np.ndarray | None = None,
        item: int | None = None,
        way: int = 0,
        context: Sequence[int] | None = None,
        events: Sequence[int] | np.ndarray | None = None,
    ) -> str:
        """Prompt text of one task, from a history or an item, by one of the wording's templates.

        Args:
            task: Name of the task.
            history: Item indices, oldest first, for a task that predicts the next item.
            item: Item index, for any other task.
            way: Index of the template.
            context: Codes of the wording's request features, whose tokens stand behind the history in the task
                `next_sid`; all unknown if None.
            events: Event of each item of the history, a number of the corpus, -1 where unknown; all unknown if None;
                used only by a wording with events.
        """
        values: dict[str, Any] = dict(self.specials)
        titles, descriptions = self._last
        if history is not None:
            values["history"] = self.history_text(history, events)
            if context is not None and task == NEXT_SID:
                values["history"] += self.wording.context_text(context)
            values["history_titles"] = self.wording.title_separator.join(titles[position] for position in history)
            values["closed_titles"] = "".join(titles[position] + self.specials["eos"] for position in history)
        if item is not None:
            values.update(sid=self.table.sids[item], title=titles[item], description=descriptions[item])
        return self.wording.task(task).prompts[way].format_map(values)

    def completion(self, task: str, item: int) -> str:
        """Completion text of one task for its target item."""
        title, description = (texts[item][:LONGEST_TEXT] for texts in (self.titles, self.descriptions))
        values = {**self.specials, "sid": self.table.sids[item], "title": title, "description": description}
        return self.wording.task(task).completion.format_map(values)

    def build(self, task: str, split: str) -> list[PromptExample]:
        """Build all examples of one task.

        A task from histories has one example per example of the split; an item task one per item that has the texts the
        task needs, for every split.

        Raises:
            ConfigError: If the task is unknown, or missing in the wording.
            DataError: If nothing could be built.
        """
        rows = None if task in ITEM_TASKS else self.corpus.rows(split)
        examples = self.some(task, split_examples=rows, training=split == "train")
        if not examples:
            raise DataError(f"task {task!r} has no example: no item has the text it needs. Leave the task out.")
        return examples

    def answerable(self, task: str) -> np.ndarray:
        """Whether each item has the texts that a task needs of its target: bool (N,).

        Raises:
            ConfigError: If the task is unknown.
        """
        if task not in TASKS:
            raise ConfigError(f"unknown task {task!r}; known tasks: {', '.join(TASKS)}.")
        if task not in self._answerable:
            texts = {"title": self.titles, "description": self.descriptions}
            has_texts = np.ones(self.corpus.n_items, dtype=bool)
            for name in (*PROMPT_FIELDS[task], *COMPLETION_FIELDS[task]):
                if name in texts:
                    has_texts &= np.array([bool(text.strip()) for text in texts[name]], dtype=bool)
            self._answerable[task] = has_texts
        return self._answerable[task]

    def some(
        self,
        task: str,
        items: Sequence[int] | np.ndarray | None = None,
        split_examples: SplitExamples | None = None,
        *,
        training: bool = True,
        hidden: np.ndarray | None = None,
        contexts: np.ndarray | None = None,
    ) -> list[PromptExample]:
        """Build the examples of one task, possibly none.

        Args:
            task: Its name.
            items: Item indices, for a task about items; all items if None.
            split_examples: Examples of the corpus, for any other task.
            training: Whether they are trained on: then prompts are built with every template of the wording.
            hidden: bool (R,), the examples whose events are left out; none if None.
            contexts: int (R, F), codes of the wording's request features; those of the examples if None.

        Raises:
            ConfigError: If the task is unknown, or missing in the wording.
        """
        is_answerable = self.answerable(task)
        templates = range(len(self.wording.task(task).prompts) if training else 1)
        queries: Iterable[tuple[dict[str, Any], int]]
        if split_examples is None:
            chosen = range(self.corpus.n_items) if items is None else np.asarray(items).tolist()
            queries = (({"item": item}, item) for item in chosen)
        else:
            codes = context_codes(self.wording.context, split_examples) if contexts is None else contexts
            events: Iterable[Any] = [None] * len(codes)
            if self.wording.events and split_examples.events is not None:
                events = split_examples.history_events
                if hidden is not None:
                    events = (None if hides else of for of, hides in zip(events, hidden.tolist(), strict=True))
            parts = zip(split_examples.histories, codes.tolist(), events, strict=True)
            histories = ({"history": past, "context": context, "events": of} for past, context, of in parts)
            queries = zip(histories, split_examples.targets.tolist(), strict=True)
        examples = []
        for arguments, target in queries:
            if is_answerable[target]:
                prompt, *others = (self.prompt(task, **arguments, way=way) for way in templates)
                examples.append(PromptExample(prompt, self.completion(task, target), target, tuple(others)))
        return examples


def encode_prompt(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], max_length: int | None
) -> tuple[list[list[int]], int]:
    """Tokenise prompts, truncated to their last `max_length` ids; returns the ids and the number of truncated prompts.

    Raises:
        DataError: If a prompt has no token at all.
    """
    encoded: list[list[int]] = tokenizer(list(texts))["input_ids"] if texts else []
    for index, ids in enumerate(encoded):
        if not ids:
            raise DataError(
                f"prompt {index} ({texts[index]!r}) has no token; the wording must not leave prompts empty."
            )
    if not max_length:
        return encoded, 0
    return [ids[-max_length:] for ids in encoded], sum(len(ids) > max_length for ids in encoded)


def encode_completion(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[list[int]]:
    """Tokenise completions separately from prompts, so that no token spans both."""
    return tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
