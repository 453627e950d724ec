"""Attack the project: `make hostile`, or `make hostile ARGS="--cases 2000 --seed 5"`; README.md says what must hold.

A case is a group, a seed and a number, and nothing else: `--replay FILE` runs the broken ones of a campaign again, and
`--group csv --number 17` a single one. Cases run in two child processes; one that takes more than 10 seconds of
processor time, more than two minutes (launches: 11) or more than 2 GB is ended, counted as broken, and the next child
goes on behind it.
"""

import argparse
import contextlib
import io
import json
import logging
import multiprocessing
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil
import torch
from hostile.artefact_groups import GROUPS
from hostile.groups import Broken
from threadpoolctl import threadpool_limits

from minionerec.core.errors import MinioneRecError, fault

WORK, SECONDS, BYTES, LONGEST = 10.0, 120.0, 2 << 30, 2_300
PLACE = Path("runs/hostile/broken.jsonl")
START = "forkserver"
"""How children are started. A fork of a process that has computed in several threads waits for them, or crashes; the
server has only imported the groups."""


class Case(NamedTuple):
    """What there is to know of a case."""

    group: str
    seed: int
    number: int


def plan(cases: int, seed: int, groups: Sequence[str] = ()) -> list[Case]:
    chosen = [GROUPS[name] for name in (groups or GROUPS)]
    whole = sum(group.share for group in chosen)
    counts = [max(1, round(cases * group.share / whole)) for group in chosen]
    counts[0] += cases - sum(counts)
    pairs = zip(chosen, counts, strict=True)
    return [Case(group.name, seed, position) for group, count in pairs for position in range(count)]


def run_case(case: Case, clean: Path, scratch: Path) -> tuple[str, str]:
    """Run one case: "used", "refused" or "broken", and what was said.

    Args:
        case: The case.
        clean: Folder with the undisturbed files of its group.
        scratch: Folder for a copy of them.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(clean, scratch)
    rng = Random(f"{case.seed} {case.group} {case.number}")
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            GROUPS[case.group].strike(rng, clean, scratch)
    except Broken as error:
        return "broken", str(error)
    except MinioneRecError as error:
        return _judged(str(error))
    except Exception as error:
        message = fault(error)
        if message is not None:
            return _judged(str(MinioneRecError(message)))
        folder = traceback.extract_tb(error.__traceback__)[-1]
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/minionerec/" in frame.filename]
        at = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else f"{folder.filename}:{folder.lineno}"
        return "broken", f"{type(error).__name__} at {at}: {str(error)[:200]}"
    return "used", ""


def _judged(message: str) -> tuple[str, str]:
    if "\n" in message or not message.strip():
        return "broken", f"a message of several lines or none: {message[:200]!r}"
    return ("broken", f"a message of {len(message)} characters") if len(message) > LONGEST else ("refused", message)


def _work(cases: list[Case], homes: dict[str, Path], scratch: Path, pipe: Connection) -> None:
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    threadpool_limits(1)
    pipe.send(("ready", None))
    for case in cases:
        pipe.send(("begins", case))
        verdict, message = run_case(case, homes[case.group], scratch)
        pipe.send((verdict, case, message))
    pipe.send(("ends", None))


def _used(process: Any) -> tuple[float, int]:
    """Seconds of processor time, which other work on the machine does not lengthen, and bytes of memory."""
    try:
        about = psutil.Process(process.pid)
        times = about.cpu_times()
        return times.user + times.system, about.memory_info().rss
    except psutil.Error:
        return 0.0, 0


class _Child:
    """A process at work on some cases."""

    def __init__(self, cases: list[Case], homes: dict[str, Path], scratch: Path):
        self.cases, self.homes, self.scratch = cases, homes, scratch
        self.done = 0
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = multiprocessing.Pipe(duplex=False)
        arguments = (self.cases[self.done :], self.homes, self.scratch, theirs)
        context = multiprocessing.get_context(START)
        context.set_forkserver_preload(["hostile.artefact_groups"])
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.since, self.ready = time.monotonic(), False
        self.worked, self.first = _used(self.process)

    def heard(self) -> Iterator[tuple[str, Case, str]]:
        """Verdicts since the last call; a case that crashed, hung or grew too large is broken and left behind."""
        lost = ""
        try:
            while self.pipe.poll():
                word, case, *rest = self.pipe.recv()
                self.since, (self.worked, memory) = time.monotonic(), _used(self.process)
                if word == "ready":
                    self.ready, self.first = True, memory
                if word not in ("ready", "begins", "ends"):
                    self.done += 1
                    yield word, case, rest[0]
        except EOFError:
            self.process.join()
            lost = f"the process ended with status {self.process.exitcode}" if self.done < len(self.cases) else ""
        if not lost and self.done < len(self.cases):
            limit = GROUPS[self.cases[self.done].group].seconds
            seconds, (worked, memory) = limit or SECONDS, _used(self.process)
            if time.monotonic() - self.since > seconds:
                lost = f"no answer within {seconds:.0f} s"
            elif limit is None and self.ready and worked - self.worked > WORK:
                lost = f"no answer within {WORK:.0f} s of processor time"
            elif self.ready and memory - self.first > BYTES:
                lost = "more than 2 GB"
        if lost:
            self.process.kill()
            self.process.join()
            self.done += 1
            yield "broken", self.cases[self.done - 1], lost
            if self.done < len(self.cases):
                self._start()

    def at_work(self) -> bool:
        return self.done < len(self.cases)


def attack(
    cases: list[Case], *, children: int = 2, quiet: bool = True, output: Path | None = None
) -> tuple[Counter[tuple[str, str]], list[Any]]:
    """Run cases: how many of each group were used, refused, broken; and the broken ones with what was said.

    Args:
        cases: The cases.
        children: Processes that run them.
        quiet: Whether nothing is printed meanwhile.
        output: File that broken cases are added to as they are found.
    """
    counts: Counter[tuple[str, str]] = Counter()
    broken: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        homes: dict[str, Path] = {}
        made: dict[Any, Path] = {}
        for name in dict.fromkeys(case.group for case in cases):
            make = GROUPS[name].make
            if make not in made:
                made[make] = Path(folder) / "clean" / str(len(made))
                made[make].mkdir(parents=True)
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    make(made[make])
            homes[name] = made[make]
        order = list(cases)
        Random(0).shuffle(order)  # so that both children get of every group
        at_work = [_Child(order[n::children], homes, Path(folder) / f"scratch{n}") for n in range(children)]
        started = reported = time.monotonic()
        while any(child.at_work() for child in at_work):
            wait([child.pipe for child in at_work if child.at_work()], timeout=0.2)
            for child in at_work:
                for verdict, case, message in child.heard() if child.at_work() else ():
                    counts[case.group, verdict] += 1
                    if verdict == "broken":
                        broken.append({**case._asdict(), "message": message})
                        if output is not None:
                            with output.open("a", encoding="utf-8") as file:
                                file.write(json.dumps(broken[-1]) + "\n")
            if not quiet and time.monotonic() - reported > 30:
                reported = time.monotonic()
                seconds = reported - started
                done = f"{sum(counts.values()):,} of {len(cases):,} cases"
                print(f"{done}, {len(broken)} broken, {seconds:.0f} s", flush=True)
        for child in at_work:
            child.process.join()
    return counts, broken


def table(counts: Counter[tuple[str, str]]) -> str:
    lines = [f"{'group':<18}{'cases':>8}{'used':>8}{'refused':>9}{'broken':>8}"]
    for name in [*dict.fromkeys(group for group, _ in sorted(counts, key=lambda key: list(GROUPS).index(key[0]))), ""]:
        used, refused, broken = (
            sum(n for (group, word), n in counts.items() if name in (group, "") and word == verdict)
            for verdict in ("used", "refused", "broken")
        )
        lines.append(f"{name or 'all':<18}{used + refused + broken:8,}{used:8,}{refused:9,}{broken:8,}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack every reader with seeded mutations.")
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--group", action="append", default=[], choices=list(GROUPS))
    parser.add_argument("--number", type=int, help="only this case of the group")
    parser.add_argument("--replay", type=Path, help="file of broken cases to run again")
    parser.add_argument("--output", type=Path, default=PLACE, help="where broken cases are written")
    given = parser.parse_args()
    if given.replay:
        lines = [json.loads(line) for line in given.replay.read_text().splitlines()]
        cases = [Case(line["group"], line["seed"], line["number"]) for line in lines]
    elif given.number is not None:
        cases = [Case(name, given.seed, given.number) for name in given.group]
    else:
        cases = plan(given.cases, given.seed, given.group)
    started = time.monotonic()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text("")
    counts, broken = attack(cases, quiet=False, output=given.output)
    print(table(counts))
    print(f"{time.monotonic() - started:.0f} s; broken cases: {given.output if broken else 'none'}")
    for line in broken[:20]:
        print(f"  {line['group']} {line['number']}: {line['message'][:300]}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
