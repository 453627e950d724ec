"""Tables of semantic IDs side by side, judged before any recommender is trained: one page to read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import is_current, read_json, read_manifest, to_plain, write_artefact
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.embed.vectors import EncoderConfig, encoder_inputs, make_vectors
from minionerec.evaluation.config import named_directories, split_named
from minionerec.metrics.tables import MISSING
from minionerec.reports import plots
from minionerec.reports.document import (
    Block,
    Details,
    Figure,
    Paragraph,
    Section,
    Table,
    Tiles,
)
from minionerec.reports.html import render_html
from minionerec.reports.markdown import render_markdown
from minionerec.sid.build import REPORT_FILE
from minionerec.sid.diagnostics import HITS, Diagnostics, diagnose, gather_evidence, prefix_numbers
from minionerec.sid.quantiser import CODEBOOKS_FILE, Quantiser
from minionerec.sid.table import SidTable

logger = get_logger(__name__)

HTML_FILE, MARKDOWN_FILE, JSON_FILE = "sid_report.html", "sid_report.md", "diagnostics.json"
_TITLES_SHOWN = 8
_TITLE_LENGTH = 110


@dataclass
class SidReportConfig(EncoderConfig):
    """Settings of the page about tables of semantic IDs; the encoder makes the vectors that all are judged by."""

    tables: list[str] = field(
        default_factory=list,
        metadata={
            "help": "tables to show, each as NAME=DIRECTORY of scripts/build_sids.py (in YAML also a mapping of name "
            "to directory), in the order of the page"
        },
    )
    output: str = field(
        default="runs/demo/sid_report",
        metadata={"help": "directory to write sid_report.html, sid_report.md and diagnostics.json into"},
    )
    title: str = field(default="Semantic IDs", metadata={"help": "heading of the page"})
    buckets: int = field(default=4, metadata={"help": "example buckets shown of each table"})

    def __post_init__(self) -> None:
        """Bring `tables` into one form and check what can be checked without files."""
        super().__post_init__()
        self.tables = named_directories("tables", self.tables, "own=runs/demo/sids")
        if self.buckets < 0:
            raise ConfigError(f"buckets is {self.buckets}; it must be at least 0.")


@dataclass(frozen=True)
class SidReportResult:
    """What was written.

    Attributes:
        html: The page.
        markdown: The same content as Markdown, without plots.
        diagnostics: Display name to the unrounded measures (`minionerec.sid.diagnostics.Diagnostics` as objects).
        up_to_date: Whether an earlier page from the same inputs was kept.
    """

    html: Path
    markdown: Path
    diagnostics: Mapping[str, Any]
    up_to_date: bool


@dataclass(frozen=True)
class _Judged:
    """One table, what it was made by, and its measures."""

    table: SidTable
    report: Mapping[str, Any]
    measures: Diagnostics


def _judge(config: SidReportConfig, corpus: Corpus, counts: dict[str, Any]) -> dict[str, _Judged]:
    item_ids = corpus.items["item_id"].astype(str).tolist()
    rows = corpus.rows("train")
    evidence = gather_evidence(
        make_vectors(corpus, config, counts),
        corpus.items["title"].fillna("").astype(str).tolist(),
        rows["user"].tolist(),
        rows["history"].tolist(),
        rows["target"].to_numpy(),
    )
    judged = {}
    for name, path in split_named(config.tables):
        table, report = SidTable.load_index(path, item_ids), read_json(Path(path) / REPORT_FILE)
        codebooks = Quantiser.load(path).codebooks if (Path(path) / CODEBOOKS_FILE).is_file() else None
        measures = diagnose(table.codes, evidence, codebooks)
        errors = [level["error"] for level in report["levels"]]
        levels = [replace(use, error=error) for use, error in zip(measures.levels, errors, strict=True)]
        judged[name] = _Judged(table, report, replace(measures, levels=levels))
    return judged


def _number(value: float | None, digits: int = 3) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f} %"


def _overview(judged: Mapping[str, _Judged]) -> Section:
    tiles, rows = [], []
    for name, entry in judged.items():
        measures, counts = entry.measures, entry.measures.collisions
        tiles.append((name, f"{measures.bits_per_item:.2f}", "bits to name the next item"))
        rows.append(
            [
                name,
                entry.report["method"],
                "/".join(str(use.used) for use in measures.levels),
                f"{counts.unique:,}",
                f"{counts.identified_items:,}",
                _number(measures.prefixes[0].variance_left),
                _percent(measures.prefixes[0].next_hits),
                _percent(measures.prefixes[-1].next_hits),
                f"{measures.bits_per_item:.3f}",
            ]
        )
    headers = [
        "Table", "Method", "Codes used", "Unique SIDs", "Items named alone", "Variance left by code 1",
        f"Next code 1 in {HITS}", f"Next SID in {HITS}", "Bits per item",
    ]  # fmt: skip
    first = next(iter(judged.values())).measures
    items = first.collisions.items
    text = (
        f"{items:,} items. Bits per item is what naming the next item of a training row takes, code by code, for a "
        f"table of counts that knows the last item of the history and has not seen the row's user: fewer is better. "
        f"Without any knowledge it takes log2 {items:,} = {np.log2(items):.2f} bits, with popularity alone "
        f"{first.popular_bits:.2f} ({next(iter(judged))})."
    )
    return Section("In short", [Tiles(tiles), Paragraph(text), Table(headers, rows, text_columns=2)])


def _levels_section(judged: Mapping[str, _Judged]) -> Section:
    rows = []
    for name, entry in judged.items():
        for use in entry.measures.levels:
            rows.append(
                [
                    name, use.level, MISSING if use.size is None else str(use.size), str(use.used),
                    MISSING if use.dead is None else str(use.dead), f"{use.perplexity:.1f}", f"{use.entropy_bits:.2f}",
                    f"{use.gini:.3f}", f"{use.largest:,}", _percent(use.error),
                ]
            )  # fmt: skip
    headers = ["Table", "Level", "Codes", "Used", "Dead", "Perplexity", "Entropy, bits", "Gini", "Largest", "Error"]
    note = (
        "Error is the share of the variance of what the codes were made from (item vectors, or an autoencoder's latent "
        "vectors) that the levels up to this one leave. Codes, dead codes and error are known only where the codebooks "
        "are; without them, Gini is over the used codes."
    )
    blocks: list[Block] = [Table(headers, rows, text_columns=2), Paragraph(note)]
    if plots.available():
        depth = max(len(entry.measures.levels) for entry in judged.values())
        levels = [
            {name: entry.measures.levels[level].use for name, entry in judged.items()
             if level < len(entry.measures.levels)}
            for level in range(depth)
        ]  # fmt: skip
        blocks.append(Figure(plots.use_curves(levels), "Items per used code, codes sorted by use; logarithmic scale."))
    return Section("Use of each level", blocks)


def _collisions_section(judged: Mapping[str, _Judged]) -> Section:
    rows = []
    for name, entry in judged.items():
        made = entry.report["collisions"]
        for when in ("before", "after"):
            counts = made[when]
            first = when == "before"
            rows.append(
                [
                    name, when, f"{counts['unique']:,}", f"{counts['items'] - counts['sharing_items']:,}",
                    _percent(counts["sharing_rate"]), _percent(counts["surplus_rate"]), f"{counts['largest_bucket']:,}",
                    "" if first else made["method"], "" if first else f"{made['moved']:,}",
                    "" if first else _number(made["distance_paid"]),
                ]
            )  # fmt: skip
    headers = [
        "Table", "When", "Unique SIDs", "Items named alone", "Sharing rate", "Surplus rate", "Largest bucket",
        "Method", "SIDs changed", "Distance paid",
    ]  # fmt: skip
    note = (
        'Two readings of "collision rate": the sharing rate is the share of items that share their SID with another, '
        "the surplus rate (items - unique SIDs) / items. The distance paid is the sum over moved items of the squared "
        "distance to their codes, after less before."
    )
    return Section("Collisions", [Table(headers, rows, text_columns=2), Paragraph(note)])


def _prefixes_section(judged: Mapping[str, _Judged]) -> Section:
    rows = []
    for name, entry in judged.items():
        for measures in entry.measures.prefixes:
            rows.append(
                [
                    name, str(measures.length), f"{measures.prefixes:,}", _percent(measures.grouped_items),
                    _percent(measures.variance_left), _number(measures.word_purity), _number(measures.buyer_purity, 4),
                    _percent(measures.next_hits), _percent(measures.popular_hits),
                ]
            )  # fmt: skip
    headers = [
        "Table", "Length", "Prefixes", "Items with neighbours", "Variance left", "Word purity", "Buyer purity",
        f"Next prefix in {HITS}", "By popularity",
    ]  # fmt: skip
    chance = next(iter(judged.values())).measures
    note = (
        "Purity is the mean cosine of an item's words (TF-IDF of titles) or buyers (users of the training rows) with "
        f"those of the other items of its prefix; two random items have {chance.word_chance:.3f} and "
        f"{chance.buyer_chance:.4f}. Variance left is that of the item vectors within groups of equal prefix, the same "
        f"vectors for all tables. The next prefix counts as found if it is among the {HITS} likeliest after the prefix "
        "of the history's last item, by counts of other users' rows; few prefixes make that easy, so compare it with "
        "the column beside it."
    )
    blocks: list[Block] = [Table(headers, rows), Paragraph(note)]
    if plots.available():
        panels = {
            title: {name: [getattr(measures, key) for measures in entry.measures.prefixes]
                    for name, entry in judged.items()}
            for title, key in (("word purity", "word_purity"), ("buyer purity", "buyer_purity"),
                               (f"next prefix in {HITS}", "next_hits"))
        }  # fmt: skip
        blocks.append(Figure(plots.prefix_lines(panels), "What a prefix says, by its length."))
    return Section("What a prefix says", blocks)


def _buckets_section(judged: Mapping[str, _Judged], titles: Sequence[str], config: SidReportConfig) -> Section:
    blocks: list[Block] = []
    rng = np.random.default_rng(config.seed)
    for name, entry in judged.items():
        length = max(1, entry.table.codes.shape[1] - 1) if entry.table.codes.shape[1] <= 3 else 2
        groups = prefix_numbers(entry.table.codes)[length - 1]
        sizes = np.bincount(groups)
        order = np.argsort(-sizes, kind="stable")
        several = order[sizes[order] > 1]
        chosen = several[:1].tolist()  # the largest, and others at random
        others = several[1:]
        chosen += np.sort(rng.choice(others, min(max(config.buckets - 1, 0), len(others)), replace=False)).tolist()
        for group in chosen[: config.buckets]:
            members = np.flatnonzero(groups == group)
            prefix = "".join(entry.table.token_tuples[members[0]][:length])
            shown = [f"{entry.table.sids[item]}  {_short(titles[item])}" for item in members[:_TITLES_SHOWN].tolist()]
            left = [f"... and {len(members) - len(shown):,} more"] if len(members) > len(shown) else []
            blocks.append(Details(f"{name}: {prefix}, {len(members):,} items", "\n".join([*shown, *left])))
    note = "Of each table the largest group of items that share a prefix, and some others chosen at random."
    return Section("Example buckets", [Paragraph(note), *blocks])


def _short(title: str) -> str:
    title = " ".join(unescape(title).split())
    return title if len(title) <= _TITLE_LENGTH else f"{title[: _TITLE_LENGTH - 1]}…"


def run_sid_report(config: SidReportConfig) -> SidReportResult:
    """Write the page about one or more tables of semantic IDs of one corpus.

    Writes an artefact of kind "sid_report": `sid_report.html` (loads nothing), `sid_report.md` and `diagnostics.json`
    (unrounded). Equal inputs give equal bytes.

    Raises:
        ArtefactError: If an input is missing, or the output is one of them.
        DataError: If a table lacks an item, or nothing can be measured.
        ConfigError: If the encoder is unknown.
    """
    inputs: dict[str, str | Path] = {"corpus": config.corpus, **encoder_inputs(config.encoder)}
    read_manifest(config.corpus, "corpus")
    for name, path in split_named(config.tables):
        read_manifest(path, "sids")
        inputs[f"sids {name}"] = path
    output = Path(config.output)
    if any(output.resolve() == Path(path).resolve() for path in inputs.values()):
        raise ArtefactError(f"{output}: is also an input of this stage. Choose another output.")
    resolved = {**vars(config), "plots": plots.available()}
    current = is_current(output, "sid_report", resolved, inputs)
    if current:
        logger.info("%s is up to date.", output)
    else:
        corpus = Corpus.load(config.corpus)
        counts: dict[str, Any] = {}
        judged = _judge(config, corpus, counts)
        sections = [
            _overview(judged),
            _levels_section(judged),
            _collisions_section(judged),
            _prefixes_section(judged),
            _buckets_section(judged, corpus.items["title"].fillna("").astype(str).tolist(), config),
        ]
        lead = f"{', '.join(judged)}: semantic IDs of {corpus.n_items:,} items ({config.corpus}), before any training."
        measures = {name: to_plain(asdict(entry.measures)) for name, entry in judged.items()}
        with write_artefact(
            output, "sid_report", config=resolved, inputs=inputs, seed=config.seed, counts=counts
        ) as place:
            (place / HTML_FILE).write_text(render_html(config.title, lead, sections), encoding="utf-8")
            (place / MARKDOWN_FILE).write_text(render_markdown(config.title, lead, sections), encoding="utf-8")
            (place / JSON_FILE).write_text(json.dumps(measures, indent=1) + "\n", encoding="utf-8")
    return SidReportResult(output / HTML_FILE, output / MARKDOWN_FILE, read_json(output / JSON_FILE), current)
