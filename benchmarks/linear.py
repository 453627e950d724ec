"""Products of linear layers on a CPU: torch's own against `minionerec.models.nn.layers`, in turn in one process.

python benchmarks/linear.py
python benchmarks/linear.py --threads 2 --json

First single layers, forward and both gradients, in GFLOP/s; then a training step of a Qwen2 as Hugging Face builds it,
before and after `replace_linear`. `ratio` is the step's time before over its time after. Results are compared before
anything is timed.
"""

import argparse
import copy
import json
import statistics
import time

SHAPES = {
    "position-wise, 6,400 rows": (6400, 64, 256),
    "its second layer": (6400, 256, 64),
    "scores of 12,102 items": (128, 64, 12102),
    "the same, 450 rows of 128": (450, 128, 12102),
    "512 wide, 2,000 rows": (2000, 512, 512),
}


def seconds(*functions, repeats):
    """Median seconds of each of several functions, called in turn after one call each to warm up."""
    for function in functions:
        function()
    taken = [[] for _ in functions]
    for _ in range(repeats):
        for found, function in zip(taken, functions, strict=True):
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in taken]


def layers(repeats):
    """GFLOP/s of single layers, forward and backward."""
    import torch
    from torch.nn import functional

    from minionerec.models.nn.layers import linear

    figures = {}
    for name, (rows, width, out) in SHAPES.items():
        torch.manual_seed(0)
        x, weight = torch.randn(rows, width, requires_grad=True), torch.randn(out, width, requires_grad=True)
        gradient = torch.randn(rows, out)

        def both(function, given=(x, weight), gradient=gradient):
            product = function(*given)
            return product, *torch.autograd.grad(product, given, gradient)

        for ours, theirs in zip(both(linear), both(functional.linear), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
        theirs, ours = seconds(lambda: both(functional.linear), lambda: both(linear), repeats=repeats)
        work = 6 * rows * width * out / 1e9
        figures[name] = {"torch": round(work / theirs), "ours": round(work / ours), "ratio": round(theirs / ours, 2)}
    return figures


def step(hidden_size, num_layers, repeats):
    """Seconds of a training step of a Qwen2 over 8 x 250 tokens."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from minionerec.models.nn.layers import replace_linear

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=2000,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=hidden_size // 64,
        intermediate_size=3 * hidden_size,
    )
    plain = Qwen2ForCausalLM(config)
    ours = replace_linear(copy.deepcopy(plain))
    ids = torch.randint(config.vocab_size, (8, 250))

    def train(model):
        loss = model(input_ids=ids, labels=ids).loss
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    for one, other in zip(train(plain), train(ours), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
    before, after = seconds(lambda: train(plain), lambda: train(ours), repeats=repeats)
    return {"torch_s": round(before, 3), "ours_s": round(after, 3), "ratio": round(before / after, 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--repeats", type=int, default=9, help="how often each is timed; the median counts")
    parser.add_argument("--hidden-size", type=int, default=256, help="width of the language model")
    parser.add_argument("--layers", type=int, default=4, help="its layers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()

    import torch

    from minionerec.core.machine import keep_freed_memory

    torch.set_num_threads(args.threads)
    keep_freed_memory()
    figures = {"processor": torch.backends.cpu.get_cpu_capability(), "threads": args.threads}
    figures["layers"] = layers(args.repeats)
    figures["step"] = step(args.hidden_size, args.layers, args.repeats)
    figures["ratio"] = figures["step"]["ratio"]
    if args.json:
        print(json.dumps(figures))
    else:
        for name, found in {**figures.pop("layers"), **figures}.items():
            print(f"{name:<28} {found}")


if __name__ == "__main__":
    main()
