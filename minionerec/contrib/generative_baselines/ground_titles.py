"""Grounding (BIGRec): a language model generates the next title as free text, and items are ranked by distance."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from minionerec.contrib.generative_baselines.config import OWN, GroundingConfig
from minionerec.contrib.generative_baselines.free_texts import fitting_free_batch, write_freely
from minionerec.contrib.generative_baselines.grounding import (
    best_titles,
    choose_gamma,
    clean_text,
    reweight,
    row_min_max,
    title_distances,
)
from minionerec.core.artefacts import read_manifest, require_unseen
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger, progress
from minionerec.core.parquet import read_parquet
from minionerec.core.processes import is_main_process
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import Predictions, labelled
from minionerec.models.backbone.build import reading_dtype
from minionerec.models.backbone.bundle import Bundle, load_bundle
from minionerec.models.decoding.branches import evaluating
from minionerec.models.decoding.decoder import decoding_device
from minionerec.models.decoding.shards import decode_in_shards
from minionerec.models.prompts.examples import ExampleBuilder, encode_completion, encode_prompt
from minionerec.models.prompts.wording import NEXT_TITLE
from minionerec.pipeline.evaluate import measured
from minionerec.pipeline.stage import Stage, Work
from minionerec.pipeline.stages import StageResult
from minionerec.recommend.evaluation.measuring import measure
from minionerec.recommend.rankers.candidates import candidate_maxima, list_items
from minionerec.recommend.rankers.language import TitleRanker
from minionerec.recommend.rankers.lists import split_queries
from minionerec.recommend.rankers.load import load_sequential_ranker
from minionerec.recommend.rankers.protocol import Queries
from minionerec.recommend.rankers.sequential import SequentialRanker
from minionerec.sid.embed.encoder import TFIDF, WORDLLAMA
from minionerec.sid.embed.hf import HFEncoder, pooled_states
from minionerec.sid.embed.texts import tfidf_svd, wordllama_vectors

# Texts that a language model over titles generates for the examples of splits: in parts, once for equal prompts.

FILE = "texts.parquet"
_KINDS = {"split": "text", "row": "whole", "text": "text", "tokens": "whole"}


def prompt_texts(builder: ExampleBuilder, split: str, examples: Sequence[int]) -> list[str]:
    """The prompts of some examples of a split."""
    histories = builder.corpus.rows(split).histories
    return [builder.prompt(NEXT_TITLE, history=histories[example]) for example in examples]


def _end_tokens(bundle: Bundle, builder: ExampleBuilder) -> list[int]:
    """Token ids that follow a title in a completion."""
    template = bundle.wording.task(NEXT_TITLE).completion
    ending = template.partition("{title}")[2].format_map(builder.specials)
    return encode_completion(bundle.tokenizer, [ending])[0] if ending else []


def write_texts(
    bundle: Bundle, builder: ExampleBuilder, examples: Mapping[str, np.ndarray], config: GroundingConfig, work: Work
) -> tuple[pd.DataFrame, int]:
    """Generate a text for each example by beam search over the whole vocabulary.

    In a distributed launch the examples are divided among the processes.

    Args:
        bundle: The checkpoint, with its model on its device.
        builder: Builder of the prompts.
        examples: Split → indices of its examples, int64.
        config: The search, and the path of earlier texts.
        work: The running stage, whose folder stores finished parts.

    Returns:
        A table of split, row, text and tokens (their number, with the end token), and the number of truncated prompts.

    Raises:
        ArtefactError: If the earlier texts are of another model, corpus or search.
    """
    keys = [(split, int(index)) for split, indices in examples.items() for index in indices]
    prompts = [text for split, indices in examples.items() for text in prompt_texts(builder, split, indices.tolist())]
    encoded, truncated = encode_prompt(bundle.tokenizer, prompts, bundle.max_prompt_length)
    written = _earlier(config, work)
    ids_of = dict(zip(keys, map(tuple, encoded), strict=True))
    distinct = sorted({ids for key, ids in ids_of.items() if key not in written})
    if distinct:
        logger.info("%s distinct prompts; %s texts are reused.", f"{len(distinct):,}", f"{len(written):,}")
        generated = dict(
            zip(distinct, _generate(bundle, distinct, _end_tokens(bundle, builder), config, work), strict=True)
        )
        written = {key: written.get(key) or generated[ids] for key, ids in ids_of.items()}
    frame = pd.DataFrame(keys, columns=["split", "row"]).astype({"row": np.int32})
    texts = [written[key] for key in keys]
    frame["text"] = [text for text, _ in texts]
    frame["tokens"] = np.array([tokens for _, tokens in texts], dtype=np.int32)
    return frame, truncated


def _generate(
    bundle: Bundle, prompts: Sequence[Sequence[int]], end: Sequence[int], config: GroundingConfig, work: Work
) -> list[tuple[str, int]]:
    """Texts for distinct prompts, and their numbers of tokens."""
    last = end[-1] if end else None

    def decode(positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        some = [prompts[position] for position in positions]
        with evaluating(bundle.model):
            tokens = write_freely(
                bundle.model, some, config.text_beams, config.max_new_tokens, last, config.length_penalty
            )
        return tokens.cpu().numpy(), np.zeros((len(some), 0), dtype=np.float32)

    def batch_size() -> int:
        return fitting_free_batch(bundle.model, prompts, config.text_beams, config.max_new_tokens)

    device = torch.device(bundle.model.device)
    tokens_of, _ = decode_in_shards(
        work.folder, prompts, config.max_new_tokens, batch_size, decode, device, "writing", work
    )
    texts = []
    for row in tokens_of:
        ids = [int(token) for token in row if token >= 0]
        words = [token for token in ids if token != last]
        text: Any = bundle.tokenizer.decode(words, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        texts.append((str(text), len(ids)))
    return texts


def _earlier(config: GroundingConfig, work: Work) -> dict[tuple[str, int], tuple[str, int]]:
    """The texts of an earlier run: (split, row) → text and number of tokens.

    Raises:
        ArtefactError: If it was another model, corpus or search.
    """
    if not config.texts:
        return {}
    folder = Path(work.read["texts"]["path"])
    manifest = read_manifest(folder)
    if FILE not in manifest["files"]:
        raise ArtefactError(f"{folder}: has no {FILE}, so it is not an output of ground-titles. Give one.")
    settings = manifest["settings"]
    for name, value in config.writing().items():
        if settings.get(name) != value:
            raise ArtefactError(
                f"{folder}: its texts were generated with {name} {settings.get(name)!r}, now it is {value!r}. Give the "
                "same settings, or leave texts out."
            )
    for name in ("checkpoint", "corpus"):
        if manifest["inputs"][name]["sha256"] != work.read[name]["sha256"]:
            raise ArtefactError(f"{folder}: its texts are of another {name}. Leave texts out.")
    frame = read_parquet(folder / FILE, _KINDS)
    keys = zip(frame["split"].tolist(), frame["row"].tolist(), strict=True)
    return dict(zip(keys, zip(frame["text"].tolist(), frame["tokens"].tolist(), strict=True), strict=True))


logger = get_logger(__name__)

NAME = "grounded titles"
_DISTANCES_AT_ONCE = 2_000_000

# Function from N texts, none empty, to float32 (N, D).
Encode = Callable[[Sequence[str]], np.ndarray]
# Function from B queries to the weight of each title: float64 (T,) or (B, T), from 0 to 1.
Weigh = Callable[[Queries], np.ndarray]
# Function from queries and their texts to blocks of them with distances to the titles, float64 (B, T), and weights,
# (T,) or (B, T).
Distances = Callable[[Queries, Sequence[str]], Iterator[tuple[slice, np.ndarray, np.ndarray]]]


def run_grounding(config: GroundingConfig) -> StageResult:
    """Generate a title for each example of a split, ground it, and compute metrics; does nothing if up to date.

    A resumed run reuses generated texts. The output has the files of `minionerec.pipeline.evaluate.run_eval`, and
    `texts.parquet` (split, row, text and its number of tokens). Candidates are distinct titles, which take the place of
    SIDs. In a distributed launch generation is divided among the processes; the main process does the rest.

    Raises:
        ArtefactError: If an input is missing or unfit.
        ConfigError: If there are more candidates than titles, or there is an unfinished run with other settings.
        DataError: If there is no title to compare with.
    """
    stage = Stage(config)
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            with work.phase("load"):
                ranker = _load(stage.config)
                corpus = ranker.builder.corpus
                names = [clean_text(ranker.builder.titles[items[0]]) for items in ranker.items_of]
                indices = _examples_to_generate(corpus, config)
                work.inputs_read(last=False)
            with work.phase("generate"):
                written, truncated = write_texts(ranker.bundle, ranker.builder, indices, config, work)
            if is_main_process():
                with work.phase("ground"):
                    examples = {split: corpus.rows(split) for split in indices}
                    parts, queries = _ground(ranker, names, examples, written, stage.config)
                    gamma, reached = _gamma(ranker, parts, queries, written, config)
                    predictions, reported = _rank(ranker, names, parts, queries[config.split], written, gamma, config)
                with work.phase("measure"):
                    results = measure(
                        corpus,
                        config.split,
                        examples[config.split],
                        predictions,
                        NAME,
                        ranker.table,
                        config.candidates,
                        ks=config.ks,
                        resamples=config.resamples,
                    )
                counts = {
                    **results.counts(),
                    "truncated_prompts": truncated,
                    **reported,
                    "gamma": gamma,
                    "gamma_ndcg@10": reached,
                }
                with work.finish(seed=config.seed, counts=counts) as folder:
                    title = (
                        f"{labelled(f'{config.checkpoint}, grounded', predictions.given or ())} on {config.split} "
                        f"({corpus.split}), {config.candidates} titles, mean [95 % interval by user]"
                    )
                    about = {"encoder": config.encoder, "weights": config.weights, "gamma": gamma}
                    prompts = prompt_texts(ranker.builder, config.split, range(len(predictions)))
                    results.write(folder, prompts, title, about)
                    written.to_parquet(folder / FILE, index=False)
    return measured(stage.output, up_to_date)


def _load(config: GroundingConfig) -> TitleRanker:
    """The checkpoint, with corpus and titles."""
    for path in filter(None, (config.checkpoint, config.sequential)):
        require_unseen(path, config.split)
    corpus = Corpus.load(config.corpus)
    bundle = load_bundle(config.checkpoint, dtype=reading_dtype(config.dtype), titles=True)
    if bundle.task != NEXT_TITLE:
        raise ArtefactError(
            f"{config.checkpoint}: was trained on {bundle.task} and does not generate titles. Give a checkpoint "
            f"that was trained on {NEXT_TITLE}."
        )
    torch.nn.Module.to(bundle.model, decoding_device())
    ranker = TitleRanker(bundle, corpus)
    count = ranker.table.n_unique
    if config.candidates > count:
        raise ConfigError(
            f"candidates is {config.candidates}, but the catalogue has {count} distinct titles; give "
            f"--candidates {count} or fewer, and ks to match."
        )
    return ranker


def _tie_order(ranker: TitleRanker) -> np.ndarray:
    """Titles by their most popular item, then by its id."""
    corpus, firsts = ranker.builder.corpus, np.array([items[0] for items in ranker.items_of])
    return np.lexsort((corpus.id_positions[firsts], -corpus.popularity()[firsts]))


def _chooses(config: GroundingConfig) -> bool:
    return config.weights != "none" and len(set(config.gammas)) > 1


def _choosing_examples(corpus: Corpus, config: GroundingConfig) -> np.ndarray:
    """Validation examples for choosing the exponent, int64, in order."""
    count = len(corpus.rows("valid"))
    if not config.valid_examples or config.valid_examples >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(config.seed).choice(count, config.valid_examples, replace=False))


def _examples_to_generate(corpus: Corpus, config: GroundingConfig) -> dict[str, np.ndarray]:
    """Split → indices of the examples to generate texts for."""
    examples = {config.split: np.arange(len(corpus.rows(config.split)))}
    if _chooses(config):
        examples.setdefault("valid", _choosing_examples(corpus, config))
    return examples


def _texts_of(written: pd.DataFrame, split: str, examples: np.ndarray) -> list[str]:
    """The cleaned texts of some examples of a split."""
    texts = written[written["split"] == split].set_index("row")["text"]
    return [clean_text(text) for text in texts.loc[examples]]


def _ground(
    ranker: TitleRanker,
    names: Sequence[str],
    examples: Mapping[str, SplitExamples],
    written: pd.DataFrame,
    config: GroundingConfig,
) -> tuple[Distances, Mapping[str, Queries]]:
    """Distances of texts to titles, and the queries of each split with written texts, from its examples.

    Vectors of texts and titles are computed together, so that equal texts have equal vectors.
    """
    index_of = {
        text: position for position, text in enumerate(dict.fromkeys([*names, *map(clean_text, written["text"])]))
    }
    filled = [text for text in index_of if text]
    encoded = _encoder(ranker, names, config)(filled)
    vectors = np.zeros((len(index_of), encoded.shape[1]), dtype=np.float32)
    vectors[[index_of[text] for text in filled]] = encoded
    titles = vectors[[index_of[name] for name in names]]
    corpus, model = ranker.builder.corpus, None
    if config.weights == "sequential":
        model = load_sequential_ranker(Path(config.sequential), corpus, config.corpus)
    features = () if model is None else model.features
    queries = {split: split_queries(of, features, given=config.context) for split, of in examples.items()}
    weigh, size = _weigher(ranker, config, model), max(16, _DISTANCES_AT_ONCE // len(titles))

    def parts(given: Queries, texts: Sequence[str]) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        positions = np.array([index_of[text] for text in texts], dtype=np.int64)
        for start in progress(range(0, len(texts), size), "grounding texts", unit="parts"):
            block = slice(start, min(start + size, len(texts)))
            distinct, back = np.unique(positions[block], return_inverse=True)
            weights = weigh(given.take(np.arange(block.start, block.stop)))
            yield block, title_distances(titles, vectors[distinct])[back], weights

    return parts, queries


def _encoder(ranker: TitleRanker, names: Sequence[str], config: GroundingConfig) -> Encode:
    """The encoder of texts."""
    if config.encoder == TFIDF:
        fitted_on = [name for name in dict.fromkeys(names) if name]
        return lambda texts: tfidf_svd(texts, config.dimensions, config.seed, fitted_on)
    if config.encoder == WORDLLAMA:
        return wordllama_vectors
    if config.encoder == OWN:
        return lambda texts: _last_states(ranker, texts)
    encoder = HFEncoder(config.encoder, otherwise="last")
    return lambda texts: encoder.encode(texts)[0]


def _last_states(ranker: TitleRanker, texts: Sequence[str]) -> np.ndarray:
    """The checkpoint's last hidden state at the last token of each text: float32 (N, D)."""
    bos = ranker.builder.specials["bos"]
    ids = encode_completion(ranker.bundle.tokenizer, [bos + text for text in texts])
    with evaluating(ranker.bundle.model):
        return pooled_states(ranker.bundle.model.base_model, ids, "last")


def _weigher(ranker: TitleRanker, config: GroundingConfig, model: SequentialRanker | None) -> Weigh:
    """Function to the weights of titles; for a sequential model, popularity if a history is empty."""
    by_title = candidate_maxima(ranker.table.sid_numbers)  # the value of a title is that of its best item
    popular = row_min_max(by_title(ranker.builder.corpus.popularity().astype(np.float64)))
    if config.weights == "none":
        return lambda queries: np.zeros_like(popular)
    if model is None:
        return lambda queries: popular

    def weigh(queries: Queries) -> np.ndarray:
        weights = np.tile(popular, (len(queries), 1))
        with_history = [row for row, history in enumerate(queries.histories) if len(history)]
        if with_history:
            logits = model.scores(queries.take(with_history)).cpu().numpy()
            weights[with_history] = by_title(row_min_max(logits))
        return weights

    return weigh


def _gamma(
    ranker: TitleRanker,
    parts: Distances,
    queries: Mapping[str, Queries],
    written: pd.DataFrame,
    config: GroundingConfig,
) -> tuple[float, dict[str, float]]:
    """The exponent, and the validation metric of each candidate."""
    if config.weights == "none":
        return 0.0, {}
    if not _chooses(config):
        return config.gammas[0], {}
    corpus = ranker.builder.corpus
    examples = _choosing_examples(corpus, config)
    targets = ranker.table.sid_numbers[corpus.rows("valid").take(examples).targets]
    of_valid = parts(queries["valid"].take(examples), _texts_of(written, "valid", examples))
    best, ndcg = choose_gamma(
        ((distances, weights, targets[part]) for part, distances, weights in of_valid),
        _tie_order(ranker),
        config.gammas,
    )
    logger.info("gamma %g: NDCG@10 %.4f on %d validation examples.", best, ndcg[best], len(examples))
    return best, {f"{gamma:g}": value for gamma, value in ndcg.items()}


def _rank(
    ranker: TitleRanker,
    names: Sequence[str],
    parts: Distances,
    queries: Queries,
    written: pd.DataFrame,
    gamma: float,
    config: GroundingConfig,
) -> tuple[Predictions, dict[str, Any]]:
    """The items of the nearest titles for each example, and counts of the texts for the manifest."""
    examples, tie_order = ranker.builder.corpus.rows(config.split), _tie_order(ranker)
    texts = _texts_of(written, config.split, np.arange(len(examples)))
    items: list[list[int]] = []
    scores: list[list[float]] = []
    nearest: list[float] = []
    for _, distances, weights in parts(queries, texts):
        nearest += distances.min(axis=1).tolist()
        best, values = best_titles(reweight(distances, weights, gamma), tie_order, config.candidates)
        for titles, title_scores in zip(best.tolist(), (-values).tolist(), strict=True):
            listed, indices = list_items(titles, ranker.items_of, config.candidates)
            items.append(listed)
            scores.append([title_scores[index] for index in indices])
    known, tokens = set(names) - {""}, written.loc[written["split"] == config.split, "tokens"]
    reported: dict[str, Any] = {
        "in_catalogue": float(np.mean([text in known for text in texts])),
        "distinct_texts": len(set(texts)),
        "empty_texts": texts.count(""),
        "longest_texts": int((tokens >= config.max_new_tokens).sum()),
        "rows_with_context": int(queries.codes(list(queries.context)).any(1).sum()),
        "nearest_distance": {"mean": float(np.mean(nearest)), "median": float(np.median(nearest))},
    }
    logger.info("%.1f %% of the texts are titles of the catalogue.", 100 * reported["in_catalogue"])
    return Predictions.of(examples, items, scores, ranker.table.sids, queries.given), reported
