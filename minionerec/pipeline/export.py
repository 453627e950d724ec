"""The stage `export`: a language model as Hugging Face files for other engines, with the trie and the prompt format."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from minionerec.core.artefacts import trained_splits
from minionerec.core.log import get_logger, progress
from minionerec.data.contexts import value_names
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.bundle import Bundle, clean_generation_config, load_language_model
from minionerec.models.backbone.pretrained import CONFIG_FILE
from minionerec.models.decoding.decoder import decode_prompts, decoding_device
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, encode_completion, encode_prompt, special_texts
from minionerec.pipeline.config.recommend import ExportConfig
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import StageResult
from minionerec.recommend import sid_trie
from minionerec.recommend.rankers.candidates import list_items, ranked_items
from minionerec.sid.table import SidTable

TRIE_FILE, ITEMS_FILE, PROMPTS_FILE = "trie.safetensors", "sid_to_item.json", "prompts.json"
EXAMPLES, BEAMS = 5, 10
"""Example prompts with expected lists, and the beams and length of these."""
README_FILE, _TOKENIZER_FILE = "README.md", "tokenizer_config.json"
logger = get_logger(__name__)

# Architectures whose configurations of version 4 of transformers know the kind of scaled positions as `type` alone.
_TYPES = ("olmo", "olmo2", "phi3")


def run_export(config: ExportConfig) -> StageResult:
    """Export a checkpoint so that it can be loaded without this project; does nothing if up to date.

    Args:
        config: Settings.

    Raises:
        ArtefactError: If an input is missing.
        ConfigError: If the checkpoint's model is not a class of transformers.
        DataError: If corpus and checkpoint have different items.
    """
    stage = Stage(config)
    if (manifest := stage.current()) is not None:
        return _result(stage.output, manifest["counts"])
    with stage.work() as work:
        steps = progress(("load", "search", "write"), "exporting", unit="steps")
        next(steps)
        instead = (
            "which engines for language models cannot load. Serve it with minionerec serve, or distil it into a "
            "language model (minionerec sft --teacher) and export that."
        )
        dtype = None if config.dtype == "saved" else getattr(torch, config.dtype)
        bundle = load_language_model(stage.config.checkpoint, dtype, instead)
        if bundle.experts is not None:
            logger.warning("The export is the language model alone: other engines do not have its experts.")
        torch.nn.Module.to(bundle.model, decoding_device())
        corpus = Corpus.load(stage.config.corpus)
        seen = list(trained_splits(stage.config.checkpoint))
        corpus = corpus.training_on(seen)
        builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
        trie = Trie.build(bundle.table.codes, bundle.code_ids)
        items_of = ranked_items(bundle.table.sid_numbers, corpus.popularity(), corpus.id_positions)
        about = describe_prompts(bundle, builder)
        next(steps)
        about |= make_examples(bundle, builder, trie, items_of, EXAMPLES, BEAMS)
        counts = {
            "sids": trie.n_sids,
            "items": len(bundle.table),
            "nodes": len(trie.code),
            "parameters": bundle.model.num_parameters(),
            "architecture": type(bundle.model).__name__,
            "dtype": str(bundle.model.dtype).removeprefix("torch."),
            "sid_table": bundle.table.fingerprint,
            "splits": ["train", *seen],
        }
        next(steps)
        with work.finish(counts=counts) as folder:
            bundle.model.generation_config = clean_generation_config(bundle.tokenizer)
            bundle.model.save_pretrained(folder)
            bundle.tokenizer.save_pretrained(folder)
            write_for_transformers_4(folder)
            write_trie(trie, folder / TRIE_FILE)
            _write_json(folder / ITEMS_FILE, sid_to_item(bundle.table, items_of))
            _write_json(folder / PROMPTS_FILE, about, indent=1)
            source = Path(sid_trie.__file__)
            (folder / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
            (folder / README_FILE).write_text(readme(about, counts), encoding="utf-8")
        next(steps, None)
    return _result(stage.output, counts)


def _result(output: Path, counts: Mapping[str, Any]) -> StageResult:
    """The result of an export; its lines begin with the command that checks it."""
    sizes = f"{counts['sids']:,} SIDs of {counts['items']:,} items"
    check = f"to check it: python {output / Path(sid_trie.__file__).name}"
    return StageResult(output, [f"{sizes}; {check}", f"export: {output}"], counts)


def describe_prompts(bundle: Bundle, builder: ExampleBuilder) -> dict[str, Any]:
    """The prompt format, as in `prompts.json`."""
    task = bundle.wording.task("next_sid")
    completion, sid = builder.completion("next_sid", 0), bundle.table.sids[0]
    tail = completion[completion.index(sid) + len(sid) :]
    lengths = (bundle.table.codes >= 0).sum(1)
    events = dict(zip(bundle.wording.events, bundle.wording.event_tokens, strict=True))
    wording = bundle.wording
    context = {
        feature.name: dict(zip(feature.values, tokens, strict=True))
        for feature, tokens in zip(wording.context, wording.context_tokens, strict=True)
    }
    schema = {"context": context, "context_features": [feature.stored() for feature in wording.context]}
    return {
        "wording": bundle.wording.name,
        "template": task.prompt,
        "separator": bundle.wording.separator,
        **(schema if context else {}),
        **({"events": events} if events else {}),
        "specials": builder.specials,
        "max_history": builder.corpus.max_history,
        "max_prompt_length": bundle.max_prompt_length,
        "shortest": int(lengths.min()),
        "longest": int(lengths.max()),
        "end": encode_completion(bundle.tokenizer, [tail])[0] if tail else [],
        "transformers": transformers.__version__,
    }


def example_histories(corpus: Corpus, count: int) -> list[np.ndarray]:
    """Distinct histories of training examples, evenly spaced: up to `count` int32 arrays of items."""
    rows = corpus.rows("train").histories
    found: dict[tuple[int, ...], None] = {}
    for index in np.linspace(0, len(rows) - 1, 4 * count).astype(int).tolist():
        history = tuple(rows[index].tolist()) or (0,)  # an item replaces an empty history
        if len(found) < count:
            found[history] = None
    return [np.array(history, dtype=np.int32) for history in found]


def make_examples(
    bundle: Bundle, builder: ExampleBuilder, trie: Trie, items_of: Sequence[Sequence[int]], count: int, beams: int
) -> dict[str, Any]:
    """Up to `count` prompts with expected lists; for conditioned models with the codes of each feature in turn."""
    histories = example_histories(builder.corpus, count)
    features = builder.wording.context
    contexts = [[position % feature.size for feature in features] for position in range(len(histories))]
    queries = zip(histories, contexts, strict=True)
    texts = [builder.prompt("next_sid", history=history, context=context) for history, context in queries]
    prompts = encode_prompt(bundle.tokenizer, texts, bundle.max_prompt_length)[0]
    beams = min(beams, trie.n_sids)
    numbers, scores = decode_prompts(bundle.model, prompts, trie, beams)
    ids = bundle.table.item_ids
    examples = []
    for position, history in enumerate(histories):
        found = [number for number in numbers[position].tolist() if number >= 0]
        heads = [items_of[number][0] for number in found]
        tokens = [bundle.table.token_tuples[item] for item in heads]
        examples.append(
            {
                "history": [ids[item] for item in history.tolist()],
                **({"context": value_names(features, contexts[position])} if features else {}),
                "text": texts[position],
                "input_ids": list(prompts[position]),
                "sids": [bundle.table.sids[item] for item in heads],
                "sid_tokens": [bundle.tokenizer.convert_tokens_to_ids(list(row)) for row in tokens],
                "scores": scores[position, : len(found)].astype(float).round(6).tolist(),
                "items": [ids[item] for item in list_items(found, items_of, beams)[0]],
            }
        )
    return {"beams": beams, "examples": examples}


def write_for_transformers_4(folder: Path) -> None:
    """Add to an export's configurations what version 4 of transformers, and engines built on it, read in their places.

    Version 5 has the settings of rotary positions in `rope_parameters`, which version 4 ignores, and names a class of
    tokenizers that version 4 does not have. Version 5 reads the old places too.

    Args:
        folder: Folder of `config.json` and `tokenizer_config.json`.
    """
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or {}
    rope = dict(rope.get("full_attention", rope))
    if rope:
        theta, share = rope.pop("rope_theta"), rope.pop("partial_rotary_factor", None)
        kind = rope.pop("rope_type", "default")
        config["rope_theta"] = theta
        if share is not None:
            config["partial_rotary_factor"] = share
        if config["model_type"] == "gpt_neox":
            config |= {"rotary_emb_base": theta, "rotary_pct": 0.25 if share is None else share}
        if "sliding_attention" in config["rope_parameters"]:
            config["rope_local_base_freq"] = config["rope_parameters"]["sliding_attention"]["rope_theta"]
        if kind == "longrope":
            config["original_max_position_embeddings"] = rope.pop("original_max_position_embeddings")
        if kind != "default":
            config["rope_scaling"] = {"type" if config["model_type"] in _TYPES else "rope_type": kind, **rope}
    _write_json(folder / CONFIG_FILE, config, indent=2)
    tokenizer = json.loads((folder / _TOKENIZER_FILE).read_text(encoding="utf-8"))
    _write_json(folder / _TOKENIZER_FILE, tokenizer | {"tokenizer_class": "PreTrainedTokenizerFast"}, indent=2)


def write_trie(trie: Trie, file: Path) -> None:
    """Write the trie as the three arrays that `minionerec.recommend.sid_trie.SidTrie` reads."""
    arrays = {
        "first_child": trie.first_child.numpy().astype(np.int32),
        "token": trie.token.numpy().astype(np.int32),
        "sid": trie.sid.numpy().astype(np.int32),
    }
    save_file(arrays, file, metadata={"trie": f"{trie.levels} levels, {trie.n_sids} SIDs"})


def sid_to_item(table: SidTable, items_of: Sequence[Sequence[int]]) -> dict[str, list[str]]:
    """SID text to the ids of its items, the more popular first; in the order of SID numbers."""
    return {table.sids[items[0]]: [table.item_ids[item] for item in items] for items in items_of}


def _write_json(path: Path, content: Any, indent: int | None = None) -> None:
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


_PAGE = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- recommender-system
- semantic-ids
---

# A recommender as a plain language model

A causal language model that generates the next semantic ID (SID) from a customer's history of SIDs, in Hugging Face
format: {parameters:,} weights in {dtype}, {sids:,} SIDs of {items:,} items.{seen}

| file | content |
|---|---|
| `model.safetensors`, `config.json`, `generation_config.json` | the model, a class of transformers |
| `tokenizer.json`, `tokenizer_config.json` | the tokenizer; every code of an SID is one token |
| `sid_to_item.json` | SID as text → ids of its items, the more popular first; entry n is SID number n |
| `trie.safetensors` | the trie of valid SIDs: `first_child` int32 (M + 1), `token` and `sid` int32 (M) |
| `prompts.json` | the prompt format, and {examples} examples with expected lists |
| `sid_trie.py` | reads the trie, and searches it with any engine's log-probabilities; needs numpy and safetensors |

The children of node n of the trie are the nodes `first_child[n]` to `first_child[n + 1] - 1`, `token[n]` leads to node
n, and `sid[n]` is the number of the SID that ends there, else -1. Node 0 is the root.

To check the files with the installed transformers, 4.56 or later:

```bash
python sid_trie.py
```

## Prompts

Take the customer's newest {max_history} items at most, oldest first. Write their SIDs with `separator` between them,
put them into `template` with `specials`, tokenise, and keep the last {max_prompt_length} tokens. The model then
generates an SID, code by code. Its score is the sum of its codes' log-probabilities, each from a softmax over the whole
vocabulary; tokens that the trie does not allow are removed after that, without renormalisation.
{conditioning}
## With transformers

```python
import json

from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from sid_trie import SidTrie, stock_lists

model = AutoModelForCausalLM.from_pretrained(".", dtype="auto", use_safetensors=True, trust_remote_code=False).eval()
tokenizer = PreTrainedTokenizerFast.from_pretrained(".")
trie, about = SidTrie("."), json.load(open("prompts.json", encoding="utf-8"))
items_of = json.load(open("sid_to_item.json", encoding="utf-8"))
sid_of = {{item: sid for sid, items in items_of.items() for item in items}}


def recommend(history, k=10{argument}):
    sids = [sid_of[item] for item in history[-about["max_history"] :]]
    written = about["separator"].join(sids)
    {context}text = about["template"].format(history=written, **about["specials"])
    prompt = tokenizer(text)["input_ids"][-about["max_prompt_length"] :]
    found = stock_lists(model, trie, prompt, k, steps=about["longest"])
    return [item for tokens, _ in found for item in items_of["".join(tokenizer.convert_ids_to_tokens(tokens))]]


print(recommend({history!r}))
```
{lengths}
## With an engine

Send token ids, not text, so that the engine's own tokenizer, templates and start tokens have no effect.

`SidTrie.search` is a beam search that queries an engine once per code: for some sequences of token ids, the
log-probabilities of the tokens that may follow. The trie stays on the client, so an engine needs no support for
constraints, and the lists equal those of `stock_lists`. Engines with a prefix cache read a prompt once. An engine's own
beam search may list SIDs of no item, or, where a grammar constrains it, letters that spell a code: compare its lists
with the examples.
"""

_LENGTHS = """
SIDs of this catalogue differ in length ({shortest} to {longest} codes), and stock `generate` does not know where
a short one ends: use `trie.search(model_log_probs(model), prompt, k)` instead of `stock_lists`.
"""

_CONDITIONING = """
This model was conditioned on features of the request in training ({names}), and a prompt may give them: behind the
history, in this order, the token of each value that you know. In `prompts.json` `context` has the tokens by feature and
value, and `context_features` says how times become values; write nothing for what you do not know, and no gap after an
empty history.
"""

_EVENTS = """
The event of a history item may stand behind its SID, as one of the tokens `events` in `prompts.json`. Where none does,
the event is unknown; the examples here have none.
"""

_SEEN = " It was trained on the examples of {splits}: metrics on these are not valid."


def readme(about: Mapping[str, Any], counts: Mapping[str, Any]) -> str:
    """The README of an export.

    Args:
        about: Content of `prompts.json`.
        counts: The manifest's counts.
    """
    context = about.get("context", {})
    one_length = about["shortest"] == about["longest"]
    written = {
        **about,
        **counts,
        "examples": len(about["examples"]),
        "history": about["examples"][-1]["history"],
        "conditioning": (_CONDITIONING.format(names=", ".join(context)) if context else "")
        + (_EVENTS if about.get("events") else ""),
        "argument": ", context={}" if context else "",
        "context": 'written += "".join(of[context[name]] for name, of in about["context"].items() if name in context)'
        "\n    "
        if context
        else "",
        "lengths": "" if one_length else _LENGTHS.format(**about),
        "seen": _SEEN.format(splits=" and ".join(counts["splits"])) if len(counts["splits"]) > 1 else "",
    }
    return _PAGE.format(**written)
