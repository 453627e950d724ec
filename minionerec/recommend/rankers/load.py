"""Loading rankers: from an artefact's directory, or a user's own function."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from minionerec.core.artefacts import fingerprint, read_json, read_manifest, trained_splits
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.functions import function_at
from minionerec.core.plugins import registered_path
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.build import reading_dtype
from minionerec.models.backbone.bundle import KIND as CHECKPOINT
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.decoding.branches import evaluating
from minionerec.models.decoding.decoder import decoding_device
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.leaves import sum_to_leaves
from minionerec.models.prompts.wording import NEXT_TITLE
from minionerec.models.sequential import MODEL_KIND
from minionerec.models.sequential.registry import MODEL_FILE, load_sequential
from minionerec.recommend.rankers.experts import pooled_log_probs
from minionerec.recommend.rankers.language import LanguageRanker, Search, TitleRanker
from minionerec.recommend.rankers.protocol import Assistant, Queries, Ranker, features_used
from minionerec.recommend.rankers.sequential import SequentialRanker
from minionerec.sid.table import SidTable

# The recommenders that assist in a search: sequential models, and checkpoints other than the one that is searched.


def sequential_assistant(ranker: SequentialRanker, candidate_of_item: np.ndarray, popularity: np.ndarray) -> Assistant:
    """A sequential model's softmax over items, summed over the items of each candidate.

    A row without history, of which the model could read nothing, gets the items' shares of the training targets, each
    counted once more than it is one.

    Args:
        ranker: The model.
        candidate_of_item: int64 (N,), the candidate of each item (its SID, its title).
        popularity: int64 (N,), how often each item is a training target.
    """
    counts = torch.from_numpy(popularity + 1.0)
    popular = (counts / counts.sum()).log().float().to(ranker.device)
    candidates = torch.from_numpy(candidate_of_item.astype(np.int64)).to(ranker.device)
    size = int(candidate_of_item.max()) + 1

    def log_probs(queries: Queries) -> torch.Tensor:
        found = ranker.scores(queries).float().log_softmax(-1)
        empty = torch.tensor([len(history) == 0 for history in queries.histories], device=found.device)
        return sum_to_leaves(torch.where(empty.unsqueeze(1), popular, found), candidates, size)

    return Assistant(ranker.name, ranker.context, ranker.features, log_probs)


def checkpoint_assistant(ranker: LanguageRanker, name: str) -> Assistant:
    """A checkpoint's probabilities of all SIDs, by exact search if the model does not give them directly.

    Args:
        ranker: The checkpoint.
        name: What tables call it.
    """

    def log_probs(queries: Queries) -> torch.Tensor:
        guide = None if ranker.bonus is None else Guide.of(ranker.trie, bonus=ranker.bonus)
        with evaluating(ranker.bundle.model):
            _, prompts, _ = ranker.prompts(queries)
            model = ranker.model_after(queries, prompts)
            found = exact_search(model, prompts, ranker.trie, ranker.trie.n_sids, guide=guide)
        by_number = torch.empty_like(found.scores).scatter_(1, found.sids, found.scores.float())
        if ranker.experts is not None:
            by_number = pooled_log_probs(ranker.experts.experts, ranker.table.sid_numbers, queries, by_number)
        return by_number.log_softmax(-1)

    return Assistant(name, ranker.context, ranker.features, log_probs)


def load_ranker(
    path: str | os.PathLike[str],
    corpus: Corpus,
    *,
    corpus_path: str | os.PathLike[str] | None = None,
    table: SidTable | None = None,
    search: Search | None = None,
    dtype: str = "auto",
    in_memory: bool = False,
    experts: bool = True,
) -> Ranker:
    """A ranker from the output of a training stage, on this process's device.

    Args:
        path: A checkpoint (of `minionerec sft`, `grpo` or `train-catalogue`), or the folder `model` of
            (`minionerec train-sequential`).
        corpus: The corpus whose items are recommended; items are counted in the splits that a
            checkpoint was trained on.
        corpus_path: Its path; with it a sequential model is checked against the corpus that it was trained on.
        table: SIDs that a checkpoint must have been trained on; its own if None.
        search: The search of a checkpoint.
        dtype: Weights' dtype of a checkpoint: auto, float32, bfloat16, float16.
        in_memory: Whether its files may be overwritten while it is in use (`load_bundle`).
        experts: Whether the experts of a checkpoint are used, if it has some.

    Raises:
        ArtefactError: If there is neither, or it is for another table or corpus.
        DataError: If the checkpoint has other items.
        ConfigError: If the model cannot recommend for histories.

    Example:
        corpus = Corpus.load("runs/shop/corpus")
        ranking = load_ranker("runs/shop/sft", corpus).rank(Queries([np.array([3, 1])]), k=5)
    """
    kind = read_manifest(path)["kind"]
    if kind == CHECKPOINT:
        bundle = load_bundle(path, dtype=reading_dtype(dtype), table=table, titles=True, in_memory=in_memory)
        bundle.table.check_items(corpus.items["item_id"].tolist(), str(corpus_path or "corpus"))
        corpus = corpus.training_on(trained_splits(path))
        torch.nn.Module.to(bundle.model, decoding_device())
        if bundle.experts is not None:
            bundle = replace(bundle, experts=bundle.experts.to(decoding_device()) if experts else None)
        if isinstance(bundle.model, CatalogueModel):
            bundle.model.freeze()
            if bundle.model.experts is not None and not experts:
                bundle.model.experts.turn_off()
        if bundle.task == NEXT_TITLE:
            return TitleRanker(bundle, corpus, search)
        return LanguageRanker(bundle, corpus, search, lift_of_new_items(path, bundle.table, corpus))
    if kind == MODEL_KIND:
        return load_sequential_ranker(Path(path), corpus, corpus_path)
    raise ArtefactError(
        f"{path}: holds a {kind!r}, expected a {CHECKPOINT!r} or a {MODEL_KIND!r} (the folder `model` of "
        "train-sequential). Point the setting elsewhere."
    )


def load_assistant(
    path: str | os.PathLike[str],
    ranker: LanguageRanker,
    corpus: Corpus,
    *,
    corpus_path: str | os.PathLike[str] | None = None,
    dtype: str = "auto",
) -> Assistant:
    """An assistant from the output of a training stage, for the search of a checkpoint.

    Args:
        path: The folder `model`, or another checkpoint, as in `load_ranker`.
        ranker: The checkpoint that is searched.
        corpus: The corpus whose items are recommended.
        corpus_path: Its path.
        dtype: Weights' dtype of a checkpoint.

    Raises:
        ArtefactError: As `load_ranker`, and if its candidates are not those of the search.
    """
    found = load_ranker(path, corpus, corpus_path=corpus_path, dtype=dtype)
    for feature in features_used(found, corpus):
        if any(own.name == feature.name and own != feature for own in ranker.features):
            raise ArtefactError(
                f"assistant {path}: its request feature {feature.name} has other values than that of the checkpoint. "
                "Give one that was trained on the same corpus and splits."
            )
    if isinstance(found, SequentialRanker):
        return sequential_assistant(found, ranker.table.sid_numbers, corpus.popularity())
    if isinstance(found, LanguageRanker) and np.array_equal(found.table.sid_numbers, ranker.table.sid_numbers):
        return checkpoint_assistant(found, Path(path).name)
    raise ArtefactError(
        f"assistant {path}: its candidates (SIDs, or titles) differ from those of the checkpoint. Give one with the "
        "same SIDs, or the folder `model` of minionerec train-sequential."
    )


def lift_of_new_items(path: str | os.PathLike[str], table: SidTable, corpus: Corpus) -> np.ndarray | None:
    """The lift that a checkpoint adds to the log-probabilities of SIDs without training targets.

    Args:
        path: The checkpoint; `minionerec extend` writes its lift.
        table: Its SIDs.
        corpus: The corpus of the training examples.

    Returns:
        float32 (S,), natural logarithms; None without a lift.
    """
    lift = float(read_manifest(path)["counts"].get("lift", 0.0))
    if not lift:
        return None
    trained = np.bincount(table.sid_numbers, corpus.popularity(), table.n_unique) > 0
    return np.where(trained, 0.0, lift).astype(np.float32)


def load_sequential_ranker(path: Path, corpus: Corpus, corpus_path: str | os.PathLike[str] | None) -> SequentialRanker:
    """The folder `model` of `minionerec train-sequential` as a ranker; arguments and errors as of `load_ranker`."""
    trained_on = {record["sha256"] for record in read_manifest(path)["inputs"].values()}
    if corpus_path is not None and fingerprint(corpus_path) not in trained_on:
        raise ArtefactError(
            f"{path}: was not trained on {corpus_path}, so its item indices differ. Give the corpus that it was "
            "trained on; under protocols a and b train-sequential itself writes the predictions."
        )
    model = load_sequential(path)
    if model.num_items != corpus.n_items:
        raise ArtefactError(f"{path}: has {model.num_items} items, the corpus {corpus.n_items}. Give its own corpus.")
    name = str(read_json(path / MODEL_FILE)["model"])
    return SequentialRanker(model.to(decoding_device()), name)


def make_ranker(name: str, corpus: Corpus) -> Ranker:
    """Make a user's own ranker.

    Args:
        name: A name that an installed package registers (`minionerec.rankers`), or the dotted path of a function that
            takes the corpus and returns a `Ranker`, such as `my_module.make`.
        corpus: The corpus whose items are recommended.

    Raises:
        ConfigError: If there is no such function, or it does not return a ranker.
    """
    made = function_at(registered_path("minionerec.rankers", name), "ranker")(corpus)
    if not isinstance(made, Ranker):
        raise ConfigError(
            f"ranker is {name!r}, which returned a {type(made).__name__} without a method "
            "rank(queries, k, allowed). See minionerec.recommend.rankers.protocol.Ranker."
        )
    return made
