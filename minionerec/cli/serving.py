"""`minionerec serve`: a command that runs until it is ended, and makes nothing."""

from collections.abc import Sequence

from minionerec.cli.recipes import DEMO_RECIPE, ensure_before
from minionerec.core.log import get_logger
from minionerec.core.places import find_path
from minionerec.core.settings import parse_settings
from minionerec.serve.config import ServeConfig
from minionerec.serve.server import check_extra, serve

logger = get_logger(__name__)

SUMMARY = "Serve a model over HTTP: POST /v1/recommend, a page at /, the description of all paths at /docs."
_DEMO = ("--checkpoint", "runs/demo/catalogue", "--items", "data/demo/items.csv")


def serve_arguments(words: Sequence[str], program: str = "minionerec serve") -> tuple[ServeConfig, bool]:
    """The settings that a command line gives, and whether it names no model, so that they are the demo's.

    Args:
        words: The words behind `minionerec serve`.
        program: What the command is called, for `--help`.

    Raises:
        ConfigError: On an unknown flag or a value that does not fit.
        SystemExit: After `--help`.
    """
    demo = not {word.split("=")[0] for word in words} & {"--checkpoint", "--config"}
    given = [*_DEMO, *words] if demo else words
    return parse_settings(ServeConfig, given, program=program, summary=SUMMARY), demo


def run_serve(program: str, words: Sequence[str]) -> None:
    """Serve what the command line names; where it names no model, that of the demo, trained first where need be.

    Args:
        program: What the command is called, for `--help`.
        words: The words behind it.
    """
    config, demo = serve_arguments(words, program)
    check_extra()
    if demo:
        logger.info("No --checkpoint given: serving the catalogue model of the demo.")
        ensure_before(find_path(DEMO_RECIPE), config)
    serve(config, lambda line: print(line, flush=True))
