"""One step of supervised fine-tuning two ways on one model: padded TRL, and this project's packed batches.

MINIONEREC_DATA=/path/to/data python benchmarks/sft_step.py                  # 12 layers x 896, 32,000 tokens
MINIONEREC_DATA=/path/to/data python benchmarks/sft_step.py --layers 4 --width 256 --json
MINIONEREC_DATA=/path/to/data python benchmarks/sft_step.py --layers 24 --device cuda --dtype bfloat16
MINIONEREC_DATA=/path/to/data python benchmarks/sft_step.py --layers 24 --rows 1024 --steps 1 --count 8192 --json

`prose`: the same random rows of the published task mixture (next SID, SID to title and back, next title) in prose, as
TRL's SFTTrainer pads them, and packed, with the head at labels alone. `compact`: all rows of random users, one by one
as TRL pads them, and as one row a user with a loss at every item; users whose windows would be split are left out.

`--count` computes nothing: it counts a round's positions as a GPU would compute them, padded with rows sorted by
length, packed without padding (TRL's `packing`, which needs FlashAttention), and ours; and operations, as in `used_*`.

A step is collation, forward, backward and AdamW. Both ways see the same training tokens, counted as the rows one by one
have them, so the ratio of tokens per second is that of times. The summed loss and its gradient are compared before
anything is timed, in float32, on 64 rows and users at most. `cpu_ratio_*` compares processor time, which says more than
`ratio_*` where other programs share the machine and one thread is used.

In bfloat16 the weights are, and so are gradients and the optimiser's state; `mixed` is bfloat16 over float32 weights.

On a GPU each way has its best setting. Ours is what a stage does by itself: blocks compiled, parts as large as memory
holds. TRL's is padded, its rows sorted by length, with Liger's kernels where they are installed, and with the fastest
of `--stock-rows`; its padding-free batches need FlashAttention, which is no requirement of this project. One round of
each way is not counted, and `used_*` is the share of the card's own speed of products that was reached by those of the
model's matrices: 6 for each weight of a block and position of a batch (filling up counts), and of the head and label.
`peak_gib_*` is the most memory that a way's tensors took, weights and optimiser included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from card import card_figures, clock, forget_peak, peak_gib, used_share
from transformers.models.qwen2 import modeling_qwen2

TASKS = ["next_sid", "sid_to_title", "title_to_sid", "next_title"]


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="transformer blocks")
    parser.add_argument("--width", type=int, default=896, help="hidden size")
    parser.add_argument("--heads", type=int, default=0, help="attention heads; 0: width / 64")
    parser.add_argument("--kv-heads", type=int, default=2, help="key and value heads")
    parser.add_argument(
        "--inner", type=int, default=0, help="feed-forward width; 0: 4864 for width 896, else 3 x width"
    )
    parser.add_argument("--vocabulary", type=int, default=32000, help="tokens, SID tokens included")
    parser.add_argument("--rows", type=int, default=16, help="rows of a micro-batch; for compact, four times as many")
    parser.add_argument("--steps", type=int, default=2, help="micro-batches of a timed round")
    parser.add_argument("--users", type=int, default=32, help="compact: users of a timed round")
    parser.add_argument(
        "--dtype", default="float32", choices=["float32", "bfloat16", "mixed"], help="of weights as timed"
    )
    parser.add_argument(
        "--stock-rows", type=int, nargs="+", default=[64, 128, 256], help="on a GPU: rows of a micro-batch of TRL's"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where to compute")
    parser.add_argument(
        "--kinds", nargs="+", default=["prose", "compact"], choices=["prose", "compact"], help="of rows"
    )
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: as torch decides")
    parser.add_argument("--count", type=int, default=0, help="count alone, of ours with so many tokens at a time")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds; medians are shown")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and rows")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser.parse_args()


def trainers(args: argparse.Namespace, folder: Path) -> tuple[Any, Any, Any, Any, Any]:
    """Industrial data, a model of the shape asked for, and a trainer of each kind on it.

    Returns:
        Corpus, tokenizer, SID table, TRL's trainer, ours.
    """
    import torch
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig as TrlConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from minionerec.data.corpus import Corpus
    from minionerec.models.backbone.build import scratch_model, train_tokenizer
    from minionerec.models.backbone.bundle import quiet_libraries
    from minionerec.models.backbone.vocabulary import add_code_tokens
    from minionerec.sid.table import SidTable
    from minionerec.training.packing import TreeCollator, good_row_length
    from minionerec.training.sft import SidSftTrainer

    quiet_libraries()
    corpus_path, sids_path = str(folder / "corpus"), str(folder / "sids")
    for words in (
        ["prepare-data", "--config", "industrial#data", "--output", corpus_path],
        ["build-sids", "--config", "industrial#sids_published", "--corpus", corpus_path, "--output", sids_path],
    ):
        subprocess.run([sys.executable, "-m", "minionerec", *words], check=True, stdout=sys.stderr)
    corpus = Corpus.load(corpus_path)
    table = SidTable.load_index(sids_path, corpus.items["item_id"].tolist())
    texts = [*corpus.items["title"], *corpus.items["description"]]
    tokenizer = train_tokenizer(texts, args.vocabulary - len(table.tokens))
    add_code_tokens(tokenizer, table)
    with torch.device(args.device):
        model = scratch_model(
            tokenizer,
            args.seed,
            hidden_size=args.width,
            layers=args.layers,
            heads=args.heads or args.width // 64,
            kv_heads=args.kv_heads,
            inner_size=args.inner or (4864 if args.width == 896 else 3 * args.width),
        )
    model.resize_token_embeddings(args.vocabulary, mean_resizing=False)
    common = {
        "output_dir": str(folder / "run"),
        "report_to": [],
        "use_cpu": args.device == "cpu",
        "bf16": False,
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "disable_tqdm": True,
    }
    nothing = Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
    liger = args.device == "cuda" and find_spec("liger_kernel") is not None
    own = deepcopy(model) if args.device == "cuda" else model
    with rotary_positions():
        stock = SFTTrainer(
            model=own,
            args=TrlConfig(**common, use_liger_kernel=liger),
            train_dataset=nothing,
            processing_class=tokenizer,
        )
        if liger:
            stock.rotary = modeling_qwen2.apply_rotary_pos_emb
    ours = SidSftTrainer(
        model=model,
        args=TrlConfig(**common, remove_unused_columns=False),
        data_collator=TreeCollator(good_row_length(model)),
        train_dataset=nothing,
        processing_class=tokenizer,
    )
    return corpus, tokenizer, table, stock, ours


@contextmanager
def rotary_positions(function: Any = None) -> Iterator[None]:
    """Where Liger's kernels change Qwen2 for a whole process: a context that takes its rotary positions back after."""
    plain = modeling_qwen2.apply_rotary_pos_emb
    modeling_qwen2.apply_rotary_pos_emb = function or plain
    try:
        yield
    finally:
        modeling_qwen2.apply_rotary_pos_emb = plain


def examples_of(rows: Any, positions: Any) -> list[dict[str, list[int]]]:
    """Rows as a trainer's collator gets them."""
    return [{name: values[position] for name, values in rows.items()} for position in positions]


def prose_batches(args: argparse.Namespace, corpus: Any, tokenizer: Any, table: Any) -> tuple[list[Any], list[Any]]:
    """The same micro-batches for both: random rows of the task mixture."""
    import numpy as np

    from minionerec.models.prompts.examples import ExampleBuilder, special_texts
    from minionerec.models.prompts.wording import load_wording
    from minionerec.training.rows import tokenise_examples

    builder = ExampleBuilder(corpus, table, load_wording("prose"), special_texts(tokenizer))
    examples = [example for task in TASKS for example in builder.build(task, "train")]
    chosen = np.random.default_rng(args.seed).permutation(len(examples))[: args.rows * args.steps]
    columns, _ = tokenise_examples(tokenizer, [examples[position] for position in chosen], 512)
    rows = examples_of(columns, range(len(chosen)))
    batches = [rows[start : start + args.rows] for start in range(0, len(rows), args.rows)]
    return batches, batches


def listed(columns: Any) -> list[dict[str, Any]]:
    """Examples in flat columns one by one, as a data set gives them."""
    import numpy as np

    parts = (np.split(values, np.cumsum(lengths)[:-1]) for values, lengths in columns.values())
    return [
        {name: value.tolist() for name, value in zip(columns, row, strict=True)} for row in zip(*parts, strict=True)
    ]


def compact_batches(args: argparse.Namespace, corpus: Any, tokenizer: Any, table: Any) -> tuple[list[Any], list[Any]]:
    """Micro-batches of random users' rows one by one, and of the same users' windows."""
    from dataclasses import replace

    import numpy as np

    from minionerec.models.prompts.examples import ExampleBuilder, special_texts
    from minionerec.models.prompts.wording import load_wording
    from minionerec.training.rows import SftExamples, tokenise_examples

    train = corpus.train
    users, numbers, counts = np.unique(train.users, return_inverse=True, return_counts=True)
    shortest = np.full(len(users), corpus.max_history)
    np.minimum.at(shortest, numbers, train.lengths)
    whole = np.flatnonzero((shortest == 1) & (counts <= corpus.max_history))
    rng = np.random.default_rng(args.seed)
    chosen = whole[rng.permutation(len(whole))[: args.users]]
    small = replace(corpus, train=train.take(np.isin(numbers, chosen)))
    builder = ExampleBuilder(small, table, load_wording("compact"), special_texts(tokenizer))
    one_by_one, _ = tokenise_examples(tokenizer, builder.build("next_sid", "train"), 512)
    maker = SftExamples(tokenizer, builder, small, {"next_sid": 1.0}, args.seed, all_positions=True)
    positions, make = maker.opened("next_sid")
    windows, _ = make(positions)
    batches = []
    for rows in (examples_of(one_by_one, range(len(one_by_one["labels"]))), listed(windows)):
        order = rng.permutation(len(rows))
        size = 4 * args.rows
        batches.append([[rows[row] for row in order[start : start + size]] for start in range(0, len(order), size)])
    return batches[0], batches[1]


def collated(trainer: Any, batches: list[Any]) -> Iterator[dict[str, Any]]:
    """Inputs of a round's micro-batches, or of parts that memory holds where the trainer computes in such."""
    limit = getattr(trainer, "limit", None)
    if limit is None:
        parts: Iterable[Any] = map(trainer.data_collator, batches)
    else:
        share = trainer.data_collator.share([row for batch in batches for row in batch])["share"]
        parts = share.split(share.count(limit.tokens))
    for part in parts:
        yield {name: values.to(trainer.model.device) for name, values in part.items()}


def step_of(trainer: Any, batches: list[Any], optimiser: Any, mixed: bool = False) -> Callable[[], float]:
    """One step over micro-batches; gives the summed loss, and leaves the gradient where no optimiser is given."""
    import torch

    labels = sum(label >= 0 for batch in batches for row in batch for label in row["labels"][1:])
    kind = trainer.model.device.type

    def step() -> float:
        losses = []
        with rotary_positions(getattr(trainer, "rotary", None)):
            for inputs in collated(trainer, batches):
                with torch.autocast(kind, torch.bfloat16, enabled=mixed):
                    loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=labels)
                loss.backward()
                losses.append(loss.detach())
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad()
        return float(sum(losses))

    return step


def compare(stock: Any, ours: Any, batches: tuple[list[Any], list[Any]]) -> tuple[float, float]:
    """Relative differences of the loss and of its gradient."""
    results = []
    for trainer, mine in zip((stock, ours), batches, strict=True):
        loss = step_of(trainer, mine, None)()
        results.append((loss, [parameter.grad.clone() for parameter in trainer.model.parameters()]))
        trainer.model.zero_grad()
    (loss, gradient), (other, other_gradient) = results
    apart = sum(float((a - b).square().sum()) for a, b in zip(gradient, other_gradient, strict=True)) ** 0.5
    size = sum(float(a.square().sum()) for a in gradient) ** 0.5
    return abs(loss - other) / loss, apart / size


def times(
    args: argparse.Namespace,
    name: str,
    trainers: dict[str, Any],
    batches: tuple[list[Any], list[Any]],
    optimisers: dict[Any, Any],
    card: dict[str, Any],
) -> dict[str, Any]:
    """Time rounds of both ways in turns, on one kind of rows."""
    mixed = args.dtype == "mixed"
    if args.device == "cuda":
        batches = fastest(args, trainers["stock"], batches[0], mixed), batches[1]
    seconds: dict[str, list[float]] = {way: [] for way in trainers}
    busy: dict[str, list[float]] = {way: [] for way in trainers}
    peaks: dict[str, float | None] = {}
    warm = int(args.device == "cuda")
    for turn in range(args.repeats + warm):
        for (way, trainer), mine in zip(trainers.items(), batches, strict=True):
            step = step_of(trainer, mine, optimisers[trainer.model], mixed)
            forget_peak(args.device)
            start, start_busy = clock(args.device), time.process_time()
            step()
            spent = clock(args.device) - start, time.process_time() - start_busy
            if turn >= warm:
                others = sum(held(*pair) for pair in optimisers.items() if pair[0] is not trainer.model)
                peak = peak_gib(args.device)
                peaks[way] = None if peak is None else round(peak - others / 2**30, 2)
                seconds[way].append(spent[0])
                busy[way].append(spent[1])
            if not args.json:
                print(f"{name}, {way}: {spent[0]:.2f} s", file=sys.stderr)
    median = {way: statistics.median(values) for way, values in seconds.items()}
    busy_median = {way: statistics.median(values) for way, values in busy.items()}
    tokens = sum(len(row["input_ids"]) for batch in batches[0] for row in batch)
    labels = sum(label >= 0 for batch in batches[0] for row in batch for label in row["labels"][1:])
    parts = {
        way: [(part["input_ids"].numel(), part["labels"].numel()) for part in collated(trainer, mine)]
        for (way, trainer), mine in zip(trainers.items(), batches, strict=True)
    }
    positions = {way: sum(count for count, _ in counts) for way, counts in parts.items()}
    operations = operations_of(trainers["ours"].model, positions, labels)
    return {
        f"ratio_{name}": round(median["stock"] / median["ours"], 2),
        f"cpu_ratio_{name}": round(busy_median["stock"] / busy_median["ours"], 2),
        f"tokens_per_second_{name}": {way: round(tokens / value, 1) for way, value in median.items()},
        f"tokens_{name}": {"real": tokens, "labels": labels, **positions},
        f"operations_{name}": operations,
        f"used_{name}": {way: used_share(operations[way], value, card) for way, value in median.items()},
        f"peak_gib_{name}": peaks,
        f"seconds_{name}": {way: [round(value, 4) for value in values] for way, values in seconds.items()},
        f"at_once_{name}": {way: max(count for count, _ in counts) for way, counts in parts.items()},
    }


def operations_of(model: Any, positions: dict[str, int], labels: int) -> dict[str, int]:
    """Operations in the model's matrices: 6 for each weight of a block and position, and of the head and label."""
    body = sum(weight.numel() for weight in model.get_decoder().layers.parameters() if weight.dim() == 2)
    head = model.lm_head.weight.numel()
    return {way: 6 * (body * count + head * labels) for way, count in positions.items()}


def counted(args: argparse.Namespace, trainer: Any, name: str, batches: tuple[list[Any], list[Any]]) -> dict[str, Any]:
    """Positions and operations of a round, of which nothing is computed."""
    lengths = sorted(len(row["input_ids"]) for batch in batches[0] for row in batch)
    padded = {
        size: sum(max(lengths[start : start + size]) * len(lengths[start : start + size]) for start in starts)
        for size, starts in ((size, range(0, len(lengths), size)) for size in args.stock_rows)
    }
    parts = list(collated(trainer, batches[1]))
    positions = {
        "padded": min(padded.values()),
        "packed": sum(lengths),
        "ours": sum(part["input_ids"].numel() for part in parts),
    }
    labels = sum(part["labels"].numel() for part in parts)
    operations = operations_of(trainer.model, positions, labels)
    return {
        f"positions_{name}": positions,
        f"labels_{name}": labels,
        f"parts_{name}": len(parts),
        f"operations_{name}": operations,
        f"ratios_{name}": {way: round(operations[way] / operations["ours"], 2) for way in ("padded", "packed")},
    }


def held(model: Any, optimiser: Any) -> int:
    """Bytes of a model's weights and its optimiser's state."""
    values = [*model.parameters(), *(part for state in optimiser.state.values() for part in state.values())]
    return sum(value.nbytes for value in values)


def fastest(args: argparse.Namespace, stock: Any, batches: list[Any], mixed: bool) -> list[Any]:
    """The micro-batches of TRL's with which a round takes least, rows sorted by length; without the optimiser."""
    import torch

    rows = sorted((row for batch in batches for row in batch), key=lambda row: len(row["input_ids"]))
    found: dict[float, list[Any]] = {}
    for size in args.stock_rows:
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        step = step_of(stock, parts, None, mixed)
        try:
            step()
            start = clock(args.device)
            step()
            found[clock(args.device) - start] = parts
        except torch.OutOfMemoryError:
            print(f"TRL's rows {size}: memory ended", file=sys.stderr)
        stock.model.zero_grad()
    return found[min(found)]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Check that both ways agree, then time them in turns."""
    import torch

    from minionerec.core.machine import keep_freed_memory
    from minionerec.training.memory import TokenLimit

    keep_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    figures: dict[str, Any] = {"equal": True, "threads": torch.get_num_threads(), "asked": vars(args)}
    with tempfile.TemporaryDirectory() as folder:
        corpus, tokenizer, table, stock, ours = trainers(args, Path(folder))
        ours.model.train()
        makers = {"prose": prose_batches, "compact": compact_batches}
        work = {name: makers[name](args, corpus, tokenizer, table) for name in args.kinds}
        if args.count:
            ours.set_limit(TokenLimit(args.count, False))
            return {"asked": vars(args)} | {
                name: value for kind in args.kinds for name, value in counted(args, ours, kind, work[kind]).items()
            }
        if args.device == "cuda":
            ours.compile_blocks(10**6)
            ours.set_limit(TokenLimit(8192, False))
        few = {name: min(vars(args)[name], most) for name, most in (("rows", 32), ("steps", 2), ("users", 64))}
        for name in args.kinds:
            batches = makers[name](argparse.Namespace(**vars(args) | few), corpus, tokenizer, table)
            loss, gradient = compare(stock, ours, batches)
            figures["equal"] &= loss < 1e-5 and gradient < 1e-4
            figures[f"difference_{name}"] = {"loss": loss, "gradient": gradient}
        card = card_figures(args.device, "float32" if args.dtype == "float32" else "bfloat16")
        figures |= card | {"compiled": ours.compiled}
        timed = {"stock": stock, "ours": ours}
        for trainer in timed.values():
            trainer.model.to(torch.float32 if args.dtype == "mixed" else getattr(torch, args.dtype))
        # At rate 0 every round has the same weights; the optimiser's work is the same.
        optimisers = {
            model: torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=True)
            for model in (stock.model, ours.model)
        }
        if args.device == "cuda":
            ours.compute_in_parts(False)
        for name, batches in work.items():
            figures |= times(args, name, timed, batches, optimisers, card)
    return figures


def main() -> int:
    """Measure and print; status 1 where the losses or gradients differ."""
    args = options()
    if not os.environ.get("MINIONEREC_DATA"):
        print("error: MINIONEREC_DATA is not set; data/README.md says where the files come from.", file=sys.stderr)
        return 2
    figures = measure(args)
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:28}{value}")
    return 0 if figures.get("equal", True) else 1


if __name__ == "__main__":
    sys.exit(main())
