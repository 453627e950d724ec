"""The `minionerec` command: `minionerec run configs/demo`, and `minionerec STAGE --config FILE.yaml` for each stage."""

import argparse
import sys

from minionerec.cli.pipeline import DEMO, run_pipeline
from minionerec.cli.stages import COMMANDS, run_stage
from minionerec.core.config import run_command


def run_arguments(program: str) -> argparse.ArgumentParser:
    """The options of `minionerec run`."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Run the stages of a pipeline one after another; those that are up to date are left as they are.",
    )
    parser.add_argument(
        "pipeline", nargs="?", default=DEMO, help=f"folder with a pipeline.yaml, or such a file (default: {DEMO})"
    )
    parser.add_argument("--from", dest="first", metavar="STAGE", help="begin with this stage, e.g. grpo")
    parser.add_argument("--until", dest="last", metavar="STAGE", help="end with this stage, e.g. eval_sft")
    return parser


def run() -> None:
    """Run a pipeline with the words of the command line."""
    given = run_arguments(sys.argv[0].rsplit("/", 1)[-1]).parse_args()
    run_pipeline(given.pipeline, given.first, given.last)


def usage() -> str:
    """What the command can do, one line each."""
    lines = ["usage: minionerec COMMAND [options]", "", "commands:"]
    lines.append(f"  {'run':<14}Run a pipeline of stages, e.g. minionerec run {DEMO}")
    lines += [f"  {name:<14}{command.summary}" for name, command in COMMANDS.items()]
    return "\n".join([*lines, "", "minionerec COMMAND --help shows the options of a command."])


def dispatch() -> None:
    """Run the command that the first word names."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return
    if words[0] != "run" and words[0] not in COMMANDS:
        sys.stderr.write(f"error: unknown command {words[0]!r}; known: run, {', '.join(COMMANDS)}.\n")
        raise SystemExit(2)
    sys.argv = [f"minionerec {words[0]}", *words[1:]]
    if words[0] == "run":
        run()
    else:
        run_stage(words[0])


def main() -> None:
    """Entry point of the console command."""
    run_command(dispatch)
