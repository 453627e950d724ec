"""What the campaign does to paths: links and homes, disks that fill; and to units of times."""

import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
from hostile.groups import MANY, Group, holds
from support.builder import read_tables, seconds_of
from support.small_shop import STAGES, bytes_of, make_shop, stage, write_shop
from support.tables import write_table

from minionerec.core.artefacts import MANIFEST, is_artefact, verify_files
from minionerec.core.errors import MinioneRecError
from minionerec.data.source import BadRows
from minionerec.pipeline.settings import parse_settings
from minionerec.pipeline.stages import stage_spec

# Units of times


Form = Callable[[datetime], str]


def _digits(form: str) -> Form:
    return lambda time: time.strftime(form)


def _times(factor: int) -> Form:
    return lambda time: str(int(time.timestamp()) * factor)


def _every(seconds: int) -> Form:
    return lambda time: str(int(time.timestamp()) // seconds)


N_TIMES, BEGIN, STEP = 40, 1_517_382_764, 40_011
LARGE: dict[str, Form] = {
    **{f"1e{power} a second": _times(10**power) for power in (0, 3, 6, 9)},
    "fractions": lambda time: f"{time.timestamp() + 0.25:.2f}",
    "powers of ten": lambda time: f"{time.timestamp():.9e}",
}
DATE, SECOND, ZONED = "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S+00:00"
DATES = {"date": _digits(DATE), "date and time": _digits(SECOND), "with a zone": _digits(ZONED)}
FORMS = ("%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%y%m%d%H%M", "%y%m%d%H%M%S", "%d.%m.%Y", "%Y%m%d%H%M%S123")
DIGITS = {form: _digits(form) for form in FORMS}
SMALL = {"days": _every(86_400), "hours": _every(3600), "minutes": _every(60), "yyyymmdd": _digits("%Y%m%d")}
SMALL |= {"0": _digits("0"), "-1": _digits("-1"), "empty": _digits("")}
ALL = LARGE | DATES | DIGITS | SMALL
ALIKE = ("%Y%m%d%H", "%Y%m%d%H%M", "%y%m%d%H%M", "%y%m%d%H%M%S")
"""Forms whose numbers are times of a unit too, in 1976 or from 2027 on: a few among true ones are not told."""


def _strike_units(rng: Random, clean: Path, folder: Path) -> str:
    """One form of times in all rows, or a second one in some: what is used stands in the order in which it happened."""
    first = rng.choice(sorted(ALL))
    other = rng.choice(sorted(LARGE | DATES | DIGITS if first in SMALL else ALL)) if rng.random() < 0.7 else first
    if (first in ALIKE and other in LARGE) or (other in ALIKE and first in LARGE):
        other = first
    share = rng.choice((0.02, 0.1, 0.5))
    shift = rng.randrange(300 * 86_400)
    times = [datetime.fromtimestamp(BEGIN + shift + STEP * position, UTC) for position in range(N_TIMES)]
    cells = [ALL[other if rng.random() < share else first](time) for time in times]
    table = pd.DataFrame({"user_id": range(N_TIMES), "item_id": "i", "timestamp": cells})
    path = folder / f"visits{rng.choice(('.csv', '.tsv', '.parquet'))}"
    numbers = pd.to_numeric(table["timestamp"], errors="coerce")
    if path.suffix == ".parquet" and rng.random() < 0.7 and numbers.notna().all():
        table["timestamp"] = numbers
    write_table(table, path)
    (folder / "items.csv").write_text("item_id,title\ni,Tea\n")
    bad = BadRows(rng.choice((0, 0, MANY)))
    found = read_tables(path, folder / "items.csv", bad)
    holds(len(found.users) + bad.counts()["bad_rows"] == N_TIMES, "a row is neither used nor counted")
    if not len(found.users) or found.times is None:
        return "read"
    rows = found.user_ids.take(found.users).to_numpy(zero_copy_only=False).astype(int)
    if first == other or "date" not in (first, other):  # a date is its midnight, which others of its day are behind
        ordered = bool((np.diff(found.times[np.argsort(rows)]) >= 0).all())
        holds(ordered, f"{first} and {other}: another order")
    seconds = seconds_of(found.times, found.ticks)
    if seconds is not None and seconds.max() >= 10**8:
        true = np.array([int(times[row].timestamp()) for row in rows])
        coarse = 86_400 if {first, other} & set(DATES) else 2
        holds(bool((np.abs(true - seconds) < coarse).all()), f"{first} and {other}: other times")
    return "read"


# Links and homes


def _strike_paths(rng: Random, clean: Path, folder: Path) -> str:
    """prepare-data from and to paths that are links, or lie under ~, or are something else."""
    os.environ["HOME"] = str(folder / "home")
    (folder / "home").mkdir()
    (folder / "disk").mkdir()
    given = rng.choice(("plain", "link", "links", "folder", "home", "circle", "broken"))
    directory = {"folder": "linked/items.csv", "home": "~/items.csv"}.get(given, "given.csv")
    if given == "folder":
        (folder / "linked").symlink_to(".")
    elif given == "home":
        shutil.copy(folder / "items.csv", folder / "home")
    elif given == "plain":
        shutil.copy(folder / "items.csv", folder / "given.csv")
    elif given == "links":
        (folder / "disk" / "between").symlink_to("../items.csv")
        (folder / "given.csv").symlink_to("disk/between")
    else:
        target = {"link": "items.csv", "circle": "given.csv", "broken": "nowhere.csv"}[given]
        (folder / "given.csv").symlink_to(target)
    wanted = rng.choice(("plain", "link", "new", "links", "home", "circle", "file", "input", "full", "device", "old"))
    output = "~/corpus" if wanted == "home" else "out"
    targets = {"link": "disk/a", "new": "disk/b", "links": "disk/c", "circle": "out", "file": "disk/d"}
    targets |= {"input": "items.csv", "full": "disk/e", "device": "/dev/null"}
    if wanted in ("link", "full"):
        (folder / targets[wanted]).mkdir()
    if wanted == "links":
        (folder / "disk" / "c").symlink_to("f")
    if wanted in ("file", "full"):
        (folder / targets[wanted] / "x" if wanted == "full" else folder / targets[wanted]).write_text("mine")
    if wanted in targets:
        (folder / "out").symlink_to(targets[wanted])
    if wanted == "old":
        (folder / ".out.old").symlink_to("disk")
    before = _seen(folder)
    words = ("--items", directory, "--output", output)
    done = stage(folder, "prepare-data", *words)
    for name in ("", "disk"):
        holds(not (folder / name / "~").exists(), "a folder named ~")
    after = _seen(folder)
    kept = {name: what for name, what in before.items() if name != ".out.old"}
    if done.status:
        holds({name: after.get(name) for name in kept} == kept, "something else was changed")
        raise MinioneRecError(done.reported.removeprefix("error: "))
    found = (folder / "home" / "corpus") if wanted == "home" else folder / "out"
    verify_files(found)
    holds({name: after.get(name) for name in kept} == kept, "something else was changed")
    holds(found.is_symlink() == (wanted in targets), "the link is none any more")
    for more in (("--max_history", "3"), (), ()):
        made = (found / MANIFEST).stat().st_mtime_ns
        done = stage(folder, "prepare-data", *words, *more)
        holds(done.status == 0, f"it cannot be made again: {done.err[:200]}")
    holds((found / MANIFEST).stat().st_mtime_ns == made, "it is made each time")
    litter = [path.name for path in folder.rglob(".*") if path.name.endswith((".old", ".writing"))]
    holds(not litter, f"litter: {litter}")
    return "made"


def _seen(folder: Path) -> dict[str, Any]:
    """Files with their content, and links with where they lead."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file() and not name.endswith(".lock"):
            found[name] = path.read_bytes()
    return found


# Disks that fill

FULL = ("prepare-data", "embed-items", "build-sids")


def _strike_disk(rng: Random, clean: Path, folder: Path) -> str:
    """One file of an artefact lies on a full disk while it is written; the same command ends as ever afterwards."""
    name = rng.choice(FULL)
    output = folder / {"prepare-data": "corpus", "embed-items": "vectors", "build-sids": "sids"}[name]
    files = [str(path.relative_to(output)) for path in sorted(output.rglob("*")) if path.is_file()]
    struck, made = rng.choice(files), Path.mkdir
    wanted = bytes_of(output)
    shutil.rmtree(output)
    others = _seen(folder)

    def make(path: Path, *how: Any, **more: Any) -> None:
        made(path, *how, **more)
        writing = folder / f".{output.name}.writing"
        for file in (writing / struck, (writing / struck).with_name(f".{Path(struck).name}.writing")):
            if file.parent == path.absolute() and not os.path.lexists(file):
                file.symlink_to("/dev/full")

    Path.mkdir = make  # type: ignore[method-assign]
    try:
        done = stage(folder, name)
    finally:
        Path.mkdir = made  # type: ignore[method-assign]
    if done.status:
        holds(not is_artefact(output), "half an artefact is taken for a whole")
        after = _seen(folder)
        holds({file: after.get(file) for file in others} == others, "something else was changed")
        holds(not list(folder.glob(".*.writing")), "half an artefact is left")
    again = stage(folder, name)
    holds(again.status == 0, f"it cannot be made afterwards: {again.err[:200]}")
    holds(bytes_of(output) == wanted, "another artefact")
    if done.status:
        raise MinioneRecError(done.reported.removeprefix("error: "))
    return "made"


# Threads of one process

THREADS = ("embed-items", "train-sequential", "train-catalogue")


def _strike_threads(rng: Random, clean: Path, folder: Path) -> str:
    """Two stages that are called in threads, one some time after the other; the same stage twice may be refused."""
    names = rng.choices(THREADS, k=2)
    outputs = {name: folder / STAGES[name]["output"] for name in names}
    wanted = {name: bytes_of(output) for name, output in outputs.items()}
    for output in outputs.values():
        shutil.rmtree(output)
    os.chdir(folder)
    refused: list[Exception] = []

    def run(name: str) -> None:
        spec = stage_spec(name)
        try:
            spec.function()(parse_settings(spec.config_class(), ["--config", f"{name}.yaml"]))
        except Exception as error:  # of a thread, which the campaign does not see
            refused.append(error)

    threads = [Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
        time.sleep(rng.choice((0, 0.05, 0.3)))
    for thread in threads:
        thread.join()
    for error in refused:
        holds(isinstance(error, MinioneRecError) and names[0] == names[1], f"{type(error).__name__}: {error}")
    for name, output in outputs.items():
        holds(bytes_of(output) == wanted[name], f"{' and '.join(names)}: another {name}")
    if refused:
        raise refused[0]
    return "made"


PATHS = (
    Group("units", lambda folder: None, _strike_units, 1.2),
    Group("paths", write_shop, _strike_paths, 0.4),
    Group("full disk", partial(make_shop, names=FULL), _strike_disk, 0.2),
    Group("threads", partial(make_shop, names=("prepare-data", "build-sids", *THREADS)), _strike_threads, 0.02),
)
