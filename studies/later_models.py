"""Models for the rows whose target comes on a later day than the history, and which training rows are such.

python studies/later_models.py --seeds 42 43 44                    # train; scores of validation and test rows
python studies/later_rows.py table --later runs/industrial/later   # measure on validation

In a published split by time the training rows have no times, but their order tells: rows are sorted by time, and a
user's rows of one day stand one behind another. `days_by_order` reads that; `later_rows.py audit` checks it against
the times of validation and test rows.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from minionerec.cli.plan import config_values
from minionerec.core.commands import run_command
from minionerec.core.settings import parse_settings
from minionerec.data.corpus import Corpus
from minionerec.data.windows import padded_windows, recency_of
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.sid.embed.texts import item_texts, tfidf_svd
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.build import new_bundle
from minionerec.training.config import CatalogueTrainConfig

CONFIG = "industrial#catalogue"
SAME, LATER, FIRST = 0, 1, 2
RECENCY, RIDGE = 3.0, 300.0
WEIGHT = {SAME: 0.0, LATER: 1.0, FIRST: 0.5}
"""How much the loss of a training target counts, by the day that it came on."""


def days_by_order(users: Sequence[str]) -> np.ndarray:
    """What the order of rows says of each: int64 (R,).

    `SAME` where the row right before is the same user's, `LATER` where an earlier row is, `FIRST` where none is, so
    that nothing is known.

    Example:
        >>> days_by_order(["a", "a", "b", "a", "b"]).tolist()
        [2, 0, 2, 1, 1]
    """
    newest: dict[str, int] = {}
    kinds = np.full(len(users), FIRST)
    for row, user in enumerate(users):
        if user in newest:
            kinds[row] = SAME if newest[user] == row - 1 else LATER
        newest[user] = row
    return kinds


@dataclass(frozen=True)
class SidRows:
    """The rows of a split over SID numbers.

    Attributes:
        histories: For each of R rows, int64, oldest first.
        targets: int64 (R,).
        users: The user of each row.
    """

    histories: list[np.ndarray]
    targets: np.ndarray
    users: list[str]

    @classmethod
    def of(cls, corpus: Corpus, table: SidTable, split: str) -> "SidRows":
        """The rows of a split of a corpus."""
        rows, number = corpus.rows(split), table.sid_numbers
        histories = [number[np.asarray(history, dtype=np.int64)] for history in rows.histories]
        return cls(histories, number[rows.targets], rows.users.tolist())

    def padded(self, width: int) -> torch.Tensor:
        """The newest items, numbered from 1 and padded with 0 on the right: int64 (R, width)."""
        found = np.zeros((len(self.histories), width), dtype=np.int64)
        for row, history in enumerate(self.histories):
            found[row, : min(width, len(history))] = history[-width:] + 1
        return torch.from_numpy(found)

    def held(self, size: int) -> np.ndarray:
        """Which SIDs each history holds: float32 (R, N), 0 or 1."""
        found = np.zeros((len(self.histories), size), dtype=np.float32)
        for row, history in enumerate(self.histories):
            found[row, history] = 1
        return found


def later_popularity(train: SidRows, size: int) -> np.ndarray:
    """How often each SID is a target of a later day in training, newer rows counting more: float64 (N,)."""
    count = len(train.targets)
    age = np.arange(count)[::-1] / count
    return np.bincount(train.targets, (days_by_order(train.users) == LATER) * np.exp(-RECENCY * age), size)


def linear_items(train: SidRows, size: int) -> np.ndarray:
    """Item-to-item weights in closed form (EASE; Steck, 2019): float32 (N, N).

    The least squares of users' sets of training items on themselves, an item's weight to itself being 0. No order and
    no repeats are in it.
    """
    number = {user: place for place, user in enumerate(dict.fromkeys(train.users))}
    sets = np.zeros((len(number), size), dtype=np.float32)
    for user, history, target in zip(train.users, train.histories, train.targets, strict=True):
        sets[number[user], history] = 1
        sets[number[user], target] = 1
    inverse = np.linalg.inv(sets.T @ sets + RIDGE * np.eye(size, dtype=np.float32))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weights.astype(np.float32)


def text_likeness(corpus: Corpus, table: SidTable) -> np.ndarray:
    """Cosine of the TF-IDF vectors of SIDs: float32 (N, N)."""
    texts = item_texts(corpus)
    vectors = tfidf_svd(texts, 128, 42, texts)
    sums = np.zeros((table.n_unique, vectors.shape[1]))
    np.add.at(sums, table.sid_numbers, vectors)
    sums /= np.linalg.norm(sums, axis=1, keepdims=True) + 1e-9
    return (sums @ sums.T).astype(np.float32)


def baselines(corpus: Corpus, table: SidTable, rows: SidRows) -> dict[str, np.ndarray]:
    """Log-scores of all SIDs by what needs no gradient: name to float32 (R, N)."""
    train, size = SidRows.of(corpus, table, "train"), table.n_unique
    held = rows.held(size)
    lengths = held.sum(1, keepdims=True)
    newest = np.bincount(train.targets[-(len(train.targets) // 10) :], minlength=size)
    popular = np.log(later_popularity(train, size) + 0.2)
    shape = (len(rows.targets), size)
    likely = np.log(np.maximum(held @ linear_items(train, size), 0) + 0.01)
    return {
        "popularity": np.broadcast_to(np.bincount(train.targets, minlength=size), shape),
        "popularity, newest tenth": np.broadcast_to(newest, shape),
        "popularity, later days": np.broadcast_to(popular, shape).astype(np.float32),
        "linear": likely,
        "linear and popularity": (likely + 0.5 * popular).astype(np.float32),
        "text": held @ text_likeness(corpus, table) / np.maximum(lengths, 1),
    }


def weighed_windows(corpus: Corpus, table: SidTable, recency: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training windows with the weight of each target by its day and age: `histories`, `labels`, `weights` (W, T)."""
    (whole,) = corpus.windows("train")
    windows, number = padded_windows(whole, corpus.max_history, "right"), np.append(0, table.sid_numbers + 1)
    kinds = days_by_order(corpus.rows("train").users.tolist())
    by_kind = np.array([WEIGHT[kind] for kind in (SAME, LATER, FIRST)])
    asked, ages = windows.rows >= 0, recency_of(corpus.split, len(corpus.train), recency)
    weights = np.where(asked, ages(windows.rows) * by_kind[kinds[windows.rows]], 0).astype(np.float32)
    labels = np.where(asked, number[windows.targets], -100)
    return number[windows.histories], labels, weights / weights[asked].mean()


@torch.inference_mode()
def log_probs(model: CatalogueModel, histories: torch.Tensor) -> np.ndarray:
    """Log-probabilities of all SIDs behind each history: float32 (R, N)."""
    training = model.training
    model.eval()
    found = [model.leaf_log_probs(histories[start : start + 256]) for start in range(0, len(histories), 256)]
    model.train(training)
    return torch.cat(found).numpy()


def batch_loss(model: CatalogueModel, histories: Any, labels: Any, weights: Any) -> torch.Tensor:
    """Weighted negative log-likelihood of the targets that count, a target of a batch."""
    width = int((histories > 0).sum(1).max())
    histories, labels, weights = histories[:, :width], labels[:, :width], weights[:, :width]
    row, slot = ((weights > 0) & (labels > 0)).nonzero(as_tuple=True)
    places = model._places(histories, row, slot, labels)  # counts without what the window itself added
    wanted, scores = labels[row, slot] - 1, model._scores(histories, places)
    losses = torch.stack([nn.functional.cross_entropy(one.float(), wanted, reduction="none") for one in scores])
    return (losses.mean(0) @ weights[row, slot]) / max(1, int((labels > 0).sum()))


def train_later(corpus: Corpus, table: SidTable, later: np.ndarray, seed: int, place: Path) -> None:
    """Train a catalogue model for targets of later days; keep the epoch that is likeliest on such validation rows.

    One tower; counts in both directions alike and of slower decay; the rest is the recipe of the catalogue model. The
    scores of the chosen epoch are written as `{split}.npy`, float32 (R, N).

    Args:
        corpus: The corpus.
        table: Its SIDs.
        later: bool (R,), validation rows of a later day.
        seed: Seed of weights, dropout and the order of windows.
        place: Folder of the scores.
    """
    changed = ["--towers", "1", "--reverse", "1.0", "--decay", "0.8", "--seed", str(seed)]
    config = parse_settings(CatalogueTrainConfig, ["--config", CONFIG, *changed], read=config_values)
    arrays = weighed_windows(corpus, table, config.recency)
    histories, labels, weights = map(torch.from_numpy, arrays)
    bundle = new_bundle(config, corpus, table, dict(zip(("histories", "labels", "weights"), arrays, strict=True)))
    model: Any = bundle.model
    model.set_dropout(config.dropout)
    grown = [[p for p in model.parameters() if (p.ndim >= 2) == matrix] for matrix in (True, False)]
    groups = [{"params": grown[0], "weight_decay": config.weight_decay}, {"params": grown[1], "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=config.learning_rate)
    steps = -(-len(histories) // config.batch_size) * int(config.epochs)

    def factor(step: int) -> float:
        rest = max(0, step - config.warmup) / max(1, steps - config.warmup)
        return min(1.0, (step + 1) / config.warmup) * (1 + float(np.cos(np.pi * rest))) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
    asked = {split: SidRows.of(corpus, table, split) for split in ("valid", "test")}
    best = -np.inf
    rng = np.random.default_rng(seed)
    model.train()
    for epoch in range(int(config.epochs)):
        for part in np.array_split(rng.permutation(len(histories)), steps // int(config.epochs)):
            optimiser.zero_grad()
            batch_loss(model, histories[part], labels[part], weights[part]).backward()
            optimiser.step()
            schedule.step()
        found = log_probs(model, asked["valid"].padded(corpus.max_history))
        likelihood = float(found[np.arange(len(found)), asked["valid"].targets][later].mean())
        sys.stdout.write(f"seed {seed}, epoch {epoch + 1}: log-likelihood of later validation rows {likelihood:.4f}\n")
        if likelihood > best:
            best = likelihood
            place.mkdir(parents=True, exist_ok=True)
            np.save(place / "valid.npy", found)
            np.save(place / "test.npy", log_probs(model, asked["test"].padded(corpus.max_history)))
    (place / "done").touch()


def main() -> None:
    """Train what is missing."""
    from later_rows import CORPUS, SIDS, TIMES, later_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default=CORPUS)
    parser.add_argument("--sids", default=SIDS)
    parser.add_argument("--times", default=TIMES, help="csv of the times of validation and test rows")
    parser.add_argument("--output", default="runs/industrial/later", help="a folder for each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus = Corpus.load(args.corpus)
    table = SidTable.load_index(args.sids, corpus.items["item_id"].tolist())
    for seed in args.seeds:
        place = Path(args.output) / f"later-{seed}"
        if not (place / "done").is_file():
            train_later(corpus, table, later_of(corpus, "valid", args.times), seed, place)


if __name__ == "__main__":
    run_command(main)
