"""Item vectors by encoder, without training a recommender: neighbours of the newest item, and SIDs of these vectors.

minionerec prepare-data --config steam/language#corpus --output runs/steam/corpus
python benchmarks/item_vectors.py --corpus runs/steam/corpus                     # a Markdown table

Of each encoder, on validation examples: NDCG@10 of the items whose vectors have the largest cosine to the history's
newest item, on all examples, on those of a later session, and on those whose target is that of no training example;
and how often the target's first code is among the 10 likeliest after that of the newest item, by counts in training
examples, beside the 10 most frequent ones. Of its SIDs (residual k-means, 3 x 256 codes): distinct ones before
relocation, and how much more alike the buyers of two items are that share 1 or 2 codes than those of any two items.
The latter is measured on training examples, as by `minionerec sid-report`, which vectors of interactions are fitted to.
"""

import argparse

import numpy as np
from scipy.sparse import csr_array

from minionerec.data.corpus import Corpus
from minionerec.metrics.statistics import bootstrap_interval
from minionerec.metrics.tables import markdown_table
from minionerec.sid.collisions import resolve_collisions
from minionerec.sid.embed.encoder import VectorSource
from minionerec.sid.embed.texts import l2_normalise
from minionerec.sid.embed.vectors import make_vectors
from minionerec.sid.kmeans import fit_codebook_sizes, residual_kmeans
from minionerec.sid.report import gather_evidence, prefix_numbers, purity

HITS = 10
AT_ONCE = 1 << 10


def neighbour_gains(vectors, last, target):
    """NDCG@10 of each example: the target's rank by cosine to the last item, which is left out; ties share ranks."""
    vectors, gains = l2_normalise(vectors), []
    for start in range(0, len(last), AT_ONCE):
        old, new = last[start : start + AT_ONCE], target[start : start + AT_ONCE]
        scores, rows = vectors[old] @ vectors.T, np.arange(len(old))
        scores[rows, old] = -np.inf
        own = scores[rows, new][:, None]
        ranks = (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) - 1) / 2
        gains.append(np.where((ranks < HITS) & np.isfinite(own[:, 0]), 1 / np.log2(ranks + 2), 0.0))
    return np.concatenate(gains)


def first_code_hits(codes, train, valid):
    """Share of targets whose first code is among the 10 likeliest after the last item's, and 10 most frequent ones."""
    size, first = int(codes.max()) + 1, codes[:, 0]
    (last, target), (old, new) = ((first[items], first[others]) for items, others in (train, valid))
    after = csr_array((np.ones(len(last)), (last, target)), shape=(size, size)).toarray()
    frequency = np.bincount(target, minlength=size)
    after += 100 * frequency / frequency.sum()
    following = np.argsort(-after, axis=1, kind="stable")[:, :HITS]
    popular = np.argsort(-frequency, kind="stable")[:HITS]
    return float((following[old] == new[:, None]).any(axis=1).mean()), float(np.isin(new, popular).mean())


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True, help="a corpus (minionerec prepare-data)")
    parser.add_argument("--encoders", nargs="+", default=["tfidf", "wordllama", "interactions", "tfidf+", "wordllama+"])
    parser.add_argument("--dimensions", type=int, default=64, help="of TF-IDF and of interactions")
    parser.add_argument("--codes", type=int, default=256)
    parser.add_argument("--examples", type=int, default=10_000, help="validation examples, drawn by seed, at most")
    args = parser.parse_args()
    corpus = Corpus.load(args.corpus)
    train, valid = corpus.rows("train"), corpus.sample("valid", args.examples, 42)
    pairs = [(rows.items[rows.ends - 1], rows.targets) for rows in (train, valid)]
    slices = {
        "all": np.ones(len(valid), dtype=bool),
        "later": np.zeros(len(valid), bool) if valid.times is None else valid.times.later,
        "cold": corpus.popularity()[valid.targets] == 0,
    }
    titles, table = corpus.items["title"].fillna("").astype(str).tolist(), []
    for name in args.encoders:
        settings = VectorSource(
            encoder=name.removesuffix("+"), with_interactions=name.endswith("+"), dimensions=args.dimensions
        )
        vectors = make_vectors(corpus, settings, {})
        evidence = gather_evidence(vectors, titles, train.users.tolist(), train.histories.tolist(), train.targets)
        sizes = fit_codebook_sizes([args.codes] * 3, corpus.n_items)
        codes, books = residual_kmeans(vectors, sizes, 42, 25)
        distinct = len(np.unique(codes, axis=0))
        codes = resolve_collisions(codes, "relocate", vectors=vectors, codebooks=books)[0]
        gains = neighbour_gains(vectors, *pairs[1])
        chance = purity(np.zeros(len(codes), dtype=np.int64), evidence.buyers) or 1.0
        alike = [(purity(groups, evidence.buyers) or 0.0) / chance for groups in prefix_numbers(codes)[:2]]
        following, popular = first_code_hits(codes, *pairs)
        cells = []
        for chosen in slices.values():
            low, high = bootstrap_interval(gains[chosen], clusters=valid.users[chosen]) if chosen.any() else (0, 0)
            cells.append(f"{gains[chosen].mean():.4f} [{low:.4f}, {high:.4f}]" if chosen.any() else "-")
        texts = [f"{distinct:,}", *(f"{each:.1f}" for each in alike), f"{following:.1%} ({popular:.1%})"]
        table.append([name.replace("+", " + interactions"), *cells, *texts])
    counts = [f"{name} ({int(chosen.sum()):,})" for name, chosen in slices.items()]
    print(f"{corpus.n_items:,} items, {len(valid):,} validation examples\n")
    headers = ["encoder", *counts, "distinct", "buyers, 1 code", "2 codes", "first code in 10 (frequent)"]
    print(markdown_table(headers, table))


if __name__ == "__main__":
    main()
