"""The `minionerec` command: `minionerec run demo`, and `minionerec STAGE --config FILE.yaml` for each stage."""

import argparse
import shlex
import sys
from pathlib import Path

from minionerec import __version__
from minionerec.cli.command import run_stage
from minionerec.cli.doctor import doctor_arguments, run_doctor
from minionerec.cli.init import SUMMARY as INIT
from minionerec.cli.init import init_arguments, run_init
from minionerec.cli.plan import plan_of
from minionerec.cli.recipes import copy_recipe, shipped_recipes
from minionerec.cli.run import SUMMARY as RUN
from minionerec.cli.run import run_arguments, run_recipe
from minionerec.core.commands import Command, CommandParser, run_command
from minionerec.core.errors import ConfigError, did_you_mean
from minionerec.core.plugins import Registry
from minionerec.core.settings import settings_parser
from minionerec.core.stages import STAGES
from minionerec.core.upload import put
from minionerec.core.values import convert

_PUT = "Upload finished artefacts to a URL, from which any stage can read them"
_RECIPES = "List the shipped recipes; `minionerec recipes copy NAME FILE` copies one to be edited"
_COMPLETION = 'Print the completion script of a shell, e.g. eval "$(minionerec completion bash)"'


def recipe_arguments(program: str) -> CommandParser:
    """The options of `minionerec recipes`."""
    parser = CommandParser(prog=program, description=f"{_RECIPES}.")
    actions = parser.add_subparsers(dest="action", metavar="copy")
    copy = actions.add_parser("copy", help="write a recipe as one file, to be edited")
    copy.add_argument("recipe", help="name of a shipped recipe, e.g. industrial")
    copy.add_argument("file", help="file to make, e.g. here.yaml, or a folder for it")
    return parser


def completion_arguments(program: str) -> CommandParser:
    """The options of `minionerec completion`."""
    parser = CommandParser(prog=program, description=f"{_COMPLETION}.")
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="shell that runs the script")
    return parser


def _completion(program: str) -> None:
    """Print the script.

    Raises:
        ConfigError: If the package that writes it is not installed.
    """
    shell = completion_arguments(program).parse_args().shell
    try:
        import shtab
    except ImportError:
        raise ConfigError("shtab is not installed. Install it: pip install 'minionerec[completion]'") from None
    whole = argparse.ArgumentParser(prog="minionerec")
    commands = whole.add_subparsers()
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary, parents=[command.arguments(name)], conflict_handler="resolve")
    for name, spec in STAGES.items():
        parent = settings_parser(spec.config_class())
        commands.add_parser(name, help=spec.summary, parents=[parent], conflict_handler="resolve")
    print(shtab.complete(whole, shell=shell))


def put_arguments(program: str) -> CommandParser:
    """The options of `minionerec put`."""
    parser = CommandParser(
        prog=program,
        description=f"{_PUT}. Finished artefacts there are kept; the same command resumes after an interruption.",
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="output of a stage, such as runs/shop/corpus")
    parser.add_argument(
        "url", metavar="URL", help="URL of it, such as s3://bucket/corpus; of several folders that of the one above"
    )
    parser.add_argument(
        "--replace",
        nargs="?",
        const="true",
        default="false",
        metavar="true|false",
        help="replace another artefact there (default: false)",
    )
    return parser


def _recipes(program: str) -> None:
    given = recipe_arguments(program).parse_args()
    if given.action == "copy":
        file = copy_recipe(given.recipe, given.file)
        print(f"{len(plan_of(file))} steps in {file}; run them with: minionerec run {shlex.quote(str(file))}")
        return
    found = shipped_recipes()
    width = max(map(len, found)) + 2
    for name, summary in found.items():
        print(f"{name:<{width}}{summary}".rstrip())


def _put(program: str) -> None:
    """Upload the artefacts that the command line names; of several each goes below the URL, by its own name.

    Raises:
        ConfigError: If two have one name, or the URL cannot be written to.
        ArtefactError: If one is not finished, or something else is at its URL.
    """
    given = put_arguments(program).parse_args()
    replace = bool(convert(given.replace, bool, "--replace"))
    urls = dict.fromkeys(given.folders, given.url)
    if len(given.folders) > 1:
        urls = {folder: f"{given.url.rstrip('/')}/{Path(folder).resolve().name}" for folder in given.folders}
        if len(set(urls.values())) < len(given.folders):
            raise ConfigError("two of the folders have one name, so both would go to one URL. Upload each by itself.")
    for folder, url in urls.items():
        sent, files = put(folder, url, replace=replace)
        print(f"{sent} of {files} files sent: {url}" if sent else f"{url} is up to date.", flush=True)


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
        "put": Command(f"{_PUT}, e.g. minionerec put runs/shop/corpus s3://bucket/corpus", put_arguments, _put),
        "completion": Command(_COMPLETION, completion_arguments, _completion),
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
    if name == "study":
        raise ConfigError("the command 'study' was removed; a study is a recipe: minionerec run studies/NAME.")
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
