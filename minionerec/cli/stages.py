"""The command of each stage: parse its configuration, run it, say where things went.

`scripts/sft.py` and `minionerec sft` are both `main("sft")`. Whatever is heavy to import is imported when a stage runs,
so that `--help` answers at once.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from minionerec.cli.pipeline import DEMO, ensure_before
from minionerec.core.config import parse_config, run_command


@dataclass(frozen=True)
class Command:
    """One stage as a command.

    Attributes:
        script: File that runs it, relative to the project.
        summary: What it does, for `--help`.
        settings: Its configuration class, as "module:class".
        run: Runs the stage with a configuration and prints what came out.
        demo: File of the demo configuration that is taken when no `--config` is given, in `configs/demo`.
    """

    script: str
    summary: str
    settings: str
    run: Callable[[Any], None]
    demo: str | None = None

    def config_class(self) -> type[Any]:
        """The configuration class."""
        module, name = self.settings.split(":")
        return getattr(import_module(module), name)


def _prepare_data(config: Any) -> None:
    from minionerec.data.prepare import run_prepare

    print(f"corpus: {run_prepare(config).output}")


def _embed_items(config: Any) -> None:
    from minionerec.embed.vectors import run_embed

    result = run_embed(config)
    print(f"vectors of {result.counts['items']} items, {result.counts['dimensions']} wide: {result.output}")


def _build_sids(config: Any) -> None:
    from minionerec.sid.build import run_build_sids

    result = run_build_sids(config)
    print(f"{result.table.n_unique} distinct SIDs of {len(result.table)} items: {result.output}")


def _sid_report(config: Any) -> None:
    from minionerec.reports.sid_report import run_sid_report

    result = run_sid_report(config)
    for name, measures in result.diagnostics.items():
        print(f"{name}: {measures['bits_per_item']:.3f} bits per item")
    print(f"Report: {result.html} (and {result.markdown})")


def _sft(config: Any) -> None:
    from minionerec.training.sft import run_sft

    _print_checkpoint(run_sft(config).output)


def _grpo(config: Any) -> None:
    from minionerec.training.grpo import run_grpo

    _print_checkpoint(run_grpo(config).output)


def _train_catalogue(config: Any) -> None:
    from minionerec.training.catalogue import run_catalogue

    _print_checkpoint(run_catalogue(config).output)


def _print_checkpoint(output: Any) -> None:
    from minionerec.core.log import is_main_process

    if is_main_process():
        print(f"checkpoint: {output}")


def _eval_beam(config: Any) -> None:
    from minionerec.core.log import is_main_process
    from minionerec.evaluation.predict import run_eval

    result = run_eval(config)
    if is_main_process():
        print(result.table)
        print(f"predictions: {result.output}")


def _levels(config: Any) -> None:
    from minionerec.metrics.levels import run_levels

    analysis = run_levels(config)
    if config.json:
        print(json.dumps(analysis.to_json()))
        return
    from minionerec.reports.tables import format_level_tables

    print(format_level_tables(analysis))


def _train_sequential(config: Any) -> None:
    from minionerec.sequential.run import run_sequential

    result = run_sequential(config)
    for split, levels in result.summary["mean_sd"].items():
        for level, metrics in levels.items():
            shown = (
                f"{name} {mean:.4f}" + ("" if sd is None else f" ± {sd:.4f}") for name, (mean, sd) in metrics.items()
            )
            print(f"{split:<5} {level:<4} {'  '.join(shown)}")
    print(f"models and predictions: {result.output}")


def _compare(config: Any) -> None:
    from minionerec.reports.compare import run_compare

    print(run_compare(config).markdown)


def _report(config: Any) -> None:
    from minionerec.reports.report import run_report

    result = run_report(config)
    print(result.table)
    print(f"Report: {result.html} (and {result.markdown})")


COMMANDS = {
    "prepare-data": Command(
        "scripts/prepare_data.py",
        "Turn a source of items and interactions into a corpus: checked, indexed and split.",
        "minionerec.data.prepare:PrepareConfig",
        _prepare_data,
        "data.yaml",
    ),
    "embed-items": Command(
        "scripts/embed_items.py",
        "Turn the text of each item into a vector.",
        "minionerec.embed.vectors:EmbedConfig",
        _embed_items,
    ),
    "build-sids": Command(
        "scripts/build_sids.py",
        "Give every item of a corpus a semantic ID.",
        "minionerec.sid.build:SidConfig",
        _build_sids,
        "sids.yaml",
    ),
    "sid-report": Command(
        "scripts/sid_report.py",
        "Set tables of semantic IDs side by side on one page, before any training.",
        "minionerec.reports.sid_report:SidReportConfig",
        _sid_report,
        "sid_report.yaml",
    ),
    "sft": Command(
        "scripts/sft.py",
        "Teach a language model to speak semantic IDs (supervised fine-tuning).",
        "minionerec.training.config:SftConfig",
        _sft,
        "sft.yaml",
    ),
    "grpo": Command(
        "scripts/grpo.py",
        "Sharpen a checkpoint by reinforcement learning (GRPO) under ranking rewards.",
        "minionerec.training.config:GrpoConfig",
        _grpo,
        "grpo.yaml",
    ),
    "train-catalogue": Command(
        "scripts/train_catalogue.py",
        "Train a small generative model over the whole catalogue: text, IDs, codes and counts in one.",
        "minionerec.training.config:CatalogueTrainConfig",
        _train_catalogue,
    ),
    "eval-beam": Command(
        "scripts/eval_beam.py",
        "Recommend by constrained beam search, and measure.",
        "minionerec.evaluation.config:EvalConfig",
        _eval_beam,
        "eval_grpo.yaml",
    ),
    "levels": Command(
        "calc_level.py",
        "Per-level accuracy of predicted semantic IDs: independent, cumulative and drop-off, at every K.",
        "minionerec.metrics.levels:LevelsConfig",
        _levels,
        "levels.yaml",
    ),
    "train-sequential": Command(
        "scripts/train_sequential.py",
        "Train a sequential recommender with several seeds, and measure it as its protocol says.",
        "minionerec.sequential.config:SequentialConfig",
        _train_sequential,
    ),
    "compare": Command(
        "scripts/compare.py",
        "Set recommenders side by side on the same rows: mean and sd over seeds, paired bootstrap, published figures.",
        "minionerec.reports.compare:CompareConfig",
        _compare,
    ),
    "report": Command(
        "scripts/report.py",
        "Write report.md and report.html from finished predictions, and print the table.",
        "minionerec.reports.report:ReportConfig",
        _report,
        "report.yaml",
    ),
}


def run_stage(name: str) -> None:
    """Run one stage with the words of the command line.

    With no `--config` it takes the demo configuration, and first makes what that configuration reads where that is
    missing or stale.

    Args:
        name: Key of `COMMANDS`.
    """
    command = COMMANDS[name]
    given = {word.split("=")[0] for word in sys.argv[1:]}
    demo = None if command.demo is None else f"{DEMO}/{command.demo}"
    if name == "levels" and given & {"--path", "--predictions"}:
        demo = None  # its only input is on the command line
    config: Any = parse_config(command.config_class(), command.summary, demo=demo)
    if demo is not None and "--config" not in given:
        ensure_before(DEMO, config)
    command.run(config)


def main(name: str) -> None:
    """The whole of a stage's script."""
    run_command(partial(run_stage, name))
