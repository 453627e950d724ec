"""`minionerec doctor`: one page on installed packages, artefacts, and what each step of a recipe would do and why.

It is made to be pasted into a bug report: it names packages, settings and paths below the current directory, and holds
no row, title or text of the user, nor the path of their home folder.
"""

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import MANIFEST, changed_file, input_record, is_artefact, package_versions, read_manifest
from minionerec.core.artefacts import read_json as read_record
from minionerec.core.commands import CommandParser
from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.machine import usable_cores
from minionerec.core.records import read_run_record
from minionerec.core.values import in_words
from minionerec.pipeline.cli.plan import plan_of
from minionerec.pipeline.settings import Settings, StageConfig
from minionerec.pipeline.stage import RECORD_FILE, Stage

SUMMARY = "Show what is installed, which artefacts verify, and what the steps of a recipe would do and why."
_SHOWN = 4
"""Differences that a line names."""


def doctor_arguments(program: str) -> CommandParser:
    """The options of `minionerec doctor`."""
    parser = CommandParser(prog=program, description=SUMMARY)
    parser.add_argument("folder", nargs="?", default="runs", help="folder whose artefacts are verified (default: runs)")
    parser.add_argument("--recipe", metavar="NAME", help="name or file of a recipe: what would each step do, and why")
    return parser


def report(folder: str, recipe: str | None) -> list[str]:
    """The page, line by line.

    Args:
        folder: Folder whose artefacts are verified.
        recipe: Recipe whose steps are shown; none if None.

    Raises:
        ConfigError: If the recipe is malformed, or the given folder does not exist.
    """
    path = Path(folder)
    if folder != "runs" and not path.is_dir():
        raise ConfigError(f"{folder}: no such folder. Give the one that holds the outputs of stages.")
    lines = ["Installed", *_installed(), "", "Machine", *_machine(path), "", f"Artefacts below {folder}"]
    lines += [*_artefacts(path)] or ["  none"]
    if recipe is not None:
        lines += ["", f"Steps of {recipe}"]
        jobs = plan_of(recipe).values()
        width = max(20, *(len(job.title) for job in jobs))
        lines += [f"  {job.title:<{width}} {_private(would_do(job.settings))}" for job in jobs]
    return [_private(line).rstrip() for line in lines]


def _private(text: str) -> str:
    """A text without the paths of the home folder and of the current directory."""
    for root, sign in ((Path.cwd(), "."), (Path.home(), "~")):
        if len(root.parts) > 1:
            text = re.sub(re.escape(str(root)) + r"(?![\w.-])", sign, text)
    return text


def _installed() -> Iterator[str]:
    versions = package_versions()
    yield f"  {platform.system()} {platform.release()} {platform.machine()}, Python {versions.pop('python')}"
    words = [f"{name} {version}" for name, version in versions.items()]
    for start in range(0, len(words), 5):
        yield "  " + ", ".join(words[start : start + 5])


def _machine(folder: Path) -> Iterator[str]:
    import psutil
    import torch

    limit = os.environ.get("OMP_NUM_THREADS", "not set")
    threads = f"{torch.get_num_threads()} threads (OMP_NUM_THREADS {limit[:20]})"
    yield f"  {os.cpu_count()} CPUs, {usable_cores()} usable, {threads}"
    memory = psutil.virtual_memory()
    yield f"  memory {_gb(memory.total)}, free {_gb(memory.available)}"
    disk = shutil.disk_usage(folder if folder.is_dir() else Path.cwd())
    yield f"  disk free {_gb(disk.free)} of {_gb(disk.total)}"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in range(count):
        card = torch.cuda.get_device_properties(number)
        yield f"  GPU {number}: {card.name}, {_gb(card.total_memory)}"
    if not count:
        yield "  no GPU that torch can use"


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _artefacts(root: Path) -> Iterator[str]:
    """The lines of the artefacts and unfinished runs below a folder."""
    for folder in sorted({file.parent for name in (MANIFEST, RECORD_FILE) for file in root.rglob(name)}):
        path = folder.relative_to(root)
        if not any(part.startswith(".") for part in path.parts):
            yield f"  {path!s:<40} {_state(folder)}"


def _state(folder: Path) -> str:
    """The state of one artefact or unfinished run, in one line."""
    if not is_artefact(folder):
        run = "the last state of a finished run" if folder.name.endswith(".finished") else "an unfinished run"
        return f"{run}: the same command resumes it"
    try:
        manifest = read_manifest(folder)
        changed = changed_file(folder)
    except (MinioneRecError, OSError, KeyError, TypeError, AttributeError) as error:
        return f"broken: {error}"
    if changed is not None:
        change = "was changed" if changed.is_file() else "is missing"
        return f"{manifest['kind']}: {changed.relative_to(folder)} {change} since it was written"
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    record = read_run_record(folder)
    duration = "" if record is None else f", made in {record.seconds['all']:,.1f} s"
    return f"{manifest['kind']}, {size / 1e6:.1f} MB, verified{duration}"


def would_do(config: Settings) -> str:
    """The action of a step with these settings if it were run now, and the reason, in one line."""
    if not isinstance(config, StageConfig) or not config.output:
        return "only prints"
    try:
        return "up to date" if config.up_to_date() else _reason(Stage(config))
    except MinioneRecError as error:
        return f"cannot run yet: {error}"
    except (OSError, KeyError, TypeError, AttributeError) as error:
        return f"unknown: {type(error).__name__}"


def _reason(stage: Stage[Any]) -> str:
    """The action of a stage whose output is not up to date, and the reason."""
    if (stage.partial / RECORD_FILE).is_file():
        record = read_record(stage.partial / RECORD_FILE)
        differences = _differences(record["settings"], record["inputs"], stage)
        if differences:
            return f"would be refused: an unfinished run there differs in {differences}"
        return "would resume an unfinished run"
    if not is_artefact(stage.output):
        return "would run: no output yet"
    manifest = read_manifest(stage.output)
    if manifest["kind"] != stage.kind:
        return f"would be refused: its output holds a {manifest['kind']}"
    hashes = {name: record["sha256"] for name, record in manifest["inputs"].items()}
    differences = _differences(manifest.get("settings") or {}, hashes, stage)
    if differences:
        return f"would run: {differences}"
    changed = changed_file(stage.output)
    if changed is not None:
        return f"would run: {changed.relative_to(stage.output)} was changed or removed since it was written"
    return "would run: one of its outputs is missing or stale"


def _differences(settings: Mapping[str, Any], hashes: Mapping[str, str], stage: Stage[Any]) -> str:
    """The settings, and inputs by their hashes, in which a stage differs from an earlier run; "" where in none."""
    differences = [
        f"{name} was {_value(settings.get(name))}, is {_value(value)}"
        for name, value in stage.settings.items()
        if settings.get(name) != value
    ]
    current = {name: record["sha256"] for name, record in input_record(stage.inputs).items()}
    names = sorted({*current, *hashes})
    differences += [f"the input {name} differs" for name in names if current.get(name) != hashes.get(name)]
    more = f", and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return ", ".join(differences[:_SHOWN]) + more


def _value(value: Any) -> str:
    """A value of a setting, without the user's texts."""
    parts = value if isinstance(value, list) else [value]
    if all(part is None or isinstance(part, bool | int | float) for part in parts):
        return in_words(value)
    return f"another {'text' if isinstance(value, str) else 'list' if isinstance(value, list) else 'mapping'}"


def run_doctor(program: str) -> None:
    """Print the page."""
    options = doctor_arguments(program).parse_args()
    print("\n".join(report(options.folder, options.recipe)))
