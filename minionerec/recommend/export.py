"""The stage that writes a language model down for other engines: plain Hugging Face files, the trie, the wording."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from minionerec.backbone.bundle import Bundle, check_decoder_alone, clean_generation_config, load_bundle
from minionerec.backbone.catalogue import CatalogueModel
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.refit import refitted_behind
from minionerec.core.stage import Stage
from minionerec.data.corpus import Corpus
from minionerec.data.moments import MOMENTS
from minionerec.decoding.decoder import decode_prompts, decoding_device
from minionerec.decoding.trie import Trie
from minionerec.prompts.examples import ExampleBuilder, encode_completion, encode_prompt, special_texts
from minionerec.rankers.candidates import list_items, ranked_items
from minionerec.recommend import sid_trie
from minionerec.recommend.export_config import ExportConfig
from minionerec.recommend.export_readme import README_FILE, readme
from minionerec.sid.table import SidTable

logger = get_logger(__name__)

TRIE_FILE, ITEMS_FILE, PROMPTS_FILE = "trie.safetensors", "sid_to_item.json", "prompts.json"


@dataclass(frozen=True)
class ExportResult:
    """Where an export lies.

    Attributes:
        output: Its directory.
        counts: The manifest's counts: SIDs, items, nodes of the trie, parameters.
    """

    output: Path
    counts: dict[str, Any]

    def lines(self) -> list[str]:
        """How to check the export, and where it lies."""
        return [
            f"{self.counts['sids']:,} SIDs of {self.counts['items']:,} items; to check it: "
            f"python {self.output / Path(sid_trie.__file__).name}",
            f"export: {self.output}",
        ]


def run_export(config: ExportConfig) -> ExportResult:
    """Write a checkpoint down so that it can be loaded without this project; does nothing if it is done.

    Args:
        config: Settings.

    Raises:
        ArtefactError: If an input is missing.
        ConfigError: If the checkpoint holds a model that is no class of transformers.
        DataError: If corpus and checkpoint speak of different items.
    """
    stage = Stage(config)
    if (manifest := stage.current()) is not None:
        return ExportResult(stage.output, manifest["counts"])
    with stage.work() as work:
        bundle = load_language_model(stage.inputs["checkpoint"], config.dtype)
        corpus = Corpus.load(stage.inputs["corpus"])
        refit = refitted_behind(stage.inputs["checkpoint"]) is not None
        corpus = corpus.with_every_row() if refit else corpus
        builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
        trie = Trie.build(bundle.table.codes, bundle.code_ids)
        behind = ranked_items(bundle.table.sid_numbers, corpus.popularity())
        about = describe_prompts(bundle, builder)
        about |= make_examples(bundle, builder, trie, behind, config)
        counts = {
            "sids": trie.n_sids,
            "items": len(bundle.table),
            "nodes": len(trie.code),
            "parameters": bundle.model.num_parameters(),
            "architecture": type(bundle.model).__name__,
            "dtype": str(bundle.model.dtype).removeprefix("torch."),
            "sid_table": bundle.table.fingerprint,
            "refit": refit,
        }
        with work.finish(counts=counts) as place:
            write_model(bundle, place)
            write_trie(trie, place / TRIE_FILE)
            _write_json(place / ITEMS_FILE, sid_to_item(bundle.table, behind))
            _write_json(place / PROMPTS_FILE, about, indent=1)
            source = Path(sid_trie.__file__)
            (place / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
            (place / README_FILE).write_text(readme(about, counts), encoding="utf-8")
    return ExportResult(stage.output, counts)


def load_language_model(checkpoint: Path, dtype: str) -> Bundle:
    """The checkpoint, on this process's device.

    Args:
        checkpoint: Its directory.
        dtype: Weights' dtype, or "saved".

    Raises:
        ConfigError: If it is a catalogue model.
    """
    bundle = load_bundle(checkpoint, dtype=None if dtype == "saved" else getattr(torch, dtype))
    check_decoder_alone(bundle)
    if isinstance(bundle.model, CatalogueModel):
        raise ConfigError(
            f"{checkpoint}: is a catalogue model, which no engine for language models can load. Serve it with "
            "minionerec serve, or let it teach a language model (minionerec sft --teacher) and export that."
        )
    torch.nn.Module.to(bundle.model, decoding_device())
    return bundle


def describe_prompts(bundle: Bundle, builder: ExampleBuilder) -> dict[str, Any]:
    """How a history becomes a prompt, as `prompts.json` says it."""
    task = bundle.wording.task("next_sid")
    completion, sid = builder.completion("next_sid", 0), bundle.table.sids[0]
    tail = completion[completion.index(sid) + len(sid) :]
    lengths = (bundle.table.codes >= 0).sum(1)
    said = dict(zip(MOMENTS, ("", *bundle.wording.moments), strict=True)) if builder.prompt_tells("next_sid") else {}
    return {
        "wording": bundle.wording.name,
        "template": task.prompt,
        "separator": bundle.wording.separator,
        **({"moments": said} if said else {}),
        "specials": builder.specials,
        "max_history": builder.corpus.max_history,
        "max_prompt_length": bundle.max_prompt_length,
        "shortest": int(lengths.min()),
        "longest": int(lengths.max()),
        "end": encode_completion(bundle.tokenizer, [tail])[0] if tail else [],
    }


def example_histories(corpus: Corpus, count: int) -> list[np.ndarray]:
    """Histories of training rows, from the first row to the last, none twice: up to `count` int32 arrays of items."""
    rows = corpus.rows("train").histories
    found: dict[tuple[int, ...], None] = {}
    for place in np.linspace(0, len(rows) - 1, 4 * count).astype(int).tolist():
        history = tuple(rows[place].tolist()) or (0,)  # an item stands in for a history that is empty
        if len(found) < count:
            found[history] = None
    return [np.array(history, dtype=np.int32) for history in found]


def make_examples(
    bundle: Bundle, builder: ExampleBuilder, trie: Trie, behind: Sequence[Sequence[int]], config: ExportConfig
) -> dict[str, Any]:
    """Some prompts with the lists that are to be expected; a model that is told moments is told each in turn."""
    histories = example_histories(builder.corpus, config.examples)
    tells = builder.prompt_tells("next_sid")
    moments = [place % len(MOMENTS) * tells for place in range(len(histories))]
    asked = zip(histories, moments, strict=True)
    texts = [builder.prompt("next_sid", history=history, moment=moment) for history, moment in asked]
    prompts = encode_prompt(bundle.tokenizer, texts, bundle.max_prompt_length).ids
    beams = min(config.beams, trie.n_sids)
    numbers, scores = decode_prompts(bundle.model, prompts, trie, beams)
    ids = bundle.table.item_ids
    examples = []
    for place, history in enumerate(histories):
        found = [number for number in numbers[place].tolist() if number >= 0]
        heads = [behind[number][0] for number in found]
        tokens = [bundle.table.token_tuples[item] for item in heads]
        examples.append(
            {
                "history": [ids[item] for item in history.tolist()],
                **({"moment": MOMENTS[moments[place]]} if tells else {}),
                "text": texts[place],
                "input_ids": list(prompts[place]),
                "sids": [bundle.table.sids[item] for item in heads],
                "sid_tokens": [bundle.tokenizer.convert_tokens_to_ids(list(row)) for row in tokens],
                "scores": scores[place, : len(found)].astype(float).round(6).tolist(),
                "items": [ids[item] for item in list_items(found, behind, beams)[0]],
            }
        )
    return {"beams": beams, "examples": examples}


def write_model(bundle: Bundle, place: Path) -> None:
    """Write weights, configuration, tokenizer and a generation config that asks for nothing but greedy search."""
    bundle.model.generation_config = clean_generation_config(bundle.tokenizer)
    bundle.model.save_pretrained(place)
    bundle.tokenizer.save_pretrained(place)


def write_trie(trie: Trie, file: Path) -> None:
    """Write the trie as the three arrays that `minionerec.recommend.sid_trie.SidTrie` reads."""
    arrays = {
        "first_child": trie.first_child.numpy().astype(np.int32),
        "token": trie.token.numpy().astype(np.int32),
        "sid": trie.sid.numpy().astype(np.int32),
    }
    save_file(arrays, file, metadata={"trie": f"{trie.levels} levels, {trie.n_sids} SIDs"})


def sid_to_item(table: SidTable, behind: Sequence[Sequence[int]]) -> dict[str, list[str]]:
    """SID text to the ids of its items, the more popular first; in the order of SID numbers."""
    return {table.sids[items[0]]: [table.item_ids[item] for item in items] for items in behind}


def _write_json(path: Path, content: Any, indent: int | None = None) -> None:
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
