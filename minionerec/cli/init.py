"""`minionerec init`: a recipe for two tables, with all sizes derived from them."""

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from minionerec.cli.plan import plan_of
from minionerec.cli.sizes import FEWEST_ITEMS, ChosenSettings, Shape, choose, history_length, seconds
from minionerec.core.artefacts import write_text_atomic
from minionerec.core.commands import CommandParser
from minionerec.core.errors import ConfigError
from minionerec.core.values import convert
from minionerec.data.config import PrepareConfig
from minionerec.data.names import COLUMNS

if TYPE_CHECKING:
    from minionerec.data.build import BuiltCorpus
    from minionerec.data.chains import Chains

SUMMARY = "Write a recipe for two tables of your own, with all sizes derived from them"
BASE = "own/_base"
_LANGUAGE = ("sft", "eval_sft")


def init_arguments(program: str) -> CommandParser:
    """The options of `minionerec init`."""
    described = PrepareConfig.__dataclass_fields__
    parser = CommandParser(prog=program, description=f"{SUMMARY}; `minionerec run NAME` then runs it.")
    parser.add_argument("items", metavar="ITEMS", help="csv, tsv or parquet with one row per item: item_id, title")
    parser.add_argument(
        "interactions",
        metavar="INTERACTIONS",
        help="csv, tsv or parquet with one row per interaction: user_id, item_id, timestamp; or a folder of such files",
    )
    parser.add_argument("name", metavar="NAME", help="the recipe to write: NAME.yaml, whose results go to runs/NAME")
    for name in COLUMNS:
        text = str(described[name].metadata["setting"].help).removeprefix("tables, recbole: ")
        parser.add_argument(f"--{name}", default=described[name].default, metavar="COLUMN", help=text)
    parser.add_argument(
        "--max_bad_rows", default="0", metavar="N", help="rows that cannot be used and may be dropped (default: 0)"
    )
    parser.add_argument(
        "--minutes",
        default="40",
        metavar="N",
        help="most minutes on one core that the run may take; if it takes more, it has no language model (default: 40)",
    )
    return parser


def run_init(program: str) -> None:
    """Write the recipe that the command line asks for, and print its size and how to run it.

    Raises:
        ConfigError: If the recipe's file exists, or the catalogue is too small.
        DataError: If a table cannot be used.
    """
    given = init_arguments(program).parse_args()
    file = Path(given.name if given.name.endswith(".yaml") else f"{given.name}.yaml")
    if file.exists():
        raise ConfigError(f"{file}: exists already. Give another NAME, or remove it.")
    minutes = float(convert(given.minutes, float, "--minutes"))
    columns = {name: getattr(given, name) for name in COLUMNS}
    config = PrepareConfig(
        source="tables",
        items=given.items,
        interactions=given.interactions,
        max_bad_rows=int(convert(given.max_bad_rows, int, "--max_bad_rows")),
        output=str(Path("runs", file.stem)),
        **columns,
    )
    shape = shape_of(config)
    text = recipe_text(config, shape, file.stem, minutes)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(file, text)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error.strerror}). Give another NAME.") from None
    steps, time = len(plan_of(file)), sum(_steps(shape, minutes)[1].values())
    print(f"{file}: {steps} steps for {_size(shape)}, about {_time_text(time)} on one core.")
    print(f"Run them with: minionerec run {shlex.quote(given.name)}")


def shape_of(config: PrepareConfig) -> Shape:
    """The counts of two tables that sizes follow from; they are read once and split as `prepare-data` would.

    Args:
        config: Settings of `prepare-data`; `max_history` and `ties` are not read.

    Raises:
        ConfigError: If there are fewer than 10 items.
        DataError: If a table cannot be used, or a split would be empty.
    """
    from minionerec.data.build import build_corpus  # here, so that --help answers at once
    from minionerec.data.engines.engine import started
    from minionerec.data.prepare import read_source
    from minionerec.data.source import BadRows

    source = read_source(config, config.local().inputs(), BadRows(config.max_bad_rows))
    with tempfile.TemporaryDirectory() as folder, started(config.engine, None, Path(folder)) as engine:
        built = build_corpus(engine, source, split=config.split)
        shape = _shape(built, built.chains())
    if len(built.items) < FEWEST_ITEMS:
        raise ConfigError(
            f"{config.items}: holds {len(built.items)} items; metrics at 10 need at least {FEWEST_ITEMS}. Add items."
        )
    return shape


def _shape(built: "BuiltCorpus", sequences: "Chains") -> Shape:
    """The shape of a corpus with histories of at most 10 items."""
    train = np.flatnonzero(sequences.splits == 0)
    users = np.searchsorted(sequences.offsets, train, side="right") - 1
    before = float(np.median(train - sequences.offsets[users]))
    examples = np.bincount(users)
    whole = history_length(before)
    more = np.ceil(np.maximum(examples - whole, 0) / (whole // 2))  # windows overlap by half
    windows = int(((examples > 0) + more).sum())
    audit = built.audit
    return Shape(
        items=len(built.items),
        interactions=built.counts["interactions"],
        users=built.counts["users"] + built.counts["users_without_rows"],
        examples=len(train),
        windows=windows,
        before=before,
        ties=None if audit.ties is None or not audit.pairs else audit.ties / audit.pairs,
        listed=audit.agrees_with_ids,
        texts=bool((built.items[["title", "description"]] != "").to_numpy().any()),
    )


def _size(shape: Shape) -> str:
    return f"{shape.items:,} items, {shape.users:,} users and {shape.interactions:,} interactions"


def _time_text(time: float) -> str:
    minutes = round(time / 60)
    return "a minute" if minutes <= 1 else f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"


def _steps(shape: Shape, minutes: float) -> tuple[dict[str, ChosenSettings], dict[str, float]]:
    """The settings of each step, and its seconds; without the language model where that takes too long."""
    chosen = choose(shape)
    times = seconds(chosen, shape)
    if sum(times.values()) > 60 * minutes:
        times = {name: time for name, time in times.items() if name not in _LANGUAGE}
        del chosen["sft"]
    return chosen, times


def recipe_text(config: PrepareConfig, shape: Shape, name: str, minutes: float) -> str:
    """The recipe, as YAML with the reasons as comments.

    Args:
        config: Settings of `prepare-data` that name the tables.
        shape: The data.
        name: The report's title and the name of the results folder.
        minutes: Most minutes on one core.
    """
    chosen, times = _steps(shape, minutes)
    defaults = PrepareConfig.__dataclass_fields__
    own: dict[str, Any] = {"items": config.items, "interactions": config.interactions}
    own |= {key: getattr(config, key) for key in (*COLUMNS, "max_bad_rows")}
    chosen["corpus"] = {
        **{key: (value, "") for key, value in own.items() if value != defaults[key].default},
        **chosen["corpus"],
    }
    chosen["report"] = {"title": (name, "")}
    lines = [
        f"# {name}: {_size(shape)}.",
        f"# Written by minionerec init; it takes about {_time_text(sum(times.values()))} on one core.",
        "# Every line may be changed: docs/recipes.md says how, `minionerec STAGE --help` what each setting means.",
        f"base: {BASE}",
        f"output: {_yaml(str(Path('runs', name)))}",
    ]
    if "sft" not in chosen:
        lines.append(f"# No language model: with it the run would take more than {minutes:g} minutes.")
        lines.append(f"without: [{', '.join(_LANGUAGE)}]")
        chosen["report"]["predictions"] = ({"catalogue model": "{eval_catalogue}"}, "")
    lines.append("steps:")
    for step, settings in chosen.items():
        lines.append(f"  {step}:")
        for key, (value, why) in settings.items():
            lines += [f"    # {why}"] * bool(why) + [f"    {key}: {_yaml(value)}"]
    return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    """A value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1 << 20)
    return text.removesuffix("...\n").strip()
