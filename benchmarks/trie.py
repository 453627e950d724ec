"""Cost of the trie at catalogue scale: time and memory to build it, and one lookup against one step of a model.

python benchmarks/trie.py                         # ten million items, three levels of 1024 codes, a 0.5B-shaped model
python benchmarks/trie.py --items 100000 --no-model
"""

import argparse
import json
import resource
import time


def peak_mib() -> float:
    """Largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000_000, help="rows of the code table")
    parser.add_argument("--levels", type=int, default=3, help="codes of an SID")
    parser.add_argument("--size", type=int, default=1024, help="codes of a level")
    parser.add_argument("--prompts", type=int, default=8, help="prompts whose beams are looked up together")
    parser.add_argument("--beams", type=int, default=50, help="beams of a prompt")
    parser.add_argument("--model", action=argparse.BooleanOptionalAction, default=True, help="time a model's step too")
    parser.add_argument("--seed", type=int, default=0, help="seed of the codes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()

    import numpy as np
    import torch
    from transformers import Qwen2Config, Qwen2Model

    from minionerec.models.decoding.trie import Trie

    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)
    codes = rng.integers(0, args.size, (args.items, args.levels), dtype=np.int32)
    ids = np.arange(args.levels * args.size).reshape(args.levels, args.size)
    before, start = peak_mib(), time.perf_counter()
    trie = Trie.build(codes, ids)
    build = time.perf_counter() - start
    figures = {
        "items": args.items,
        "sids": trie.n_sids,
        "nodes": len(trie.code),
        "build_s": round(build, 2),
        "arrays_mib": round(sum(getattr(trie, name).nbytes for name in ("first_child", "code", "sid")) / 2**20, 1),
        "codes_mib": round(codes.nbytes / 2**20, 1),
        "build_peak_above_codes_mib": round(peak_mib() - before, 1),
    }
    worst = 0.0
    for depth in range(trie.levels):
        low, high = trie.level_start[depth], trie.level_start[depth + 1]
        nodes = torch.from_numpy(rng.integers(low, high, (args.prompts, args.beams)))
        times = []
        for _ in range(50):
            start = time.perf_counter()
            children, _present = trie.children(nodes)
            trie.tokens(children, depth + 1)
            times.append(time.perf_counter() - start)
        worst = max(worst, sorted(times)[25])
    figures["lookup_ms"] = round(1000 * worst, 3)
    if args.model:
        config = Qwen2Config(
            vocab_size=1000,
            hidden_size=896,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            intermediate_size=4864,
        )
        model = Qwen2Model(config).eval()
        tokens = torch.zeros(args.prompts, args.beams, dtype=torch.long)
        with torch.no_grad():
            model(input_ids=tokens[:, :2])
            start = time.perf_counter()
            model(input_ids=tokens)
        step = time.perf_counter() - start
        figures |= {"model_step_s": round(step, 3), "lookup_share_of_step": round(worst / step, 6)}
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:28} {value:,}")


if __name__ == "__main__":
    main()
