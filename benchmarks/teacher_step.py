"""What a teacher adds to a step of supervised fine-tuning: the same batches with labels alone, and with soft targets.

python benchmarks/teacher_step.py                    # after `minionerec run industrial`, or its first three stages
python benchmarks/teacher_step.py --threads 1 --json
python benchmarks/teacher_step.py --layers 24 --width 896 --heads 14 --kv-heads 2 --inner 4864 --vocabulary 151936 \
    --device cuda --dtype bfloat16 --json

A step is collation, forward, backward and AdamW of the model of industrial#sft on 64 windows, or
of a model of another shape. Both ways take turns batch by batch. `cpu_ratio` compares processor time, which says more
than `ratio` where other programs share the machine and one thread is used. In bfloat16 the weights of the student are,
and so are gradients and the optimiser's state; the teacher stays as it is. `used` is the share of a card's own speed of
products that was reached by those of the student's matrices (6 for each weight of a block and position of a batch, and
for each weight of the head and label).
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from card import card_figures, clock, forget_peak, peak_gib, used_share
from sft_step import listed
from trl.trainer.utils import add_fused_lm_head

from minionerec.core.commands import run_command
from minionerec.core.machine import keep_freed_memory
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.build import scratch_model, train_tokenizer
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.backbone.vocabulary import add_code_tokens
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.models.prompts.wording import load_wording
from minionerec.pipeline.training_run import load_teacher
from minionerec.sid.table import SidTable
from minionerec.training.distillation import Teacher, soften
from minionerec.training.packing import TreeCollator, good_row_length, picked_losses
from minionerec.training.rows import SftExamples


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="runs/industrial/corpus")
    parser.add_argument("--sids", default="runs/industrial/sids_published")
    parser.add_argument("--teacher", default="runs/industrial/catalogue", help="checkpoint of a catalogue model")
    parser.add_argument("--batch", type=int, default=64, help="windows of a step")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each kind")
    parser.add_argument("--width", type=int, default=256, help="student: hidden size")
    parser.add_argument("--layers", type=int, default=4, help="student: transformer blocks")
    parser.add_argument("--heads", type=int, default=4, help="student: attention heads")
    parser.add_argument("--kv-heads", type=int, default=4, help="student: key and value heads")
    parser.add_argument("--inner", type=int, default=768, help="student: width of the feed-forward layer")
    parser.add_argument("--vocabulary", type=int, default=0, help="student: rows of the embedding; 0: its tokenizer's")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="student: of the weights")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where to compute")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    return parser.parse_args()


def load(args: argparse.Namespace) -> tuple[Bundle, list[dict[str, Any]], Teacher]:
    """A model of the recipe's shape, its rows, and the teacher."""
    corpus = Corpus.load(args.corpus)
    table = SidTable.load_index(args.sids, corpus.items["item_id"].tolist())
    tokenizer = train_tokenizer(corpus.items["title"].tolist(), 1000)
    add_code_tokens(tokenizer, table)
    wording = load_wording("compact")
    builder = ExampleBuilder(corpus, table, wording, special_texts(tokenizer))
    maker = SftExamples(tokenizer, builder, corpus, {"next_sid": 1.0}, 0, all_positions=True, teacher=True)
    positions, make = maker.opened("next_sid")
    rows = listed(make(positions)[0])
    shape = {"hidden_size": args.width, "layers": args.layers, "heads": args.heads, "kv_heads": args.kv_heads}
    with torch.device(args.device):
        model: Any = scratch_model(tokenizer, 0, inner_size=args.inner, **shape)
    if args.vocabulary:
        model.resize_token_embeddings(args.vocabulary, mean_resizing=False)
    add_fused_lm_head(model)
    bundle = Bundle(model.to(getattr(torch, args.dtype)), tokenizer, table, wording, 512)
    return bundle, rows, load_teacher(args.teacher, table, Trie.build(table.codes, bundle.code_ids))


def step(
    bundle: Bundle, optimiser: torch.optim.Optimizer, examples: list[dict[str, Any]], teacher: Teacher | None
) -> tuple[int, int]:
    """One optimiser step on a batch; its positions, and its labels."""
    model: Any = bundle.model
    collated = TreeCollator(good_row_length(model), with_teacher=teacher is not None)(examples)
    batch = {name: part.to(model.device) for name, part in collated.items()}
    labels = batch["labels"][0]
    losses, logits_of = picked_losses(model, model, batch)
    if teacher is not None:
        losses = soften(losses, logits_of, labels, teacher(batch), 1.0)
    losses.mean().backward()
    optimiser.step()
    optimiser.zero_grad()
    return int(batch["input_ids"].numel()), len(labels)


def main() -> None:
    """Take turns, and print medians."""
    args = options()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    bundle, rows, teacher = load(args)
    bundle.model.train()
    optimiser = torch.optim.AdamW(bundle.model.parameters(), lr=1e-3, fused=True)
    rng = np.random.default_rng(0)
    spent: dict[str, list[tuple[float, float]]] = {"labels alone": [], "with a teacher": []}
    peaks: dict[str, float | None] = {}
    tokens, operations = [], []
    card = card_figures(args.device, args.dtype)
    body = sum(weight.numel() for weight in bundle.model.get_decoder().layers.parameters() if weight.dim() == 2)
    head = bundle.model.get_output_embeddings().weight.numel()
    for number in range(args.steps + 3):  # the first three are not counted
        indices = rng.choice(len(rows), args.batch, replace=False)
        examples = [rows[position] for position in indices]
        for name, own_teacher in (("labels alone", None), ("with a teacher", teacher)):
            forget_peak(args.device)
            wall, cpu = clock(args.device), time.process_time()
            positions, labels = step(bundle, optimiser, examples, own_teacher)
            wall, cpu = clock(args.device) - wall, time.process_time() - cpu
            if number >= 3:
                spent[name].append((wall, cpu))
                peaks[name] = max(peaks.get(name) or 0.0, peak_gib(args.device) or 0.0) or None
        if number >= 3:
            tokens.append(sum(len(example["input_ids"]) for example in examples))
            operations.append(6 * (body * positions + head * labels))
    medians = {name: [statistics.median(part) for part in zip(*times, strict=True)] for name, times in spent.items()}
    (wall, cpu), (distilled_wall, distilled_cpu) = medians.values()
    found = {"seconds": medians, "ratio": distilled_wall / wall, "cpu_ratio": distilled_cpu / cpu}
    found["tokens_per_second"] = {name: round(statistics.mean(tokens) / part[0], 1) for name, part in medians.items()}
    found["used"] = {name: used_share(statistics.mean(operations), part[0], card) for name, part in medians.items()}
    found |= {"peak_gib": peaks, **card, "asked": vars(args)}
    if args.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for name, (seconds, own) in medians.items():
        print(f"{name}: {seconds:.3f} s a step, {own:.3f} s of processor time")
    print(f"ratio {found['ratio']:.2f}, of processor time {found['cpu_ratio']:.2f}")


if __name__ == "__main__":
    run_command(main)
