"""Run records: time, memory, machine and command of a run, kept beside its artefact as `OUTPUT.record.json`.

An artefact holds nothing that differs between two equal runs; the record does. A record is not hashed, is no input,
does not affect whether an output is up to date, and never makes a run fail.
"""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Lt, Predicate

from minionerec.core.artefacts import DIGEST, read_json, read_manifest, resolve_link
from minionerec.core.errors import ArtefactError
from minionerec.core.machine import Count, Machine

Seconds = Annotated[float, Ge(0), Lt(math.inf)]


@dataclass(frozen=True)
class Batch:
    """The number of examples of an optimiser step.

    Attributes:
        per_device: Examples of a forward pass of one process.
        accumulation: Forward passes of a process before a step.
        total: Examples of a step, over all processes ("global" in the file).
        tokens: Approximate limit on tokens of a micro-batch at the end of the run; None without a limit. It does not
            affect the result.
    """

    per_device: Count
    accumulation: Count
    total: Count
    tokens: Count | None = None


@dataclass(frozen=True)
class RunRecord:
    """Time, memory, machine and command of a run. For a resumed run, values are of the last part unless stated.

    Attributes:
        command: The words of the command line.
        commit: Commit of the checkout that ran, followed by "-dirty" where files were changed; None for an installed
            package.
        started: When the first part began, in UTC, such as "2030-01-31T12:00:00Z".
        ended: When the last part ended.
        seconds: Wall time of all parts together: "all", and phases by name. Time of a nested phase counts only for the
            inner one, so phases add up to at most "all".
        parts: Number of starts, 1 for a run that was never interrupted; extending a run by a setting such as epochs
            adds one.
        resumed_from: Progress at the start of the last part: steps of a trainer, epochs of a sequential model,
            finished shards or parts of lists, finished runs of a study; 0 if nothing was saved; None for one part.
        machine: The machine.
        processes: Processes of the launch.
        batch: Examples of a step; None without steps.
        peak_memory_bytes: Peak resident memory of the first process, or of a child process that has ended if that is
            more; the largest of all parts; None if unknown.
        peak_gpu_memory_bytes: Peak memory that the first process had allocated on one GPU; None without a GPU.
    """

    command: tuple[str, ...]
    commit: str | None
    started: str
    ended: str
    seconds: Annotated[Mapping[str, Seconds], Predicate(lambda seconds: "all" in seconds)]
    resumed_from: Count | None
    machine: Machine
    processes: Count
    parts: Count = 1
    batch: Batch | None = None
    peak_memory_bytes: Count | None = None
    peak_gpu_memory_bytes: Count | None = None


def record_path(output: Path) -> Path:
    """Path of an artefact's record, beside the artefact, or beside the target if the artefact's path is a link."""
    output = resolve_link(output)
    return output.with_name(f"{output.name}.record.json")


def tidy_record(output: Path) -> None:
    """Remove a half-written record that a killed run left."""
    path = record_path(output)
    with contextlib.suppress(OSError):
        path.with_name(f".{path.name}.writing").unlink(missing_ok=True)


def read_run_record(output: Path) -> RunRecord | None:
    """The record of an artefact; None if it is missing, unreadable or belongs to another artefact.

    A record holds the hash of its artefact's manifest, so an old record is not taken for that of a new artefact.

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


def parse_record(given: Any) -> RunRecord | None:
    """A record from the content of its file; None if a field is missing or of another type."""
    from pydantic import TypeAdapter, ValidationError  # slow to import

    if isinstance(given, dict) and isinstance(batch := given.get("batch"), dict):
        given = {**given, "batch": {"total" if name == "global" else name: value for name, value in batch.items()}}
    try:
        return TypeAdapter(RunRecord).validate_json(json.dumps(given), strict=True)
    except ValidationError:
        return None


def to_json(record: RunRecord) -> dict[str, Any]:
    """A record as the content of its file; unknown batches and memory are left out."""
    content = asdict(record)
    if record.batch is not None:
        batch = {name: value for name, value in content["batch"].items() if name != "tokens" or value is not None}
        content["batch"] = {"global" if name == "total" else name: value for name, value in batch.items()}
    optional = ("batch", "peak_memory_bytes", "peak_gpu_memory_bytes")
    return {name: value for name, value in content.items() if name not in optional or value is not None}


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


KEPT_FILE = "record.json"
"""The record of an unfinished run, in its folder."""


def utc_now() -> str:
    """The current time in UTC, such as "2030-01-31T12:00:00Z"."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def record_in(file: Path) -> RunRecord | None:
    """The record in a file; None if there is none."""
    try:
        return parse_record(read_json(file))
    except ArtefactError:
        return None


def joined_record(before: RunRecord, last: RunRecord) -> RunRecord:
    """The record of a run in parts: sums of times, the largest peaks, and the other values of the last part."""
    names = [*before.seconds, *(name for name in last.seconds if name not in before.seconds)]
    return replace(
        last,
        started=before.started,
        seconds={name: before.seconds.get(name, 0.0) + last.seconds.get(name, 0.0) for name in names},
        parts=before.parts + last.parts,
        batch=last.batch or before.batch,
        peak_memory_bytes=_largest(before.peak_memory_bytes, last.peak_memory_bytes),
        peak_gpu_memory_bytes=_largest(before.peak_gpu_memory_bytes, last.peak_gpu_memory_bytes),
    )


def _largest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
