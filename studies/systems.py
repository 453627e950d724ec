"""Systems with several seeds each in one table: means, intervals, and differences paired over rows."""

from pathlib import Path

import numpy as np

from minionerec.data.corpus import Corpus
from minionerec.evaluation.config import EvalConfig
from minionerec.evaluation.stage import run_eval
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import item_ranks, ranking_metrics, sid_ranks
from minionerec.metrics.statistics import bootstrap_interval, paired_bootstrap
from minionerec.rankers.floors import FOLLOWED, make_floors
from minionerec.rankers.lists import Rows, rank_rows
from minionerec.sid.table import SidTable

CORPUS = "runs/industrial/corpus"
SIDS = "runs/industrial/sids_published"
METRICS = ("HR@10", "NDCG@10")


def evaluate(checkpoint: Path, split: str) -> Path:
    """Predictions of a checkpoint with fifty beams."""
    place = checkpoint.with_name(f"{checkpoint.name}_{split}")
    run_eval(
        EvalConfig(
            checkpoint=str(checkpoint), corpus=CORPUS, sids="", output=str(place), split=split, beams=50, batch_size=256
        )
    )
    return place


def what_followed(split: str, output: Path) -> Path:
    """Predictions of the floor "what followed"."""
    place, corpus = output / f"what_followed_{split}", Corpus.load(CORPUS)
    table = SidTable.load_index(SIDS, corpus.items["item_id"].tolist())
    found = rank_rows(make_floors(corpus, table)[FOLLOWED], Rows.of(corpus, split), 50, table=table)
    found.save(place, config={"split": split}, inputs={"corpus": CORPUS}, counts={"beams": 50})
    return place


def row_values(place: Path) -> dict[str, np.ndarray]:
    """HR@10 and NDCG@10 of each row, by SID and by item."""
    predictions = Predictions.load(place)
    found = {}
    for level, ranks in (("sid", sid_ranks(predictions)), ("item", item_ranks(predictions))):
        values = ranking_metrics(ranks, [10])
        found |= {f"{level} {name}": values[name] for name in METRICS}
    return found


def mean_values(places: list[Path]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Each row's values averaged over seeds, and the standard deviation of the seeds' means."""
    seeds = [row_values(place) for place in places]
    rows = {name: np.mean([found[name] for found in seeds], axis=0) for name in seeds[0]}
    spread = {
        name: float(np.std([found[name].mean() for found in seeds], ddof=1)) if len(seeds) > 1 else float("nan")
        for name in rows
    }
    return rows, spread


def table(systems: dict[str, list[Path]], first: str) -> str:
    """Means ± sd with intervals by SID and item, and paired differences from the first system."""
    found = {name: mean_values(places) for name, places in systems.items()}
    headers = [
        "",
        "seeds",
        "HR@10",
        "NDCG@10 [95 %]",
        "HR@10 by item",
        "NDCG@10 by item [95 %]",
        f"NDCG@10 less {first} [95 %]",
        "p",
    ]
    lines = [headers, ["---", *("--:" for _ in headers[1:])]]
    for name, (rows, spread) in found.items():
        cells = [name, str(len(systems[name]))]
        for metric in ("sid HR@10", "sid NDCG@10", "item HR@10", "item NDCG@10"):
            cell = f"{rows[metric].mean():.4f} ± {spread[metric]:.4f}".replace(" ± nan", "")
            if "NDCG" in metric:
                low, high = bootstrap_interval(rows[metric])
                cell += f" [{low:.4f}, {high:.4f}]"
            cells.append(cell)
        if name == first:
            cells += ["", ""]
        else:
            level = "item" if name.startswith("own_sids") else "sid"
            gap = paired_bootstrap(rows[f"{level} NDCG@10"], found[first][0][f"{level} NDCG@10"])
            note = " (by item)" if level == "item" else ""
            cells += [f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]{note}", f"{gap.p:.3f}"]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
