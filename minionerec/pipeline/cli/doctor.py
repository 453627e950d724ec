"""`minionerec doctor`: one page on installed packages, artefacts, and what each step of a recipe would do and why.

It is made to be pasted into a bug report: it names packages, settings and paths below the current directory, and holds
no row, title or text of the user, nor the path of their home folder.
"""

import platform
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import (
    MANIFEST,
    changed_file,
    input_record,
    is_artefact,
    package_versions,
    read_json,
    read_manifest,
)
from minionerec.core.commands import CommandParser
from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.core.machine import this_machine
from minionerec.pipeline.cli.plan import plan_of
from minionerec.pipeline.settings import Settings, StageConfig
from minionerec.pipeline.stage import RECORD_FILE, Stage, hashes_of

SUMMARY = "Show what is installed, which artefacts verify, and what the steps of a recipe would do and why."


def doctor_arguments(program: str) -> CommandParser:
    """The options of `minionerec doctor`."""
    parser = CommandParser(prog=program, description=SUMMARY)
    parser.add_argument("folder", nargs="?", default="runs", help="folder whose artefacts are verified (default: runs)")
    parser.add_argument("--recipe", metavar="NAME", help="name or file of a recipe: what would each step do, and why")
    return parser


def run_doctor(program: str) -> None:
    """Print the page.

    Raises:
        ConfigError: If the recipe is malformed, or the given folder does not exist.
    """
    options = doctor_arguments(program).parse_args()
    folder = Path(options.folder)
    if options.folder != "runs" and not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder. Give the one that holds the outputs of stages.")
    versions = package_versions() | {"system": platform.platform()} | asdict(this_machine())
    lines = ["Installed", *(f"  {name} {value}" for name, value in versions.items())]
    lines += [f"Artefacts below {folder}", *(list(_artefacts(folder)) or ["  none"])]
    if options.recipe is not None:
        jobs = plan_of(options.recipe).values()
        lines += [f"Steps of {options.recipe}", *(f"  {job.title:<20} {would_do(job.settings)}" for job in jobs)]
    for line in lines:
        print(_private(line))


def _private(text: str) -> str:
    """A text without the paths of the home folder and of the current directory."""
    for root, sign in ((Path.cwd(), "."), (Path.home(), "~")):
        if len(root.parts) > 1:
            text = re.sub(re.escape(str(root)) + r"(?![\w.-])", sign, text)
    return text


def _artefacts(root: Path) -> Iterator[str]:
    """The lines of the artefacts and unfinished runs below a folder."""
    for folder in sorted({file.parent for name in (MANIFEST, RECORD_FILE) for file in root.rglob(name)}):
        path = folder.relative_to(root)
        if not any(part.startswith(".") for part in path.parts):
            yield f"  {path!s:<40} {_state(folder)}"


def _state(folder: Path) -> str:
    """The state of one artefact or unfinished run, in one line."""
    if not is_artefact(folder):
        return "the state of a run: the same command continues it"
    try:
        kind, changed = read_manifest(folder)["kind"], changed_file(folder)
    except (MinioneRecError, OSError, KeyError, TypeError, AttributeError) as error:
        return f"broken: {error}"
    if changed is None:
        return f"{kind}, verified"
    return f"{kind}: {changed.relative_to(folder)} {'was changed' if changed.is_file() else 'is missing'}"


def would_do(config: Settings) -> str:
    """The action of a step with these settings if it were run now, and the reason, in one line."""
    if not isinstance(config, StageConfig) or not config.output:
        return "only prints"
    try:
        return "up to date" if config.up_to_date() else _reason(Stage(config))
    except (MinioneRecError, OSError, KeyError, TypeError, AttributeError) as error:
        return f"cannot run yet: {error}"


def _reason(stage: Stage[Any]) -> str:
    """The action of a stage whose output is not up to date, and the settings and inputs in which it differs."""
    is_unfinished = (stage.partial / RECORD_FILE).is_file()
    if is_unfinished:
        record = read_json(stage.partial / RECORD_FILE)
        settings, before = record["settings"], record["inputs"]
    elif is_artefact(stage.output):
        manifest = read_manifest(stage.output)
        settings, before = manifest["settings"], hashes_of(manifest["inputs"])
    else:
        return "would run: no output yet"
    now = hashes_of(input_record(stage.inputs))
    differences = [name for name, value in stage.settings.items() if settings.get(name) != value]
    differences += [f"the input {name}" for name in sorted({*now, *before}) if now.get(name) != before.get(name)]
    if is_unfinished and differences:
        return f"would be refused: the unfinished run there differs in {', '.join(differences)}"
    if is_unfinished:
        return "would resume an unfinished run"
    if differences:
        return f"would run: its output differs in {', '.join(differences)}"
    return "would run: a file of its output was changed or removed since it was written"
