"""`minionerec put`: finished artefacts to where a URL says."""

from pathlib import Path

from minionerec.core.commands import CommandParser
from minionerec.core.errors import ConfigError
from minionerec.core.upload import put
from minionerec.core.values import convert

SUMMARY = "Put finished artefacts where a URL says, to be read from there by any stage"


def put_arguments(program: str) -> CommandParser:
    """The options of `minionerec put`."""
    parser = CommandParser(
        prog=program,
        description=f"{SUMMARY}. What lies there already is left; the same command goes on after an interruption.",
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="output of a stage, such as runs/shop/corpus")
    parser.add_argument(
        "url", metavar="URL", help="where it is to lie, such as s3://bucket/corpus; of several folders what is above"
    )
    parser.add_argument(
        "--replace",
        nargs="?",
        const="true",
        default="false",
        metavar="true|false",
        help="replace another artefact that lies there (default: false)",
    )
    return parser


def run_put(program: str) -> None:
    """Put the artefacts that the command line names; of several each goes below the URL, by its own name.

    Raises:
        ConfigError: If two have one name, or the URL cannot be written to.
        ArtefactError: If one is not finished, or something else lies where it is to go.
    """
    given = put_arguments(program).parse_args()
    replace = bool(convert(given.replace, bool, "--replace"))
    places = dict.fromkeys(given.folders, given.url)
    if len(given.folders) > 1:
        places = {folder: f"{given.url.rstrip('/')}/{Path(folder).resolve().name}" for folder in given.folders}
        if len(set(places.values())) < len(given.folders):
            raise ConfigError("two of the folders have one name, so both would go to one place. Put each by itself.")
    for folder, url in places.items():
        print(put(folder, url, replace=replace).line(), flush=True)
