"""Time of a training epoch and a full ranking, one thread; for SASRec and WEARec beside a per-sample pipeline.

python benchmarks/sequential_epoch.py --model wearec --corpus $MINIONEREC_DATA/sequential/LastFM.txt
python benchmarks/sequential_epoch.py --model sasrec --corpus $MINIONEREC_DATA/sequential/Beauty.txt --steps 100 --json
python benchmarks/sequential_epoch.py --model sasrec --corpus $MINIONEREC_DATA/sequential/Beauty.txt --device cuda

Seconds are those of the processor; with `--device cuda` those of the clock, read when the card has nothing to do, and
after a few steps and rows of each that are not counted.

The pipeline is written as the field writes it: a Dataset that builds one padded row at a time as a Python list and
draws an unused negative for it, a DataLoader, torch's dropout, norms and GELU written out, every slot of every layer
computed, Adam in its plain form; and for the ranking a sparse matrix of seen items, argpartition, and metrics in a loop
over users. It starts from the same weights, and both train on the same rows with the same loss. `ratio` is its time
over ours, for the epoch.
"""

import argparse
import copy
import json
import math
import random
import statistics
import time
from typing import Any

from card import clock, forget_peak, peak_gib


def field_sasrec(model, histories):
    """All states of SASRec, (B, L, D), from our weights, as a full-width implementation computes them."""
    import torch
    from torch.nn import functional

    def split(x):
        return x.view(*x.shape[:2], heads, -1).permute(0, 2, 1, 3)

    x, training = field_embedding(model, histories), model.training
    mask = (histories > 0)[:, None, None, :] & torch.tril(
        torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
    )
    mask = (1.0 - mask.float()) * -10000.0
    for layer in model.layers:
        attention, heads = layer.attention, layer.attention.num_heads
        weights, biases = attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)
        q, k, v = (split(functional.linear(x, w, b)) for w, b in zip(weights, biases, strict=True))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        shares = functional.dropout(scores.softmax(-1), attention.attention_dropout.p, training)
        context = (shares @ v).permute(0, 2, 1, 3).flatten(2)
        context = functional.dropout(field_linear(attention.out, context), attention.dropout.p, training)
        x = field_feed_forward(layer.feed_forward, field_norm(attention.norm, context + x))
    return x


def field_wearec(model, histories):
    """All states of WEARec, (B, L, D), from our weights, as a full-width implementation computes them."""
    import torch
    from torch.nn import functional

    x = field_embedding(model, histories)
    for layer in model.layers:
        mix, rows, length = layer.mix, x.shape[0], x.shape[1]
        heads = x.view(rows, length, mix.num_heads, -1).permute(0, 2, 1, 3)  # (B, H, L, d)
        spectrum = torch.fft.rfft(heads, dim=2, norm="ortho")
        first, activation, second = mix.adapt
        adapted = field_linear(second, activation(field_linear(first, x.mean(1))))
        adapted = adapted.view(rows, mix.num_heads, -1, 2)
        scale, shift = mix.base_filter * (1 + adapted[..., 0]), mix.base_bias + adapted[..., 1]
        filtered = torch.fft.irfft(spectrum * scale[..., None] + shift[..., None], n=length, dim=2, norm="ortho")
        even, odd = heads[:, :, 0::2], heads[:, :, 1::2]
        detail = mix.detail.view(length // 2, mix.num_heads, -1).permute(1, 0, 2)
        mean, gap = (even + odd) / 2, (even - odd) / 2 * detail
        wavelet = torch.zeros_like(heads)
        wavelet[:, :, 0::2], wavelet[:, :, 1::2] = mean + gap, mean - gap
        mixed = ((1 - mix.alpha) * wavelet + mix.alpha * filtered).permute(0, 2, 1, 3).reshape(rows, length, -1)
        x = field_norm(mix.norm, functional.dropout(mixed, mix.dropout.p, model.training) + x)
        x = field_feed_forward(layer.feed_forward, x)
    return x


def field_embedding(model, histories):
    """Dropout(LN(E[item] + P[slot])) with torch's dropout."""
    import torch
    from torch.nn import functional

    block = model.embedding
    slots = torch.arange(histories.shape[1], device=histories.device).unsqueeze(0).expand_as(histories)
    x = field_norm(block.norm, block.items(histories) + block.positions(slots))
    return functional.dropout(x, block.dropout.p, model.training)


def field_feed_forward(block, x):
    """LN(x + Drop(W2 gelu(W1 x))) with torch's dropout and the GELU written out."""
    import torch
    from torch.nn import functional

    inner = field_linear(block.inner, x)
    inner = inner * 0.5 * (1.0 + torch.erf(inner / math.sqrt(2.0)))
    outer = functional.dropout(field_linear(block.outer, inner), block.dropout.p, block.norm.training)
    return field_norm(block.norm, outer + x)


def field_linear(layer, x):
    """A linear layer with torch's own product."""
    from torch.nn import functional

    return functional.linear(x, layer.weight, layer.bias)


def field_norm(norm, x):
    """LayerNorm written out, as BERT's first ports to torch have it."""
    import torch

    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return norm.weight * ((x - mean) / torch.sqrt(variance + norm.eps)) + norm.bias


FIELD = {"sasrec": field_sasrec, "wearec": field_wearec}


def field_dataset(rows, num_items, max_len, padding):
    """The rows as a Dataset that builds one at a time."""
    import torch
    from torch.utils.data import Dataset

    histories = [(history + 1).tolist() for history in rows.histories]
    users, targets = rows.user_numbers.tolist(), (rows.targets + 1).tolist()

    class Rows(Dataset):
        """One padded row with a negative that nothing uses."""

        def __len__(self):
            return len(targets)

        def __getitem__(self, index):
            items = histories[index]
            seen = {*items, targets[index]}
            negative = random.randint(1, num_items)
            while negative in seen:
                negative = random.randint(1, num_items)
            fill = [0] * (max_len - len(items))
            row = (fill + items if padding == "left" else items + fill)[-max_len:]
            length = max(min(len(items), max_len), 1)
            slot = max_len - 1 if padding == "left" else length - 1
            fields = (users[index], row, slot, targets[index], negative)
            return tuple(torch.tensor(field, dtype=torch.long) for field in fields)

    return Rows()


def field_epoch(model, states, optimizer, loader, steps):
    """Train; mean loss."""
    import torch
    from torch.nn import functional

    model.train()
    total, device = 0.0, model.item_matrix().device
    for step, (_, rows, slots, targets, _) in enumerate(loader):
        if step == steps:
            break
        rows, slots, targets = rows.to(device), slots.to(device), targets.to(device)
        vectors = states(model, rows)[torch.arange(len(rows), device=device), slots]
        loss = functional.cross_entropy(vectors @ model.item_matrix().T, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / min(steps, len(loader))


def field_ranking(model, states, loader, seen, mask_seen, chunks):
    """NDCG@10 by argpartition over masked scores, user by user."""
    import numpy as np
    import torch

    model.eval()
    gains, device = [], model.item_matrix().device
    with torch.no_grad():
        for chunk, (users, rows, slots, targets, _) in enumerate(loader):
            if chunk == chunks:
                break
            rows, slots = rows.to(device), slots.to(device)
            vectors = states(model, rows)[torch.arange(len(rows), device=device), slots]
            scores = (vectors @ model.item_matrix().T).cpu().numpy().copy()
            if mask_seen:
                scores[seen[users.numpy()].toarray() > 0] = 0
            else:
                scores[:, 0] = -np.inf
            kept = min(20, scores.shape[1])
            found = np.argpartition(scores, -kept)[:, -kept:]
            best = np.take_along_axis(scores, found, 1)
            found = np.take_along_axis(found, np.argsort(-best, 1), 1)
            for target, row in zip(targets.tolist(), found.tolist(), strict=True):
                rank = row.index(target) + 1 if target in row[:10] else 0
                gains.append(1 / math.log2(rank + 1) if rank else 0.0)
    return sum(gains) / len(gains)


class Measurement:
    """Both pipelines on the same rows, from the same weights."""

    def __init__(self, args):
        from dataclasses import replace

        import numpy as np
        import torch

        from minionerec.core.values import convert
        from minionerec.data.protocols import PROTOCOLS, read_examples
        from minionerec.models.sequential.registry import build_model, check_hyper, hyper_parameters

        self.seed, self.protocol = args.seed, replace(PROTOCOLS[args.protocol], seed=args.seed)
        split = read_examples(args.corpus, self.protocol)
        size, self.whole = self.protocol.batch_size, len(split.train)
        self.steps = min(args.steps or math.inf, math.ceil(self.whole / size))
        part = np.random.default_rng(args.seed).permutation(self.whole)[: self.steps * size]
        self.split = replace(split, train=split.train.take(part), test=split.test.take(slice(args.rows or None)))
        hyper = check_hyper(args.model, convert(args.hyper, dict[str, Any], "--hyper"))
        given = {"padding": self.protocol.padding, "num_users": len(split.train.user_ids)}
        hyper |= {name: value for name, value in given.items() if name in hyper_parameters(args.model)}
        torch.manual_seed(args.seed)
        self.built = build_model(args.model, num_items=split.n_items, max_len=self.protocol.max_len, **hyper)
        self.states = FIELD.get(args.model) if args.field else None
        self.device = args.device
        self.built.to(args.device)
        self.peak = {}

    def clock(self):
        """Seconds of the processor, or of the clock where a card computes."""
        return time.process_time() if self.device == "cpu" else clock(self.device)

    def warm_up(self):
        """Let the card compile and choose what it needs, on a few rows."""
        from dataclasses import replace

        whole, steps, size = self.split, self.steps, self.protocol.batch_size
        self.split = replace(whole, train=whole.train.take(slice(3 * size)), test=whole.test.take(slice(1024)))
        self.steps = min(steps, 3)
        self.ours()
        if self.states is not None:
            self.field()
        self.split, self.steps = whole, steps

    def ours(self):
        """Seconds of our epoch and of our ranking, mean loss, NDCG@10."""
        import numpy as np
        import torch

        from minionerec.metrics.ranking import ranking_metrics
        from minionerec.models.sequential.rank import rank_rows
        from minionerec.training.sequential.train import TrainingExamples, make_optimizer, train_epoch

        model, protocol, split = copy.deepcopy(self.built), self.protocol, self.split
        forget_peak(self.device)
        start = self.clock()
        users = split.train.user_numbers.astype(np.int64) if model.needs_users else None
        examples = TrainingExamples.of(split, protocol.max_len, protocol.padding, users=users)
        loss = train_epoch(model, examples, make_optimizer(model), protocol, 0)
        middle = self.clock()
        ranks = rank_rows(model, split.test, protocol.seen, torch.device(self.device))["item"]
        ndcg = ranking_metrics(ranks, protocol.ks, every_mrr=protocol.mrr)["NDCG@10"].mean()
        end, self.peak["ours"] = self.clock(), peak_gib(self.device)
        return middle - start, end - middle, loss, float(ndcg)

    def field(self):
        """The same of the other pipeline."""
        import numpy as np
        import torch
        from scipy.sparse import csr_matrix
        from torch.utils.data import DataLoader

        model, protocol, split = copy.deepcopy(self.built), self.protocol, self.split
        random.seed(self.seed)
        torch.manual_seed(self.seed)
        train, test = (
            field_dataset(rows, split.n_items, protocol.max_len, protocol.padding) for rows in (split.train, split.test)
        )
        positions = np.repeat(split.test.user_numbers, split.test.lengths), split.test.flat_histories()[0] + 1
        seen = csr_matrix((np.ones(len(positions[0])), positions), shape=(len(split.train.user_ids), split.n_items + 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        size = self.protocol.batch_size
        forget_peak(self.device)
        start = self.clock()
        loss = field_epoch(model, self.states, optimizer, DataLoader(train, size, shuffle=True), self.steps)
        middle = self.clock()
        ndcg = field_ranking(model, self.states, DataLoader(test, size), seen, protocol.seen != "keep", math.inf)
        end, self.peak["field"] = self.clock(), peak_gib(self.device)
        return middle - start, end - middle, loss, ndcg


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sasrec", help="a sequential recommender")
    parser.add_argument("--corpus", required=True, help="'user item item ...' file")
    parser.add_argument("--protocol", default="a", choices=["a", "b"], help="which protocol's rows")
    parser.add_argument("--hyper", nargs="*", default=[], help="hyper-parameters, e.g. num_heads=8")
    parser.add_argument("--steps", type=int, default=0, help="training steps timed; 0: the whole epoch")
    parser.add_argument("--rows", type=int, default=0, help="test examples ranked; 0: all")
    parser.add_argument("--repeats", type=int, default=3, help="how often each is timed, in turn; the median counts")
    parser.add_argument("--field", action=argparse.BooleanOptionalAction, default=True, help="time the other pipeline")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where to compute")
    parser.add_argument("--seed", type=int, default=42, help="seed of weights, order and dropout")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = parse()

    import torch

    from minionerec.core.machine import keep_freed_memory

    torch.set_num_threads(1)
    timed = Measurement(args)
    results = {"ours": [], "field": []}
    if args.device != "cpu":
        timed.warm_up()
    for turn in range(args.repeats):
        # The allocator's setting is part of our trainer; the first turn of the other pipeline runs without it.
        if timed.states is not None:
            results["field"].append(timed.field())
        if turn == 0:
            keep_freed_memory()
        results["ours"].append(timed.ours())
    figures = {
        "model": args.model,
        "corpus": args.corpus,
        "protocol": args.protocol,
        "device": args.device,
        "steps": timed.steps,
        "rows": len(timed.split.test),
    }
    scale = timed.whole / len(timed.split.train)
    for name, found in results.items():
        if found:
            epoch, ranking = (statistics.median(run[position] for run in found) for position in (0, 1))
            figures[name] = {
                "epoch_s": round(epoch * scale, 3),
                "ranking_s": round(ranking, 3),
                "loss": found[0][2],
                "test_ndcg@10": found[0][3],
                **({} if args.device == "cpu" else {"peak_gib": timed.peak[name]}),
            }
    if timed.states is not None:
        figures["ratio"] = round(figures["field"]["epoch_s"] / figures["ours"]["epoch_s"], 2)
        figures["ranking_ratio"] = round(figures["field"]["ranking_s"] / figures["ours"]["ranking_s"], 2)
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<14} {value}")


if __name__ == "__main__":
    main()
