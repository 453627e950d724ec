"""The page that lies in every export: what the files are, how to ask the model, and what is known of engines."""

from collections.abc import Mapping
from typing import Any

README_FILE = "README.md"

_PAGE = """# A recommender as a plain language model

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
{telling}
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

_TELLING = """
This model was told in training when the next item came, and a prompt may say it. Where `{{moment}}` stands in
`template`, write `{same}` while the visit of the newest item goes on, `{later}` when somebody comes back, and nothing
where you do not know. Behind an empty history write nothing. In `prompts.json` these are `moments`.
"""

_REFIT = " It was trained on all rows, those held out for tests too: no figure measured on them says anything about it."


def readme(about: Mapping[str, Any], counts: Mapping[str, Any]) -> str:
    """The page.

    Args:
        about: Content of `prompts.json`.
        counts: The manifest's counts.
    """
    moments = about.get("moments", {})
    one_length = about["shortest"] == about["longest"]
    written = {
        **about,
        **counts,
        "examples": len(about["examples"]),
        "history": about["examples"][-1]["history"],
        "telling": _TELLING.format(**moments) if moments else "",
        "asked": ', moment="unknown"' if moments else "",
        "said": 'moment=about["moments"][moment if sids else "unknown"], ' if moments else "",
        "lengths": "" if one_length else _LENGTHS.format(**about),
        "refit": _REFIT if counts["refit"] else "",
    }
    return _PAGE.format(**written)
