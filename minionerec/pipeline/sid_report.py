"""The stage `sid-report`: one page that compares tables of semantic IDs, before any recommender is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import read_json, read_manifest, to_plain, unchanged_input, write_json
from minionerec.data.corpus import Corpus
from minionerec.metrics.tables import MISSING
from minionerec.pipeline.config.reports import SidReportConfig
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import StageResult
from minionerec.reports import plots
from minionerec.reports.cells import number, percent, shown_title
from minionerec.reports.page import Block, Details, Figure, Section, Table, render_page
from minionerec.sid.embed.encoder import INTERACTIONS, VectorSource
from minionerec.sid.embed.vectors import make_vectors
from minionerec.sid.quantiser import CODEBOOKS_FILE, Quantiser
from minionerec.sid.report import HITS, Diagnostics, advice, diagnose, gather_evidence, prefix_numbers, read_sid_report
from minionerec.sid.table import SidTable

# Sections about tables of semantic IDs side by side.

BUCKETS = 4
"""Example buckets of a table."""
SEED = 42
"""Seed of TF-IDF's decomposition and of the choice of these buckets."""
_TITLES_SHOWN = 8
_FITTED = "Its vectors are made of the training interactions that bits and buyers are measured on, which favours it."


@dataclass(frozen=True)
class Judged:
    """A table of semantic IDs and its measures.

    Attributes:
        table: The table.
        report: `report.json` of its artefact.
        measures: Measures of the table.
        fitted: Whether its vectors are made of the interactions that it is measured on.
    """

    table: SidTable
    report: Mapping[str, Any]
    measures: Diagnostics
    fitted: bool = False

    @property
    def advice(self) -> str:
        """The advice of `minionerec.sid.report.advice`, and a note if the table is favoured."""
        text = advice(self.report, self.measures)
        return f"{text} {_FITTED}" if self.fitted else text


def _table(rows: Sequence[Mapping[str, str]], text_columns: int = 1) -> Table:
    """A table of rows by header."""
    return Table(list(rows[0]), [list(row.values()) for row in rows], text_columns=text_columns)


def overview(judged: Mapping[str, Judged]) -> Section:
    """The summary: codes, unique SIDs and bits per item, one row per table."""
    rows = []
    for name, entry in judged.items():
        measures, counts = entry.measures, entry.measures.collisions
        rows.append(
            {
                "Table": name,
                "Method": entry.report["method"],
                "Codes used": "/".join(str(use.used) for use in measures.levels),
                "Unique SIDs": f"{counts.unique:,}",
                "Items with unique SID": f"{counts.identified_items:,}",
                "Residual variance, code 1": number(measures.prefixes[0].variance_left),
                f"Next code 1 in {HITS}": percent(measures.prefixes[0].next_hits),
                f"Next SID in {HITS}": percent(measures.prefixes[-1].next_hits),
                "Bits per item": f"{measures.bits_per_item:.3f}",
            }
        )
    first = next(iter(judged.values())).measures
    items = first.collisions.items
    text = (
        f"{items:,} items. Bits per item is the code length of the next item of a training example, summed over codes, "
        f"by transition counts from the last item of the history, without the example's user: lower is better. "
        f"A uniform distribution takes log2 {items:,} = {np.log2(items):.2f} bits, popularity "
        f"{first.popular_bits:.2f} ({next(iter(judged))})."
    )
    verdicts = [f"{name}: {entry.advice}" for name, entry in judged.items()]
    return Section("Summary", [text, _table(rows, text_columns=2), *verdicts])


def levels(judged: Mapping[str, Judged]) -> Section:
    """The use of codes at each level."""
    rows = [
        {
            "Table": name,
            "Level": use.level,
            "Codes": MISSING if use.size is None else str(use.size),
            "Used": str(use.used),
            "Dead": MISSING if use.dead is None else str(use.dead),
            "Perplexity": f"{use.perplexity:.1f}",
            "Entropy, bits": f"{use.entropy_bits:.2f}",
            "Largest": f"{use.largest:,}",
            "Error": percent(use.error),
        }
        for name, entry in judged.items()
        for use in entry.measures.levels
    ]
    note = (
        "Error is the share of the variance of the quantised vectors (of items, or an autoencoder's latent ones) that "
        "the levels up to this one leave unexplained. Codes, dead codes and error need the codebooks."
    )
    blocks: list[Block] = [_table(rows, text_columns=2), note]
    if plots.available():
        by_name = {name: entry.measures.levels for name, entry in judged.items()}
        depth = max(map(len, by_name.values()))
        uses = [
            {name: used[level].use for name, used in by_name.items() if level < len(used)} for level in range(depth)
        ]
        blocks.append(Figure(plots.use_curves(uses), "Items per used code, codes sorted by use; logarithmic scale."))
    return Section("Use of each level", blocks)


def collisions(judged: Mapping[str, Judged]) -> Section:
    """The number of items that share an SID, before and after collision handling."""
    rows = []
    for name, entry in judged.items():
        resolution = entry.report["collisions"]
        for when in ("before", "after"):
            counts, is_first = resolution[when], when == "before"
            rows.append(
                {
                    "Table": name,
                    "When": when,
                    "Unique SIDs": f"{counts['unique']:,}",
                    "Items with unique SID": f"{counts['items'] - counts['sharing_items']:,}",
                    "Sharing rate": percent(counts["sharing_rate"]),
                    "Surplus rate": percent(counts["surplus_rate"]),
                    "Largest bucket": f"{counts['largest_bucket']:,}",
                    "Method": "" if is_first else resolution["method"],
                    "SIDs changed": "" if is_first else f"{resolution['moved']:,}",
                    "Added distance": "" if is_first else number(resolution["distance_paid"]),
                }
            )
    note = (
        'Two readings of "collision rate": the sharing rate is the share of items that share their SID with another, '
        "the surplus rate (items - unique SIDs) / items. The added distance is the sum over moved items of the squared "
        "distance to their codes, after minus before."
    )
    return Section("Collisions", [_table(rows, text_columns=2), note])


def prefixes(judged: Mapping[str, Judged]) -> Section:
    """Similarity of the items of a prefix, and predictability of the next prefix, by length."""
    rows = [
        {
            "Table": name,
            "Length": str(measures.length),
            "Prefixes": f"{measures.prefixes:,}",
            "Items sharing the prefix": percent(measures.grouped_items),
            "Residual variance": percent(measures.variance_left),
            "Word purity": number(measures.word_purity),
            "Buyer purity": number(measures.buyer_purity, 4),
            f"Next prefix in {HITS}": percent(measures.next_hits),
            "By popularity": percent(measures.popular_hits),
        }
        for name, entry in judged.items()
        for measures in entry.measures.prefixes
    ]
    chance = next(iter(judged.values())).measures
    note = (
        "Purity is the mean cosine of an item's words (TF-IDF of titles) or buyers (users in training examples) with "
        f"those of the other items of its prefix; two random items have {chance.word_chance:.3f} and "
        f"{chance.buyer_chance:.4f}. Residual variance is that of the item vectors within groups of equal prefix, with "
        f"the same vectors for all tables. The next prefix counts as found if it is among the {HITS} likeliest after "
        "the prefix of the history's last item, by counts over other users' examples; it is easier with few prefixes, "
        "so compare it with the next column."
    )
    return Section("Prefixes", [_table(rows), note])


def buckets(judged: Mapping[str, Judged], titles: Sequence[str], count: int, seed: int) -> Section:
    """Items that share a prefix: of each table the largest group, and others at random up to `count`."""
    blocks: list[Block] = []
    rng = np.random.default_rng(seed)
    for name, entry in judged.items():
        length = max(1, entry.table.codes.shape[1] - 1) if entry.table.codes.shape[1] <= 3 else 2
        groups = prefix_numbers(entry.table.codes)[length - 1]
        sizes = np.bincount(groups)
        order = np.argsort(-sizes, kind="stable")
        shared = order[sizes[order] > 1]
        drawn = rng.choice(shared[1:], min(max(count - 1, 0), len(shared[1:])), replace=False)
        selected = [*shared[:1].tolist(), *np.sort(drawn).tolist()]
        for group in selected[:count]:
            members = np.flatnonzero(groups == group)
            prefix = "".join(entry.table.token_tuples[members[0]][:length])
            shown = members[:_TITLES_SHOWN].tolist()
            lines = [f"{entry.table.sids[item]}  {shown_title(titles[item])}" for item in shown]
            if len(members) > len(lines):
                lines.append(f"... and {len(members) - len(lines):,} more")
            blocks.append(Details(f"{name}: {prefix}, {len(members):,} items", "\n".join(lines)))
    note = "Of each table the largest group of items that share a prefix, and others drawn at random."
    return Section("Example buckets", [note, *blocks])


TITLE = "Semantic IDs"
HTML_FILE, JSON_FILE = "sid_report.html", "diagnostics.json"


def run_sid_report(config: SidReportConfig) -> StageResult:
    """Write the page about one or more tables of semantic IDs of one corpus.

    Writes an artefact of kind "sid_report": `sid_report.html`, which loads nothing, and `diagnostics.json` (unrounded).
    Equal inputs give equal bytes.

    Raises:
        ArtefactError: If an input is missing, or the output is one of them.
        DataError: If a table lacks an item, or nothing can be measured.
        ConfigError: If the encoder is unknown.
    """
    stage = Stage(config)
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            corpus = Corpus.load(stage.config.corpus)
            counts: dict[str, Any] = {}
            judged = judge(stage.config.tables, corpus, make_vectors(corpus, VectorSource(seed=SEED), counts))
            titles = corpus.items["title"].fillna("").astype(str).tolist()
            parts = [
                overview(judged),
                levels(judged),
                collisions(judged),
                prefixes(judged),
                buckets(judged, titles, BUCKETS, SEED),
            ]
            names = ", ".join(judged)
            lead = f"{names}: semantic IDs of {corpus.n_items:,} items ({config.corpus}), before any training."
            measures = {
                name: to_plain(asdict(entry.measures)) | {"advice": entry.advice} for name, entry in judged.items()
            }
            with work.finish(seed=SEED, counts=counts) as folder:
                (folder / HTML_FILE).write_text(render_page(TITLE, lead, parts), encoding="utf-8")
                write_json(folder / JSON_FILE, measures)
    output = stage.output
    measures = read_json(output / JSON_FILE)
    bits = [f"{name}: {table['bits_per_item']:.3f} bits per item" for name, table in measures.items()]
    verdicts = [f"{name}: {table['advice']}" for name, table in measures.items()]
    lines = [*bits, *verdicts, f"Report: {output / HTML_FILE}"]
    return StageResult(output, lines, metrics=measures, up_to_date=up_to_date)


def judge(tables: Mapping[str, str], corpus: Corpus, vectors: np.ndarray) -> dict[str, Judged]:
    """Measure all tables on the same evidence: item vectors, titles and training examples.

    Args:
        tables: Display name to the directory of semantic IDs.
        corpus: The items and training examples.
        vectors: float32 (N, D), the vectors of the items.

    Returns:
        Display name to the table with its measures.
    """
    item_ids = corpus.items["item_id"].astype(str).tolist()
    examples = corpus.rows("train")
    evidence = gather_evidence(
        vectors,
        corpus.items["title"].fillna("").astype(str).tolist(),
        examples.users.tolist(),
        examples.histories.tolist(),
        examples.targets,
    )
    judged = {}
    for name, path in tables.items():
        folder = Path(path)
        table, report = SidTable.load_index(folder, item_ids), read_sid_report(folder)
        codebooks = Quantiser.load(folder).codebooks if (folder / CODEBOOKS_FILE).is_file() else None
        measures = diagnose(table.codes, evidence, codebooks)
        errors = [level["error"] for level in report["levels"]]
        with_errors = [replace(use, error=error) for use, error in zip(measures.levels, errors, strict=True)]
        judged[name] = Judged(table, report, replace(measures, levels=with_errors), _reads_interactions(folder))
    return judged


def _reads_interactions(folder: Path) -> bool:
    """Whether SIDs, or the vectors that they are made of, are made of interactions."""
    settings = read_manifest(folder).get("settings") or {}
    if settings.get("with_interactions") or settings.get("encoder") == INTERACTIONS:
        return True
    vectors = unchanged_input(folder, "vectors")
    return vectors is not None and _reads_interactions(vectors)
