"""The `minionerec` command: `minionerec run demo`, and `minionerec STAGE --config FILE.yaml` for each stage."""

import shlex
import sys

from minionerec import __version__
from minionerec.core.commands import Command, CommandParser, run_command
from minionerec.core.errors import ConfigError, did_you_mean
from minionerec.core.plugins import Registry
from minionerec.pipeline.cli.command import run_stage
from minionerec.pipeline.cli.doctor import doctor_arguments, run_doctor
from minionerec.pipeline.cli.init import SUMMARY as INIT
from minionerec.pipeline.cli.init import init_arguments, run_init
from minionerec.pipeline.cli.plan import plan_of
from minionerec.pipeline.cli.recipes import copy_recipe, shipped_recipes
from minionerec.pipeline.cli.run import SUMMARY as RUN
from minionerec.pipeline.cli.run import run_arguments, run_recipe
from minionerec.pipeline.stages import STAGES

_RECIPES = "List the shipped recipes; `minionerec recipes copy NAME FILE` copies one to be edited"


def recipe_arguments(program: str) -> CommandParser:
    """The options of `minionerec recipes`."""
    parser = CommandParser(prog=program, description=f"{_RECIPES}.")
    actions = parser.add_subparsers(dest="action", metavar="copy")
    copy = actions.add_parser("copy", help="write a recipe as one file, to be edited")
    copy.add_argument("recipe", help="name of a shipped recipe, e.g. industrial")
    copy.add_argument("file", help="file to make, e.g. here.yaml, or a folder for it")
    return parser


def _recipes(program: str) -> None:
    options = recipe_arguments(program).parse_args()
    if options.action == "copy":
        file = copy_recipe(options.recipe, options.file)
        print(f"{len(plan_of(file))} steps in {file}; run them with: minionerec run {shlex.quote(str(file))}")
        return
    recipes = shipped_recipes()
    width = max(map(len, recipes)) + 2
    for name, summary in recipes.items():
        print(f"{name:<{width}}{summary}".rstrip())


COMMANDS = Registry(
    "minionerec.commands",
    {
        "init": Command(f"{INIT}, e.g. minionerec init items.csv interactions.csv my_shop", init_arguments, run_init),
        "run": Command(
            f"{RUN}, e.g. minionerec run demo",
            run_arguments,
            lambda program: run_recipe(program, sys.argv[1:]),
        ),
        "recipes": Command(_RECIPES, recipe_arguments, _recipes),
        "doctor": Command(
            "Show what is installed, which artefacts verify, and what a recipe's steps would do and why",
            doctor_arguments,
            run_doctor,
        ),
    },
)
"""Name → command that is no stage."""


def usage() -> str:
    """The usage text: one line for each command."""
    lines = ["usage: minionerec COMMAND [options]", "", "commands:"]
    lines += [f"  {name:<18}{command.summary}" for name, command in COMMANDS.items()]
    lines += [f"  {name:<18}{spec.summary}" for name, spec in STAGES.items()]
    return "\n".join([*lines, "", "minionerec COMMAND --help shows the options of a command."])


def dispatch() -> None:
    """Run the command that the first word names."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return
    name = words[0]
    if name == "--version":
        print(f"minionerec {__version__}")
        return
    if name not in COMMANDS and name not in STAGES:
        known = [*COMMANDS, *STAGES]
        raise ConfigError(f"unknown command {name!r}; known: {', '.join(known)}.{did_you_mean(name, known)}")
    sys.argv = [f"minionerec {name}", *words[1:]]
    if name in COMMANDS:
        COMMANDS[name].run(sys.argv[0])
    else:
        run_stage(name)


def main() -> None:
    """Entry point of the console command."""
    run_command(dispatch)
