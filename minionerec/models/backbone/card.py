"""The model card of a checkpoint of a language model: README.md, as hubs show it."""

import json
from collections.abc import Mapping
from typing import Any

from minionerec.models.backbone.bundle import Bundle
from minionerec.models.prompts.examples import special_texts
from minionerec.models.prompts.wording import NEXT_SID

CARD_FILE = "README.md"

_CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- recommender-system
- semantic-ids
---

# {title}

A causal language model that continues a user's history of semantic IDs (SIDs) with the SID of the next item. It is not
a chat model: it generates items of one catalogue, by search over the SIDs that exist.

| | |
|---|---|
| architecture | {architecture}, {parameters:,} parameters |
| training stage | `minionerec {stage}` |
| catalogue | {items:,} items, {sids:,} distinct SIDs of up to {levels} codes (`index.json`) |
| training data | {data} |
| prompt | at most {max_prompt_length:,} tokens, worded as in `wording.yaml` |
| validation | {validation} |

The weights were selected by the validation figures, so these are optimistic. `minionerec eval-beam`
measures test examples, with 95 % intervals by user.

## How to use it

Without the project, with transformers alone; `index.json` holds the SIDs that may be generated:

```python
import json

from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".", use_safetensors=True).eval()
tokenizer = AutoTokenizer.from_pretrained(".")
sids = {{"".join(codes) for codes in json.load(open("index.json", encoding="utf-8")).values()}}
trie = {{}}
for sid in sids:
    node = trie
    for token in tokenizer(sid, add_special_tokens=False)["input_ids"]:
        node = node.setdefault(token, {{}})

prompt = {prompt}
inputs = tokenizer(prompt, return_tensors="pt")
length = inputs["input_ids"].shape[1]


def allowed(batch, ids):
    node = trie
    for token in ids[length:].tolist():
        node = node.get(token, {{}})
    return list(node) or [tokenizer.eos_token_id]


lists = model.generate(
    **inputs, num_beams=5, num_return_sequences=5, max_new_tokens={levels}, prefix_allowed_tokens_fn=allowed
)
for row in lists:
    print(tokenizer.decode(row[length:], skip_special_tokens=True))
```

With the project, by item ids, with filters and at a fraction of the cost of `generate`:

```python
from minionerec.recommend.recommender import Recommender

recommender = Recommender.load("PATH OF THIS FOLDER")
print(recommender.recommend(["ID OF AN ITEM"], k=5))
```

## Limits

- It knows the items of `index.json` and no others; `minionerec extend` adds items without training.
- It repeats what its training data say. Do not train on data that its users must not see.
- Probabilities are those of the training data's time; popularity changes, the weights do not.

## Settings

```json
{settings}
```
"""


def model_card(bundle: Bundle, *, stage: str, settings: Mapping[str, Any], counts: Mapping[str, Any]) -> str:
    """Build the model card of a checkpoint.

    Args:
        bundle: The checkpoint.
        stage: Name of the stage that trained it.
        settings: The settings that affect the result.
        counts: The manifest's counts: examples of each task, best validation figures.
    """
    model = bundle.model
    best = {key.removeprefix("eval_"): value for key, value in dict(counts.get("best", {})).items()}
    figures = ", ".join(f"{name.upper().replace('LOSS', 'loss')} {value:.4f}" for name, value in best.items())
    examples = counts["rows"] if isinstance(counts.get("rows"), Mapping) else {}
    task = bundle.wording.task(NEXT_SID)
    history = bundle.wording.separator.join(bundle.table.sids[:2])
    prompt = task.prompt.format_map({**special_texts(bundle.tokenizer), "history": history})
    return _CARD.format(
        title=f"A recommender over {bundle.table.n_unique:,} semantic IDs",
        architecture=type(model).__name__,
        parameters=model.num_parameters(),
        stage=stage,
        items=len(bundle.table),
        sids=bundle.table.n_unique,
        levels=bundle.table.levels,
        data=", ".join(f"{number:,} of {name}" for name, number in examples.items()) or "see manifest.json",
        max_prompt_length=bundle.max_prompt_length,
        validation=figures or "none; trained on all examples",
        prompt=json.dumps(prompt, ensure_ascii=False),
        settings=json.dumps(settings, indent=1, ensure_ascii=False, default=str),
    )
