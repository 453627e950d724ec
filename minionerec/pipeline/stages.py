"""The registry of stages: one entry each, read by the command line, recipes, manifests, scripts and the guide.

A stage has one name: `minionerec build-sids`, `stage: build-sids` in recipes and manifests. Where it also has a
script, that is the name with underscores. To add one, write its package (a configuration, a function that takes it
and returns a `StageResult`) and an entry here; optional parts and other packages register theirs by entry points of the
group `minionerec.stages` (`minionerec.core.plugins`).

Heavy modules are imported when a stage runs, so that `--help` answers at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from minionerec.core import artefacts
from minionerec.core.errors import ConfigError
from minionerec.core.plugins import Registry
from minionerec.pipeline.settings import Settings


@dataclass(frozen=True)
class StageResult:
    """The result of a stage's function.

    Attributes:
        output: Directory of the artefact; `Path()` where nothing was written.
        lines: The results and their path, as the command prints them.
        counts: The manifest's counts.
        metrics: Content of the stage's JSON file of results, such as `metrics.json`; empty where it has none.
        up_to_date: Whether the artefact already existed, made from the same settings and inputs.
    """

    output: Path
    lines: Sequence[str]
    counts: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    up_to_date: bool = False

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


@dataclass(frozen=True)
class StageSpec:
    """A stage, as an entry of the registry.

    Attributes:
        name: Name in commands, recipes and manifests.
        summary: Description for `--help`.
        config: Configuration class, as "module:class".
        run: Function that runs the stage, as "module:function".
        launched: Whether it is started by `accelerate launch`, in one process or several.
        demo: Step of the demo recipe whose settings are used where the command line names no file, input or output;
            None where there is none.
        makes: Kinds of artefacts that it makes, other than that of its configuration.
        shown: Whether a recipe's run prints the stage's output again at its end.
        seeds: Runs of it in a recipe with several seeds: "each", once for each seed, which sets its setting `seed`;
            "all", once on the outputs of all seeds; "" as "each" where it reads the output of such a stage, else once.
        title: Name of a training on pages; the name of the stage if empty.
    """

    name: str
    summary: str
    config: str
    run: str
    launched: bool = False
    demo: str | None = None
    makes: tuple[str, ...] = ()
    shown: bool = False
    seeds: str = ""
    title: str = ""

    def config_class(self) -> type[Settings]:
        """The configuration class."""
        config_class: type[Settings] = _named(self.config)
        return config_class

    def kinds(self) -> tuple[str, ...]:
        """The kinds of artefacts that it makes; none where it only prints."""
        return (*filter(None, [getattr(self.config_class(), "kind", "")]), *self.makes)

    def function(self) -> Callable[[Any], StageResult]:
        """The function that runs the stage."""
        function: Callable[[Any], StageResult] = _named(self.run)
        return function


def _named(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)


_BUILT_IN = (
    StageSpec(
        "prepare-data",
        "Turn a source of items and interactions into a corpus: checked, indexed and split.",
        "minionerec.pipeline.config.data:PrepareConfig",
        "minionerec.pipeline.prepare_data:run_prepare",
    ),
    StageSpec(
        "embed-items",
        "Turn the text of each item into a vector.",
        "minionerec.pipeline.config.encoder:EmbedConfig",
        "minionerec.pipeline.embed_items:run_embed",
    ),
    StageSpec(
        "build-sids",
        "Give every item of a corpus a semantic ID.",
        "minionerec.pipeline.config.sids:SidConfig",
        "minionerec.pipeline.build_sids:run_build_sids",
    ),
    StageSpec(
        "sid-report",
        "Compare tables of semantic IDs on one page, before any training.",
        "minionerec.pipeline.config.reports:SidReportConfig",
        "minionerec.pipeline.sid_report:run_sid_report",
    ),
    StageSpec(
        "sft",
        "Fine-tune a language model to generate semantic IDs (supervised fine-tuning, SFT).",
        "minionerec.pipeline.config.training:SftConfig",
        "minionerec.pipeline.sft:run_sft",
        launched=True,
        seeds="each",
        demo="demo#sft",
        title="SFT",
    ),
    StageSpec(
        "grpo",
        "Improve a checkpoint by reinforcement learning (GRPO) with ranking rewards.",
        "minionerec.pipeline.config.training:GrpoConfig",
        "minionerec.pipeline.grpo:run_grpo",
        launched=True,
        seeds="each",
        demo="demo#grpo",
        title="RL (GRPO)",
    ),
    StageSpec(
        "train-catalogue",
        "Train a small generative model over the whole catalogue: text, IDs, codes and counts in one.",
        "minionerec.pipeline.config.training:CatalogueTrainConfig",
        "minionerec.pipeline.train_catalogue:run_catalogue",
        launched=True,
        seeds="each",
        title="catalogue model",
    ),
    StageSpec(
        "extend",
        "Extend a checkpoint by the semantic IDs of new items, without training.",
        "minionerec.pipeline.config.training:ExtendConfig",
        "minionerec.pipeline.extend:run_extend",
    ),
    StageSpec(
        "train-sequential",
        "Train a sequential recommender with several seeds, and measure it as its protocol says.",
        "minionerec.pipeline.config.sequential:SequentialConfig",
        "minionerec.pipeline.train_sequential:run_sequential",
        makes=("sequential_model", "predictions"),
        seeds="each",
        title="sequential model",
    ),
    StageSpec(
        "eval-beam",
        "Recommend for the examples of a split, by constrained beam search if a model generates SIDs, and measure.",
        "minionerec.pipeline.config.evaluation:EvalConfig",
        "minionerec.pipeline.evaluate:run_eval",
        demo="demo#eval_grpo",
    ),
    StageSpec(
        "calc-level",
        "Per-level accuracy of predicted semantic IDs: independent, cumulative and drop-off, at every K.",
        "minionerec.pipeline.config.reports:LevelsConfig",
        "minionerec.pipeline.levels:run_levels",
        demo="demo#levels",
    ),
    StageSpec(
        "report",
        "Compare recommenders on one page, from finished predictions, and print the table.",
        "minionerec.pipeline.config.reports:ReportConfig",
        "minionerec.pipeline.report:run_report",
        shown=True,
        seeds="all",
    ),
    StageSpec(
        "recommend",
        "Recommend for a file of histories, any number of them.",
        "minionerec.pipeline.config.recommend:RecommendConfig",
        "minionerec.pipeline.recommend:run_recommend",
    ),
    StageSpec(
        "export",
        "Export a language model for other engines: plain Hugging Face files, the trie, the wording.",
        "minionerec.pipeline.config.recommend:ExportConfig",
        "minionerec.pipeline.export:run_export",
    ),
)
STAGES: Registry[StageSpec] = Registry("minionerec.stages", {spec.name: spec for spec in _BUILT_IN})
"""Name → stage."""


def stage_spec(name: str) -> StageSpec:
    """The stage of a name.

    Raises:
        ConfigError: If there is none; the message lists those there are.
    """
    if name not in STAGES:
        raise ConfigError(f"unknown stage {name!r}; known: {', '.join(STAGES)}.")
    return STAGES[name]


def stage_name(config: type[Any]) -> str | None:
    """Name of the stage whose configuration is of a class; None where no stage's is.

    Example:
        >>> from minionerec.pipeline.config.sids import SidConfig
        >>> stage_name(SidConfig)
        'build-sids'
    """
    path = f"{config.__module__}:{config.__qualname__}"
    return next((spec.name for spec in STAGES.values() if spec.config == path), None)


def makers(kind: Any) -> list[str]:
    """Names of the stages that make artefacts of a kind.

    Example:
        >>> makers("corpus"), makers("predictions")
        (['prepare-data'], ['train-sequential', 'eval-beam', 'ground-titles'])
    """
    return [spec.name for spec in STAGES.values() if kind in spec.kinds()]


artefacts.makers = makers
