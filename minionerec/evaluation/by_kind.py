"""The metrics of an evaluation by kind of row."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from minionerec.data.corpus import Corpus
from minionerec.data.kinds import read_kinds
from minionerec.data.stored import StoredCorpus
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import item_ranks, ranking_metrics, sid_ranks
from minionerec.metrics.slices import Part, format_parts, list_kinds, measure_kinds
from minionerec.rankers.lists import Rows


def measure_lists(
    lists: Mapping[str, Predictions],
    corpus: Corpus | StoredCorpus,
    split: str,
    times: Path | None,
    ks: Sequence[int],
    seed: int,
    resamples: int,
) -> list[Part]:
    """HR and NDCG of several recommenders' lists by kind of row, by SID where they have SIDs; intervals by user.

    Args:
        lists: Recommender to its lists for the rows of the split.
        corpus: Whose rows they are.
        split: Which.
        times: File of times, where the corpus has none of its own.
        ks: Cut-offs.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples.
    """
    values = {}
    for name, found in lists.items():
        ranks = sid_ranks(found) if any(found.target_sids) else item_ranks(found)
        per_row = ranking_metrics(ranks, ks)
        values[name] = {metric: of[None] for metric, of in per_row.items() if not metric.startswith("MRR")}
    rows = Rows.of(corpus, split)
    kinds = read_kinds(corpus, rows, split, times)
    return measure_kinds(list_kinds(kinds), values, seed, resamples, rows.users)


def format_measured(parts: Sequence[Part], names: Sequence[str], ks: Sequence[int]) -> str:
    """The table of NDCG by kind of row, at 10 or else the largest cut-off."""
    return format_parts(parts, f"NDCG@{10 if 10 in ks else max(ks)}", names)
