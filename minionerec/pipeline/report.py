"""The stage `report`: one page about recommenders on the same examples, from finished predictions.

OUTPUT/report.html    the page, which loads nothing
OUTPUT/metrics.json   every number of it, unrounded, without times
OUTPUT/summary.txt    what the command prints
"""

from typing import Any

from minionerec.core.artefacts import read_json, write_json
from minionerec.core.log import get_logger, progress
from minionerec.metrics.results import RecommenderResults
from minionerec.metrics.tables import format_metrics_table
from minionerec.metrics.values import HR, VALUE, VALUE_WEIGHTS
from minionerec.pipeline.config.reports import ReportConfig
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import STAGES, StageResult
from minionerec.reports import sections
from minionerec.reports.page import Section, render_page
from minionerec.reports.reference import load_reference
from minionerec.reports.results import EvaluationSet, PageResults, read_results
from minionerec.reports.summary import summary

logger = get_logger(__name__)

PAGE_FILE, METRICS_FILE, SUMMARY_FILE = "report.html", "metrics.json", "summary.txt"
SECTIONS = (
    sections.short,
    sections.setup,
    sections.metrics,
    sections.published,
    sections.differences,
    sections.slices,
    sections.value,
    sections.levels,
    sections.lists,
    sections.training,
    sections.example_lists,
)
"""The sections of the page, in order; each is a function of the results."""
SEED = 0
"""Seed of the bootstrap and of the choice of the examples shown."""


def run_report(config: ReportConfig) -> StageResult:
    """Write the page about one or more recommenders from finished predictions; only missing baselines are computed.

    Writes an artefact of kind "report". Equal inputs give equal bytes, except for times from run records on the page.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If a K is larger than the lists of some recommender, or the reference is unknown.
        DataError: If a file is malformed.
    """
    stage = Stage(config)
    if config.ceiling and "ceiling" not in stage.inputs:
        logger.warning("%s: no such file; the report shows no ceiling.", config.ceiling)
    finished = {run.name for run in config.finished()}
    for run in config.runs():
        if run.name not in finished:
            logger.warning("%s: has no predictions in %s; it is left out.", run.name, ", ".join(map(str, run.paths)))
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            local = stage.config
            results = read_results(
                local.finished(),
                EvaluationSet.read(local.corpus, local.split, local.protocol, local.items, local.sids),
                seed=SEED,
                resamples=local.resamples,
                levels=["sid", "item"] if local.sids else ["item"],
                ks=local.ks,
                metrics=local.metrics,
                first=local.baseline,
                reference=load_reference(local.reference) if local.reference else None,
                ceiling=local.ceiling,
                stages={name: spec.title for name, spec in STAGES.items()},
                value_column=local.value_column,
            )
            lead = _lead(results, config.corpus)
            page = render_page(config.title, lead, _sections(results))
            content = {"title": config.title, **results_json(results)}
            with work.finish(seed=SEED, counts=_counts(results)) as folder:
                (folder / PAGE_FILE).write_text(page, encoding="utf-8")
                write_json(folder / METRICS_FILE, content)
                (folder / SUMMARY_FILE).write_text(f"{_printed(results)}\n", encoding="utf-8")
    lines = (stage.output / SUMMARY_FILE).read_text(encoding="utf-8").splitlines()
    lines.append(f"Report: {stage.output / PAGE_FILE}")
    return StageResult(stage.output, lines, metrics=read_json(stage.output / METRICS_FILE), up_to_date=up_to_date)


def _sections(results: PageResults) -> list[Section]:
    """The sections of the page that apply to the results."""
    parts = (section(results) for section in progress(SECTIONS, "sections of the report", unit="sections"))
    return [part for part in parts if part is not None]


def _lead(results: PageResults, corpus: str) -> str:
    examples = results.examples
    return (
        f"{', '.join(results.without_baselines)} on the {results.split} split of {corpus} ({examples.data.split}), "
        f"{len(examples.rows):,} examples, {examples.n_items:,} items."
    )


def _printed(results: PageResults) -> str:
    """The text that the command prints: the metrics in the main reading, and the summary."""
    seeds = ", ± sd over seeds" if results.several_seeds else ""
    size = f"{len(results.examples.rows):,} examples"
    title = f"{results.split} split ({results.examples.data.split}), {size}, 95 % bootstrap intervals{seeds}"
    return "\n".join([format_metrics_table(results.evaluations, results.levels[0], title), "", *summary(results)])


def _counts(results: PageResults) -> dict[str, Any]:
    """Counts for the manifest."""
    sids = {} if results.table is None else {"sid_table": results.table.fingerprint}
    return {
        "rows": results.bootstrap.size,
        **sids,
        "ks": list(results.ks),
        "recommenders": len(results.without_baselines),
    }


def results_json(results: PageResults) -> dict[str, Any]:
    """The numbers of a report, unrounded."""
    examples, reference = results.examples, results.reference
    return {
        "split": results.split,
        "split_rule": examples.data.split,
        "rows": results.bootstrap.size,
        "items": examples.n_items,
        "sid_table": None if results.table is None else results.table.fingerprint,
        "ks": list(results.ks),
        "levels": list(results.levels),
        "headline": results.headline,
        "compared_with": results.first,
        "ranked": results.ranked,
        "recommenders": {
            name: _recommender_json(results, recommender) for name, recommender in results.recommenders.items()
        },
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
        "value": _value_json(results),
        "summary": summary(results),
        "learning_curves": [
            {"training": training.name, "measures": curves}
            for training in results.trainings
            if (curves := training.curves())
        ],
    }


def _value_json(results: PageResults) -> dict[str, Any] | None:
    """Hits and value of each recommender's lists, re-ranked with each weight; None if the value of items is unknown."""
    if results.worth is None:
        return None
    means = {
        name: {metric: [float(point[metric].mean()) for point in curve] for metric in (HR, VALUE)}
        for name, curve in results.trade_offs.items()
    }
    return {"column": results.value_column, "weights": list(VALUE_WEIGHTS), "recommenders": means}


def _gaps(results: PageResults, name: str, other: str, level: str) -> dict[str, list[float]]:
    """Metric to [difference, low, high, p]."""
    return {metric: list(gap) for metric, gap in results.differences(other, level, [name])[name].items()}


def _recommender_json(results: PageResults, recommender: RecommenderResults) -> dict[str, Any]:
    """The numbers of one recommender, unrounded."""
    name = recommender.name
    levels = [level for level in results.levels if recommender.has(level)]
    lists = results.evaluations[name].to_json()
    return {
        "baseline": name in results.baselines,
        **recommender.details,
        "given": list(recommender.given),
        "seeds": len(recommender.runs),
        "predictions": [str(path) for path in recommender.paths],
        "about": dict(recommender.about),
        "counted_by": recommender.counted_by or None,
        "metrics": {
            level: {metric: estimate.to_json() for metric, estimate in results.estimates(level)[name].items()}
            for level in levels
        },
        "by_seed": {
            level: {
                metric: values.mean(1).tolist()
                for metric, values in results.values(name, level, results.metrics).items()
            }
            for level in levels
        },
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
        "effort": None if name in results.baselines else results.effort(name).to_json(),
    }
