"""From raw reviews to a corpus: the stage against one `json.loads` a line and a pandas loop over users, same result.

python benchmarks/prepare_data.py                          # a million generated reviews, 125,000 users, 25,000 items
python benchmarks/prepare_data.py --reviews 50000 --json

Both read the same gzip files in the form of the Amazon reviews 2018, leave out items without a title, take the 5-core,
make rows with histories of at most ten, split them by time and write parquet files, which are compared row for row.
`ratio` is the loop's wall time by the stage's, each the best of `--repeats` runs in a process of its own, imports not
counted. `--no-loop` leaves the loop out, to measure the memory of larger files.
"""

import argparse
import gzip
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

CORE, MAX_HISTORY = 5, 10


def generate(folder: Path, n_reviews: int, seed: int) -> tuple[Path, Path]:
    """Write reviews of about 500 bytes each, in no order of time, and the metadata of their items."""
    import numpy as np

    rng = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(5_000)]
    chances = 1 / np.arange(1, 5_001)
    pool = " ".join(np.array(words)[rng.choice(5_000, 1_000_000, p=chances / chances.sum())])
    reviews, metadata = folder / "reviews_5.json.gz", folder / "meta.json.gz"
    n_users, n_items = max(n_reviews // 8, 10), max(n_reviews // 40, 10)
    with gzip.open(reviews, "wt", compresslevel=6) as file:
        for start in range(0, n_reviews, 100_000):
            n = min(100_000, n_reviews - start)
            users, items = rng.integers(0, n_users, n), (n_items * rng.random(n) ** 2).astype(int)
            days, begins = rng.integers(0, 2_500, n), rng.integers(0, len(pool) - 3_000, n)
            lengths = np.minimum(rng.geometric(1 / 260, n), 3_000)
            for row in range(n):
                review = {
                    "overall": 5.0,
                    "verified": True,
                    "reviewTime": "05 3, 2017",
                    "reviewerID": f"A{users[row] * 7_919 % 99_999_989:013d}",
                    "asin": f"B{items[row]:09d}",
                    "style": {"Size:": " Large"},
                    "reviewerName": pool[begins[row] : begins[row] + 12],
                    "reviewText": pool[begins[row] : begins[row] + lengths[row]],
                    "summary": pool[begins[row] + 20 : begins[row] + 45],
                    "unixReviewTime": int(1_300_000_000 + days[row] * 86_400),
                }
                file.write(json.dumps(review) + "\n")
    with gzip.open(metadata, "wt", compresslevel=6) as file:
        for item in range(n_items):
            begin = int(rng.integers(0, len(pool) - 3_000))
            title = "" if item % 50 == 7 else f"{pool[begin : begin + 40]} &amp; {item}"
            record = {
                "category": ["Shop", "Things", pool[begin : begin + 20]],
                "description": [pool[begin : begin + 700]],
                "title": title,
                "also_buy": [f"B{other:09d}" for other in rng.integers(0, n_items, 20)],
                "brand": pool[begin : begin + 8],
                "asin": f"B{item:09d}",
            }
            file.write(json.dumps(record) + "\n")
    return reviews, metadata


def ours(reviews: Path, metadata: Path, output: Path) -> None:
    """The stage itself."""
    from minionerec.pipeline.config.data import PrepareConfig
    from minionerec.pipeline.prepare_data import run_prepare

    run_prepare(
        PrepareConfig(
            source="amazon2018",
            interactions=str(reviews),
            items=str(metadata),
            core=CORE,
            max_history=MAX_HISTORY,
            quirks=["published_order"],  # the order in which a loop over users makes its rows
            output=str(output),
        )
    )


def loop(reviews: Path, metadata: Path, output: Path) -> None:
    """One line after the other, one user after the other."""
    import pandas as pd

    from minionerec.data.sources.amazon import clean_text, clean_title

    texts = {}
    with gzip.open(metadata, "rt") as file:
        for line in file:
            record = json.loads(line)
            if title := clean_title(record.get("title") or ""):
                texts[record["asin"]] = (title, clean_text(" ".join(record.get("description") or [])))
    records = []
    with gzip.open(reviews, "rt") as file:
        for line in file:
            review = json.loads(line)
            if review["asin"] in texts:
                records.append({"user": review["reviewerID"], "item": review["asin"], "time": review["unixReviewTime"]})
    table = pd.DataFrame(records)
    while True:
        users, items = table["user"].value_counts(), table["item"].value_counts()
        kept = table["user"].isin(users.index[users >= CORE]) & table["item"].isin(items.index[items >= CORE])
        if kept.all():
            break
        table = table[kept]
    rows, numbers = [], {}
    for user, group in table.groupby("user", sort=False):
        group = group.sort_values("time", kind="stable")
        bought = [numbers.setdefault(item, len(numbers)) for item in group["item"]]
        times = group["time"].tolist()
        for position in range(1, len(bought)):
            history = bought[max(0, position - MAX_HISTORY) : position]
            rows.append({"user": user, "history": history, "target": bought[position], "time": times[position]})
    table = pd.DataFrame(rows).sort_values("time", kind="stable").drop(columns="time")
    borders = [0, len(table) * 8 // 10, len(table) * 9 // 10, len(table)]
    output.mkdir(parents=True)
    for position, split in enumerate(("train", "valid", "test")):
        table[borders[position] : borders[position + 1]].to_parquet(output / f"{split}.parquet", index=False)
    titles, descriptions = zip(*(texts[item] for item in numbers), strict=True)
    items = {"item_id": list(numbers), "title": titles, "description": descriptions}
    pd.DataFrame(items).to_parquet(output / "items.parquet", index=False)


def timed(work: str, reviews: Path, metadata: Path, output: Path) -> tuple[float, float]:
    """Seconds of one run and the process's largest resident size in GiB; libraries are imported before."""
    import duckdb  # noqa: F401
    import pandas  # noqa: F401

    start = time.perf_counter()
    {"ours": ours, "loop": loop}[work](reviews, metadata, output)
    return time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def check_equal(one: Path, other: Path) -> int:
    """Compare a corpus with the loop's files row for row and return the number of rows; an error names what differs."""
    import numpy as np
    import pyarrow.parquet as pq

    from minionerec.data.corpus import Corpus

    corpus, rows = Corpus.load(one), 0
    for name in ("train", "valid", "test", "items"):
        table = pq.read_table(other / f"{name}.parquet").combine_chunks()
        if name == "items":
            pairs = {column: (corpus.items[column].to_numpy(), table[column]) for column in table.column_names}
        else:
            mine, histories = corpus.splits()[name], table["history"].combine_chunks()
            pairs = {"user": (mine.users, table["user"]), "target": (mine.targets, table["target"])}
            pairs["lengths of history"] = (mine.lengths, histories.value_lengths())
            pairs["history"] = (mine.flat_histories()[0], histories.flatten())
            rows += len(mine)
        for column, (first, second) in pairs.items():
            if not np.array_equal(first, second.to_numpy(zero_copy_only=False)):
                raise SystemExit(f"{name}: the columns {column!r} differ")
    return rows


def main() -> None:
    """Generate, measure both, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=int, default=1_000_000, help="lines of the review file")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; the best counts")
    parser.add_argument("--loop", action=argparse.BooleanOptionalAction, default=True, help="time the loop too")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated reviews")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()

    works = ["ours", "loop"] if args.loop else ["ours"]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        reviews, metadata = generate(folder, args.reviews, args.seed)
        figures = {"reviews": args.reviews, "gzip_mib": round(reviews.stat().st_size / 2**20, 1)}
        best: dict[str, tuple[float, float]] = {}
        for repeat in range(args.repeats):
            for work in works:
                with multiprocessing.get_context("spawn").Pool(1) as pool:  # a process of its own, for its memory
                    run = pool.apply(timed, (work, reviews, metadata, folder / f"{work}{repeat}"))
                best[work] = min(best.get(work, run), run)
        for work in works:
            figures[f"{work}_s"], figures[f"{work}_peak_gib"] = (round(value, 2) for value in best[work])
        if args.loop:
            figures["rows_equal"] = check_equal(folder / "ours0", folder / "loop0")
            figures["ratio"] = round(best["loop"][0] / best["ours"][0], 2)
    if args.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<16} {value:,}")


if __name__ == "__main__":
    main()
