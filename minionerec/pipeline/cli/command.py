"""Running one stage as a command: `minionerec STAGE`, and the script of a stage."""

import sys
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest

from minionerec.core.commands import run_command
from minionerec.core.processes import is_main_process
from minionerec.pipeline.cli.plan import config_values
from minionerec.pipeline.cli.recipes import DEMO
from minionerec.pipeline.cli.run import ensure_before
from minionerec.pipeline.settings import parse_settings, path_settings
from minionerec.pipeline.stages import StageSpec, stage_spec


def demo_step(spec: StageSpec, words: Sequence[str]) -> str | None:
    """The demo step whose settings a command line uses; None where it names a file, an input or an output."""
    flags = [  # an empty text names nothing
        word.split("=")[0].removeprefix("--")
        for word, value in zip_longest(words, words[1:])
        if word.startswith("--") and value != "" and not word.endswith("=")
    ]
    return None if {"config", *path_settings(spec.config_class())}.intersection(flags) else spec.demo


def run_stage(name: str) -> None:
    """Run one stage with the words of the command line.

    Where the words name no `--config`, no input and no output, the stages that have a script use the settings of the
    demo, and first make its inputs, where they are missing or stale. Otherwise settings have their defaults.

    Args:
        name: Key of `STAGES`.
    """
    spec = stage_spec(name)
    words = sys.argv[1:]
    demo = demo_step(spec, words)
    config = parse_settings(
        spec.config_class(),
        words,
        program=f"minionerec {name}",
        summary=spec.summary,
        fallback=demo,
        read=config_values,
    )
    if demo is not None:
        ensure_before(DEMO, config)
    result = spec.function()(config)
    if is_main_process():
        for line in result.lines:
            print(line)


def main(name: str) -> None:
    """The whole of a stage's script."""
    run_command(partial(run_stage, name))
