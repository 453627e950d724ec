"""Settings of the evaluation stage; light to import, so that `--help` answers at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minionerec.core.errors import ConfigError


def named_directories(setting: str, given: Any, example: str) -> list[str]:
    """A setting of NAME=DIRECTORY entries in one form; in YAML it may also be a mapping of name to directory.

    Args:
        setting: Name of the setting, for messages.
        given: Its value.
        example: An entry as it should be.

    Returns:
        The entries.

    Raises:
        ConfigError: If there is none, one has another form, or two have the same name.
    """
    if isinstance(given, Mapping):
        given = [f"{name}={path}" for name, path in given.items()]
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{setting} is {given!r}; expected at least one NAME=DIRECTORY, such as {example}.")
    for entry in given:
        if not isinstance(entry, str) or not all(part.strip() for part in entry.partition("=")[::2]):
            raise ConfigError(f"{setting} has {entry!r}; expected NAME=DIRECTORY, such as {example}.")
    names = [name for name, _ in split_named(given)]
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ConfigError(f"{setting} names {twice[0]!r} twice. Give each its own name.")
    return given


def split_named(entries: list[str]) -> list[tuple[str, str]]:
    """(name, directory) of each NAME=DIRECTORY."""
    return [(name.strip(), path.strip()) for name, _, path in (entry.partition("=") for entry in entries)]


@dataclass
class EvalConfig:
    """Settings of evaluation by beam search."""

    checkpoint: str = field(
        default="runs/demo/grpo", metadata={"help": "checkpoint (scripts/sft.py or scripts/grpo.py)"}
    )
    corpus: str = field(default="runs/demo/corpus", metadata={"help": "corpus directory (scripts/prepare_data.py)"})
    sids: str = field(
        default="",
        metadata={"help": "SID directory that the checkpoint must have been trained on; empty: its own table"},
    )
    output: str = field(default="", metadata={"help": "predictions directory to write"})
    split: str = field(default="test", metadata={"help": "rows to recommend for: test or valid"})
    beams: int = field(default=50, metadata={"help": "beam width, and length of the ranked lists"})
    ks: list[int] = field(
        default_factory=lambda: [1, 3, 5, 10, 20, 50],
        metadata={"help": "cut-offs of the metrics; none above the beams"},
    )
    seen: str = field(
        default="keep",
        metadata={
            "help": "items of a row's own history: keep (they may be recommended again) or mask (left out; the search "
            "is wider by as many)"
        },
    )
    scores: str = field(
        default="full",
        metadata={"help": "full: log-softmax over the vocabulary, as stock beam search; renormalised: over children"},
    )
    batch_size: int = field(
        default=64,
        metadata={"help": "prompts decoded at a time; 0: as many as fit into half the free memory, in powers of two"},
    )
    score_end: bool = field(
        default=False,
        metadata={"help": "also score what follows the SID in a completion (newline, end token), as stock search does"},
    )
    dtype: str = field(default="auto", metadata={"help": "dtype of the weights: auto, float32, bfloat16, float16"})
    resamples: int = field(default=2000, metadata={"help": "bootstrap resamples for the intervals"})
    seed: int = field(default=0, metadata={"help": "seed of the bootstrap"})

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        if not self.output:
            raise ConfigError("output is empty; say where the predictions are to be written.")
        if self.split not in ("test", "valid"):
            raise ConfigError(f"unknown split {self.split!r}; known: test, valid.")
        if self.seen not in ("keep", "mask"):
            raise ConfigError(f"unknown seen {self.seen!r}; known: keep, mask.")
        if self.beams < 1:
            raise ConfigError(f"beams is {self.beams}; it must be at least 1.")
        too_large = [k for k in self.ks if k > self.beams or k < 1]
        if too_large or not self.ks:
            raise ConfigError(
                f"ks {self.ks} with {self.beams} beams: each K must be from 1 to the number of beams. "
                "Give fewer ks or more beams."
            )
        if self.batch_size < 0:
            raise ConfigError(
                f"batch_size is {self.batch_size}; it must be at least 1, or 0 to find it from the free memory."
            )
