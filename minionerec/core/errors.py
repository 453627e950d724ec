"""The one family of errors that a user can mend.

Every message says what was wrong (with its value and place), what was expected, and what to do. Command-line entry
points print the message alone and exit with status 2 (`minionerec.core.commands.run_command`); anything else that
escapes is a defect of this package and keeps its traceback.
"""

import re
import reprlib
from collections.abc import Collection
from difflib import get_close_matches

_MOST = 2_000
_LONG = re.compile(r"\S{400,}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2


class MinioneRecError(Exception):
    """Base class of every error that a user's input or settings can cause; its text is one line, whatever it quotes.

    Args:
        problems: One message, or one for each problem where several were found together.
    """

    def __init__(self, *problems: str):
        super().__init__(*problems)
        self.problems = problems

    def lines(self) -> list[str]:
        """A line for each problem: control characters as escapes, the middle left out where it is very long."""
        texts = (_CONTROL.sub(_escaped, problem) for problem in self.problems)
        return [cut(_LONG.sub(lambda match: cut(match[0], 200), text), _MOST) for text in texts]

    def __str__(self) -> str:
        """The lines of all problems as one."""
        return " ".join(self.lines())


class ConfigError(MinioneRecError):
    """A setting is unknown, malformed, or contradicts another setting."""


class DataError(MinioneRecError):
    """A data file is missing, malformed or inconsistent; the message names file and row."""


class ArtefactError(MinioneRecError):
    """A stage's input or output directory is missing, of another kind, incomplete, or does not belong to the rest."""


def _escaped(match: re.Match[str]) -> str:
    return " " if match[0] in "\n\t" else match[0].encode("unicode_escape").decode("ascii")


def cut(text: str, most: int) -> str:
    """A text of at most about `most` characters: what lies in the middle of a longer one is counted, not shown.

    Example:
        >>> cut("abcdefghij", 4)
        'ab… (10 characters) …ij'
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}… ({len(text):,} characters) …{text[-half:]}"


def did_you_mean(name: object, known: Collection[str]) -> str:
    """The sentence that asks for the known name which is most like an unknown one; empty where none is like it.

    Example:
        >>> did_you_mean("bacth_size", ["batch_size", "seed"])
        ' Did you mean batch_size?'
    """
    close = get_close_matches(str(name), known, 1)
    return f" Did you mean {close[0]}?" if close else ""


def shown(value: object, most: int = 80) -> str:
    """A value as messages show it: as Python writes it, cut where it is long, whatever lies in it.

    Example:
        >>> shown("a"), shown([1, 2])
        ("'a'", '[1, 2]')
    """
    if isinstance(value, str):
        return repr(cut(value, most))
    try:
        return cut(_SHORT.repr(value), 2 * most)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return f"a {type(value).__name__} too large to show"
