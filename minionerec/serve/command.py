"""`minionerec serve`, registered as an entry point; `--help` reads it, so it imports no model and no server library."""

import sys
from collections.abc import Sequence
from functools import partial

from minionerec.core.commands import Command
from minionerec.core.log import get_logger
from minionerec.pipeline.cli.plan import config_values
from minionerec.pipeline.cli.recipes import DEMO
from minionerec.pipeline.cli.run import ensure_before
from minionerec.pipeline.settings import parse_settings, settings_parser
from minionerec.serve.config import ServeConfig

logger = get_logger(__name__)

_SUMMARY = "Serve a model over HTTP: POST /v1/recommend, a page at /, the description of all paths at /openapi.json."
_DEMO_MODEL = ("--checkpoint", "runs/demo/catalogue")


def serve_arguments(words: Sequence[str], program: str = "minionerec serve") -> tuple[ServeConfig, bool]:
    """The settings of a command line, and whether it names no model, so that the demo's is served.

    Args:
        words: The words after `minionerec serve`.
        program: Name of the command, for `--help`.

    Raises:
        ConfigError: On an unknown flag or a value that does not fit.
        SystemExit: After `--help`.
    """
    demo = not {word.split("=")[0] for word in words} & {"--checkpoint", "--config"}
    words = [*_DEMO_MODEL, *words] if demo else words
    return parse_settings(ServeConfig, words, program=program, summary=_SUMMARY, read=config_values), demo


def run_serve(program: str, words: Sequence[str]) -> None:
    """Serve the model that the command line names, or else that of the demo, trained first where needed.

    Args:
        program: Name of the command, for `--help`.
        words: The words after it.
    """
    config, demo = serve_arguments(words, program)
    from minionerec.serve.server import check_extra, serve  # models, so not for `--help`

    check_extra()
    if demo:
        logger.info("No --checkpoint given: serving the catalogue model of the demo.")
        ensure_before(DEMO, config)
    serve(config, lambda line: print(line, flush=True))


SERVE = Command(
    "Serve a model over HTTP, with a page at /, e.g. minionerec serve --checkpoint runs/demo/catalogue",
    partial(settings_parser, ServeConfig),
    lambda program: run_serve(program, sys.argv[1:]),
)
