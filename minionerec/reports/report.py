"""The stage `report`: one page of recommenders on the same examples, from finished predictions.

OUTPUT/report.md, report.html   the page; the HTML file loads nothing
OUTPUT/metrics.json             every number of it, unrounded; times, which another run takes more or fewer of, of a
                                leaderboard alone
OUTPUT/table.txt                what the command prints
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json, write_json
from minionerec.core.errors import ArtefactError
from minionerec.core.log import get_logger, progress
from minionerec.core.stage import Stage
from minionerec.core.stages import StageResult
from minionerec.metrics.ranked import splits_of
from minionerec.metrics.results import RecommenderResults
from minionerec.metrics.tables import format_metrics_table
from minionerec.reports import sections
from minionerec.reports.config import COMPARED, COMPARISON, LEADERBOARD, LEVELS, REPORT, ReportConfig
from minionerec.reports.document import Section
from minionerec.reports.findings import Finding, findings
from minionerec.reports.html import write_page
from minionerec.reports.markdown import render_markdown
from minionerec.reports.provenance import configuration, manifests, sources
from minionerec.reports.reference import load_reference
from minionerec.reports.results import EvaluationSet, PageResults, read_results
from minionerec.reports.trainings import Effort, learning_points

logger = get_logger(__name__)

NAME = "report"
METRICS_FILE, MARKDOWN_FILE, TABLE_FILE = "metrics.json", f"{NAME}.md", "table.txt"
TITLES = {
    REPORT: "Generative recommendation",
    COMPARISON: "Recommenders on the same examples",
    LEADERBOARD: "Leaderboard",
}

LAYOUTS: Mapping[str, Sequence[Callable[[PageResults], Section | None]]] = {
    REPORT: (
        sections.short,
        sections.measured,
        sections.metrics,
        sections.differences,
        sections.slices,
        sections.lists,
        sections.levels,
        sections.published,
        sections.codebooks,
        sections.training,
    ),
    COMPARISON: (sections.metrics, sections.differences, sections.slices),
    LEADERBOARD: (
        sections.standings,
        sections.metrics,
        sections.published,
        sections.differences,
        sections.slices,
        sections.effort,
    ),
}
"""Layout → its sections, each a function of results."""


def run_report(config: ReportConfig) -> StageResult:
    """Write the page of one or more recommenders from finished predictions; only missing baselines are computed.

    Writes an artefact of kind "report". Equal inputs give equal bytes, except for run records. Without an output
    the page is only printed.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If a K is larger than the lists of some recommender, or the reference is unknown.
        DataError: If a file is malformed.
    """
    stage, title = Stage(config), config.title or TITLES[config.layout]
    if config.ceiling and "ceiling" not in stage.inputs:
        logger.warning("%s: no such file; the report shows no ceiling.", config.ceiling)
    if config.times and "times" not in stage.inputs:
        logger.warning("%s: no such file; the report has no slices by time from it.", config.times)
    if not config.output:
        stage.check_inputs()
        found = read_splits(stage.config)
        page = render_markdown(title, _lead(found, config), _sections(found, config, stage.inputs))
        return StageResult(Path(), page.splitlines(), metrics=_json(found, config))
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            found = read_splits(stage.config)
            parts, content = _sections(found, config, stage.inputs), _json(found, config)
            with work.finish(seed=config.seed, counts=_counts(found)) as folder:
                write_page(folder, NAME, title, _lead(found, config), parts)
                write_json(folder / METRICS_FILE, content)
                printed = _printed(found, config) or (folder / MARKDOWN_FILE).read_text(encoding="utf-8")
                (folder / TABLE_FILE).write_text(printed.rstrip("\n") + "\n", encoding="utf-8")
    output = stage.output
    table = (output / TABLE_FILE).read_text(encoding="utf-8").rstrip("\n")
    lines = [*table.splitlines(), f"Report: {output / NAME}.html (and {output / MARKDOWN_FILE})"]
    return StageResult(output, lines, metrics=read_json(output / METRICS_FILE), up_to_date=up_to_date)


def read_splits(config: ReportConfig) -> dict[str, PageResults]:
    """The results by split, of the recommenders that have predictions for it.

    Args:
        config: The settings, with local paths.

    Raises:
        ArtefactError: If there is no such split, or as of `read_results`.
    """
    runs, compares = config.runs(), config.layout == COMPARISON
    splits = [config.split] if config.split else ["test", "valid"] if compares else ["test"]
    splits_by_run = {run.name: {split for path in run.runs for split in splits_of(path)} for run in runs if compares}
    first = config.level or ("sid" if config.sids else "item")
    levels = [first] if compares else [first, *(level for level in LEVELS if level != first)]
    if config.layout == REPORT and not config.sids:
        levels = ["item"]
    found = {}
    for split in splits:
        present = [run for run in runs if not compares or split in splits_by_run[run.name]]
        if not present:
            continue
        examples = None
        if config.corpus:
            examples = EvaluationSet.read(config.corpus, split, config.protocol, config.items, config.sids)
        slices = config.slices and examples is not None
        has_times = config.times is not None and Path(config.times).is_file()
        found[split] = read_results(
            present,
            split,
            examples,
            seed=config.seed,
            resamples=config.resamples,
            resample=config.resample,
            levels=levels,
            ks=config.ks,
            metrics=config.metrics or (COMPARED if compares and config.ks is None else ()),
            headline=config.headline,
            first=config.baseline,
            order=config.order or ("headline" if config.layout == LEADERBOARD else "given"),
            reference=load_reference(config.reference) if config.reference else None,
            ceiling=config.ceiling,
            slices=slices,
            times=config.times if has_times else None,
            lists=config.layout == REPORT,
            baselines=not compares,
            own_sids=config.layout != REPORT,
        )
    if not found:
        raise ArtefactError(f"{runs[0].paths[0]}: has no predictions for {' or '.join(splits)} examples.")
    return found


def _sections(found: Mapping[str, PageResults], config: ReportConfig, inputs: Mapping[str, Path]) -> list[Section]:
    """The sections of the page by split, and the sources of its numbers."""
    parts: list[Section | None] = []
    for split, results in found.items():
        for section in progress(LAYOUTS[config.layout], f"sections of {split} examples", unit="sections"):
            part = section(results)
            head = f"{split} examples: " if config.layout == COMPARISON else ""
            parts.append(Section(f"{head}{part.title}", part.blocks) if part else None)
    if config.layout == REPORT:
        parts += [sections.example_lists(next(iter(found.values())), config.examples), configuration(inputs)]
    if config.layout == LEADERBOARD:
        text = "All artefacts and files that this page was made from."
        parts.append(Section("Sources", [text, *sources(manifests(inputs), inputs)]))
    return [part for part in parts if part is not None]


def _lead(found: Mapping[str, PageResults], config: ReportConfig) -> str:
    results = next(iter(found.values()))
    names = list(dict.fromkeys(name for each in found.values() for name in [*each.own, *each.pending]))
    listed = ", ".join(names) if config.layout != LEADERBOARD else f"{len(names)} recommenders"
    if results.examples is None:
        return f"{listed}; all tables are of the same examples."
    examples = results.examples
    pending = f"; {len(results.pending)} pending" if results.pending else ""
    return (
        f"{listed} on the {' and '.join(found)} split of {config.corpus} ({examples.data.split}), "
        f"{len(examples.rows):,} examples, "
        f"{examples.n_items:,} items{pending}."
    )


def _printed(found: Mapping[str, PageResults], config: ReportConfig) -> str:
    """The printed text; "" for the page itself."""
    results = next(iter(found.values()))
    if config.layout == LEADERBOARD:
        return "\n".join(each.text for each in findings(results))
    if config.layout == COMPARISON or results.examples is None:
        return ""
    seeds = ", ± sd over seeds" if results.several_seeds else ""
    size = f"{len(results.examples.rows):,} examples"
    title = f"{results.split} split ({results.examples.data.split}), {size}, 95 % bootstrap intervals{seeds}"
    return format_metrics_table(results.evaluations, results.levels[0], title)


def _counts(found: Mapping[str, PageResults]) -> dict[str, Any]:
    """Counts for the manifest."""
    results = next(iter(found.values()))
    sids = {} if results.table is None else {"sid_table": results.table.fingerprint}
    names = {"recommenders": len(results.own) + len(results.pending), "pending": len(results.pending)}
    return {"rows": results.bootstrap.size, **sids, "ks": list(results.ks), **names}


def _json(found: Mapping[str, PageResults], config: ReportConfig) -> dict[str, Any]:
    """The content of `metrics.json`."""
    title = config.title or TITLES[config.layout]
    return {
        "title": title,
        "layout": config.layout,
        "splits": {
            split: results_json(results, cost=config.layout == LEADERBOARD)
            | ({"learning_curves": _curves_json(results)} if config.layout == REPORT else {})
            for split, results in found.items()
        },
    }


def results_json(results: PageResults, *, cost: bool) -> dict[str, Any]:
    """All numbers that pages show, unrounded.

    Args:
        results: The results.
        cost: Whether with the cost of each recommender, such as seconds, which another run of the same thing takes
            more or fewer of.
    """
    examples, reference = results.examples, results.reference
    found: list[Finding] = findings(results)
    return {
        "split": results.split,
        "split_rule": None if examples is None else examples.data.split,
        "rows": results.bootstrap.size,
        "items": None if examples is None else examples.n_items,
        "sid_table": None if results.table is None else results.table.fingerprint,
        "ks": list(results.ks),
        "levels": list(results.levels),
        "headline": results.headline,
        "compared_with": results.first,
        "ranked": results.ranked,
        "level_with_best": results.level_with_best,
        "recommenders": {name: _recommender_json(results, each, cost) for name, each in results.recommenders.items()},
        "differences": [
            {"of": name, "minus": other, "levels": {level: _gaps(results, name, other, level) for level in known}}
            for name, other in results.pairs
            if (known := [level for level in results.levels if {name, other} <= set(results.measured(level))])
        ],
        "baseline_constants": None if results.chosen is None else results.chosen.to_json(),
        "published": []
        if reference is None
        else [{"name": row.name, "group": row.group, "metrics": dict(row.metrics)} for row in reference.rows],
        "doubtful": [] if reference is None else [[row.name, metric] for row, metric in reference.doubtful],
        "findings": [each.to_json() for each in found],
    }


def _curves_json(results: PageResults) -> list[dict[str, Any]]:
    """The learning curves of each training that has any: series of [epoch, value]."""
    curves = [(training.name, learning_points(training)) for training in results.trainings]
    return [{"training": name, "measures": found} for name, found in curves if found]


def _gaps(results: PageResults, name: str, other: str, level: str) -> dict[str, list[float]]:
    """Metric to [difference, low, high, p]."""
    return {metric: list(gap) for metric, gap in results.differences(other, level, [name])[name].items()}


def _recommender_json(results: PageResults, recommender: RecommenderResults, cost: bool) -> dict[str, Any]:
    """One recommender."""
    name = recommender.name
    found: dict[str, Any] = {
        "baseline": name in results.baselines,
        "pending": recommender.pending,
        **recommender.details,
    }
    if recommender.pending:
        return found
    levels = [level for level in results.levels if recommender.has(level)]
    lists = results.evaluations[name].to_json()
    to_best = results.to_best.get(name)
    found |= {
        "given": list(recommender.given),
        "seeds": len(recommender.runs),
        "predictions": [str(path) for path in recommender.paths],
        "about": dict(recommender.about),
        "counted_by": recommender.counted_by or None,
        "metrics": {
            level: {metric: of.to_json() for metric, of in results.estimates(level)[name].items()} for level in levels
        },
        "by_seed": {
            level: {metric: of.mean(1).tolist() for metric, of in results.values(name, level, results.metrics).items()}
            for level in levels
        },
        "minus_best": None if to_best is None else list(to_best),
        "lists": {key: value for key, value in lists.items() if key not in ("rows", "ks", "sid", "item")},
        "slices": results.slices_json(name),
        "levels": results.analyses[name].to_json() if name in results.analyses else None,
        "beside_published": [
            {
                "row": f"{row.name} ({row.group})",
                "reading": results.reading_of(row, name),
                "gaps": [gap.to_json() for gap in results.gaps(name, row)],
            }
            for row in results.counterparts(name)
        ],
    }
    effort = results.effort(name) if cost and name not in results.baselines else None
    return found | ({} if effort is None else {"effort": _effort_json(effort)})


def _effort_json(effort: Effort) -> dict[str, Any]:
    return {
        "runs": len(effort.runs),
        "seeds": effort.seeds,
        "parameters": effort.parameters,
        "rows_and_epochs": None if effort.examples is None else list(effort.examples),
        "commits": effort.commits,
        "settings": effort.settings,
        "unlike_settings": effort.unlike,
        "search": effort.search,
        "training_seconds": effort.seconds,
        "trainings": [list(part) for part in effort.parts],
        "evaluation_seconds": effort.evaluation_seconds,
        "machines": effort.machines,
        "missing": [path for run in effort.runs for path in run.missing],
    }
