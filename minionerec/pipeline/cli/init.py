"""`minionerec init`: a recipe for two tables, with all sizes derived from them."""

import re
import shlex
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from minionerec.core.artefacts import write_artefact
from minionerec.core.commands import CommandParser
from minionerec.core.errors import ConfigError, shown
from minionerec.core.values import convert
from minionerec.data.names import CODED, COLUMNS, PURCHASES
from minionerec.pipeline.cli.plan import plan_of
from minionerec.pipeline.cli.recipes import PLACEHOLDER, USUAL
from minionerec.pipeline.cli.sizes import (
    FEWEST_ITEMS,
    LANGUAGE,
    TRAININGS,
    ChosenSettings,
    Pace,
    Shape,
    choose,
    history_length,
    seconds,
    shortened,
    windows_seen,
)
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.settings import default_of, description

if TYPE_CHECKING:
    from minionerec.data.build import BuiltCorpus
    from minionerec.data.chains import Chains

SUMMARY = "Write a recipe for two tables of your own, with all sizes derived from them"
BASE = "own/_base"
NAME = re.compile(r"\w(?:[\w .-]{0,58}[\w-])?")
"""Name of a recipe, or of a folder of recipes."""
_TRIED = 1, 3, 9  # optimiser steps of the trainings of a trial, of which the first is not timed: it loads what all need
_SHORT = 60.0  # seconds of the trainings with their starts, as usual, below which no trial is worth its time


def init_arguments(program: str) -> CommandParser:
    """The options of `minionerec init`."""
    parser = CommandParser(prog=program, description=f"{SUMMARY}; `minionerec run NAME` then runs it.")
    parser.add_argument(
        "items", metavar="ITEMS", help="csv, tsv, jsonl or parquet with one row per item: item_id, title"
    )
    parser.add_argument(
        "interactions",
        metavar="INTERACTIONS",
        help="csv, tsv, jsonl or parquet with one row per interaction: user_id, item_id, timestamp; or a folder of "
        "such files",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="the recipe to write, such as shop or eu/shop: NAME.yaml, whose results go to runs/NAME",
    )
    columns_help = description(PrepareConfig.__dataclass_fields__["columns"]).help.removeprefix("tables, recbole: ")
    parser.add_argument("--columns", nargs="*", default=[], metavar="NAME=VALUE", help=columns_help)
    parser.add_argument(
        "--roles",
        nargs="*",
        default=[],
        metavar="COLUMN=ROLE",
        help="roles of columns of the items where they are others than their texts show: category, tags, number, time, "
        "text or ignore",
    )
    parser.add_argument(
        "--targets",
        nargs="+",
        default=[],
        metavar="EVENTS",
        help="events that are predicted, such as purchase; interactions of other events are in histories alone",
    )
    parser.add_argument(
        "--users",
        metavar="TABLE",
        help="table of users, with their ids as the interactions have them, whose columns may be request features",
    )
    parser.add_argument(
        "--context_columns",
        nargs="*",
        metavar="COLUMN",
        help="columns of the interactions or users that are known when a list is requested, such as device (default: "
        "all of 2 to 256 categories that the item does not determine)",
    )
    parser.add_argument(
        "--where", default="", metavar="CONDITION", help="condition that interactions must meet, such as 'rating >= 4'"
    )
    parser.add_argument(
        "--max_bad_rows", default="0", metavar="N", help="rows that cannot be used and may be dropped (default: 0)"
    )
    parser.add_argument(
        "--minutes",
        default="40",
        metavar="N",
        help="most minutes on one core that the run may take, by a short trial on this machine; if it takes more, it "
        "has no language model, and then a smaller catalogue model (default: 40)",
    )
    return parser


def run_init(program: str) -> None:
    """Write the recipe that the command line asks for, and print its size and how to run it.

    Raises:
        ConfigError: If the recipe's file exists, or the catalogue is too small.
        DataError: If a table cannot be used.
    """
    parser = init_arguments(program)
    options = parser.parse_args()
    if [] in (options.items, options.interactions, options.name):  # what argparse gives for it
        parser.error("-- is not a value")
    name = options.name.removesuffix(".yaml")
    if not all(map(NAME.fullmatch, name.split("/"))) or name in (BASE, f"{BASE}/{USUAL}"):  # which would hide its base
        raise ConfigError(
            f"NAME is {shown(options.name)}; expected letters, digits, spaces, -, _ and ., at most 60, in folders "
            "below this one if divided by /, such as shop or eu/shop. Choose another."
        )
    file = Path(f"{name}.yaml")
    if file.exists():
        raise _exists(file)
    minutes = float(convert(options.minutes, float, "--minutes"))
    config = PrepareConfig(
        source="tables",
        items=options.items,
        interactions=options.interactions,
        max_bad_rows=int(convert(options.max_bad_rows, int, "--max_bad_rows")),
        targets=convert(options.targets, list[str], "--targets"),
        where=options.where,
        users=options.users,
        context_columns=options.context_columns,
        roles=convert(options.roles, dict[str, str], "--roles"),
        output=str(Path("runs", name)),
        columns=convert(options.columns, dict[str, str | None], "--columns"),
    )
    texts = {name: getattr(config, name) for name in ("items", "interactions", "users", "where")}
    texts |= {f"columns {kind}": column for kind, column in config.columns.items()}
    texts |= {f"targets[{position}]": event for position, event in enumerate(config.targets)}
    texts |= {f"context_columns[{position}]": name for position, name in enumerate(config.context_columns or ())}
    for key, text in texts.items():
        placeholder = PLACEHOLDER.search(text or "")
        if placeholder is not None:
            raise ConfigError(
                f"{key} is {shown(text)}, but a recipe reads {placeholder[0]} as a placeholder. Rename it without "
                "braces."
            )
    config = with_targets(config)
    shape = shape_of(config)
    if shape.roles:
        print(f"Columns of items: {', '.join(f'{name} ({role})' for name, role in shape.roles.items())}.")
        unread = [column for column, role in shape.roles.items() if role not in CODED]
        print(f"An item's text: {', '.join(shape.text_columns)}; filters and rewards read all columns.")
        if unread:
            print(
                f"No model reads {', '.join(unread)}; give --roles COLUMN=category (or tags, number, time) otherwise."
            )
    if shape.contexts:
        print(f"Request features among the columns of interactions and users: {', '.join(shape.contexts)}.")
    paces = measured_paces(config, shape)
    recipe = recipe_text(config, shape, name, minutes, paces)
    steps, duration = _count_steps(recipe, file), sum(_steps(shape, minutes, paces)[1].values())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "x", encoding="utf-8") as opened:  # of two that write it, one does
            opened.write(recipe)
    except OSError as error:
        problem = ConfigError(f"{file}: cannot be written ({error.strerror}). Give another NAME.")
        raise (_exists(file) if file.exists() else problem) from None
    print(f"{file}: {steps} steps for {_size(shape)}, about {_time_text(duration)} on one core.")
    print(f"Run them with: minionerec run {shlex.quote(options.name)}")


def _exists(file: Path) -> ConfigError:
    return ConfigError(f"{file}: exists already. Give another NAME, or remove it.")


def _count_steps(text: str, file: Path) -> int:
    """The number of steps of a recipe that is to be written to a file.

    Raises:
        ConfigError: If it cannot be run.
    """
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder, file.name)
        trial.write_text(text, encoding="utf-8")
        try:
            return len(plan_of(trial))
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(trial), str(file))) from None


def with_targets(config: PrepareConfig) -> PrepareConfig:
    """Settings of `prepare-data` with the purchases of a log as targets, where it has other events too.

    They are kept as they are where targets are given, there is no column of events, or not exactly one event is a
    purchase by its name (`minionerec.data.names.PURCHASES`).

    Raises:
        DataError: If a table cannot be used.
    """
    from minionerec.data.source import BadRows
    from minionerec.data.sources.tables import column_names
    from minionerec.pipeline.prepare_data import interaction_files, read_source

    local = config.local()
    inputs = local.inputs()
    columns = [] if config.targets else column_names(interaction_files(local, inputs), BadRows(config.max_bad_rows))
    if COLUMNS["event"] not in columns:
        return config
    with_events = replace(config, targets=[PURCHASES[0]])
    source = read_source(with_events, inputs, BadRows(config.max_bad_rows))
    events = np.concatenate([batch.events for batch in source.batches() if batch.events is not None])
    counts = np.bincount(events, minlength=len(source.events))
    purchases = [name for name in source.events if name.lower() in PURCHASES]
    listed = ", ".join(f"{name} {count:,}" for name, count in zip(source.events, counts.tolist(), strict=True))
    if len(purchases) != 1 or len(source.events) == 1:
        print(f"Events: {listed}. Each row counts alike; give --targets to predict some events alone.")
        return config
    print(f"Events: {listed}. Targets are those of {purchases[0]!r}; give --targets to predict others.")
    return replace(config, targets=purchases)


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
    from minionerec.data.source import BadRows
    from minionerec.pipeline.prepare_data import read_source

    source = read_source(config, config.local().inputs(), BadRows(config.max_bad_rows))
    with tempfile.TemporaryDirectory() as folder, started(config.engine, None, Path(folder)) as engine:
        contexts = config.context_columns or ()
        built = build_corpus(engine, source, split=config.split, targets=config.targets, contexts=contexts)
        shape = _shape(built, built.chains(), config.roles)
    if len(built.items) < FEWEST_ITEMS:
        raise ConfigError(
            f"{config.items}: holds {len(built.items)} items; metrics at 10 need at least {FEWEST_ITEMS}. Add items."
        )
    return shape


def _shape(built: "BuiltCorpus", sequences: "Chains", roles: Mapping[str, str]) -> Shape:
    """The shape of a corpus with histories of at most 10 items."""
    from minionerec.data.contexts import share_in_session
    from minionerec.data.roles import column_roles

    train = np.flatnonzero(sequences.splits == 0)
    users = np.searchsorted(sequences.offsets, train, side="right") - 1
    before = float(np.median(train - sequences.offsets[users]))
    examples = np.bincount(users)
    length = history_length(before)
    further_windows = np.ceil(np.maximum(examples - length, 0) / (length // 2))  # windows overlap by half
    windows = int(((examples > 0) + further_windows).sum())
    audit = built.audit
    in_session = None
    if sequences.times is not None:
        later = train[train > sequences.offsets[users]]
        in_session = share_in_session(sequences.times[later], sequences.times[later - 1])
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
        roles=column_roles(built.items, roles),
        all_targets="targets" not in built.counts,
        in_session=in_session,
        contexts=tuple(built.contexts),
    )


def _size(shape: Shape) -> str:
    return f"{shape.items:,} items, {shape.users:,} users and {shape.interactions:,} interactions"


def _time_text(time: float) -> str:
    minutes = round(time / 60)
    return "a minute" if minutes <= 1 else f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"


def measured_paces(config: PrepareConfig, shape: Shape) -> dict[str, Pace]:
    """The pace of each training of the recipe on this machine, by trainings of a few steps.

    They read the tables' corpus and random SIDs, with the recipe's settings but for experts and the number of
    validation examples. Processor time is measured, so that other work on the machine does not count.

    Args:
        config: Settings of `prepare-data` that name the tables.
        shape: The data.

    Returns:
        Step to its pace; empty where the trainings are so short that the other steps decide.
    """
    chosen = choose(shape)
    usual = seconds(chosen, shape)
    if sum(usual[step] for step in TRAININGS) < _SHORT:
        return {}
    from minionerec.core.log import get_logger  # torch and transformers are loaded from here on
    from minionerec.data.corpus import Corpus
    from minionerec.sid.table import SidTable

    logger = get_logger("minionerec")
    level = logger.level
    logger.setLevel("WARNING")
    paces = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            recipe = Path(folder, "trial.yaml")
            recipe.write_text(recipe_text(config, shape, "trial", float("inf"), output=Path(folder, "runs")))
            jobs = {key.step: job for key, job in plan_of(recipe).items()}
            jobs["corpus"].spec.function()(jobs["corpus"].settings)
            ids = Corpus.load(jobs["corpus"].folder).items["item_id"].tolist()
            sizes = {key: value for key, (value, _) in chosen["sids"].items()}["codebook_sizes"]
            sids = np.random.default_rng(0).choice(int(np.prod(sizes)), len(ids), replace=False, shuffle=False)
            with write_artefact(jobs["sids"].folder, "sids", config={}, inputs={}) as path:
                SidTable(np.stack(np.unravel_index(sids, sizes), axis=1), ids).save_index(path / "index.json")
            for step in TRAININGS:
                settings = {key: value for key, (value, _) in chosen[step].items()}
                epoch = windows_seen({**settings, "epochs": 1, "towers": 1}, shape)
                changes: dict[str, Any] = {"eval_examples": 64, "evals_per_epoch": 1, "patience": 0, "experts": False}
                changes |= {} if step == "catalogue" else {"teacher": f"{folder}/catalogue{_TRIED[-1]}"}
                times = []
                for steps in _TRIED:
                    changes |= {"epochs": steps * settings["batch_size"] / epoch, "output": f"{folder}/{step}{steps}"}
                    trial = replace(jobs[step].settings, **changes)
                    begin = time.process_time()
                    jobs[step].spec.function()(trial)
                    times.append(time.process_time() - begin)
                windows = [settings["batch_size"] * steps for steps in _TRIED]
                per_window = (times[-1] - times[-2]) / (windows[-1] - windows[-2])
                fixed = times[-2] - per_window * windows[-2]
                paces[step] = Pace(max(0.0, fixed), max(0.0, per_window) / settings.get("towers", 1))
    finally:
        logger.setLevel(level)
    return paces


def _steps(
    shape: Shape, minutes: float, paces: Mapping[str, Pace] | None = None
) -> tuple[dict[str, ChosenSettings], dict[str, float]]:
    """The settings of each step, and its seconds: without the language model, or with less of the catalogue model too.

    Whatever takes too long is left out.
    """
    chosen = choose(shape)
    times = seconds(chosen, shape, paces)
    if sum(times.values()) > 60 * minutes:
        shortened(chosen, shape, paces or {}, 60 * minutes)
        times = {name: time for name, time in seconds(chosen, shape, paces).items() if name not in LANGUAGE}
        del chosen["sft"]
    return chosen, times


def recipe_text(
    config: PrepareConfig,
    shape: Shape,
    name: str,
    minutes: float,
    paces: Mapping[str, Pace] | None = None,
    output: Path | None = None,
) -> str:
    """The recipe, as YAML with the reasons as comments.

    Args:
        config: Settings of `prepare-data` that name the tables.
        shape: The data.
        name: The report's title and the name of the results folder.
        minutes: Most minutes on one core.
        paces: Result of `measured_paces`.
        output: Folder of the results; runs/NAME if None.
    """
    chosen, times = _steps(shape, minutes, paces)
    defaults = PrepareConfig.__dataclass_fields__
    keys = ("items", "interactions", "users", "columns", "roles", "targets", "context_columns", "where", "max_bad_rows")
    values = {key: getattr(config, key) for key in keys}
    values = {key: (value, "") for key, value in values.items() if value != default_of(defaults[key])}
    chosen["corpus"] = {**values, **chosen["corpus"]}
    chosen["report"] = {"title": (name, "")}
    lines = [
        f"# {name}: {_size(shape)}.",
        f"# Written by minionerec init; it takes about {_time_text(sum(times.values()))} on one core.",
        "# Every line may be changed: docs/how-to/recipes.md says how, `minionerec STAGE --help` explains settings.",
        f"base: {BASE}",
        f"output: {_yaml(str(output or Path('runs', name)))}",
    ]
    if "sft" not in chosen:
        lines.append(f"# No language model: with it the run would take more than {minutes:g} minutes.")
        lines.append(f"without: [{', '.join(LANGUAGE)}]")
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
