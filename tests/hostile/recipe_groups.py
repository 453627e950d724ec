"""What the campaign does to names: of recipes, of their folders and tables, of steps, and placeholders."""

import os
import shlex
from pathlib import Path
from random import Random

import yaml
from hostile.groups import Group, holds
from support.commands import command
from support.small_shop import write_shop

from minionerec.core.errors import ConfigError
from minionerec.pipeline.cli.plan import plan_of

PLAIN = ("shop", "eu/shop", "a b", "é", "us/eu/x.yaml", "v1.2", "-", "own/_base", "demo")
NAMES = (*PLAIN, *PLAIN, "..", "/", ".", "~", "--", " ", "\t", "\n", ":", "#", "'", "$HOME", "{corpus}", "{", "x" * 70)
FOLDERS = ("", "", "", "a b", "-dash", "é", "a#b", "a: b", "exp{2024}", "{runs}", "{sids}")
BRACES = ("{p", "{q", "{{q}", "{", "}", "}}", "{q}")
TEXTS = ("x", "x", "/y", " ", "{corpus}", "{runs}", "{p}", "{q}", *BRACES)


def _files(folder: Path) -> dict[str, int]:
    """Every file below a folder and beside it, with its time."""
    paths = sorted([*folder.rglob("*"), *folder.parent.iterdir()])
    return {str(path): path.stat().st_mtime_ns for path in paths if path.is_file()}


def _joined(rng: Random, parts: tuple[str, ...], most: int) -> str:
    return "".join(rng.choice(parts) for _ in range(rng.randint(1, most)))


def _strike_init(rng: Random, folder: Path) -> str:
    """`minionerec init`: the command that it prints runs the recipe, which writes below its own folder alone."""
    home = rng.choice(FOLDERS)
    (folder / home).mkdir(exist_ok=True)
    tables = [str(Path(home, f"{name}.csv")) for name in ("items", "interactions")]
    for table in tables if home else ():
        (folder / Path(table).name).rename(folder / table)
    name, before = _joined(rng, NAMES, rng.randint(1, 2)), _files(folder)
    done = command(folder, "init", *(["--"] if rng.random() < 0.7 else []), *tables, name)
    written = {path for path, time in _files(folder).items() if before.get(path) != time}
    if done.status:
        holds(not written, f"a refused init wrote {written}")
        raise ConfigError(done.reported)
    plain = name.removesuffix(".yaml")
    holds(written == {str(folder / f"{plain}.yaml")}, f"init {name!r} wrote {written}")
    words = shlex.split(done.out.splitlines()[-1].removeprefix("Run them with: "))
    shown = command(folder, *words[1:], "--dry-run")
    holds(shown.status == 0, f"{words} ends with {shown.err}")
    here = Path.cwd()
    try:
        os.chdir(folder)
        jobs = plan_of(words[-1])
    finally:
        os.chdir(here)
    holds(all(job.folder.is_relative_to(Path("runs", plain)) for job in jobs.values()), "a result elsewhere")
    given = next(iter(jobs.values())).settings
    holds([getattr(given, key) for key in ("items", "interactions")] == tables, "other tables")
    return "read"


def _strike_placeholders(rng: Random, folder: Path) -> str:
    """A recipe whose texts hold placeholders in any form: planned or refused, and nothing is written."""
    output = rng.choice(("runs/x", "runs/x", _joined(rng, (*TEXTS, ".."), 3)))
    steps = {
        "corpus": {"stage": "prepare-data", "source": "tables", "items": "items.csv", "interactions": "{p}"},
        "sids": {"stage": "build-sids", "corpus": rng.choice(("{corpus}", _text(rng)))},
        rng.choice(("a", "sft", "x-1", "a", "sft", "x-1", "p", "..", "a/b", "{p}")): {
            **{"stage": "sft", "corpus": rng.choice(("{corpus}", _text(rng))), "sids": "{sids}"},
            **({"output": _text(rng)} if rng.random() < 0.4 else {}),
        },
    }
    content = {
        "output": output,
        "variables": {"p": _joined(rng, ("x", *BRACES), 3), "q": _joined(rng, ("x", *BRACES), 3)},
        "steps": steps,
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    before = _files(folder)
    try:
        jobs = plan_of(folder / "mine.yaml")
    finally:
        holds(_files(folder) == before, "a plan wrote something")
    outputs = [str(job.folder) for job in jobs.values()]
    holds(len(set(outputs)) == len(outputs), "two steps write one output")
    for key, job in jobs.items():
        if "output" not in steps[key.step]:
            holds(job.folder == Path(os.path.normpath(f"{output}/{key.step}")), f"{key.step} writes {job.folder}")
    return "read"


def _text(rng: Random) -> str:
    return _joined(rng, TEXTS, 4)


def _strike_names(rng: Random, clean: Path, folder: Path) -> str:
    return _strike_init(rng, folder) if rng.random() < 0.4 else _strike_placeholders(rng, folder)


RECIPES = (Group("names of recipes", write_shop, _strike_names, 1),)
