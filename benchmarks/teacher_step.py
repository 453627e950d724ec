"""What a teacher adds to a step of supervised fine-tuning: the same batches with labels alone, and with soft targets.

python benchmarks/teacher_step.py                    # after `minionerec run industrial`, or its first three stages
python benchmarks/teacher_step.py --threads 1 --json

A step is collation, forward, backward and AdamW of the model of configs/industrial/language/sft.yaml on 64 windows.
Both ways take turns batch by batch. `cpu_ratio` compares processor time, which says more than `ratio` where other
programs share the machine and one thread is used.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

from minionerec.backbone.build import ScratchShape, scratch_model, train_tokenizer
from minionerec.backbone.bundle import Bundle
from minionerec.backbone.vocabulary import add_code_tokens
from minionerec.core.commands import run_command
from minionerec.core.memory import keep_freed_memory
from minionerec.data.corpus import Corpus
from minionerec.data.windows import user_windows
from minionerec.decoding.trie import Trie
from minionerec.prompts.examples import ExampleBuilder, special_texts
from minionerec.prompts.wording import load_wording
from minionerec.sid.table import SidTable
from minionerec.training.packing import TreeCollator, good_row_length
from minionerec.training.rows import Rows, tokenise_windows
from minionerec.training.shared_prefix import picked_logits
from minionerec.training.teacher import Teacher, load_teacher, soften


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="runs/industrial/corpus")
    parser.add_argument("--sids", default="runs/industrial/sids_published")
    parser.add_argument("--teacher", default="runs/industrial/catalogue", help="checkpoint of a catalogue model")
    parser.add_argument("--batch", type=int, default=64, help="windows of a step")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each kind")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    return parser.parse_args()


def load(args: argparse.Namespace) -> tuple[Bundle, Rows, Teacher]:
    """A model of the recipe's shape, its rows, and the teacher."""
    corpus = Corpus.load(args.corpus)
    table = SidTable.load_index(args.sids, corpus.items["item_id"].tolist())
    tokenizer = train_tokenizer(corpus.items["title"].tolist(), 1000)
    add_code_tokens(tokenizer, table)
    wording = load_wording("compact")
    bundle = Bundle(scratch_model(tokenizer, ScratchShape(), 0), tokenizer, table, wording, 512)
    builder = ExampleBuilder(corpus, table, wording, special_texts(tokenizer))
    rows = tokenise_windows(tokenizer, builder, user_windows(corpus))
    return bundle, rows, load_teacher(args.teacher, table, Trie.build(table.codes, bundle.code_ids))


def step(
    bundle: Bundle, optimiser: torch.optim.Optimizer, examples: list[dict[str, Any]], teacher: Teacher | None
) -> None:
    """One optimiser step on a batch."""
    model: Any = bundle.model
    batch = TreeCollator(good_row_length(model), asks_teacher=teacher is not None)(examples)
    labels = batch["labels"][0]
    logits = picked_logits(model, model, batch)
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    if teacher is not None:
        losses = soften(losses, logits, labels, teacher.soft_targets(batch), 1.0)
    losses.mean().backward()
    optimiser.step()
    optimiser.zero_grad()


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
    for number in range(args.steps + 3):  # the first three are not counted
        places = rng.choice(len(rows), args.batch, replace=False)
        examples = [{name: column[place] for name, column in rows.columns.items()} for place in places]
        for name, who in (("labels alone", None), ("with a teacher", teacher)):
            wall, cpu = time.perf_counter(), time.process_time()
            step(bundle, optimiser, examples, who)
            if number >= 3:
                spent[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    medians = {name: [statistics.median(part) for part in zip(*times, strict=True)] for name, times in spent.items()}
    (wall, cpu), (taught_wall, taught_cpu) = medians.values()
    found = {"seconds": medians, "ratio": taught_wall / wall, "cpu_ratio": taught_cpu / cpu}
    if args.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return
    for name, (seconds, own) in medians.items():
        print(f"{name}: {seconds:.3f} s a step, {own:.3f} s of processor time")
    print(f"ratio {found['ratio']:.2f}, of processor time {found['cpu_ratio']:.2f}")


if __name__ == "__main__":
    run_command(main)
