"""Windows of items as token ids with a loss at every target, without a loop over items."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from minionerec.data.sequences import ranges
from minionerec.data.windows import FlatWindows
from minionerec.prompts.examples import ExampleBuilder
from minionerec.prompts.wording import NEXT_SID
from minionerec.training.rows import window_texts
from minionerec.training.stream.disk import NO_LOSS, FlatRows, Ragged


@dataclass(frozen=True)
class WindowTexts:
    """What windows are made of.

    Attributes:
        values: int32, the token ids of all items one after another, and what a window begins with behind them.
        offsets: int64 (N + 2,), where each begins; the last two are those of the beginning.
        said: bool (N,), whether there is a loss at an item.
        numbers: int32 (N,), SID number of each item, from 1.
        cut: How many items' texts were too long and lost their last tokens.
    """

    values: np.ndarray
    offsets: np.ndarray
    said: np.ndarray
    numbers: np.ndarray
    cut: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder, task: str) -> "WindowTexts":
        """Tokenise all items once.

        Raises:
            ConfigError: If the wording's prompt is not the bare history (`check_all_positions`).
        """
        start, items, cut = window_texts(tokenizer, builder, task)
        flat = Ragged.of([*items, start])
        said = np.array([task == NEXT_SID or bool(title.strip()) for title in builder.titles])
        offsets = np.concatenate([[0], np.cumsum(flat.lengths)])
        return cls(flat.values, offsets, said, (builder.table.sid_numbers + 1).astype(np.int32), cut)


def window_tokens(texts: WindowTexts, windows: FlatWindows) -> np.ndarray:
    """How many tokens each window has: int64 (W,)."""
    lengths = np.diff(texts.offsets)
    before = np.concatenate([[0], np.cumsum(lengths[:-1][windows.items])])
    found: np.ndarray = before[windows.ends] - before[windows.begins] + lengths[-1]
    return found


def window_rows(
    texts: WindowTexts,
    windows: FlatWindows,
    weigh: Callable[[np.ndarray], np.ndarray],
    teacher: bool,
    by_sid: bool,
) -> FlatRows:
    """Windows as rows: those of `minionerec.training.rows.tokenise_windows`.

    Args:
        texts: What they are made of.
        windows: The windows.
        weigh: Gives weights for numbers of rows.
        teacher: Whether a teacher is asked.
        by_sid: Whether it has a say.
    """
    sizes = windows.ends - windows.begins
    heads = np.cumsum(sizes) - sizes
    places = ranges(windows.begins, windows.ends)
    items, numbers = windows.items[places], windows.rows[places]
    is_target = np.arange(len(items)) - np.repeat(heads, sizes) >= np.repeat(windows.firsts, sizes)
    weights = np.where(numbers >= 0, weigh(np.maximum(numbers, 0)), np.float32(1))
    weights = np.where(is_target & texts.said[items], weights, np.float32(NO_LOSS))
    # A window is its beginning and its items: one entry of the texts each.
    units = np.insert(items, heads, len(texts.offsets) - 2)
    lengths = np.diff(texts.offsets)[units]
    tokens = texts.values[ranges(texts.offsets[units], texts.offsets[units + 1])]
    ends = np.concatenate([[0], np.cumsum(lengths)])[np.cumsum(sizes + 1)]
    histories = slots = None
    if teacher:
        said = sizes if by_sid else np.zeros_like(sizes)
        read = ranges(heads, np.maximum(heads, heads + said - 1))
        histories = Ragged(texts.numbers[items[read]], np.maximum(said - 1, 0))
        firsts = windows.firsts if by_sid else np.zeros_like(sizes)
        slots = Ragged(ranges(firsts - 1, said - 1).astype(np.int32), said - firsts)
    rows = Ragged(tokens, np.diff(ends, prepend=0))
    return FlatRows(rows, np.repeat(np.insert(weights, heads, NO_LOSS), lengths), histories, slots)
