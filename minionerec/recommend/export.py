"""The stage that writes a language model down for other engines: plain Hugging Face files, the trie, the wording."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from minionerec import __version__
from minionerec.core.artefacts import MANIFEST
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.core.refit import refitted_behind
from minionerec.core.stage import Stage
from minionerec.data.corpus import Corpus
from minionerec.data.session import SESSION_CONTEXTS
from minionerec.models.backbone.bundle import Bundle, check_decoder_alone, clean_generation_config, load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.decoding.decoder import decode_prompts, decoding_device
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, encode_completion, encode_prompt, special_texts
from minionerec.recommend import sid_trie
from minionerec.recommend.config import ExportConfig
from minionerec.recommend.rankers.candidates import list_items, ranked_items
from minionerec.sid.table import SidTable

logger = get_logger(__name__)

TRIE_FILE, ITEMS_FILE, PROMPTS_FILE = "trie.safetensors", "sid_to_item.json", "prompts.json"
README_FILE = "README.md"


@dataclass(frozen=True)
class ExportResult:
    """Where an export lies.

    Attributes:
        output: Its directory.
        counts: The manifest's counts: SIDs, items, nodes of the trie, parameters.
        url: The address that it was uploaded to; empty where it was not.
    """

    output: Path
    counts: dict[str, Any]
    url: str = ""

    def lines(self) -> list[str]:
        """How to check the export, and where it lies."""
        return [
            f"{self.counts['sids']:,} SIDs of {self.counts['items']:,} items; to check it: "
            f"python {self.output / Path(sid_trie.__file__).name}",
            f"export: {self.output}",
            *([f"uploaded: {self.url}"] if self.url else []),
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
        return ExportResult(stage.output, manifest["counts"], _pushed(stage.output, config))
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
    return ExportResult(stage.output, counts, _pushed(stage.output, config))


def _pushed(folder: Path, config: ExportConfig) -> str:
    """Upload an export where the settings name a repository, and give its address.

    The manifest stays here: it names paths of this machine.

    Raises:
        ArtefactError: If the hub cannot be reached, or refuses.
    """
    if not config.push:
        return ""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    hub = HfApi()
    try:
        made = hub.create_repo(config.push, exist_ok=True, private=config.private)
        said = f"Export of a recommender (minionerec {__version__})"
        hub.upload_folder(repo_id=config.push, folder_path=folder, ignore_patterns=[MANIFEST], commit_message=said)
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, OSError) as error:
        raise ArtefactError(
            f"{config.push}: the export in {folder} is finished, but could not be uploaded ({_one_line(error)}). Check "
            "the name, the connection and `hf auth login`, and run the same command again."
        ) from None
    return str(made)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


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
    said = (
        dict(zip(SESSION_CONTEXTS, ("", *bundle.wording.session_context), strict=True))
        if builder.prompt_uses_context("next_sid")
        else {}
    )
    return {
        "wording": bundle.wording.name,
        "template": task.prompt,
        "separator": bundle.wording.separator,
        **({"session_contexts": said} if said else {}),
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
    """Some prompts with the lists that are to be expected; a model that reads the session context gets each in turn."""
    histories = example_histories(builder.corpus, config.examples)
    conditioned = builder.prompt_uses_context("next_sid")
    contexts = [place % len(SESSION_CONTEXTS) * conditioned for place in range(len(histories))]
    asked = zip(histories, contexts, strict=True)
    texts = [builder.prompt("next_sid", history=history, context=context) for history, context in asked]
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
                **({"session_context": SESSION_CONTEXTS[contexts[place]]} if conditioned else {}),
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


_PAGE = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- recommender-system
- semantic-ids
---

# A recommender as a plain language model

A causal language model that goes on from a customer's history of semantic IDs (SIDs) with the next one, in the files of
Hugging Face: {parameters:,} weights in {dtype}, {sids:,} SIDs of {items:,} items.{refit}

| file | what it holds |
|---|---|
| `model.safetensors`, `config.json`, `generation_config.json` | the model, a class of transformers |
| `tokenizer.json`, `tokenizer_config.json` | the tokenizer; every code of an SID is one token |
| `sid_to_item.json` | SID as text → ids of its items, the more popular first; line n of the order is SID number n |
| `trie.safetensors` | which tokens may follow: `first_child` int32 (M + 1), `token` and `sid` int32 (M) |
| `prompts.json` | how a prompt is written, and {examples} examples with the lists to be expected |
| `sid_trie.py` | reads the trie, and searches it with any engine's log-probabilities; needs numpy and safetensors |

The children of node n of the trie are the nodes `first_child[n]` to `first_child[n + 1] - 1`, `token[n]` leads to node
n, and `sid[n]` is the number of the SID that ends there, -1 where none does. Node 0 is the root.

To check the files, and the transformers that is to load them:

```bash
python sid_trie.py
```

## Prompts

Take the customer's newest {max_history} items at most, oldest first. Write their SIDs with `separator` between them,
put them into `template` with `specials`, tokenise, and keep the last {max_prompt_length} tokens. What the model says
next is an SID, code by code. Its score is the sum of its codes' log-probabilities, each from a softmax over the whole
vocabulary; tokens that the trie does not allow are left out after that, and nothing is scaled up again.
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


def recommend(history, k=10{asked}):
    sids = [sid_of[item] for item in history[-about["max_history"] :]]
    text = about["template"].format(history=about["separator"].join(sids), {said}**about["specials"])
    prompt = tokenizer(text)["input_ids"][-about["max_prompt_length"] :]
    found = stock_lists(model, trie, prompt, k, steps=about["longest"])
    return [item for said, _ in found for item in items_of["".join(tokenizer.convert_ids_to_tokens(said))]]


print(recommend({history!r}))
```
{lengths}
## With an engine

None of these was run to make this export: what follows was read in their documentation, in autumn 2026. Send token ids,
not text, so that the engine's own tokenizer, templates and start tokens have no say.

`SidTrie.search` is a beam search that asks an engine once for each code: for some sequences of token ids, the
log-probabilities of the tokens that may follow. It keeps the trie on your side, so an engine needs no support for
constraints, and it gives the lists of `stock_lists`. Engines with a prefix cache read a prompt once.

**SGLang** gives them by `POST /generate` with `input_ids`, `token_ids_logprob`, `return_logprob` and one new token:

```text
def log_probs(sequences, tokens):
    asked = {{"input_ids": sequences, "token_ids_logprob": tokens, "return_logprob": True,
             "sampling_params": {{"max_new_tokens": 1, "temperature": 0}}}}
    answers = requests.post(url + "/generate", json=asked).json()
    found = [dict((token, value) for value, token, _ in answer["meta_info"]["output_token_ids_logprobs"][0])
             for answer in answers]
    return [[row[token] for token in ids] for row, ids in zip(found, tokens)]
```

Its own beam search (merged in 2026) chooses from the whole vocabulary, so that some of its beams are no items.

**vLLM** gives them by `LLM.generate` with `SamplingParams(max_tokens=1, logprobs=0, logprob_token_ids=ids)`, at most
128 ids a request: ask in parts. `LLM.beam_search` can be held to a grammar (`BeamSearchParams.structured_outputs`), but
grammars are about text, and `<a_12>` can also be spelled letter by letter: its lists may be others.

**FlashRec** searches a catalogue of SIDs in the engine itself. It loads dense Qwen3 models (this one is a
{architecture}), wants all SIDs of one length and their begin and end tokens around them, puts prompts into a chat
template, and computes in FP8 unless told otherwise. An export has no such tokens and no template, so it does not fit
unchanged; what it asks for (`--sid-vocab-file`, `--sid`) can be written from `trie.safetensors`. Hold its lists against
the examples.
"""

_LENGTHS = """
SIDs of this catalogue differ in length ({shortest} to {longest} codes), and stock `generate` cannot tell where a short
one ends: take `trie.search(model_log_probs(model), prompt, k)` instead of `stock_lists`.
"""

_CONDITIONING = """
This model was conditioned on the session context in training, and a prompt may give it. Where `{{session_context}}`
stands in `template`, write `{same}` for an item of the newest one's session, `{later}` for one of a later session, and
nothing where you do not know. After an empty history write nothing. In `prompts.json` these are `session_contexts`.
"""

_REFIT = " It was trained on all rows, those held out for tests too: no figure measured on them says anything about it."


def readme(about: Mapping[str, Any], counts: Mapping[str, Any]) -> str:
    """The page.

    Args:
        about: Content of `prompts.json`.
        counts: The manifest's counts.
    """
    contexts = about.get("session_contexts", {})
    one_length = about["shortest"] == about["longest"]
    written = {
        **about,
        **counts,
        "examples": len(about["examples"]),
        "history": about["examples"][-1]["history"],
        "conditioning": _CONDITIONING.format(**contexts) if contexts else "",
        "asked": ', session_context="unknown"' if contexts else "",
        "said": 'session_context=about["session_contexts"][session_context if sids else "unknown"], '
        if contexts
        else "",
        "lengths": "" if one_length else _LENGTHS.format(**about),
        "refit": _REFIT if counts["refit"] else "",
    }
    return _PAGE.format(**written)
