"""Evaluation by constrained beam search: a checkpoint's ranked lists for a split, their metrics, and three floors."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from minionerec.backbone.build import resolve_dtype
from minionerec.backbone.bundle import Bundle, load_bundle
from minionerec.core.artefacts import (
    input_record,
    is_current,
    package_versions,
    read_json,
    read_manifest,
    require_writable,
    to_plain,
    write_artefact,
)
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger, is_main_process
from minionerec.data.corpus import Corpus
from minionerec.decoding.beam import beam_search
from minionerec.decoding.decoder import decode_prompts, decoding_device
from minionerec.decoding.trie import Trie
from minionerec.evaluation.config import EvalConfig
from minionerec.evaluation.shards import decode_in_shards, fitting_batch_size, free_memory, wait_for_everyone
from minionerec.metrics.predictions import FILE, Predictions
from minionerec.metrics.published_json import write_published_json
from minionerec.metrics.ranking import Evaluation, evaluate_predictions
from minionerec.prompts.examples import ExampleBuilder, encode_completion, encode_prompt, special_texts
from minionerec.recommenders.floors import (
    last_item_predictions,
    popularity_predictions,
    ranked_items,
    transition_predictions,
)
from minionerec.metrics.tables import format_metrics_table
from minionerec.sid.table import SidTable

logger = get_logger(__name__)

JSON_FILE = "predictions.json"
METRICS_FILE = "metrics.json"
TABLE_FILE = "metrics.txt"


@dataclass(frozen=True)
class EvalResult:
    """Where an evaluation's predictions lie, and its table.

    Attributes:
        output: Predictions directory.
        table: Metrics beside the floors, as text.
        metrics: Content of `metrics.json`.
    """

    output: Path
    table: str
    metrics: Mapping[str, object]


def predict(
    bundle: Bundle,
    corpus: Corpus,
    rows: pd.DataFrame,
    *,
    beams: int,
    batch_size: int,
    seen: str = "keep",
    scores: str = "full",
    score_end: bool = False,
    shards: tuple[Path, Mapping[str, object]] | None = None,
) -> tuple[Predictions, list[str]]:
    """Ranked lists of a checkpoint for rows of a split.

    Args:
        bundle: The checkpoint.
        corpus: Items, and training rows for popularity.
        rows: R rows with `user`, `history` and `target`.
        beams: Beam width.
        batch_size: Prompts decoded at a time; 0 finds it from the free memory.
        seen: "keep", or "mask" to leave the items of each row's history out of its list; the search is then as much
            wider as the row with the most of them needs.
        scores: "full" or "renormalised".
        score_end: Whether to score what follows the SID in a completion too.
        shards: Folder that keeps what is finished, and a record of all that decides the result; with it the work is
            shared among the processes of the launch and survives a kill (`decode_in_shards`).

    Returns:
        The predictions, and the R prompts.
    """
    table = bundle.table
    builder = ExampleBuilder(corpus, table, bundle.wording, special_texts(bundle.tokenizer))
    prompts = [builder.prompt("next_sid", history=history) for history in rows["history"]]
    ids = encode_prompt(bundle.tokenizer, prompts, bundle.max_prompt_length).ids
    order: dict[tuple[int, ...], int] = {}
    for prompt in ids:
        order.setdefault(tuple(prompt), len(order))
    distinct = list(order)
    model = bundle.model
    trie = Trie.build(table.codes, bundle.code_ids).to(model.device)
    if score_end:
        completion = builder.completion("next_sid", 0)
        end = completion[completion.index(table.sids[0]) + len(table.sids[0]) :]
        trie = trie.with_tail(encode_completion(bundle.tokenizer, [end])[0])

    gone = [set(history) if seen == "mask" else set() for history in rows["history"]]
    width = min(beams + max(map(len, gone), default=0), table.n_unique)

    def find_batch_size() -> int:
        found = batch_size or fitting_batch_size(
            model, trie, max(map(len, distinct)), width, free_memory(torch.device(model.device))
        )
        logger.info("%s distinct prompts, %d at a time.", f"{len(distinct):,}", found)
        return found

    if shards is None:
        found, found_scores = decode_prompts(
            model, distinct, trie, width, batch_size=find_batch_size(), normaliser=scores, description="recommending"
        )
    else:
        model.eval()

        def decode(prompts: list[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
            result = beam_search(model, prompts, trie, width, scores)
            return result.sids.cpu().numpy(), result.scores.float().cpu().numpy()

        found, found_scores = decode_in_shards(*shards, distinct, width, find_batch_size, decode)
    behind = ranked_items(table, corpus.popularity())
    items, sids, values = [], [], []
    for prompt, left_out in zip(ids, gone, strict=True):
        place = order[tuple(prompt)]
        groups = [
            [(item, float(score)) for item in behind[number] if item not in left_out]
            for number, score in zip(found[place].tolist(), found_scores[place], strict=True)
            if number >= 0
        ]
        listed = [entry for group in [group for group in groups if group][:beams] for entry in group]
        items.append([item for item, _ in listed])
        sids.append([table.sids[item] for item, _ in listed])
        values.append([score for _, score in listed])
    targets = rows["target"].to_numpy(np.int32)
    return (
        Predictions(rows["user"].tolist(), targets, [table.sids[target] for target in targets], items, sids, values),
        prompts,
    )


def run_eval(config: EvalConfig) -> EvalResult:
    """Recommend for every row of a split and measure; does nothing if it is done, goes on where it was cut off.

    Under a distributed launch each process decodes its share; the predictions are the same for any number of processes.

    Writes `predictions.parquet`, `predictions.json` (the published form), `metrics.json` and `metrics.txt`.

    Args:
        config: Settings.

    Raises:
        ArtefactError: If an input is missing, or the checkpoint was made with another SID table.
        ConfigError: If there are more beams than distinct SIDs.
    """
    inputs = {"corpus": config.corpus, "checkpoint": config.checkpoint}
    if config.sids:
        inputs["sids"] = config.sids
    output = Path(config.output)
    settings = to_plain(config)
    if is_current(output, "predictions", settings, inputs):
        logger.info("%s is up to date.", output)
        return EvalResult(output, (output / TABLE_FILE).read_text(encoding="utf-8"), read_json(output / METRICS_FILE))
    require_writable(output)
    read_manifest(config.checkpoint, "checkpoint")
    corpus = Corpus.load(config.corpus)
    rows = corpus.rows(config.split)
    given = SidTable.load_index(config.sids, corpus.items["item_id"].tolist()) if config.sids else None
    bundle = load_bundle(config.checkpoint, dtype=resolve_dtype(config.dtype), table=given)
    table = bundle.table
    table.check_items(corpus.items["item_id"].tolist(), config.corpus)
    if config.beams > table.n_unique:
        raise ConfigError(
            f"beams is {config.beams}, but the catalogue has {table.n_unique} distinct SIDs; "
            f"give --beams {table.n_unique} or fewer, and ks to match."
        )
    bundle.model.to(decoding_device())  # type: ignore[arg-type]
    folder = output.with_name(f"{output.name}.partial")
    decides = ("split", "beams", "seen", "scores", "score_end", "batch_size", "dtype")
    record = {
        "settings": {name: settings[name] for name in decides},
        "inputs": {name: entry["sha256"] for name, entry in input_record(inputs).items()},
        "device": bundle.model.device.type,
        "versions": package_versions(),
    }
    predictions, prompts = predict(
        bundle,
        corpus,
        rows,
        beams=config.beams,
        batch_size=config.batch_size,
        seen=config.seen,
        scores=config.scores,
        score_end=config.score_end,
        shards=(folder, record),
    )
    if not is_main_process():
        wait_for_everyone()
        return EvalResult(output, (output / TABLE_FILE).read_text(encoding="utf-8"), read_json(output / METRICS_FILE))

    def measure(lists: Predictions) -> Evaluation:
        return evaluate_predictions(
            lists,
            config.ks,
            valid_sids=set(table.sids),
            n_items=corpus.n_items,
            width=config.beams,
            seed=config.seed,
            resamples=config.resamples,
        )

    evaluations = {"beam search": measure(predictions)}
    if config.seen == "keep":  # the floors recommend what was seen
        evaluations |= {
            "popularity": measure(popularity_predictions(corpus, table, rows, config.beams)),
            "same as last item": measure(last_item_predictions(corpus, table, rows, config.beams)),
            "what followed": measure(transition_predictions(corpus, table, rows, config.beams)),
        }
    title = f"{config.checkpoint} on {config.split} ({corpus.split}), {config.beams} beams, mean [95 % interval]"
    text = "\n".join(
        [
            format_metrics_table(evaluations, "sid", title),
            format_metrics_table(evaluations, "item"),
        ]
    )
    metrics = {
        "split": config.split,
        "split_rule": corpus.split,
        "beams": config.beams,
        "seen": config.seen,
        "scores": config.scores,
        "sid_table": table.fingerprint,
        "recommenders": {name: evaluation.to_json() for name, evaluation in evaluations.items()},
    }
    counts = {
        "rows": len(predictions),
        "split": config.split,
        "beams": config.beams,
        "sid_table": table.fingerprint,
        "ndcg@10": metrics_at_10(evaluations["beam search"]),
    }
    with write_artefact(
        output, "predictions", config=settings, inputs=inputs, seed=config.seed, counts=counts
    ) as place:
        predictions.to_frame().to_parquet(place / FILE, index=False)
        write_published_json(place / JSON_FILE, predictions, prompts)
        (place / METRICS_FILE).write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
        (place / TABLE_FILE).write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    wait_for_everyone()
    return EvalResult(output, text, metrics)


def metrics_at_10(evaluation: Evaluation) -> float | None:
    """SID-level NDCG@10, None where 10 is not among the cut-offs."""
    found = evaluation.metrics("sid").get("NDCG@10")
    return found.mean if found else None
