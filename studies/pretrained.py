"""What stands between a pretrained language model and semantic IDs: the first steps of SFT, taken one at a time.

python studies/pretrained.py steps --model runs/smollm2 --corpus runs/demo/corpus --sids runs/demo/sids
python studies/pretrained.py dropout --model runs/smollm2 --corpus runs/demo/corpus
python studies/pretrained.py vectors --model runs/smollm2 --corpus runs/industrial/corpus --output runs/smollm2_layers

`steps` trains on user windows with a loss at every item and says the loss for each token on validation rows before and
after; `--no-lift` leaves out `lift_code_rows`. `dropout` measures the loss of item descriptions under `add_dropout`.
`vectors` writes mean hidden states of item texts, behind each layer, and says how near a row's target lies to the last
item of its history, by these vectors alone.
"""

import argparse
import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from minionerec.core.commands import run_command
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.build import load_pretrained
from minionerec.models.backbone.vocabulary import add_code_tokens, initialise_code_rows
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.models.prompts.wording import load_wording
from minionerec.sid.embed.texts import item_texts, l2_normalise, tfidf_svd
from minionerec.sid.table import SidTable
from minionerec.training.config import SftConfig
from minionerec.training.examples import listed
from minionerec.training.rows import SftExamples, tokenise_examples
from minionerec.training.sft import add_dropout

_TEXTS, _TEXT_TOKENS = 6, 128  # descriptions that `dropout` reads


def summed_loss(model: Any, rows: Sequence[dict[str, Any]], places: Sequence[int]) -> tuple[torch.Tensor, int]:
    """Negative log-likelihood of the labelled tokens of some rows, and their number."""
    width = max(len(rows[i]["input_ids"]) for i in places)
    ids, mask = torch.zeros(2, len(places), width, dtype=torch.int64)
    labels = torch.full((len(places), width), -100)
    for place, i in enumerate(places):
        length = len(rows[i]["input_ids"])
        ids[place, :length], mask[place, :length] = torch.tensor(rows[i]["input_ids"]), 1
        labels[place, :length] = torch.tensor(rows[i]["labels"])
    hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    asked = labels[:, 1:] >= 0
    logits = hidden[:, :-1][asked] @ model.get_output_embeddings().weight.T
    return torch.nn.functional.cross_entropy(logits, labels[:, 1:][asked], reduction="sum"), int(asked.sum())


def mean_loss(model: Any, rows: Sequence[dict[str, Any]], places: Sequence[int]) -> float:
    """Loss a token, without dropout."""
    model.eval()
    with torch.inference_mode():
        found = [summed_loss(model, rows, places[k : k + 16]) for k in range(0, len(places), 16)]
    model.train()
    return float(sum(loss for loss, _ in found)) / sum(count for _, count in found)


def first_steps(args: argparse.Namespace) -> dict[str, Any]:
    """A few steps of SFT."""
    torch.manual_seed(args.seed)
    corpus = Corpus.load(args.corpus)
    table = SidTable.load_index(Path(args.sids) / "index.json", corpus.items["item_id"].tolist())
    model, tokenizer = load_pretrained(args.model, torch.float32)
    add_code_tokens(tokenizer, table)
    left_out = mock.patch("minionerec.models.backbone.vocabulary.lift_code_rows", new=lambda *_: None)
    with left_out if args.no_lift else nullcontext():
        initialise_code_rows(model, tokenizer, table, corpus.items["title"].tolist(), args.seed)
    add_dropout(model, args.dropout)
    builder = ExampleBuilder(corpus, table, load_wording("compact"), special_texts(tokenizer))
    maker = SftExamples(tokenizer, builder, corpus, SftConfig(output="none", all_positions=True))
    rows = listed(maker.whole("next_sid", np.arange(maker.whole_count("next_sid")))[0])
    held_out = listed(tokenise_examples(tokenizer, builder.build("next_sid", "valid"), 512).flat(False)[0])
    asked = np.random.default_rng(0).choice(len(held_out), args.valid, replace=False).tolist()
    asked.sort(key=lambda i: len(held_out[i]["input_ids"]))
    order = np.random.default_rng(args.seed).permutation(len(rows)).tolist()
    weights: Any = list(model.parameters())
    optimiser = torch.optim.AdamW(weights, lr=args.learning_rate, weight_decay=0.1, fused=True)
    before, losses, norms = mean_loss(model, held_out, asked), [], []
    for step in range(args.steps):
        warm = (step + 1) / (args.warmup + 1)
        rate = warm if warm < 1 else (1 + math.cos(math.pi * (step - args.warmup) / (args.steps - args.warmup))) / 2
        for group in optimiser.param_groups:
            group["lr"] = args.learning_rate * rate
        loss, count = summed_loss(model, rows, order[step * args.rows : (step + 1) * args.rows])
        (loss / count).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, 1.0)))
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item() / count)
    after = mean_loss(model, held_out, asked)
    return {"before": before, "after": after, "first step": losses[0], "gradient norm": float(np.median(norms))}


def text_loss(args: argparse.Namespace) -> dict[str, float]:
    """Loss a token of long descriptions, for some shares of dropout."""
    found = {}
    for share in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3):
        torch.manual_seed(0)
        model, tokenizer = load_pretrained(args.model, torch.float32)
        add_dropout(model, share)
        network: Any = model.train()
        texts = [text for text in Corpus.load(args.corpus).items["description"] if len(text) > 400][:_TEXTS]
        total = count = 0.0
        for text in texts:
            read = tokenizer(text, add_special_tokens=False)["input_ids"][:_TEXT_TOKENS]
            ids = torch.tensor([[tokenizer.bos_token_id, *read]])
            with torch.inference_mode():
                logits = network(ids).logits[0, :-1]
            total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
            count += len(read)
        found[f"dropout {share}"] = total / count
    return found


def layer_means(model_path: str, texts: Sequence[str], limit: int) -> np.ndarray:
    """Mean hidden state behind each layer, float16 (layers + 1, N, D); the first token, a BOS, is left out."""
    model, tokenizer = load_pretrained(model_path, torch.float32)
    network: Any = model.eval()
    read = [
        [tokenizer.bos_token_id, *ids[:limit]] for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    ]
    order = sorted(range(len(read)), key=lambda i: -len(read[i]))
    made = np.zeros((network.config.num_hidden_layers + 1, len(read), network.config.hidden_size), dtype=np.float16)
    for start in range(0, len(order), 32):
        batch = order[start : start + 32]
        ids, mask = torch.zeros(2, len(batch), len(read[batch[0]]), dtype=torch.int64)
        for row, i in enumerate(batch):
            ids[row, : len(read[i])], mask[row, : len(read[i])] = torch.tensor(read[i]), 1
        with torch.inference_mode():
            states = network.model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        kept = mask.float()
        kept[:, 0] = 0
        kept /= kept.sum(1, keepdim=True).clamp(min=1)
        for layer, state in enumerate(states):
            made[layer, batch] = torch.einsum("btd,bt->bd", state, kept).numpy()
    return made


def principal(vectors: np.ndarray, width: int, whitening: float) -> np.ndarray:
    """Centred vectors on their first principal axes, divided by the axes' spread to the power `whitening`."""
    centred = vectors - vectors.mean(0)
    spread, axes = np.linalg.eigh(centred.T @ centred)
    kept = np.argsort(-spread)[:width]
    return (centred @ axes[:, kept]) / spread[kept] ** (whitening / 2)


def nearness(corpus: Corpus, vectors: np.ndarray) -> float:
    """NDCG@10 of validation targets among the items nearest to the last one of the history, repeats left out."""
    rows, unit = corpus.rows("valid"), l2_normalise(vectors)
    last, target = rows.newest, rows.targets
    last, target = last[last != target], target[last != target]
    scores = unit[last] @ unit.T
    scores[np.arange(len(last)), last] = -math.inf
    ranks = (scores > scores[np.arange(len(last)), target][:, None]).sum(1)
    return float(np.where(ranks < 10, 1 / np.log2(ranks + 2), 0).mean())


def text_vectors(args: argparse.Namespace) -> dict[str, float]:
    """Vectors of every layer, and ready-made ones for the catalogue model, with what they are worth alone."""
    corpus, output = Corpus.load(args.corpus), Path(args.output)
    texts, kept = item_texts(corpus), output / "layers.npy"
    output.mkdir(parents=True, exist_ok=True)
    if not kept.is_file():
        np.save(kept, layer_means(args.model, texts, args.max_length))
    layers, words = np.load(kept), tfidf_svd(texts, 128, 42)
    found = {"TF-IDF, 128": nearness(corpus, words)}
    for layer in args.layers:
        vectors = layers[layer].astype(np.float32)
        found[f"layer {layer}"] = nearness(corpus, vectors)
        found[f"layer {layer}, centred"] = nearness(corpus, vectors - vectors.mean(0))
        for whitening in (0.5, 1.0):
            made = l2_normalise(principal(vectors, 128, whitening))
            found[f"layer {layer}, 128 axes, whitening {whitening}"] = nearness(corpus, made)
            np.save(output / f"layer{layer}_w{whitening}.npy", made)
            np.save(output / f"layer{layer}_w{whitening}_tfidf.npy", np.hstack([words, made]) / math.sqrt(2))
    return found


def main() -> None:
    """Take the steps that are asked for, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "dropout", "vectors"])
    parser.add_argument("--model", required=True, help="directory of a causal language model in the form of Llama's")
    parser.add_argument("--corpus", required=True, help="corpus directory")
    parser.add_argument("--sids", help="steps: SID directory")
    parser.add_argument("--output", help="vectors: directory to write")
    parser.add_argument("--max_length", type=int, default=64, help="vectors: tokens read of a text")
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 10, 20, 30], help="vectors: layers to judge")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rows", type=int, default=6, help="steps: user windows a step")
    parser.add_argument("--valid", type=int, default=48, help="steps: validation rows")
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--warmup", type=int, default=0, help="steps: steps of warm-up")
    parser.add_argument("--dropout", type=float, default=0.0, help="steps: dropout")
    parser.add_argument("--no-lift", action="store_true", help="steps: leave code rows at the means of their words")
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {"steps": first_steps, "dropout": text_loss, "vectors": text_vectors}[args.what](args)
    print(json.dumps({name: round(value, 4) for name, value in found.items()}, indent=1))


if __name__ == "__main__":
    run_command(main)
