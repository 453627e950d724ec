"""Items held out of Industrial before training: corpora, SIDs, checkpoints, and what they rank afterwards."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from minionerec.cli.plan import config_values
from minionerec.core.artefacts import is_artefact
from minionerec.core.settings import parse_settings
from minionerec.data.corpus import Corpus
from minionerec.data.kinds import row_kinds
from minionerec.data.rows import SplitRows
from minionerec.models.backbone.bundle import load_bundle
from minionerec.recommend.rankers.baselines import TRANSITIONS, make_baselines
from minionerec.recommend.rankers.language import LanguageRanker, Search
from minionerec.recommend.rankers.lists import RankedSplit
from minionerec.recommend.rankers.protocol import Allowed, Queries, Ranker
from minionerec.sid.build import run_build_sids
from minionerec.sid.config import SidConfig
from minionerec.sid.embed.texts import item_texts, tfidf_svd
from minionerec.sid.table import SidTable
from minionerec.training.catalogue import run_catalogue
from minionerec.training.config import CatalogueTrainConfig, ExtendConfig, SftConfig
from minionerec.training.extend import run_extend
from minionerec.training.sft import run_sft

CONFIGS = "industrial#"
EPOCHS = 1.5  # of the language model; the recipe has 4
K = 50
SEARCH = {"catalogue": Search("exact", batch_size=128), "language": Search("beam", batch_size=128)}


def without_items(rows: SplitRows, held_out: np.ndarray) -> SplitRows:
    """Rows of other targets, held-out items (bool (N,)) struck from their histories; those left with none go too."""
    histories = [history[~held_out[history]] for history in rows.histories]
    kept = ~held_out[rows.targets] & np.array([len(history) > 0 for history in histories])
    return SplitRows.of(rows.users.tolist(), histories, rows.targets, rows.times).take(kept)


def hold_out(corpus: Corpus, share: float, seed: int) -> tuple[Corpus, Corpus, np.ndarray]:
    """A corpus without some items, the one that has them afterwards, and which they are.

    Returns:
        Before: the other items, and the rows that they leave, of every split. After: all items; training rows as
        before, validation and test rows as they always were. And bool (N,), the items held out.
    """
    held_out = np.zeros(corpus.n_items, dtype=bool)
    chosen = np.random.default_rng(seed).permutation(corpus.n_items)[: round(share * corpus.n_items)]
    held_out[chosen] = True
    number = (np.cumsum(~held_out) - 1).astype(np.int32)
    split = f"{corpus.split}, {share:.0%} of the items held out"
    kept = {name: without_items(rows, held_out) for name, rows in corpus.splits().items()}
    before = replace(
        corpus,
        items=corpus.items[~held_out].reset_index(drop=True),
        split=split,
        counts={},
        **{name: rows.with_items(number) for name, rows in kept.items()},
    )
    return before, replace(corpus, train=kept["train"], split=split, counts={}), held_out


def prepare(source: Path, place: Path, share: float, seed: int) -> None:
    """Write both corpora, the SIDs of the first, and those of the second, where they are missing."""
    config = {"share": share, "seed": seed}
    if not is_artefact(place / "after"):
        before, after, _ = hold_out(Corpus.load(source), share, seed)
        before.save(place / "before", config=config, inputs={"corpus": source})
        after.save(place / "after", config=config, inputs={"corpus": source})
    first = ["--corpus", str(place / "before"), "--output", str(place / "sids")]
    then = ["--corpus", str(place / "after"), "--output", str(place / "sids_after")]
    for words in (first, [*then, "--method", "append", "--append_to", str(place / "sids")]):
        run_build_sids(parse_settings(SidConfig, ["--config", f"{CONFIGS}sids_tfidf", *words], read=config_values))


def train(system: str, place: Path, seed: int) -> Path:
    """The checkpoint of a system that knows the items of before, made where it is missing."""
    if is_artefact(place / system):
        return place / system
    words = ["--corpus", str(place / "before"), "--sids", str(place / "sids"), "--seed", str(seed)]
    words += ["--output", str(place / system)]
    if system == "catalogue":
        config = ["--config", f"{CONFIGS}catalogue_tfidf"]
        run_catalogue(parse_settings(CatalogueTrainConfig, [*config, *words], read=config_values))
    else:
        config = ["--config", f"{CONFIGS}sft_tfidf", "--epochs", str(EPOCHS)]
        config += ["--evals_per_epoch", str(1 / EPOCHS), "--teacher", str(train("catalogue", place, seed))]
        run_sft(parse_settings(SftConfig, [*config, *words], read=config_values))
    return place / system


def extended(system: str, place: Path, start: str = "neighbours") -> Path:
    """Where the checkpoint of a system lies that speaks all items."""
    return place / (f"{system}_after" if start == "neighbours" else f"{system}_{start}")


def extend(system: str, place: Path, seed: int, start: str = "neighbours") -> Path:
    """The checkpoint of a system that speaks all items, made where it is missing."""
    begin, output = train(system, place, seed), extended(system, place, start)
    corpus, sids = str(place / "after"), str(place / "sids_after")
    run_extend(ExtendConfig(checkpoint=str(begin), corpus=corpus, sids=sids, start=start, output=str(output)))
    return output


@dataclass(frozen=True)
class Lists:
    """The best trained and the best new items of each row, apart.

    Attributes:
        items: int32 (R, 2 K), -1 where there is none.
        scores: float32 (R, 2 K), minus infinity there.
        new: bool (R, 2 K).
    """

    items: np.ndarray
    scores: np.ndarray
    new: np.ndarray

    def ranks(self, targets: np.ndarray, lift: float) -> np.ndarray:
        """Rank of each target, from 1, where new items have so much more; 0 where it is not among the first K."""
        order = np.argsort(-(self.scores + np.float32(lift) * self.new), axis=1, kind="stable")[:, :K]
        hits = np.take_along_axis(self.items, order, axis=1) == targets[:, None]
        return np.where(hits.any(1), hits.argmax(1) + 1, 0)


@dataclass(frozen=True)
class Case:
    """A share of held-out items of one seed.

    Attributes:
        place: Its folder.
        seed: Its seed.
    """

    place: Path
    seed: int

    @cached_property
    def before(self) -> Corpus:
        """The corpus without the held-out items."""
        return Corpus.load(self.place / "before")

    @cached_property
    def after(self) -> Corpus:
        """The corpus with them."""
        return Corpus.load(self.place / "after")

    @cached_property
    def held_out(self) -> np.ndarray:
        """Which items of after are not in before: bool (N,)."""
        return ~self.after.items["item_id"].isin(self.before.items["item_id"]).to_numpy()

    @cached_property
    def new(self) -> np.ndarray:
        """Items without a training row, which a lift is for: those held out, and a few that never had any."""
        found: np.ndarray = self.after.popularity() == 0
        return found

    def targets(self, split: str) -> np.ndarray:
        """Targets of a split's rows: int32 (R,)."""
        return self.after.rows(split).targets

    def cold(self, split: str) -> np.ndarray:
        """Which rows of a split have a held-out target: bool (R,)."""
        found: np.ndarray = self.held_out[self.targets(split)]
        return found

    def unseen(self, split: str) -> np.ndarray:
        """Which of those rows have a target that is not in their history: bool (R,)."""
        kinds = row_kinds(self.after, RankedSplit.of(self.after, split), split, None)
        found: np.ndarray = self.cold(split) & kinds["repeat"]["is not"]
        return found

    def lists(self, system: str, split: str, start: str = "neighbours") -> Lists:
        """What an extended checkpoint ranks, kept in a file."""
        file = self.place / f"{extended(system, self.place, start).name}_{split}.npz"
        if not file.is_file():
            bundle = load_bundle(extend(system, self.place, self.seed, start))
            ranker = LanguageRanker(bundle, self.after, SEARCH[system])
            histories = self.after.rows(split).histories.tolist()
            parts = [ranked(ranker, histories, mask) for mask in (~self.new, self.new)]
            np.savez(file, items=np.hstack([part[0] for part in parts]), scores=np.hstack([part[1] for part in parts]))
        kept = np.load(file)
        found = kept["items"]
        return Lists(found, kept["scores"], (found >= 0) & self.new[found])

    def without_extending(self, system: str, split: str) -> np.ndarray:
        """Ranks of targets by the checkpoint of before, which neither reads nor says a held-out item."""
        file = self.place / f"{system}_{split}.npz"
        if not file.is_file():
            number = np.flatnonzero(~self.held_out).astype(np.int32)
            place = np.full(len(self.held_out), -1, dtype=np.int32)
            place[number] = np.arange(len(number))
            histories = [place[history][place[history] >= 0] for history in self.after.rows(split).histories]
            ranker = LanguageRanker(load_bundle(train(system, self.place, self.seed)), self.before, SEARCH[system])
            items, scores = ranked(ranker, histories, None)
            np.savez(file, items=np.where(items >= 0, number[items], -1), scores=scores)
        kept = np.load(file)
        found = Lists(kept["items"], kept["scores"], np.zeros_like(kept["items"], dtype=bool))
        return found.ranks(self.targets(split), 0.0)

    def baselines(self, split: str) -> dict[str, np.ndarray]:
        """Ranks of targets by what needs no training."""
        rows, targets = self.after.rows(split), self.targets(split)
        vectors = tfidf_svd(item_texts(self.after), 128, 42, item_texts(self.before))
        likeness = vectors[rows.newest] @ vectors.T  # (R, N)
        own = likeness[np.arange(len(rows)), targets][:, None]
        earlier = np.arange(len(self.held_out)) < targets[:, None]
        texts = 1 + ((likeness > own) | ((likeness == own) & earlier)).sum(1)
        table = SidTable.load_index(self.place / "sids_after", self.after.items["item_id"].tolist())
        followed = make_baselines(self.after, table)[TRANSITIONS].rank(Queries(rows.histories.tolist()), K).items
        popular = np.argsort(np.argsort(-self.after.popularity(), kind="stable"), kind="stable") + 1
        return {
            "text neighbours": np.where(texts <= K, texts, 0),
            "transition counts": np.array(
                [
                    [*items].index(t) + 1 if t in items else 0
                    for items, t in zip(followed, targets.tolist(), strict=True)
                ]
            ),
            "popularity": np.where(popular[targets] <= K, popular[targets], 0),
            "random": np.random.default_rng(self.seed).integers(1, len(self.held_out) + 1, len(rows)),
        }


def ranked(ranker: Ranker, histories: list[np.ndarray], mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The K best items that a mask allows, and their scores; both (R, K)."""
    allowed = None
    if mask is not None:
        allowed = Allowed.of_masks([mask] * len(histories), [[]] * len(histories), len(mask))
    found = ranker.rank(Queries(histories), K, allowed)
    items, scores = np.full((len(histories), K), -1, np.int32), np.full((len(histories), K), -np.inf, np.float32)
    for row, (listed, values) in enumerate(zip(found.items, found.scores, strict=True)):
        items[row, : len(listed)], scores[row, : len(listed)] = listed, values
    return items, scores


def ranks_of_all(source: Path, output: Path, case: Case, split: str) -> np.ndarray:
    """Ranks of targets by a catalogue model that nothing was held out from, of the seed of a case."""
    place, sids = output / f"whole-{case.seed}", output / "whole-sids"
    file = place.with_name(f"{place.name}_{split}.npz")
    if not file.is_file():
        first = ["--corpus", str(source), "--output", str(sids)]
        run_build_sids(parse_settings(SidConfig, ["--config", f"{CONFIGS}sids_tfidf", *first], read=config_values))
        if not is_artefact(place):
            words = ["--config", f"{CONFIGS}catalogue_tfidf", "--corpus", str(source), "--sids", str(sids)]
            words += ["--seed", str(case.seed), "--output", str(place)]
            run_catalogue(parse_settings(CatalogueTrainConfig, words, read=config_values))
        corpus = Corpus.load(source)
        ranker = LanguageRanker(load_bundle(place), corpus, SEARCH["catalogue"])
        items, scores = ranked(ranker, corpus.rows(split).histories.tolist(), None)
        np.savez(file, items=items, scores=scores)
    kept = np.load(file)
    found = Lists(kept["items"], kept["scores"], np.zeros_like(kept["items"], dtype=bool))
    return found.ranks(case.targets(split), 0.0)
