"""Predictions with the rates of the published log, made by hand, and its tables.

Every row has the same target, item 0 with codes (0, 0, 0). Four more items agree with it at some levels, the others at
none. Bin by bin of the cut-offs, rows are given the agreeing items that the rates of that bin ask for.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from minionerec.core.artefacts import write_artefact
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import Predictions
from minionerec.reports.reference import load_reference
from minionerec.sid.table import SidTable

KS = (1, 3, 5, 10, 20, 50)
ROWS = {"industrial": 4533, "office": 4866}
AGREEING = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 0, 3], [1, 1, 0]]
OTHERS = 50
GOLDEN = Path(__file__).with_name("published_log.txt")


def count(rate, rows):
    """How many of the rows a rate of four digits means."""
    found = round(rate * rows)
    assert round(found / rows, 4) == rate
    return found


def lists_like(row, rows):
    """Lists of item numbers, int (rows, 50), with the metrics and rates by level of a published row."""
    lists = np.tile(np.arange(len(AGREEING), len(AGREEING) + OTHERS), (rows, 1))
    has = {name: np.zeros(rows, dtype=bool) for name in ("1", "12", "123", "2", "3")}
    gained, before = 0.0, 0
    for k in KS:
        free = np.ones((rows, k - before), dtype=bool)
        rates = {"1": row.cumulative[k][0], "12": row.cumulative[k][1], "123": row.cumulative[k][2]}
        rates |= {"2": row.independent[k][1], "3": row.independent[k][2]}
        left = {name: count(rate, rows) - int(has[name].sum()) for name, rate in rates.items()}

        def put(item, new, wanted, prefer, spots=None, free=free, left=left, before=before):
            """Give an item to rows that lack the first of `new`, to those first that have what `prefer` names."""
            open_rows = np.flatnonzero(~has[new[0]] & free.any(axis=1))
            liked = np.sum([has[name][open_rows] for name in prefer], axis=0) + np.zeros(len(open_rows))
            chosen = open_rows[np.argsort(-liked, kind="stable")]
            assert 0 <= wanted <= len(chosen)
            for number, position in enumerate(chosen[:wanted]):
                index = int(np.argmax(free[position])) if spots is None else spots[number]
                free[position, index] = False
                lists[position, before + index] = item
                for name in new:
                    left[name] -= not has[name][position]
                    has[name][position] = True

        exact, first, last = left["123"], 1 / np.log2(before + 2), 1 / np.log2(k + 1)
        missing = row.metrics[f"NDCG@{k}"] * rows - gained - exact * last
        early = 0 if k == before + 1 else int(np.clip(round(missing / (first - last)), 0, exact))
        gained += early * first + (exact - early) * last
        put(0, ("123", "12", "1", "2", "3"), exact, ("12", "1", "2", "3"), [0] * early + [k - before - 1] * exact)
        put(1, ("12", "1", "2"), left["12"], ("1", "2"))
        put(2, ("1",), left["1"], ())
        put(3, ("2",), left["2"], ())
        put(4, ("3",), left["3"], ())
        assert not any(left.values())
        before = k
    return lists


def write_published(folder, name):
    """A corpus, SIDs and predictions of both stages with the published rates of a data set.

    Returns:
        The entry's settings.
    """
    n_items, n_rows = len(AGREEING) + OTHERS, ROWS[name]
    ids = [f"i{number}" for number in range(n_items)]
    items = pd.DataFrame({"item_id": ids, "title": [f"thing {item}" for item in ids], "description": [""] * n_items})

    def rows(n):
        return SplitExamples.of([f"u{row}" for row in range(n)], [[5]] * n, [0] * n)

    split = "published, global time 8:1:1"
    Corpus(items, rows(8), rows(4), rows(n_rows), split, 10).save(folder / f"{name}_corpus", config={}, inputs={})
    codes = np.array([*AGREEING, *([2 + n, 2 + n, 4 + n] for n in range(OTHERS))])
    table = SidTable(codes, ids)
    with write_artefact(folder / f"{name}_sids", "sids", config={"method": "published"}) as sids_folder:
        table.save_index(sids_folder / "index.json")
    stages = {}
    for row in load_reference(name).rows[:2]:
        lists = lists_like(row, n_rows)
        made = Predictions(
            [f"u{number}" for number in range(n_rows)],
            np.zeros(n_rows, dtype=np.int32),
            [table.sids[0]] * n_rows,
            lists.tolist(),
            [[table.sids[item] for item in line] for line in lists.tolist()],
            [[-float(position) for position in range(50)]] * n_rows,
        )
        stages[row.name] = str(folder / f"{name}_{row.name.split()[0].lower()}")
        made.save(stages[row.name], config={"beams": 50}, inputs={}, counts={"split": "test", "beams": 50})
    corpus, sids = str(folder / f"{name}_corpus"), str(folder / f"{name}_sids")
    return {"corpus": corpus, "sids": sids, "stages": stages, "reference": name}
