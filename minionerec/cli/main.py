"""The `minionerec` command: `minionerec run demo`, and `minionerec STAGE --config FILE.yaml` for each stage."""

import sys

from minionerec.cli.command import run_stage
from minionerec.cli.doctor import run_doctor
from minionerec.cli.pipeline import run_pipeline
from minionerec.cli.putting import SUMMARY as PUT
from minionerec.cli.putting import run_put
from minionerec.cli.recipes import copy_recipe, read_recipe, shipped_recipes
from minionerec.cli.serving import run_serve
from minionerec.cli.stages import STAGES
from minionerec.cli.study import SUMMARY as STUDY
from minionerec.cli.study import run_study
from minionerec.core.commands import CommandParser, run_command
from minionerec.core.errors import ConfigError

_OWN = {
    "run": "Run the stages of a recipe, e.g. minionerec run demo",
    "study": f"{STUDY}, e.g. minionerec study language_model",
    "recipes": "List the shipped recipes; `minionerec recipes copy NAME FOLDER` gives one to be edited",
    "doctor": "Say what is installed, which artefacts verify, and what a recipe's steps would do and why",
    "put": f"{PUT}, e.g. minionerec put runs/shop/corpus s3://bucket/corpus",
    "serve": "Serve a model over HTTP, with a page at /, e.g. minionerec serve --checkpoint runs/demo/catalogue",
}


def run_arguments(program: str) -> CommandParser:
    """The options of `minionerec run`."""
    parser = CommandParser(
        prog=program,
        description="Run the stages of a recipe, each after what it reads; what is up to date is left as it is.",
    )
    parser.add_argument(
        "recipe", nargs="?", default="demo", help="name of a shipped recipe, or a folder with a pipeline.yaml"
    )
    parser.add_argument("--from", dest="first", metavar="STEP", help="begin with this step, e.g. grpo")
    parser.add_argument("--until", dest="last", metavar="STEP", help="end with this step, e.g. eval_sft")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="steps that run at a time, instead of the recipe's number"
    )
    return parser


def recipe_arguments(program: str) -> CommandParser:
    """The options of `minionerec recipes`."""
    parser = CommandParser(prog=program, description=f"{_OWN['recipes']}.")
    actions = parser.add_subparsers(dest="action", metavar="copy")
    copy = actions.add_parser("copy", help="copy a recipe's files into a new folder, to be edited")
    copy.add_argument("recipe", help="name of a shipped recipe, e.g. industrial")
    copy.add_argument("folder", help="folder to make")
    return parser


def _run(program: str) -> None:
    given = run_arguments(program).parse_args()
    run_pipeline(given.recipe, given.first, given.last, given.jobs)


def _recipes(program: str) -> None:
    given = recipe_arguments(program).parse_args()
    if given.action == "copy":
        target = copy_recipe(given.recipe, given.folder)
        print(f"{len(read_recipe(target))} steps in {target}; run them with: minionerec run {target}")
        return
    for name, said in shipped_recipes().items():
        print(f"{name:<28}{said}".rstrip())


def usage() -> str:
    """What the command can do, one line each."""
    lines = ["usage: minionerec COMMAND [options]", "", "commands:"]
    lines += [f"  {name:<18}{said}" for name, said in _OWN.items()]
    lines += [f"  {name:<18}{spec.summary}" for name, spec in STAGES.items()]
    return "\n".join([*lines, "", "minionerec COMMAND --help shows the options of a command."])


def dispatch() -> None:
    """Run the command that the first word names."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return
    name = words[0]
    if name not in _OWN and name not in STAGES:
        raise ConfigError(f"unknown command {name!r}; known: {', '.join([*_OWN, *STAGES])}.")
    sys.argv = [f"minionerec {name}", *words[1:]]
    if name == "run":
        _run(sys.argv[0])
    elif name == "recipes":
        _recipes(sys.argv[0])
    elif name == "study":
        run_study(sys.argv[0])
    elif name == "doctor":
        run_doctor(sys.argv[0])
    elif name == "put":
        run_put(sys.argv[0])
    elif name == "serve":
        run_serve(sys.argv[0], words[1:])
    else:
        run_stage(name)


def main() -> None:
    """Entry point of the console command."""
    run_command(dispatch)
