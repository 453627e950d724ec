"""Run records: what it took to make an artefact, kept beside it as `OUTPUT.record.json`.

An artefact holds nothing that differs between two runs of the same thing; the record is all of that: when, how long, on
what, by which command. It is not hashed, no input, and no part of freshness, and a run never fails for its sake.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json, read_manifest, real_place
from minionerec.core.errors import ArtefactError
from minionerec.core.manifests import DIGEST

_MOST = 2**63
_BATCH = ("per_device", "accumulation", "global")


@dataclass(frozen=True)
class Gpu:
    """One accelerator.

    Attributes:
        name: As its driver says it.
        memory_bytes: All of its memory.
    """

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """Where a run was made.

    Attributes:
        processor: Name of the processor; that of its architecture where the system tells no other.
        cores: Logical cores that the process may use.
        threads: Threads that it computes with.
        memory_bytes: All memory of the machine; None where the system does not tell.
        gpus: Accelerators that the process sees and has used one of; empty for a run on the CPU.
    """

    processor: str
    cores: int
    threads: int
    memory_bytes: int | None
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Batch:
    """How many examples an optimiser step has.

    Attributes:
        per_device: Those that a process computes at a time.
        accumulation: How often it does so before a step.
        total: Those of a step, over all processes ("global" in the file).
    """

    per_device: int
    accumulation: int
    total: int


@dataclass(frozen=True)
class RunRecord:
    """What it took to make an artefact. Of a run that was cut off and went on, the last part speaks where not said.

    Attributes:
        command: The words of the command line.
        commit: Commit of the checkout that ran, with "-dirty" behind it where files of it were changed; None for an
            installed package.
        started: When the first part began, in UTC, such as "2030-01-31T12:00:00Z".
        ended: When the last part ended.
        seconds: Wall time of all parts together: "all", and phases by name. A phase within another counts for itself
            alone, so phases add up to at most "all".
        parts: How many times the run was started, 1 for one that was never cut off; a run that grew by a setting such
            as epochs counts the run that it went on from.
        resumed_from: What the last part went on from: steps of a trainer, epochs of a sequential model, finished
            shards or parts of lists, finished runs of a study; 0 where nothing was left; None for a single part.
        machine: Where it ran.
        processes: Processes of the launch.
        batch: Examples of a step; None where there are no steps.
        peak_memory_bytes: Most memory that the first process had resident since it began, or one of the processes that
            it started and that have ended if that is more; the largest of all parts, None where it is not known.
        peak_gpu_memory_bytes: Most memory that the first process had allocated on one GPU; None without.
    """

    command: tuple[str, ...]
    commit: str | None
    started: str
    ended: str
    seconds: Mapping[str, float]
    parts: int
    resumed_from: int | None
    machine: Machine
    processes: int
    batch: Batch | None = None
    peak_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None


def record_path(output: Path) -> Path:
    """Where the record of an artefact lies: beside it, and of a link beside what that leads to."""
    output = real_place(output)
    return output.with_name(f"{output.name}.record.json")


def tidy_record(output: Path) -> None:
    """Remove what a kill left of the writing of an artefact's record."""
    path = record_path(output)
    with contextlib.suppress(OSError):
        path.with_name(f".{path.name}.writing").unlink(missing_ok=True)


def read_run_record(output: Path) -> RunRecord | None:
    """The record of an artefact; None where there is none, it cannot be read, or it is that of another artefact.

    A record says the hash of the manifest that it belongs to, so that one that was left behind is not taken for that of
    what was put in its place.

    Args:
        output: The artefact's directory.
    """
    try:
        given = read_json(record_path(output))
        if not isinstance(given, dict) or given.get("artefact") not in (None, read_manifest(output).get(DIGEST)):
            return None
    except (ArtefactError, ValueError):
        return None
    return parse_record(given)


def parse_record(given: Mapping[str, Any]) -> RunRecord | None:
    """A record as its file says it; None where a field is missing or of another form."""
    try:
        batch = given.get("batch")
        return RunRecord(
            command=tuple(_text(word) for word in _list(given["command"])),
            commit=None if given["commit"] is None else _text(given["commit"]),
            started=_text(given["started"]),
            ended=_text(given["ended"]),
            seconds={_text(name): _seconds(value) for name, value in {"all": None, **given["seconds"]}.items()},
            parts=_count(given.get("parts", 1)),
            resumed_from=_maybe(given["resumed_from"]),
            machine=_machine(given["machine"]),
            processes=_count(given["processes"]),
            batch=None if batch is None else Batch(*(_count(batch[name]) for name in _BATCH)),
            peak_memory_bytes=_maybe(given.get("peak_memory_bytes")),
            peak_gpu_memory_bytes=_maybe(given.get("peak_gpu_memory_bytes")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def to_json(record: RunRecord) -> dict[str, Any]:
    """A record as its file says it; what is not known of batches and memory is left out."""
    said = asdict(record)
    if record.batch is not None:
        said["batch"] = dict(zip(_BATCH, astuple(record.batch), strict=True))
    optional = ("batch", "peak_memory_bytes", "peak_gpu_memory_bytes")
    return {name: value for name, value in said.items() if name not in optional or value is not None}


def _machine(given: Any) -> Machine:
    return Machine(
        processor=_text(given["processor"]),
        cores=_count(given["cores"]),
        threads=_count(given["threads"]),
        memory_bytes=_maybe(given["memory_bytes"]),
        gpus=tuple(Gpu(_text(card["name"]), _count(card["memory_bytes"])) for card in _list(given["gpus"])),
    )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
        raise ValueError
    return value


def _maybe(value: Any) -> int | None:
    return None if value is None else _count(value)


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError
    return float(value)


def duration(seconds: float) -> str:
    """Seconds in words.

    Example:
        >>> duration(9.04), duration(192), duration(7500)
        ('9.0 s', '3 min 12 s', '2 h 05 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
