"""One stage as a command: what `minionerec STAGE` and a stage's script do."""

import sys
from functools import partial

from minionerec.cli.plan import config_values
from minionerec.cli.recipes import DEMO
from minionerec.cli.run import ensure_before
from minionerec.core.commands import run_command
from minionerec.core.processes import is_main_process
from minionerec.core.settings import parse_settings
from minionerec.core.stages import stage_spec


def run_stage(name: str) -> None:
    """Run one stage with the words of the command line.

    With no `--config` it takes the demo configuration, and first makes what that configuration reads where that is
    missing or stale.

    Args:
        name: Key of `STAGES`.
    """
    spec = stage_spec(name)
    words = sys.argv[1:]
    given = {word.split("=")[0].removeprefix("--") for word in words if word.startswith("--")}
    demo = None if spec.demo is None or given & set(spec.alone) else spec.demo
    config = parse_settings(
        spec.config_class(),
        words,
        program=f"minionerec {name}",
        summary=spec.summary,
        fallback=demo,
        read=config_values,
    )
    if demo is not None and "config" not in given:
        ensure_before(DEMO, config)
    result = spec.function()(config)
    if is_main_process():
        for line in result.lines():
            print(line)


def main(name: str) -> None:
    """The whole of a stage's script."""
    run_command(partial(run_stage, name))
