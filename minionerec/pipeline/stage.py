"""The life cycle of a stage: inputs, deciding settings, freshness, and resuming after a kill.

Every stage has the same form:

    def run_x(config: XConfig) -> StageResult:
        stage = Stage(config)
        if (manifest := stage.current()) is not None:
            return StageResult(...)                                 # up to date, which is logged
        with stage.work() as work:                                  # locked; inputs fetched and checked
            corpus = Corpus.load(stage.config.corpus)               # load: local paths alone
            model = build(...)                                      # build
            fit(model, work.folder / "state.safetensors")           # work; the folder survives a kill
            with work.finish(seed=config.seed, counts=counts) as folder:
                model.save(folder)                                  # finish: all or nothing

The rules are the same everywhere:

- The output is up to date when it was made from the same settings that affect the result and from inputs of the same
  content, and none of its files was changed since. Then nothing is done.
- An interrupted run is resumed from `OUTPUT.partial`. With other settings or inputs than it began with, or in a launch
  that its saved state does not fit, it is refused, naming what differs, until that folder is deleted.
- An input that was edited by hand, or that changes while a run reads it, is an error that names the file.
- Two runs of one output: the second is refused. Two stages of one process, in threads: the second waits for the first.
- An output that is something else (an artefact of another kind, a user's folder, an input of the run) is not replaced.
- Time and memory are written beside the output (`minionerec.core.records`), by phase: `with work.phase("train"):`.
"""

import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from filelock import FileLock, Timeout

from minionerec.core.artefacts import (
    DIGEST,
    MANIFEST,
    changed_file,
    fingerprint,
    input_record,
    is_artefact,
    read_json,
    read_manifest,
    remove_old,
    require_writable,
    resolve_link,
    to_plain,
    verify_files,
    write_artefact,
    write_json,
)
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import Clock, get_logger
from minionerec.core.machine import command_words, peak_gpu_memory, peak_memory, source_commit, this_machine
from minionerec.core.processes import check_agreement, is_main_process, wait_for_everyone, world_size
from minionerec.core.records import (
    KEPT_FILE,
    Batch,
    RunRecord,
    joined_record,
    record_in,
    record_path,
    tidy_record,
    to_json,
    utc_now,
)
from minionerec.core.remote import look_again
from minionerec.core.values import in_words
from minionerec.pipeline.settings import StageConfig, description, input_kinds
from minionerec.pipeline.stages import stage_name

logger = get_logger(__name__)

RECORD_FILE, LAUNCH_FILE = "run.json", "launch.json"
_ONE_AT_A_TIME = threading.RLock()
"""Held by the stage that works: torch's generators and the threads of libraries are those of the whole process."""
C = TypeVar("C", bound=StageConfig)


class Stage(Generic[C]):
    """A stage with its settings.

    Args:
        config: The settings as given.
        kind: Kind of artefact that it writes; that of the settings if None.
        output: Directory to write; the settings' `output` if None. A stage that makes several artefacts (one a seed) is
            one `Stage` for each.
        settings: Values that affect the result; those of `config.deciding()` if None.

    Attributes:
        name: Name of the stage; None where it is not in the registry of stages.
        given: The settings as given, with URLs; the manifest keeps them.
        config: Settings with local paths (`Settings.local`), for code that reads inputs.
        output: The directory; of a link, its target.
        inputs: Name to local path of everything that is read.
        settings: Values that affect the result, as plain values.
    """

    def __init__(
        self,
        config: C,
        *,
        kind: str | None = None,
        output: Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ):
        look_again()  # URLs are read once, now, for the whole run
        self.given, self.config = config, config.local()
        self.name = stage_name(type(config))
        self.kind = config.kind if kind is None else kind
        self.output = resolve_link(config.output if output is None else output)
        self.inputs = self.config.inputs()
        self.settings: dict[str, Any] = to_plain(config.deciding() if settings is None else dict(settings))

    @property
    def partial(self) -> Path:
        """The folder of an unfinished run, beside the output."""
        return self.output.with_name(f"{self.output.name}.partial")

    @property
    def finished(self) -> Path:
        """The folder with the last state of a finished run, which can be resumed."""
        return self.output.with_name(f"{self.output.name}.finished")

    def current(self, say: bool = True) -> dict[str, Any] | None:
        """The manifest of the output where it is up to date, else None.

        Args:
            say: Whether to log that it is up to date, or which of its files was changed by hand.

        Raises:
            ArtefactError: If an input is missing, of another kind, or was changed since it was written.
        """
        self.check_inputs()
        if not is_artefact(self.output):
            return None
        manifest = read_manifest(self.output)
        if (manifest["kind"], manifest.get("settings")) != (self.kind, self.settings):
            return None
        if hashes_of(manifest["inputs"]) != hashes_of(input_record(self.inputs)):
            return None
        changed = changed_file(self.output)
        if changed is not None:
            if say:
                logger.warning("%s was changed since it was written: %s is rebuilt.", changed, self.output)
            return None
        if is_main_process():
            self._tidy()
        if say:
            logger.info("%s is up to date.", self.output)
        return manifest

    def _tidy(self) -> None:
        """Remove the leftovers of a run that was killed after its last write."""
        remove_old(self.output)
        tidy_record(self.output)
        if self.partial.is_dir() and not (self.partial / RECORD_FILE).is_file():
            shutil.rmtree(self.partial, ignore_errors=True)

    def check_inputs(self) -> None:
        """Check that every input exists, is of the right kind, and unchanged.

        Raises:
            ArtefactError: Naming the directory or the file.
        """
        kinds = input_kinds(self.config)
        for name, path in self.inputs.items():
            kind = kinds.get(name, "any")
            manifest = None if kind == "any" else read_manifest(path, kind)
            if not path.exists():
                raise ArtefactError(f"{path}: no such file or directory, but it is read as {name}. Fix its path.")
            if path.is_dir() and is_main_process():
                verify_files(path, manifest)

    def check_launch(self, launch: Mapping[str, Any]) -> None:
        """Check that this launch can continue an unfinished run, or a finished one that is to be extended.

        Nothing is written, and every process of a launch comes to the same result.

        Args:
            launch: Properties of the launch that a trainer's states can depend on, see `launch_in_words`.

        Raises:
            ConfigError: Naming both launches.
        """
        folders = (self.partial, self.finished) if self.output.name else ()  # an output "." is refused later
        folder = next((path for path in folders if (path / RECORD_FILE).is_file()), None)
        if folder is None or self._differences(folder, hashes_of(input_record(self.inputs))):
            return  # differences are reported later
        saved = saved_launch(folder)
        current = {name: launch.get(name) for name in saved}
        if saved != current:
            raise ConfigError(
                f"{folder}: was written by {launch_in_words(saved)}, and cannot be continued by "
                f"{launch_in_words(current)}. Launch it as it was, choose another output, or delete that folder to "
                "begin again."
            )

    @contextmanager
    def work(self) -> Iterator["Work"]:
        """Lock the output against other runs, and prepare the folder of an unfinished run.

        Under a distributed launch the first process does so and the others wait; at the end all wait for one another.
        A stage that works in another thread of this process is waited for.

        Yields:
            The running stage.

        Raises:
            ConfigError: If another run is writing the output, or an unfinished one has other settings or inputs.
            ArtefactError: If the output cannot be written, or would replace something else.
        """
        with locked(self.output, self.kind), _alone():
            output = self.output.resolve()
            for name, path in self.inputs.items():
                if path.resolve().is_relative_to(output):
                    raise ArtefactError(
                        f"{self.output}: is read as {name}, so it cannot be the output. Choose another."
                    )
            states, records = _states(self.inputs), input_record(self.inputs)
            hashes = hashes_of(records)
            if is_main_process():
                self._prepare(hashes)
                self._log_replaced(hashes)
            wait_for_everyone()
            check_agreement(self.settings, hashes)
            work = Work(self, records, states)
            try:
                yield work
                wait_for_everyone()
            finally:
                work.keep()

    def _prepare(self, hashes: Mapping[str, str]) -> None:
        """Keep at most one unfinished run: the one to resume, or a finished one that is to be extended."""
        if (self.partial / RECORD_FILE).is_file():
            differences = self._differences(self.partial, hashes)
            if differences and self._is_done(self.partial):
                shutil.rmtree(self.partial, ignore_errors=True)
            elif differences:
                raise ConfigError(
                    f"{self.partial}: holds an unfinished run that differs in {', '.join(differences)}. Resume it with "
                    "the old settings, choose another output, or delete that folder to begin again."
                )
        elif (self.finished / RECORD_FILE).is_file() and not self._differences(self.finished, hashes):
            shutil.rmtree(self.partial, ignore_errors=True)
            self.finished.rename(self.partial)
        elif self.partial.exists():
            shutil.rmtree(self.partial, ignore_errors=True)

    def _log_replaced(self, hashes: Mapping[str, str]) -> None:
        """Log the inputs in which this run differs from the one whose output is to be replaced, with its paths."""
        if not is_artefact(self.output):
            return
        records = read_manifest(self.output)["inputs"]
        changed = [
            f"{name} {record['path']}" for name, record in records.items() if record["sha256"] != hashes.get(name)
        ]
        if changed:
            logger.info("%s was made from other content (%s) and will be replaced.", self.output, ", ".join(changed))

    def _differences(self, folder: Path, hashes: Mapping[str, str]) -> list[str]:
        """The differences between this run and the one that left a folder, in words."""
        record = _read_record(folder)
        settings = record["settings"]
        resumable = {field.name for field in fields(self.config) if description(field).resumable}
        differences = [
            f"{name} (then {in_words(settings.get(name))}, now {in_words(value)})"
            for name, value in self.settings.items()
            if settings.get(name) != value and not (name in resumable and _is_more(value, settings.get(name)))
        ]
        return differences or (["the inputs' content"] if record["inputs"] != hashes else [])

    def _is_done(self, folder: Path) -> bool:
        """Whether the output is that of the run that left a folder, which was then killed after its last write."""
        if not is_artefact(self.output):
            return False
        manifest, record = read_manifest(self.output), _read_record(folder)
        return bool((record["settings"], record["inputs"]) == (manifest.get("settings"), hashes_of(manifest["inputs"])))


def hashes_of(records: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Name of each input to the hash of its content, from the records of a manifest."""
    return {name: record["sha256"] for name, record in records.items()}


@contextmanager
def locked(output: Path, kind: str) -> Iterator[None]:
    """Lock an output against other runs, in the first process of a launch; its holder may lock it again.

    Args:
        output: Directory of the artefact, or a link to it.
        kind: Kind of the artefact.

    Raises:
        ConfigError: If another run, of another thread too, is writing it.
        ArtefactError: If it cannot be written, or would replace something else.
    """
    if not is_main_process():
        yield
        return
    output = resolve_link(output)
    require_writable(output, kind)
    lock = FileLock(output.with_name(f".{output.name}.lock"), timeout=0, is_singleton=True)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(f"{output}: another run is writing it. Wait for it, or choose another output.") from None
    try:
        yield
    finally:
        lock.release()


def _states(inputs: Mapping[str, Path]) -> dict[str, tuple[int, ...] | None]:
    """Size and times of each input, of an artefact those of its manifest: they differ once it was written again."""
    states: dict[str, tuple[int, ...] | None] = {}
    for name, path in inputs.items():
        try:
            state = (path / MANIFEST if path.is_dir() else path).stat()
            states[name] = (state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        except OSError:
            states[name] = None
    return states


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other thread of this process works at a stage; a stage within another continues."""
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        logger.info("Waiting for a stage in another thread of this process.")
        _ONE_AT_A_TIME.acquire()
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


def saved_launch(folder: Path) -> dict[str, Any]:
    """The launch that the states in the folder of an unfinished run depend on; empty where nothing is known."""
    try:
        launch = read_json(folder / LAUNCH_FILE)
    except ArtefactError:
        return {}
    return launch if isinstance(launch, dict) else {}


def launch_in_words(launch: Mapping[str, Any]) -> str:
    """A launch in words.

    Args:
        launch: Some of `processes`, their number; `sharding`, see `minionerec.core.processes.sharding`; and `device`.

    Example:
        >>> launch_in_words({"processes": 2, "sharding": "ZeRO-2", "device": "cpu"})
        '2 processes with ZeRO-2 on cpu'
        >>> launch_in_words({"sharding": "", "device": "cpu"})
        'a launch without ZeRO or FSDP on cpu'
    """
    count = launch.get("processes")
    words = "a launch" if count is None else "1 process" if count == 1 else f"{count} processes"
    if "sharding" in launch:
        words += f" with {launch['sharding']}" if launch["sharding"] else " without ZeRO or FSDP"
    return f"{words} on {launch['device']}" if "device" in launch else words


def _read_record(folder: Path) -> dict[str, Any]:
    """The settings and inputs of an unfinished run.

    Raises:
        ConfigError: If they cannot be read.
    """
    try:
        record = read_json(folder / RECORD_FILE)
    except ArtefactError as error:
        record, reason = None, f" ({error})"
    else:
        reason = ""
    if not isinstance(record, dict) or not all(isinstance(record.get(name), dict) for name in ("settings", "inputs")):
        raise ConfigError(
            f"{folder / RECORD_FILE}: does not hold settings and inputs of the unfinished run{reason}. Delete the "
            "folder to begin again."
        )
    return record


def _is_more(value: Any, before: Any) -> bool:
    return isinstance(before, int | float) and isinstance(value, int | float) and value > before


class Work(Clock):
    """A running stage; it measures the run for its record, which the first process of a launch writes.

    Args:
        stage: The stage.
        read: Path and fingerprint of each input, as it was when the run began.
        states: Size and times of each, as they were before.
    """

    def __init__(
        self, stage: Stage[Any], read: dict[str, dict[str, str]], states: Mapping[str, tuple[int, ...] | None]
    ):
        self.stage, self.read, self._states = stage, read, states
        self.batch: Batch | None = None
        self._began = self._turned = time.monotonic()
        self._started = utc_now()
        self._seconds: dict[str, float] = {}
        self._phases: list[str] = []
        self._done = not is_main_process()
        self._commit = source_commit() if is_main_process() else None
        self._before = record_in(stage.partial / KEPT_FILE) if is_main_process() else None
        self._resumed_from = None if self._before is None else 0
        self._open = self._reached = self._warned = self._all_read = False

    @property
    def folder(self) -> Path:
        """The folder for files that must survive a kill; it exists once this was first read."""
        if not self._open:
            if is_main_process():  # a resumed run may have been extended
                content = {"stage": self.stage.name, "settings": self.stage.settings, "inputs": hashes_of(self.read)}
                write_json(self.stage.partial / RECORD_FILE, content)
            wait_for_everyone()
            self._open = True
        self.keep()
        return self.stage.partial

    def inputs_read(self, last: bool = True) -> None:
        """Check that no input was changed since the run began; `finish` does so too, unless all were read before.

        Args:
            last: Whether nothing is read after this: a training of hours is not lost by a change during it.

        Raises:
            ArtefactError: Naming the input. The files that this run has kept of them are removed.
        """
        self._check_inputs(discard=self._before is None)
        self._all_read = last

    def _check_inputs(self, discard: bool) -> None:
        states = _states(self.stage.inputs)
        for name, record in self.read.items():
            path = self.stage.inputs[name]
            is_untouched = states[name] is not None and states[name] == self._states[name]
            if not is_untouched or fingerprint(path) != record["sha256"]:
                if discard and is_main_process():
                    shutil.rmtree(self.stage.partial, ignore_errors=True)
                raise ArtefactError(
                    f"{path}: was changed while it was read as {name}, so nothing is written. Run the same command "
                    "again."
                )

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside for a phase, such as "train"; one within another counts only for itself."""
        self._turn()
        self._phases.append(name)
        try:
            yield
        finally:
            self._turn()
            self._phases.pop()

    def reached(self, step: int) -> None:
        """Note how many steps are saved; the first call says where the run resumed."""
        if not self._reached and (step or self._before is not None):
            self._resumed_from = step
        self._reached = True
        self.keep()

    def _turn(self) -> None:
        """Add the time since the last turn to the innermost phase."""
        now = time.monotonic()
        if self._phases:
            name = self._phases[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._turned
        self._turned = now

    def now(self) -> RunRecord:
        """The current record, with those of earlier parts of the run."""
        self._turn()
        seconds = {"all": time.monotonic() - self._began, **self._seconds}
        record = RunRecord(
            command=command_words(),
            commit=self._commit,
            started=self._started,
            ended=utc_now(),
            seconds=seconds,
            parts=1,
            resumed_from=self._resumed_from,
            machine=this_machine(),
            processes=world_size(),
            batch=self.batch,
            peak_memory_bytes=peak_memory(),
            peak_gpu_memory_bytes=peak_gpu_memory(),
        )
        record = record if self._before is None else joined_record(self._before, record)
        return replace(record, seconds={name: round(value, 3) for name, value in record.seconds.items()})

    def keep(self) -> None:
        """Write the current record into the folder of the unfinished run, where there is one."""
        if not self._done and self.stage.partial.is_dir():
            self._write(self.stage.partial / KEPT_FILE, None)

    def write_beside(self) -> None:
        """Write the record beside the finished artefact."""
        if self._done:
            return
        path = record_path(self.stage.output)
        if path.is_symlink() or (path.exists() and record_in(path) is None):
            logger.warning("%s: is not a run record, so that of this run is not written. Move it away.", path)
        else:
            self._write(path, self.stage.output)
        self.keep()
        self._done = True

    def _write(self, path: Path, artefact: Path | None) -> None:
        """Write a record; an error here never fails a run."""
        try:
            content = to_json(self.now())
            if artefact is not None:
                content["artefact"] = read_manifest(artefact)[DIGEST]
            write_json(path, content)
        except Exception as error:
            if not self._warned:
                logger.warning("The run continues without its record: %s", error)
            self._warned = True

    def log_batch(self, per_device: int, accumulation: int, total: int) -> None:
        """Set the batch of the run record: examples at a time, accumulation steps, and examples of all processes."""
        self.batch = Batch(per_device, accumulation, total)

    def log_tokens(self, tokens: int) -> None:
        """Set how many tokens of its examples a process computed at a time, in the batch of the run record."""
        if self.batch is not None:
            self.batch = replace(self.batch, tokens=tokens)

    @contextmanager
    def finish(
        self, *, seed: int | None = None, counts: Mapping[str, Any] | None = None, keep_state: bool = False
    ) -> Iterator[Path]:
        """Write the output in one piece, then remove or keep the unfinished run's folder; in the first process alone.

        Args:
            seed: Random seed, if any was used.
            counts: Counts to report; a mapping filled inside the block is fine.
            keep_state: Whether the folder is kept, so that the run may be resumed with a larger setting.

        Yields:
            The directory to write files into.

        Raises:
            ArtefactError: If an input was changed while it was read, or the output cannot be written.
        """
        stage = self.stage
        artefact = write_artefact(
            stage.output,
            stage.kind,
            config=stage.given,
            stage=stage.name,
            settings=stage.settings,
            recorded=self.read,
            seed=seed,
            counts=counts,
        )
        with self.phase("write"), artefact as folder:
            yield folder
            if not self._all_read:
                self._check_inputs(discard=True)
        self.write_beside()
        shutil.rmtree(stage.finished, ignore_errors=True)
        if keep_state and stage.partial.is_dir():
            stage.partial.rename(stage.finished)
        else:
            shutil.rmtree(stage.partial, ignore_errors=True)
