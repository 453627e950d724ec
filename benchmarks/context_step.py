"""What conditioning on the gap costs a training step of the catalogue model, beside the plain one.

python benchmarks/context_step.py                          # 3,670 SIDs, two towers, as on Industrial
python benchmarks/context_step.py --device cuda

The catalogue and its windows are made as in `catalogue_scale.py`, with a context of chance for each target. Both models
begin with the same weights; before anything is timed their losses are held against each other, which must be equal, for
at first a context changes nothing. Steps (forward, backward, AdamW) take turns, and medians count: seconds of the
processor, or of the clock where a card computes. One JSON line.
"""

import argparse
import json
import statistics

from card import clock
from catalogue_scale import make, now


def main() -> None:
    """Time both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sids", type=int, default=3670)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=10, help="items of a window")
    parser.add_argument("--targets", type=int, default=10, help="targets of each SID that are made")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--towers", type=int, default=2)
    parser.add_argument("--reach", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    import torch

    from minionerec.models.nn.context import hidden

    torch.set_num_threads(args.threads)
    made = {"plain": make(args.sids, args), "conditioned": make(args.sids, args, context_tokens=[(3, 4)])}
    plain, conditioned = made["plain"], made["conditioned"]
    missing = conditioned.model.load_state_dict(plain.model.state_dict(), strict=False)
    if missing.unexpected_keys:
        raise SystemExit(f"the plain model has what the conditioned one has not: {missing.unexpected_keys}.")
    order = torch.Generator().manual_seed(args.seed)
    contexts = torch.randint(3, (*plain.labels.shape, 1), generator=order)
    optimisers = {name: torch.optim.AdamW(one.model.parameters(), lr=1e-3) for name, one in made.items()}

    def batch() -> dict[str, torch.Tensor]:
        positions = torch.randint(len(plain.histories), (args.batch,), generator=order)
        parts = {"histories": plain.histories, "labels": plain.labels, "contexts": contexts}
        return {name: values[positions].to(args.device) for name, values in parts.items()}

    def loss(name: str, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        if name == "conditioned":
            parts = {**parts, "contexts": hidden(parts["contexts"], parts["labels"])}
        else:
            parts = {key: values for key, values in parts.items() if key != "contexts"}
        found: torch.Tensor = made[name].model(**parts, leave_out=True).loss
        return found

    first = batch()
    with torch.no_grad():
        losses = {name: float(loss(name, first)) for name in made}
    if abs(losses["plain"] - losses["conditioned"]) > 1e-4:
        raise SystemExit(f"the losses differ before training: {losses}.")
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for step in range(args.steps + 2):
        parts = batch()
        for name in sorted(made, reverse=bool(step % 2)):
            clock(args.device)
            start = now(args.device)
            loss(name, parts).backward()
            optimisers[name].step()
            optimisers[name].zero_grad()
            if step >= 2:
                seconds[name].append(now(args.device) - start)
    medians = {name: round(statistics.median(values), 4) for name, values in seconds.items()}
    ratio = round(medians["conditioned"] / medians["plain"], 3)
    print(json.dumps({"asked": vars(args), "seconds": medians, "ratio": ratio}))


if __name__ == "__main__":
    main()
