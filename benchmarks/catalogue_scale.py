"""The catalogue model as the catalogue grows: a step of the sampled loss beside the exact one, and both searches.

python benchmarks/catalogue_scale.py                       # 10,000, 100,000 and 1,000,000 SIDs
python benchmarks/catalogue_scale.py --sids 10000 --rounds 5
python benchmarks/catalogue_scale.py --device cuda

Catalogues are made: SIDs of three codes, text at random, windows in which the next item is a neighbour of the last one
or a popular one. One JSON line each. A step is drawing, forward, backward and optimiser, as in training. Seconds are
those of the processor, by one thread. Rounds of both losses take turns, and medians count; the exact loss is left out
(null) where its scores do not fit into half of the free memory. With `--device cuda` the card computes, and seconds of
steps and lists are those of the clock, read when it has nothing to do. Before anything is timed, scores of some SIDs
are held against the dense ones where those fit. Lists are those of a model that has learned little: what they cost
counts, not what they are worth.
"""

import argparse
import json
import math
import resource
import statistics
import time
from dataclasses import dataclass
from typing import Any

from card import clock, forget_peak, peak_gib


@dataclass
class Catalogue:
    """A catalogue with training windows.

    Attributes:
        codes: int32 (N, 3).
        tokens: int64 (3, C), vocabulary ids of codes.
        histories: int64 (W, T), SIDs from 1.
        labels: int64 (W, T), what came next.
        model: A model of them, its counts included.
    """

    codes: Any
    tokens: Any
    histories: Any
    labels: Any
    model: Any


def make(sids, args, **shape):
    """A catalogue of some size; `shape` says more of the model's configuration."""
    import numpy as np
    import torch

    from minionerec.data.transitions import count_transitions
    from minionerec.models.backbone.catalogue import CatalogueConfig, build_catalogue

    rng = np.random.default_rng(args.seed)
    fan = max(8, math.ceil((2 * sids) ** (1 / 3)))
    chosen = np.sort(rng.choice(fan**3, sids, replace=False))
    codes = np.stack([chosen // fan**2, chosen // fan % fan, chosen % fan], 1).astype(np.int32)
    tokens = 5 + np.arange(3 * fan).reshape(3, fan)
    windows, width = max(4 * args.batch, sids * args.targets // args.width), args.width
    popular = np.minimum((sids * rng.random((windows, width + 1)) ** 3).astype(np.int64), sids - 1)
    items = popular * 7919 % sids  # popular ones lie all over the trie
    for position in range(1, width + 1):
        follows = rng.random(windows) < 0.5
        near = (items[:, position - 1] + rng.integers(1, 20, windows)) % sids
        items[:, position] = np.where(follows, near, items[:, position])
    items += 1
    counts = count_transitions([(items[:, :-1], items[:, 1:])], sids, args.reach, 0.6, 0.3)
    text = rng.standard_normal((sids, args.hidden), dtype=np.float32)
    config = CatalogueConfig(
        vocab_size=int(tokens.max()) + 1,
        max_history=width,
        hidden_size=args.hidden,
        intermediate_size=4 * args.hidden,
        towers=args.towers,
        reach=args.reach,
        reverse=0.3,
        **shape,
    )
    torch.manual_seed(args.seed)
    model = build_catalogue(config, codes, tokens, text, counts).to(args.device)
    return Catalogue(
        codes, tokens, torch.from_numpy(items[:, :-1].copy()), torch.from_numpy(items[:, 1:].copy()), model
    )


class Steps:
    """Training steps of both losses on one model.

    Args:
        made: The catalogue.
        args: The command line.
    """

    def __init__(self, made, args):
        import torch

        from minionerec.training.catalogue.objectives import Sampler
        from minionerec.training.catalogue.row_adamw import RowAdamW

        self.made, self.batch, self.device = made, args.batch, torch.device(args.device)
        self.order = torch.Generator().manual_seed(args.seed)
        counts = torch.bincount(made.labels.flatten() - 1, minlength=len(made.codes)).numpy()
        self.sampler = Sampler(counts, args.negatives).to(self.device)
        how = {"lr": 1e-3, "betas": (0.9, 0.98), "weight_decay": 0.1}
        self.rows = RowAdamW(made.model.parameters(), **how)
        self.dense = torch.optim.AdamW(made.model.parameters(), **how, foreach=False)

    def take(self):
        """A batch: histories and labels."""
        import torch

        positions = torch.randint(len(self.made.histories), (self.batch,), generator=self.order)
        return self.made.histories[positions].to(self.device), self.made.labels[positions].to(self.device)

    def sampled(self):
        """A step of the sampled loss; how many SIDs it held."""
        import torch

        histories, labels = self.take()
        sample = self.sampler.draw(labels)
        columns = sample[0].numbers
        rows = torch.cat([columns, histories.flatten() - 1]).unique()
        self.rows.refresh(self.made.model.row_tables(rows, columns))
        self.made.model(histories=histories, labels=labels, leave_out=True, sample=sample).loss.backward()
        self.rows.step()
        self.rows.zero_grad()
        return len(columns)

    def exact(self):
        """A step of the exact loss."""
        histories, labels = self.take()
        self.made.model(histories=histories, labels=labels, leave_out=True).loss.backward()
        self.dense.step()
        self.dense.zero_grad()

    def exact_fits(self):
        """Whether a step of the exact loss fits into half of the free memory."""
        from minionerec.core.device import free_memory

        config = self.made.model.config
        scores = self.batch * self.made.histories.shape[1] * config.num_sids
        return 4 * scores * (2 * config.towers + 2) < free_memory(self.device) // 2


def check(made):
    """Hold scores of some SIDs against the dense ones."""
    import torch

    from minionerec.models.backbone.catalogue.tower import SidBlock
    from minionerec.models.nn.rows import ColumnSubset

    model = made.model.eval()
    histories, labels = (part[:4].to(model.device) for part in (made.histories, made.labels))
    row, slot = (histories > 0).nonzero(as_tuple=True)
    columns = ColumnSubset(torch.randint(model.config.num_sids, (50,)).unique().to(model.device))
    with torch.no_grad():
        whole = model(histories=histories, labels=labels, distribution=True).logits
        part = SidBlock.of(histories, columns, model.positions_at(histories, row, slot, columns))
        found = torch.stack([tower.scores_at(part, *model.given()) for tower in model.each_tower()])
        if len(found) == 1:
            differences = (whole[:, columns.numbers] - found[0]).std(1)
            if differences.max() > 1e-3:
                raise SystemExit(f"scores of some SIDs differ from the dense ones by {differences.max():.2g}.")


def now(device):
    """Seconds of the processor, or of the clock where a card computes."""
    return time.process_time() if device == "cpu" else clock(device)


def seconds(do, times, device):
    """Median seconds of a call."""
    found = []
    for _ in range(times):
        start = now(device)
        do()
        found.append(now(device) - start)
    return statistics.median(found)


def resident_mib():
    """Resident size of this process, now and at most so far, in MiB."""
    import psutil

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return round(psutil.Process().memory_info().rss / 2**20), round(peak)


def lists(made, args):
    """Seconds a list by beam and by exact search."""
    from minionerec.models.decoding.beam import beam_search
    from minionerec.models.decoding.exact import exact_search
    from minionerec.models.decoding.trie import Trie

    made.model.freeze()
    trie = Trie.build(made.codes, made.tokens)
    codes = made.codes[made.histories[: args.lists] - 1]  # (R, T, 3)
    prompts = [[int(made.tokens[level, code]) for sid in row for level, code in enumerate(sid)] for row in codes]
    exact_search(made.model, prompts[:1], trie, args.beams)  # what is made once
    beam_search(made.model, prompts[:1], trie, args.beams)
    start = now(args.device)
    beams = beam_search(made.model, prompts, trie, args.beams)
    middle = now(args.device)
    exact = exact_search(made.model, prompts, trie, args.beams)
    end = now(args.device)
    for one, other in zip(beams.sids.tolist(), exact.sids.tolist(), strict=True):
        if len(set(one)) < args.beams or len(set(other)) < args.beams:
            raise SystemExit("a list is too short, or names an SID twice.")
    return {
        "beam_s": round((middle - start) / len(prompts), 4),
        "exact_s": round((end - middle) / len(prompts), 4),
    }


def measure(sids, args):
    """One line."""
    start = time.process_time()
    made = make(sids, args)
    figures = {
        "sids": sids,
        "device": args.device,
        "windows": len(made.histories),
        "counts": made.model.config.num_transitions,
    }
    figures |= {"parameters": made.model.num_parameters(), "make_s": round(time.process_time() - start, 1)}
    if args.device != "cpu":
        forget_peak(args.device)
    if sids <= 100_000:
        check(made)
    made.model.train()
    steps = Steps(made, args)
    columns = [steps.sampled() for _ in range(3)][-1]
    figures |= {"labels": made.labels[: args.batch].numel(), "columns": columns}
    sampled, exact = [], []
    for _ in range(args.rounds):
        sampled.append(seconds(steps.sampled, args.steps, args.device))
    figures["sampled_rss_mib"], figures["sampled_peak_mib"] = resident_mib()
    if steps.exact_fits():
        if args.device != "cpu":
            steps.exact()  # what the card makes once
        sampled = []
        for _ in range(args.rounds):
            sampled.append(seconds(steps.sampled, args.steps, args.device))
            exact.append(seconds(steps.exact, 1, args.device))
    figures["sampled_step_s"] = round(statistics.median(sampled), 4)
    figures["exact_step_s"] = round(statistics.median(exact), 4) if exact else None
    figures["ratio"] = round(figures["exact_step_s"] / figures["sampled_step_s"], 2) if exact else None
    steps.rows.settle()
    figures |= lists(made, args)
    figures["rss_mib"], figures["peak_mib"] = resident_mib()
    if args.device != "cpu":
        figures["peak_card_gib"] = peak_gib(args.device)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sids", type=int, nargs="+", default=[10**4, 10**5, 10**6], help="sizes of catalogues")
    parser.add_argument("--batch", type=int, default=128, help="windows a step")
    parser.add_argument("--width", type=int, default=10, help="items of a window")
    parser.add_argument("--targets", type=int, default=10, help="training targets for each SID")
    parser.add_argument("--negatives", type=int, default=1024, help="SIDs drawn from all alike, each step")
    parser.add_argument("--hidden", type=int, default=128, help="width of a tower, and of the text")
    parser.add_argument("--towers", type=int, default=1, help="towers")
    parser.add_argument("--reach", type=int, default=10, help="items back that pairs are counted")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, in turns")
    parser.add_argument("--steps", type=int, default=5, help="sampled steps of a round")
    parser.add_argument("--lists", type=int, default=16, help="lists of each search")
    parser.add_argument("--beams", type=int, default=50, help="number of beams, and length of the lists")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where to compute")
    parser.add_argument("--seed", type=int, default=0, help="seed")
    args = parser.parse_args()

    import torch

    from minionerec.core.machine import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    for sids in args.sids:
        print(json.dumps(measure(sids, args)), flush=True)


if __name__ == "__main__":
    main()
