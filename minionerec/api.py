"""The Python interface: stages as functions of data frames, finished outputs and keyword arguments.

    import minionerec

    corpus = minionerec.prepare_data(items=items, interactions=interactions, output="runs/shop/corpus")
    sids = minionerec.build_sids(corpus, output="runs/shop/sids")
    model = minionerec.train_catalogue(corpus, sids, output="runs/shop/catalogue", epochs=4)
    print(minionerec.evaluate(model, corpus, output="runs/shop/test").metrics)
    recommender = minionerec.Recommender.load(model.output)

Each function runs the stage of the same name: it takes the same settings with the same defaults (`help` of a function
lists them), writes the same folder, does nothing where that is up to date, and resumes a run that was interrupted. An
input is a path, or the result of the function that made it. `import minionerec` alone imports nothing heavy.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from minionerec.core.parquet import table_path
from minionerec.core.paths import input_path
from minionerec.data.names import COLUMNS, OF_INTERACTIONS, OF_ITEMS
from minionerec.pipeline.settings import default_of, description, type_hints, typed_values
from minionerec.pipeline.stages import StageResult, stage_spec

if TYPE_CHECKING:
    import pandas as pd

    from minionerec.pipeline.build_sids import SidResult

F = TypeVar("F", bound=Callable[..., Any])
Input = Any
"""A path (str, os.PathLike), or the result of the function that made the folder (its `output` is taken)."""


def _run(stage: str, settings: Mapping[str, Any]) -> StageResult:
    """Run a stage with settings given as Python values.

    Raises:
        ConfigError: On an unknown setting, or a value that does not fit.
    """
    spec = stage_spec(stage)
    plain = {name: _plain(name, value) for name, value in settings.items()}
    return spec.function()(spec.config_class()(**typed_values(spec.config_class(), plain, f"{stage}()")))


def _plain(name: str, value: Any) -> Any:
    """A setting's value as in a settings file: paths as texts, tuples as lists, results as their folders."""
    if isinstance(value, Mapping):
        return {key: _plain(name, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, each) for each in value]
    if isinstance(value, os.PathLike) or hasattr(value, "output"):
        return input_path(name, value)
    return value


def _stage(name: str) -> Callable[[F], F]:
    """Give a function the signature and the documentation of a stage's settings."""

    def decorate(function: F) -> F:
        own = inspect.signature(function).parameters
        config = stage_spec(name).config_class()
        hints = type_hints(config)
        settings = [each for each in fields(config) if each.name not in own]
        kept = [each for each in own.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(each.name, keyword, default=default_of(each), annotation=hints[each.name])
            for each in settings
        ]
        lines = [f"    {each.name}: {description(each).help}." for each in settings]
        head = [inspect.cleandoc(function.__doc__ or ""), "", f"Other settings, as of `minionerec {name}`:"]
        whole = inspect.signature(function).replace(parameters=[*kept, *added])
        function.__signature__ = whole  # type: ignore[attr-defined]
        function.__doc__ = "\n".join([*head, *lines])
        return function

    return decorate


def run_stage(name: str, config: str | None = None, **settings: Any) -> Any:
    """Run any stage by its name.

    Args:
        name: The stage, such as "train-sequential"; `minionerec --help` lists them.
        config: Settings to begin with: a file, or RECIPE#STEP as on the command line, such as "demo#sft". The output
            that it names is not used.
        settings: Settings of the stage, which replace those.

    Returns:
        The stage's result.

    Raises:
        ConfigError: On an unknown stage or setting, or a value that does not fit.
    """
    from minionerec.pipeline.cli.plan import config_values

    given = {} if config is None else config_values(stage_spec(name).config_class(), config)
    given.pop("output", None)
    return _run(name, {**given, **settings})


@_stage("prepare-data")
def prepare_data(
    items: "pd.DataFrame | Input" = None,
    interactions: "pd.DataFrame | Input" = None,
    *,
    output: str | os.PathLike[str],
    **settings: Any,
) -> StageResult:
    """Check, index and split items and interactions: the corpus that every later stage reads.

    Args:
        items: A data frame (of pandas, polars, pyarrow, DuckDB), or the path of a table, with the columns `item_id`,
            `title` and perhaps `description`.
        interactions: The same, with `user_id`, `item_id` and `timestamp`, one row per interaction. Ids may be numbers.
        output: Folder to write. Data frames are kept beside it, as `OUTPUT.items.parquet` and
            `OUTPUT.interactions.parquet`.
        settings: Settings of the stage.

    Raises:
        ConfigError: If settings contradict each other.
        DataError: If a table cannot be used; the message names the row.
    """
    from minionerec.data.filters import parse_conditions
    from minionerec.pipeline.stage import locked

    named = {"items": items, "interactions": interactions}
    names = {**COLUMNS, **(settings.get("columns") or {})}
    of_interactions = (*OF_INTERACTIONS, "event") if settings.get("targets") else OF_INTERACTIONS
    columns = {
        name: [str(names[kind]) for kind in kinds]
        for name, kinds in (("items", OF_ITEMS), ("interactions", of_interactions))
    }
    columns["interactions"] += [condition.column for condition in parse_conditions(str(settings.get("where", "")))]
    given = {name: table for name, table in named.items() if table is not None}
    written = any(not isinstance(table, str | os.PathLike) for table in given.values())
    # Data frames are written under the lock: a call that is refused replaces nothing that a running one reads.
    with locked(Path(output), "corpus") if written else nullcontext():
        paths = {
            name: table_path(name, table, f"{os.fspath(output)}.{name}.parquet", columns[name])
            for name, table in given.items()
        }
        return _run("prepare-data", {**paths, "output": output, **settings})


@_stage("build-sids")
def build_sids(corpus: Input, *, output: str | os.PathLike[str], **settings: Any) -> "SidResult":
    """Give every item of a corpus a semantic ID.

    Args:
        corpus: A corpus.
        output: Folder to write.
        settings: Settings of the stage.

    Returns:
        The table of semantic IDs (`table`), a report of collisions and balance (`metrics`), and the folder.
    """
    return cast("SidResult", _run("build-sids", {"corpus": corpus, "output": output, **settings}))


@_stage("train-catalogue")
def train_catalogue(corpus: Input, sids: Input, *, output: str | os.PathLike[str], **settings: Any) -> StageResult:
    """Train the catalogue model: a small generative model with one distribution over all semantic IDs.

    Args:
        corpus: A corpus.
        sids: Its semantic IDs.
        output: Checkpoint folder to write.
        settings: Settings of the stage.
    """
    return _run("train-catalogue", {"corpus": corpus, "sids": sids, "output": output, **settings})


@_stage("sft")
def sft(corpus: Input, sids: Input, *, output: str | os.PathLike[str], **settings: Any) -> StageResult:
    """Fine-tune a language model to generate the semantic ID of the next item.

    Args:
        corpus: A corpus.
        sids: Its semantic IDs.
        output: Checkpoint folder to write.
        settings: Settings of the stage; `teacher` may be a result of `train_catalogue`.
    """
    return _run("sft", {"corpus": corpus, "sids": sids, "output": output, **settings})


@_stage("grpo")
def grpo(corpus: Input, checkpoint: Input, *, output: str | os.PathLike[str], **settings: Any) -> StageResult:
    """Improve a checkpoint by reinforcement learning (GRPO) with ranking rewards.

    Args:
        corpus: A corpus.
        checkpoint: The checkpoint to start from.
        output: Checkpoint folder to write.
        settings: Settings of the stage.
    """
    return _run("grpo", {"corpus": corpus, "checkpoint": checkpoint, "output": output, **settings})


@dataclass(frozen=True)
class EvaluatedLists:
    """Metrics of recommenders on the examples of a split.

    Attributes:
        output: The folder of the predictions.
        metrics: One row per recommender (the model, then the baselines), reading of a hit and metric:
            `recommender`, `reading` ("sid" or "item"), `metric` ("NDCG@10", ...), `mean`, and the bounds `low` and
            `high` of its 95 % bootstrap interval.
        examples: One row per example, in the order of the split: `user`, `target` (item index), and by reading
            `item_rank` and `sid_rank`, the position of the target in the model's list from 1, 0 where it is not in it.
    """

    output: Path
    metrics: "pd.DataFrame"
    examples: "pd.DataFrame"


@_stage("eval-beam")
def evaluate(
    checkpoint: Input, corpus: Input, *, output: str | os.PathLike[str], split: str = "test", **settings: Any
) -> EvaluatedLists:
    """Recommend for the examples of a split, by constrained beam search, and measure.

    Args:
        checkpoint: The recommender: a checkpoint, or a sequential model.
        corpus: The corpus whose examples are measured.
        output: Folder of predictions to write.
        split: "test", "valid" or "train".
        settings: Settings of the stage.
    """
    import pandas as pd

    from minionerec.metrics.ranked import Ranked

    given = {"checkpoint": checkpoint, "corpus": corpus, "output": output, "split": split, **settings}
    result = _run("eval-beam", given)
    rows = [
        {"recommender": name, "reading": reading, "metric": metric, "mean": mean, "low": low, "high": high}
        for name, found in result.metrics["recommenders"].items()
        for reading in ("sid", "item")
        for metric, (mean, low, high) in (found[reading] or {}).items()
    ]
    ranked = Ranked.load(result.output, split)
    ranks = {f"{reading}_rank": values for reading, values in ranked.ranks.items()}
    examples = pd.DataFrame({"user": list(ranked.users), "target": ranked.targets, **ranks})
    return EvaluatedLists(result.output, pd.DataFrame(rows), examples)
